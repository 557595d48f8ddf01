//! Reads a file at the drive's speed and past the page cache, which holds what somebody wrote, not what the drive has.
//!
//! - Owns: a file's descriptors. In: a place in it. Out: its bytes, in page-aligned memory.
//! - Invariants: direct reads begin and end at multiples of [`RECORD_ALIGN_BYTES`]; where the file system refuses them, the
//!   rest of the file is read through the cache, and [`Input::is_direct`] says so.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::limits::READ_RETRIES_MAX;
use crate::base::region::HostBuffer;
use crate::base::units::align_up;
use crate::store::record::RECORD_ALIGN_BYTES;

/// One open file.
#[derive(Debug)]
pub(super) struct Input {
    path: PathBuf,
    len_bytes: u64,
    buffered: File,
    direct: Option<File>,
    has_refused: AtomicBool,
}

impl Input {
    /// Opens the regular file at `path`.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        // Asked before opening: to open a named pipe would wait for its writer.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(ErrorKind::NotFound, "not a regular file"));
        }
        let buffered = File::open(path)?;
        let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino())).ok();
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).ok();
        let direct = direct.filter(|direct| identity(direct) == identity(&buffered));
        let len_bytes = buffered.metadata()?.len();
        Ok(Self { path: path.to_owned(), len_bytes, buffered, direct, has_refused: AtomicBool::new(false) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The file, for looking it up.
    pub(super) fn file(&self) -> &File {
        &self.buffered
    }

    /// Whether all reads so far went past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_some() && !self.has_refused.load(Ordering::Relaxed)
    }

    /// Reads the `len` bytes at `offset_bytes`, a multiple of [`RECORD_ALIGN_BYTES`]; `buffer` has room for them, rounded up
    /// to it. A failed read is tried again as often as the runtime does.
    pub(super) fn read<'b>(
        &self,
        offset_bytes: u64,
        len: usize,
        buffer: &'b mut HostBuffer,
    ) -> io::Result<&'b [u8]> {
        assert!(offset_bytes.is_multiple_of(RECORD_ALIGN_BYTES), "a read at byte {offset_bytes}");
        let rounded = align_up(len as u64, RECORD_ALIGN_BYTES);
        let rounded = usize::try_from(rounded).expect("invariant: it fits the buffer");
        let memory = &mut buffer.as_mut_slice()[..rounded];
        let (mut done, mut retries) = (0, 0);
        while done < len {
            let at = offset_bytes + done as u64;
            let direct = self.direct.as_ref().filter(|_| {
                at.is_multiple_of(RECORD_ALIGN_BYTES) && !self.has_refused.load(Ordering::Relaxed)
            });
            let got = match direct {
                Some(direct) => direct.read_at(&mut memory[done..], at),
                None => self.buffered.read_at(&mut memory[done..len], at),
            };
            match got {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if direct.is_some() && is_refusal(&error) => {
                    self.has_refused.store(true, Ordering::Relaxed);
                }
                Err(_) if retries < READ_RETRIES_MAX => retries += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(&memory[..len])
    }
}

/// Whether the file system says that it has no direct reads of this kind.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EFAULT))
}
