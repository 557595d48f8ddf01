//! Device memory and the buffers in it.
//!
//! Owns the allocator and every buffer's memory. In: a name, a length, a [`Placement`]. Out: [`Buffer`]s; how full the
//! heaps are.
//!
//! Invariants: a buffer's usage is storage and transfer, both ways; its memory lives as long as the last handle to it,
//! and commands hold handles; host access goes through a lock, so that safe code cannot race with itself.

use std::fmt;
use std::mem::size_of_val;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ash::vk;
use bytemuck::Pod;
use gpu_allocator::MemoryLocation;
use gpu_allocator::vulkan::{
    Allocation, AllocationCreateDesc, AllocationScheme, Allocator, AllocatorCreateDesc,
};
use gpu_allocator::{AllocationError, AllocationSizes, AllocatorDebugSettings};

use super::context::Shared;
use super::device::Device;
use super::error::{GpuError, describe};
use super::instance::lock;
use super::mapped::MappedMemory;
use super::placement::{self, HeapUse, Placement};
use crate::base::region::HostRegion;

/// Memory that small buffers share, in one piece. Larger buffers get memory of their own.
const BLOCK_BYTES: u64 = 64 << 20;

/// What every buffer may be used for.
pub(super) const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

/// The allocator over one device.
pub(super) struct Memory {
    allocator: Mutex<Allocator>,
    types: Vec<vk::MemoryType>,
    /// Bytes of live buffers, by heap.
    used: [AtomicU64; vk::MAX_MEMORY_HEAPS],
    /// Dropped after the allocator, which frees its blocks.
    device: Arc<Device>,
}

impl Memory {
    pub(super) fn new(device: Arc<Device>) -> Result<Self, GpuError> {
        let mut debug_settings = AllocatorDebugSettings::default();
        debug_settings.log_leaks_on_shutdown = false;
        let allocator = Allocator::new(&AllocatorCreateDesc {
            instance: device.instance.raw.clone(),
            device: device.raw.clone(),
            physical_device: device.physical,
            debug_settings,
            buffer_device_address: false,
            allocation_sizes: AllocationSizes::new(BLOCK_BYTES, BLOCK_BYTES),
        })
        .map_err(|error| GpuError::DriverRefused { call: "vkAllocateMemory", result: error.to_string() })?;
        // SAFETY: the physical device belongs to the instance.
        let properties =
            unsafe { device.instance.raw.get_physical_device_memory_properties(device.physical) };
        let types = properties.memory_types_as_slice().to_vec();
        Ok(Self { allocator: Mutex::new(allocator), types, used: Default::default(), device })
    }

    /// Every heap as it is now.
    pub(super) fn heaps(&self) -> Vec<HeapUse> {
        let has_budget = self.device.info.has_memory_budget;
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut chain = vk::PhysicalDeviceMemoryProperties2::default();
        if has_budget {
            chain = chain.push_next(&mut budget);
        }
        let instance = &self.device.instance.raw;
        // SAFETY: the physical device belongs to the instance; the budget is chained only where it is offered.
        unsafe { instance.get_physical_device_memory_properties2(self.device.physical, &mut chain) };
        let memory = chain.memory_properties;
        let heaps = memory.memory_heaps_as_slice().iter().enumerate();
        heaps
            .map(|(index, heap)| HeapUse {
                size_bytes: heap.size,
                budget_bytes: if has_budget { budget.heap_budget[index] } else { heap.size },
                used_bytes: if has_budget {
                    budget.heap_usage[index]
                } else {
                    self.used[index].load(Ordering::Relaxed)
                },
                is_device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
                is_reported: has_budget,
            })
            .collect()
    }

    /// Bytes of live buffers; imported memory is the host's and not counted.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used.iter().map(|used| used.load(Ordering::Relaxed)).sum()
    }

    /// Memory types to try, best first.
    pub(super) fn candidates(
        &self,
        type_bits: u32,
        placement: Placement,
        len_bytes: u64,
        is_strict: bool,
    ) -> Vec<u32> {
        let kind = self.device.info.kind;
        placement::candidates(&self.types, &self.heaps(), type_bits, kind, placement, len_bytes, is_strict)
    }

    fn memory_type(&self, type_index: u32) -> vk::MemoryType {
        self.types[usize::try_from(type_index).expect("invariant: at most 32 memory types")]
    }

    /// Counts `len_bytes` more in the heap of a type.
    pub(super) fn count(&self, type_index: u32, len_bytes: u64) -> Counted {
        let heap =
            usize::try_from(self.memory_type(type_index).heap_index).expect("invariant: at most 16 heaps");
        self.used[heap].fetch_add(len_bytes, Ordering::Relaxed);
        Counted { heap, len_bytes }
    }

    /// Takes back what `count` counted.
    pub(super) fn uncount(&self, counted: &Counted) {
        self.used[counted.heap].fetch_sub(counted.len_bytes, Ordering::Relaxed);
    }

    /// The out-of-memory error for `placement`, with the numbers of its heap.
    pub(super) fn exhausted(
        &self,
        what: &str,
        type_bits: u32,
        placement: Placement,
        requested_bytes: u64,
    ) -> GpuError {
        let heaps = self.heaps();
        let best = self.candidates(type_bits, placement, 0, false).first().copied();
        let heap = best.and_then(|index| usize::try_from(self.memory_type(index).heap_index).ok());
        let heap = heap.and_then(|index| heaps.get(index)).or_else(|| heaps.first());
        GpuError::OutOfMemory {
            what: what.to_owned(),
            requested_bytes,
            budget_bytes: heap.map_or(0, |heap| heap.budget_bytes),
            used_bytes: heap.map_or(0, |heap| heap.used_bytes),
        }
    }

    fn allocate(
        &self,
        name: &str,
        raw: vk::Buffer,
        requirements: vk::MemoryRequirements,
        placement: Placement,
    ) -> Result<(Allocation, Counted), GpuError> {
        // A small buffer may fit into a block that is already ours, whatever the budget says.
        let is_strict = requirements.size > BLOCK_BYTES;
        let types = self.candidates(requirements.memory_type_bits, placement, requirements.size, is_strict);
        // Where no block of shared memory can be had any more, there may be room for just this buffer.
        let schemes = [AllocationScheme::GpuAllocatorManaged, AllocationScheme::DedicatedBuffer(raw)];
        for scheme in schemes {
            for &type_index in &types {
                let desc = AllocationCreateDesc {
                    name,
                    requirements: vk::MemoryRequirements {
                        memory_type_bits: 1 << type_index,
                        ..requirements
                    },
                    // The type is chosen here, not by the allocator, which takes the first that fits.
                    location: MemoryLocation::Unknown,
                    linear: true,
                    allocation_scheme: scheme,
                };
                let answer = lock(&self.allocator).allocate(&desc);
                match answer {
                    Ok(allocation) => return Ok((allocation, self.count(type_index, requirements.size))),
                    Err(error) if is_exhaustion(&error) => {}
                    Err(error) => {
                        return Err(GpuError::DriverRefused {
                            call: "vkAllocateMemory",
                            result: error.to_string(),
                        });
                    }
                }
            }
        }
        Err(self.exhausted(name, requirements.memory_type_bits, placement, requirements.size))
    }

    fn free(&self, allocation: Allocation) {
        // It fails only for an allocation that is not its own, which cannot be.
        let _ = lock(&self.allocator).free(allocation);
    }
}

/// Whether the allocator ran out. It keeps the driver's other answers only as text; those of these two calls that mean
/// "no memory" are named so.
fn is_exhaustion(error: &AllocationError) -> bool {
    match error {
        AllocationError::OutOfMemory => true,
        AllocationError::Internal(text) | AllocationError::FailedToMap(text) => {
            let host = vk::Result::ERROR_OUT_OF_HOST_MEMORY;
            let too_many = vk::Result::ERROR_TOO_MANY_OBJECTS;
            text.contains(&format!("{host:?}"))
                || text.contains(&format!("{too_many:?}"))
                || text == &host.to_string()
        }
        _ => false,
    }
}

/// Bytes counted in a heap.
pub(super) struct Counted {
    heap: usize,
    len_bytes: u64,
}

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
    // SAFETY: the length is within the limits and above 0; sharing is exclusive to the one queue family.
    unsafe { device.raw.create_buffer(&info, None) }.map_err(|result| match result {
        vk::Result::ERROR_INVALID_EXTERNAL_HANDLE => {
            GpuError::DriverRefused { call: "vkCreateBuffer", result: describe(result) }
        }
        other => device.failed("vkCreateBuffer", other),
    })
}
