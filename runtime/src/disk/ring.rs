//! The read path through io_uring.
//!
//! Owns: one ring, and every read that was pushed, with its buffer, until its completion is given out.
//! In and out: as every [`ReadQueue`].
//!
//! Invariants:
//! - a read has at most one entry in the ring, and there are at most `depth` reads, so neither queue of the ring can
//!   overflow: both have at least `depth` entries;
//! - a read whose entry the kernel has taken stays in its slot, buffer included, until its completion is reaped;
//! - a kernel that refuses `enter` after the ring was opened (a filter set late) costs no read: what it has not taken
//!   moves to a pread pool, what it has taken still completes.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};

use super::DiskError;
use super::busy::SeenBusyTime;
use super::in_flight::{Begun, InFlight};
use super::pool::PoolQueue;
use super::progress::Outcome;
use super::queue::{Completion, PushRefused, Read, ReadCounters, ReadQueue};
use super::registered::Registered;
use super::ring_setup::{enter, register_files, set_up};
use super::source::SourceFile;
use super::sys::wake;
use crate::base::limits::READ_STALL_MAX;
use crate::base::region::HostRegion;

/// Between two looks at the completion queue when the kernel refuses to be waited for.
const REFUSED_SLEEP: Duration = Duration::from_micros(100);

/// Between two tries to submit when the kernel is short of memory.
const BUSY_SLEEP: Duration = Duration::from_millis(1);

/// What a ring has of the things that may be refused.
#[derive(Debug)]
pub(super) struct RingState {
    /// Bytes of registered buffers.
    pub(super) registered_bytes: u64,
    pub(super) has_registered_files: bool,
    /// What was tried and refused.
    pub(super) lost: Vec<DiskError>,
}

/// A [`ReadQueue`] over one io_uring.
pub(super) struct RingQueue {
    // Dropped first: closing the ring ends the kernel's use of files and regions.
    ring: IoUring,
    files: Vec<Arc<SourceFile>>,
    registered: Registered,
    has_registered_files: bool,
    depth: usize,
    /// Taken and not yet given back, wherever they are.
    in_flight: usize,
    slots: Vec<Option<InFlight>>,
    free_slots: Vec<usize>,
    /// Slots whose read the kernel has not taken, in the order of their entries.
    unsent: VecDeque<usize>,
    /// Reads that ended without the ring.
    ended: Vec<Completion>,
    /// Completions just taken from the ring.
    reaped: Vec<(u64, i32)>,
    /// The kernel refuses `enter`; reads go to the pool.
    is_refused: bool,
    pool: Option<PoolQueue>,
    /// Told by the kernel of each completion, and by us of reads that end without it.
    wake: Option<OwnedFd>,
    counters: ReadCounters,
    busy: SeenBusyTime,
    opened: Instant,
}

impl RingQueue {
    /// Opens a ring for `depth` reads; with `register`, with registered buffers and files where they are allowed.
    ///
    /// # Errors
    /// [`DiskError::RingUnavailable`] where no ring works here.
    pub(super) fn open(
        files: Vec<Arc<SourceFile>>,
        regions: &[HostRegion],
        register: bool,
        depth: u32,
    ) -> Result<(Self, RingState), DiskError> {
        let ring = set_up(depth, &files[0])?;
        let mut state = RingState { registered_bytes: 0, has_registered_files: false, lost: Vec::new() };
        let mut registered = Registered::default();
        if register && !regions.is_empty() {
            let refused;
            (registered, refused) = Registered::of(&ring, regions);
            state.registered_bytes = registered.bytes();
            state.lost.extend(refused);
        }
        if register {
            match register_files(&ring, files.iter().map(AsRef::as_ref)) {
                Ok(()) => state.has_registered_files = true,
                Err(error) => state.lost.push(error),
            }
        }
        let depth = depth as usize;
        let queue = Self {
            ring,
            files,
            registered,
            has_registered_files: state.has_registered_files,
            depth,
            in_flight: 0,
            slots: (0..depth).map(|_| None).collect(),
            free_slots: (0..depth).rev().collect(),
            unsent: VecDeque::with_capacity(depth),
            ended: Vec::with_capacity(depth),
            reaped: Vec::with_capacity(depth),
            is_refused: false,
            pool: None,
            wake: None,
            counters: ReadCounters::default(),
            busy: SeenBusyTime::default(),
            opened: Instant::now(),
        };
        Ok((queue, state))
    }

    /// Reads that the kernel has.
    fn in_kernel(&self) -> usize {
        self.depth - self.free_slots.len() - self.unsent.len()
    }

    /// Puts the next attempt of a slot's read into the submission queue.
    fn queue_entry(&mut self, slot: usize) {
        self.unsent.push_back(slot);
        if self.is_refused {
            return;
        }
        let read = self.slots[slot].as_ref().expect("invariant: a slot that is queued has a read");
        let attempt = read.progress.next();
        // Within the buffer: the read's span was compared with its length at the push.
        let target = read.buffer.start().as_ptr().wrapping_add(attempt.buffer_offset_bytes);
        let second = usize::from(!attempt.is_direct);
        // With FIXED_FILE the kernel takes the number for an index of its table.
        let (descriptor, flags) = if self.has_registered_files {
            let index = i32::try_from(2 * read.file + second).expect("invariant: a FileIndex is 16 bits");
            (Fd(index), squeue::Flags::FIXED_FILE)
        } else {
            (Fd(self.files[read.file].descriptors()[second]), squeue::Flags::empty())
        };
        let len = attempt.len_bytes;
        let entry = match self.registered.holding(target.addr(), len as usize) {
            Some(index) => opcode::ReadFixed::new(descriptor, target, len, index)
                .offset(attempt.file_offset_bytes)
                .build(),
            None => opcode::Read::new(descriptor, target, len).offset(attempt.file_offset_bytes).build(),
        };
        let entry = entry.flags(flags).user_data(slot as u64);
        // SAFETY:
        // - The target is part of the read's own buffer: mapped, written by nobody else, and kept in the slot until
        //   the completion of this very entry is reaped (or leaked, in `drop`).
        // - The descriptor, or the table's index, is of a file that `self.files` keeps open.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("invariant: one entry a slot, and as many entries as slots");
    }

    /// Calls the kernel: hands over what is queued, and waits for `want` completions.
    fn enter(&mut self, want: usize) {
        if enter(&self.ring, want).is_err() {
            self.is_refused = true;
        }
        let left = self.ring.submission().len();
        while self.unsent.len() > left {
            self.unsent.pop_front();
        }
    }

    /// Gets queued reads going: through the ring, or through the pool when the ring is refused.
    fn send(&mut self) -> Result<(), DiskError> {
        if !self.is_refused {
            self.enter(0);
        }
        if self.unsent.is_empty() {
            return Ok(());
        }
        if !self.is_refused {
            // The kernel was short of memory, and tells of no read that it has not taken: whoever sleeps is to poll again.
            if let Some(eventfd) = &self.wake {
                wake(eventfd.as_fd());
            }
            return Ok(());
        }
        let pool = match &mut self.pool {
            Some(pool) => pool,
            none => {
                let mut pool = PoolQueue::start(self.files.clone(), self.depth)?;
                if let Some(eventfd) = &self.wake {
                    pool.wake_by(eventfd.as_fd())?;
                }
                none.insert(pool)
            }
        };
        // The entries of these reads stay in the ring's memory, but nothing enters the kernel for them any more.
        for slot in self.unsent.drain(..) {
            let read = self.slots[slot].take().expect("invariant: a slot that is queued has a read");
            self.free_slots.push(slot);
            self.counters.moved_to_pool += 1;
            pool.adopt(read);
        }
        Ok(())
    }

    /// Takes completions from the ring; ends or continues their reads. `is_waited` says that none was there a moment ago.
    fn reap(&mut self, is_waited: bool, done: &mut Vec<Completion>) -> Result<(), DiskError> {
        if self.ring.submission().cq_overflow() && !self.is_refused {
            // Cannot be, by the first invariant. If it were, the kernel would hold completions back until it is called.
            self.enter(0);
        }
        let lost = {
            let completions = self.ring.completion();
            let lost = completions.overflow();
            self.reaped.extend(completions.map(|completion| (completion.user_data(), completion.result())));
            lost
        };
        for index in 0..self.reaped.len() {
            let (slot, answer) = self.reaped[index];
            let slot = usize::try_from(slot).expect("invariant: our own number of a slot");
            let read = self.slots[slot].as_mut().expect("invariant: one completion an entry");
            let answer = usize::try_from(answer).map_err(|_| -answer);
            let result = match read.progress.finish(answer, &mut self.counters) {
                Outcome::Again => {
                    self.queue_entry(slot);
                    continue;
                }
                Outcome::Done(range) => Ok(range),
                Outcome::Failed(failure) => Err(failure),
            };
            let read = self.slots[slot].take().expect("invariant: the read is in its slot");
            self.free_slots.push(slot);
            let open = self.slots.iter().flatten().map(|read| read.begun - self.opened).min();
            self.busy.end(read.begun - self.opened, self.opened.elapsed(), is_waited, open);
            let file = Arc::clone(&self.files[read.file]);
            done.push(read.end(result, file.as_ref()));
        }
        self.reaped.clear();
        if lost > 0 { Err(DiskError::CompletionsLost { lost }) } else { Ok(()) }
    }

    fn gather(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), DiskError> {
        let before = done.len();
        let begin = Instant::now();
        let mut is_waited = false;
        loop {
            done.append(&mut self.ended);
            self.reap(is_waited, done)?;
            if !self.unsent.is_empty() {
                self.send()?;
            }
            if let Some(pool) = &mut self.pool {
                pool.poll(false, done)?;
            }
            if !wait || done.len() > before || self.in_flight == 0 {
                return Ok(());
            }
            if begin.elapsed() >= READ_STALL_MAX {
                let waited_s = READ_STALL_MAX.as_secs();
                return Err(DiskError::Stalled { in_flight: self.in_flight, waited_s });
            }
            self.wait(done)?;
            is_waited = true;
        }
    }

    /// Waits a while for anything to end.
    fn wait(&mut self, done: &mut Vec<Completion>) -> Result<(), DiskError> {
        if !self.is_refused {
            if !self.unsent.is_empty() {
                thread::sleep(BUSY_SLEEP);
            }
            self.enter(1);
        } else if self.in_kernel() > 0 {
            thread::sleep(REFUSED_SLEEP);
        } else if let Some(pool) = &mut self.pool {
            pool.poll(true, done)?;
        }
        Ok(())
    }
}

impl ReadQueue for RingQueue {
    fn push(&mut self, read: Read) -> Result<(), PushRefused> {
        if self.in_flight == self.depth {
            return Err(PushRefused { read, depth: self.depth });
        }
        let file = &self.files[usize::from(read.file.0)];
        self.in_flight += 1;
        match InFlight::begin(read, file.as_ref(), &mut self.counters) {
            Begun::Ended(completion) => {
                self.ended.push(completion);
                if let Some(eventfd) = &self.wake {
                    wake(eventfd.as_fd());
                }
            }
            Begun::Reading(read) => {
                let slot = self.free_slots.pop().expect("invariant: fewer reads than slots");
                self.slots[slot] = Some(read);
                self.queue_entry(slot);
                // A pool that cannot start leaves the read queued; the next poll tries again and reports it.
                self.send().unwrap_or(());
            }
        }
        Ok(())
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), DiskError> {
        let before = done.len();
        let result = self.gather(wait, done);
        self.in_flight -= done.len() - before;
        result
    }

    fn wake_by(&mut self, eventfd: BorrowedFd<'_>) -> Result<(), DiskError> {
        let refused = |source| DiskError::WakeRefused { source };
        let eventfd = eventfd.try_clone_to_owned().map_err(refused)?;
        self.ring.submitter().register_eventfd(eventfd.as_raw_fd()).map_err(refused)?;
        self.wake = Some(eventfd);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn add_region(&mut self, region: &HostRegion) -> Result<(), DiskError> {
        // A ring that was opened without registered memory stays so: that was asked for, or refused.
        if self.registered.bytes() == 0 { Ok(()) } else { self.registered.add(&self.ring, region) }
    }

    fn remove_region(&mut self, region: &HostRegion) -> Result<(), DiskError> {
        self.registered.remove(&self.ring, region)
    }

    fn counters(&self) -> ReadCounters {
        let mut counters = self.counters;
        if let Some(pool) = &self.pool {
            counters.add(&pool.counters());
        }
        let open = self.slots.iter().flatten().map(|read| read.begun - self.opened);
        let open = open.fold(None, |open: Option<(Duration, Duration)>, begun| {
            Some(open.map_or((begun, begun), |(first, last)| (first.min(begun), last.max(begun))))
        });
        // What moved to the pool is counted there.
        counters.busy_ns += self.busy.ns(self.opened.elapsed(), open);
        counters
    }
}

impl Drop for RingQueue {
    /// Waits for what the kernel has. What does not end within [`READ_STALL_MAX`] is leaked, buffer and all: the kernel
    /// may still write there, so the memory must stay what it is.
    fn drop(&mut self) {
        let begin = Instant::now();
        loop {
            for completion in self.ring.completion() {
                let slot =
                    usize::try_from(completion.user_data()).expect("invariant: our own number of a slot");
                self.slots[slot] = None;
                self.free_slots.push(slot);
            }
            if self.in_kernel() == 0 || begin.elapsed() >= READ_STALL_MAX {
                break;
            }
            if self.is_refused {
                thread::sleep(REFUSED_SLEEP);
            } else {
                self.enter(1);
            }
        }
        for (slot, read) in self.slots.iter_mut().enumerate() {
            if !self.unsent.contains(&slot) {
                std::mem::forget(read.take());
            }
        }
    }
}
