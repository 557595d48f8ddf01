//! How much host memory keeps experts that the device does not hold, decided before anything is taken. Pure.
//!
//! - In: what the caller wants, what the host has, what the device's part of the plan takes. Out: a [`HostPlan`].
//! - Invariants: never more slots than there are experts that the pool does not hold, as none is kept twice; never more bytes
//!   than the host has, and where the caller decides nothing, never so much that less than the reserve is left.
//!
//! Left to itself the tier takes three quarters of what is available, and leaves an eighth of the machine's memory (1 GiB at
//! least, 8 at most) to the page cache and to others, whichever is less. What it takes is not gone for
//! good: [`crate::engine::pressure`] gives it back when others need it.

use std::fmt;

use crate::base::host_memory::{Bound, HostRoom};
use crate::base::units::display_bytes;
use crate::engine::EngineError;

/// Host memory for experts, as the caller wants it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HostMemory {
    /// As much as is sensible.
    #[default]
    Auto,
    /// So many bytes at most; 0 keeps none.
    Bytes(u64),
}

/// Bytes that are left to the page cache and to others where the caller does not decide otherwise.
pub fn reserve_bytes(room: &HostRoom) -> u64 {
    (room.most_bytes().unwrap_or(0) / 8).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX)
}

/// Bytes that a plan takes by itself, in all. Nothing where nothing is known.
fn sensible_bytes(room: &HostRoom) -> u64 {
    let free = room.free().map_or(0, |(bytes, _)| bytes);
    (free - free / 4).min(free.saturating_sub(reserve_bytes(room)))
}

const RESERVE_BYTES_MIN: u64 = 1 << 30;
const RESERVE_BYTES_MAX: u64 = 8 << 30;

/// What the host's part is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostInput<'a> {
    pub(super) wanted: HostMemory,
    pub(super) room: &'a HostRoom,
    /// Bytes of the read buffers.
    pub(super) staging_bytes: u64,
    /// Bytes of the device's part that lie in host memory, too: all of it where the device has none of its own, else 0.
    pub(super) shared_bytes: u64,
    /// What the limit on both leaves for host memory, if there is one.
    pub(super) both_left_bytes: Option<u64>,
    pub(super) slot_bytes: u64,
    /// Experts that the pool does not hold.
    pub(super) outside: u32,
}

/// The host's part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPlan {
    /// Experts that are kept.
    pub slots: u32,
    /// Bytes of one.
    pub slot_bytes: u64,
    /// Bytes that were available; `None` where that is not known.
    pub available_bytes: Option<u64>,
    /// Bytes that stay available to others. Below half of them the tier shrinks.
    pub reserve_bytes: u64,
    /// What the user should know.
    pub warnings: Vec<String>,
}

impl HostPlan {
    /// Bytes of what is kept.
    pub fn bytes(&self) -> u64 {
        u64::from(self.slots) * self.slot_bytes
    }

    /// Decides.
    pub(super) fn new(input: &HostInput<'_>) -> Result<Self, EngineError> {
        let room = input.room;
        let taken_bytes = input.staging_bytes + input.shared_bytes;
        let free = room.free();
        // With a limit on both everything behind the device's part is the host's: the caller has decided.
        let (bytes, flag) = match (input.wanted, input.both_left_bytes) {
            (HostMemory::Bytes(bytes), _) => (bytes, Some("--host-memory")),
            (HostMemory::Auto, Some(bytes)) => (bytes, Some("--memory")),
            (HostMemory::Auto, None) => (sensible_bytes(room).saturating_sub(taken_bytes), None),
        };
        let slots = u32::try_from(bytes / input.slot_bytes).unwrap_or(u32::MAX).min(input.outside);
        if let (HostMemory::Bytes(1..), 0, 1..) = (input.wanted, slots, input.outside) {
            return Err(EngineError::OutOfRange {
                what: "host memory in bytes",
                got: bytes,
                wanted: format!(
                    "0, which keeps nothing there, or from {} on, one expert",
                    display_bytes(input.slot_bytes)
                ),
            });
        }
        let bytes = u64::from(slots) * input.slot_bytes;
        let mut plan = Self {
            slots,
            slot_bytes: input.slot_bytes,
            available_bytes: free.as_ref().map(|(bytes, _)| *bytes),
            reserve_bytes: reserve_bytes(room),
            warnings: Vec::new(),
        };
        if let (Some(flag), Some((free_bytes, bound)), 1..) = (flag, free, slots) {
            let Some(stays) = free_bytes.checked_sub(taken_bytes + bytes) else {
                return Err(EngineError::HostMemoryTooSmall(Box::new(HostBill {
                    flag,
                    wanted_bytes: bytes,
                    staging_bytes: input.staging_bytes,
                    shared_bytes: input.shared_bytes,
                    free_bytes,
                    bound,
                })));
            };
            if stays < plan.reserve_bytes {
                plan.warnings.push(format!(
                    "{} of experts in host memory leave {} of it to the page cache and to others",
                    display_bytes(bytes),
                    display_bytes(stays)
                ));
                plan.reserve_bytes = stays;
            }
        }
        Ok(plan)
    }
}

/// Host memory that was asked for and is not there, with what it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostBill {
    /// What asks for it.
    pub flag: &'static str,
    /// Bytes for experts.
    pub wanted_bytes: u64,
    /// Bytes of the read buffers.
    pub staging_bytes: u64,
    /// Bytes of a device whose memory is the host's.
    pub shared_bytes: u64,
    /// Bytes that are available.
    pub free_bytes: u64,
    /// What bounds them.
    pub bound: Bound,
}

impl fmt::Display for HostBill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = match self.shared_bytes {
            0 => String::new(),
            bytes => format!(", the device's {} in the same memory", display_bytes(bytes)),
        };
        write!(
            f,
            "{} of host memory are available ({}), and {} asks for {} of experts there{shared} and {} of read buffers: ask for \
             less, or leave it out and what is sensible is taken",
            display_bytes(self.free_bytes),
            self.bound,
            self.flag,
            display_bytes(self.wanted_bytes),
            display_bytes(self.staging_bytes),
        )
    }
}
