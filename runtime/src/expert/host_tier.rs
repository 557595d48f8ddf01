//! The table of host memory: which expert lies in which host slot, and who has to make room.
//!
//! - Owns: one state a host slot, the way back from expert to slot, three orders of use. In: claims, and what became of them.
//! - Out: slots. Numbers only; the bytes lie where the slot's number says.
//! - Invariants: pure, and nothing allocates after [`HostTier::new`]. An expert is in at most one host slot. A slot that is read
//!   into or copied from is in no order and is claimed by nobody. Some slots are neither kept nor hold guesses, so a demand
//!   always finds one of these as soon as what is under way has ended.
//!
//! ```text
//!            claim                    landed                         lend          give_back
//!   Free ------------> Reading -----------------> Guess / Spare ------------> (lent) ------> Spare
//!     ^ failed            |  want: a guess that was right is a demand's          |
//!     +-------------------+                        Kept <--- the device dropped it; it goes last
//! ```
//!
//! Slots beyond those that a tier begins with come and go with their memory ([`HostTier::add`], [`HostTier::remove`]); as many as there
//! are of them may be kept, or hold more guesses.

use std::collections::HashMap;

use crate::base::ids::{ExpertKey, SlotIndex};
use crate::expert::recency::Recency;

/// A slot of host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostSlot(pub u32);

/// Why a slot is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// A step waits for it.
    Demand,
    /// A step may want it soon.
    Guess,
    /// The device gives it up.
    Keep,
}

/// What a slot has of its expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A read is under way.
    Reading,
    /// All of it.
    Held,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Also in a slot of the device, or of no further use.
    Spare,
    Guess,
    Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// There is no memory for it.
    Absent,
    Free,
    Reading {
        key: ExpertKey,
        is_guess: bool,
    },
    Held {
        key: ExpertKey,
        class: Class,
        lent: u32,
    },
}

/// The slots of host memory and the experts in them.
#[derive(Debug, Clone)]
pub struct HostTier {
    slots: Vec<State>,
    slot_of: HashMap<ExpertKey, HostSlot>,
    free: Vec<HostSlot>,
    /// Slots without memory; the last one gets it first.
    absent: Vec<HostSlot>,
    spare: Recency,
    guesses: Recency,
    kept: Recency,
    kept_count: u32,
    kept_max: u32,
    guess_count: u32,
    /// Slots that have memory.
    present: u32,
    /// Slots that are neither kept nor hold guesses, whatever happens.
    reserve: u32,
}

impl HostTier {
    /// `ring` empty slots, of which at most `guesses_max` hold guesses, and room for `kept_capacity` more slots, which have no memory
    /// yet.
    ///
    /// # Panics
    /// When guesses leave no slot for a demand.
    pub fn new(ring: u32, kept_capacity: u32, guesses_max: u32) -> Self {
        assert!(guesses_max < ring, "{guesses_max} guesses leave no slot of {ring} for a demand");
        let capacity = ring.checked_add(kept_capacity).expect("slots are counted in u32");
        let recency = || Recency::new(capacity);
        let mut slots = vec![State::Free; ring as usize];
        slots.resize(capacity as usize, State::Absent);
        Self {
            slots,
            slot_of: HashMap::with_capacity(2 * capacity as usize),
            free: {
                let mut free = Vec::with_capacity(capacity as usize);
                free.extend((0..ring).rev().map(HostSlot));
                free
            },
            absent: (ring..capacity).rev().map(HostSlot).collect(),
            spare: recency(),
            guesses: recency(),
            kept: recency(),
            kept_count: 0,
            kept_max: 0,
            guess_count: 0,
            present: ring,
            reserve: ring - guesses_max,
        }
    }

    /// There is memory for one slot more: which; `None` when all have theirs.
    pub fn add(&mut self) -> Option<HostSlot> {
        let slot = self.absent.pop()?;
        self.slots[slot.0 as usize] = State::Free;
        self.free.push(slot);
        self.kept_max += 1;
        self.present += 1;
        Some(slot)
    }

    /// Whether nothing is under way for `slot`, so that its memory may go.
    pub fn is_idle(&self, slot: HostSlot) -> bool {
        matches!(self.slots[slot.0 as usize], State::Free | State::Held { lent: 0, .. })
    }

    /// The memory of `slot` goes, and what it holds with it.
    ///
    /// # Panics
    /// When something is under way for it, or it is one of those that the tier began with.
    pub fn remove(&mut self, slot: HostSlot) {
        assert!(self.is_idle(slot), "{slot:?} is in use");
        self.clear(slot);
        let at =
            self.free.iter().rposition(|&other| other == slot).expect("invariant: a cleared slot is free");
        self.free.remove(at);
        self.slots[slot.0 as usize] = State::Absent;
        self.absent.push(slot);
        self.kept_max = self.kept_max.checked_sub(1).expect("what was added is removed, and no more");
        self.present -= 1;
        if self.kept_count > self.kept_max {
            self.spare_oldest_kept();
        }
    }

    /// Whether a slot is empty.
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether something has to go before more is kept.
    pub fn is_kept_full(&self) -> bool {
        self.kept_count >= self.kept_max || self.guess_room() == 0
    }

    /// How many slots have memory.
    pub fn slot_count(&self) -> u32 {
        self.present
    }

    /// What has been kept for longest.
    pub fn oldest_kept(&self) -> Option<ExpertKey> {
        let slot = self.kept.oldest()?;
        match self.slots[slot.0 as usize] {
            State::Held { key, .. } => Some(key),
            _ => unreachable!("only what is held is ordered"),
        }
    }

    /// What has been kept for longest is compared with others again only after all others that are kept were.
    pub fn renew_oldest_kept(&mut self) {
        if let Some(SlotIndex(oldest)) = self.kept.oldest() {
            self.leave(HostSlot(oldest));
            self.enter(HostSlot(oldest));
        }
    }

    /// How many slots keep what the device gave up.
    pub fn kept_count(&self) -> u32 {
        self.kept_count
    }

    /// The most that are kept.
    pub fn kept_max(&self) -> u32 {
        self.kept_max
    }

    /// Where `key` is, and how much of it.
    pub fn lookup(&self, key: ExpertKey) -> Option<(HostSlot, Found)> {
        let slot = *self.slot_of.get(&key)?;
        let found = match self.slots[slot.0 as usize] {
            State::Reading { .. } => Found::Reading,
            State::Held { .. } => Found::Held,
            State::Absent | State::Free => unreachable!("the table names an empty slot"),
        };
        Some((slot, found))
    }

    /// Whether a read into `slot` is a guess that nobody wants yet.
    pub fn is_unwanted_guess(&self, slot: HostSlot) -> bool {
        matches!(self.slots[slot.0 as usize], State::Reading { is_guess: true, .. })
    }

    /// How many more guesses are taken without another making room.
    pub fn guess_room(&self) -> u32 {
        (self.present - self.reserve).saturating_sub(self.kept_count + self.guess_count)
    }

    /// Whether `slot` holds a guess that nobody has wanted yet.
    pub fn is_guess(&self, slot: HostSlot) -> bool {
        matches!(self.slots[slot.0 as usize], State::Held { class: Class::Guess, .. })
    }

    /// Takes a slot for `key`, which is in none; `None` when none can be had now.
    ///
    /// # Panics
    /// When `key` has a slot.
    pub fn claim(&mut self, key: ExpertKey, claim: Claim) -> Option<HostSlot> {
        assert!(!self.slot_of.contains_key(&key), "{key} has a host slot already");
        let oldest = |recency: &Recency| recency.oldest().map(|slot| HostSlot(slot.0));
        let is_over = match claim {
            Claim::Demand => false,
            Claim::Guess => self.guess_room() == 0,
            Claim::Keep => self.is_kept_full(),
        };
        let slot = match claim {
            Claim::Guess if is_over => oldest(&self.guesses)?,
            Claim::Keep if is_over => oldest(&self.kept)?,
            Claim::Demand | Claim::Guess | Claim::Keep => {
                let is_demand = claim == Claim::Demand;
                // Memory that holds nothing first; then what was read into last, which is likeliest to lie in a processor's
                // cache, into which drives write, too.
                let spare = || self.spare.newest().map(|slot| HostSlot(slot.0));
                let found = self.free.last().copied().or_else(spare);
                found.or_else(|| if is_demand { oldest(&self.guesses) } else { None })?
            }
        };
        self.clear(slot);
        let popped = self.free.pop();
        debug_assert_eq!(popped, Some(slot), "what was cleared lies on top");
        self.slots[slot.0 as usize] = match claim {
            Claim::Demand => State::Reading { key, is_guess: false },
            Claim::Guess => {
                self.guess_count += 1;
                State::Reading { key, is_guess: true }
            }
            Claim::Keep => {
                self.kept_count += 1;
                State::Held { key, class: Class::Kept, lent: 1 }
            }
        };
        self.slot_of.insert(key, slot);
        Some(slot)
    }

    /// A step waits for what is read into `slot`: it is no guess any more.
    pub fn want(&mut self, slot: HostSlot) {
        if let State::Reading { is_guess, .. } = &mut self.slots[slot.0 as usize]
            && std::mem::take(is_guess)
        {
            self.guess_count -= 1;
        }
    }

    /// The read into `slot` is done.
    ///
    /// # Panics
    /// When there was none.
    pub fn landed(&mut self, slot: HostSlot) {
        let State::Reading { key, is_guess } = self.slots[slot.0 as usize] else {
            panic!("nothing was read into {slot:?}")
        };
        let class = if is_guess { Class::Guess } else { Class::Spare };
        self.slots[slot.0 as usize] = State::Held { key, class, lent: 0 };
        self.enter(slot);
    }

    /// The read into `slot` failed or was given up: the slot is empty.
    ///
    /// # Panics
    /// When there was none.
    pub fn failed(&mut self, slot: HostSlot) {
        let State::Reading { .. } = self.slots[slot.0 as usize] else {
            panic!("nothing was read into {slot:?}")
        };
        self.clear(slot);
    }

    /// A copy out of `slot` begins: nobody claims it until [`Self::give_back`]. A guess has then been used.
    ///
    /// # Panics
    /// When it holds nothing.
    pub fn lend(&mut self, slot: HostSlot) {
        self.leave(slot);
        let State::Held { class, lent, .. } = &mut self.slots[slot.0 as usize] else {
            panic!("{slot:?} holds nothing to be copied")
        };
        let was = std::mem::replace(class, Class::Spare);
        *lent += 1;
        self.uncount(was);
    }

    /// A copy out of `slot`, or into it for [`Claim::Keep`], has ended.
    ///
    /// # Panics
    /// When it was not lent.
    pub fn give_back(&mut self, slot: HostSlot) {
        let State::Held { lent, .. } = &mut self.slots[slot.0 as usize] else {
            panic!("{slot:?} holds nothing that was lent")
        };
        *lent = lent.checked_sub(1).expect("a slot is given back as often as it was lent");
        self.enter(slot);
        if self.kept_count > self.kept_max {
            // Memory went while it was lent.
            self.spare_oldest_kept();
        }
    }

    /// The device gives `key` up. True when its bytes are here and stay; false when they would have to be copied.
    pub fn keep(&mut self, key: ExpertKey) -> bool {
        let Some((slot, Found::Held)) = self.lookup(key) else { return false };
        if self.kept_max == 0 {
            return true;
        }
        self.leave(slot);
        if self.is_kept_full() {
            self.spare_oldest_kept();
        }
        if !self.is_kept_full() {
            self.set_class(slot, Class::Kept);
        }
        self.enter(slot);
        true
    }

    /// A copy into `slot` for [`Claim::Keep`] was never submitted: the slot is empty.
    ///
    /// # Panics
    /// When it was not lent once.
    pub fn forget(&mut self, slot: HostSlot) {
        self.give_back(slot);
        self.clear(slot);
    }

    fn spare_oldest_kept(&mut self) {
        if let Some(SlotIndex(oldest)) = self.kept.oldest() {
            let oldest = HostSlot(oldest);
            self.leave(oldest);
            self.set_class(oldest, Class::Spare);
            self.enter(oldest);
        }
    }

    /// Guesses for which `is_stale` holds become spare: right bytes that nobody asked for.
    pub fn drop_guesses(&mut self, is_stale: impl Fn(ExpertKey) -> bool) -> u32 {
        let mut dropped = 0;
        let mut at = self.guesses.oldest();
        while let Some(slot) = at {
            at = self.guesses.after(slot);
            let slot = HostSlot(slot.0);
            let State::Held { key, .. } = self.slots[slot.0 as usize] else {
                unreachable!("only what is held is ordered")
            };
            if is_stale(key) {
                self.leave(slot);
                self.set_class(slot, Class::Spare);
                self.enter(slot);
                dropped += 1;
            }
        }
        dropped
    }

    /// Forgets everything that nothing is under way for.
    pub fn clear_idle(&mut self) {
        for index in (0..).take(self.slots.len()) {
            if matches!(self.slots[index as usize], State::Held { lent: 0, .. }) {
                self.clear(HostSlot(index));
            }
        }
    }

    fn set_class(&mut self, slot: HostSlot, to: Class) {
        let State::Held { class, .. } = &mut self.slots[slot.0 as usize] else {
            unreachable!("only what is held has a class")
        };
        let was = std::mem::replace(class, to);
        self.uncount(was);
        match to {
            Class::Spare => {}
            Class::Guess => self.guess_count += 1,
            Class::Kept => self.kept_count += 1,
        }
    }

    fn uncount(&mut self, class: Class) {
        match class {
            Class::Spare => {}
            Class::Guess => self.guess_count -= 1,
            Class::Kept => self.kept_count -= 1,
        }
    }

    /// Puts a held slot into the order of its class, as the newest, unless it is lent.
    fn enter(&mut self, slot: HostSlot) {
        if let State::Held { class, lent: 0, .. } = self.slots[slot.0 as usize] {
            let recency = match class {
                Class::Spare => &mut self.spare,
                Class::Guess => &mut self.guesses,
                Class::Kept => &mut self.kept,
            };
            recency.touch(SlotIndex(slot.0));
        }
    }

    fn leave(&mut self, slot: HostSlot) {
        for recency in [&mut self.spare, &mut self.guesses, &mut self.kept] {
            recency.remove(SlotIndex(slot.0));
        }
    }

    /// Empties `slot` and lays it on top of the free ones, where it is not already.
    fn clear(&mut self, slot: HostSlot) {
        self.leave(slot);
        match std::mem::replace(&mut self.slots[slot.0 as usize], State::Free) {
            State::Absent => unreachable!("{slot:?} has no memory"),
            State::Free => return,
            State::Reading { key, is_guess } => {
                self.slot_of.remove(&key);
                self.guess_count -= u32::from(is_guess);
            }
            State::Held { key, class, lent } => {
                assert_eq!(lent, 0, "{slot:?} is cleared under a copy");
                self.slot_of.remove(&key);
                self.uncount(class);
            }
        }
        self.free.push(slot);
    }

    /// Asserts that table, orders and counts agree. Takes time in proportion to the slots: for tests.
    ///
    /// # Panics
    /// When they disagree.
    pub fn assert_consistent(&self) {
        let (mut kept, mut kept_idle, mut guesses) = (0, 0, 0);
        let (mut occupied, mut ordered, mut absent) = (0, 0, 0);
        for (index, state) in (0..).map(HostSlot).zip(&self.slots) {
            let key = match *state {
                State::Absent => {
                    absent += 1;
                    continue;
                }
                State::Free => {
                    assert!(self.free.contains(&index), "an empty slot is on no list");
                    continue;
                }
                State::Reading { key, is_guess } => {
                    guesses += u32::from(is_guess);
                    key
                }
                State::Held { key, class, lent } => {
                    kept += u32::from(class == Class::Kept);
                    kept_idle += u32::from(class == Class::Kept && lent == 0);
                    guesses += u32::from(class == Class::Guess);
                    ordered += usize::from(lent == 0);
                    key
                }
            };
            occupied += 1;
            assert_eq!(self.slot_of.get(&key), Some(&index), "the table does not know where {key} is");
        }
        assert_eq!(occupied, self.slot_of.len(), "the table names experts that are in no slot");
        assert_eq!(occupied + absent + self.free.len(), self.slots.len(), "a slot is listed as empty twice");
        let orders = [&self.spare, &self.guesses, &self.kept];
        let counted: usize = orders.iter().map(|order| order.oldest_first().count()).sum();
        assert_eq!(ordered, counted, "the orders miss a slot");
        assert_eq!((kept, guesses), (self.kept_count, self.guess_count), "kept and guesses are miscounted");
        assert!(kept_idle <= self.kept_max, "{kept} kept of {}", self.kept_max);
        assert_eq!(self.present as usize + absent, self.slots.len(), "slots with memory are miscounted");
    }
}
