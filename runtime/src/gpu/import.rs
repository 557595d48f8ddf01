//! Ordinary host memory as a device buffer (`VK_EXT_external_memory_host`): what the kernel reads into with `O_DIRECT`
//! is what the device reads, on every driver that offers it.
//!
//! Owns nothing itself. In: a [`HostRegion`]. Out: a [`Buffer`] over the same bytes, which keeps the region.
//!
//! Invariants: the host reaches the bytes only through the region's pieces, never through the buffer; a refusal is an
//! error that the caller answers with mapped memory or a copy, and leaves nothing behind.

use std::sync::Arc;

use ash::vk;

use super::buffer::{Backing, Buffer, BufferInner, create_raw};
use super::context::Shared;
use super::error::{GpuError, describe};
use super::placement::Placement;
use crate::base::region::HostRegion;

const HANDLE: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// Imports `region`; see [`super::Gpu::import`].
pub(super) fn import(shared: &Arc<Shared>, region: &HostRegion) -> Result<Buffer, GpuError> {
    const NAME: &str = "imported region";
    let device = &shared.device;
    let len_bytes = u64::try_from(region.len_bytes()).expect("invariant: usize is at most 64 bits");
    let refused = |reason: String| GpuError::ImportRefused { len_bytes, reason };
    let (Some(loader), Some(alignment)) = (&device.host_import, device.info.limits.import_alignment) else {
        return Err(refused("the driver lacks VK_EXT_external_memory_host".to_owned()));
    };
    let pointer = region.base().as_ptr();
    let address = u64::try_from(pointer.addr()).expect("invariant: addresses have at most 64 bits");
    if !address.is_multiple_of(alignment) || !len_bytes.is_multiple_of(alignment) {
        return Err(refused(format!("address and length must be multiples of {alignment} B")));
    }
    check_importable(shared).map_err(refused)?;

    let mut properties = vk::MemoryHostPointerPropertiesEXT::default();
    let get_properties = loader.fp().get_memory_host_pointer_properties_ext;
    // SAFETY: the extension is enabled; the pointer is aligned as it asks and lies in memory that `region` keeps.
    let answer = unsafe { get_properties(device.raw.handle(), HANDLE, pointer.cast(), &mut properties) };
    answer
        .result()
        .map_err(|result| refused(format!("vkGetMemoryHostPointerPropertiesEXT: {}", describe(result))))?;

    let raw = create_raw(device, NAME, len_bytes, Some(HANDLE))?;
    // SAFETY: `raw` was just made from this device.
    let requirements = unsafe { device.raw.get_buffer_memory_requirements(raw) };
    // From here on the drop of `inner` destroys `raw`.
    let mut inner = BufferInner::new(Arc::clone(shared), raw, NAME, len_bytes, Backing::Allocated(None));
    if requirements.size > len_bytes || !address.is_multiple_of(requirements.alignment) {
        return Err(refused(format!(
            "a buffer over it needs {} B aligned to {}",
            requirements.size, requirements.alignment
        )));
    }
    let type_bits = properties.memory_type_bits & requirements.memory_type_bits;
    // The memory is there already, so no heap needs room for it.
    let types = shared.memory.candidates(type_bits, Placement::Readback, 0, false);
    let type_index = *types.first().ok_or_else(|| refused("no coherent memory type takes it".to_owned()))?;

    let mut host =
        vk::ImportMemoryHostPointerInfoEXT::default().handle_type(HANDLE).host_pointer(pointer.cast());
    let info = vk::MemoryAllocateInfo::default()
        .allocation_size(len_bytes)
        .memory_type_index(type_index)
        .push_next(&mut host);
    // SAFETY:
    // - Pointer and size are multiples of the import alignment (VUID-VkImportMemoryHostPointerInfoEXT-handleType-01748,
    //   -01749 and VUID-VkMemoryAllocateInfo-allocationSize-01745).
    // - The bytes stay mapped as long as the memory object: `Backing::Imported` holds the region.
    let memory = unsafe { device.raw.allocate_memory(&info, None) }.map_err(|result| match result {
        vk::Result::ERROR_DEVICE_LOST => device.failed("vkAllocateMemory", result),
        // Drivers answer "out of memory" also where they cannot pin, so every refusal is one of the import.
        other => refused(format!("vkAllocateMemory: {}", describe(other))),
    })?;
    inner.backing = Backing::Imported { memory, _region: region.clone() };
    // SAFETY: the type is one that the requirements allow, offset 0 is aligned, the size suffices; bound once.
    unsafe { device.raw.bind_buffer_memory(raw, memory, 0) }
        .map_err(|result| device.failed("vkBindBufferMemory", result))?;
    Ok(Buffer { inner: Arc::new(inner) })
}

/// Whether the driver takes host memory under a buffer of our usage at all.
fn check_importable(shared: &Shared) -> Result<(), String> {
    let info =
        vk::PhysicalDeviceExternalBufferInfo::default().usage(super::buffer::USAGE).handle_type(HANDLE);
    let mut properties = vk::ExternalBufferProperties::default();
    let device = &shared.device;
    let instance = &device.instance.raw;
    // SAFETY: the physical device belongs to the instance; the handle type's extension is offered.
    unsafe {
        instance.get_physical_device_external_buffer_properties(device.physical, &info, &mut properties);
    }
    let features = properties.external_memory_properties.external_memory_features;
    if features.contains(vk::ExternalMemoryFeatureFlags::IMPORTABLE) {
        Ok(())
    } else {
        Err("the driver does not import host memory under storage buffers".to_owned())
    }
}
