//! A job that is being done, and how a step may leave it.

use std::sync::Arc;
use std::time::Instant;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::EngineError;
use flint_rt::model::Want;
use flint_rt::sample::Sampler;

use crate::engine::backend::Counters;
use crate::engine::job::{End, Event, Job, Numbers, Progress};
use crate::engine::reply::Reply;
use crate::wire::error::ApiError;

/// A job that is being done.
pub(super) struct Running {
    pub(super) job: Job,
    pub(super) sampler: Sampler,
    pub(super) reply: Reply,
    /// Whether the likeliest token is all that is wanted of a step, where no form holds it.
    pub(super) is_plain: bool,
    /// What the next step is asked for.
    pub(super) want: Want,
    /// The token to feed next; none while the prompt is fed.
    pub(super) next: Option<TokenId>,
    pub(super) numbers: Numbers,
    pub(super) began: Instant,
    pub(super) first_token_at: Instant,
    /// Whether its slot holds what is re-used of its prompt, and nothing else.
    pub(super) is_settled: bool,
    /// The engine's counters when it began.
    pub(super) counters: Counters,
}

/// How a step left a job.
pub(super) enum Outcome {
    GoesOn,
    Ended(End),
    /// Nobody waits for it any more.
    GivenUp,
    Failed(Arc<EngineError>),
    /// What was asked for cannot be.
    Refused(ApiError),
}

impl Running {
    /// What to ask the next step for.
    pub(super) fn wanted(&self) -> Want {
        let is_held =
            self.job.generation.constraint.as_ref().is_some_and(|constraint| constraint.is_active());
        if self.is_plain && !is_held { Want::Greedy } else { Want::Logits }
    }

    /// Tells the client; who does not listen is noticed at the next step.
    pub(super) fn send(&self, event: Event) {
        let _ = self.job.events.try_send(event);
    }

    pub(super) fn progress(&self, done: u32) -> Progress {
        Progress {
            total: self.numbers.prompt_tokens,
            cached: self.numbers.cached_tokens,
            done,
            elapsed: self.began.elapsed(),
        }
    }
}
