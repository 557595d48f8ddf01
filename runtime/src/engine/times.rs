//! Where the time of an engine's steps went.

use std::time::Instant;

use crate::base::events::{Event, Lane};
use crate::engine::Engine;
use crate::model::{DecodeCounters, StepCounters};

/// Time spent in steps, by what the thread that drives the engine waited for. Nanoseconds since the engine was opened.
///
/// Copies are told apart from kernels where a single token waits for them; in a prompt, whose waves overlap, they count as the
/// device's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeSplit {
    /// Waiting for reads.
    pub disk_ns: u64,
    /// Waiting for copies from host memory into slots.
    pub copy_ns: u64,
    /// Waiting for kernels.
    pub gpu_ns: u64,
    /// Everything else: planning, checking, recording, submitting.
    pub host_ns: u64,
}

impl TimeSplit {
    /// What came to it since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            disk_ns: self.disk_ns - before.disk_ns,
            copy_ns: self.copy_ns - before.copy_ns,
            gpu_ns: self.gpu_ns - before.gpu_ns,
            host_ns: self.host_ns.saturating_sub(before.host_ns),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            disk_ns: self.disk_ns + other.disk_ns,
            copy_ns: self.copy_ns + other.copy_ns,
            gpu_ns: self.gpu_ns + other.gpu_ns,
            host_ns: self.host_ns + other.host_ns,
        }
    }

    /// All of it.
    pub fn total_ns(self) -> u64 {
        self.disk_ns + self.copy_ns + self.gpu_ns + self.host_ns
    }
}

impl Engine {
    /// How single tokens went through the device, since the engine was opened.
    pub fn decode_counters(&self) -> DecodeCounters {
        self.model.counters
    }

    /// How steps of many rows went through the device, since the engine was opened.
    pub fn step_counters(&self) -> StepCounters {
        self.model.step_counters
    }

    /// Where the time of all steps went until now.
    pub fn time_split(&self) -> TimeSplit {
        let waits = self.model.watch.waits().plus(self.model.streamer.transport().waits());
        TimeSplit {
            disk_ns: waits.disk_ns,
            copy_ns: waits.copy_ns,
            gpu_ns: waits.gpu_ns,
            host_ns: self.step_ns.saturating_sub(waits.total_ns()),
        }
    }

    /// The events since the last call, in order of their beginnings; none unless [`crate::engine::EngineOptions::timeline`]
    /// asked for them.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.model.watch.clock.flush();
        self.model.watch.log.take()
    }

    /// Events that were left out since the last call, as too many waited to be taken
    /// ([`EVENTS_MAX`](crate::base::limits::EVENTS_MAX)).
    pub fn take_events_left_out(&mut self) -> u64 {
        self.model.watch.log.take_left_out()
    }

    /// Notes a step that began at `begin` and has just ended, and looks after what lies between steps.
    pub(super) fn note_step(&mut self, what: &'static str, begin: Instant) {
        let end = Instant::now();
        self.step_count += 1;
        let step_ns = u64::try_from(end.duration_since(begin).as_nanos()).unwrap_or(u64::MAX);
        self.step_ns += step_ns;
        self.model.watch.log.add(Lane::Step, what, None, 0, begin, end);
        self.note_dispatches(step_ns);
        self.look_after_memory();
    }
}
