//! The engine's thread: jobs from the queue into slots, one step of all of them after another, tokens out.
//!
//! - Owns: the engine and its sessions. In: jobs. Out: events over each job's channel; the board; metrics.
//! - A turn is one step: the next token of each slot that has one, and beside them pieces of prompts ([`super::turn`]). Before it
//!   slots that are being saved or restored get a little further ([`super::prefix_store`]).
//! - `thread` lets jobs in and goes round; `step` feeds what waits; `token` makes a token of what a step computed; `ending` says how a
//!   job ended; `running` is a job that is being done.
//! - Invariants: it never waits for a client; a job that is given up stops within one step, and within a layer where it is alone in
//!   it; a step that fails for several is tried again for each alone, so that a fault of one is not that of others.

mod ending;
mod running;
mod step;
mod thread;
mod token;

use std::sync::Arc;
use std::time::{Duration, Instant};

use flint_rt::base::ids::TokenId;
use flint_rt::engine::EngineError;
use flint_rt::text::chat::Marker;

use self::running::Running;
use super::backend::Backend;
use super::board::SlotView;
use super::prefix_store::{PrefixOptions, PrefixStore};
use super::shared::Shared;
use super::turn::Turns;

pub(crate) use self::ending::stopping;

/// A session, and what it is doing.
struct Slot<S> {
    session: S,
    running: Option<Running>,
    /// When it was used last, as a count of jobs; 0 for never.
    used: u64,
}

/// Why the thread has nothing to do.
pub(crate) enum Rest {
    /// Nobody asked for long; this is kept for those who will.
    Idle(PrefixStore),
    /// Nobody will ask any more.
    End,
}

/// Everything that the thread owns.
pub(crate) struct Worker<B: Backend> {
    backend: B,
    slots: Vec<Slot<B::Session>>,
    /// What no slot holds.
    store: PrefixStore,
    shared: Arc<Shared>,
    /// The ids that end a reply.
    stop_ids: Vec<TokenId>,
    think_close: Option<TokenId>,
    logits: Vec<f32>,
    turns: Turns,
    jobs: u64,
    steps: u32,
    /// After which time without a job the engine is given back.
    idle_release: Option<Duration>,
    idle_since: Instant,
}

impl<B: Backend> Worker<B> {
    /// Opens `slots` sessions, and what is kept beside them, unless an earlier worker left that in `kept`.
    ///
    /// # Errors
    /// When the device has too little memory, or a folder cannot be used.
    pub(crate) fn new(
        mut backend: B,
        slots: u32,
        idle_release: Option<Duration>,
        prefix: &PrefixOptions,
        kept: &mut Option<PrefixStore>,
        shared: Arc<Shared>,
    ) -> Result<Self, EngineError> {
        let facts = backend.facts();
        let slots = (0..slots)
            .map(|_| Ok(Slot { session: backend.open_session()?, running: None, used: 0 }))
            .collect::<Result<Vec<_>, EngineError>>()?;
        shared.board.reset(slots.len(), facts.context_len);
        let worker = Self {
            store: match kept.take() {
                Some(store) => store,
                None => PrefixStore::open(prefix, &backend, slots.len())?,
            },
            stop_ids: facts.stops.entries().iter().map(|(id, _)| *id).collect(),
            think_close: Marker::ThinkClose.id(&facts.tokenizer).ok(),
            backend,
            slots,
            logits: Vec::new(),
            turns: Turns::default(),
            jobs: 0,
            steps: 0,
            idle_release,
            idle_since: Instant::now(),
            shared,
        };
        worker.publish();
        Ok(worker)
    }

    /// Whether a slot does no job, and nothing is being saved of it or restored to it.
    fn is_free(&self, index: usize) -> bool {
        self.slots[index].running.is_none() && !self.store.is_busy(index)
    }

    fn show(&self, index: usize) {
        let slot = &self.slots[index];
        let held = self.backend.tokens(&slot.session).len();
        self.shared.board.set(
            index,
            SlotView {
                job: slot.running.as_ref().map(|running| (running.job.number, running.numbers)),
                held_tokens: held,
            },
        );
    }

    fn publish(&self) {
        self.shared.metrics.engine(&self.backend.counters());
        self.store.tell(&self.shared.metrics.prefix);
    }
}
