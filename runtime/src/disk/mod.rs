//! Station `disk`: spans of files to bytes in memory.
//!
//! Owns: open files, one read queue's ring or threads, and every buffer that a read is filling.
//! In: a [`Read`], any span of any file of the source with a [`crate::base::region::HostBuffer`] by value.
//! Out: a [`Completion`] with the buffer, and where in it the wanted bytes lie, or a [`DiskError`].
//!
//! Knows files and spans, nothing of experts or stores. Three paths give the same bytes: a ring with registered buffers,
//! a ring without, a pool of pread threads; [`open_queue`] takes the first that works and says what was lost.
//! Reads go past the page cache wherever a real read has shown that this works.
//!
//! Invariants:
//! - what is in flight is owned by its queue, and a queue that is dropped waits for it;
//! - a read is done only when each wanted byte has been delivered: `progress` is the one place that decides it, for the
//!   real paths and for the simulated disk alike;
//! - every queue is bounded by its depth, every repetition by a limit.

#![deny(unsafe_code)]

mod busy;
mod direct;
mod drive_identity;
mod error;

#[allow(unsafe_code, reason = "island: maps files, and asks the kernel about them")]
mod file_probe;

mod in_flight;
mod modelled;
mod open;
mod pool;
pub mod profile;
mod progress;
mod queue;

#[allow(unsafe_code, reason = "island: registers memory with the kernel")]
mod registered;

#[allow(unsafe_code, reason = "island: the ring's entries point at memory that the kernel writes")]
mod ring;

#[allow(unsafe_code, reason = "island: makes the ring's first read")]
mod ring_setup;

#[cfg(feature = "simulation")]
mod simulated;

mod source;

#[allow(unsafe_code, reason = "island: two system calls that the standard library lacks")]
mod sys;

pub use direct::{AlignFoundBy, DirectReport};
pub use drive_identity::DriveIdentity;
pub use error::DiskError;
pub use file_probe::{FileAttributes, MappedFile, process_cpu};
#[cfg(test)]
pub(crate) use modelled::Schedule;
pub use modelled::{DriveModel, ModelledQueue};
pub use open::{ReadPath, ReadPathReport, open_queue};
pub use queue::{Completion, PushRefused, Read, ReadCounters, ReadQueue};
#[cfg(feature = "simulation")]
pub use simulated::{Faults, SimulatedFile, SimulatedQueue};
pub use source::{SourceFile, buffer_bytes_for, buffer_bytes_for_span};
pub use sys::{drain_eventfd, new_eventfd, wait_eventfd};
