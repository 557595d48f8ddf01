//! Finished recordings.
//!
//! Owns a command buffer and a handle to everything that it uses, until the device is done with it. In: a
//! [`super::Recorder`]. Out: work for [`super::Gpu::submit`], again and again.
//!
//! Invariants: in flight at most once at a time; dropping them waits for their last ticket.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ash::vk;

use super::context::Shared;
use super::dispatches::Stamped;
use super::error::GpuError;
use super::queues::QueueKind;
use super::tape::Tape;
use super::timeline::Ticket;

/// A finished recording. It keeps alive what it uses; dropping it waits until the device is done with it.
pub struct Commands {
    pub(super) shared: Arc<Shared>,
    tape: Option<Tape>,
    kept: Vec<Arc<dyn Any + Send + Sync>>,
    /// Where dispatches are timed.
    stamped: Option<Stamped>,
    /// Where it runs.
    pub(super) kind: QueueKind,
    /// The value of its last submission; 0 before the first.
    ticket: AtomicU64,
}

impl Commands {
    pub(super) fn new(
        shared: &Arc<Shared>,
        kind: QueueKind,
        tape: Tape,
        kept: Vec<Arc<dyn Any + Send + Sync>>,
        stamped: Option<Stamped>,
    ) -> Self {
        Self { shared: Arc::clone(shared), tape: Some(tape), kept, stamped, kind, ticket: AtomicU64::new(0) }
    }

    pub(super) fn buffer(&self) -> vk::CommandBuffer {
        self.tape.as_ref().expect("invariant: only `drop` takes the tape").buffer
    }

    pub(super) fn stamped(&self) -> Option<&Stamped> {
        self.stamped.as_ref()
    }

    /// The ticket of its last submission.
    pub fn ticket(&self) -> Option<Ticket> {
        let value = self.ticket.load(Ordering::Acquire);
        (value > 0).then_some(Ticket { kind: self.kind, value })
    }

    pub(super) fn set_ticket(&self, ticket: Ticket) {
        self.ticket.store(ticket.value, Ordering::Release);
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        let Some(tape) = self.tape.take() else { return };
        let answer = self.ticket().map_or(Ok(()), |ticket| self.shared.timeline(ticket).wait(ticket));
        if matches!(answer, Err(GpuError::Timeout { .. })) {
            // A hung device may still read all of this: it is left to the process's end.
            std::mem::forget(std::mem::take(&mut self.kept));
            std::mem::forget(self.stamped.take());
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        if let Some(stamped) = self.stamped.take() {
            stamped.end(&self.shared);
        }
        self.shared.tapes(self.kind).give_back(tape);
    }
}
