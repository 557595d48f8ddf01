//! A store appears whole or not at all.
//!
//! - Owns: the working folder `NAME.partial` beside the target, and the lock in it. In: the target's path.
//! - Out: a folder to write into, perhaps with what an interrupted ingest left; then the store under its name.
//! - Invariants: the target's name is taken by one rename, after everything in the folder was synced; what exists
//!   there already is never touched. Only who holds the lock changes the working folder, and it is kept until the store
//!   is published or the work is known to be worthless.

use std::any::Any;
use std::cell::Cell;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::store::drive::{Drive, Entry, LockAnswer};
use crate::store::error::{StoreError, folder_error, io_error};
use crate::store::journal::{JOURNAL_NAME, PIECES_NAME};
use crate::store::manifest::is_plain_name;

/// Longest name of a store: the file system's 255 bytes less the suffixes of working folders.
const NAME_BYTES_MAX: usize = 200;

const SUFFIX: &str = ".partial";

/// The store's files, within the working folder.
const STORE_NAME: &str = "store";

const LOCK_NAME: &str = "lock";

/// Times that a working folder may vanish while its lock is asked for: each time another ingest has ended.
const LOCK_TRIES: u32 = 16;

/// Where a store will be, checked without a change to the drive.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) parent: PathBuf,
}

impl Target {
    /// Checks the target's name and the folder that is to hold it.
    pub(super) fn check(drive: &dyn Drive, target: &Path) -> Result<Self, StoreError> {
        let refuse = |reason| Err(StoreError::TargetName { path: target.to_owned(), reason });
        let Some(name) = target.file_name() else { return refuse("it ends in no name") };
        let Some(name) = name.to_str() else { return refuse("it is not UTF-8") };
        if !is_plain_name(name) {
            return refuse("it has control characters");
        }
        if name.len() > NAME_BYTES_MAX {
            return refuse("it has more than 200 bytes");
        }
        if is_working_name(name) {
            return refuse("the ending .partial, or .partial-NUMBER, belongs to ingests at work");
        }
        let parent = folder_of(target);
        // Followed, as the system does: the folder may be a link to another drive.
        match drive.entry(&parent.join(".")) {
            Ok(Some(Entry::Folder)) => {}
            _ => return Err(StoreError::TargetParent { path: parent }),
        }
        Ok(Self { path: target.to_owned(), name: name.to_owned(), parent })
    }

    /// The folder in which an ingest of this target works.
    pub(super) fn working_folder(&self) -> PathBuf {
        self.parent.join(format!("{}{SUFFIX}", self.name))
    }
}

/// The folder in which a store is made, and the right to do so.
pub(super) struct WorkingFolder<'run> {
    drive: &'run dyn Drive,
    target: Target,
    path: PathBuf,
    lock: Option<Box<dyn Any + Send>>,
    /// Whether nothing is to be left of it.
    is_over: Cell<bool>,
}

/// Where a file that is open cannot be removed at once, the folder goes after its lock.
impl Drop for WorkingFolder<'_> {
    fn drop(&mut self) {
        drop(self.lock.take());
        if self.is_over.get() {
            self.drive.remove_empty(&self.path);
        }
    }
}

impl<'run> WorkingFolder<'run> {
    /// Takes the working folder for `target`, made anew or left by an interrupted ingest.
    pub(super) fn take(drive: &'run dyn Drive, target: Target) -> Result<Self, StoreError> {
        let path = target.working_folder();
        // Looked for first, so that nothing is made beside a store that is there.
        let is_there = entry(drive, &target.path)?.is_some();
        if is_there && entry(drive, &path)?.is_none() {
            return Err(StoreError::TargetExists { path: target.path });
        }
        let lock = take_lock(drive, &path)?;
        let folder = Self { drive, target, path, lock: Some(lock), is_over: Cell::new(false) };
        // Asked again, under the lock: another ingest may have ended meanwhile.
        if entry(drive, &folder.target.path)?.is_some() {
            // It was killed between the rename and the end of its work, or this very call made the folder.
            if entry(drive, &folder.store())?.is_none() {
                folder.remove()?;
            }
            return Err(StoreError::TargetExists { path: folder.target.path.clone() });
        }
        sync_folder(drive, &folder.target.parent)?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the store's files are made.
    pub(super) fn store(&self) -> PathBuf {
        self.path.join(STORE_NAME)
    }

    /// Removes what an ingest left, but not the folder and its lock. First the journal, so that whatever stays behind
    /// after a power loss means nothing.
    pub(super) fn clear(&self) -> Result<(), StoreError> {
        for name in [JOURNAL_NAME, PIECES_NAME, STORE_NAME] {
            let path = self.path.join(name);
            self.drive.remove(&path).map_err(io_error("remove", &path))?;
            sync_folder(self.drive, &self.path)?;
        }
        Ok(())
    }

    /// Removes all of it.
    pub(super) fn remove(&self) -> Result<(), StoreError> {
        self.clear()?;
        self.is_over.set(true);
        match self.drive.remove(&self.path) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {}
            removed => removed.map_err(io_error("remove", &self.path))?,
        }
        sync_folder(self.drive, &self.target.parent)
    }

    /// Gives the store's folder, in which everything is synced, the target's name.
    pub(super) fn publish(&self) -> Result<(), StoreError> {
        let (store, target) = (self.store(), &self.target.path);
        sync_folder(self.drive, &store)?;
        // The rename itself refuses a folder with content and a file; what it would replace is an empty folder.
        if entry(self.drive, target)?.is_some() {
            return Err(StoreError::TargetExists { path: target.clone() });
        }
        if let Err(error) = self.drive.rename(&store, target) {
            if entry(self.drive, target)?.is_some() {
                return Err(StoreError::TargetExists { path: target.clone() });
            }
            return Err(io_error("rename the finished store to its name", &store)(error));
        }
        sync_folder(self.drive, &self.target.parent)?;
        sync_folder(self.drive, &self.path)?;
        // The store is there. What is left of the work is removed by the next ingest of this name, if not now.
        let _ = self.remove();
        Ok(())
    }
}

/// Whether `path` has the name of a working folder, or lies in one.
pub(super) fn is_working_folder(path: &Path) -> bool {
    let is_one = |path: &Path| path.file_name().is_some_and(|name| is_working_name(&name.to_string_lossy()));
    is_one(path) || path.parent().is_some_and(is_one)
}

fn is_working_name(name: &str) -> bool {
    // With the first version of stores, the working folder had its process in its name.
    let number = name.rsplit_once(".partial-").map(|(_, number)| number);
    name.ends_with(SUFFIX)
        || number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The folder that holds `path`.
pub(super) fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

pub(super) fn sync_folder(drive: &dyn Drive, folder: &Path) -> Result<(), StoreError> {
    drive.sync_folder(folder).map_err(|source| match source.raw_os_error() {
        // It was not even opened, so the drive is not to blame.
        Some(libc::EMFILE) => io_error("open the folder", folder)(source),
        _ => StoreError::SyncFailed { path: folder.to_owned(), source },
    })
}

pub(super) fn entry(drive: &dyn Drive, path: &Path) -> Result<Option<Entry>, StoreError> {
    drive.entry(path).map_err(io_error("look up", path))
}

/// Makes the folder where there is none, and takes the lock in it.
fn take_lock(drive: &dyn Drive, folder: &Path) -> Result<Box<dyn Any + Send>, StoreError> {
    let path = folder.join(LOCK_NAME);
    for _ in 0..LOCK_TRIES {
        match entry(drive, folder)? {
            Some(Entry::Folder) => {}
            Some(_) => return Err(StoreError::TargetExists { path: folder.to_owned() }),
            None => match drive.create_folder(folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(folder_error(folder)(error));
                }
                _ => {}
            },
        }
        match drive.lock(&path) {
            Ok(LockAnswer::Held(lock)) => return Ok(lock),
            Ok(LockAnswer::Taken(owner)) => return Err(StoreError::Busy { path: folder.to_owned(), owner }),
            // The other ingest ended, and removed the folder.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(io_error("lock", &path)(error)),
        }
    }
    Err(StoreError::Busy { path: folder.to_owned(), owner: "several, one after the other".to_owned() })
}
