//! Whether guesses are worth their reads.
//!
//! - Owns: what the last steps' guesses did. In: a step's used and wasted bytes, and how long the drive was busy. Out: whether the next
//!   step guesses.
//! - Invariants: pure; equal steps give equal answers. What was read in vain costs as much as the drive had other work: nothing on an idle
//!   drive, all of it on one that was never idle. Guesses that do not pay stop, and are tried again after a pause that doubles.

use std::fmt;
use std::str::FromStr;

/// Steps after which is judged: some hundred guesses.
const WINDOW_STEPS: u32 = 16;

/// Steps without guesses before they are tried again, at first and at most.
const PAUSE_STEPS: u32 = 64;
const PAUSE_STEPS_MAX: u32 = 1024;

/// When likely experts are read ahead of need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrefetchMode {
    /// As long as it pays.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl fmt::Display for PrefetchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl FromStr for PrefetchMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Auto, Self::On, Self::Off]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| format!("`{text}` is no way to read ahead: auto, on or off"))
    }
}

/// What a step's guesses came to.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepUse {
    /// Bytes read on guesses that the step then wanted.
    pub used_bytes: f64,
    /// Bytes read on guesses that nobody wanted.
    pub wasted_bytes: f64,
    /// Seconds in which the drive read.
    pub busy_seconds: f64,
    /// Seconds of the step.
    pub seconds: f64,
}

/// The judge.
#[derive(Debug, Clone, PartialEq)]
pub struct PrefetchControl {
    window: StepUse,
    steps: u32,
    /// Steps that are left of a pause; 0 while guesses are read.
    pause_left: u32,
    pause: u32,
}

impl Default for PrefetchControl {
    fn default() -> Self {
        Self { window: StepUse::default(), steps: 0, pause_left: 0, pause: PAUSE_STEPS }
    }
}

impl PrefetchControl {
    /// Whether the next step is to guess.
    pub fn is_on(&self) -> bool {
        self.pause_left == 0
    }

    /// A step has ended.
    pub fn note(&mut self, step: StepUse) {
        if self.pause_left > 0 {
            self.pause_left -= 1;
            return;
        }
        self.window.used_bytes += step.used_bytes;
        self.window.wasted_bytes += step.wasted_bytes;
        self.window.busy_seconds += step.busy_seconds;
        self.window.seconds += step.seconds;
        self.steps += 1;
        if self.steps < WINDOW_STEPS {
            return;
        }
        let StepUse { used_bytes, wasted_bytes, busy_seconds, seconds } = std::mem::take(&mut self.window);
        self.steps = 0;
        let busy_share = if seconds > 0.0 { (busy_seconds / seconds).clamp(0.0, 1.0) } else { 1.0 };
        if wasted_bytes * busy_share <= used_bytes {
            self.pause = PAUSE_STEPS;
        } else {
            self.pause_left = self.pause;
            self.pause = (2 * self.pause).min(PAUSE_STEPS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(used_bytes: f64, wasted_bytes: f64, busy: f64) -> StepUse {
        StepUse { used_bytes, wasted_bytes, busy_seconds: busy * 0.1, seconds: 0.1 }
    }

    /// How many of `count` steps guess.
    fn steps_on(control: &mut PrefetchControl, count: u32, step: impl Fn(bool) -> StepUse) -> u32 {
        let mut on = 0;
        for _ in 0..count {
            let is_on = control.is_on();
            on += u32::from(is_on);
            control.note(step(is_on));
        }
        on
    }

    #[test]
    fn guesses_that_are_used_go_on() {
        let mut control = PrefetchControl::default();
        assert_eq!(steps_on(&mut control, 500, |_| step(6e6, 2e6, 1.0)), 500);
    }

    #[test]
    fn on_an_idle_drive_waste_costs_nothing_and_on_a_busy_one_all() {
        let wasteful =
            |busy| move |is_on: bool| if is_on { step(1e6, 4e6, busy) } else { step(0.0, 0.0, busy) };
        assert_eq!(steps_on(&mut PrefetchControl::default(), 500, wasteful(0.2)), 500);
        let on = steps_on(&mut PrefetchControl::default(), 2000, wasteful(1.0));
        assert!(on <= 6 * WINDOW_STEPS, "{on} steps of 2,000");
    }

    #[test]
    fn what_stopped_is_tried_again_and_goes_on_when_it_pays() {
        let mut control = PrefetchControl::default();
        let bad = |is_on: bool| if is_on { step(0.0, 4e6, 0.9) } else { step(0.0, 0.0, 0.9) };
        assert_eq!(steps_on(&mut control, WINDOW_STEPS + PAUSE_STEPS, bad), WINDOW_STEPS);
        assert_eq!(steps_on(&mut control, WINDOW_STEPS + 2 * PAUSE_STEPS, bad), WINDOW_STEPS);
        assert_eq!(steps_on(&mut control, 300, |_| step(6e6, 2e6, 0.9)), 300);
        // And a later failure begins with the short pause again.
        assert_eq!(steps_on(&mut control, 2 * WINDOW_STEPS + PAUSE_STEPS, bad), WINDOW_STEPS + 4 + 12);
    }

    #[test]
    fn steps_that_guess_nothing_change_nothing() {
        let mut control = PrefetchControl::default();
        assert_eq!(steps_on(&mut control, 100, |_| StepUse::default()), 100);
    }
}
