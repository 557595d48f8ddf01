//! The plainest loops that read a file: what the read queue is measured against.
//!
//! - Owns: a ring, its buffers and its file. In: a count of records. Out: their time.
//! - Invariants: a loop ends only when the kernel has given back every buffer. An answer that is short or an error ends the
//!   bench: a number beside it would mean nothing.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use flint_rt::base::region::{HostBuffer, HostRegion, RegionError};
use flint_rt::disk::SourceFile;
use io_uring::{IoUring, opcode, squeue, types};

/// How buffers are registered with the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registered {
    /// Each by itself, as fio does.
    Each,
    /// All of them as one piece of memory.
    Whole,
}

/// Buffers of one region that loops use in turns, so that what is compared has the very same pages: how well they lie
/// together in physical memory moves a rate by more than most of what is looked for.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) region: HostRegion,
    pub(crate) buffers: Rc<RefCell<Vec<HostBuffer>>>,
}

impl Memory {
    /// `count` buffers of `buffer_bytes` each, their pages there.
    pub(crate) fn new(buffer_bytes: usize, count: u32) -> Result<Self, RegionError> {
        let region = HostRegion::new(HostRegion::bytes_for(buffer_bytes, count as usize))?;
        let mut buffers = region.split(buffer_bytes, count as usize);
        buffers.iter_mut().for_each(|buffer| buffer.as_mut_slice().fill(1));
        Ok(Self { region, buffers: Rc::new(RefCell::new(buffers)) })
    }
}

/// An io_uring loop that keeps its depth.
pub(crate) struct RawLoop {
    // Dropped first: closing the ring ends the kernel's use of the memory.
    ring: IoUring,
    _file: File,
    memory: Memory,
    registered: Registered,
    places: u64,
    turn: u64,
}

impl RawLoop {
    /// Over `file`, from record `turn` on, with as many reads under way as there are buffers.
    pub(crate) fn new(
        file: &SourceFile,
        memory: Memory,
        turn: u64,
        registered: Registered,
    ) -> io::Result<Self> {
        let Memory { region, buffers } = &memory;
        let buffers = buffers.borrow();
        let depth = u32::try_from(buffers.len()).expect("a depth of 32 bits");
        let ring = IoUring::builder().dontfork().build(depth.next_power_of_two())?;
        let raw = open_direct(file.path())?;
        let vector = |start: *mut u8, len: usize| libc::iovec { iov_base: start.cast(), iov_len: len };
        let vectors: Vec<libc::iovec> = match registered {
            // Buffer `i` is the one that begins `i` buffers behind the region's start, whatever place it has in the list.
            Registered::Each => {
                let mut buffers: Vec<&HostBuffer> = buffers.iter().collect();
                buffers.sort_by_key(|buffer| buffer.offset_bytes());
                buffers.iter().map(|buffer| vector(buffer.start().as_ptr(), buffer.len_bytes())).collect()
            }
            Registered::Whole => vec![vector(region.base().as_ptr(), region.len_bytes())],
        };
        // SAFETY: the vectors lie in the region, which outlives the ring.
        unsafe { ring.submitter().register_buffers(&vectors) }?;
        ring.submitter().register_files(&[raw.as_raw_fd()])?;
        let places = super::places(file);
        drop(buffers);
        Ok(Self { ring, _file: raw, memory, registered, places, turn })
    }

    /// Reads so many records.
    pub(crate) fn run(&mut self, records: u64, record_bytes: u32) -> Duration {
        let begin = Instant::now();
        let buffers = self.memory.buffers.borrow_mut();
        let mut free: Vec<usize> = (0..buffers.len()).collect();
        let (mut begun, mut ended) = (0, 0);
        while ended < records {
            while begun < records
                && let Some(slot) = free.pop()
            {
                self.turn += 1;
                let index = match self.registered {
                    Registered::Each => buffers[slot].offset_bytes() / buffers[slot].len_bytes(),
                    Registered::Whole => 0,
                };
                let index = u16::try_from(index).expect("few buffers");
                let target = buffers[slot].start().as_ptr();
                let entry = opcode::ReadFixed::new(types::Fd(0), target, record_bytes, index)
                    .offset(super::offset(self.turn, self.places))
                    .build()
                    .flags(squeue::Flags::FIXED_FILE)
                    .user_data(slot as u64);
                // SAFETY: the buffer is ours alone and is left alone until its completion is taken, below.
                unsafe { self.ring.submission().push(&entry) }.expect("an entry for each buffer");
                begun += 1;
            }
            self.ring.submit_and_wait(1).expect("the ring works");
            for completion in self.ring.completion() {
                assert_eq!(u32::try_from(completion.result()), Ok(record_bytes), "a read came whole");
                free.push(usize::try_from(completion.user_data()).expect("a slot"));
                ended += 1;
            }
        }
        begin.elapsed()
    }
}

/// Opens a file past the page cache, or through it where its file system knows no other way.
pub(crate) fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .or_else(|_| OpenOptions::new().read(true).open(path))
}

/// Fills `buffer` from `offset_bytes` on.
pub(crate) fn pread(file: &File, buffer: &mut HostBuffer, offset_bytes: u64) -> io::Result<()> {
    file.read_exact_at(buffer.as_mut_slice(), offset_bytes)
}

/// Whether memory that this process takes from now on has small pages only.
pub(crate) fn deny_huge_pages(is_denied: bool) {
    // SAFETY: the option takes numbers only.
    let rc = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(is_denied), 0, 0, 0) };
    assert!(rc == 0, "PR_SET_THP_DISABLE: {}", io::Error::last_os_error());
}
