//! When the device did what, put on the host's clock.
//!
//! - Owns: pairs of stamps. In: marks around recorded commands, and the tickets with which these are submitted. Out: events.
//! - Invariants: a pair is read after its ticket has passed and before it is used again. A clock that is off has no stamps and
//!   marks nothing, so commands are the same as without it.
//!
//! The two clocks are brought together by what is known for sure: the host learns of an end after it. The smallest distance
//! seen between a stamp and the moment at which the host knew is taken for the distance of the clocks, so events lie late by
//! what that one wait's end took to be noticed, a few microseconds on a GPU.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::base::events::{Event, EventLog, Lane};
use crate::base::limits::EVENTS_MAX;

use super::context::Gpu;
use super::dispatches::DispatchSpan;
use super::error::GpuError;
use super::recorder::Recorder;
use super::timeline::Ticket;
use super::timestamps::Timestamps;

/// A pair of stamps and what lies between them.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    pair: u32,
    lane: Lane,
    what: &'static str,
    layer: Option<u32>,
    bytes: u64,
}

struct State {
    /// Pairs that are not in use.
    free: Vec<u32>,
    /// Marks in flight; `true` for those whose pair goes back.
    pending: Vec<(Ticket, Mark, bool)>,
    /// Events on the device's clock.
    done: Vec<(Mark, f64, f64)>,
    /// Dispatches: name, bytes, beginning, end.
    dispatches: Vec<(&'static str, u64, f64, f64)>,
    /// The smallest distance seen, host less device, in nanoseconds.
    distance_ns: Option<f64>,
}

struct Inner {
    stamps: Timestamps,
    log: EventLog,
    state: Mutex<State>,
}

/// Marks on a device's clock, or nothing at all.
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Inner>>);

impl Clock {
    /// A clock that marks nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// A clock with `pairs` marks at a time, whose events go to `log`; one that is off where the log is.
    ///
    /// # Errors
    /// [`GpuError::FeatureMissing`] where the device has no clock.
    pub fn new(gpu: &Gpu, pairs: u32, log: EventLog) -> Result<Self, GpuError> {
        if !log.is_on() {
            return Ok(Self::off());
        }
        let stamps = gpu.timestamps(2 * pairs)?;
        let state = State {
            free: (0..pairs).rev().collect(),
            pending: Vec::new(),
            done: Vec::new(),
            dispatches: Vec::new(),
            distance_ns: None,
        };
        Ok(Self(Some(Arc::new(Inner { stamps, log, state: Mutex::new(state) }))))
    }

    /// A mark of its own, for commands that are recorded once or many times; `None` when the clock is off or all are in use.
    pub fn mark(&self, lane: Lane, what: &'static str, layer: Option<u32>, bytes: u64) -> Option<Mark> {
        let inner = self.0.as_ref()?;
        let pair = inner.state.lock().unwrap_or_else(PoisonError::into_inner).free.pop()?;
        Some(Mark { pair, lane, what, layer, bytes })
    }

    /// As [`Self::mark`], for `recorder` alone: `None` also where its queue notes no stamps.
    pub fn mark_in(
        &self,
        recorder: &Recorder,
        lane: Lane,
        what: &'static str,
        layer: Option<u32>,
        bytes: u64,
    ) -> Option<Mark> {
        if recorder.can_stamp() { self.mark(lane, what, layer, bytes) } else { None }
    }

    /// Records the mark's beginning.
    pub fn begin(&self, recorder: &mut Recorder, mark: Option<Mark>) {
        if let (Some(inner), Some(mark)) = (&self.0, mark) {
            recorder.reset_stamps(&inner.stamps, 2 * mark.pair, 2);
            recorder.stamp(&inner.stamps, 2 * mark.pair);
        }
    }

    /// Records the mark's end.
    pub fn end(&self, recorder: &mut Recorder, mark: Option<Mark>) {
        if let (Some(inner), Some(mark)) = (&self.0, mark) {
            recorder.stamp(&inner.stamps, 2 * mark.pair + 1);
        }
    }

    /// Notes that the commands of `mark` were submitted. A mark that `is_last` is given back afterwards.
    pub fn submitted(&self, ticket: Ticket, mark: Option<Mark>, is_last: bool) {
        if let (Some(inner), Some(mark)) = (&self.0, mark) {
            let mut state = inner.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.pending.push((ticket, mark, is_last));
        }
    }

    /// The only commands of `mark` were submitted with this ticket, or not at all, as recording or submitting failed.
    pub fn ended(&self, ticket: Option<Ticket>, mark: Option<Mark>) {
        match ticket {
            Some(ticket) => self.submitted(ticket, mark, true),
            None => self.give_back(mark),
        }
    }

    /// Takes back marks whose commands are gone; what was not collected of them is lost.
    pub fn give_back(&self, marks: impl IntoIterator<Item = Mark>) {
        let Some(inner) = &self.0 else { return };
        let mut state = inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        for mark in marks {
            state.pending.retain(|(_, other, _)| other.pair != mark.pair);
            state.free.push(mark.pair);
        }
    }

    /// Reads the marks whose tickets have passed. To be called where a wait has just ended.
    ///
    /// # Errors
    /// The driver's.
    pub fn collect(&self, gpu: &Gpu) -> Result<(), GpuError> {
        let Some(inner) = &self.0 else { return Ok(()) };
        let now_ns = inner.log.ns(Instant::now()) as f64;
        let mut state = inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let mut failure = None;
        state.pending.retain(|&(ticket, mark, is_last)| {
            let read = gpu
                .is_done(ticket)
                .and_then(|is_done| if is_done { inner.stamps.read_ns(2 * mark.pair, 2) } else { Ok(None) });
            match read {
                Ok(None) => return true,
                Ok(Some(at)) => {
                    let distance_ns = now_ns - at[1];
                    state.distance_ns =
                        Some(state.distance_ns.map_or(distance_ns, |least| least.min(distance_ns)));
                    if state.done.len() < EVENTS_MAX {
                        state.done.push((mark, at[0], at[1]));
                    } else {
                        inner.log.note_left_out(1);
                    }
                }
                Err(error) => failure = Some(error),
            }
            if is_last {
                state.free.push(mark.pair);
            }
            false
        });
        failure.map_or(Ok(()), Err)
    }

    /// Notes dispatches, with the bytes of each.
    pub fn note_dispatches(&self, spans: &[DispatchSpan], bytes: impl Fn(&DispatchSpan) -> u64) {
        let Some(inner) = &self.0 else { return };
        let mut state = inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        let room = EVENTS_MAX - state.dispatches.len();
        let noted =
            spans.iter().take(room).map(|span| (span.label.name, bytes(span), span.begin_ns, span.end_ns));
        state.dispatches.extend(noted);
        inner.log.note_left_out(spans.len().saturating_sub(room) as u64);
    }

    /// Hands the events so far to the log.
    pub fn flush(&self) {
        let Some(inner) = &self.0 else { return };
        let mut state = inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        let distance_ns = state.distance_ns.unwrap_or(0.0);
        for (Mark { lane, what, layer, bytes, .. }, begin, end) in state.done.drain(..) {
            let (begin_ns, end_ns) = (whole_ns(begin + distance_ns), whole_ns(end + distance_ns));
            inner.log.push(Event { lane, what, layer, bytes, begin_ns, end_ns });
        }
        for (what, bytes, begin, end) in state.dispatches.drain(..) {
            let (begin_ns, end_ns) = (whole_ns(begin + distance_ns), whole_ns(end + distance_ns));
            inner.log.push(Event { lane: Lane::Dispatch, what, layer: None, bytes, begin_ns, end_ns });
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "saturates; below 0 only for what ran before the log began"
)]
fn whole_ns(ns: f64) -> u64 {
    ns as u64
}
