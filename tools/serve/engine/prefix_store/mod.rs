//! Conversations that no slot holds at the moment, kept in host memory and on disk.
//!
//! - Owns: snapshots in host memory (`memory`), a folder of them (`disk`), two threads for files (`files`), and for each slot what is
//!   being copied out of it or into it (`errands`), and the cuts of its conversation that were made so far.
//! - In: prompts, before they are fed, and the steps of each slot. Out: the slot that a prompt goes to, after whatever has to be
//!   saved and restored for that.
//! - What is decided is pure (`policy`). Copies go in slices between the steps of other slots.
//! - Invariants: host memory that is kept, being filled or being written is never more than the limit; only what somebody asks for by
//!   name (`requests`) may go beyond that. A file that cannot be used costs time, never a wrong token.

pub(crate) mod metrics;
pub(crate) mod policy;
pub(crate) mod requests;

mod disk;
mod errands;
mod files;
mod memory;
mod options;
mod store;

pub use options::PrefixOptions;
pub(crate) use store::PrefixStore;
