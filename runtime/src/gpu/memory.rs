//! Device memory.
//!
//! Owns the allocator. In: what a buffer requires and its [`Placement`]. Out: allocations; how full the heaps are.
//!
//! Invariants: the memory type is chosen in `placement.rs`, never by the allocator; a heap that reports no room is not
//! asked for a block of its own; what is taken is counted until it is given back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ash::vk;
use gpu_allocator::MemoryLocation;
use gpu_allocator::vulkan::{
    Allocation, AllocationCreateDesc, AllocationScheme, Allocator, AllocatorCreateDesc,
};
use gpu_allocator::{AllocationError, AllocationSizes, AllocatorDebugSettings};

use super::device::Device;
use super::error::GpuError;
use super::instance::lock;
use super::placement::{self, HeapUse, Placement};

/// Memory that small buffers share, in one piece. Larger buffers get memory of their own.
const BLOCK_BYTES: u64 = 64 << 20;

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

    /// Memory for a buffer.
    pub(super) fn allocate(
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

    /// Takes an allocation back.
    pub(super) fn free(&self, allocation: Allocation) {
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
