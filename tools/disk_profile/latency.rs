//! How long blocks took: a histogram of three significant digits.

use std::time::Duration;

use flint_rt::disk::profile::Percentiles;
use hdrhistogram::Histogram;

/// The longest that is told apart, in nanoseconds: a drive that resets itself needs 30 s.
const LONGEST_NS: u64 = 120_000_000_000;

/// Durations, counted.
pub(super) struct Latency(Histogram<u64>);

impl Latency {
    /// None yet.
    pub(super) fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("invariant: these bounds are in order"))
    }

    /// Counts one.
    pub(super) fn add(&mut self, taken: Duration) {
        self.0.saturating_record(u64::try_from(taken.as_nanos()).unwrap_or(LONGEST_NS).max(1));
    }

    /// Counts all of another's.
    pub(super) fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("invariant: equal bounds");
    }

    /// Counts from nothing again.
    pub(super) fn clear(&mut self) {
        self.0.reset();
    }

    /// The percentiles; zeros where nothing was counted.
    pub(super) fn percentiles(&self) -> Percentiles {
        if self.0.is_empty() {
            return Percentiles::default();
        }
        let at = |share: f64| us(self.0.value_at_quantile(share) as f64);
        Percentiles {
            mean: us(self.0.mean()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: us(self.0.max() as f64),
        }
    }
}

/// Microseconds to a tenth.
fn us(ns: f64) -> f64 {
    (ns / 100.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_counted() {
        let (mut low, mut high) = (Latency::new(), Latency::new());
        for ms in 1..=500 {
            low.add(Duration::from_millis(ms));
            high.add(Duration::from_millis(ms + 500));
        }
        low.merge(&high);
        let found = low.percentiles();
        for (value, wanted) in [(found.p50, 5e5), (found.p90, 9e5), (found.p99, 9.9e5), (found.p99_9, 9.99e5)]
        {
            assert!((value / wanted - 1.0).abs() < 0.002, "{value} for {wanted}");
        }
        assert!((found.mean / 5.005e5 - 1.0).abs() < 0.002 && found.max >= 1e6, "{found:?}");
        low.clear();
        assert_eq!(low.percentiles(), Percentiles::default());
    }
}
