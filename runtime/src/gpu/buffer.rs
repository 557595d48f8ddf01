//! Buffers: bytes that kernels read and write.
//!
//! Owns each buffer and what lies under it. In: a name, a length, a [`Placement`]. Out: [`Buffer`]s and views of them.
//!
//! Invariants: a buffer's usage is storage, transfer both ways, and counts of workgroups; its memory lives as long as the last handle to it,
//! and commands hold handles; host access goes through a lock, so that safe code cannot race with itself.

use std::fmt;
use std::mem::size_of_val;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use ash::vk;
use bytemuck::Pod;
use gpu_allocator::vulkan::Allocation;

use super::context::Shared;
use super::device::Device;
use super::error::{GpuError, describe};
use super::instance::lock;
use super::mapped::MappedMemory;
use super::memory::Counted;
use super::placement::Placement;
use crate::base::region::HostRegion;

/// What every buffer may be used for.
pub(super) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::INDIRECT_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// What lies under a buffer.
pub(super) enum Backing {
    /// A piece of the allocator's.
    Allocated(Option<(Allocation, Counted)>),
    /// Host memory that the driver imported.
    Imported { memory: vk::DeviceMemory, _region: HostRegion },
    /// Driver memory that a [`HostRegion`] shows to the host.
    Mapped { _memory: Arc<MappedMemory> },
}

/// Where the host sees a buffer.
struct HostView(NonNull<u8>);

// SAFETY: the pointer is into a mapping that the buffer's backing owns and is used under the buffer's lock only.
unsafe impl Send for HostView {}

pub(super) struct BufferInner {
    pub(super) raw: vk::Buffer,
    name: String,
    len_bytes: u64,
    view: Option<Mutex<HostView>>,
    pub(super) backing: Backing,
    pub(super) shared: Arc<Shared>,
}

impl BufferInner {
    pub(super) fn new(
        shared: Arc<Shared>,
        raw: vk::Buffer,
        name: &str,
        len_bytes: u64,
        backing: Backing,
    ) -> Self {
        shared.device.name_object(raw, name);
        Self { raw, name: name.to_owned(), len_bytes, view: None, backing, shared }
    }
}

impl Drop for BufferInner {
    fn drop(&mut self) {
        // SAFETY: commands that use the buffer hold it, and are dropped only after they have run.
        unsafe { self.shared.device.raw.destroy_buffer(self.raw, None) };
        match &mut self.backing {
            Backing::Allocated(piece) => {
                if let Some((allocation, counted)) = piece.take() {
                    self.shared.memory.uncount(&counted);
                    self.shared.memory.free(allocation);
                }
            }
            // SAFETY: only this buffer was bound to it, and it is destroyed. The region is released after this.
            Backing::Imported { memory, .. } => unsafe { self.shared.device.raw.free_memory(*memory, None) },
            Backing::Mapped { .. } => {}
        }
    }
}

/// Bytes that kernels read and write. A handle: clones mean the same bytes, which live as long as the last of them.
#[derive(Clone)]
pub struct Buffer {
    pub(super) inner: Arc<BufferInner>,
}

/// A range of a buffer, as it is bound to a kernel.
#[derive(Clone, Debug)]
pub struct BufferView {
    /// The buffer.
    pub buffer: Buffer,
    /// Where the range begins; a multiple of the device's `storage_offset_alignment`.
    pub offset_bytes: u64,
    /// How long it is.
    pub len_bytes: u64,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({:?}, {} B)", self.inner.name, self.inner.len_bytes)
    }
}

impl Buffer {
    /// Makes a buffer of `len_bytes`; see [`super::Gpu::buffer`].
    pub(super) fn new(
        shared: &Arc<Shared>,
        name: &str,
        len_bytes: u64,
        placement: Placement,
    ) -> Result<Self, GpuError> {
        let device = &shared.device;
        let raw = create_raw(device, name, len_bytes, None)?;
        // SAFETY: `raw` was just made from this device.
        let requirements = unsafe { device.raw.get_buffer_memory_requirements(raw) };
        // From here on the drop of `inner` destroys `raw`.
        let mut inner = BufferInner::new(Arc::clone(shared), raw, name, len_bytes, Backing::Allocated(None));
        let (allocation, counted) = shared.memory.allocate(name, raw, requirements, placement)?;
        // SAFETY: the allocator's block is live; an allocation's memory is touched only through its buffer.
        let memory = unsafe { allocation.memory() };
        let (offset_bytes, mapped) = (allocation.offset(), allocation.mapped_ptr());
        inner.backing = Backing::Allocated(Some((allocation, counted)));
        // SAFETY: memory of a type that the requirements allow, at an offset that the allocator aligned; bound once.
        unsafe { device.raw.bind_buffer_memory(raw, memory, offset_bytes) }
            .map_err(|result| device.failed("vkBindBufferMemory", result))?;
        if placement != Placement::Device {
            let pointer = mapped.ok_or_else(|| GpuError::DriverRefused {
                call: "vkMapMemory",
                result: "host-visible memory without an address".to_owned(),
            })?;
            inner.view = Some(Mutex::new(HostView(pointer.cast())));
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.inner.len_bytes
    }

    /// Its name, as given when it was made.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Whether [`Buffer::write`] and [`Buffer::read`] work.
    pub fn is_host_visible(&self) -> bool {
        self.inner.view.is_some()
    }

    /// All of it.
    pub fn view(&self) -> BufferView {
        BufferView { buffer: self.clone(), offset_bytes: 0, len_bytes: self.inner.len_bytes }
    }

    /// `len_bytes` from `offset_bytes` on.
    ///
    /// # Panics
    /// When the range leaves the buffer.
    pub fn slice(&self, offset_bytes: u64, len_bytes: u64) -> BufferView {
        self.check_range("slice", offset_bytes, len_bytes);
        BufferView { buffer: self.clone(), offset_bytes, len_bytes }
    }

    /// Copies `values` into the buffer. The device sees them in what is submitted afterwards.
    ///
    /// # Panics
    /// When the buffer is not host-visible or the range leaves it.
    pub fn write<T: Pod>(&self, offset_bytes: u64, values: &[T]) {
        let len = size_of_val(values);
        let source: *const u8 = values.as_ptr().cast();
        self.with_host_range("write", offset_bytes, len, |target| {
            // SAFETY:
            // - `values` holds `len` bytes; `target` has room for them: `with_host_range` checked it.
            // - They do not overlap: a mapping of the driver's is never handed out as a Rust slice.
            unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
        });
    }

    /// Copies bytes of the buffer into `values`: what the device wrote before the last ticket that was waited for.
    ///
    /// # Panics
    /// When the buffer is not host-visible or the range leaves it.
    pub fn read<T: Pod>(&self, offset_bytes: u64, values: &mut [T]) {
        let len = size_of_val(values);
        let target: *mut u8 = values.as_mut_ptr().cast();
        self.with_host_range("read", offset_bytes, len, |source| {
            // SAFETY:
            // - `values` has room for `len` bytes, and any bytes are a `T: Pod`; `source` holds as many.
            // - They do not overlap: a mapping of the driver's is never handed out as a Rust slice.
            unsafe { std::ptr::copy_nonoverlapping(source.cast_const(), target, len) };
        });
    }

    fn with_host_range(&self, what: &str, offset_bytes: u64, len: usize, copy: impl FnOnce(*mut u8)) {
        let len_bytes = u64::try_from(len).expect("invariant: usize is at most 64 bits");
        self.check_range(what, offset_bytes, len_bytes);
        let view = self.inner.view.as_ref();
        let view = view.unwrap_or_else(|| panic!("{what}: buffer {:?} is not host-visible", self.inner.name));
        let base = lock(view);
        let offset =
            usize::try_from(offset_bytes).expect("invariant: a mapped offset fits the address space");
        // SAFETY: the offset lies inside the mapping, or one past its end for an empty range.
        copy(unsafe { base.0.as_ptr().add(offset) });
    }

    pub(super) fn check_range(&self, what: &str, offset_bytes: u64, len_bytes: u64) {
        let end = offset_bytes.checked_add(len_bytes);
        assert!(
            end.is_some_and(|end| end <= self.inner.len_bytes),
            "{what}: {len_bytes} B at byte {offset_bytes} leave buffer {:?} of {} B",
            self.inner.name,
            self.inner.len_bytes
        );
    }
}

/// A buffer without memory, its length checked against the device's limits.
pub(super) fn create_raw(
    device: &Device,
    name: &str,
    len_bytes: u64,
    external: Option<vk::ExternalMemoryHandleTypeFlags>,
) -> Result<vk::Buffer, GpuError> {
    assert!(len_bytes > 0, "buffer {name:?} is empty");
    device.check_alive("vkCreateBuffer")?;
    let limits = &device.info.limits;
    let checks =
        [("maxBufferSize", limits.buffer_bytes), ("maxMemoryAllocationSize", limits.allocation_bytes)];
    for (limit_name, limit) in checks {
        if len_bytes > limit {
            return Err(GpuError::OverLimit { what: name.to_owned(), wanted: len_bytes, limit_name, limit });
        }
    }
    let mut handles =
        vk::ExternalMemoryBufferCreateInfo::default().handle_types(external.unwrap_or_default());
    let mut info = vk::BufferCreateInfo::default().size(len_bytes).usage(USAGE);
    if external.is_some() {
        info = info.push_next(&mut handles);
    }
    // Concurrent where copies run on another family: ownership of single slots would have to be handed over at every copy, and a
    // buffer, which has no layout, gains nothing by it.
    let families = device.sharing_families();
    if let Some(families) = &families {
        info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(families);
    }
    // SAFETY: the length is within the limits and above 0; the families are two of the device's.
    unsafe { device.raw.create_buffer(&info, None) }.map_err(|result| match result {
        vk::Result::ERROR_INVALID_EXTERNAL_HANDLE => {
            GpuError::DriverRefused { call: "vkCreateBuffer", result: describe(result) }
        }
        other => device.failed("vkCreateBuffer", other),
    })
}
