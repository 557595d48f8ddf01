//! What time a token takes when its misses are read from a drive, and guesses in the gaps.
//!
//! - Owns: the guesses whose reading was begun. In: layer after layer, its picks and its misses. Out: seconds, and what became
//!   of the guesses.
//! - Invariants: pure. Demand comes first: guesses are read in the time that the device computes, after the layer's own misses
//!   have come; what was not begun when the next layer's picks are known is dropped. One record may be under way then: if it is
//!   wanted the layer waits for its rest, otherwise for at most one piece of it.

use crate::base::split_mix::SplitMix;
use crate::engine::drive_cost::DriveCost;
use crate::engine::simulate::Outcome;
use crate::engine::simulate::caches::Cache;
use crate::expert::RouteTrace;
use crate::expert::prefetch::{PrefetchControl, StepUse};

/// Parts in which a record is read: so much of a useless read stands in front of a wanted one.
const PIECES_A_RECORD: f64 = 4.0;

/// How often a guess that was right one layer ahead is not yet made two layers ahead: 0.704 of 0.799, as was found when the routes were
/// recorded.
const TWO_AHEAD_LOST_PERMILLE: u64 = 119;

/// What is read before it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Prefetch {
    /// Where guesses come from.
    pub source: GuessSource,
    /// At most so many of the best guesses of a layer are read.
    pub fan_out: u32,
    /// Whether a guess takes a slot when it is read, and counts as used; else only when a pick asks for it.
    pub takes_slot: bool,
    /// At most so many of the best guesses of the layer after the next are read behind these.
    pub fan_out_two_ahead: u32,
    /// Whether the product's judge ([`PrefetchControl`]) stops what does not pay.
    pub is_judged: bool,
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
        write!(f, "{name}, {}", self.fan_out)?;
        if self.fan_out_two_ahead > 0 {
            write!(f, " and {} two ahead", self.fan_out_two_ahead)?;
        }
        let (slots, auto) = (self.takes_slot, self.is_judged);
        write!(f, "{}{}", if slots { ", into slots" } else { "" }, if auto { ", auto" } else { "" })
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
    /// The same for the layer after it.
    begun_two_ahead: Vec<u16>,
    /// Seconds that the last guess begun needs beyond the layer's time, and whether it is for the next layer.
    late_seconds: f64,
    is_last_for_next: bool,
    /// Seconds that the drive still needs for a guess that was begun for a later layer.
    owed_seconds: f64,
    control: PrefetchControl,
    /// What this token's guesses came to.
    step: StepUse,
    missed: Vec<u16>,
}

impl<'a> Timeline<'a> {
    pub(super) fn new(trace: &'a RouteTrace, cost: &'a TimeCost, prefetch: Prefetch) -> Self {
        Self {
            trace,
            cost,
            prefetch,
            begun: Vec::new(),
            begun_two_ahead: Vec::new(),
            late_seconds: 0.0,
            is_last_for_next: false,
            owed_seconds: 0.0,
            control: PrefetchControl::default(),
            step: StepUse::default(),
            missed: Vec::new(),
        }
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

        self.owed_seconds = 0.0;
        let record_bytes = self.cost.drive.record_bytes() as f64;
        self.step.used_bytes += used as f64 * record_bytes;
        self.step.wasted_bytes += (self.begun.len() - used) as f64 * record_bytes;
        self.step.busy_seconds += self.cost.drive.burst_seconds(left);

        let mut stall = self.cost.drive.burst_seconds(left);
        let mut has_stopped = !missed.is_empty();
        if self.late_seconds > 0.0 {
            let last = if self.is_last_for_next { self.begun.last() } else { None };
            if last.is_some_and(|last| wanted.contains(last)) {
                stall += self.late_seconds;
                has_stopped = true;
            } else {
                let piece_seconds = self.cost.drive.burst_seconds(1) / PIECES_A_RECORD;
                let waited = if left > 0 { self.late_seconds.min(piece_seconds) } else { 0.0 };
                stall += waited;
                // What is for a later layer is read to its end, in the time of this layer's guesses.
                self.owed_seconds = if self.is_last_for_next { 0.0 } else { self.late_seconds - waited };
            }
        }
        if has_stopped {
            stall += self.cost.miss_seconds;
        }
        outcome.stall_seconds += stall;
        outcome.seconds += stall + self.cost.layer_seconds;
        self.step.seconds += stall + self.cost.layer_seconds;
        if at.1 + 1 == self.trace.layer_count {
            outcome.seconds += self.cost.ends_seconds;
            self.step.seconds += self.cost.ends_seconds;
            self.control.note(std::mem::take(&mut self.step));
        }
        self.begin_guesses(at, cache, outcome);
    }

    /// The layer that is `ahead` layers after `at`, if there is one.
    fn place(&self, (token, layer): (u32, u32), ahead: u32) -> Option<(u32, u32)> {
        let at = token * self.trace.layer_count + layer + ahead;
        let (token, layer) = (at / self.trace.layer_count, at % self.trace.layer_count);
        (token < self.trace.token_count()).then_some((token, layer))
    }

    /// What is guessed of a layer, `ahead` layers before it.
    fn guesses(&self, (token, layer): (u32, u32), ahead: u32) -> Vec<u16> {
        let trace = self.trace;
        let guesses = match self.prefetch.source {
            GuessSource::None => None,
            GuessSource::NextRouter => trace.guesses_of(token, layer),
            GuessSource::PreviousToken => token.checked_sub(1).map(|before| trace.picks_of(before, layer)),
        };
        let mut guesses = guesses.unwrap_or_default().to_vec();
        if ahead == 2 && self.prefetch.source == GuessSource::NextRouter {
            // What was recorded is one layer ahead; the same router two layers ahead was found right in 70 of 100 cases instead of 80.
            let seed = u64::from(token) << 32 | u64::from(layer);
            for (rank, guess) in (0_u64..).zip(&mut guesses) {
                let mut random = SplitMix(seed ^ (rank << 24));
                if random.next_u64() % 1000 < TWO_AHEAD_LOST_PERMILLE {
                    let other = random.next_u64() % u64::from(trace.expert_count);
                    *guess = u16::try_from(other).expect("invariant: experts of a trace are counted in u16");
                }
            }
        }
        guesses
    }

    /// Begins to read the best guesses for the layers after `at`: as many as come while this one is computed, and one more.
    fn begin_guesses(&mut self, at: (u32, u32), cache: &mut Cache<'_>, outcome: &mut Outcome) {
        self.begun = std::mem::take(&mut self.begun_two_ahead);
        self.late_seconds = (self.owed_seconds - self.cost.layer_seconds).max(0.0);
        self.is_last_for_next = true;
        if self.prefetch.is_judged && !self.control.is_on() {
            return;
        }
        let mut count = 0;
        for (ahead, fan_out) in [(1, self.prefetch.fan_out), (2, self.prefetch.fan_out_two_ahead)] {
            let Some(place) = self.place(at, ahead) else { break };
            let mut taken = Vec::new();
            for &guess in self.guesses(place, ahead).iter().take(fan_out as usize) {
                let begun = if ahead == 1 { &mut self.begun } else { &mut self.begun_two_ahead };
                if self.late_seconds > 0.0 || cache.is_resident(place.1, guess) || begun.contains(&guess) {
                    continue;
                }
                begun.push(guess);
                taken.push(guess);
                count += 1;
                let late = self.owed_seconds + self.cost.drive.burst_seconds(count) - self.cost.layer_seconds;
                if late > 0.0 {
                    (self.late_seconds, self.is_last_for_next) = (late, ahead == 1);
                }
            }
            if self.prefetch.takes_slot {
                self.missed.clear();
                cache.use_picks(place.1, &taken, &mut self.missed);
            }
        }
        outcome.guesses_read += u64::from(count);
        outcome.reads += u64::from(count);
        self.step.busy_seconds += self.cost.drive.burst_seconds(count);
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
        let prefetch = Prefetch { source, fan_out: 1, ..Prefetch::default() };
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
            let prefetch =
                Prefetch { source: GuessSource::NextRouter, fan_out: 1, takes_slot, ..Prefetch::default() };
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

    fn seconds_with(trace: &RouteTrace, prefetch: Prefetch, layer_ms: f64) -> (f64, u64) {
        let drive = DriveCost::measured(vec![(1, 1e-3)], 1e9, 1_000_000);
        let cost =
            TimeCost { drive, layer_seconds: layer_ms * 1e-3, ends_seconds: 0.0, miss_seconds: 0.1e-3 };
        let setup = Setup {
            cache: CacheKind::Pool(Policy::Lru),
            slots: 1,
            rule: Rule::Waves,
            prefetch,
            cost: Some(cost),
        };
        let outcome = run(trace, &setup);
        (outcome.seconds, outcome.guesses_read)
    }

    #[test]
    fn guesses_two_ahead_pay_for_the_drives_time() {
        // Nothing is hidden that the drive has no time for: 1 ms of reads a layer of 0.4 ms, whoever guesses how far ahead.
        let right = round(|pick| pick);
        let of = |fan_out, fan_out_two_ahead| Prefetch {
            source: GuessSource::NextRouter,
            fan_out,
            fan_out_two_ahead,
            ..Prefetch::default()
        };
        let (one, _) = seconds_with(&right, of(1, 0), 0.4);
        let (two, read) = seconds_with(&right, of(1, 1), 0.4);
        assert!(read > 0 && two > 0.95 * one, "{two} s with guesses two ahead, {one} s without");
        let (alone, read) = seconds_with(&right, of(0, 1), 2.0);
        let (none, _) = seconds_with(&right, Prefetch::default(), 2.0);
        assert!(
            read > 30 && alone < 0.8 * none,
            "{alone} s with guesses two ahead alone, {none} s without any"
        );
    }

    #[test]
    fn guesses_that_are_always_wrong_are_stopped() {
        let mut wrong = round(|pick| (pick + 1) % 4);
        let (picks, guesses) = (wrong.picks.repeat(10), wrong.guesses.take().expect("made so").repeat(10));
        (wrong.picks, wrong.guesses) = (picks, Some(guesses));
        let of = |is_judged| Prefetch {
            source: GuessSource::NextRouter,
            fan_out: 1,
            is_judged,
            ..Prefetch::default()
        };
        let (_, always) = seconds_with(&wrong, of(false), 0.4);
        let (_, judged) = seconds_with(&wrong, of(true), 0.4);
        // Three windows of 16 tokens, of which the first token had no guess.
        assert_eq!((always, judged), (399, 47), "of 400 tokens");
    }
}
