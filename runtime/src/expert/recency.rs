//! The order of last use.
//!
//! - Owns: a ring of the occupied slots. In: uses. Out: the slots, oldest use first.
//! - Invariants: pure; a touch and a removal take constant time and no memory.

use crate::base::ids::SlotIndex;

/// Slots by last use: a ring of links through two arrays, with a sentinel behind the last slot's number.
///
/// From the sentinel, `next` leads from the oldest use to the newest. A slot that links to itself is not in the ring.
#[derive(Debug, Clone)]
pub(super) struct Recency {
    previous: Vec<u32>,
    next: Vec<u32>,
}

impl Recency {
    /// A ring over `slot_count` slots with none of them in it.
    pub(super) fn new(slot_count: u32) -> Self {
        let links: Vec<u32> = (0..=slot_count).collect();
        Self { previous: links.clone(), next: links }
    }

    fn sentinel(&self) -> usize {
        self.next.len() - 1
    }

    /// Makes `slot` the newest, whether it was in the ring or not.
    pub(super) fn touch(&mut self, slot: SlotIndex) {
        self.remove(slot);
        let end = self.sentinel();
        let newest = self.previous[end];
        self.previous[slot.0 as usize] = newest;
        self.next[slot.0 as usize] = self.next[newest as usize];
        self.next[newest as usize] = slot.0;
        self.previous[end] = slot.0;
    }

    /// Takes `slot` out of the ring; nothing happens when it is not in it.
    pub(super) fn remove(&mut self, slot: SlotIndex) {
        let slot = slot.0 as usize;
        let (previous, next) = (self.previous[slot], self.next[slot]);
        self.next[previous as usize] = next;
        self.previous[next as usize] = previous;
        self.previous[slot] = u32::try_from(slot).expect("invariant: slots are counted in u32");
        self.next[slot] = self.previous[slot];
    }

    /// The slot whose last use lies furthest back.
    pub(super) fn oldest(&self) -> Option<SlotIndex> {
        self.oldest_first().next()
    }

    /// The slot that was used last.
    pub(super) fn newest(&self) -> Option<SlotIndex> {
        let slot = self.previous[self.sentinel()];
        (slot as usize != self.sentinel()).then_some(SlotIndex(slot))
    }

    /// The slot used next after `slot`, if there is one; `slot` is in the ring.
    pub(super) fn after(&self, slot: SlotIndex) -> Option<SlotIndex> {
        let next = self.next[slot.0 as usize];
        (next as usize != self.sentinel()).then_some(SlotIndex(next))
    }

    /// The slots of the ring, oldest use first.
    pub(super) fn oldest_first(&self) -> impl Iterator<Item = SlotIndex> + '_ {
        let end = self.sentinel();
        let mut at = end;
        std::iter::from_fn(move || {
            at = self.next[at] as usize;
            (at != end).then(|| SlotIndex(self.next[self.previous[at] as usize]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(recency: &Recency) -> Vec<u32> {
        recency.oldest_first().map(|slot| slot.0).collect()
    }

    #[test]
    fn uses_order_the_slots() {
        let mut recency = Recency::new(4);
        assert_eq!(order(&recency), [] as [u32; 0]);
        for slot in [2, 0, 3, 2, 2, 0] {
            recency.touch(SlotIndex(slot));
        }
        assert_eq!(order(&recency), [3, 2, 0]);
        recency.remove(SlotIndex(2));
        recency.remove(SlotIndex(1));
        assert_eq!(order(&recency), [3, 0]);
    }

    #[test]
    fn one_slot_is_enough() {
        let mut recency = Recency::new(1);
        recency.touch(SlotIndex(0));
        recency.touch(SlotIndex(0));
        assert_eq!(order(&recency), [0]);
        recency.remove(SlotIndex(0));
        assert_eq!(order(&recency), [] as [u32; 0]);
    }
}
