//! What time a token takes when its misses are read from a drive, and guesses in the gaps.
//!
//! - Owns: the guesses whose reading was begun. In: layer after layer, its picks and its misses. Out: seconds, and what became
//!   of the guesses.
//! - Invariants: pure. Demand comes first: guesses are read in the time that the device computes, after the layer's own misses
//!   have come; what was not begun when the next layer's picks are known is dropped. One record may be under way then: if it is
//!   wanted the layer waits for its rest, otherwise for at most one piece of it.

use crate::engine::expectation::DriveCost;
use crate::engine::simulate::Outcome;
use crate::engine::simulate::caches::Cache;
use crate::expert::RouteTrace;

/// Parts in which a record is read: so much of a useless read stands in front of a wanted one.
const PIECES_A_RECORD: f64 = 4.0;

/// What is read before it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prefetch {
    /// Where guesses come from.
    pub source: GuessSource,
    /// At most so many of the best guesses of a layer are read.
    pub fan_out: u32,
    /// Whether a guess takes a slot when it is read, and counts as used; else only when a pick asks for it.
    pub takes_slot: bool,
}

/// Where guesses come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum GuessSource {
    /// No guesses.
    #[default]
    None,
    /// The layer's router on the input of the layer before, as recorded.
    NextRouter,
    /// What the token before used.
    PreviousToken,
}

impl std::fmt::Display for Prefetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.source {
            GuessSource::None => return f.write_str("none"),
            GuessSource::NextRouter => "next router",
            GuessSource::PreviousToken => "previous token",
        };
        write!(f, "{name}, {}{}", self.fan_out, if self.takes_slot { ", into slots" } else { "" })
    }
}

/// What time costs.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeCost {
    /// The drive.
    pub drive: DriveCost,
    /// Seconds that the device takes for a layer with experts.
    pub layer_seconds: f64,
    /// Seconds of a token outside these layers.
    pub ends_seconds: f64,
    /// Seconds that a layer with a miss takes beside the reads: host and device waiting for each other, the last copy.
    pub miss_seconds: f64,
}

pub(super) struct Timeline<'a> {
    trace: &'a RouteTrace,
    cost: &'a TimeCost,
    prefetch: Prefetch,
    /// Guesses for the next layer whose reading was begun; all but perhaps the last are there in time.
    begun: Vec<u16>,
    /// Seconds that the last of `begun` needs beyond the layer's time.
    late_seconds: f64,
    missed: Vec<u16>,
}

impl<'a> Timeline<'a> {
    pub(super) fn new(trace: &'a RouteTrace, cost: &'a TimeCost, prefetch: Prefetch) -> Self {
        Self { trace, cost, prefetch, begun: Vec::new(), late_seconds: 0.0, missed: Vec::new() }
    }

    /// Layer `at` = (token, layer) had `picks`, of which `missed` were in no slot.
    pub(super) fn layer(
        &mut self,
        at: (u32, u32),
        picks: &[u16],
        missed: &[u16],
        cache: &mut Cache<'_>,
        outcome: &mut Outcome,
    ) {
        // What took a slot was no miss any more.
        let wanted = if self.prefetch.takes_slot { picks } else { missed };
        let used = self.begun.iter().filter(|guess| wanted.contains(guess)).count();
        outcome.guesses_used += used as u64;
        let found = if self.prefetch.takes_slot { 0 } else { used };
        outcome.reads -= found as u64;
        let left = u32::try_from(missed.len() - found).expect("invariant: few picks");

        let mut stall = self.cost.drive.burst_seconds(left);
        let mut has_stopped = !missed.is_empty();
        if let Some(last) = self.begun.last()
            && self.late_seconds > 0.0
        {
            if wanted.contains(last) {
                stall += self.late_seconds;
                has_stopped = true;
            } else if left > 0 {
                stall += self.late_seconds.min(self.cost.drive.burst_seconds(1) / PIECES_A_RECORD);
            }
        }
        if has_stopped {
            stall += self.cost.miss_seconds;
        }
        outcome.stall_seconds += stall;
        outcome.seconds += stall + self.cost.layer_seconds;
        if at.1 + 1 == self.trace.layer_count {
            outcome.seconds += self.cost.ends_seconds;
        }
        self.begin_guesses(at, cache, outcome);
    }

    /// Begins to read the best guesses for the layer after `at`: as many as come while this one is computed, and one more.
    fn begin_guesses(&mut self, (token, layer): (u32, u32), cache: &mut Cache<'_>, outcome: &mut Outcome) {
        self.begun.clear();
        self.late_seconds = 0.0;
        let trace = self.trace;
        let (token, layer) = match layer + 1 {
            next if next < trace.layer_count => (token, next),
            _ if token + 1 < trace.token_count() => (token + 1, 0),
            _ => return,
        };
        let guesses = match self.prefetch.source {
            GuessSource::None => None,
            GuessSource::NextRouter => trace.guesses_of(token, layer),
            GuessSource::PreviousToken => token.checked_sub(1).map(|before| trace.picks_of(before, layer)),
        };
        let absent = guesses.unwrap_or_default().iter().take(self.prefetch.fan_out as usize);
        for &guess in absent.filter(|&&guess| !cache.is_resident(layer, guess)) {
            let count = u32::try_from(self.begun.len() + 1).expect("invariant: few guesses");
            self.begun.push(guess);
            let late = self.cost.drive.burst_seconds(count) - self.cost.layer_seconds;
            if late > 0.0 {
                self.late_seconds = late;
                break;
            }
        }
        outcome.guesses_read += self.begun.len() as u64;
        outcome.reads += self.begun.len() as u64;
        if self.prefetch.takes_slot {
            self.missed.clear();
            cache.use_picks(layer, &self.begun, &mut self.missed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::simulate::{CacheKind, Rule, Setup, run};
    use crate::expert::Policy;

    /// One layer of four experts, one a token: 0, 1, 2, 3, 0, ... in a pool of one, so every pick misses.
    fn round(guesses: impl Fn(u16) -> u16) -> RouteTrace {
        let picks: Vec<u16> = (0..40).map(|token| token % 4).collect();
        RouteTrace {
            model: "round".to_owned(),
            model_sha256: None,
            expert_layer_first: 0,
            layer_count: 1,
            expert_count: 4,
            experts_used: 1,
            guesses: Some(picks.iter().map(|&pick| guesses(pick)).collect()),
            picks,
            context_starts: vec![0],
            source: String::new(),
            expansion: None,
        }
    }

    /// A record takes 1 ms, a layer `layer_ms`, and a miss 0.1 ms beside.
    fn seconds_a_token(trace: &RouteTrace, source: GuessSource, layer_ms: f64) -> f64 {
        let drive = DriveCost::measured(vec![(1, 1e-3)], 1e9, 1_000_000);
        let cost =
            TimeCost { drive, layer_seconds: layer_ms * 1e-3, ends_seconds: 0.0, miss_seconds: 0.1e-3 };
        let prefetch = Prefetch { source, fan_out: 1, takes_slot: false };
        let setup = Setup {
            cache: CacheKind::Pool(Policy::Lru),
            slots: 1,
            rule: Rule::Waves,
            prefetch,
            cost: Some(cost),
        };
        let outcome = run(trace, &setup);
        assert_eq!(outcome.hits, 0, "a guess takes no slot");
        outcome.seconds / 40.0
    }

    #[test]
    fn a_record_that_was_guessed_is_read_once_and_counted_so() {
        let trace = round(|pick| pick);
        let drive = DriveCost::measured(vec![(1, 1e-3)], 1e9, 1_000_000);
        let cost = TimeCost { drive, layer_seconds: 2e-3, ends_seconds: 0.0, miss_seconds: 0.0 };
        for takes_slot in [false, true] {
            let prefetch = Prefetch { source: GuessSource::NextRouter, fan_out: 1, takes_slot };
            let setup = Setup {
                cache: CacheKind::Pool(Policy::Lru),
                slots: 1,
                rule: Rule::Waves,
                prefetch,
                cost: Some(cost.clone()),
            };
            let outcome = run(&trace, &setup);
            assert_eq!((outcome.guesses_read, outcome.guesses_used), (39, 39), "all but the first token's");
            assert_eq!(outcome.reads_a_token(), 1.0, "into slots: {takes_slot}");
        }
    }

    #[test]
    fn right_guesses_hide_the_drive_and_wrong_ones_cost_at_most_a_piece() {
        let near = |got: f64, wanted_ms: f64, what: &str| {
            // The first token has no guess.
            assert!((got * 1e3 - wanted_ms).abs() < 0.06, "{what}: {} ms, wanted {wanted_ms}", got * 1e3);
        };
        let (right, wrong) = (round(|pick| pick), round(|pick| (pick + 1) % 4));
        near(seconds_a_token(&right, GuessSource::None, 2.0), 3.1, "no guesses");
        near(seconds_a_token(&right, GuessSource::NextRouter, 2.0), 2.1, "right and in time");
        near(seconds_a_token(&right, GuessSource::NextRouter, 0.4), 1.1, "right, the last 0.6 ms late");
        near(seconds_a_token(&wrong, GuessSource::NextRouter, 2.0), 3.1, "wrong and done before the miss");
        near(
            seconds_a_token(&wrong, GuessSource::NextRouter, 0.4),
            1.75,
            "wrong, and a piece in front of the miss",
        );
    }
}
