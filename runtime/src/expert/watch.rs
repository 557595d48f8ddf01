//! Where the time of a step goes: what the host waited for, always; a timeline of it, when asked for.
//!
//! - Owns: counters; a share of the event log and of the device's clock. In: waits. Out: [`Waits`].
//! - Invariants: a nanosecond is counted once, under what the host waited for; a wait for the drive while the device has work of
//!   its own is a wait for the drive.

use std::time::Instant;

use crate::base::events::{EventLog, Lane};
use crate::gpu::{Clock, Gpu, GpuError, Ticket};

/// What the thread that drives the engine waited for, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// Reads.
    pub disk_ns: u64,
    /// Copies from host memory into slots.
    pub copy_ns: u64,
    /// Everything else that the device did.
    pub gpu_ns: u64,
}

impl Waits {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            disk_ns: self.disk_ns + other.disk_ns,
            copy_ns: self.copy_ns + other.copy_ns,
            gpu_ns: self.gpu_ns + other.gpu_ns,
        }
    }

    /// All of it.
    pub fn total_ns(self) -> u64 {
        self.disk_ns + self.copy_ns + self.gpu_ns
    }
}

/// Takes note of waits.
#[derive(Clone, Default)]
pub struct Watch {
    /// Where events go.
    pub log: EventLog,
    /// The device's clock.
    pub clock: Clock,
    waits: Waits,
}

impl Watch {
    /// Counts only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also keeps a timeline.
    pub fn with_timeline(log: EventLog, clock: Clock) -> Self {
        Self { log, clock, waits: Waits::default() }
    }

    /// What was waited for until now.
    pub fn waits(&self) -> Waits {
        self.waits
    }

    /// Waits for the device's own work.
    ///
    /// # Errors
    /// As [`Gpu::wait`].
    pub fn wait_gpu(&mut self, gpu: &Gpu, ticket: Ticket) -> Result<(), GpuError> {
        self.wait_gpu_since(gpu, ticket, Instant::now())
    }

    /// As [`Self::wait_gpu`], for a wait that began at `begin`.
    ///
    /// # Errors
    /// As [`Gpu::wait`].
    pub fn wait_gpu_since(&mut self, gpu: &Gpu, ticket: Ticket, begin: Instant) -> Result<(), GpuError> {
        self.waits.gpu_ns += self.wait(gpu, ticket, "wait for kernels", begin)?;
        Ok(())
    }

    /// Waits for a copy into a slot.
    ///
    /// # Errors
    /// As [`Gpu::wait`].
    pub fn wait_copy(&mut self, gpu: &Gpu, ticket: Ticket) -> Result<(), GpuError> {
        self.waits.copy_ns += self.wait(gpu, ticket, "wait for copies", Instant::now())?;
        Ok(())
    }

    /// Counts a wait for reads that began at `begin` and has just ended.
    pub fn waited_for_disk(&mut self, begin: Instant) {
        let end = Instant::now();
        self.waits.disk_ns += nanoseconds(begin, end);
        self.log.add(Lane::Host, "wait for reads", None, 0, begin, end);
    }

    fn wait(
        &mut self,
        gpu: &Gpu,
        ticket: Ticket,
        what: &'static str,
        begin: Instant,
    ) -> Result<u64, GpuError> {
        gpu.wait(ticket)?;
        let end = Instant::now();
        self.log.add(Lane::Host, what, None, 0, begin, end);
        self.clock.collect(gpu)?;
        Ok(nanoseconds(begin, end))
    }
}

fn nanoseconds(begin: Instant, end: Instant) -> u64 {
    u64::try_from(end.saturating_duration_since(begin).as_nanos()).unwrap_or(u64::MAX)
}
