//! How long tasks stood still for want of memory: the kernel's pressure stall information (PSI). Pure, but for one read.
//!
//! Two lines, `some` (at least one task stood still) and `full` (all of them did), each with averages over 10, 60 and 300 s in
//! percent and the total in microseconds. Kernels without `CONFIG_PSI`, and those started with `psi=0`, have no such file, or
//! one whose read fails.

use std::fs;
use std::path::Path;

/// What one line says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StallTime {
    /// Share of the last 10 s, 0 to 1.
    pub share_10s: f64,
    /// Share of the last 60 s, 0 to 1.
    pub share_60s: f64,
    /// Microseconds since the machine started. The averages are made of it every 2 s; it is up to date.
    pub total_us: u64,
}

/// What a pressure file says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stall {
    /// At least one task stood still.
    pub some: StallTime,
    /// Every task that was not idle stood still.
    pub full: StallTime,
}

impl Stall {
    /// The whole machine's.
    pub fn of_machine() -> Option<Self> {
        Self::read(Path::new("/proc/pressure/memory"))
    }

    /// As a pressure file says; `None` where there is none or it cannot be read.
    pub fn read(path: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    /// As the text of a pressure file says. Kernels before 5.13 have no `full` line for processors; for memory both are there.
    pub fn parse(text: &str) -> Option<Self> {
        let line = |name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            let value = |key: &str| {
                rest.split_whitespace().find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
            };
            let share = |key| value(key)?.parse::<f64>().ok().map(|percent| percent / 100.0);
            Some(StallTime {
                share_10s: share("avg10")?,
                share_60s: share("avg60")?,
                total_us: value("total")?.parse().ok()?,
            })
        };
        Some(Self { some: line("some")?, full: line("full")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read() {
        let text = "some avg10=0.02 avg60=12.50 avg300=0.00 total=16373854\n\
                    full avg10=0.00 avg60=3.00 avg300=0.00 total=4834599\n";
        let stall = Stall::parse(text).unwrap();
        assert_eq!(stall.some, StallTime { share_10s: 0.0002, share_60s: 0.125, total_us: 16_373_854 });
        assert_eq!(stall.full, StallTime { share_10s: 0.0, share_60s: 0.03, total_us: 4_834_599 });
    }

    #[test]
    fn anything_else_says_nothing() {
        let whole = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";
        assert!(Stall::parse(whole).is_some());
        for (from, to) in [("full", "fuller"), ("total=1", "total=-1"), ("avg60", "avg61"), ("some ", "some")]
        {
            assert_eq!(Stall::parse(&whole.replace(from, to)), None, "{from} for {to}");
        }
        assert_eq!(Stall::parse(""), None);
        assert_eq!(Stall::read(Path::new("/does/not/exist")), None);
    }
}
