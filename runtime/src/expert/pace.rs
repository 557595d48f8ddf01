//! How much is asked of the drive at once.
//!
//! - Owns: the bytes under way, and their limits. In: reads as they begin and end, with the time. Out: whether another may begin.
//! - Invariants: pure: time comes from the caller, and equal times give equal answers. One read is always admitted, however long it is. A
//!   guess begins only when little is left of what a step waits for, so that this shares the drive with few bytes that nobody asked for.
//!   Limits stay within the levels below whatever is measured.
//!
//! A drive's rate while a step waits for it decides: the depth is that of the levels at which the drive was fastest, tried in turns; how
//! much is guessed, and how early beside demands, is what the drive reads in a given time.

use std::time::{Duration, Instant};

/// Bytes of reads that steps wait for, from the least to the most that is tried: on two virtual machines 8 to 16 MB kept the drive at its
/// rate while what had come was looked at; with less it fell idle between, with more the records came later, not faster. The most is what
/// [`READS_IN_FLIGHT_MAX`](crate::base::limits::READS_IN_FLIGHT_MAX) matrices of Flint have.
const DEMAND_LEVELS: [u64; 4] = [3 << 20, 6 << 20, 12 << 20, 20 << 20];

/// The level to begin with.
const LEVEL_FIRST: usize = 2;

/// Bytes read under a step's eyes after which a level is judged: some three tokens of Flint.
const WINDOW_BYTES: u64 = 1536 << 20;

/// Windows between two tries of another level, at first and at most.
const PATIENCE: u32 = 4;
const PATIENCE_MAX: u32 = 64;

/// How much faster a drive has to be at another level for it to be taken: less is noise.
const GAIN: f64 = 1.02;

/// Bytes of guesses: what a drive reads while a device computes a few layers.
const GUESS_TIME: Duration = Duration::from_millis(3);
const GUESS_BYTES: (u64, u64) = (2 << 20, 12 << 20);

/// Bytes that a step waits for, beside which a guess begins: the last pieces of a record, with which alone a drive would be half idle.
const TAIL_TIME: Duration = Duration::from_micros(750);
const TAIL_BYTES: (u64, u64) = (3 << 18, 6 << 20);

/// A drive's rate before it was measured, in bytes a second.
const RATE_FIRST: f64 = 2.1e9;

/// How much may be under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// In all.
    pub demand_bytes: u64,
    /// Of guesses.
    pub guess_bytes: u64,
    /// Of what a step waits for, beside which a guess begins.
    pub tail_bytes: u64,
}

impl Limits {
    /// For a drive of `rate` bytes a second, at the level of depth that suits it.
    fn of(level: usize, rate: f64) -> Self {
        let within = |time: Duration, (least, most): (u64, u64)| {
            let bytes = (rate * time.as_secs_f64()).clamp(least as f64, most as f64);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
            let bytes = bytes as u64;
            bytes
        };
        let demand_bytes = DEMAND_LEVELS[level];
        Self {
            demand_bytes,
            guess_bytes: within(GUESS_TIME, GUESS_BYTES).min(demand_bytes / 2),
            tail_bytes: within(TAIL_TIME, TAIL_BYTES),
        }
    }
}

/// Finds the level.
#[derive(Debug, Clone, PartialEq)]
struct Tuner {
    level: usize,
    /// What the level in use gave last.
    rate: Option<f64>,
    /// The level that is being tried.
    trial: Option<usize>,
    is_next_trial_up: bool,
    patience: u32,
    windows: u32,
}

impl Tuner {
    fn new() -> Self {
        let (level, patience) = (LEVEL_FIRST, PATIENCE);
        Self { level, rate: None, trial: None, is_next_trial_up: true, patience, windows: 0 }
    }

    /// The level to read at.
    fn level_now(&self) -> usize {
        self.trial.unwrap_or(self.level)
    }

    /// A window of reads at that level had this rate.
    fn note(&mut self, rate: f64) {
        if let Some(trial) = self.trial.take() {
            self.windows = 0;
            if self.rate.is_none_or(|before| rate > before * GAIN) {
                (self.level, self.rate, self.patience) = (trial, Some(rate), PATIENCE);
                // On in the same direction.
                self.windows = self.patience;
                self.is_next_trial_up = !self.is_next_trial_up;
            } else {
                self.patience = (2 * self.patience).min(PATIENCE_MAX);
            }
            return;
        }
        self.rate = Some(rate);
        self.windows += 1;
        if self.windows >= self.patience {
            let up = (self.level + 1 < DEMAND_LEVELS.len()).then_some(self.level + 1);
            let down = self.level.checked_sub(1);
            self.trial = if self.is_next_trial_up { up.or(down) } else { down.or(up) };
            self.is_next_trial_up = !self.is_next_trial_up;
        }
    }
}

/// The bytes under way.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    limits: Limits,
    tuner: Tuner,
    demand_bytes: u64,
    guess_bytes: u64,
    /// Since when a step has waited for reads without a pause.
    busy_since: Option<Instant>,
    window_bytes: u64,
    window_time: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            limits: Limits::of(LEVEL_FIRST, RATE_FIRST),
            tuner: Tuner::new(),
            demand_bytes: 0,
            guess_bytes: 0,
            busy_since: None,
            window_bytes: 0,
            window_time: Duration::ZERO,
        }
    }
}

impl Pace {
    /// What may be under way now.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether a read of `len_bytes` may begin.
    pub fn admits(&self, len_bytes: u64, is_guess: bool) -> bool {
        let Limits { demand_bytes, guess_bytes, tail_bytes } = self.limits;
        let under_way_bytes = self.demand_bytes + self.guess_bytes;
        match is_guess {
            _ if under_way_bytes == 0 => true,
            true => self.demand_bytes <= tail_bytes && self.guess_bytes + len_bytes <= guess_bytes,
            false => under_way_bytes + len_bytes <= demand_bytes,
        }
    }

    /// A read has begun.
    pub fn begun(&mut self, len_bytes: u64, is_guess: bool, now: Instant) {
        if is_guess {
            self.guess_bytes += len_bytes;
        } else {
            self.demand_bytes += len_bytes;
            self.busy_since.get_or_insert(now);
        }
    }

    /// A read that was begun as a guess, or not, has ended, however it did.
    pub fn ended(&mut self, len_bytes: u64, is_guess: bool, now: Instant) {
        if is_guess {
            self.guess_bytes -= len_bytes;
        } else {
            self.demand_bytes -= len_bytes;
        }
        // What is read while a step waits measures the drive, whoever asked for it.
        let Some(since) = self.busy_since else { return };
        self.window_bytes += len_bytes;
        if self.demand_bytes > 0 {
            return;
        }
        self.busy_since = None;
        self.window_time += now.saturating_duration_since(since);
        if self.window_bytes >= WINDOW_BYTES && self.window_time > Duration::ZERO {
            let rate = self.window_bytes as f64 / self.window_time.as_secs_f64();
            (self.window_bytes, self.window_time) = (0, Duration::ZERO);
            self.tuner.note(rate);
            self.limits = Limits::of(self.tuner.level_now(), rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{DriveModel, Schedule};

    const PIECE: u64 = 655_360;

    /// What is under way does not end in these tests of limits.
    fn begin(pace: &mut Pace, len_bytes: u64, is_guess: bool) {
        pace.begun(len_bytes, is_guess, Instant::now());
    }

    fn end(pace: &mut Pace, len_bytes: u64, is_guess: bool) {
        pace.ended(len_bytes, is_guess, Instant::now());
    }

    #[test]
    fn one_read_is_always_admitted() {
        for is_guess in [false, true] {
            assert!(Pace::default().admits(1 << 40, is_guess));
        }
    }

    #[test]
    fn a_guess_waits_until_little_is_waited_for() {
        let mut pace = Pace::default();
        for _ in 0..3 {
            begin(&mut pace, 1 << 20, false);
        }
        assert!(!pace.admits(4096, true));
        end(&mut pace, 1 << 20, false);
        assert!(!pace.admits(4096, true));
        end(&mut pace, 1 << 20, false);
        assert!(pace.admits(4096, true));
    }

    #[test]
    fn a_demand_finds_room_beside_all_guesses() {
        let mut pace = Pace::default();
        while pace.admits(1 << 20, true) {
            begin(&mut pace, 1 << 20, true);
        }
        let mut count = 0;
        while pace.admits(1 << 20, false) {
            begin(&mut pace, 1 << 20, false);
            count += 1;
        }
        assert!(count >= (DEMAND_LEVELS[LEVEL_FIRST] / 2) >> 20, "{count} demands beside all guesses");
        end(&mut pace, 1 << 20, true);
        assert!(pace.admits(1 << 20, false) && !pace.admits(1 << 20, true));
    }

    /// Layers of six records from a modelled drive, each piece looked at for `look`; the levels that were used, and the rate at last.
    fn read(model: DriveModel, look: Duration, layers: u32) -> (Vec<Limits>, f64) {
        let begin = Instant::now();
        let (mut drive, mut pace) = (Schedule::new(model), Pace::default());
        let (mut now, mut seen) = (Duration::ZERO, vec![pace.limits()]);
        let (mut last_bytes, mut last_time) = (0_u64, Duration::ZERO);
        for layer in 0..layers {
            let started = now;
            let (mut left, mut under_way) = (18, std::collections::VecDeque::new());
            while left > 0 || !under_way.is_empty() {
                while left > 0 && pace.admits(PIECE, false) {
                    left -= 1;
                    pace.begun(PIECE, false, begin + now);
                    let len_bytes = u32::try_from(PIECE).unwrap();
                    under_way.push_back(drive.take(now, len_bytes));
                }
                // Pieces come in order, and are looked at one after the other.
                now = now.max(under_way.pop_front().unwrap()) + look;
                pace.ended(PIECE, false, begin + now);
            }
            if layer > layers / 2 {
                last_bytes += 18 * PIECE;
                last_time += now - started;
            }
            if seen.last() != Some(&pace.limits()) {
                seen.push(pace.limits());
            }
            now += Duration::from_micros(200);
        }
        (seen, last_bytes as f64 / last_time.as_secs_f64())
    }

    fn drive(rate: f64, latency_us: u64, depth: u32) -> DriveModel {
        DriveModel { rate, latency: Duration::from_micros(latency_us), depth }
    }

    #[test]
    fn every_drive_gets_to_its_rate() {
        for rate in [2e9, 3.5e9, 7e9, 14e9] {
            let model = drive(rate, 100, 64);
            let (seen, found) = read(model, Duration::from_micros(10), 20_000);
            // A layer begins with a latency, and ends with a piece that is looked at.
            let bytes = 18.0 * PIECE as f64;
            let most = bytes / (bytes / rate + 110e-6);
            assert!(found >= 0.95 * most, "{model}: {found:.3e} of {most:.3e} B/s");
            assert!(seen.iter().all(|limits| DEMAND_LEVELS.contains(&limits.demand_bytes)), "{seen:?}");
            let last = seen.last().unwrap();
            assert!(last.tail_bytes <= TAIL_BYTES.1 && last.guess_bytes <= GUESS_BYTES.1, "{last:?}");
        }
    }

    #[test]
    fn a_serial_drive_is_asked_for_less_ahead_and_stays_within_bounds() {
        let (seen, found) = read(drive(2e9, 500, 1), Duration::from_micros(10), 5_000);
        let piece = PIECE as f64 / 2e9 + 500e-6;
        assert!(found >= 0.95 * PIECE as f64 / piece, "{found:.3e} B/s");
        let last = seen.last().unwrap();
        assert!(last.guess_bytes < Pace::default().limits().guess_bytes, "{last:?}");
    }

    #[test]
    fn faster_drives_are_asked_for_more_guesses_and_earlier() {
        let at = |rate| read(drive(rate, 100, 64), Duration::ZERO, 400).0.pop().unwrap();
        let (slow, fast) = (at(2e9), at(14e9));
        assert!(slow.tail_bytes < fast.tail_bytes, "{slow:?} {fast:?}");
        assert!(slow.guess_bytes < fast.guess_bytes, "{slow:?} {fast:?}");
    }

    #[test]
    fn a_level_that_pays_is_found_and_kept_and_one_that_does_not_is_left() {
        let settle = |rates: [f64; 4]| {
            let mut tuner = Tuner::new();
            let mut at = [0_u32; 4];
            for _ in 0..1000 {
                at[tuner.level_now()] += 1;
                tuner.note(rates[tuner.level_now()]);
            }
            at
        };
        assert!(settle([1.0, 1.5, 2.0, 2.4])[3] > 900, "{:?}", settle([1.0, 1.5, 2.0, 2.4]));
        assert!(settle([1.0, 1.5, 2.0, 1.4])[2] > 950);
        assert!(settle([2.4, 2.0, 1.8, 1.4])[0] > 900, "{:?}", settle([2.4, 2.0, 1.8, 1.4]));
        assert!(settle([2.0, 2.01, 2.0, 2.01])[2] > 950, "noise moves nothing");
    }

    #[test]
    fn equal_drives_give_equal_limits() {
        let model = drive(3.5e9, 80, 32);
        assert_eq!(read(model, Duration::ZERO, 2000).0, read(model, Duration::ZERO, 2000).0);
    }
}
