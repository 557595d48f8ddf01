//! Driver memory that the host maps: the read ring where host memory cannot be imported but the kernel can pin what
//! the driver mapped (NVIDIA's system memory, lavapipe).
//!
//! Owns the memory and its mapping. In: a length. Out: a [`HostRegion`] over the mapping and the [`Buffer`] over the
//! same bytes.
//!
//! Invariants: the memory is system memory where there is a choice, since `O_DIRECT` into a device's window fails with
//! EFAULT; both views begin at a multiple of the page size; either view keeps the memory alive.

use std::ptr::NonNull;
use std::sync::Arc;

use ash::vk;

use super::buffer::{Backing, Buffer, BufferInner, create_raw};
use super::context::Shared;
use super::error::{GpuError, describe};
use super::memory::Counted;
use super::placement::Placement;
use crate::base::region::{HostRegion, page_bytes};
use crate::base::units::align_up;

/// One mapped allocation.
pub(super) struct MappedMemory {
    shared: Arc<Shared>,
    memory: vk::DeviceMemory,
    counted: Counted,
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        self.shared.memory.uncount(&self.counted);
        // SAFETY: its buffer holds this value and is destroyed; the region that shows the mapping holds it too and is
        // gone. Freeing unmaps.
        unsafe { self.shared.device.raw.free_memory(self.memory, None) };
    }
}

/// Makes both views; see [`super::Gpu::mapped_region`].
pub(super) fn mapped_region(shared: &Arc<Shared>, len_bytes: u64) -> Result<(HostRegion, Buffer), GpuError> {
    const NAME: &str = "mapped region";
    let device = &shared.device;
    let page = page_bytes() as u64;
    let len_bytes = align_up(len_bytes, page);
    let raw = create_raw(device, NAME, len_bytes, None)?;
    // SAFETY: `raw` was just made from this device.
    let requirements = unsafe { device.raw.get_buffer_memory_requirements(raw) };
    // From here on the drop of `inner` destroys `raw`.
    let mut inner = BufferInner::new(Arc::clone(shared), raw, NAME, len_bytes, Backing::Allocated(None));

    // A driver promises 64-byte alignment of its mappings only, so a page more is taken and skipped into.
    let allocation_bytes = align_up(requirements.size.max(len_bytes), page) + page;
    let (memory, type_index) = allocate(shared, requirements.memory_type_bits, allocation_bytes)?;
    let counted = shared.memory.count(type_index, allocation_bytes);
    let memory = Arc::new(MappedMemory { shared: Arc::clone(shared), memory, counted });
    // SAFETY: host-visible memory of this device, not mapped yet.
    let mapped =
        unsafe { device.raw.map_memory(memory.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) }
            .map_err(|result| device.failed("vkMapMemory", result))?;
    let base: NonNull<u8> = NonNull::new(mapped.cast()).ok_or_else(|| GpuError::MapRefused {
        len_bytes,
        reason: "the driver mapped it at address 0".to_owned(),
    })?;

    let address = u64::try_from(base.as_ptr().addr()).expect("invariant: addresses have at most 64 bits");
    let skip_bytes = align_up(address, page) - address;
    if !skip_bytes.is_multiple_of(requirements.alignment) {
        return Err(GpuError::MapRefused {
            len_bytes,
            reason: format!(
                "a page begins {skip_bytes} B in, the device wants multiples of {}",
                requirements.alignment
            ),
        });
    }
    // SAFETY:
    // - The type is one that the requirements allow; the offset is a multiple of their alignment.
    // - `skip_bytes` is under a page, and a page more than the requirements' size was allocated.
    unsafe { device.raw.bind_buffer_memory(raw, memory.memory, skip_bytes) }
        .map_err(|result| device.failed("vkBindBufferMemory", result))?;
    inner.backing = Backing::Mapped { _memory: Arc::clone(&memory) };

    let len = usize::try_from(len_bytes).expect("invariant: what is mapped fits the address space");
    let skip = usize::try_from(skip_bytes).expect("invariant: under a page");
    // SAFETY: `skip + len` lies inside the mapping.
    let start = unsafe { base.add(skip) };
    // SAFETY: `start` has `len` mapped bytes that nobody else knows of yet. Zeros make them readable as plain bytes.
    unsafe { start.write_bytes(0, len) };
    // SAFETY:
    // - The mapping lives as long as `memory`, which the region keeps.
    // - Nobody else touches it from the host: the buffer over it has no host view.
    let region = unsafe { HostRegion::from_mapped(start, len, memory) };
    Ok((region, Buffer { inner: Arc::new(inner) }))
}

/// Coherent host memory of the device, cached by the host where there is such.
fn allocate(shared: &Shared, type_bits: u32, len_bytes: u64) -> Result<(vk::DeviceMemory, u32), GpuError> {
    let device = &shared.device;
    let limit = device.info.limits.allocation_bytes;
    if len_bytes > limit {
        let (what, limit_name) = ("mapped region".to_owned(), "maxMemoryAllocationSize");
        return Err(GpuError::OverLimit { what, wanted: len_bytes, limit_name, limit });
    }
    for type_index in shared.memory.candidates(type_bits, Placement::Readback, len_bytes, true) {
        let info = vk::MemoryAllocateInfo::default().allocation_size(len_bytes).memory_type_index(type_index);
        // SAFETY: the type exists, and the size is within the device's limit and the heap's size.
        match unsafe { device.raw.allocate_memory(&info, None) } {
            Ok(memory) => return Ok((memory, type_index)),
            Err(
                vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
                | vk::Result::ERROR_OUT_OF_HOST_MEMORY
                | vk::Result::ERROR_TOO_MANY_OBJECTS,
            ) => {}
            Err(result @ vk::Result::ERROR_DEVICE_LOST) => {
                return Err(device.failed("vkAllocateMemory", result));
            }
            Err(result) => return Err(GpuError::MapRefused { len_bytes, reason: describe(result) }),
        }
    }
    Err(shared.memory.exhausted("mapped region", type_bits, Placement::Readback, len_bytes))
}
