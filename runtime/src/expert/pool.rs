//! The slot table: which expert is in which slot.
//!
//! - Owns: one [`SlotState`] a slot, the way back from expert to slot, the order in which they leave, the pins.
//! - In: plans (`plan.rs`), and what became of their loads.
//! - Out: lookups.
//! - Invariants: pure. An expert is in at most one slot; table and slots agree; what loads or is pinned stays. After
//!   [`Pool::new`] nothing allocates.

use std::collections::{HashMap, VecDeque};

use crate::base::ids::{ExpertKey, SlotIndex};
use crate::expert::policy::Policy;
use crate::expert::ranking::Ranking;
use crate::expert::recency::Recency;
use crate::expert::slot::{Slot, SlotState};

/// The experts of a model: what a policy may have to remember something of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertSpace {
    /// The first layer with experts.
    pub layer_first: u32,
    /// Layers with experts.
    pub layer_count: u32,
    /// Experts of a layer.
    pub expert_count: u32,
}

impl ExpertSpace {
    /// How many there are.
    pub fn total(&self) -> u32 {
        self.layer_count * self.expert_count
    }

    /// The expert's number among all.
    ///
    /// # Panics
    /// When the model has no such expert.
    pub fn index(&self, key: ExpertKey) -> u32 {
        let layer = key.layer.0.wrapping_sub(self.layer_first);
        assert!(layer < self.layer_count && key.expert.0 < self.expert_count, "{key} is none of {self:?}");
        layer * self.expert_count + key.expert.0
    }
}

/// Who leaves first.
#[derive(Debug, Clone)]
enum Order {
    Recency(Recency),
    Ranking(Box<Ranking>),
}

/// The slots of device memory and the experts in them.
///
/// It holds numbers only; the bytes lie where the slot's number says.
#[derive(Debug, Clone)]
pub struct Pool {
    policy: Policy,
    space: ExpertSpace,
    slots: Vec<Slot>,
    slot_of: HashMap<ExpertKey, SlotIndex>,
    order: Order,
    /// Never-used or failed slots; the last one is taken first.
    empty: Vec<SlotIndex>,
    /// The number of the wave being planned, and for each slot that of the last wave which took it.
    wave: u64,
    wave_of: Vec<u64>,
    /// Slots through which a sweep passes its experts, the longest there first; see [`Pool::begin_sweep`].
    passing: VecDeque<SlotIndex>,
    is_sweep: bool,
}

/// Slots through which a sweep passes its experts: those of the wave that the device computes, and of the one that is being loaded.
pub const SWEEP_SLOTS: usize = 64;

impl Pool {
    /// A pool of `slot_count` empty slots for the experts of `space`.
    ///
    /// # Panics
    /// When `slot_count` is 0, or the policy's number is.
    pub fn new(slot_count: u32, policy: Policy, space: ExpertSpace) -> Self {
        assert!(slot_count > 0, "a pool without slots can hold no expert");
        let len = slot_count as usize;
        Self {
            policy,
            space,
            slots: vec![Slot::new(); len],
            // Twice what it holds: the table then cleans up after removals in place and never grows.
            slot_of: HashMap::with_capacity(2 * len),
            order: match policy {
                Policy::Lru => Order::Recency(Recency::new(slot_count)),
                _ => Order::Ranking(Box::new(Ranking::new(policy, slot_count, space.total()))),
            },
            empty: (0..slot_count).rev().map(SlotIndex).collect(),
            wave: 0,
            wave_of: vec![0; len],
            passing: VecDeque::with_capacity(SWEEP_SLOTS),
            is_sweep: false,
        }
    }

    /// How many slots there are.
    pub fn slot_count(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("invariant: made from a u32")
    }

    /// Who leaves when a slot is needed.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// A step begins that uses nearly all experts once: it takes empty slots, then [`SWEEP_SLOTS`] again and again, so that what
    /// was there before stays, for the next sweep and for single tokens.
    pub fn begin_sweep(&mut self) {
        self.begin_step();
        self.is_sweep = true;
    }

    /// A step begins, one pass through all layers: the time of policies that forget.
    pub fn begin_step(&mut self) {
        self.is_sweep = false;
        self.passing.clear();
        if let Order::Ranking(ranking) = &mut self.order {
            ranking.begin_step();
        }
    }

    /// How many experts are in slots or on their way into one.
    pub fn resident_count(&self) -> u32 {
        u32::try_from(self.slot_of.len()).expect("invariant: at most one expert a slot")
    }

    /// The slot that holds `key`, or into which it is being loaded ([`Pool::state`] tells which). No use is noted.
    pub fn lookup(&self, key: ExpertKey) -> Option<SlotIndex> {
        self.slot_of.get(&key).copied()
    }

    /// What `slot` holds.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn state(&self, slot: SlotIndex) -> SlotState {
        self.slots[slot.0 as usize].state()
    }

    /// Notes a use of `key`; nothing happens when it is in no slot.
    pub fn touch(&mut self, key: ExpertKey) {
        if let Some(slot) = self.lookup(key) {
            self.note_use(slot, key);
        }
    }

    /// Whether the policy would rather have `one`, which leaves now, than `other`, which left before. Where it only knows an order of use, or
    /// both are worth the same to it, that is the one that was used later.
    pub fn is_worth_more(&self, one: ExpertKey, other: ExpertKey) -> bool {
        match &self.order {
            Order::Recency(_) => true,
            Order::Ranking(ranking) => {
                ranking.score(self.space.index(one)) >= ranking.score(self.space.index(other))
            }
        }
    }

    fn note_use(&mut self, slot: SlotIndex, key: ExpertKey) {
        match &mut self.order {
            Order::Recency(recency) => recency.touch(slot),
            Order::Ranking(ranking) => ranking.note_use(slot, self.space.index(key)),
        }
    }

    /// The experts that are ready, in order of their slots.
    pub fn resident(&self) -> impl Iterator<Item = (ExpertKey, SlotIndex)> + '_ {
        (0u32..).zip(&self.slots).filter_map(|(index, slot)| match slot.state() {
            SlotState::Ready(key) => Some((key, SlotIndex(index))),
            SlotState::Empty | SlotState::Loading(_) => None,
        })
    }

    /// Forbids the eviction of `slot` until it is unpinned as often as it was pinned: for as long as the device may
    /// read it.
    ///
    /// # Panics
    /// When the slot is empty or there is none such.
    pub fn pin(&mut self, slot: SlotIndex) {
        self.slots[slot.0 as usize].pin();
    }

    /// Takes one pin off `slot`.
    ///
    /// # Panics
    /// When it is not pinned or there is no such slot.
    pub fn unpin(&mut self, slot: SlotIndex) {
        self.slots[slot.0 as usize].unpin();
    }

    /// How many pins are on `slot`.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn pins(&self, slot: SlotIndex) -> u32 {
        self.slots[slot.0 as usize].pins()
    }

    /// The load into `slot` is done: its expert is ready.
    ///
    /// # Panics
    /// When the slot was not loading.
    pub fn loaded(&mut self, slot: SlotIndex) {
        self.slots[slot.0 as usize].loaded();
    }

    /// The load into `slot` failed: the slot is empty, and its expert is in none.
    ///
    /// # Panics
    /// When the slot was not loading, or is pinned.
    pub fn load_failed(&mut self, slot: SlotIndex) {
        let key = self.slots[slot.0 as usize].load_failed();
        let was = self.slot_of.remove(&key);
        assert_eq!(was, Some(slot), "table and slot disagree about {key}");
        match &mut self.order {
            Order::Recency(recency) => recency.remove(slot),
            Order::Ranking(ranking) => ranking.remove(slot),
        }
        self.passing.retain(|&other| other != slot);
        self.empty.push(slot);
    }

    /// Whether the step is a sweep.
    pub fn is_sweep(&self) -> bool {
        self.is_sweep
    }

    /// Empties every slot and forgets every use.
    ///
    /// # Panics
    /// When a slot is pinned or loading: somebody waits for it.
    pub fn clear(&mut self) {
        let is_awaited = |slot: &Slot| slot.pins() > 0 || matches!(slot.state(), SlotState::Loading(_));
        assert!(!self.slots.iter().any(is_awaited), "a pool is cleared while it is used");
        *self = Self::new(self.slot_count(), self.policy, self.space);
    }

    /// From here on, [`Pool::join_wave`] and [`Pool::claim`] keep slots for a new wave.
    pub(super) fn begin_wave(&mut self) {
        self.wave += 1;
        if let Order::Ranking(ranking) = &mut self.order {
            ranking.begin_wave();
        }
    }

    /// Notes that the wave uses `key`, which is in `slot`, and keeps it from being claimed; false when the wave has it
    /// already.
    pub(super) fn join_wave(&mut self, slot: SlotIndex, key: ExpertKey) -> bool {
        let wave_of = &mut self.wave_of[slot.0 as usize];
        let is_new = *wave_of != self.wave;
        *wave_of = self.wave;
        self.note_use(slot, key);
        is_new
    }

    /// Takes a slot for `key`, which is in none: an empty one, else the policy's victim among the ready and unpinned
    /// slots outside the wave. Gives the slot and who had to leave, or nothing when no slot can be had.
    pub(super) fn claim(&mut self, key: ExpertKey) -> Option<(SlotIndex, Option<ExpertKey>)> {
        let slot = match self.empty.pop() {
            Some(slot) => slot,
            None => {
                let slot = self.take_passing().or_else(|| self.take_victim())?;
                if self.is_sweep {
                    self.passing.retain(|&other| other != slot);
                    self.passing.push_back(slot);
                }
                slot
            }
        };
        let victim = self.slots[slot.0 as usize].claim(key);
        if let Some(victim) = victim {
            let was = self.slot_of.remove(&victim);
            assert_eq!(was, Some(slot), "table and slot disagree about {victim}");
        }
        let other = self.slot_of.insert(key, slot);
        assert_eq!(other, None, "{key} was given a second slot");
        assert!(self.join_wave(slot, key), "{key} was given a slot that the wave has already");
        Some((slot, victim))
    }

    /// In a sweep, the slot that has passed an expert and may pass the next; then others leave only until there are enough such slots.
    fn take_passing(&mut self) -> Option<SlotIndex> {
        let enough = SWEEP_SLOTS.min(self.slots.len());
        if !self.is_sweep || self.passing.len() < enough {
            return None;
        }
        let index = self.passing.front()?.0 as usize;
        let may_leave = self.slots[index].is_evictable() && self.wave_of[index] != self.wave;
        let slot = if may_leave { self.passing.pop_front() } else { None }?;
        match &mut self.order {
            Order::Recency(recency) => recency.remove(slot),
            Order::Ranking(ranking) => ranking.remove(slot),
        }
        Some(slot)
    }

    fn take_victim(&mut self) -> Option<SlotIndex> {
        let (slots, wave_of, wave) = (&self.slots, &self.wave_of, self.wave);
        let may_leave = |slot: SlotIndex| {
            let index = slot.0 as usize;
            slots[index].is_evictable() && wave_of[index] != wave
        };
        match &mut self.order {
            Order::Recency(recency) => recency.oldest_first().find(|&slot| may_leave(slot)),
            Order::Ranking(ranking) => ranking.take_victim(may_leave),
        }
    }

    /// Asserts that table, slots, order of use and the list of empty slots agree. Takes time in proportion to the
    /// pool: for tests.
    ///
    /// # Panics
    /// When they disagree.
    pub fn assert_consistent(&self) {
        let mut occupied = 0;
        for (index, slot) in (0u32..).zip(&self.slots) {
            let index = SlotIndex(index);
            match slot.state().key() {
                Some(key) => {
                    occupied += 1;
                    assert_eq!(self.lookup(key), Some(index), "the table does not know where {key} is");
                    assert!(!self.empty.contains(&index), "an occupied slot is on the empty list");
                }
                None => assert!(self.empty.contains(&index), "an empty slot is on no list"),
            }
        }
        assert_eq!(occupied, self.slot_of.len(), "the table names experts that are in no slot");
        let ordered = match &self.order {
            Order::Recency(recency) => recency.oldest_first().count(),
            Order::Ranking(ranking) => {
                ranking.assert_consistent();
                ranking.len()
            }
        };
        assert_eq!(occupied, ordered, "the order of use misses a slot");
        assert_eq!(occupied + self.empty.len(), self.slots.len(), "a slot is listed as empty twice");
    }
}
