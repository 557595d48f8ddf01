//! What the engine's thread and the connections share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::backend::Facts;
use super::board::Board;
use super::prefix_store::requests::Requests;
use super::queue::Queue;
use crate::metrics::Metrics;
use crate::wire::error::{ApiError, Kind};

/// How far loading is. Written by who opens the model, read by those who ask.
#[derive(Debug, Default)]
pub struct Loading {
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

impl Loading {
    /// So many bytes of so many are read; a total of 0 where nothing can be counted.
    pub fn set(&self, done_bytes: u64, total_bytes: u64) {
        self.done_bytes.store(done_bytes, Ordering::Relaxed);
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
    }

    /// Percent done.
    pub(crate) fn percent(&self) -> u64 {
        let total = self.total_bytes.load(Ordering::Relaxed);
        let done = self.done_bytes.load(Ordering::Relaxed);
        (done * 100).checked_div(total).unwrap_or(0).min(100)
    }
}

/// The meeting point of the two sides.
pub(crate) struct Shared {
    pub(crate) queue: std::sync::Arc<Queue>,
    pub(crate) board: Board,
    pub(crate) metrics: Metrics,
    pub(crate) loading: Loading,
    /// What is asked of slots.
    pub(crate) slot_requests: Requests,
    facts: OnceLock<Facts>,
    is_halted: AtomicBool,
    is_released: AtomicBool,
}

impl Shared {
    /// Before a model is there.
    pub(crate) fn new(queue_limit: usize) -> Self {
        let loading = ApiError::later(Kind::Unavailable, "the model is loading: try again in a while", 5);
        Self {
            queue: std::sync::Arc::new(Queue::new(queue_limit, loading)),
            board: Board::default(),
            metrics: Metrics::new(),
            loading: Loading::default(),
            slot_requests: Requests::default(),
            facts: OnceLock::new(),
            is_halted: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
        }
    }

    /// The model's facts once it is loaded.
    pub(crate) fn facts(&self) -> Option<&Facts> {
        self.facts.get()
    }

    /// The model is loaded.
    pub(crate) fn set_facts(&self, facts: Facts) {
        // Set once: there is one engine's thread, which opens one model.
        let _ = self.facts.set(facts);
    }

    /// Nothing that is begun is to be finished.
    pub(crate) fn halt(&self) {
        self.is_halted.store(true, Ordering::Relaxed);
    }

    /// The engine was closed because nobody asked for long, or is open again.
    pub(crate) fn set_released(&self, is_released: bool) {
        self.is_released.store(is_released, Ordering::Relaxed);
        self.metrics.released(is_released);
    }

    pub(crate) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Relaxed)
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.is_halted.load(Ordering::Relaxed)
    }
}
