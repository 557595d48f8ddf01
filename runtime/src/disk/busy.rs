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

/// Of a queue that learns of ends when it looks; all times count from one beginning.
///
/// The end of a read that was waited for is known. One that is found to have ended, as its owner did something else meanwhile, counts
/// for as long as those that were waited for took on average, or until it was found where that is sooner.
#[derive(Debug, Default)]
pub(super) struct SeenBusyTime {
    known: KnownBusyTime,
    waited: Duration,
    waited_count: u32,
}

impl SeenBusyTime {
    /// A read that began at `begin` is seen to have ended; the first of those still under way began at `open`.
    pub(super) fn end(&mut self, begin: Duration, now: Duration, is_waited: bool, open: Option<Duration>) {
        if is_waited {
            self.waited += now.saturating_sub(begin);
            self.waited_count += 1;
        }
        let end = if is_waited { now } else { now.min(self.likely_end(begin)) };
        // What is still under way was so all the time that this one was.
        self.known.add(open.map_or(begin, |open| open.min(begin)), end);
    }

    fn likely_end(&self, begin: Duration) -> Duration {
        match self.waited.checked_div(self.waited_count) {
            Some(mean) => begin + mean,
            None => Duration::MAX,
        }
    }

    /// Nanoseconds until now; what has not been seen to end began between the two times of `open`.
    pub(super) fn ns(&self, now: Duration, open: Option<(Duration, Duration)>) -> u64 {
        let mut known = self.known.clone();
        if let Some((first, last)) = open {
            known.add(first, now.min(self.likely_end(last)));
        }
        known.ns(now)
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
    fn what_nobody_waited_for_counts_as_long_as_others_took() {
        let us = Duration::from_micros;
        let mut busy = SeenBusyTime::default();
        assert_eq!(busy.ns(us(5), Some((us(2), us(3)))), 3_000, "nothing is known of it yet");
        busy.end(us(10), us(14), true, None);
        busy.end(us(20), us(26), true, None);
        assert_eq!(busy.ns(us(30), None), 10_000);
        // Five on average.
        busy.end(us(40), us(90), false, None);
        busy.end(us(100), us(102), false, None);
        assert_eq!(busy.ns(us(110), None), 17_000);
        assert_eq!(busy.ns(us(130), Some((us(120), us(121)))), 23_000);
        assert_eq!(busy.ns(us(122), Some((us(120), us(121)))), 19_000);
    }

    #[test]
    fn a_read_that_ends_before_an_older_one_hides_nothing_of_it() {
        let us = Duration::from_micros;
        let mut busy = SeenBusyTime::default();
        busy.end(us(5), us(6), true, Some(us(0)));
        busy.end(us(0), us(10), true, None);
        assert_eq!(busy.ns(us(20), None), 10_000);
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
