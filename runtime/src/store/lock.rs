//! Who may have a store at the same time: readers share it, a writer has it alone.
//!
//! - Owns: the open file that holds a lock, until it is dropped or its process ends. In: a store's folder.
//! - Out: a lock, or who stands in the way.
//! - Invariants: the locks are `flock`s on the manifest, which is never replaced; they bind only those who ask. Where a
//!   file system has no locks, readers go on without, and a writer is refused.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use crate::store::error::{StoreError, io_error};
use crate::store::manifest::MANIFEST_NAME;

/// The right to change or to remove a store. Nobody can open the store while this lives.
#[derive(Debug)]
pub struct WriterLock {
    _file: File,
    path: PathBuf,
}

impl WriterLock {
    /// Takes the store `folder`, which nobody may have open.
    ///
    /// # Errors
    /// [`StoreError::InUse`] while another process, or this one, reads or changes it; [`StoreError::NotAStore`];
    /// [`StoreError::Io`] also where the file system has no locks.
    pub fn take(folder: &Path) -> Result<Self, StoreError> {
        let file = open_manifest(folder)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file, path: folder.to_owned() }),
            Err(TryLockError::WouldBlock) => Err(StoreError::InUse { path: folder.to_owned() }),
            Err(TryLockError::Error(error)) => Err(io_error("lock", folder)(error)),
        }
    }

    /// The store's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Keeps writers out while a store is open.
#[derive(Debug)]
pub(super) struct ReaderLock {
    _file: File,
}

impl ReaderLock {
    /// Shares the store `folder`.
    pub(super) fn share(folder: &Path) -> Result<Self, StoreError> {
        let file = open_manifest(folder)?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Err(StoreError::BeingChanged { path: folder.to_owned() }),
            // No locks here: then no writer could take one, either.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Self { _file: file }),
        }
    }
}

fn open_manifest(folder: &Path) -> Result<File, StoreError> {
    let path = folder.join(MANIFEST_NAME);
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() => File::open(&path).map_err(io_error("open", &path)),
        Ok(_) => Err(StoreError::NotAStore { path: folder.to_owned() }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(StoreError::NotAStore { path: folder.to_owned() })
        }
        Err(error) => Err(io_error("read", &path)(error)),
    }
}
