//! What is asked of the engine, and what it answers: plain data between the two sides.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flint_rt::base::ids::TokenId;
use flint_rt::sample::SamplerOptions;
use tokio::sync::mpsc;

use super::constraint::Constraint;
use super::reply::{Piece, Shape, TokenInfo};
use crate::wire::error::ApiError;

/// A reply that is asked for; everything has been checked against the model.
#[derive(Debug, Clone)]
pub(crate) struct Generation {
    /// The prompt; not empty, and no longer than a context.
    pub(crate) ids: Vec<TokenId>,
    pub(crate) shape: Shape,
    pub(crate) sampling: SamplerOptions,
    /// Tokens of the reply at most.
    pub(crate) tokens_max: u32,
    /// Tokens before the reply may end.
    pub(crate) tokens_min: u32,
    /// Whether it never ends by itself.
    pub(crate) ignores_stops: bool,
    pub(crate) stops: Vec<String>,
    /// Whether log-probabilities are told, and of how many alternatives.
    pub(crate) top_logprobs: Option<u32>,
    /// Tokens of thought after which it is closed.
    pub(crate) thought_max: Option<u32>,
    pub(crate) reuses_prefix: bool,
    /// The form that the reply has to take, after its thought.
    pub(crate) constraint: Option<Constraint>,
}

impl Generation {
    /// The part of the prompt that need not be fed where it is held.
    pub(crate) fn prefix(&self) -> &[TokenId] {
        if self.reuses_prefix { &self.ids } else { &[] }
    }
}

/// Why a reply ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The model ended it.
    Stop,
    /// This stop string was about to come.
    StopString(String),
    /// As many tokens as were asked for, or as fit.
    Length,
}

/// Numbers of a reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) prompt_tokens: u32,
    /// Of these, those that a slot held already.
    pub(crate) cached_tokens: u32,
    /// Generated, the token that ended it not counted.
    pub(crate) reply_tokens: u32,
    /// Of these, those of thoughts.
    pub(crate) reasoning_tokens: u32,
    /// Drafts of its tokens that were verified, and those that were right.
    pub(crate) draft_tokens: u32,
    pub(crate) draft_accepted: u32,
    /// From the request's arrival to its first step.
    pub(crate) queued: Duration,
    /// From its first step to its first token.
    pub(crate) prompt: Duration,
    /// From its first token to its last.
    pub(crate) reply: Duration,
}

/// How a reply ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Summary {
    pub(crate) end: End,
    pub(crate) numbers: Numbers,
    /// Tokens that completed no text.
    pub(crate) tail: Vec<TokenInfo>,
}

/// How far a prompt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) total: u32,
    pub(crate) cached: u32,
    /// Those that are done, cached ones among them.
    pub(crate) done: u32,
    pub(crate) elapsed: Duration,
}

/// What the engine says while it works.
#[derive(Debug)]
pub(crate) enum Event {
    Progress(Progress),
    Piece(Piece, Numbers),
    /// The last one, if all went well.
    Done(Summary),
    /// The last one, if not.
    Failed(ApiError),
}

/// A request on the engine's side.
pub(crate) struct Job {
    pub(crate) number: u64,
    pub(crate) generation: Generation,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) arrived: Instant,
}

impl Job {
    /// Whether nobody waits for it any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}
