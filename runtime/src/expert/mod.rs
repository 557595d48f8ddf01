//! Decides which routed experts are where.
//!
//! - Owns: the table of who is in which slot, and the choice of who must leave.
//! - In: the router's picks, layer by layer.
//! - Out: waves: which slots hold the picks, and which of those slots must be filled first.
//! - Invariants: deciding ([`slot`], [`policy`], [`pool`], [`plan`]) is pure: no disk, no device, no clock, so equal
//!   input gives equal plans. An expert is in at most one slot; a slot in use is never a victim.

pub mod slot;

pub mod policy;

pub mod pool;

pub mod plan;
