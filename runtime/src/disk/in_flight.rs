//! A read that a queue has taken: its progress, its buffer, and what an error will have to say.
//!
//! In: a [`Read`] and the facts of its file. Out: a [`Completion`] with the same buffer.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use super::DiskError;
use super::progress::{Failure, Progress};
use super::queue::{Completion, Read, ReadCounters};
use crate::base::region::HostBuffer;

/// What the queues ask about a file, real or simulated.
pub(super) trait FileFacts {
    fn path(&self) -> &Path;
    fn opened_len_bytes(&self) -> u64;
    fn now_len_bytes(&self) -> u64;
    /// Alignment of direct reads; 1 for a buffered file.
    fn align_bytes(&self) -> u32;
}

/// Where the wanted bytes are, for an error's text.
pub(super) struct ReadFacts {
    pub(super) offset_bytes: u64,
    pub(super) want_bytes: u64,
}

impl ReadFacts {
    /// The error of a read that reaches beyond the file's end as it was at open.
    pub(super) fn beyond_the_end(&self, file: &dyn FileFacts) -> DiskError {
        let there = file.opened_len_bytes().saturating_sub(self.offset_bytes).min(self.want_bytes);
        self.error(file, Failure::Ended { got_bytes: there })
    }

    /// The error of a read that failed.
    pub(super) fn error(&self, file: &dyn FileFacts, failure: Failure) -> DiskError {
        let path = file.path().to_owned();
        let Self { offset_bytes, want_bytes } = *self;
        match failure {
            Failure::Ended { got_bytes } => DiskError::Truncated {
                path,
                offset_bytes,
                want_bytes,
                got_bytes,
                opened_len_bytes: file.opened_len_bytes(),
                now_len_bytes: file.now_len_bytes(),
            },
            Failure::Errno { errno, retries } => DiskError::Read {
                path,
                offset_bytes,
                len_bytes: u32::try_from(want_bytes).unwrap_or(u32::MAX),
                align_bytes: file.align_bytes(),
                retries,
                errno,
                source: io::Error::from_raw_os_error(errno),
            },
        }
    }
}

/// A read under way.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) progress: Progress,
    pub(super) buffer: HostBuffer,
    /// The file's place in the queue's list.
    pub(super) file: usize,
    /// When it was taken.
    pub(super) begun: Instant,
    tag: u64,
    offset_bytes: u64,
    len_bytes: u32,
}

/// What becomes of a read at its push.
pub(super) enum Begun {
    /// It is to be read.
    Reading(InFlight),
    /// It reaches beyond the file's end, so it has ended already.
    Ended(Completion),
}

impl InFlight {
    /// # Panics
    /// When the length is 0 or the buffer is too short.
    pub(super) fn begin(read: Read, file: &dyn FileFacts, counters: &mut ReadCounters) -> Begun {
        let Read { file: file_index, offset_bytes, len_bytes, buffer, tag } = read;
        assert!(len_bytes > 0, "a read of no bytes");
        let end = offset_bytes.checked_add(u64::from(len_bytes));
        if end.is_none_or(|end| end > file.opened_len_bytes()) {
            counters.failed += 1;
            let facts = ReadFacts { offset_bytes, want_bytes: u64::from(len_bytes) };
            return Begun::Ended(Completion { tag, buffer, result: Err(facts.beyond_the_end(file)) });
        }
        let align = file.align_bytes();
        let progress = Progress::new(offset_bytes, len_bytes, align, align > 1);
        assert!(
            progress.span_bytes() <= buffer.len_bytes(),
            "a buffer of {} B for a read that is {} B when rounded outward to {align} B",
            buffer.len_bytes(),
            progress.span_bytes()
        );
        let file = usize::from(file_index.0);
        let begun = Instant::now();
        Begun::Reading(Self { progress, buffer, file, begun, tag, offset_bytes, len_bytes })
    }

    /// Gives the buffer back with the read's end.
    pub(super) fn end(self, result: Result<Range<usize>, Failure>, file: &dyn FileFacts) -> Completion {
        let facts = ReadFacts { offset_bytes: self.offset_bytes, want_bytes: u64::from(self.len_bytes) };
        let result = result.map_err(|failure| facts.error(file, failure));
        Completion { tag: self.tag, buffer: self.buffer, result }
    }
}
