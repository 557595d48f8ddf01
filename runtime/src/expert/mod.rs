//! Decides which routed experts are where, and carries it out.
//!
//! - Owns: the table of who is in which slot, the slots' memory, the read queue and the staging ring.
//! - In: the router's picks, layer by layer.
//! - Out: waves: which slots hold the picks, all of them loaded by work already submitted.
//! - Invariants: deciding ([`slot`], [`policy`], [`pool`], [`plan`]) is pure: no disk, no device, no clock, so equal
//!   input gives equal plans. An expert is in at most one slot, and a slot of a wave is
//!   no victim of that wave; of the wave before it may be, as copies run behind what was submitted earlier. Doing ([`staging`],
//!   [`transport`], [`streamer`]) is bounded: by the ring, by the queue's depth, by the wave. What a store has a checksum
//!   of is compared with it ([`check`]) before the device's table names it.

pub mod slot;

pub mod policy;

mod recency;

mod ranking;

pub mod pace;

pub mod prefetch;

pub mod pool;

pub mod plan;

pub mod host_tier;

mod sums;

pub mod check;

pub mod watch;

pub mod staging;

mod parts_ahead;

mod retired;

mod place;

pub mod transport;

pub mod inflow;

mod slot_memory;

pub mod streamer;

pub mod host_pool;

pub mod routes;

pub mod expand;

mod error;

pub use check::{Check, CheckStats, checking_threads};
pub use error::ExpertError;
pub use host_pool::{HostPool, HostPoolError, HostPoolOptions};
pub use inflow::InflowStats;
pub use policy::Policy;
pub use pool::ExpertSpace;
pub use prefetch::PrefetchMode;
pub use routes::{RouteError, RouteTrace};
pub use slot_memory::{SlotMemory, slots_per_buffer};
pub use staging::{HostPath, Staging};
pub use streamer::{LayerUses, StreamStats, Streamer};
pub use transport::{Move, Transport, TransportOptions, TransportReport};
pub use watch::{Waits, Watch};
