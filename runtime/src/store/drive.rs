//! The few operations of a file system that an ingest is made of, so that a test can put another behind them.
//!
//! - Owns: the traits. In: paths, bytes. Out: what the system answers.
//! - Invariants: what was written is on the drive for sure only after [`DriveFile::sync`]; that a name was made, renamed
//!   or removed, only after [`Drive::sync_folder`] of the folder around it. No caller relies on more.

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::path::Path;

/// What stands under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A file of this length.
    File(u64),
    /// A folder.
    Folder,
    /// Something else, or a link.
    Other,
}

/// What a lock is answered with.
pub enum LockAnswer {
    /// It is ours until the value is dropped.
    Held(Box<dyn Any + Send>),
    /// Somebody has it, who wrote this about himself.
    Taken(String),
}

/// A file system.
pub trait Drive: Send + Sync {
    /// Bytes that can still be written in `folder`.
    ///
    /// # Errors
    /// What the system says; so for all operations here.
    fn free_bytes(&self, folder: &Path) -> io::Result<u64>;

    /// What stands under `path`, links not followed; `None`: nothing.
    ///
    /// # Errors
    /// The folder around it cannot be read.
    fn entry(&self, path: &Path) -> io::Result<Option<Entry>>;

    /// Reads `target.len()` bytes of the file at `path`, from `offset_bytes` on.
    ///
    /// # Errors
    /// Also where the file ends before.
    fn read_at(&self, path: &Path, offset_bytes: u64, target: &mut [u8]) -> io::Result<()>;

    /// Makes a folder; one that exists is an error.
    ///
    /// # Errors
    /// What the system says.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Makes a file of `len_bytes` zeros, in place of one that exists, and takes the room for it.
    ///
    /// # Errors
    /// Also where there is not so much room.
    fn create_file(&self, path: &Path, len_bytes: u64) -> io::Result<Box<dyn DriveFile>>;

    /// Opens a file that exists, to write into it.
    ///
    /// # Errors
    /// What the system says.
    fn open_file(&self, path: &Path) -> io::Result<Box<dyn DriveFile>>;

    /// Renames a file or a folder; a file that has the new name is replaced at once, a folder is not.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a folder that is empty, or will be in a moment: FUSE and NFS keep a removed file that was open under another
    /// name until it is closed. One that is not there, or not empty, is left. A drive without such names does nothing.
    fn remove_empty(&self, _path: &Path) {}

    /// Removes a file, or a folder with all that is in it. One that is not there is none to remove.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Waits until the names in `folder` are on the drive.
    ///
    /// # Errors
    /// They may not be, then.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// Takes the lock that the file `path` stands for, without waiting. The file is made where there is none.
    ///
    /// # Errors
    /// The file cannot be made, or the file system has no locks.
    fn lock(&self, path: &Path) -> io::Result<LockAnswer>;
}

/// An open file of a [`Drive`].
pub trait DriveFile: Debug + Send + Sync {
    /// Writes all of `bytes`. Fastest where offset, length and memory are multiples of 4096.
    ///
    /// # Errors
    /// Part of it may have been written.
    fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()>;

    /// Waits until what was written is on the drive.
    ///
    /// # Errors
    /// Whatever was written since the last sync may be lost, and a second call would not say so.
    fn sync(&self) -> io::Result<()>;
}
