//! What happened when: spans of time on the drive, the device and the host, for timelines.
//!
//! - Owns: the list of events. In: spans as they end. Out: all of them, in order of their beginnings.
//! - Invariants: a log that is off takes nothing and costs a look at an option. One that is full ([`EVENTS_MAX`]) takes no more until
//!   it is emptied, and counts what it left out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::base::limits::EVENTS_MAX;

/// Where something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Steps, as the caller sees them.
    Step,
    /// What the thread that drives the engine does, or waits for.
    Host,
    /// A read, from its submission to the host's taking note of its end.
    Drive,
    /// A copy from host memory into device memory, on the device's clock.
    Copy,
    /// Kernels, on the device's clock.
    Device,
    /// Single dispatches, on the device's clock: what a stretch of kernels is made of.
    Dispatch,
}

/// Something that took time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Where.
    pub lane: Lane,
    /// What, in a few words.
    pub what: &'static str,
    /// The model layer that it belongs to, if it belongs to one.
    pub layer: Option<u32>,
    /// Bytes moved; 0 where that has no meaning.
    pub bytes: u64,
    /// Nanoseconds from the log's beginning to its own.
    pub begin_ns: u64,
    /// Nanoseconds from the log's beginning to its end.
    pub end_ns: u64,
}

#[derive(Debug)]
struct Inner {
    epoch: Instant,
    events: Mutex<Vec<Event>>,
    left_out: AtomicU64,
}

/// A list of events that several holders add to; or nothing at all, when it is off.
#[derive(Debug, Clone, Default)]
pub struct EventLog(Option<Arc<Inner>>);

impl EventLog {
    /// A log that takes nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// An empty log that begins now.
    pub fn on() -> Self {
        Self(Some(Arc::new(Inner {
            epoch: Instant::now(),
            events: Mutex::new(Vec::new()),
            left_out: AtomicU64::new(0),
        })))
    }

    /// Whether it takes anything.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Nanoseconds from the log's beginning to `at`; 0 when it is off.
    pub fn ns(&self, at: Instant) -> u64 {
        self.0.as_ref().map_or(0, |inner| {
            u64::try_from(at.saturating_duration_since(inner.epoch).as_nanos()).unwrap_or(u64::MAX)
        })
    }

    /// Notes an event of the host's clock.
    pub fn add(
        &self,
        lane: Lane,
        what: &'static str,
        layer: Option<u32>,
        bytes: u64,
        begin: Instant,
        end: Instant,
    ) {
        if self.is_on() {
            let (begin_ns, end_ns) = (self.ns(begin), self.ns(end));
            self.push(Event { lane, what, layer, bytes, begin_ns, end_ns });
        }
    }

    /// Notes an event whose times are counted from the log's beginning.
    pub fn push(&self, event: Event) {
        if let Some(inner) = &self.0 {
            let mut events = inner.events.lock().unwrap_or_else(PoisonError::into_inner);
            if events.len() < EVENTS_MAX {
                events.push(event);
            } else {
                inner.left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Notes that so many events were left out elsewhere, for want of room.
    pub fn note_left_out(&self, count: u64) {
        if let Some(inner) = &self.0 {
            inner.left_out.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Events that were left out since the last call, for want of room.
    pub fn take_left_out(&self) -> u64 {
        self.0.as_ref().map_or(0, |inner| inner.left_out.swap(0, Ordering::Relaxed))
    }

    /// Takes all events out, in order of their beginnings.
    pub fn take(&self) -> Vec<Event> {
        let Some(inner) = &self.0 else { return Vec::new() };
        let mut events = std::mem::take(&mut *inner.events.lock().unwrap_or_else(PoisonError::into_inner));
        events.sort_by_key(|event| (event.begin_ns, event.end_ns));
        events
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn events_come_in_order_of_their_beginnings() {
        let log = EventLog::on();
        let now = Instant::now();
        let later = now + Duration::from_micros(5);
        log.add(Lane::Host, "second", Some(3), 0, later, later + Duration::from_micros(1));
        log.add(Lane::Drive, "first", None, 4096, now, later);
        let taken = log.take();
        assert_eq!(taken.iter().map(|event| event.what).collect::<Vec<_>>(), ["first", "second"]);
        assert_eq!(taken[0].end_ns - taken[0].begin_ns, 5_000);
        assert_eq!(taken[1].layer, Some(3));
        assert!(log.take().is_empty(), "events were taken out");
    }

    #[test]
    fn a_full_log_counts_what_it_leaves_out() {
        let log = EventLog::on();
        let event = Event { lane: Lane::Host, what: "much", layer: None, bytes: 0, begin_ns: 1, end_ns: 2 };
        for _ in 0..EVENTS_MAX + 3 {
            log.push(event);
        }
        log.note_left_out(4);
        assert_eq!((log.take().len(), log.take_left_out(), log.take_left_out()), (EVENTS_MAX, 7, 0));
        log.push(event);
        assert_eq!(log.take(), [event], "there is room again");
    }

    #[test]
    fn a_log_that_is_off_takes_nothing() {
        let log = EventLog::off();
        log.add(Lane::Step, "step", None, 0, Instant::now(), Instant::now());
        assert!(log.take().is_empty() && !log.is_on());
    }
}
