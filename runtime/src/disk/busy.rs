//! How long a queue had something to read. Pure: whoever asks says what time it is.
//!
//! - Owns: a sum. In: when reads begin and end. Out: the time in which at least one was under way, however many were.
//! - Invariants: an instant is counted once, and none in which nothing was under way.

use std::time::{Duration, Instant};

/// Of a queue that learns of beginnings and ends as they happen.
#[derive(Debug, Default)]
pub(super) struct BusyTime {
    under_way: usize,
    /// When the first of those under way began.
    since: Option<Instant>,
    sum: Duration,
}

impl BusyTime {
    /// A read begins.
    pub(super) fn begin(&mut self, now: Instant) {
        self.under_way += 1;
        self.since.get_or_insert(now);
    }

    /// So many reads have ended.
    pub(super) fn end(&mut self, count: usize, now: Instant) {
        self.under_way -= count;
        if self.under_way == 0
            && let Some(since) = self.since.take()
        {
            self.sum += now.saturating_duration_since(since);
        }
    }

    /// Nanoseconds until now, those of what is still under way included.
    pub(super) fn ns(&self, now: Instant) -> u64 {
        let open = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        whole_ns(self.sum + open)
    }
}

/// Of reads whose ends are known when they begin; all times count from one beginning.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownBusyTime {
    /// Everything before it is counted.
    until: Duration,
    sum: Duration,
}

impl KnownBusyTime {
    /// Something is under way from `begin` until `end`. Of what follows, nothing begins before `begin`.
    pub(super) fn add(&mut self, begin: Duration, end: Duration) {
        let from = begin.max(self.until);
        if end > from {
            self.sum += end - from;
            self.until = end;
        }
    }

    /// Nanoseconds until now.
    pub(super) fn ns(&self, now: Duration) -> u64 {
        // What lies ahead is one piece: all of it began before now.
        whole_ns(self.sum - self.until.saturating_sub(now))
    }
}

fn whole_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_beside_one_another_count_once_and_pauses_do_not() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let mut busy = BusyTime::default();
        assert_eq!(busy.ns(at(3)), 0);
        busy.begin(at(10));
        busy.begin(at(12));
        assert_eq!(busy.ns(at(14)), 4_000, "what is under way counts until now");
        busy.end(1, at(15));
        busy.begin(at(18));
        busy.end(2, at(20));
        assert_eq!(busy.ns(at(99)), 10_000);
        busy.begin(at(100));
        busy.end(1, at(101));
        assert_eq!(busy.ns(at(200)), 11_000);
    }

    #[test]
    fn ends_known_beforehand_count_until_now() {
        let us = Duration::from_micros;
        let mut busy = KnownBusyTime::default();
        busy.add(us(10), us(14));
        busy.add(us(11), us(13));
        busy.add(us(12), us(20));
        assert_eq!(busy.ns(us(16)), 6_000);
        assert_eq!(busy.ns(us(50)), 10_000);
        busy.add(us(60), us(61));
        assert_eq!(busy.ns(us(61)), 11_000);
        assert_eq!(busy.ns(us(60)), 10_000);
    }
}
