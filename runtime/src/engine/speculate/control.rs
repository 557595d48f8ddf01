//! How many drafts a step verifies.
//!
//! - Owns: how often drafts were right, what steps with drafts cost beside plain ones, and whether drafting has paid of late.
//! - In: each step's cost and outcome, and for steps without drafts whether one would have been right. Out: a number of drafts.
//! - Invariants: pure; equal steps give equal answers. Plain steps teach how often drafts are right, so only what a step costs is found
//!   out by paying for it. A trial that does not pay ends when it has cost `LOSS_MAX` plain steps, and the next one comes after 64, 128,
//!   ... tokens: what is lost on a text that repeats nothing is bounded by the number of trials.
//!
//! With a share a of drafts right, k of them give 1 + a + ... + a^k tokens a step; the k is taken for which these are the most a second.

use std::fmt;
use std::str::FromStr;

use super::drafts::{ORDER_MAX, ORDER_MIN, ORDERS};

/// Drafts of a step at most: with the token in front of them as many rows as the widest tile of a few rows has.
pub const DRAFTS_MAX: u32 = 7;

/// Drafts of a step at most, as a length.
const DEPTHS: usize = DRAFTS_MAX as usize;

/// Plain steps that a trial may cost.
const LOSS_MAX: f64 = 2.0;

/// Plain steps that were gained and may be lost again before drafting is given up.
const GAIN_MAX: f64 = 3.0;

/// Tokens before what did not pay is tried again, at first and at most.
const PAUSE_TOKENS: u32 = 64;
const PAUSE_TOKENS_MAX: u32 = 1024;

/// Plain steps before the first trial: what it is measured by.
const PLAIN_STEPS_FIRST: u32 = 4;

/// Steps with drafts, one after another, after which a plain one shows what those cost by now.
const DRAFTED_STEPS_MAX: u32 = 64;

/// What a draft adds to a step's cost, in plain steps, until it was measured.
const DRAFT_COST_FIRST: f64 = 0.3;

/// The weight of the newest plain step, and of the newest step with so many drafts, in their averages.
const PLAIN_WEIGHT: f64 = 0.1;
const DRAFTED_WEIGHT: f64 = 0.3;

/// How many times a plain step's tokens a second drafts have to promise: less is within what is not known of costs and shares.
const GAIN_MIN: f64 = 1.05;

/// How many times what was expected a step counts at most: what takes longer was another program's doing, and says nothing of drafts.
const OUTLIER: f64 = 2.0;

/// What remains of a draft's outcome in the shares when the next one is known: about the last 24 count.
const SHARE_DECAY: f64 = 0.96;

/// When drafts are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpeculateMode {
    /// As many as pay.
    Auto,
    /// Never.
    #[default]
    Off,
    /// So many, whenever there are any; from 1 to [`DRAFTS_MAX`].
    Fixed(u32),
}

impl fmt::Display for SpeculateMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Fixed(drafts) => write!(f, "{drafts}"),
        }
    }
}

impl FromStr for SpeculateMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("`{text}` is no number of drafts: auto, off, or 1 to {DRAFTS_MAX}");
        match text {
            "auto" => Ok(Self::Auto),
            "off" | "0" => Ok(Self::Off),
            number => {
                let drafts = number.parse().map_err(|_| wrong())?;
                if (1..=DRAFTS_MAX).contains(&drafts) { Ok(Self::Fixed(drafts)) } else { Err(wrong()) }
            }
        }
    }
}

/// What a step took.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepCost {
    /// Seconds of the whole step.
    pub seconds: f64,
    /// Seconds of it in which the drive was waited for.
    pub disk_seconds: f64,
    /// Bytes of experts that were read.
    pub read_bytes: f64,
}

/// How often drafts were right.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Share {
    right: f64,
    seen: f64,
}

impl Share {
    fn note(&mut self, is_right: bool) {
        self.right = self.right * SHARE_DECAY + f64::from(u8::from(is_right));
        self.seen = self.seen * SHARE_DECAY + 1.0;
    }

    /// As if one of four had been right before the first was seen.
    fn value(&self) -> f64 {
        (self.right + 1.0) / (self.seen + 4.0)
    }
}

/// The controller.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeculateControl {
    mode: SpeculateMode,
    /// By order: the share of drafts that were right, where all in front of them were.
    shares: [Share; ORDERS],
    /// A plain step, averaged.
    plain: StepCost,
    plain_steps: u32,
    /// What a step with 1, 2, ... drafts costs in plain steps, averaged, where it was measured.
    costs: [Option<f64>; DEPTHS],
    /// Plain steps gained by drafting.
    balance: f64,
    /// Whether the last trial did not pay.
    is_stopped: bool,
    /// Plain steps since the last one with drafts.
    idle: u32,
    /// After how many of them what is known of costs is doubted, and drafting tried again.
    pause: u32,
    /// The same after the next trial that does not pay.
    pause_next: u32,
    /// Steps with drafts since the last plain one.
    drafted_in_row: u32,
}

impl SpeculateControl {
    /// One that knows nothing yet.
    pub fn new(mode: SpeculateMode) -> Self {
        Self {
            mode,
            shares: [Share::default(); ORDERS],
            plain: StepCost::default(),
            plain_steps: 0,
            costs: [None; DEPTHS],
            balance: 0.0,
            is_stopped: false,
            idle: 0,
            pause: PAUSE_TOKENS,
            pause_next: PAUSE_TOKENS,
            drafted_in_row: 0,
        }
    }

    /// When drafts are verified.
    pub fn mode(&self) -> SpeculateMode {
        self.mode
    }

    /// How many drafts the next step is to verify, of up to `available` that a suffix of `order` tokens gives.
    ///
    /// # Panics
    /// When `order` is not from [`ORDER_MIN`] to [`ORDER_MAX`].
    pub fn depth(&self, order: usize, available: u32) -> u32 {
        assert!((ORDER_MIN..=ORDER_MAX).contains(&order), "a suffix of {order} tokens");
        let available = available.min(DRAFTS_MAX);
        match self.mode {
            SpeculateMode::Off => 0,
            SpeculateMode::Fixed(drafts) => drafts.min(available),
            SpeculateMode::Auto => self.best_depth(order, available),
        }
    }

    fn best_depth(&self, order: usize, available: u32) -> u32 {
        let is_settling = self.plain_steps < PLAIN_STEPS_FIRST || self.drafted_in_row >= DRAFTED_STEPS_MAX;
        if is_settling || self.is_stopped {
            return 0;
        }
        // From what was measured, steps grow to twice as many rows at a time.
        let measured = (1..=DRAFTS_MAX).rev().find(|&depth| self.costs[depth as usize - 1].is_some());
        let most = measured.map_or(1, |depth| 2 * depth + 1);
        let share = self.shares[order - ORDER_MIN].value();
        let (mut tokens, mut best, mut best_rate) = (1.0, 0, GAIN_MIN);
        let mut term = 1.0;
        for depth in 1..=available.min(most) {
            term *= share;
            tokens += term;
            let rate = tokens / self.cost(depth);
            if rate > best_rate {
                (best, best_rate) = (depth, rate);
            }
        }
        best
    }

    /// What a step with `depth` drafts costs in plain steps: as measured, or by the nearest number that was. Beyond that a draft is not
    /// taken for dearer than at first, as a part of the cost may be that of any draft at all.
    fn cost(&self, depth: u32) -> f64 {
        let nearest = (1..=DRAFTS_MAX)
            .filter_map(|other| Some((other, self.costs[other as usize - 1]?)))
            .min_by_key(|&(other, _)| other.abs_diff(depth));
        let Some((other, cost)) = nearest else { return 1.0 + DRAFT_COST_FIRST * f64::from(depth) };
        let a_draft = (cost - 1.0).max(0.0) / f64::from(other);
        if depth <= other {
            1.0 + a_draft * f64::from(depth)
        } else {
            cost + a_draft.min(DRAFT_COST_FIRST) * f64::from(depth - other)
        }
    }

    /// A step without drafts has ended.
    pub fn note_plain(&mut self, cost: StepCost) {
        self.plain_steps = self.plain_steps.saturating_add(1);
        let is_outlier = self.plain_steps > PLAIN_STEPS_FIRST && cost.seconds > OUTLIER * self.plain.seconds;
        // As many times less of everything.
        let scale = if is_outlier { OUTLIER * self.plain.seconds / cost.seconds } else { 1.0 };
        // A true mean at first.
        let weight = PLAIN_WEIGHT.max(1.0 / f64::from(self.plain_steps));
        let towards = |average: &mut f64, new: f64| *average += weight * (new - *average);
        towards(&mut self.plain.seconds, scale * cost.seconds);
        towards(&mut self.plain.disk_seconds, scale * cost.disk_seconds);
        towards(&mut self.plain.read_bytes, scale * cost.read_bytes);
        self.drafted_in_row = 0;
        self.idle += 1;
        if self.idle >= self.pause {
            self.idle = 0;
            self.is_stopped = false;
            self.costs = [None; DEPTHS];
        }
    }

    /// Whether the first draft of a suffix of `order` tokens, which was not verified, would have been right.
    pub fn note_unverified(&mut self, order: usize, is_right: bool) {
        self.shares[order - ORDER_MIN].note(is_right);
    }

    /// A step with `drafted` drafts of a suffix of `order` tokens has ended, and `accepted` of them were right.
    pub fn note_drafted(&mut self, order: usize, drafted: u32, accepted: u32, cost: StepCost) {
        let share = &mut self.shares[order - ORDER_MIN];
        (0..accepted).for_each(|_| share.note(true));
        if accepted < drafted {
            share.note(false);
        }
        self.idle = 0;
        self.drafted_in_row += 1;
        if self.plain_steps == 0 || self.plain.seconds <= 0.0 {
            return;
        }
        let tokens = f64::from(accepted + 1);
        let steps = (cost.seconds + self.waste(tokens, cost)) / self.plain.seconds;
        let expected = self.cost(drafted);
        let steps = steps.min(OUTLIER * expected);
        self.costs[drafted as usize - 1] = Some(expected + DRAFTED_WEIGHT * (steps - expected));
        self.balance = (self.balance + tokens - steps).min(GAIN_MAX);
        if self.balance < -LOSS_MAX {
            self.balance = 0.0;
            self.is_stopped = true;
            self.pause = self.pause_next;
            self.pause_next = (2 * self.pause).min(PAUSE_TOKENS_MAX);
        } else if self.balance >= GAIN_MAX {
            self.pause = PAUSE_TOKENS;
            self.pause_next = PAUSE_TOKENS;
        }
    }

    /// Seconds that later steps lose by what a step read for drafts that were wrong: each expert took the place of one that has to be
    /// read again. What was read beyond that many plain tokens' bytes counts, by the time that reads were waited for.
    fn waste(&self, tokens: f64, cost: StepCost) -> f64 {
        let wasted_bytes = (cost.read_bytes - tokens * self.plain.read_bytes).max(0.0);
        if cost.read_bytes > 0.0 { cost.disk_seconds * wasted_bytes / cost.read_bytes } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which `k` drafts cost `1 + overhead + a_draft * k` plain steps.
    #[derive(Clone, Copy)]
    struct Machine {
        overhead: f64,
        a_draft: f64,
        /// Bytes that a row reads, and the share of a step in which they are waited for.
        row_bytes: f64,
        disk_share: f64,
    }

    const FAST: Machine = Machine { overhead: 0.2, a_draft: 0.1, row_bytes: 0.0, disk_share: 0.0 };
    const SLOW: Machine = Machine { overhead: 0.2, a_draft: 0.9, row_bytes: 0.0, disk_share: 0.0 };

    impl Machine {
        fn cost(&self, drafts: u32) -> StepCost {
            let overhead = if drafts > 0 { self.overhead } else { 0.0 };
            let seconds = 0.01 * (1.0 + overhead + self.a_draft * f64::from(drafts));
            let read_bytes = self.row_bytes * f64::from(drafts + 1);
            StepCost { seconds, disk_seconds: self.disk_share * seconds, read_bytes }
        }
    }

    /// What a text of `tokens` tokens took, in plain steps, and how many steps had how many drafts.
    struct Run {
        steps: f64,
        depths: [u32; DEPTHS + 1],
    }

    /// Whether draft `ahead` at `token` is right, and of which order it is; nothing where there is none.
    type Text<'a> = &'a dyn Fn(u32) -> Option<(usize, bool)>;

    fn run(control: &mut SpeculateControl, machine: Machine, tokens: u32, text: Text<'_>) -> Run {
        let mut run = Run { steps: 0.0, depths: [0; DEPTHS + 1] };
        let mut token = 0;
        while token < tokens {
            let found = text(token);
            let depth = found.map_or(0, |(order, _)| control.depth(order, DRAFTS_MAX));
            let cost = machine.cost(depth);
            run.steps += cost.seconds / machine.cost(0).seconds;
            run.depths[depth as usize] += 1;
            token += 1;
            let Some((order, is_right)) = found else {
                control.note_plain(cost);
                continue;
            };
            if depth == 0 {
                control.note_plain(cost);
                control.note_unverified(order, is_right);
                continue;
            }
            let accepted = (0..depth)
                .take_while(|ahead| text(token - 1 + ahead).is_some_and(|(_, is_right)| is_right))
                .count();
            let accepted = u32::try_from(accepted).expect("a few");
            token += accepted;
            control.note_drafted(order, depth, accepted, cost);
        }
        run
    }

    fn auto() -> SpeculateControl {
        SpeculateControl::new(SpeculateMode::Auto)
    }

    #[test]
    fn modes_have_names() {
        for mode in [SpeculateMode::Auto, SpeculateMode::Off, SpeculateMode::Fixed(3)] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!("0".parse(), Ok(SpeculateMode::Off));
        for wrong in ["8", "-1", "on", ""] {
            assert!(wrong.parse::<SpeculateMode>().unwrap_err().contains("1 to 7"), "{wrong}");
        }
    }

    #[test]
    fn a_fixed_number_is_kept_to() {
        let control = SpeculateControl::new(SpeculateMode::Fixed(3));
        assert_eq!([control.depth(2, 7), control.depth(5, 2), control.depth(3, 0)], [3, 2, 0]);
        assert_eq!(SpeculateControl::new(SpeculateMode::Off).depth(5, 7), 0);
    }

    #[test]
    fn a_copy_goes_as_deep_as_there_is() {
        let copied = run(&mut auto(), FAST, 1000, &|_| Some((5, true)));
        assert!(copied.steps < 1000.0 / 2.5, "{} plain steps", copied.steps);
        assert!(copied.depths[7] > 80, "{:?}", copied.depths);
    }

    /// Where a draft costs nearly a plain step, even a copy hardly pays, and what does not pay costs little.
    #[test]
    fn where_rows_are_dear_little_is_lost() {
        let copied = run(&mut auto(), SLOW, 2000, &|_| Some((5, true)));
        assert!(copied.steps < 2000.0 * 1.02, "{} plain steps", copied.steps);
        let very = Machine { a_draft: 1.4, ..SLOW };
        let copied = run(&mut auto(), very, 2000, &|_| Some((5, true)));
        assert!(copied.steps < 2000.0 * 1.02, "{} plain steps", copied.steps);
    }

    #[test]
    fn a_text_that_repeats_nothing_costs_nothing() {
        // Every fifth token has a short match, one of four of them right.
        let text = |token: u32| token.is_multiple_of(5).then_some((2, token.is_multiple_of(20)));
        for machine in [FAST, SLOW] {
            let plain = run(&mut auto(), machine, 2000, &text);
            assert!(plain.steps <= 2000.0 * 1.005, "{} plain steps", plain.steps);
        }
    }

    #[test]
    fn short_matches_that_are_wrong_do_not_stop_long_ones_that_are_right() {
        // Runs of 40 tokens: half of each is a copy, half has short, wrong matches.
        let text = |token: u32| Some(if token % 40 < 20 { (2, false) } else { (5, true) });
        let mixed = run(&mut auto(), FAST, 4000, &text);
        assert!(mixed.steps < 4000.0 * 0.75, "{} plain steps", mixed.steps);
    }

    #[test]
    fn what_stopped_is_tried_again_later_and_later() {
        let mut control = auto();
        // Looks right to plain steps, and is always wrong when it is verified.
        let mut trials = Vec::new();
        for token in 0..3000_u32 {
            let depth = control.depth(4, DRAFTS_MAX);
            let cost = SLOW.cost(depth);
            if depth == 0 {
                control.note_plain(cost);
                control.note_unverified(4, true);
            } else {
                trials.push(token);
                control.note_drafted(4, depth, 0, Machine { a_draft: 2.0, ..SLOW }.cost(depth));
            }
        }
        // A trial is two steps, with few tokens between.
        let pauses = trials.windows(2).map(|pair| pair[1] - pair[0]).filter(|&pause| pause >= PAUSE_TOKENS);
        let pauses: Vec<u32> = pauses.collect();
        assert_eq!(pauses, [65, 129, 257, 513, 1025], "{trials:?}");
        // When it pays, it goes on.
        let copied = run(&mut control, FAST, 3000, &|_| Some((4, true)));
        assert!(copied.steps < 3000.0 * 0.7, "{} plain steps", copied.steps);
    }

    /// The same times, but with what wrong drafts read: each read takes an expert's place.
    #[test]
    fn reads_for_wrong_drafts_count() {
        let half_right = |token: u32| Some((3, token.wrapping_mul(0x9e37_79b9) >> 16 & 127 < 72));
        let read = Machine { overhead: 0.0, a_draft: 0.4, row_bytes: 1e6, disk_share: 0.8 };
        let resident = Machine { row_bytes: 0.0, disk_share: 0.0, ..read };
        let drafted = |machine| {
            let mut control = auto();
            let run = run(&mut control, machine, 2000, &half_right);
            run.depths[1..].iter().sum::<u32>()
        };
        let (with_reads, without) = (drafted(read), drafted(resident));
        assert!(
            with_reads * 4 < without,
            "{with_reads} steps with drafts where they are read, {without} else"
        );
    }

    /// One of eight steps takes five times as long as it would.
    #[test]
    fn a_busy_machine_does_not_stop_what_pays() {
        let mut control = auto();
        let (mut steps, mut token) = (0_u32, 0_u32);
        while token < 2000 {
            let depth = control.depth(5, DRAFTS_MAX);
            let slow = if steps.wrapping_mul(0x9e37_79b9) >> 29 == 0 { 5.0 } else { 1.0 };
            let cost = FAST.cost(depth);
            let cost = StepCost { seconds: slow * cost.seconds, ..cost };
            if depth == 0 {
                control.note_plain(cost);
                control.note_unverified(5, true);
            } else {
                control.note_drafted(5, depth, depth, cost);
            }
            token += depth + 1;
            steps += 1;
        }
        assert!(steps < 600, "{steps} steps");
    }

    #[test]
    fn equal_steps_give_equal_answers() {
        let text = |token: u32| {
            (!token.is_multiple_of(3)).then_some((2 + token as usize % 4, !token.is_multiple_of(7)))
        };
        let (mut one, mut other) = (auto(), auto());
        run(&mut one, FAST, 500, &text);
        run(&mut other, FAST, 500, &text);
        assert_eq!(one, other);
    }
}
