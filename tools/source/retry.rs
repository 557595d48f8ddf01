//! How long to wait before trying again.
//!
//! - In: how many tries failed, what the server asks for. Out: a time.
//! - Invariants: pure but for the jitter, which keeps many clients from coming back at once.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often and how patiently to try again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Patience {
    /// Tries in a row that may bring next to nothing.
    pub(crate) tries_max: u32,
    /// Wait after the first of them; each further one doubles it.
    pub(crate) first_wait: Duration,
    /// How long a connection may be silent, or slower than [`RATE_MIN`].
    pub(crate) silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { tries_max: 10, first_wait: Duration::from_secs(1), silence: Duration::from_secs(30) }
    }
}

/// Bytes a second below which a transfer counts as stalled: at that rate the full Flint would take most of a year.
const RATE_MIN: u128 = 1024;

/// The longest wait that we choose ourselves, in first waits.
const DOUBLED_MAX: u32 = 32;

/// The longest wait that a server may ask for.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

impl Patience {
    /// The wait after `failed_tries` (at least one) in a row.
    pub(super) fn wait(&self, failed_tries: u32, retry_after: Option<Duration>) -> Duration {
        let doubled = 1u32.checked_shl(failed_tries - 1).unwrap_or(DOUBLED_MAX).min(DOUBLED_MAX);
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        let jitter = 0.75 + 0.5 * f64::from(nanos % 1024) / 1024.0;
        (self.first_wait * doubled).mul_f64(jitter).max(retry_after.unwrap_or_default())
    }

    /// Bytes that a transfer must bring within `silence`, at least one.
    pub(super) fn bytes_min(&self) -> u64 {
        u64::try_from(self.silence.as_millis() * RATE_MIN / 1000).unwrap_or(u64::MAX).max(1)
    }
}

/// Tells a slow transfer from one that has stalled, by the time that its reads waited and the bytes that they brought. Time
/// in which nobody wanted more does not count.
#[derive(Debug)]
pub(super) struct Pace {
    patience: Patience,
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// At the beginning of a transfer.
    pub(super) fn new(patience: Patience) -> Self {
        Self { patience, waited: Duration::ZERO, bytes: 0 }
    }

    /// Counts a read that waited so long and brought so many bytes; what came of late if that is too little.
    pub(super) fn see(&mut self, waited: Duration, bytes: u64) -> Result<(), Stalled> {
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < self.patience.silence {
            return Ok(());
        }
        let seen = Stalled { bytes: self.bytes, waited: self.waited };
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        if seen.bytes < self.patience.bytes_min() { Err(seen) } else { Ok(()) }
    }
}

/// Too little in too long a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stalled {
    pub(super) bytes: u64,
    pub(super) waited: Duration,
}

/// The seconds that `Retry-After` means: a number, or a date.
pub(super) fn seconds_of(text: &str, now: SystemTime) -> Option<u64> {
    if let Ok(seconds) = text.parse() {
        return Some(seconds);
    }
    let now = now.duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(date_of(text)?.saturating_sub(now))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT` in seconds since 1970.
fn date_of(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const DAYS_BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let [_, day, month, year, time, "GMT"] = text.split_whitespace().collect::<Vec<_>>()[..] else {
        return None;
    };
    let month = MONTHS.iter().position(|&name| name == month)?;
    let (day, year) = (day.parse::<u64>().ok()?, year.parse::<u64>().ok()?);
    let [hour, minute, second] = time.split(':').collect::<Vec<_>>()[..] else { return None };
    if !(1970..=9999).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let leap_days =
        (1970..year).filter(|&year| is_leap(year)).count() as u64 + u64::from(is_leap(year) && month > 1);
    let days = (year - 1970) * 365 + leap_days + DAYS_BEFORE[month] + day - 1;
    let number = |text: &str, below: u64| text.parse::<u64>().ok().filter(|&number| number < below);
    Some(days * 86_400 + number(hour, 24)? * 3600 + number(minute, 60)? * 60 + number(second, 61)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_obey_the_server() {
        let patience = Patience { first_wait: Duration::from_secs(1), ..Patience::default() };
        for (failed_tries, wanted) in [(1, 1.0), (2, 2.0), (5, 16.0), (6, 32.0), (7, 32.0), (100, 32.0)] {
            let wait = patience.wait(failed_tries, None).as_secs_f64();
            assert!((0.75 * wanted..=1.25 * wanted).contains(&wait), "{failed_tries}: {wait}");
        }
        let asked = Duration::from_secs(120);
        assert_eq!(patience.wait(1, Some(asked)), asked, "asked for more");
    }

    #[test]
    fn a_drip_is_a_stall_and_a_thin_line_is_none() {
        let second = Duration::from_secs(1);
        let patience = Patience { silence: 30 * second, ..Patience::default() };
        assert_eq!(patience.bytes_min(), 30 * 1024);
        let stalled_at = |rate: u64| {
            let mut pace = Pace::new(patience);
            (1..=1000).find(|_| pace.see(second, rate).is_err())
        };
        assert_eq!(stalled_at(1), Some(30), "a byte a second");
        assert_eq!(stalled_at(1023), Some(30), "just too slow");
        assert_eq!(stalled_at(1024), None, "just fast enough");
        let mut pace = Pace::new(patience);
        for _ in 0..30 {
            assert!(pace.see(second, 1 << 20).is_ok(), "fast at first");
        }
        let drip = (1..=60).find(|_| pace.see(second, 1).is_err());
        assert_eq!(drip, Some(30), "what came long ago does not count");
        assert!(Pace::new(patience).see(Duration::from_millis(1), 1).is_ok(), "short");
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777 - 60);
        assert_eq!(seconds_of("7", now), Some(7), "number");
        assert_eq!(seconds_of("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(60), "date");
        assert_eq!(seconds_of("Sun, 06 Nov 1994 08:00:00 GMT", now), Some(0), "past");
        assert_eq!(date_of("Thu, 29 Feb 2024 00:00:00 GMT"), Some(1_709_164_800), "leap day");
        assert_eq!(date_of("Fri, 01 Mar 2024 00:00:00 GMT"), Some(1_709_251_200), "day after");
        for text in ["soon", "", "-1", "Sun, 06 Nov 1994 08:49 GMT", "Sun, 06 Foo 1994 08:49:37 GMT"] {
            assert_eq!(seconds_of(text, now), None, "{text}");
        }
    }
}
