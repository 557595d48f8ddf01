//! What a cache and a prefetcher would do on recorded routes, without a model, a drive or a device.
//!
//! - Owns: nothing; [`run`] replays a trace through a cache.
//! - In: a [`RouteTrace`], a [`Setup`]: cache, slots, prefetcher, and what time costs.
//! - Out: an [`Outcome`]: hits, reads, guesses used and wasted, seconds a token.
//! - Invariants: pure; equal input gives equal output. The product's policies run in the product's own
//!   [`Pool`](crate::expert::pool::Pool), planned by the product's own waves, so that their hits are those of a real run over
//!   the same routes, to the last one. Only what no product can have or what was not taken over has a cache of its own
//!   (`caches.rs`).

mod caches;

mod timeline;

pub mod curves;

pub mod table;

pub use caches::{CacheKind, Rule};
pub use timeline::{GuessSource, Prefetch, TimeCost};

use crate::base::ids::{ExpertIndex, ExpertKey, LayerIndex};
use crate::expert::RouteTrace;
use caches::Cache;
use timeline::Timeline;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Who leaves.
    pub cache: CacheKind,
    /// How many experts it holds.
    pub slots: u32,
    /// How the picks of a layer are counted.
    pub rule: Rule,
    /// What is read before it is asked for.
    pub prefetch: Prefetch,
    /// What time costs; without it no guess is read.
    pub cost: Option<TimeCost>,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Outcome {
    /// Tokens replayed.
    pub tokens: u64,
    /// Expert uses that found their record in a slot, as the engine counts them.
    pub hits: u64,
    /// Expert uses that did not.
    pub misses: u64,
    /// Records read, on a guess or because they were missing.
    pub reads: u64,
    /// Records whose reading was begun on a guess.
    pub guesses_read: u64,
    /// Of those, records that a miss of the next layer then found.
    pub guesses_used: u64,
    /// Seconds in all, if time was asked for.
    pub seconds: f64,
    /// Seconds of those that the device waited for the drive.
    pub stall_seconds: f64,
}

impl Outcome {
    /// Share of uses that were hits.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }

    /// Records read a token, guesses included.
    pub fn reads_a_token(&self) -> f64 {
        self.reads as f64 / self.tokens.max(1) as f64
    }

    /// Share of the records read on a guess that nobody used.
    pub fn wasted_share(&self) -> f64 {
        (self.guesses_read - self.guesses_used) as f64 / self.guesses_read.max(1) as f64
    }

    /// Tokens a second, if time was asked for.
    pub fn tokens_a_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// Replays `trace`.
///
/// # Panics
/// When the trace is none ([`RouteTrace::check`]), or fewer slots are given than a token uses of a layer.
pub fn run(trace: &RouteTrace, setup: &Setup) -> Outcome {
    assert!(setup.slots >= trace.experts_used, "{} slots hold no layer's picks", setup.slots);
    let mut cache = Cache::new(trace, setup);
    let mut timeline = setup.cost.as_ref().map(|cost| Timeline::new(trace, cost, setup.prefetch));
    let mut outcome = Outcome { tokens: u64::from(trace.token_count()), ..Outcome::default() };
    let mut missed = Vec::with_capacity(trace.experts_used as usize);
    for token in 0..trace.token_count() {
        cache.begin_step();
        for layer in 0..trace.layer_count {
            missed.clear();
            let picks = trace.picks_of(token, layer);
            cache.use_picks(layer, picks, &mut missed);
            outcome.misses += missed.len() as u64;
            outcome.reads += missed.len() as u64;
            outcome.hits += u64::from(trace.experts_used) - missed.len() as u64;
            if let Some(timeline) = &mut timeline {
                timeline.layer((token, layer), picks, &missed, &mut cache, &mut outcome);
            }
        }
    }
    outcome
}

fn key(trace: &RouteTrace, layer: u32, expert: u16) -> ExpertKey {
    let layer = LayerIndex(trace.expert_layer_first + layer);
    ExpertKey { layer, expert: ExpertIndex(u32::from(expert)) }
}
