//! What can go wrong between a span on disk and bytes in memory.
//!
//! Owns: [`DiskError`]. Every variant has the facts of one cause, and the next action where there is one.

use std::io;
use std::path::PathBuf;

use super::ReadPath;
use crate::base::region::RegionError;

/// What can go wrong between a span on disk and bytes in memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The file cannot be opened, or asked for its length.
    #[error("{}: cannot be opened for reading", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The path names something else than a regular file.
    #[error("{}: not a regular file", .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The kernel failed a read, also after the retries that its error allows.
    #[error(
        "{}: read of {len_bytes} B at byte {offset_bytes} failed after {retries} retries \
         (errno {errno}, alignment {align_bytes} B)",
        .path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Where the wanted bytes begin.
        offset_bytes: u64,
        /// How many were wanted.
        len_bytes: u32,
        /// The file's alignment, to which the read was rounded outward.
        align_bytes: u32,
        /// Times that it was tried again.
        retries: u32,
        /// The error's number.
        errno: i32,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The file ends before the wanted bytes do.
    #[error(
        "{}: wanted {want_bytes} B at byte {offset_bytes}, got {got_bytes} B: the file had {opened_len_bytes} B when \
         it was opened and has {now_len_bytes} B now; truncated or replaced, make or fetch it again",
        .path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the wanted bytes begin.
        offset_bytes: u64,
        /// How many were wanted.
        want_bytes: u64,
        /// How many of them are there.
        got_bytes: u64,
        /// The file's length when it was opened.
        opened_len_bytes: u64,
        /// Its length now.
        now_len_bytes: u64,
    },
    /// io_uring cannot be used here. `hint` names the likely causes.
    #[error("{call} failed ({source}): {hint}")]
    RingUnavailable {
        /// The call, or the step of the set-up, that failed.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
        /// Likely causes and their remedies.
        hint: String,
    },
    /// Nobody can be told that a read has ended.
    #[error(
        "no eventfd for the end of reads ({source}): raise the process's limit of open files (ulimit -n)"
    )]
    WakeRefused {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel says that it dropped completions, so some reads would never end.
    #[error("io_uring lost {lost} completions: the reads in flight are lost, open the source again")]
    CompletionsLost {
        /// How many.
        lost: u32,
    },
    /// No read ended for a long time. The queue keeps waiting when it is polled again.
    #[error("no read of {in_flight} in flight ended within {waited_s} s: the drive does not answer")]
    Stalled {
        /// Reads in flight.
        in_flight: usize,
        /// Seconds waited.
        waited_s: u64,
    },
    /// No thread of the pread pool could be started.
    #[error("no thread for reading could be started: raise the limit of processes (ulimit -u)")]
    PoolThreads {
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The read path that was asked for is not to be had.
    #[error("read path \"{wanted}\" cannot be used here: {why}")]
    PathImpossible {
        /// The path asked for.
        wanted: ReadPath,
        /// What stands against it.
        why: String,
    },
    /// No such read path.
    #[error("no read path \"{found}\": it is ring, ring-plain or pool")]
    PathUnknown {
        /// What was written.
        found: String,
    },
    /// The queue depth is out of range.
    #[error("a queue depth of {wanted}: it is 1 to {max}")]
    Depth {
        /// The depth asked for.
        wanted: u32,
        /// The deepest queue.
        max: u32,
    },
    /// A saved profile cannot be read or written.
    #[error("{}: cannot {call} the drive's profile ({source}): check the folder's permissions and room", .path.display())]
    ProfileFile {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A saved profile is none.
    #[error("{}: no profile of a drive ({why}): remove it, and measure again with flint-rt disk-profile", .path.display())]
    ProfileInvalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Memory for a probe read could not be had.
    #[error("no memory for a probe read")]
    Memory(#[from] RegionError),
}

impl DiskError {
    /// Whether the bytes on disk, and not the machine around them, are at fault: then the store is to be verified.
    pub fn is_data_damage(&self) -> bool {
        matches!(self, Self::Truncated { .. })
    }

    /// Whether polling again may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Stalled { .. })
    }
}
