//! What a model's decode gets of a drive, measured a little at a time.
//!
//! - Owns: the target, and the sums of all turns. In: when a turn may be. Out: the drive as a plan takes it.
//! - Invariants: a turn makes the calls that a step makes, and nothing else; turns count by the time that they took, so that a drive
//!   that is slow for a while is as slow in the mean as it was.

use std::collections::BTreeMap;
use std::time::Duration;

use flint_rt::base::limits::READS_IN_FLIGHT_MAX;
use flint_rt::disk::ReadPath;
use flint_rt::disk::profile::{Pattern, ReadEngine};
use flint_rt::engine::drive_cost::DriveCost;

use super::Target;
use super::rows::{Rows, Wanted, product_engine};
use super::schedule;
use crate::exit::Outcome;

/// Reads of one kind, together.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    count: u64,
    bytes: u64,
    seconds: f64,
}

impl Sum {
    fn add(&mut self, count: u64, bytes: u64, seconds: f64) {
        self.count += count;
        self.bytes += bytes;
        self.seconds += seconds;
    }
}

/// The reads of decode, in turns.
pub(crate) struct DecodeReads {
    target: Target,
    engine: ReadEngine,
    /// By the records of a burst.
    bursts: BTreeMap<u32, Sum>,
    steady: Sum,
}

impl DecodeReads {
    /// Of the records of `target`, by the product's own path or by `wanted`.
    ///
    /// # Errors
    /// When nothing can be read.
    pub(crate) fn new(target: Target, wanted: Option<ReadPath>) -> Outcome<Self> {
        let engine = match wanted {
            Some(path) => ReadEngine::from(path),
            None => product_engine(&target)?,
        };
        Ok(Self { target, engine, bursts: BTreeMap::new(), steady: Sum::default() })
    }

    /// Forgets what was measured.
    pub(crate) fn forget(&mut self) {
        self.bursts.clear();
        self.steady = Sum::default();
    }

    /// Reads for about `time`. The caller asks for signals to be told (`Reply`).
    ///
    /// # Errors
    /// When a read fails; Ctrl-C.
    pub(crate) fn turn(&mut self, time: Duration) -> Outcome {
        let records = &self.target.records;
        let counts = schedule::bursts(self.target.experts_used, false);
        let counts: Vec<u32> =
            counts.into_iter().filter(|&count| u64::from(count) <= records.len()).collect();
        let share = time / (u32::try_from(counts.len()).unwrap_or(u32::MAX) + 1);
        // Each turn reads other blocks, in an order of its own.
        let mut rows = Rows::new(&self.target);
        for count in counts {
            if let Some(burst) = rows.burst(self.engine, count, share)? {
                let bytes = burst.bursts * u64::from(count) * records.block_bytes();
                let sum = self.bursts.entry(count).or_default();
                sum.add(burst.bursts, bytes, burst.seconds * burst.bursts as f64);
            }
        }
        let wanted = Wanted {
            engine: self.engine,
            pattern: Pattern::Random,
            depth: (READS_IN_FLIGHT_MAX / records.pieces().max(1)).max(1),
            time: share,
            part: None,
            is_record: true,
            with_uploads: false,
        };
        if let Some(row) = rows.row(records, &wanted, None)? {
            self.steady.add(row.reads, row.bytes, row.seconds);
        }
        Ok(())
    }

    /// The drive as all turns since the last [`Self::forget`] found it; nothing where there was none.
    pub(crate) fn cost(&self) -> Option<DriveCost> {
        let bursts: Vec<(u32, f64)> =
            self.bursts.iter().map(|(&records, sum)| (records, sum.seconds / sum.count as f64)).collect();
        let rates = self.bursts.values().chain([&self.steady]).filter(|sum| sum.seconds > 0.0);
        let rate = rates.map(|sum| sum.bytes as f64 / sum.seconds).fold(0.0, f64::max);
        (rate > 0.0 && !bursts.is_empty())
            .then(|| DriveCost::measured(bursts, rate, self.target.record_bytes))
    }
}
