//! How long to wait before trying again.
//!
//! - In: how many tries failed, what the server asks for. Out: a time.
//! - Invariants: pure but for the jitter, which keeps many clients from coming back at once.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often and how patiently to try again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Patience {
    /// Tries in a row that may fail without a byte.
    pub(crate) tries_max: u32,
    /// Wait after the first of them; each further one doubles it.
    pub(crate) first_wait: Duration,
    /// How long a connection may be silent.
    pub(crate) silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { tries_max: 10, first_wait: Duration::from_secs(1), silence: Duration::from_secs(30) }
    }
}

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
