//! Which memory type a buffer goes to: pure choice by flags, then by what the heaps have left.
//!
//! In: the device's memory types, what its heaps have left, the wished [`Placement`]. Out: memory types in the order in
//! which to try them.
//!
//! Invariants: host-visible memory that we take is coherent, so nothing needs flushing; a heap without room is passed
//! over for one with room, also when its type comes first in the driver's list (small BARs and carve-outs do); a
//! discrete GPU's buffers never end in host memory unasked, where kernels run at the bus's speed.

use ash::vk;

use super::info::DeviceKind;

/// Where a buffer lies, by its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// The device's own memory: weights, caches, activations, slots. The host cannot reach it.
    Device,
    /// Written by the host, read by the device.
    Upload,
    /// Written by the device, read by the host: in the host's caches where the driver offers that.
    Readback,
}

/// One heap: how much of it there is, may be used, and is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapUse {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// What this process may use of it: the driver's estimate, or the heap's size where it makes none.
    pub budget_bytes: u64,
    /// What this process uses of it: the driver's count, or ours.
    pub used_bytes: u64,
    /// Whether it is the device's own memory.
    pub is_device_local: bool,
    /// Whether budget and use are the driver's figures (`VK_EXT_memory_budget`).
    pub is_reported: bool,
}

impl HeapUse {
    /// Bytes that may still be taken.
    pub fn free_bytes(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.used_bytes)
    }
}

const DEVICE_LOCAL: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
const VISIBLE: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::HOST_VISIBLE;
const CACHED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::HOST_CACHED;
const COHERENT: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::HOST_COHERENT;
const NONE: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::empty();

/// Flags to have and flags not to have, best first.
type Rule = (vk::MemoryPropertyFlags, vk::MemoryPropertyFlags);

fn rules(placement: Placement, kind: DeviceKind) -> Vec<Rule> {
    let visible = VISIBLE | COHERENT;
    match placement {
        Placement::Device if kind == DeviceKind::Discrete => {
            vec![(DEVICE_LOCAL, VISIBLE), (DEVICE_LOCAL, NONE)]
        }
        Placement::Device => vec![(DEVICE_LOCAL, VISIBLE), (DEVICE_LOCAL, NONE), (NONE, NONE)],
        Placement::Upload => vec![(visible, DEVICE_LOCAL | CACHED), (visible, DEVICE_LOCAL), (visible, NONE)],
        Placement::Readback => {
            vec![(visible | CACHED, DEVICE_LOCAL), (visible | CACHED, NONE), (visible, NONE)]
        }
    }
}

/// Memory types for `len_bytes`, of those in `type_bits`, in the order in which to try them: by rule, within a rule by
/// free bytes. The types whose heap reports no room come last, or not at all when `is_strict`.
pub(super) fn candidates(
    types: &[vk::MemoryType],
    heaps: &[HeapUse],
    type_bits: u32,
    kind: DeviceKind,
    placement: Placement,
    len_bytes: u64,
    is_strict: bool,
) -> Vec<u32> {
    // Vendors mark experimental types so; they need features that are off.
    let avoided = vk::MemoryPropertyFlags::PROTECTED
        | vk::MemoryPropertyFlags::LAZILY_ALLOCATED
        | vk::MemoryPropertyFlags::DEVICE_COHERENT_AMD
        | vk::MemoryPropertyFlags::DEVICE_UNCACHED_AMD;
    let heap = |index: usize| heaps.get(usize::try_from(types[index].heap_index).unwrap_or(usize::MAX));
    let has_room = |index: usize| {
        heap(index).is_some_and(|heap| {
            len_bytes <= if heap.is_reported { heap.free_bytes() } else { heap.size_bytes }
        })
    };
    let mut order: Vec<usize> = Vec::new();
    for (with, without) in rules(placement, kind) {
        let mut ranked: Vec<usize> = (0..types.len())
            .filter(|&index| type_bits >> index & 1 == 1 && !order.contains(&index))
            .filter(|&index| {
                let flags = types[index].property_flags;
                flags.contains(with) && !flags.intersects(without | avoided)
            })
            .collect();
        ranked.sort_by_key(|&index| std::cmp::Reverse(heap(index).map_or(0, HeapUse::free_bytes)));
        order.extend(ranked);
    }
    if is_strict {
        order.retain(|&index| has_room(index));
    } else {
        order.sort_by_key(|&index| !has_room(index));
    }
    order.into_iter().filter_map(|index| u32::try_from(index).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn memory_type(heap_index: u32, property_flags: vk::MemoryPropertyFlags) -> vk::MemoryType {
        vk::MemoryType { property_flags, heap_index }
    }

    fn heap(budget_bytes: u64, used_bytes: u64, is_device_local: bool) -> HeapUse {
        HeapUse { size_bytes: budget_bytes, budget_bytes, used_bytes, is_device_local, is_reported: true }
    }

    /// A discrete GPU whose 256 MiB window comes first in the list.
    fn small_bar() -> (Vec<vk::MemoryType>, Vec<HeapUse>) {
        let types = vec![
            memory_type(0, DEVICE_LOCAL | VISIBLE | COHERENT),
            memory_type(1, DEVICE_LOCAL),
            memory_type(2, VISIBLE | COHERENT),
            memory_type(2, VISIBLE | COHERENT | CACHED),
        ];
        (types, vec![heap(256 * MIB, 0, true), heap(8 * GIB, GIB, true), heap(16 * GIB, 0, false)])
    }

    fn first(
        memory: &(Vec<vk::MemoryType>, Vec<HeapUse>),
        kind: DeviceKind,
        placement: Placement,
        len: u64,
    ) -> Option<u32> {
        candidates(&memory.0, &memory.1, u32::MAX, kind, placement, len, true).first().copied()
    }

    #[test]
    fn a_small_window_is_not_taken_for_the_device_memory() {
        let memory = small_bar();
        assert_eq!(first(&memory, DeviceKind::Discrete, Placement::Device, MIB), Some(1));
        assert_eq!(first(&memory, DeviceKind::Discrete, Placement::Upload, MIB), Some(2));
        assert_eq!(first(&memory, DeviceKind::Discrete, Placement::Readback, MIB), Some(3));
    }

    #[test]
    fn a_full_heap_is_passed_over_but_never_for_the_bus() {
        let (types, mut heaps) = small_bar();
        heaps[1].used_bytes = 8 * GIB;
        let memory = (types, heaps);
        assert_eq!(first(&memory, DeviceKind::Discrete, Placement::Device, 100 * MIB), Some(0));
        assert_eq!(first(&memory, DeviceKind::Discrete, Placement::Device, 300 * MIB), None);
        assert_eq!(first(&memory, DeviceKind::Integrated, Placement::Device, 300 * MIB), Some(2));
    }

    #[test]
    fn a_carve_out_yields_to_the_shared_heap_of_an_integrated_gpu() {
        let types = vec![
            memory_type(0, DEVICE_LOCAL),
            memory_type(1, VISIBLE | COHERENT),
            memory_type(1, VISIBLE | COHERENT | CACHED),
        ];
        let memory = (types, vec![heap(512 * MIB, 0, true), heap(24 * GIB, 0, false)]);
        assert_eq!(first(&memory, DeviceKind::Integrated, Placement::Device, 100 * MIB), Some(0));
        assert_eq!(first(&memory, DeviceKind::Integrated, Placement::Device, 2 * GIB), Some(1));
    }

    #[test]
    fn without_a_budget_only_the_heap_size_counts() {
        let types = vec![memory_type(0, DEVICE_LOCAL | VISIBLE | COHERENT | CACHED)];
        let mut only = heap(2 * GIB, 2 * GIB, true);
        only.is_reported = false;
        let memory = (types, vec![only]);
        for placement in [Placement::Device, Placement::Upload, Placement::Readback] {
            assert_eq!(first(&memory, DeviceKind::Software, placement, GIB), Some(0));
            assert_eq!(first(&memory, DeviceKind::Software, placement, 3 * GIB), None);
        }
    }
}
