//! One slot's life.
//!
//! ```text
//!            claim              loaded
//!   Empty ----------> Loading ----------> Ready
//!     ^                 |  ^                |
//!     +-----------------+  +----------------+
//!         load failed         claim (evicts)
//! ```
//!
//! - Owns: the state of one slot and its pins.
//! - In: the moves that the pool asks for.
//! - Out: the state after it.
//! - Invariants: no other move exists; a pinned slot is never claimed. An illegal move is our own mistake and panics.

use crate::base::ids::ExpertKey;

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing.
    Empty,
    /// The expert's bytes are on their way; until then the slot's content is undefined.
    Loading(ExpertKey),
    /// The expert's whole record.
    Ready(ExpertKey),
}

impl SlotState {
    /// The expert that the slot holds or will hold.
    pub fn key(self) -> Option<ExpertKey> {
        match self {
            SlotState::Empty => None,
            SlotState::Loading(key) | SlotState::Ready(key) => Some(key),
        }
    }
}

/// A slot's state and how many users forbid its eviction.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    state: SlotState,
    pins: u32,
}

impl Slot {
    pub(super) fn new() -> Self {
        Self { state: SlotState::Empty, pins: 0 }
    }

    pub(super) fn state(&self) -> SlotState {
        self.state
    }

    /// Whether [`Slot::claim`] would evict: what loads is awaited by somebody, what is pinned is in use.
    pub(super) fn is_evictable(&self) -> bool {
        self.pins == 0 && matches!(self.state, SlotState::Ready(_))
    }

    /// Empty or Ready -> Loading; gives the expert that had to leave.
    pub(super) fn claim(&mut self, key: ExpertKey) -> Option<ExpertKey> {
        assert_eq!(self.pins, 0, "a pinned slot was claimed for {key}");
        let victim = match self.state {
            SlotState::Empty => None,
            SlotState::Ready(victim) => Some(victim),
            SlotState::Loading(other) => panic!("the slot claimed for {key} is still loading {other}"),
        };
        self.state = SlotState::Loading(key);
        victim
    }

    /// Loading -> Ready.
    pub(super) fn loaded(&mut self) {
        let SlotState::Loading(key) = self.state else {
            panic!("a slot in state {:?} was loaded", self.state)
        };
        self.state = SlotState::Ready(key);
    }

    /// Loading -> Empty; gives the expert that did not arrive.
    pub(super) fn load_failed(&mut self) -> ExpertKey {
        let SlotState::Loading(key) = self.state else {
            panic!("a load failed of a slot in state {:?}", self.state)
        };
        assert_eq!(self.pins, 0, "the load of {key} failed while its slot was pinned: unpin it first");
        self.state = SlotState::Empty;
        key
    }

    pub(super) fn pin(&mut self) {
        assert_ne!(self.state, SlotState::Empty, "an empty slot was pinned");
        self.pins += 1;
    }

    pub(super) fn unpin(&mut self) {
        assert!(self.pins > 0, "a slot was unpinned more often than pinned");
        self.pins -= 1;
    }

    pub(super) fn pins(&self) -> u32 {
        self.pins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_goes_the_legal_way() {
        let mut slot = Slot::new();
        assert!(!slot.is_evictable(), "an empty slot has nobody to evict");
        assert_eq!(slot.claim(ExpertKey::new(2, 7)), None);
        assert!(!slot.is_evictable(), "what loads is awaited");
        slot.loaded();
        assert!(slot.is_evictable(), "ready and unpinned");
        slot.pin();
        assert!(!slot.is_evictable(), "pinned");
        slot.unpin();
        assert_eq!(slot.claim(ExpertKey::new(3, 1)), Some(ExpertKey::new(2, 7)));
        assert_eq!(slot.load_failed(), ExpertKey::new(3, 1));
        assert_eq!(slot.state(), SlotState::Empty);
    }

    #[test]
    #[should_panic(expected = "a pinned slot was claimed")]
    fn a_pinned_slot_is_not_claimed() {
        let mut slot = Slot::new();
        slot.claim(ExpertKey::new(0, 0));
        slot.loaded();
        slot.pin();
        slot.claim(ExpertKey::new(0, 1));
    }

    #[test]
    #[should_panic(expected = "was loaded")]
    fn an_empty_slot_is_not_loaded() {
        Slot::new().loaded();
    }
}
