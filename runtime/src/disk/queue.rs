//! The queue of reads, as everything above sees it.
//!
//! Owns: the trait and its words. In: a [`Read`] with the buffer that is to be filled, by value. Out: a
//! [`Completion`] with the same buffer, by value, full or with the reason why it is not.
//!
//! Invariants that every queue keeps:
//! - what is in flight is owned by the queue: nobody else can touch a buffer that the kernel may still write;
//! - every read that was taken comes back exactly once, in any order;
//! - no more than `depth` reads are taken and not yet given back;
//! - a queue that is dropped first waits for what is in flight.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use super::DiskError;
use crate::base::ids::FileIndex;
use crate::base::region::{HostBuffer, HostRegion};

/// One read: any offset, any length from 1 on. Rounding to the file's alignment is the queue's work.
#[derive(Debug)]
pub struct Read {
    /// The file, by its place in the list that the queue was opened with.
    pub file: FileIndex,
    /// Where the wanted bytes begin in the file.
    pub offset_bytes: u64,
    /// How many are wanted.
    pub len_bytes: u32,
    /// Where they go; at least [`super::buffer_bytes_for_span`] long.
    pub buffer: HostBuffer,
    /// The caller's own number; comes back with the completion.
    pub tag: u64,
}

/// A read that ended.
#[derive(Debug)]
pub struct Completion {
    /// The read's own number.
    pub tag: u64,
    /// The read's buffer.
    pub buffer: HostBuffer,
    /// Where in the buffer the wanted bytes lie. Its start is the file offset's remainder by the file's alignment.
    pub result: Result<Range<usize>, DiskError>,
}

/// A push that found the queue full; gives the read back.
#[derive(Debug, thiserror::Error)]
#[error("all {depth} reads of the queue are in flight: poll, then push again")]
pub struct PushRefused {
    /// The read, untouched.
    pub read: Read,
    /// The queue's depth.
    pub depth: usize,
}

/// What a queue did since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// Reads that ended well.
    pub reads: u64,
    /// Reads that ended with an error.
    pub failed: u64,
    /// Bytes that callers wanted, of the reads that ended well.
    pub wanted_bytes: u64,
    /// Bytes that the kernel delivered, rounding and repetition included.
    pub read_bytes: u64,
    /// Times that the kernel gave less than was asked for, before all wanted bytes were there.
    pub short_reads: u64,
    /// Times that a signal, or a kernel short of memory, asked to try again.
    pub interruptions: u64,
    /// Times that a failed read was tried again.
    pub retries: u64,
    /// Reads that direct I/O refused, or could not move forward, and that went on through the page cache.
    pub buffered_fallbacks: u64,
    /// Reads that went to pread threads because the kernel refused the ring after it was opened.
    pub moved_to_pool: u64,
    /// Nanoseconds in which at least one read was under way, from its push to its end. A pread thread knows its end; of a ring's reads
    /// those are known that were waited for, and the others count as long as these took on average. 0 for a simulated disk, which
    /// has no clock.
    pub busy_ns: u64,
    /// Reads that were looked for when the drive of a [`super::ModelledQueue`] would have given them, and had not come.
    pub late_reads: u64,
}

impl ReadCounters {
    /// Adds what another queue, or one read, counted.
    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.failed += other.failed;
        self.wanted_bytes += other.wanted_bytes;
        self.read_bytes += other.read_bytes;
        self.short_reads += other.short_reads;
        self.interruptions += other.interruptions;
        self.retries += other.retries;
        self.buffered_fallbacks += other.buffered_fallbacks;
        self.moved_to_pool += other.moved_to_pool;
        self.busy_ns += other.busy_ns;
        self.late_reads += other.late_reads;
    }
}

/// A bounded queue of reads, with owned buffers.
pub trait ReadQueue: Send {
    /// Takes a read and starts it.
    ///
    /// A read beyond the end of the file comes back as a completion with [`DiskError::Truncated`].
    ///
    /// # Errors
    /// [`PushRefused`] when `depth` reads are in flight.
    ///
    /// # Panics
    /// When the file is not one of the queue's, the length is 0, or the buffer is too short.
    fn push(&mut self, read: Read) -> Result<(), PushRefused>;

    /// Appends the reads that ended to `done`. With `wait`, waits until at least one has, unless none is in flight.
    ///
    /// # Errors
    /// [`DiskError::Stalled`] when none ended within [`READ_STALL_MAX`](crate::base::limits::READ_STALL_MAX); [`DiskError::CompletionsLost`] when the ring
    /// can no longer be relied on.
    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), DiskError>;

    /// Takes note that reads will fill buffers of one more region: a queue that registers memory registers it.
    ///
    /// # Errors
    /// Why it is not registered. Its buffers work all the same.
    fn add_region(&mut self, region: &HostRegion) -> Result<(), DiskError> {
        let _ = region;
        Ok(())
    }

    /// Lets go of a region, so that its memory goes back to the system when its last owner drops. Reads into it that are
    /// under way keep it until they end.
    ///
    /// # Errors
    /// When the kernel does not let go: the queue then keeps the region.
    fn remove_region(&mut self, region: &HostRegion) -> Result<(), DiskError> {
        let _ = region;
        Ok(())
    }

    /// From now on, adds to `eventfd` whenever a read may have ended, so that somebody who waits for other things as well
    /// knows when to poll.
    ///
    /// # Errors
    /// [`DiskError::WakeRefused`] when this queue cannot.
    fn wake_by(&mut self, eventfd: BorrowedFd<'_>) -> Result<(), DiskError> {
        let _ = eventfd;
        Err(DiskError::WakeRefused { source: std::io::ErrorKind::Unsupported.into() })
    }

    /// Reads that were taken and not yet given back.
    fn in_flight(&self) -> usize;

    /// The most reads that may be in flight.
    fn depth(&self) -> usize;

    /// What the queue did so far.
    fn counters(&self) -> ReadCounters;
}
