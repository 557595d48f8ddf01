//! One read from its first try to its last byte, as arithmetic.
//!
//! Pure: no file, no clock, no buffer. Every queue (ring, pool, simulated) asks [`Progress`] what to read next and
//! tells it what the kernel answered, so the simulated faults try the code that the real paths run.
//!
//! In: a span, the file's alignment, the kernel's answers. Out: the next [`Attempt`], or where the wanted bytes lie.
//!
//! Invariants:
//! - a direct attempt begins, ends and lies in memory at multiples of the alignment;
//! - a read is done only when every wanted byte was delivered: a short answer is continued, whatever its length;
//! - an attempt that moved nothing forward is repeated through the page cache, which has no alignment and whose
//!   answer of 0 therefore means the end of the file and nothing else;
//! - every loop is bounded: interruptions and retries by their limits, short answers by the bytes they deliver.

use std::ops::Range;

use super::queue::ReadCounters;
use crate::base::limits::READ_RETRIES_MAX;
use crate::base::units::{align_down, align_up};

/// The longest single attempt. The kernel moves at most 2 GiB less a page at once; a power of two below it keeps
/// every cut aligned.
const ATTEMPT_BYTES_MAX: usize = 1 << 30;

/// Times that one read may be interrupted. Signals and memory shortage pass; a kernel that answers EAGAIN for ever
/// must not hold the queue.
const INTERRUPTIONS_MAX: u32 = 4096;

/// What to ask the kernel for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) file_offset_bytes: u64,
    pub(super) buffer_offset_bytes: usize,
    pub(super) len_bytes: u32,
    /// Through the `O_DIRECT` descriptor; else through the page cache.
    pub(super) is_direct: bool,
}

/// What the kernel's answer means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Ask for [`Progress::next`].
    Again,
    /// All wanted bytes are in the buffer, here.
    Done(Range<usize>),
    /// The read failed for good.
    Failed(Failure),
}

/// Why a read failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The file ended after this many of the wanted bytes.
    Ended { got_bytes: u64 },
    /// The kernel's error number.
    Errno { errno: i32, retries: u32 },
}

/// The state of one read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    /// File offset of the buffer's first byte; a multiple of `align`.
    start_bytes: u64,
    /// Bytes from there that a direct read asks for; a multiple of `align`.
    span_bytes: usize,
    /// Where the wanted bytes begin and end in the buffer.
    wanted_start: usize,
    wanted_end: usize,
    /// Bytes of the buffer, from its start, that are the file's.
    filled: usize,
    align: u32,
    is_direct: bool,
    retries: u32,
    interruptions: u32,
}

impl Progress {
    /// A read of `len_bytes` at `offset_bytes`, rounded outward to `align` (1 for a buffered file).
    ///
    /// # Panics
    /// When the length is 0, the span's end is no `i64` (the caller compared it with the file's length), or `align`
    /// is no power of two.
    pub(super) fn new(offset_bytes: u64, len_bytes: u32, align: u32, is_direct: bool) -> Self {
        assert!(len_bytes > 0, "a read of no bytes");
        assert!(align.is_power_of_two(), "an alignment of {align} B");
        let end = offset_bytes + u64::from(len_bytes);
        assert!(i64::try_from(end).is_ok(), "a read that ends at byte {end}");
        let start_bytes = align_down(offset_bytes, u64::from(align));
        let to_usize = |bytes| usize::try_from(bytes).expect("invariant: a u32 length and an alignment fit");
        Self {
            start_bytes,
            span_bytes: to_usize(align_up(end, u64::from(align)) - start_bytes),
            wanted_start: to_usize(offset_bytes - start_bytes),
            wanted_end: to_usize(end - start_bytes),
            filled: 0,
            align,
            is_direct,
            retries: 0,
            interruptions: 0,
        }
    }

    /// Bytes of buffer that the read may write.
    pub(super) fn span_bytes(&self) -> usize {
        self.span_bytes
    }

    /// Where the next attempt begins in the buffer: at the first byte that is missing, or, as direct I/O cannot
    /// begin there, at the multiple of the alignment below it.
    fn from(&self) -> usize {
        if self.is_direct { self.filled - self.filled % self.align as usize } else { self.filled }
    }

    /// What to ask the kernel for now.
    pub(super) fn next(&self) -> Attempt {
        let from = self.from();
        // Through the page cache nothing beyond the wanted bytes is needed.
        let end = if self.is_direct { self.span_bytes } else { self.wanted_end };
        let len = (end - from).min(ATTEMPT_BYTES_MAX);
        Attempt {
            file_offset_bytes: self.start_bytes + from as u64,
            buffer_offset_bytes: from,
            len_bytes: u32::try_from(len).expect("invariant: an attempt is at most 1 GiB"),
            is_direct: self.is_direct,
        }
    }

    /// Takes the kernel's answer to [`Progress::next`]: bytes delivered, or an error number.
    pub(super) fn finish(&mut self, answer: Result<usize, i32>, counters: &mut ReadCounters) -> Outcome {
        match answer {
            Ok(got) => self.took(got, counters),
            Err(errno) => self.failed(errno, counters),
        }
    }

    fn took(&mut self, got: usize, counters: &mut ReadCounters) -> Outcome {
        let asked = self.next().len_bytes as usize;
        if got > asked {
            // No kernel does this; if one did, memory beyond the read would have been written.
            return self.fail_with(libc::EPROTO, counters);
        }
        let reached = self.from() + got;
        counters.read_bytes += got as u64;
        if reached >= self.wanted_end {
            counters.reads += 1;
            counters.wanted_bytes += (self.wanted_end - self.wanted_start) as u64;
            return Outcome::Done(self.wanted_start..self.wanted_end);
        }
        if got < asked {
            counters.short_reads += 1;
        }
        if reached <= self.filled {
            if !self.is_direct {
                counters.failed += 1;
                let got_bytes = self.filled.saturating_sub(self.wanted_start) as u64;
                return Outcome::Failed(Failure::Ended { got_bytes });
            }
            self.go_buffered(counters);
        }
        self.filled = self.filled.max(reached);
        Outcome::Again
    }

    fn failed(&mut self, errno: i32, counters: &mut ReadCounters) -> Outcome {
        match errno {
            // ECANCELED: the thread that submitted the read ended, and the kernel took its requests back.
            libc::EINTR | libc::EAGAIN | libc::ECANCELED if self.interruptions < INTERRUPTIONS_MAX => {
                self.interruptions += 1;
                counters.interruptions += 1;
                Outcome::Again
            }
            // Direct I/O refused at use, though it was accepted at open: the alignment that this offset needs is
            // another (EINVAL), a lower layer of the file system has none (EOPNOTSUPP), or the kernel cannot pin
            // the memory that a driver mapped (EFAULT). The page cache can do all three.
            libc::EINVAL | libc::EOPNOTSUPP | libc::EFAULT if self.is_direct => {
                self.go_buffered(counters);
                Outcome::Again
            }
            // EFAULT through the page cache: the thread that submitted to the ring ended while the read waited for its
            // page, and the kernel (6.18) failed it in its place. From any other thread the same read works.
            libc::EIO | libc::EBUSY | libc::ENOMEM | libc::ETIMEDOUT | libc::EFAULT
                if self.retries < READ_RETRIES_MAX =>
            {
                self.retries += 1;
                counters.retries += 1;
                Outcome::Again
            }
            _ => self.fail_with(errno, counters),
        }
    }

    fn go_buffered(&mut self, counters: &mut ReadCounters) {
        self.is_direct = false;
        counters.buffered_fallbacks += 1;
    }

    fn fail_with(&mut self, errno: i32, counters: &mut ReadCounters) -> Outcome {
        counters.failed += 1;
        Outcome::Failed(Failure::Errno { errno, retries: self.retries })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs a read over `file` with the answers that `answer` makes of each attempt (`None`: all there is).
    fn run(
        file: &[u8],
        progress: &mut Progress,
        counters: &mut ReadCounters,
        mut answer: impl FnMut(Attempt) -> Result<Option<usize>, i32>,
    ) -> (Outcome, Vec<u8>) {
        let mut buffer = vec![0xAA; progress.span_bytes()];
        for _ in 0..100_000 {
            let attempt = progress.next();
            if attempt.is_direct {
                let align = u64::from(progress.align);
                assert_eq!(attempt.file_offset_bytes % align, 0);
                assert_eq!(attempt.buffer_offset_bytes as u64 % align, 0);
                assert_eq!(u64::from(attempt.len_bytes) % align, 0);
            }
            let at = usize::try_from(attempt.file_offset_bytes).unwrap().min(file.len());
            let there = &file[at..(at + attempt.len_bytes as usize).min(file.len())];
            let outcome = match answer(attempt) {
                Ok(short) => {
                    let got = short.unwrap_or(there.len()).min(there.len());
                    let target = attempt.buffer_offset_bytes;
                    buffer[target..target + got].copy_from_slice(&there[..got]);
                    progress.finish(Ok(got), counters)
                }
                Err(errno) => progress.finish(Err(errno), counters),
            };
            if outcome != Outcome::Again {
                return (outcome, buffer);
            }
        }
        panic!("a read that does not end");
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..251_u8).map(|step| step.wrapping_mul(31)).cycle().take(len).collect()
    }

    #[test]
    fn rounds_outward_and_says_where_the_bytes_lie() {
        let progress = Progress::new(4100, 10, 512, true);
        let attempt =
            Attempt { file_offset_bytes: 4096, buffer_offset_bytes: 0, len_bytes: 512, is_direct: true };
        assert_eq!(progress.next(), attempt);
        let wide = Progress::new(65_535, 2, 65_536, true);
        assert_eq!((wide.next().file_offset_bytes, wide.span_bytes()), (0, 131_072));
        let plain = Progress::new(4100, 10, 1, false);
        assert_eq!((plain.next().file_offset_bytes, plain.next().len_bytes), (4100, 10));
    }

    #[test]
    fn a_tail_that_ends_short_is_whole() {
        let file = bytes(1000);
        let mut counters = ReadCounters::default();
        let mut progress = Progress::new(900, 100, 512, true);
        let (outcome, buffer) = run(&file, &mut progress, &mut counters, |_| Ok(None));
        assert_eq!(outcome, Outcome::Done(388..488));
        assert_eq!(buffer[388..488], file[900..]);
        assert_eq!(counters.short_reads, 0);
    }

    #[test]
    fn a_short_answer_is_continued_at_the_multiple_below_it() {
        let mut counters = ReadCounters::default();
        let mut progress = Progress::new(0, 4096, 512, true);
        assert_eq!(progress.finish(Ok(1000), &mut counters), Outcome::Again);
        let attempt = progress.next();
        assert_eq!(
            (attempt.file_offset_bytes, attempt.buffer_offset_bytes, attempt.len_bytes),
            (512, 512, 3584)
        );
        assert_eq!(counters.short_reads, 1);
    }

    #[test]
    fn an_answer_of_one_byte_twice_goes_on_through_the_page_cache() {
        let file = bytes(8192);
        let mut counters = ReadCounters::default();
        let mut progress = Progress::new(100, 5000, 512, true);
        let (outcome, buffer) = run(&file, &mut progress, &mut counters, |attempt| {
            Ok(if attempt.is_direct { Some(1) } else { None })
        });
        assert_eq!(outcome, Outcome::Done(100..5100));
        assert_eq!(buffer[100..5100], file[100..5100]);
        assert_eq!((counters.buffered_fallbacks, counters.short_reads), (1, 2));
    }

    #[test]
    fn a_file_that_ends_early_is_named_with_what_it_has() {
        for align in [1, 512, 4096] {
            let file = bytes(1000);
            let mut counters = ReadCounters::default();
            let mut progress = Progress::new(600, 800, align, align > 1);
            let (outcome, _) = run(&file, &mut progress, &mut counters, |_| Ok(None));
            assert_eq!(outcome, Outcome::Failed(Failure::Ended { got_bytes: 400 }), "alignment {align}");
            assert_eq!(counters.failed, 1);
            let mut beyond = Progress::new(2000, 10, align, align > 1);
            let (outcome, _) = run(&file, &mut beyond, &mut counters, |_| Ok(None));
            assert_eq!(outcome, Outcome::Failed(Failure::Ended { got_bytes: 0 }), "alignment {align}");
        }
    }

    #[test]
    fn a_failing_drive_is_tried_again_then_named() {
        let mut counters = ReadCounters::default();
        let mut progress = Progress::new(0, 512, 512, true);
        for _ in 0..READ_RETRIES_MAX {
            assert_eq!(progress.finish(Err(libc::EIO), &mut counters), Outcome::Again);
        }
        let failure = Failure::Errno { errno: libc::EIO, retries: READ_RETRIES_MAX };
        assert_eq!(progress.finish(Err(libc::EIO), &mut counters), Outcome::Failed(failure));
        assert_eq!((counters.retries, counters.failed), (u64::from(READ_RETRIES_MAX), 1));
        let mut unknown = Progress::new(0, 512, 512, true);
        let failure = Failure::Errno { errno: libc::EBADF, retries: 0 };
        assert_eq!(unknown.finish(Err(libc::EBADF), &mut counters), Outcome::Failed(failure));
    }

    #[test]
    fn interruptions_are_tried_again_within_a_bound() {
        let mut counters = ReadCounters::default();
        let mut progress = Progress::new(0, 512, 512, true);
        for errno in [libc::EINTR, libc::EAGAIN, libc::ECANCELED] {
            assert_eq!(progress.finish(Err(errno), &mut counters), Outcome::Again);
        }
        assert_eq!(counters.interruptions, 3);
        let ended = (0..INTERRUPTIONS_MAX).any(|_| {
            matches!(
                progress.finish(Err(libc::EAGAIN), &mut counters),
                Outcome::Failed(Failure::Errno { .. })
            )
        });
        assert!(ended, "EAGAIN for ever holds the queue");
    }

    #[test]
    fn direct_io_refused_at_use_goes_on_through_the_page_cache() {
        for errno in [libc::EINVAL, libc::EOPNOTSUPP, libc::EFAULT] {
            let file = bytes(4096);
            let mut counters = ReadCounters::default();
            let mut progress = Progress::new(700, 100, 512, true);
            let (outcome, buffer) = run(&file, &mut progress, &mut counters, |attempt| {
                if attempt.is_direct { Err(errno) } else { Ok(None) }
            });
            assert_eq!(outcome, Outcome::Done(188..288));
            assert_eq!(buffer[188..288], file[700..800]);
            let mut buffered = Progress::new(700, 100, 1, false);
            let ended = (0..=READ_RETRIES_MAX)
                .any(|_| matches!(buffered.finish(Err(errno), &mut counters), Outcome::Failed(_)));
            assert!(ended, "errno {errno} for ever holds the queue");
        }
    }

    #[test]
    fn more_than_asked_for_is_an_error() {
        let mut counters = ReadCounters::default();
        let mut progress = Progress::new(0, 512, 512, true);
        assert!(matches!(progress.finish(Ok(513), &mut counters), Outcome::Failed(Failure::Errno { .. })));
    }

    #[test]
    fn a_read_above_the_kernels_limit_is_made_in_aligned_pieces() {
        let mut counters = ReadCounters::default();
        let mut progress = Progress::new(1, u32::MAX, 4096, true);
        let mut pieces = 0;
        loop {
            let attempt = progress.next();
            assert_eq!(attempt.buffer_offset_bytes % 4096, 0);
            pieces += 1;
            if progress.finish(Ok(attempt.len_bytes as usize), &mut counters) != Outcome::Again {
                break;
            }
        }
        assert_eq!((pieces, counters.short_reads), (4, 0));
    }

    proptest! {
        #[test]
        fn any_sequence_of_short_answers_gives_the_files_bytes(
            file_len in 1_usize..20_000,
            place in 0_usize..20_000,
            len in 1_u32..9_000,
            align_log2 in 0_u32..15,
            shorts in proptest::collection::vec(0_usize..6_000, 0..40),
        ) {
            let file = bytes(file_len);
            let offset = place % file_len;
            let len = len.min(u32::try_from(file_len - offset).unwrap()).max(1);
            prop_assume!(offset + len as usize <= file_len);
            let align = 1 << align_log2;
            let mut progress = Progress::new(offset as u64, len, align, align > 1);
            let mut counters = ReadCounters::default();
            let mut shorts = shorts.into_iter();
            let (outcome, buffer) = run(&file, &mut progress, &mut counters, |attempt| {
                // Through the page cache 0 means the end of the file, so a fault there is at least a byte.
                let floor = usize::from(!attempt.is_direct);
                Ok(shorts.next().map(|short| short.max(floor)))
            });
            let Outcome::Done(range) = outcome else { panic!("{outcome:?}") };
            prop_assert_eq!(&buffer[range], &file[offset..offset + len as usize]);
        }
    }
}
