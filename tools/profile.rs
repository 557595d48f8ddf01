//! What `--profile` prints: dispatches by kernel and shape, and beside their sum what a step takes without stamps.
//!
//! - In: what the engine timed of some tokens, and what these took without. Out: a table for people, numbers for rows.
//! - Invariants: shares are of all dispatches' time; the gap is measured against the step that was not stamped.

use std::fmt;

use flint_rt::engine::{KernelTime, StepProfile};
use serde::{Deserialize, Serialize};

/// Lines of the table; what is less is one line.
const LINES_MAX: usize = 30;

/// One kernel and shape, of an average token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct KernelRow {
    pub(crate) kernel: String,
    pub(crate) shape: String,
    pub(crate) count_a_token: f64,
    pub(crate) ns_a_token: f64,
    /// Of all dispatches' time.
    pub(crate) share: f64,
    /// 1e9 a second: weights, where they are known.
    pub(crate) gb_s: Option<f64>,
    pub(crate) gflop_s: Option<f64>,
}

/// Some tokens, profiled.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Profiled {
    what: String,
    tokens: f64,
    profile: StepProfile,
    /// Nanoseconds of a token, with nothing stamped.
    plain_ns_a_token: f64,
}

impl Profiled {
    /// `profile` of so many `tokens`, called `what`, each of which took so long with nothing stamped; nothing where no dispatch was timed.
    pub(crate) fn new(
        what: String,
        tokens: u64,
        profile: StepProfile,
        plain_ns_a_token: f64,
    ) -> Option<Self> {
        let is_something = tokens > 0 && profile.count() > 0;
        is_something.then_some(Self { what, tokens: tokens as f64, profile, plain_ns_a_token })
    }

    /// Its lines, largest first.
    pub(crate) fn rows(&self) -> Vec<KernelRow> {
        let all_ns = self.profile.dispatch_ns().max(1.0);
        let row = |time: &KernelTime| KernelRow {
            kernel: time.kernel.clone(),
            shape: time.shape.clone(),
            count_a_token: time.count as f64 / self.tokens,
            ns_a_token: time.ns / self.tokens,
            share: time.ns / all_ns,
            gb_s: time.gb_s(),
            gflop_s: time.gflop_s(),
        };
        self.profile.kernels.iter().map(row).collect()
    }

    /// Dispatches of a token.
    pub(crate) fn dispatches_a_token(&self) -> f64 {
        self.profile.count() as f64 / self.tokens
    }

    /// What lies between two barriers and has a dispatch, of a token.
    pub(crate) fn stages_a_token(&self) -> f64 {
        self.profile.stages as f64 / self.tokens
    }

    /// All dispatches of a token, in nanoseconds.
    pub(crate) fn dispatch_ns_a_token(&self) -> f64 {
        self.profile.dispatch_ns() / self.tokens
    }

    /// A token with stamps, in nanoseconds.
    pub(crate) fn stamped_ns_a_token(&self) -> f64 {
        self.profile.step_ns as f64 / self.tokens
    }

    /// 1 less the dispatches' share of a token that was not stamped.
    pub(crate) fn gap_share(&self) -> Option<f64> {
        self.profile.gap_share(self.plain_ns_a_token * self.tokens)
    }
}

impl fmt::Display for Profiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: f64| format!("{:.1}", ns / 1e3);
        let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
        writeln!(f, "profile of {}, an average token of {}", self.what, self.tokens)?;
        writeln!(
            f,
            "| {:16} | {:30} | {:>7} | {:>9} | {:>6} | {:>8} | {:>8} |",
            "kernel", "shape", "count", "us/token", "share", "GB/s", "GFLOP/s"
        )?;
        writeln!(f, "| {0:-<16} | {0:-<30} | {0:->6}: | {0:->8}: | {0:->5}: | {0:->7}: | {0:->7}: |", "")?;
        let rows = self.rows();
        let (shown, others) = rows.split_at(rows.len().min(LINES_MAX));
        let mut line = |kernel: &str, shape: &str, row: &KernelRow| {
            writeln!(
                f,
                "| {kernel:16} | {shape:30} | {:>7.1} | {:>9} | {:>5.1}% | {:>8} | {:>8} |",
                row.count_a_token,
                us(row.ns_a_token),
                100.0 * row.share,
                rate(row.gb_s),
                rate(row.gflop_s)
            )
        };
        for row in shown {
            line(&row.kernel, &row.shape, row)?;
        }
        if !others.is_empty() {
            let sum = |of: fn(&KernelRow) -> f64| others.iter().map(of).sum();
            let rest = KernelRow {
                count_a_token: sum(|row| row.count_a_token),
                ns_a_token: sum(|row| row.ns_a_token),
                share: sum(|row| row.share),
                ..KernelRow::default()
            };
            line("others", &format!("{} more", others.len()), &rest)?;
        }
        writeln!(
            f,
            "{:.1} dispatches in {:.1} stages: {} us; a token without stamps {} us, with them {} us",
            self.dispatches_a_token(),
            self.stages_a_token(),
            us(self.dispatch_ns_a_token()),
            us(self.plain_ns_a_token),
            us(self.stamped_ns_a_token())
        )?;
        if self.profile.left_out > 0 {
            writeln!(f, "{} dispatches were not timed: too many at a time", self.profile.left_out)?;
        }
        let gap = self.gap_share().map_or_else(|| "-".to_owned(), |gap| format!("{:.1} %", 100.0 * gap));
        write!(f, "1 - dispatches / token without stamps: {gap}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(kernel: &str, ns: f64) -> KernelTime {
        let kernel = kernel.to_owned();
        KernelTime { kernel, shape: "8x8".to_owned(), count: 6, ns, bytes: Some(3000), flops: None }
    }

    #[test]
    fn the_table_has_shares_rates_and_the_gap() {
        let profile = StepProfile {
            kernels: vec![kernel("matmul", 3000.0), kernel("rope", 1000.0)],
            steps: 2,
            step_ns: 9000,
            stages: 8,
            left_out: 0,
        };
        assert!(Profiled::new("tg2".to_owned(), 0, profile.clone(), 2500.0).is_none());
        let profiled = Profiled::new("tg2".to_owned(), 2, profile, 2500.0).unwrap();
        let rows = profiled.rows();
        assert_eq!((rows[0].count_a_token, rows[0].ns_a_token, rows[0].share), (3.0, 1500.0, 0.75));
        assert_eq!((rows[0].gb_s, rows[1].gb_s, rows[0].gflop_s), (Some(1.0), Some(3.0), None));
        assert_eq!(profiled.gap_share(), Some(1.0 - 2000.0 / 2500.0));
        let text = profiled.to_string();
        assert!(text.contains("6.0 dispatches in 4.0 stages: 2.0 us"), "{text}");
        assert!(text.contains("without stamps 2.5 us, with them 4.5 us"), "{text}");
        assert!(text.ends_with("token without stamps: 20.0 %"), "{text}");
        let widths: Vec<usize> = text.lines().filter(|line| line.starts_with('|')).map(str::len).collect();
        assert_eq!(widths.len(), 4);
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    }

    #[test]
    fn what_is_small_is_one_line() {
        let kernels = (0..40).map(|index| kernel(&format!("k{index}"), 10.0)).collect();
        let profile = StepProfile { kernels, steps: 1, ..StepProfile::default() };
        let text = Profiled::new("pp1".to_owned(), 1, profile, 0.0).unwrap().to_string();
        assert!(text.contains("10 more") && text.contains("k29") && !text.contains("k30"), "{text}");
        assert!(text.ends_with("stamps: -"), "{text}");
    }
}
