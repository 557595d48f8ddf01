//! How much memory of the host may be had, and how hard it is sought after.
//!
//! - Owns: nothing. In: the kernel's files (`/proc/meminfo`, `/proc/self/limits`, the control groups above this process,
//!   `memory.pressure`). Out: a [`HostRoom`], and the [`Stall`]s that the kernel counts.
//! - Invariants: parsing is pure. A file that is not there, or says something else than expected, is no error: it limits
//!   nothing. What is given is never more than any of the limits leaves.
//!
//! `ulimit -l` is left out: it bounds only what io_uring may pin, and a read into memory that is not registered works as well
//! ([`crate::disk`] says so where registration is refused).

mod group;
mod process;
mod stall;

use std::fmt;
use std::fs;
use std::path::PathBuf;

pub use group::{Group, GroupRoom};
pub use stall::{Stall, StallTime};

/// What bounds the memory that may be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// What the machine has left (`MemAvailable`).
    Machine,
    /// A control group's limit.
    Group(PathBuf),
    /// `ulimit -v`.
    AddressSpace,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("MemAvailable"),
            Self::Group(folder) => write!(f, "the limit of the control group {}", folder.display()),
            Self::AddressSpace => f.write_str("ulimit -v"),
        }
    }
}

/// What is known of the host's memory. Plain data, so that a plan can be made for a host that is not at hand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostRoom {
    /// Bytes of the machine.
    pub total_bytes: Option<u64>,
    /// Bytes that the machine can give without swapping (`MemAvailable`).
    pub available_bytes: Option<u64>,
    /// The control groups of this process that have a limit, its own first.
    pub groups: Vec<GroupRoom>,
    /// Bytes of address space that are left under `ulimit -v`, where that is set.
    pub address_space_bytes: Option<u64>,
}

impl HostRoom {
    /// Looks now.
    pub fn look() -> Self {
        Self::look_with(&Group::all())
    }

    /// Looks now, with the groups that this process was in when they were last looked for.
    pub fn look_with(groups: &[Group]) -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (total_bytes, available_bytes) = parse_meminfo(&text("/proc/meminfo"));
        Self {
            total_bytes,
            available_bytes,
            groups: groups.iter().filter_map(Group::room).collect(),
            address_space_bytes: process::address_space_left(
                &text("/proc/self/limits"),
                &text("/proc/self/status"),
            ),
        }
    }

    /// What is left when somebody else takes `bytes` of it.
    #[must_use]
    pub fn without(&self, bytes: u64) -> Self {
        let less = |room: Option<u64>| room.map(|room| room.saturating_sub(bytes));
        Self {
            total_bytes: self.total_bytes,
            available_bytes: less(self.available_bytes),
            groups: self
                .groups
                .iter()
                .map(|room| GroupRoom { used_bytes: room.used_bytes.saturating_add(bytes), ..room.clone() })
                .collect(),
            address_space_bytes: less(self.address_space_bytes),
        }
    }

    /// Bytes that may be had now, and what bounds them: the least that any limit leaves. `None` where nothing is known.
    pub fn free(&self) -> Option<(u64, Bound)> {
        let machine = self.available_bytes.map(|bytes| (bytes, Bound::Machine));
        let groups = self.groups.iter().map(|room| (room.free_bytes(), Bound::Group(room.folder.clone())));
        let space = self.address_space_bytes.map(|bytes| (bytes, Bound::AddressSpace));
        machine.into_iter().chain(groups).chain(space).min_by_key(|(bytes, _)| *bytes)
    }

    /// Bytes that there are in all for whoever shares the tightest limit: the machine's, or a group's where that is less.
    pub fn most_bytes(&self) -> Option<u64> {
        self.total_bytes.into_iter().chain(self.groups.iter().map(|room| room.limit_bytes)).min()
    }
}

/// `MemTotal` and `MemAvailable` in bytes.
fn parse_meminfo(text: &str) -> (Option<u64>, Option<u64>) {
    (kib_of(text, "MemTotal"), kib_of(text, "MemAvailable"))
}

/// The number of a line `key:   123 kB`, in bytes.
fn kib_of(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "\
MemTotal:       24683652 kB
MemFree:        19001992 kB
MemAvailable:   24044316 kB
Buffers:           88612 kB
SwapTotal:             0 kB
";

    #[test]
    fn meminfo_is_in_kib() {
        let wanted = (Some(24_683_652 << 10), Some(24_044_316 << 10));
        assert_eq!(parse_meminfo(MEMINFO), wanted);
    }

    #[test]
    fn what_is_not_there_limits_nothing() {
        for text in ["", "MemTotal:\n", "MemTotal: much kB\nMemAvailable 5 kB\n", "MemAvailable:\t\u{fffd}"] {
            assert_eq!(parse_meminfo(text), (None, None), "{text:?}");
        }
        assert_eq!(HostRoom::default().free(), None);
        assert_eq!(HostRoom::default().most_bytes(), None);
    }

    #[test]
    fn the_tightest_limit_counts() {
        let room = |name: &str, limit_bytes, used_bytes, cache_bytes| GroupRoom {
            folder: name.into(),
            limit_bytes,
            used_bytes,
            cache_bytes,
        };
        let mut memory = HostRoom {
            total_bytes: Some(64 << 30),
            available_bytes: Some(40 << 30),
            groups: vec![room("/a/b", 60 << 30, 4 << 30, 1 << 30), room("/a", 32 << 30, 20 << 30, 4 << 30)],
            address_space_bytes: None,
        };
        assert_eq!(memory.free(), Some((16 << 30, Bound::Group("/a".into()))));
        assert_eq!(memory.most_bytes(), Some(32 << 30));
        memory.address_space_bytes = Some(1 << 30);
        assert_eq!(memory.free(), Some((1 << 30, Bound::AddressSpace)));
        (memory.address_space_bytes, memory.available_bytes) = (None, Some(5));
        assert_eq!(memory.free(), Some((5, Bound::Machine)));
        assert!(memory.free().unwrap().1.to_string().contains("MemAvailable"));
    }

    #[test]
    fn what_another_takes_is_gone_from_every_limit() {
        let group =
            |used_bytes| GroupRoom { folder: "/g".into(), limit_bytes: 90, used_bytes, cache_bytes: 5 };
        let memory = HostRoom {
            total_bytes: Some(200),
            available_bytes: Some(100),
            groups: vec![group(10)],
            address_space_bytes: None,
        };
        let left = memory.without(30);
        assert_eq!((left.total_bytes, left.available_bytes), (Some(200), Some(70)));
        assert_eq!(left.free(), Some((55, Bound::Group("/g".into()))));
        assert_eq!(memory.without(u64::MAX).free().map(|(bytes, _)| bytes), Some(0));
    }

    #[test]
    fn this_machine_says_something() {
        let memory = HostRoom::look();
        let (free, _) = memory.free().expect("Linux has /proc/meminfo");
        assert!(free <= memory.most_bytes().unwrap(), "{memory:?}");
    }
}
