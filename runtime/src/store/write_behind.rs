//! Writes through the page cache that do not fill it: what was written is sent to the drive at once and then forgotten.
//!
//! - Owns: the ranges of a file that are on their way. In: what was written. Out: clean pages, given back.
//! - Invariants: no more than a window's bytes of a file are in the cache because of us, so an ingest of 26 GB where
//!   direct I/O does not work pushes out as little as one where it does. An error of a write that was waited for is the
//!   caller's: no sync after it would tell it again.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::base::volume::{WriteOut, forget, write_out};

/// Bytes of a file that may be on their way: enough for a drive to be busy with, a small part of any machine's memory.
const WINDOW_BYTES: u64 = 32 << 20;

/// The ranges, oldest first, and the sum of their lengths.
#[derive(Debug, Default)]
pub(super) struct WriteBehind(Mutex<(VecDeque<Range<u64>>, u64)>);

impl WriteBehind {
    /// `range` of `file` was written. Waits for older ranges when there are too many.
    pub(super) fn written(&self, file: &File, range: Range<u64>) -> io::Result<()> {
        write_out(file, range.start, range.end - range.start, WriteOut::Begin)?;
        self.add(range).into_iter().try_for_each(|old| finish(file, &old))
    }

    /// Notes a range; gives those that have to leave for it.
    fn add(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (ranges, bytes) = &mut *guard;
        *bytes += range.end - range.start;
        ranges.push_back(range);
        let mut due = Vec::new();
        while *bytes > WINDOW_BYTES
            && let Some(old) = ranges.pop_front()
        {
            *bytes -= old.end - old.start;
            due.push(old);
        }
        due
    }

    /// The file was synced: nothing is on its way any more.
    pub(super) fn synced(&self, file: &File) {
        let (ranges, _) = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        ranges.iter().for_each(|range| forget(file, range.start, range.end - range.start));
    }
}

fn finish(file: &File, range: &Range<u64>) -> io::Result<()> {
    let len_bytes = range.end - range.start;
    write_out(file, range.start, len_bytes, WriteOut::Finish)?;
    forget(file, range.start, len_bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn no_more_than_a_window_is_on_its_way_and_the_oldest_leaves_first() {
        let behind = WriteBehind::default();
        let (mut sent, step) = (Vec::new(), 5 << 20);
        for number in 0..40u64 {
            sent.extend(behind.add(number * step..(number + 1) * step));
            let (ranges, bytes) = &*behind.0.lock().unwrap();
            assert!(
                *bytes <= WINDOW_BYTES && *bytes == ranges.len() as u64 * step,
                "{bytes} B after {number}"
            );
        }
        let starts: Vec<u64> = sent.iter().map(|range| range.start / step).collect();
        assert_eq!(starts, (0..34).collect::<Vec<_>>());
        // One that is larger than the window does not stay.
        assert_eq!(behind.add(0..WINDOW_BYTES + 1).len(), 7);
    }

    #[test]
    fn the_bytes_are_in_the_file_and_not_in_the_cache() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file =
            File::options().read(true).write(true).create_new(true).open(folder.path().join("f")).unwrap();
        let behind = WriteBehind::default();
        let piece = vec![9u8; 4 << 20];
        for at in (0..48u64 << 20).step_by(piece.len()) {
            file.write_all_at(&piece, at).unwrap();
            behind.written(&file, at..at + piece.len() as u64).unwrap();
        }
        file.sync_all().unwrap();
        behind.synced(&file);
        assert!(behind.0.lock().unwrap().0.is_empty(), "something is still on its way");
        let mut bytes = vec![0; 48 << 20];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 9), "other bytes");
    }
}
