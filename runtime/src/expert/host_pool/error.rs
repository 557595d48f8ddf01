//! What can go wrong in a pool of host memory.

use std::sync::Arc;

use crate::base::ids::ExpertKey;
use crate::base::region::RegionError;
use crate::disk::DiskError;
use crate::expert::ExpertError;

/// What can go wrong in a pool of host memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostPoolError {
    /// The files or the queue do not open, or the queue failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// There is no memory for the slots.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// An expert could not be read.
    #[error(transparent)]
    Read(Arc<ExpertError>),
    /// A number of slots that no pool has.
    #[error("{wanted} slots, wanted 1 to {max}")]
    Slots {
        /// Slots asked for.
        wanted: u32,
        /// The most that make sense: one an expert.
        max: u32,
    },
    /// The caller's memory does not hold the slots.
    #[error("{slots} slots take {wanted_bytes} B, and the memory that was given has {found_bytes} B")]
    MemoryLength {
        /// Slots asked for.
        slots: u32,
        /// Bytes that they take.
        wanted_bytes: usize,
        /// Bytes that were given.
        found_bytes: usize,
    },
    /// Every slot is held by a request, or being read into for one.
    #[error(
        "no slot is left for {key}: {slots} slots are held or being read into; release a request, or make a larger pool"
    )]
    Full {
        /// The expert.
        key: ExpertKey,
        /// Slots of the pool.
        slots: u32,
    },
    /// An expert that the model does not have.
    #[error("the model has no {key}")]
    UnknownExpert {
        /// The expert.
        key: ExpertKey,
    },
    /// A request that was never made, or was released.
    #[error("request {request} was released, or never made")]
    UnknownRequest {
        /// Its number.
        request: u64,
    },
    /// More requests than may be held.
    #[error("{max} requests are held: release some")]
    TooManyRequests {
        /// The most.
        max: usize,
    },
    /// The request's experts are not all there yet.
    #[error("request {request} is still being read: wait for it first")]
    Pending {
        /// Its number.
        request: u64,
    },
}
