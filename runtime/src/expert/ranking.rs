//! Slots by the worth of their experts, for the policies that count uses.
//!
//! - Owns: each expert's score, whether it is in a slot or not, and a heap of the occupied slots, the least worth on top.
//! - In: uses, and steps: the time. Out: the victim among those that may leave.
//! - Invariants: pure; nothing allocates after [`Ranking::new`]; a use takes O(log slots). Scores are compared, never aged one
//!   by one: a use at step `t` adds `2^(t / h)` instead of every older one being halved each `h` steps, which orders experts
//!   the same way. So that numbers stay finite, all are scaled down by a power of two every 256 half-lives, which is exact
//!   for all but those that have decayed to nothing.

use std::cmp::Ordering;

use crate::base::ids::SlotIndex;
use crate::expert::policy::Policy;

/// After so many half-lives all scores are scaled down by 2 to its power.
const SCALE_HALVINGS: u64 = 256;

/// Places of slots that are not in the heap: empty ones, and occupied ones set aside.
const NOWHERE: u32 = u32::MAX;
const ASIDE: u32 = u32::MAX - 1;

/// What orders a slot: its expert's score, then when it was used last.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Worth {
    score: f64,
    used_at: u64,
}

impl Worth {
    fn order(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(self.used_at.cmp(&other.used_at))
    }
}

#[derive(Debug, Clone)]
pub(super) struct Ranking {
    policy: Policy,
    /// `2^(i / steps)` for every step of one half-life; one 1 where nothing ages.
    weights: Vec<f64>,
    step_in_life: usize,
    /// Half-lives since the scores were scaled.
    halvings: u64,
    /// Of each expert of the model.
    scores: Vec<f64>,
    /// Uses of each expert, where the policy asks for them besides the score.
    counts: Vec<f64>,
    /// Uses so far: the order among equals.
    use_count: u64,
    /// Of each slot; what it says of an empty one means nothing.
    worth: Vec<Worth>,
    expert_of: Vec<u32>,
    /// Slots, each worth no more than those at twice its place plus 1 and 2.
    heap: Vec<u32>,
    /// Of each slot, where it is in the heap.
    place: Vec<u32>,
    /// Occupied slots that may not leave now; they come back with the next wave.
    aside: Vec<u32>,
}

impl Ranking {
    /// For `slot_count` empty slots and a model of `expert_total` experts.
    ///
    /// # Panics
    /// When the policy's number is 0.
    pub(super) fn new(policy: Policy, slot_count: u32, expert_total: u32) -> Self {
        let weights = match policy {
            Policy::HalfLife { steps } | Policy::FrequencyRecency { steps } => {
                (0..steps).map(|step| (f64::from(step) / f64::from(steps)).exp2()).collect()
            }
            // The step within a life changes nothing; its end does.
            Policy::Ageing { steps } => vec![1.0; steps as usize],
            Policy::Lfu | Policy::Lru => vec![1.0],
        };
        assert!(!weights.is_empty(), "{policy}: a life of no steps");
        let (slots, experts) = (slot_count as usize, expert_total as usize);
        let counts =
            if matches!(policy, Policy::FrequencyRecency { .. }) { vec![0.0; experts] } else { Vec::new() };
        Self {
            policy,
            weights,
            step_in_life: 0,
            halvings: 0,
            scores: vec![0.0; experts],
            counts,
            use_count: 0,
            worth: vec![Worth { score: 0.0, used_at: 0 }; slots],
            expert_of: vec![0; slots],
            heap: Vec::with_capacity(slots),
            place: vec![NOWHERE; slots],
            aside: Vec::with_capacity(slots),
        }
    }

    /// Time goes on by a step.
    pub(super) fn begin_step(&mut self) {
        if self.policy.steps().is_none() {
            return;
        }
        self.step_in_life += 1;
        if self.step_in_life == self.weights.len() {
            self.step_in_life = 0;
            self.halvings += 1;
        }
        if self.halvings == SCALE_HALVINGS {
            self.halvings = 0;
            self.scale_down();
        }
    }

    fn scale_down(&mut self) {
        let factor = (-(SCALE_HALVINGS as f64)).exp2();
        self.scores.iter_mut().for_each(|score| *score *= factor);
        self.worth.iter_mut().for_each(|worth| worth.score *= factor);
        // Scores that became equal are ordered by last use from here on.
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(at);
        }
    }

    /// What was set aside may leave again.
    pub(super) fn begin_wave(&mut self) {
        while let Some(slot) = self.aside.pop() {
            self.push(slot);
        }
    }

    /// What an expert's uses are worth now, in a slot or not; to be compared with another's.
    pub(super) fn score(&self, expert: u32) -> f64 {
        self.scores[expert as usize]
    }

    /// Notes a use of `expert`, which is in `slot` now, whatever was there.
    pub(super) fn note_use(&mut self, slot: SlotIndex, expert: u32) {
        let weight = self.weights[self.step_in_life] * (self.halvings as f64).exp2();
        let score = &mut self.scores[expert as usize];
        match self.counts.get_mut(expert as usize) {
            Some(count) => {
                *count += 1.0;
                *score = *count * weight;
            }
            None => *score += weight,
        }
        let at = slot.0 as usize;
        self.use_count += 1;
        self.worth[at] = Worth { score: *score, used_at: self.use_count };
        self.expert_of[at] = expert;
        match self.place[at] {
            // The worth of an expert only rises with a use.
            NOWHERE => self.push(slot.0),
            ASIDE => {}
            place => self.sift_down(place as usize),
        }
    }

    /// `slot` is empty now.
    pub(super) fn remove(&mut self, slot: SlotIndex) {
        match self.place[slot.0 as usize] {
            NOWHERE => {}
            ASIDE => {
                self.aside.retain(|&other| other != slot.0);
                self.place[slot.0 as usize] = NOWHERE;
            }
            place => {
                self.take(place as usize);
            }
        }
    }

    /// The slot of least worth for which `may_leave` holds; it is in no order any more.
    pub(super) fn take_victim(&mut self, may_leave: impl Fn(SlotIndex) -> bool) -> Option<SlotIndex> {
        while !self.heap.is_empty() {
            let slot = self.take(0);
            if may_leave(SlotIndex(slot)) {
                return Some(SlotIndex(slot));
            }
            self.place[slot as usize] = ASIDE;
            self.aside.push(slot);
        }
        None
    }

    /// How many slots are in the order.
    pub(super) fn len(&self) -> usize {
        self.heap.len() + self.aside.len()
    }

    /// Asserts that the heap is one. For tests.
    pub(super) fn assert_consistent(&self) {
        for (at, &slot) in self.heap.iter().enumerate() {
            assert_eq!(
                self.place[slot as usize] as usize, at,
                "a slot is not where it should be in the heap"
            );
            let above = self.heap[at.saturating_sub(1) / 2];
            assert_ne!(self.order(above, slot), Ordering::Greater, "the heap is out of order");
            let score = self.scores[self.expert_of[slot as usize] as usize];
            assert_eq!(
                self.worth[slot as usize].score.to_bits(),
                score.to_bits(),
                "a slot's score is not its expert's"
            );
        }
        assert!(self.aside.iter().all(|&slot| self.place[slot as usize] == ASIDE), "a slot is in two places");
    }

    fn order(&self, a: u32, b: u32) -> Ordering {
        self.worth[a as usize].order(&self.worth[b as usize])
    }

    fn push(&mut self, slot: u32) {
        let at = self.heap.len();
        self.heap.push(slot);
        self.sift_up(at);
    }

    fn take(&mut self, at: usize) -> u32 {
        let slot = self.heap.swap_remove(at);
        self.place[slot as usize] = NOWHERE;
        if at < self.heap.len() {
            self.sift_up(at);
            self.sift_down(at);
        }
        slot
    }

    fn put(&mut self, at: usize, slot: u32) {
        self.heap[at] = slot;
        self.place[slot as usize] = u32::try_from(at).expect("invariant: slots are counted in u32");
    }

    fn sift_up(&mut self, mut at: usize) {
        let slot = self.heap[at];
        while at > 0 {
            let above = (at - 1) / 2;
            let other = self.heap[above];
            if self.order(other, slot) != Ordering::Greater {
                break;
            }
            self.put(at, other);
            at = above;
        }
        self.put(at, slot);
    }

    fn sift_down(&mut self, mut at: usize) {
        let slot = self.heap[at];
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let Some(&left_slot) = self.heap.get(left) else { break };
            let (below, other) = match self.heap.get(right) {
                Some(&right_slot) if self.order(right_slot, left_slot) == Ordering::Less => {
                    (right, right_slot)
                }
                _ => (left, left_slot),
            };
            if self.order(slot, other) != Ordering::Greater {
                break;
            }
            self.put(at, other);
            at = below;
        }
        self.put(at, slot);
    }
}
