//! Everything that an engine counts, at one moment; always on.
//!
//! - Owns: nothing; counters lie where things happen. In: an engine. Out: [`Telemetry`], and what came to it between two moments.
//! - Invariants: counters only grow. The parts of the time add up to the time of the steps, as what nothing was waited for is the host's.
//!   Every number can be had from any run: nothing is to be switched on, and none of it costs more than an addition or a look at the clock
//!   where something was waited for.

use crate::disk::ReadCounters;
use crate::engine::{Engine, SpeculateStats, TimeSplit};
use crate::expert::{CheckStats, InflowStats, StreamStats};
use crate::model::DecodeCounters;

/// Counters since the engine was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// Uses, misses, evictions; what guesses knew.
    pub stream: StreamStats,
    /// Reads, and why.
    pub inflow: InflowStats,
    /// What was compared with checksums.
    pub checks: CheckStats,
    /// What the read queue did.
    pub reads: ReadCounters,
    /// Drafts.
    pub speculate: SpeculateStats,
    /// Single tokens.
    pub decode: DecodeCounters,
    /// Where the time of steps went.
    pub split: TimeSplit,
}

/// `$after - $before` of the named fields.
macro_rules! difference {
    ($kind:ident, $after:expr, $before:expr; $($field:ident),+ $(,)?) => {
        $kind { $($field: $after.$field.saturating_sub($before.$field)),+ }
    };
}

impl Telemetry {
    /// What came to it since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            stream: difference!(StreamStats, self.stream, before.stream;
                hits, misses, evictions, read_bytes, load_ns, picks_guessed_at, picks_guessed_right),
            inflow: difference!(InflowStats, self.inflow, before.inflow;
                demand_reads, guesses_issued, guesses_used_late, guesses_used, guesses_wasted, host_hits, kept,
                read_bytes),
            checks: difference!(CheckStats, self.checks, before.checks; bytes, ns, waited_ns, second_reads),
            reads: difference!(ReadCounters, self.reads, before.reads;
                reads, failed, wanted_bytes, read_bytes, short_reads, interruptions, retries, buffered_fallbacks,
                moved_to_pool, busy_ns, late_reads),
            speculate: difference!(SpeculateStats, self.speculate, before.speculate; steps, drafted, accepted),
            decode: difference!(DecodeCounters, self.decode, before.decode;
                tokens, submissions, segments, stops),
            split: self.split.since(before.split),
        }
    }

    /// Share of uses that began no read: a record lay in a slot, in host memory, or was being read as a guess, for the rest of which
    /// they waited.
    pub fn hit_rate_with_late(&self) -> Option<f64> {
        let uses = self.stream.hits + self.stream.misses;
        let late = self.inflow.guesses_used_late + self.inflow.guesses_used + self.inflow.host_hits;
        (uses > 0).then(|| (self.stream.hits + late) as f64 / uses as f64)
    }

    /// Share of a layer's picks that were among the guesses made one layer earlier.
    pub fn guess_accuracy(&self) -> Option<f64> {
        let StreamStats { picks_guessed_at, picks_guessed_right, .. } = self.stream;
        (picks_guessed_at > 0).then(|| picks_guessed_right as f64 / picks_guessed_at as f64)
    }
}

impl Engine {
    /// All counters, now.
    pub fn telemetry(&self) -> Telemetry {
        Telemetry {
            stream: self.stream_stats(),
            inflow: self.inflow_stats(),
            checks: self.check_stats(),
            reads: self.read_counters(),
            speculate: self.speculate_stats(),
            decode: self.decode_counters(),
            split: self.time_split(),
        }
    }
}
