//! How many records host memory may keep now, by what the kernel says of memory. Pure: time is handed in.
//!
//! Two things take slots away:
//! - **little is left**: less than half the reserve. So much is given up at once that three quarters of it are left.
//! - **tasks stand still** for want of memory although something is left: what is available counts page cache that others
//!   need. The last two steps up are given up if there were any, else a quarter of what is kept; and again as long as it goes
//!   on, but not before the last step down can be seen to help.
//!
//! Slots come back one step at a time, when those that are allowed are in use, it has been quiet for a while, and three quarters
//! of the reserve would be left even so. The marks lie apart, so growing never makes little of what is left. It may make tasks stand still; then the next quiet is
//! to last twice as long, up to a limit. All other things equal the size therefore comes to rest, or, where
//! standing still is all that tells the limit, tries two steps in [`QUIET_MAX`].

use std::time::Duration;

/// Share of the time in which some task stood still, from which on memory is short. A task that now and then drops clean
/// pages of its own stays far below.
const SOME_SHORT: f64 = 0.10;

/// The same of the time in which all tasks stood still.
const FULL_SHORT: f64 = 0.02;

/// A machine that has more than this share left is not short of memory: tasks that stand still there ran into a limit of their
/// own, which nobody else can help.
const PLENTY: f64 = 0.25;

/// Between two steps down because of tasks that stand still.
const STALL_PAUSE: Duration = Duration::from_secs(1);

/// How long it is quiet before a step up.
pub const QUIET: Duration = Duration::from_secs(30);

/// The longest that it is to be quiet.
pub const QUIET_MAX: Duration = Duration::from_secs(15 * 60);

/// After so long without shortness, what was learned of the limit is forgotten.
const FORGET: Duration = Duration::from_secs(60 * 60);

/// Between two steps up.
const GROW_PAUSE: Duration = Duration::from_secs(2);

/// Shares of the time since the last look, 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StoodStill {
    /// In which some task stood still for want of memory.
    pub some: f64,
    /// In which every task did.
    pub full: f64,
}

impl StoodStill {
    fn is_short(self) -> bool {
        self.some >= SOME_SHORT || self.full >= FULL_SHORT
    }
}

/// What was seen in one look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sight {
    /// Time since any beginning.
    pub at: Duration,
    /// Bytes that may still be had; `None` where that is not known.
    pub free_bytes: Option<u64>,
    /// The machine's tasks.
    pub machine: StoodStill,
    /// Those of a group that limits this process.
    pub group: StoodStill,
    /// Slots that have memory.
    pub held: u32,
}

/// What the size is decided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most slots, by the plan.
    pub slots_max: u32,
    /// Slots that come and go together.
    pub step_slots: u32,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Bytes that the plan leaves to everybody else. Where the caller asked for all there is, 0: then only tasks that
    /// stand still take something away.
    pub reserve_bytes: u64,
    /// Bytes of the machine, or of the group that limits this process.
    pub total_bytes: u64,
}

/// Decides.
#[derive(Debug, Clone)]
pub struct Valve {
    limits: Limits,
    allowed: u32,
    grown_at: Option<Duration>,
    short_at: Option<Duration>,
    stall_step_at: Option<Duration>,
    quiet: Duration,
}

impl Valve {
    /// Begins with all that the plan allows.
    ///
    /// # Panics
    /// When a step or a slot is nothing.
    pub fn new(limits: Limits) -> Self {
        assert!(limits.step_slots > 0 && limits.slot_bytes > 0, "a step that is nothing: {limits:?}");
        Self {
            limits,
            allowed: limits.slots_max,
            grown_at: None,
            short_at: None,
            stall_step_at: None,
            quiet: QUIET,
        }
    }

    /// Slots that are allowed now.
    pub fn allowed(&self) -> u32 {
        self.allowed
    }

    /// Takes in what is seen; the slots that are allowed from now on, if that changes.
    pub fn see(&mut self, sight: &Sight) -> Option<u32> {
        let before = self.allowed;
        let signed = |bytes: u64| i128::from(bytes);
        let reserve_bytes = signed(self.limits.reserve_bytes);
        let (low_bytes, enough_bytes) = (reserve_bytes / 2, reserve_bytes - reserve_bytes / 4);
        let held = sight.held.min(self.allowed);
        // What is allowed is as good as taken, so that less than nothing may be left.
        let promised_bytes = signed(u64::from(self.allowed - held) * self.limits.slot_bytes);
        let left_bytes = sight.free_bytes.map_or(i128::MAX, |bytes| signed(bytes) - promised_bytes);
        if left_bytes < low_bytes {
            self.note_short(sight.at);
            let missing_bytes = u64::try_from(enough_bytes - left_bytes).unwrap_or(u64::MAX);
            self.take(missing_bytes.div_ceil(self.limits.slot_bytes));
        } else if self.is_stalled(sight) {
            let has_grown = self.note_short(sight.at);
            if self.stall_step_at.is_none_or(|last| sight.at >= last + STALL_PAUSE) {
                self.stall_step_at = Some(sight.at);
                // What has no memory helps nobody.
                self.allowed = held;
                self.take(u64::from(if has_grown { 2 * self.step() } else { held / 4 }));
            }
        } else if self.short_at.is_some_and(|at| sight.at >= at + FORGET) {
            (self.short_at, self.quiet) = (None, QUIET);
        } else if self.may_grow(sight, left_bytes, enough_bytes) {
            self.allowed = self.allowed.saturating_add(self.step()).min(self.limits.slots_max);
            self.grown_at = Some(sight.at);
        }
        (self.allowed != before).then_some(self.allowed)
    }

    /// Slots of a step up: what comes together, up to four times that where a quarter of the reserve holds it.
    fn step(&self) -> u32 {
        let quarter = self.limits.reserve_bytes / 4 / self.limits.slot_bytes;
        let steps = quarter / u64::from(self.limits.step_slots);
        u32::try_from(steps.clamp(1, 4)).expect("invariant: clamped").saturating_mul(self.limits.step_slots)
    }

    /// Takes `slots` away, at least one, and as many more as the last step that stays has to be whole.
    fn take(&mut self, slots: u64) {
        let left = u64::from(self.allowed).saturating_sub(slots.max(1));
        let left = left - left % u64::from(self.limits.step_slots);
        self.allowed = u32::try_from(left).expect("invariant: less than before");
    }

    fn is_stalled(&self, sight: &Sight) -> bool {
        let free = sight.free_bytes.unwrap_or(0);
        let has_plenty = free as f64 > PLENTY * self.limits.total_bytes as f64;
        sight.group.is_short() || (sight.machine.is_short() && !has_plenty)
    }

    /// Memory is short: quiet begins anew. True when slots have come back since it was short the last time, which was too much.
    fn note_short(&mut self, at: Duration) -> bool {
        self.short_at = Some(at);
        let has_grown = self.grown_at.take().is_some();
        if has_grown {
            self.quiet = (self.quiet * 2).min(QUIET_MAX);
        }
        has_grown
    }

    fn may_grow(&self, sight: &Sight, left_bytes: i128, enough_bytes: i128) -> bool {
        let step_bytes = u64::from(self.step()) * self.limits.slot_bytes;
        let has_room = left_bytes >= enough_bytes + i128::from(step_bytes);
        let is_quiet = self.short_at.is_none_or(|at| sight.at >= at + self.quiet);
        let is_settled = self.grown_at.is_none_or(|at| sight.at >= at + GROW_PAUSE);
        let is_used = sight.held.saturating_add(self.limits.step_slots) > self.allowed;
        self.allowed < self.limits.slots_max && is_used && has_room && is_quiet && is_settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// 16 GiB, of which 2 are to be left; 12 GiB of slots of 2 MiB that come by 32.
    const LIMITS: Limits = Limits {
        slots_max: 6144,
        step_slots: 32,
        slot_bytes: 2 << 20,
        reserve_bytes: 2 * GIB,
        total_bytes: 16 * GIB,
    };

    const LOOK: Duration = Duration::from_millis(250);

    /// A machine: what others use, what of the page cache they need, and the tier, which fills as fast as it is read.
    struct World {
        valve: Valve,
        at: Duration,
        others_bytes: u64,
        /// Page cache that counts as available and is not: below it tasks stand still.
        needed_cache_bytes: u64,
        held: u32,
        /// Changes: when, and to how many slots.
        log: Vec<(Duration, u32)>,
    }

    impl World {
        fn new(limits: Limits, others_bytes: u64, needed_cache_bytes: u64) -> Self {
            let valve = Valve::new(limits);
            Self { valve, at: Duration::ZERO, others_bytes, needed_cache_bytes, held: 0, log: Vec::new() }
        }

        fn free_bytes(&self) -> u64 {
            let held_bytes = u64::from(self.held) * self.valve.limits.slot_bytes;
            self.valve.limits.total_bytes.saturating_sub(self.others_bytes + held_bytes)
        }

        fn run(&mut self, seconds: u64) {
            let end = self.at + Duration::from_secs(seconds);
            while self.at < end {
                self.at += LOOK;
                // 256 slots a second at most.
                self.held = (self.held + 64).min(self.valve.allowed());
                let some = if self.free_bytes() < self.needed_cache_bytes { 0.4 } else { 0.0 };
                let sight = Sight {
                    at: self.at,
                    free_bytes: Some(self.free_bytes()),
                    machine: StoodStill { some, full: some / 4.0 },
                    group: StoodStill::default(),
                    held: self.held,
                };
                if let Some(allowed) = self.valve.see(&sight) {
                    self.held = self.held.min(allowed);
                    self.log.push((self.at, allowed));
                }
            }
        }

        /// How often a change goes the other way than the one before.
        fn turns(&self) -> usize {
            let mut last = self.valve.limits.slots_max;
            let ups: Vec<bool> = self
                .log
                .iter()
                .map(|&(_, allowed)| {
                    let is_up = allowed > last;
                    last = allowed;
                    is_up
                })
                .collect();
            ups.windows(2).filter(|pair| pair[0] != pair[1]).count()
        }
    }

    #[test]
    fn what_the_plan_allows_stays_where_nothing_changes() {
        // The plan leaves the whole reserve, less what the process itself takes meanwhile.
        let mut world = World::new(LIMITS, 2 * GIB + GIB / 2, 0);
        world.run(3600);
        assert_eq!((world.log.len(), world.held), (0, 6144));
    }

    #[test]
    fn little_memory_is_answered_at_once_and_plenty_slowly() {
        let mut world = World::new(LIMITS, 2 * GIB, 0);
        world.run(60);
        assert_eq!(world.held, 6144);
        // Somebody takes 1.5 GiB: a look later three quarters of the reserve are free again.
        world.others_bytes += GIB + GIB / 2;
        let began = world.at;
        world.run(20);
        assert_eq!(world.log.len(), 1, "{:?}", world.log);
        assert_eq!(world.log[0].0, began + LOOK);
        assert!((GIB + GIB / 2..GIB + GIB / 2 + (64 << 20)).contains(&world.free_bytes()), "{:?}", world.log);
        // It goes away: nothing for a while, then steps of an eighth of the reserve, never backwards.
        world.others_bytes -= GIB + GIB / 2;
        world.run(9);
        assert_eq!(world.log.len(), 1, "{:?}", world.log);
        world.run(120);
        assert!(world.log[1].0 >= began + QUIET && world.log[1].1 - world.log[0].1 == 128, "{:?}", world.log);
        assert!(world.log.windows(2).skip(1).all(|pair| pair[1].0 - pair[0].0 >= GROW_PAUSE));
        assert_eq!((world.held, world.turns()), (6144, 1), "{:?}", world.log);
    }

    #[test]
    fn it_comes_to_rest_whatever_others_use() {
        for others in 0..=64 {
            for (reserve_bytes, slot_bytes, step_slots) in
                [(2 * GIB, 2 << 20, 32), (GIB, 32 << 10, 1024), (GIB / 8, 48 << 20, 3), (0, 2 << 20, 32)]
            {
                let slots_max = u32::try_from(12 * GIB / slot_bytes).unwrap();
                let limits = Limits { slots_max, step_slots, slot_bytes, reserve_bytes, ..LIMITS };
                let mut world = World::new(limits, others * GIB / 4, 0);
                world.run(600);
                let changes = world.log.len();
                world.run(7200);
                let case = format!("{others} quarters of a GiB, {limits:?}: {:?}", world.log);
                assert_eq!(world.log.len(), changes, "{case}");
                assert!(world.turns() <= 1, "{case}");
                assert!(world.held == 0 || world.free_bytes() >= reserve_bytes / 2, "{case}");
            }
        }
    }

    #[test]
    fn tasks_that_stand_still_take_a_quarter_and_then_the_last_steps() {
        // 3 GiB of what is free is page cache that others need; with it below a quarter of the machine.
        let mut world = World::new(LIMITS, 2 * GIB, 3 * GIB);
        world.run(40);
        assert!(world.log.len() == 1 && world.free_bytes() >= 3 * GIB, "{:?}", world.log);
        // Nobody tells that this is the limit but tasks that stand still: it is tried, one step at a time, ever less often.
        world.run(24 * 3600);
        let late: Vec<_> =
            world.log.iter().filter(|(at, _)| *at > Duration::from_secs(23 * 3600)).copied().collect();
        assert!(late.len() <= 2 * 5 * 12, "{late:?}");
        let tries = late.windows(2).filter(|pair| pair[0].1 > pair[1].1).count();
        assert!(tries <= 4, "{tries} tries in an hour");
        // 5,632 slots would just do.
        assert!(late.iter().all(|&(_, allowed)| (5632 - 512..5632 + 512).contains(&allowed)), "{late:?}");
    }

    #[test]
    fn a_machine_with_plenty_left_is_not_short_and_a_group_of_ours_is() {
        let still = StoodStill { some: 0.5, full: 0.2 };
        let sight = |machine, group, free_gib: u64| Sight {
            at: Duration::from_secs(1),
            free_bytes: Some(free_gib * GIB),
            machine,
            group,
            held: 4000,
        };
        let none = StoodStill::default();
        // The tier itself is to take 2,144 slots more: 4.2 GiB.
        let see = |sight: Sight| Valve::new(LIMITS).see(&sight);
        assert_eq!(see(sight(still, none, 9)), None);
        assert_eq!(see(sight(none, still, 9)), Some(2976), "a quarter of what is held, in steps of 32");
        let small = Limits { slots_max: 4000, ..LIMITS };
        assert_eq!(Valve::new(small).see(&sight(still, none, 3)), Some(2976));
        let slight = StoodStill { some: 0.09, full: 0.015 };
        assert_eq!(Valve::new(small).see(&sight(slight, slight, 3)), None);
    }

    #[test]
    fn it_goes_down_to_nothing_and_no_further() {
        let mut world = World::new(LIMITS, 15 * GIB, 0);
        world.run(600);
        assert_eq!((world.log.as_slice(), world.held), ([(LOOK, 0)].as_slice(), 0));
        let mut valve = Valve::new(Limits { slots_max: 0, ..LIMITS });
        let still = StoodStill { some: 1.0, full: 1.0 };
        let sight = Sight { at: LOOK, free_bytes: Some(0), machine: still, group: still, held: 0 };
        assert_eq!(valve.see(&sight), None);
    }

    #[test]
    fn where_nothing_is_known_nothing_is_taken() {
        let mut valve = Valve::new(LIMITS);
        let quiet = StoodStill::default();
        for second in 0..1000 {
            let at = Duration::from_secs(second);
            let sight = Sight { at, free_bytes: None, machine: quiet, group: quiet, held: 6144 };
            assert_eq!(valve.see(&sight), None);
        }
    }
}
