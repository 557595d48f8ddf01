//! The new files of a store.
//!
//! - Owns: their handles. In: bytes and their places. Out: files of their final length; typed errors of a full drive.
//! - Invariants: nothing is written beyond a file's planned end; a file that exists is never opened.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::base::ids::Span;
use crate::base::volume::free_bytes;
use crate::store::error::{StoreError, io_error};
use crate::store::layout::DENSE_FILE;

/// The files that the source's tensors go to.
pub(super) struct Writer {
    pub(super) dense: Output,
    pub(super) experts: Output,
    /// What of the store is still to be written, for the message when the drive is full.
    pub(super) left_bytes: u64,
}

impl Writer {
    /// Writes `bytes` to `target`, whose length they have.
    pub(super) fn write(&mut self, bytes: &[u8], target: Span) -> Result<(), StoreError> {
        let output = if target.file == DENSE_FILE { &self.dense } else { &self.experts };
        let end_bytes = target.offset_bytes + target.len_bytes;
        assert!(end_bytes <= output.len_bytes, "{} is written beyond its end", output.path.display());
        self.left_bytes -= output.write(bytes, target.offset_bytes, self.left_bytes)?;
        Ok(())
    }
}

/// One new file of the store.
pub(super) struct Output {
    path: PathBuf,
    file: File,
    len_bytes: u64,
}

impl Output {
    /// Makes the file in its final length, so that padding needs no writes.
    pub(super) fn create(path: PathBuf, len_bytes: u64) -> Result<Self, StoreError> {
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|source| write_error(&path, 0, len_bytes, source))?;
        file.set_len(len_bytes).map_err(|source| write_error(&path, 0, len_bytes, source))?;
        Ok(Self { path, file, len_bytes })
    }

    /// Writes all of `bytes`; gives their number. `left_bytes` are still to be written to the store, these included.
    pub(super) fn write(&self, bytes: &[u8], offset_bytes: u64, left_bytes: u64) -> Result<u64, StoreError> {
        let result = self.file.write_all_at(bytes, offset_bytes);
        result.map_err(|source| write_error(&self.path, offset_bytes, left_bytes, source))?;
        Ok(bytes.len() as u64)
    }

    /// Waits until the drive has the file; gives its length.
    pub(super) fn sync(&self) -> Result<u64, StoreError> {
        self.file.sync_all().map_err(io_error("sync", &self.path))?;
        Ok(self.len_bytes)
    }
}

/// Tells a full drive from a broken one.
fn write_error(path: &Path, offset_bytes: u64, needed_bytes: u64, source: io::Error) -> StoreError {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            let folder = path.parent().unwrap_or(Path::new("."));
            // Only for the message: a file system that does not answer says nothing about why the write failed.
            let free_bytes = free_bytes(folder).unwrap_or(0);
            StoreError::DriveFull { path: path.to_owned(), offset_bytes, needed_bytes, free_bytes, source }
        }
        _ => io_error("write", path)(source),
    }
}
