//! Watches the host's memory while an engine runs, and says how many experts it may keep there.
//!
//! - Owns: what was seen last. In: the kernel's files (read by [`crate::base::host_memory`]), the time, the slots that have
//!   memory. Out: a number of slots, when it changes.
//! - Invariants: deciding ([`decide`]) is pure. It looks at most every [`LOOK_EVERY`], and never gives more than the plan does.
//!
//! A look reads `/proc/meminfo`, `/proc/pressure/memory`, two files of the process and four of each control group above it.
//!
//! The kernel's averages are those of the last ten seconds and more: too slow to tell whether the last step helped. So shares
//! are taken of its totals, between two looks.

pub mod decide;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::base::host_memory::{Group, HostRoom, Stall};
use decide::{Limits, Sight, StoodStill, Valve};

/// Between two looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The watcher.
pub struct Pressure {
    valve: Valve,
    groups: Vec<Group>,
    begun: Instant,
    looked_at: Option<Instant>,
    machine: Option<Stall>,
    /// Totals of the groups that have a limit, by folder.
    of_groups: Vec<(PathBuf, Stall)>,
}

impl Pressure {
    /// Watches for a tier of host memory of these limits.
    ///
    /// # Panics
    /// As [`Valve::new`].
    pub fn new(limits: Limits) -> Self {
        Self {
            valve: Valve::new(limits),
            groups: Group::all(),
            begun: Instant::now(),
            looked_at: None,
            machine: None,
            of_groups: Vec::new(),
        }
    }

    /// How many experts may be kept from `now` on, if that changes. To be asked between steps, as often as one likes; `held` slots
    /// have memory.
    pub fn kept_max_now(&mut self, now: Instant, held: u32) -> Option<u32> {
        if self.looked_at.is_some_and(|last| now < last + LOOK_EVERY) {
            return None;
        }
        let sight = self.look(now, held);
        self.valve.see(&sight)
    }

    /// How many may be kept, by the last answer.
    pub fn kept_max(&self) -> u32 {
        self.valve.allowed()
    }

    /// Looks, whenever the last look was.
    pub fn look(&mut self, now: Instant, held: u32) -> Sight {
        let since = self.looked_at.replace(now).map(|last| now.saturating_duration_since(last));
        let memory = HostRoom::look_with(&self.groups);
        let machine = Stall::of_machine();
        let mut group = StoodStill::default();
        let mut of_groups = Vec::with_capacity(memory.groups.len());
        for limited in &memory.groups {
            let is_it = |group: &&Group| group.folder() == limited.folder;
            let Some(stall) = self.groups.iter().find(is_it).and_then(Group::stall) else { continue };
            let last = self.of_groups.iter().find(|(folder, _)| *folder == limited.folder);
            let share = stood_still(last.map(|(_, stall)| stall), &stall, since);
            group = StoodStill { some: group.some.max(share.some), full: group.full.max(share.full) };
            of_groups.push((limited.folder.clone(), stall));
        }
        let sight = Sight {
            at: now.saturating_duration_since(self.begun),
            free_bytes: memory.free().map(|(bytes, _)| bytes),
            machine: machine
                .map_or_else(StoodStill::default, |stall| stood_still(self.machine.as_ref(), &stall, since)),
            group,
            held,
        };
        (self.machine, self.of_groups) = (machine, of_groups);
        sight
    }
}

/// Shares of the time `since` the last look; where there was none, those of the last ten seconds.
fn stood_still(last: Option<&Stall>, now: &Stall, since: Option<Duration>) -> StoodStill {
    match (last, since) {
        (Some(last), Some(since)) if !since.is_zero() => {
            let share = |from_us: u64, to_us: u64| {
                (to_us.saturating_sub(from_us) as f64 * 1e-6 / since.as_secs_f64()).min(1.0)
            };
            StoodStill {
                some: share(last.some.total_us, now.some.total_us),
                full: share(last.full.total_us, now.full.total_us),
            }
        }
        _ => StoodStill { some: now.some.share_10s, full: now.full.share_10s },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        slots_max: 96,
        step_slots: 32,
        slot_bytes: 4096,
        reserve_bytes: 1 << 20,
        total_bytes: 1 << 34,
    };

    #[test]
    fn shares_are_of_the_time_between_two_looks() {
        let text = |some: u64, full: u64| {
            let text = format!(
                "some avg10=30.00 avg60=0.00 avg300=0.00 total={some}\nfull avg10=7.00 avg60=0.00 avg300=0.00 total={full}\n"
            );
            Stall::parse(&text).unwrap()
        };
        let (last, now) = (text(1_000_000, 500_000), text(1_125_000, 510_000));
        let shares = stood_still(Some(&last), &now, Some(Duration::from_millis(500)));
        assert_eq!((shares.some, shares.full), (0.25, 0.02));
        // The first look has the averages alone; two processors may stand still for longer than the clock ran.
        let shares = stood_still(None, &now, Some(LOOK_EVERY));
        assert_eq!((shares.some, shares.full), (0.30, 0.07));
        assert_eq!(stood_still(Some(&last), &now, Some(Duration::from_micros(10))).some, 1.0);
        assert_eq!(stood_still(Some(&last), &now, None).some, 0.30);
    }

    #[test]
    fn it_looks_at_most_every_so_often() {
        let mut pressure = Pressure::new(LIMITS);
        let now = Instant::now();
        // This machine has a megabyte left, or nothing can be asked of it.
        assert_eq!(pressure.kept_max_now(now, 0), None);
        let looked_at = pressure.looked_at;
        assert_eq!(pressure.kept_max_now(now + LOOK_EVERY / 2, 0), None);
        assert_eq!(pressure.looked_at, looked_at);
        assert_eq!(pressure.kept_max_now(now + LOOK_EVERY, 0), None);
        assert!(pressure.looked_at > looked_at);
        assert_eq!(pressure.kept_max(), 96);
    }

    #[test]
    fn what_is_seen_here_makes_sense() {
        let mut pressure = Pressure::new(LIMITS);
        let now = Instant::now();
        for look in 0..3 {
            let sight = pressure.look(now + look * LOOK_EVERY, 7);
            assert!(sight.free_bytes.is_some_and(|bytes| bytes > 0), "{sight:?}");
            for share in [sight.machine.some, sight.machine.full, sight.group.some, sight.group.full] {
                assert!((0.0..=1.0).contains(&share), "{sight:?}");
            }
        }
    }
}
