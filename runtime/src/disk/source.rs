//! One file of a source, open for reading.
//!
//! Owns: its descriptors, one through the page cache and, where it works, one with `O_DIRECT`.
//! In: a path. Out: the file's length, how it may be read, and small reads for those who need a few bytes now.
//!
//! Invariants: both descriptors are of the same file; the length is the one at open, and a read beyond it is refused,
//! because a source is immutable.

use std::borrow::Borrow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::DiskError;
use super::direct::{DirectReport, decide};
use super::file_probe::{self, FileAttributes, MappedFile};
use super::in_flight::{FileFacts, ReadFacts};
use super::progress::{Attempt, Outcome, Progress};
use super::queue::ReadCounters;
use super::sys;
use crate::base::region::{HostBuffer, HostRegion, page_bytes};
use crate::base::units::{align_down, align_up};

/// The longest piece of [`SourceFile::read_exact_at`].
const PIECE_BYTES: usize = 256 << 20;

/// One open file.
#[derive(Debug)]
pub struct SourceFile {
    path: PathBuf,
    len_bytes: u64,
    buffered: File,
    direct: Option<File>,
    report: DirectReport,
}

impl SourceFile {
    /// Opens the file, and finds out by real reads whether it can be read past the page cache.
    ///
    /// # Errors
    /// [`DiskError::Open`], [`DiskError::NotAFile`], [`DiskError::Memory`]. Direct I/O that does not work is none:
    /// [`Self::direct`] says why.
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        let mut file = Self::open_buffered(path)?;
        (file.direct, file.report) = file.try_direct()?;
        Ok(file)
    }

    /// Opens the file for reads through the page cache only.
    ///
    /// # Errors
    /// [`DiskError::Open`], [`DiskError::NotAFile`].
    pub fn open_buffered(path: &Path) -> Result<Self, DiskError> {
        Self::open_kind(path, fs::FileType::is_file)
    }

    /// Opens a whole block device, for reading only; with `direct` past the page cache where that works.
    ///
    /// # Errors
    /// [`DiskError::Open`], [`DiskError::NotAFile`] where it is something else, [`DiskError::Memory`].
    pub fn open_block_device(path: &Path, direct: bool) -> Result<Self, DiskError> {
        let mut file = Self::open_kind(path, FileTypeExt::is_block_device)?;
        if direct {
            (file.direct, file.report) = file.try_direct()?;
        }
        Ok(file)
    }

    fn open_kind(path: &Path, is_wanted: impl Fn(&fs::FileType) -> bool) -> Result<Self, DiskError> {
        let open_error = |source| DiskError::Open { path: path.to_owned(), source };
        // Asked before opening: to open a named pipe would wait for its writer.
        if !is_wanted(&fs::metadata(path).map_err(open_error)?.file_type()) {
            return Err(DiskError::NotAFile { path: path.to_owned() });
        }
        let buffered = File::open(path).map_err(open_error)?;
        if !is_wanted(&buffered.metadata().map_err(open_error)?.file_type()) {
            return Err(DiskError::NotAFile { path: path.to_owned() });
        }
        let len_bytes = length(&buffered).map_err(open_error)?;
        let report = DirectReport::buffered("direct I/O is switched off");
        Ok(Self { path: path.to_owned(), len_bytes, buffered, direct: None, report })
    }

    fn try_direct(&self) -> Result<(Option<File>, DirectReport), DiskError> {
        let direct = match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&self.path) {
            Ok(direct) => direct,
            Err(error) => {
                return Ok((None, DirectReport::buffered(format!("O_DIRECT was refused ({error})"))));
            }
        };
        let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino(), found.len()));
        if identity(&direct).ok() != identity(&self.buffered).ok() {
            return Ok((None, DirectReport::buffered("the file was replaced while it was opened")));
        }
        let page = u32::try_from(page_bytes()).expect("invariant: pages are at most 64 KiB");
        let mut no_memory = None;
        // A kernel that cannot answer is one that does not say.
        let reported = sys::direct_align(&direct).unwrap_or(None);
        let report = decide(reported, page, |align| match HostRegion::new(align as usize) {
            Ok(region) => {
                let mut buffers = region.split(region.len_bytes(), 1);
                self.probe(&direct, align, buffers[0].as_mut_slice())
            }
            Err(error) => {
                no_memory = Some(error);
                Err(io::Error::from(io::ErrorKind::OutOfMemory))
            }
        });
        match no_memory {
            Some(error) => Err(error.into()),
            None => Ok((report.is_direct().then_some(direct), report)),
        }
    }

    /// Reads the first and the last block of `align` bytes.
    fn probe(&self, direct: &File, align: u32, memory: &mut [u8]) -> io::Result<()> {
        let block = u64::from(align);
        for offset in [0, align_down(self.len_bytes.saturating_sub(1), block)] {
            let expected = (self.len_bytes - offset).min(block);
            let got = loop {
                match direct.read_at(&mut memory[..align as usize], offset) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            if got as u64 != expected {
                return Err(io::Error::other(format!("{got} B instead of {expected} B at byte {offset}")));
            }
        }
        Ok(())
    }

    /// Tries whether direct I/O can write into `buffer`: the kernel cannot pin what some drivers map. The buffer's
    /// first bytes become the file's. A buffered file can be read into any memory.
    ///
    /// # Errors
    /// [`DiskError::Read`] with EFAULT where the memory cannot be pinned, or with the kernel's other answer.
    ///
    /// # Panics
    /// When the buffer is shorter than the file's alignment.
    pub fn probe_into(&self, buffer: &mut HostBuffer) -> Result<(), DiskError> {
        let Some(direct) = &self.direct else { return Ok(()) };
        let align = self.report.align_bytes();
        assert!(buffer.len_bytes() >= align as usize, "a buffer shorter than the alignment of {align} B");
        self.probe(direct, align, buffer.as_mut_slice()).map_err(|source| DiskError::Read {
            path: self.path.clone(),
            offset_bytes: 0,
            len_bytes: align,
            align_bytes: align,
            retries: 0,
            errno: source.raw_os_error().unwrap_or(0),
            source,
        })
    }

    /// Bytes of the file when it was opened.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is read past the page cache, and why not if not.
    pub fn direct(&self) -> &DirectReport {
        &self.report
    }

    /// What statx says about direct I/O on this file, bytes of alignment in memory and in the file; both are 0 where the file
    /// system has none. `None` where kernel or file system does not say.
    pub fn statx_align(&self) -> Option<(u32, u32)> {
        let said = sys::direct_align(&self.buffered).unwrap_or(None)?;
        Some((said.memory_bytes, said.offset_bytes))
    }

    /// Reads exactly `target.len()` bytes at `offset_bytes`, through the page cache: for headers and single rows.
    /// Short answers are continued.
    ///
    /// # Errors
    /// [`DiskError::Truncated`] when the file ends before, [`DiskError::Read`] when the kernel fails the read.
    pub fn read_exact_at(&self, offset_bytes: u64, target: &mut [u8]) -> Result<(), DiskError> {
        let want_bytes = target.len() as u64;
        if offset_bytes.checked_add(want_bytes).is_none_or(|end| end > self.len_bytes) {
            return Err(ReadFacts { offset_bytes, want_bytes }.beyond_the_end(self));
        }
        let mut counters = ReadCounters::default();
        let mut at = offset_bytes;
        for piece in target.chunks_mut(PIECE_BYTES) {
            let len = u32::try_from(piece.len()).expect("invariant: a piece is at most 256 MiB");
            let mut progress = Progress::new(at, len, 1, false);
            loop {
                let attempt = progress.next();
                match progress.finish(self.read(attempt, piece), &mut counters) {
                    Outcome::Again => {}
                    Outcome::Done(_) => break,
                    Outcome::Failed(failure) => {
                        return Err(
                            ReadFacts { offset_bytes: at, want_bytes: u64::from(len) }.error(self, failure)
                        );
                    }
                }
            }
            at += u64::from(len);
        }
        Ok(())
    }

    /// Asks the kernel to forget the cached pages of a span that was read once and is not wanted again.
    pub fn drop_cached(&self, offset_bytes: u64, len_bytes: u64) {
        sys::drop_cached(&self.buffered, offset_bytes, len_bytes);
    }

    /// Maps the file as it was at open, for reading.
    ///
    /// # Errors
    /// [`DiskError::Open`] where the kernel or the file system refuses.
    pub fn map(&self) -> Result<MappedFile, DiskError> {
        let failed = |source| DiskError::Open { path: self.path.clone(), source };
        MappedFile::new(&self.buffered, self.len_bytes).map_err(failed)
    }

    /// Where its first hole begins, its length where it has none; `None` where the file system does not say.
    pub fn first_hole(&self) -> Option<u64> {
        file_probe::first_hole(&self.buffered)
    }

    /// What the file system says of it.
    pub fn attributes(&self) -> FileAttributes {
        file_probe::attributes(&self.buffered)
    }

    /// Makes one attempt of a read into the memory of its buffer.
    pub(super) fn read(&self, attempt: Attempt, memory: &mut [u8]) -> Result<usize, i32> {
        let target = &mut memory[attempt.buffer_offset_bytes..][..attempt.len_bytes as usize];
        let file = if attempt.is_direct { self.direct_or_buffered() } else { &self.buffered };
        file.read_at(target, attempt.file_offset_bytes)
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    fn direct_or_buffered(&self) -> &File {
        self.direct.as_ref().unwrap_or(&self.buffered)
    }

    /// The descriptors: first the one for direct attempts (the buffered one where there is none), then the buffered.
    pub(super) fn descriptors(&self) -> [RawFd; 2] {
        [self.direct_or_buffered().as_raw_fd(), self.buffered.as_raw_fd()]
    }
}

impl FileFacts for SourceFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn opened_len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn now_len_bytes(&self) -> u64 {
        length(&self.buffered).unwrap_or(0)
    }

    fn align_bytes(&self) -> u32 {
        self.report.align_bytes()
    }
}

/// Bytes of buffer that any read of `len_bytes` from one of `files` needs, whatever its offset; whole pages.
pub fn buffer_bytes_for<F: Borrow<SourceFile>>(files: &[F], len_bytes: u32) -> usize {
    let align = files.iter().map(|file| file.borrow().report.align_bytes()).max().unwrap_or(1);
    let align = u64::from(align);
    to_pages(align_up(u64::from(len_bytes) + align - 1, align))
}

/// Bytes of buffer that a read of just this span needs; whole pages. Less than [`buffer_bytes_for`] where records
/// begin at multiples of the alignment.
pub fn buffer_bytes_for_span(file: &SourceFile, offset_bytes: u64, len_bytes: u32) -> usize {
    let align = u64::from(file.report.align_bytes());
    to_pages(align_up(offset_bytes + u64::from(len_bytes), align) - align_down(offset_bytes, align))
}

/// Bytes of an open file or block device, of which the metadata says 0.
fn length(file: &File) -> io::Result<u64> {
    let metadata = file.metadata()?;
    let mut file = file;
    // Every read names its offset, so that the position does not matter.
    if metadata.file_type().is_block_device() { file.seek(SeekFrom::End(0)) } else { Ok(metadata.len()) }
}

fn to_pages(bytes: u64) -> usize {
    usize::try_from(align_up(bytes, page_bytes() as u64))
        .expect("invariant: a u32 length fits the address space")
}
