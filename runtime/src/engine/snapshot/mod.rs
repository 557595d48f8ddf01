//! Conversations taken out of the device and brought back, by way of host memory and files.
//!
//! - Owns: nothing of the engine but two small staging buffers. In: a [`crate::engine::Session`]. Out: a [`Snapshot`], a file, a
//!   session that goes on as if it had never stopped.
//! - A snapshot holds rows by position, so it fits any session of its model that is long enough, whatever its rings are.
//! - Full layers keep every position; sliding ones only what a ring still holds. So a conversation can be taken up only at
//!   its [`Cut`]s: where one was kept, the rows of the window before it are there. `value.rs` has the rule.
//! - Copies go in slices of at most 8 MiB, so that whoever drives the engine can do other things between them.
//! - Invariants: what is brought back has the bits that were taken out; a file that is not whole, or of another model, is
//!   refused with a reason, and nothing is sized by what it says before that was compared with its length.

pub mod shape;

pub mod walk;

pub mod value;

pub(super) mod porter;

pub mod moving;

mod slices;

pub mod file;

mod error;

pub use error::SnapshotError;
pub use moving::{Restoring, Saving};
pub use shape::CacheShape;
pub use value::{Cut, Snapshot};
