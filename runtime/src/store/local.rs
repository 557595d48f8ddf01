//! A GGUF that lies in a file.
//!
//! - Owns: its descriptors, one through the page cache and, where it works, one past it. In: a path. Out: bytes.
//! - Invariants: both descriptors are of one file. Aligned reads into aligned memory go past the page cache, so that
//!   26 GB that are read once push nothing out of it; all others, and a file system without direct I/O, go through it, and
//!   without direct I/O are forgotten behind the reader.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::base::units::align_down;
use crate::base::volume;
use crate::store::bytes::{ByteSource, SourceError, SourceStamp};
use crate::store::error::{StoreError, io_error};
use crate::store::record::{BLOCK_BYTES, RECORD_ALIGN_BYTES};

/// The largest page of any Linux.
const PAGE_BYTES_MAX: u64 = 64 << 10;

/// A file as a [`ByteSource`].
#[derive(Debug)]
pub struct LocalSource {
    path: PathBuf,
    name: String,
    len_bytes: u64,
    buffered: File,
    direct: Option<File>,
}

impl LocalSource {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// It does not exist, is no file, or may not be read.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        // Asked before opening: to open a pipe would wait for a writer.
        let metadata = std::fs::metadata(path).map_err(io_error("open", path))?;
        if !metadata.is_file() {
            return Err(crate::gguf::GgufError::NotAFile { path: path.to_owned() }.into());
        }
        let buffered = File::open(path).map_err(io_error("open", path))?;
        let found = buffered.metadata().map_err(io_error("look up", path))?;
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).ok();
        let is_same = |file: &File| {
            file.metadata().is_ok_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
        };
        Ok(Self {
            path: path.to_owned(),
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            len_bytes: found.len(),
            direct: direct.filter(is_same),
            buffered,
        })
    }

    fn read_error(&self, offset_bytes: u64) -> impl FnOnce(io::Error) -> SourceError {
        let location = self.path.display().to_string();
        move |source| SourceError::Read { location, offset_bytes, source: source.into() }
    }
}

impl ByteSource for LocalSource {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn stamp(&self) -> Result<SourceStamp, SourceError> {
        let metadata = self.buffered.metadata().map_err(self.read_error(0))?;
        // The same file by another way is the same file.
        let location = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        Ok(SourceStamp {
            kind: "file".to_owned(),
            location: location.to_string_lossy().into_owned(),
            len_bytes: metadata.len(),
            state: state(&metadata),
        })
    }

    fn read_from(&mut self, offset_bytes: u64, target: &mut [u8]) -> Result<usize, SourceError> {
        let whole = target.len() / BLOCK_BYTES * BLOCK_BYTES;
        let is_aligned = offset_bytes.is_multiple_of(RECORD_ALIGN_BYTES)
            && target.as_ptr().addr().is_multiple_of(BLOCK_BYTES)
            && whole > 0;
        if let Some(direct) = self.direct.as_ref().filter(|_| is_aligned) {
            match retried(|| direct.read_at(&mut target[..whole], offset_bytes)) {
                Ok(got) => return Ok(got),
                // The file system or its drive wants other alignments; the page cache takes all.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                    self.direct = None;
                }
                Err(error) => return Err(self.read_error(offset_bytes)(error)),
            }
        }
        // Up to the next block only, so that the read after this one is aligned.
        let into_block = usize::try_from(offset_bytes % RECORD_ALIGN_BYTES).expect("invariant: below 4096");
        let end = match &self.direct {
            Some(_) => target.len().min(BLOCK_BYTES - into_block),
            None => target.len(),
        };
        let got = retried(|| self.buffered.read_at(&mut target[..end], offset_bytes))
            .map_err(self.read_error(offset_bytes))?;
        if self.direct.is_none() {
            // Read once, front to back: it need not stay. Also the page that the read before ended in; not what was read
            // ahead.
            let start = align_down(offset_bytes, PAGE_BYTES_MAX);
            volume::forget(&self.buffered, start, offset_bytes + got as u64 - start);
        }
        Ok(got)
    }
}

fn retried(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn state(metadata: &Metadata) -> String {
    // Without the device's number, which is not the same after every start of the machine.
    format!("modified {}.{:09}, inode {}", metadata.mtime(), metadata.mtime_nsec(), metadata.ino())
}
