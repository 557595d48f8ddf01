//! What every slot is doing, for those who look.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::job::Numbers;

/// A slot as it was after its last step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SlotView {
    /// The job that it does, and how far that is.
    pub(crate) job: Option<(u64, Numbers)>,
    /// Tokens in its cache.
    pub(crate) held_tokens: usize,
}

/// All of them. The engine's thread writes, requests read.
#[derive(Debug, Default)]
pub(crate) struct Board {
    slots: Mutex<(Vec<SlotView>, u32)>,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, (Vec<SlotView>, u32)> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `count` empty slots of `context_len` tokens each.
    pub(crate) fn reset(&self, count: usize, context_len: u32) {
        *self.lock() = (vec![SlotView::default(); count], context_len);
    }

    pub(crate) fn set(&self, index: usize, view: SlotView) {
        self.lock().0[index] = view;
    }

    /// The slots, and the tokens that fit each.
    pub(crate) fn look(&self) -> (Vec<SlotView>, u32) {
        self.lock().clone()
    }
}
