//! A disk made from a seed: the same queue, with every fault that a drive and a kernel have.
//!
//! In: files in memory (or real ones), odds of each fault, a seed. Out: as every [`ReadQueue`]. Equal seed, equal
//! pushes and polls: equal order, equal faults, so a failing seed is all that is needed to see it again.
//!
//! Time is a counter: each attempt of a read ends a random number of ticks later, and its bytes reach the buffer only
//! then, so a reader that does not wait finds old bytes. What an answer means is decided by `progress`, the code of the
//! real paths.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::DiskError;
use super::in_flight::{Begun, FileFacts, InFlight};
use super::progress::{Attempt, Outcome};
use super::queue::{Completion, PushRefused, Read, ReadCounters, ReadQueue};
use super::source::SourceFile;
use crate::base::limits::READ_DEPTH_MAX;

/// Odds of each fault, in thousandths of an attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// A short answer: 1 byte, 512 bytes, half, all but one, or any number between.
    pub short_permille: u32,
    /// EINTR or EAGAIN.
    pub interrupted_permille: u32,
    /// EIO.
    pub failed_permille: u32,
    /// EINVAL, EOPNOTSUPP or EFAULT of a direct attempt.
    pub refused_permille: u32,
    /// One flipped bit in what an attempt gives, as a drive or a cable that says nothing of it.
    pub flipped_permille: u32,
    /// Ticks that an attempt takes at most; 0: reads end in the order in which they began.
    pub latency_ticks_max: u32,
}

enum Content {
    Memory(Arc<[u8]>),
    Real(Arc<SourceFile>),
}

/// A file of the simulated disk.
pub struct SimulatedFile {
    path: PathBuf,
    opened_len_bytes: u64,
    align_bytes: u32,
    content: Content,
}

impl SimulatedFile {
    /// A file of these bytes, with this alignment of direct reads (1: buffered).
    ///
    /// # Panics
    /// When the alignment is no power of two.
    pub fn in_memory(path: impl Into<PathBuf>, bytes: impl Into<Arc<[u8]>>, align_bytes: u32) -> Self {
        assert!(align_bytes.is_power_of_two(), "an alignment of {align_bytes} B");
        let bytes = bytes.into();
        let opened_len_bytes = bytes.len() as u64;
        Self { path: path.into(), opened_len_bytes, align_bytes, content: Content::Memory(bytes) }
    }

    /// A real file, read with the faults on top.
    pub fn real(file: Arc<SourceFile>) -> Self {
        Self {
            path: file.path().to_owned(),
            opened_len_bytes: file.len_bytes(),
            align_bytes: file.direct().align_bytes(),
            content: Content::Real(file),
        }
    }

    /// The same file, which had `len_bytes` when it was opened: with fewer bytes than that it has been cut since.
    pub fn opened_with(mut self, len_bytes: u64) -> Self {
        self.opened_len_bytes = len_bytes;
        self
    }

    fn read(&self, attempt: Attempt, len: usize, memory: &mut [u8]) -> Result<usize, i32> {
        match &self.content {
            Content::Memory(bytes) => {
                let at = usize::try_from(attempt.file_offset_bytes).unwrap_or(usize::MAX).min(bytes.len());
                let len = len.min(bytes.len() - at);
                memory[attempt.buffer_offset_bytes..][..len].copy_from_slice(&bytes[at..at + len]);
                Ok(len)
            }
            Content::Real(file) => {
                // A real direct read has a real alignment; the page cache gives any shorter answer.
                let len_bytes = u32::try_from(len).expect("invariant: not above the attempt's length");
                file.read(Attempt { len_bytes, is_direct: false, ..attempt }, memory)
            }
        }
    }
}

impl FileFacts for SimulatedFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn opened_len_bytes(&self) -> u64 {
        self.opened_len_bytes
    }

    fn now_len_bytes(&self) -> u64 {
        match &self.content {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::Real(file) => file.now_len_bytes(),
        }
    }

    fn align_bytes(&self) -> u32 {
        self.align_bytes
    }
}

struct Under {
    read: InFlight,
    /// When its attempt ends, and as which of those of one tick.
    due: (u64, u64),
}

/// A [`ReadQueue`] over simulated files.
pub struct SimulatedQueue {
    files: Vec<SimulatedFile>,
    faults: Faults,
    depth: usize,
    random: SplitMix,
    now: u64,
    attempts: u64,
    under_way: Vec<Under>,
    ended: Vec<Completion>,
    counters: ReadCounters,
}

impl SimulatedQueue {
    /// A queue of `depth` reads over `files`.
    ///
    /// # Panics
    /// When the depth is 0 or above [`READ_DEPTH_MAX`].
    pub fn new(seed: u64, files: Vec<SimulatedFile>, faults: Faults, depth: u32) -> Self {
        assert!((1..=READ_DEPTH_MAX).contains(&depth), "a queue depth of {depth}");
        let depth = depth as usize;
        Self {
            files,
            faults,
            depth,
            random: SplitMix(seed),
            now: 0,
            attempts: 0,
            under_way: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
            counters: ReadCounters::default(),
        }
    }

    fn start(&mut self, read: InFlight) {
        let due = self.now + 1 + self.random.below(u64::from(self.faults.latency_ticks_max) + 1);
        self.attempts += 1;
        self.under_way.push(Under { read, due: (due, self.attempts) });
    }

    /// Ends every attempt that is due.
    fn end_due(&mut self) {
        loop {
            let due = |under: &(usize, &Under)| under.1.due;
            let Some((index, first)) = self.under_way.iter().enumerate().min_by_key(due) else { return };
            if first.due.0 > self.now {
                return;
            }
            let mut read = self.under_way.swap_remove(index).read;
            let answer = self.answer(&mut read);
            match read.progress.finish(answer, &mut self.counters) {
                Outcome::Again => self.start(read),
                Outcome::Done(range) => self.end(read, Ok(range)),
                Outcome::Failed(failure) => self.end(read, Err(failure)),
            }
        }
    }

    fn end(&mut self, read: InFlight, result: Result<std::ops::Range<usize>, super::progress::Failure>) {
        let file = &self.files[read.file];
        self.ended.push(read.end(result, file));
    }

    /// What the kernel says to a read's attempt.
    fn answer(&mut self, read: &mut InFlight) -> Result<usize, i32> {
        let attempt = read.progress.next();
        let faults = self.faults;
        if self.random.chance(faults.interrupted_permille) {
            return Err(self.random.pick(&[libc::EINTR, libc::EAGAIN]));
        }
        if self.random.chance(faults.failed_permille) {
            return Err(libc::EIO);
        }
        if attempt.is_direct && self.random.chance(faults.refused_permille) {
            return Err(self.random.pick(&[libc::EINVAL, libc::EOPNOTSUPP, libc::EFAULT]));
        }
        let mut len = attempt.len_bytes as usize;
        if self.random.chance(faults.short_permille) {
            let any = usize::try_from(self.random.below(u64::from(attempt.len_bytes))).unwrap_or(0);
            len = self.random.pick(&[1, 512, len / 2, len - 1, any]).clamp(1, len);
        }
        let memory = read.buffer.as_mut_slice();
        let got = self.files[read.file].read(attempt, len, memory)?;
        let (is_flipped, at) = (self.random.chance(faults.flipped_permille), self.random.below(got as u64));
        if is_flipped && got > 0 {
            let at = usize::try_from(at).expect("invariant: below a length");
            memory[attempt.buffer_offset_bytes + at] ^= 1 << self.random.below(8);
        }
        Ok(got)
    }
}

impl ReadQueue for SimulatedQueue {
    fn push(&mut self, read: Read) -> Result<(), PushRefused> {
        if self.in_flight() == self.depth {
            return Err(PushRefused { read, depth: self.depth });
        }
        let file = &self.files[usize::from(read.file.0)];
        match InFlight::begin(read, file, &mut self.counters) {
            Begun::Reading(read) => self.start(read),
            Begun::Ended(completion) => self.ended.push(completion),
        }
        Ok(())
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), DiskError> {
        self.now += 1;
        self.end_due();
        while wait && self.ended.is_empty() {
            let Some(next) = self.under_way.iter().map(|under| under.due.0).min() else { break };
            self.now = next;
            self.end_due();
        }
        done.append(&mut self.ended);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.under_way.len() + self.ended.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn counters(&self) -> ReadCounters {
        self.counters
    }
}

/// SplitMix64 (Steele, Lea & Flood 2014): a full-period generator in three multiplications, good for fault schedules.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`, which is small against 2^64, so the remainder's bias does not show.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn chance(&mut self, permille: u32) -> bool {
        // Drawn also for odds of 0, so that one fault's odds do not shift the others' schedule.
        self.below(1000) < u64::from(permille)
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap_or(0)]
    }
}
