//! What the kernel counted at the drives, beside what we read.
//!
//! In: names of block devices, `/sys/block/NAME/stat`. Out: bytes read and written. Where a device has no counters (a network,
//! a container) there is no answer.

use std::fs;

/// The kernel's sector in these counters, whatever the drive's is.
const SECTOR_BYTES: u64 = 512;

/// Counters of some devices at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counters {
    read_bytes: u64,
    written_bytes: u64,
}

impl Counters {
    /// The sum over `devices`; `None` where there are none or one has no counters.
    pub(super) fn read(devices: &[String]) -> Option<Self> {
        let mut sum = Self { read_bytes: 0, written_bytes: 0 };
        for device in devices {
            let text = fs::read_to_string(format!("/sys/block/{device}/stat")).ok()?;
            let one = Self::parse(&text)?;
            sum.read_bytes += one.read_bytes;
            sum.written_bytes += one.written_bytes;
        }
        (!devices.is_empty()).then_some(sum)
    }

    /// Fields 3 and 7 of the line: sectors read, sectors written (Documentation/block/stat.rst of Linux).
    fn parse(text: &str) -> Option<Self> {
        let field =
            |index| text.split_whitespace().nth(index)?.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES);
        Some(Self { read_bytes: field(2)?, written_bytes: field(6)? })
    }
}

/// What went over the drives while only direct reads of ours went on.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Traffic {
    /// Bytes that the drives' counters say were read; `None` where one of them had none.
    pub(super) counted_bytes: Option<u64>,
    /// Bytes written, by others: we write none.
    pub(super) written_bytes: u64,
    /// Bytes that we wanted.
    pub(super) our_bytes: u64,
    pub(super) seconds: f64,
}

impl Traffic {
    pub(super) fn add(
        &mut self,
        before: Option<Counters>,
        after: Option<Counters>,
        our_bytes: u64,
        seconds: f64,
    ) {
        let (Some(before), Some(after)) = (before, after) else { return };
        *self.counted_bytes.get_or_insert(0) += after.read_bytes.saturating_sub(before.read_bytes);
        self.written_bytes += after.written_bytes.saturating_sub(before.written_bytes);
        self.our_bytes += our_bytes;
        self.seconds += seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_in_their_fields() {
        let line = " 4493683    51784 1000 4724353  1924385   522813 20 2103051 0 697048 7034178 516339 133 8 1 3 4\n";
        assert_eq!(Counters::parse(line), Some(Counters { read_bytes: 512_000, written_bytes: 10_240 }));
        assert_eq!(Counters::parse("1 2"), None);
        assert_eq!(Counters::read(&[]), None);
        assert_eq!(Counters::read(&["no-such-device".to_owned()]), None);
    }

    #[test]
    fn traffic_is_summed_and_absent_counters_add_nothing() {
        let at = |read_bytes| Some(Counters { read_bytes, written_bytes: 5 });
        let mut traffic = Traffic::default();
        traffic.add(None, at(9), 7, 1.0);
        assert_eq!(traffic, Traffic::default());
        traffic.add(at(10), at(30), 15, 2.0);
        traffic.add(at(30), at(40), 10, 1.0);
        assert_eq!(
            traffic,
            Traffic { counted_bytes: Some(30), written_bytes: 0, our_bytes: 25, seconds: 3.0 }
        );
    }
}
