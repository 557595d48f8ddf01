//! Guesses at what a step will want: whether to make them, at what, and when they are given up.

use std::time::{Duration, Instant};

use super::Streamer;
use crate::base::ids::{ExpertIndex, ExpertKey, LayerIndex};
use crate::expert::prefetch::{PrefetchControl, PrefetchMode, StepUse};

/// The longest time between two steps that counts as one step's.
const STEP_MAX: Duration = Duration::from_secs(2);

impl Streamer {
    /// Has the judge look at the step that has ended.
    pub(super) fn judge_guesses(&mut self) {
        if self.prefetch != PrefetchMode::Auto || !self.can_guess() {
            return;
        }
        let (stats, now) = (self.inflow.stats(), Instant::now());
        let guesses = [stats.guesses_used + stats.guesses_used_late, stats.guesses_wasted];
        let busy_ns = self.transport().counters().busy_ns;
        let before = self.judged.replace((now, guesses, busy_ns));
        let Some((begin, guesses_before, busy_before_ns)) = before else { return };
        let elapsed = now.saturating_duration_since(begin);
        // Longer than any step: nobody asked for one meanwhile, and that the drive was idle says nothing.
        if elapsed > STEP_MAX {
            return;
        }
        let bytes = |at: usize| (guesses[at] - guesses_before[at]) as f64 * self.memory.record_bytes as f64;
        self.judge.note(StepUse {
            used_bytes: bytes(0),
            wasted_bytes: bytes(1),
            busy_seconds: Duration::from_nanos(busy_ns.saturating_sub(busy_before_ns)).as_secs_f64(),
            seconds: elapsed.as_secs_f64(),
        });
    }

    /// Guesses that a step will soon want `experts` of `layer`, likeliest first: those that are nowhere are read when the drive
    /// has nothing else to do. They enter the pool only when they are used.
    pub fn guess(&mut self, layer: LayerIndex, experts: &[u32]) {
        self.guessed.0 = layer;
        self.guessed.1.clear();
        self.guessed.1.extend(experts);
        for &expert in experts {
            let key = ExpertKey { layer, expert: ExpertIndex(expert) };
            if self.pool.lookup(key).is_none() {
                self.inflow.guess(key);
            }
        }
    }

    /// The picks of `layer` are known: guesses at others of it, and at layers before it, are given up.
    pub fn settle_guesses(&mut self, layer: LayerIndex, picks: &[u32]) {
        if self.guessed.0 == layer && !self.guessed.1.is_empty() {
            let right = picks.iter().filter(|pick| self.guessed.1.contains(pick)).count();
            self.stats.picks_guessed_at += picks.len() as u64;
            self.stats.picks_guessed_right += right as u64;
            self.guessed.1.clear();
        }
        self.inflow
            .drop_guesses(|key| key.layer < layer || (key.layer == layer && !picks.contains(&key.expert.0)));
    }

    /// Has the experts of `layer` that are nowhere read in the order of the file, as many as the host tier takes for guesses: a long
    /// chunk is about to use nearly all of them.
    pub fn read_ahead(&mut self, layer: LayerIndex) {
        for expert in (0..self.space.expert_count).map(ExpertIndex) {
            let key = ExpertKey { layer, expert };
            if self.inflow.guess_room() == 0 {
                break;
            }
            if self.pool.lookup(key).is_none() {
                self.inflow.guess(key);
            }
        }
    }

    /// Whether a miss can ever happen, so that guesses are of use.
    pub fn can_guess(&self) -> bool {
        self.pool.slot_count() < self.space.total()
    }

    /// Whether the next step is to guess.
    pub fn wants_guesses(&self) -> bool {
        let is_on = match self.prefetch {
            PrefetchMode::On => true,
            PrefetchMode::Off => false,
            PrefetchMode::Auto => self.judge.is_on(),
        };
        is_on && self.can_guess()
    }

    /// Whether long prompts are to read ahead: wherever guesses are not forbidden, also with a pool that is still filling.
    pub fn wants_guesses_in_prompts(&self) -> bool {
        self.prefetch != PrefetchMode::Off
    }

    /// Says when to guess.
    pub fn set_prefetch(&mut self, mode: PrefetchMode) {
        self.prefetch = mode;
        (self.judge, self.judged) = (PrefetchControl::default(), None);
    }
}
