//! A store appears whole or not at all.
//!
//! - Owns: the working folder `NAME.partial-PID` beside the target, until it is published or dropped.
//! - In: the target's path. Out: a folder to write into; then the store under its name.
//! - Invariants: the target's name is taken by one rename, after everything in the folder was synced; what exists
//!   there already is never touched. A working folder that is not published is removed, unless the process is killed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use crate::store::error::{StoreError, io_error};
use crate::store::manifest::is_plain_name;

/// Longest name of a store: the file system's 255 bytes less the working folder's suffix.
const NAME_BYTES_MAX: usize = 200;

const SUFFIX: &str = ".partial-";

/// The folder in which a store is made.
#[derive(Debug)]
pub(super) struct WorkingFolder {
    path: PathBuf,
    target: PathBuf,
    parent: PathBuf,
    is_published: bool,
}

impl WorkingFolder {
    /// Checks the target's name and place, without a change to the drive. Gives the folder that will hold it.
    pub(super) fn check_target(target: &Path) -> Result<PathBuf, StoreError> {
        let refuse = |reason| Err(StoreError::TargetName { path: target.to_owned(), reason });
        let Some(name) = target.file_name() else { return refuse("it ends in no name") };
        let Some(name) = name.to_str() else { return refuse("it is not UTF-8") };
        if !is_plain_name(name) {
            return refuse("it has control characters");
        }
        if name.len() > NAME_BYTES_MAX {
            return refuse("it has more than 200 bytes");
        }
        if is_working_folder(target) {
            return refuse("the ending .partial-NUMBER belongs to ingests at work");
        }
        let parent = match target.parent() {
            Some(parent) if parent != Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        if !parent.is_dir() {
            return Err(StoreError::TargetParent { path: parent });
        }
        refuse_existing(target)?;
        Ok(parent)
    }

    /// Makes the working folder for `target`.
    pub(super) fn create(target: &Path) -> Result<Self, StoreError> {
        let parent = Self::check_target(target)?;
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = parent.join(format!("{name}{SUFFIX}{}", process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self { path, target: target.to_owned(), parent, is_published: false }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(StoreError::Busy { path }),
            Err(error) => Err(io_error("make the folder", &path)(error)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the folder, whose files are synced, the target's name.
    pub(super) fn publish(mut self) -> Result<(), StoreError> {
        sync_folder(&self.path)?;
        // The rename itself refuses a folder with content and a file; what it would replace is an empty folder.
        refuse_existing(&self.target)?;
        match fs::rename(&self.path, &self.target) {
            Ok(()) => self.is_published = true,
            Err(error) => {
                refuse_existing(&self.target)?;
                return Err(io_error("rename the finished store to its name", &self.path)(error));
            }
        }
        sync_folder(&self.parent)
    }
}

impl Drop for WorkingFolder {
    fn drop(&mut self) {
        if !self.is_published {
            // Nothing better can be done about a failure here, and the error that led here is the one to report.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Whether `path` has the name of a working folder.
pub(super) fn is_working_folder(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once(SUFFIX)
        .is_some_and(|(_, pid)| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Working folders beside `target` that other ingests of it left, or are using.
pub(super) fn other_working_folders(target: &Path, parent: &Path) -> Vec<PathBuf> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let mut folders: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let other = path.file_name().unwrap_or_default().to_string_lossy();
            is_working_folder(path) && other.rsplit_once(SUFFIX).is_some_and(|(stem, _)| stem == name)
        })
        .collect();
    folders.sort();
    folders
}

fn refuse_existing(target: &Path) -> Result<(), StoreError> {
    // Not `exists`: a link that leads nowhere is there, too.
    match fs::symlink_metadata(target) {
        Ok(_) => Err(StoreError::TargetExists { path: target.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error("look up", target)(error)),
    }
}

fn sync_folder(path: &Path) -> Result<(), StoreError> {
    let folder = File::open(path).map_err(io_error("open the folder", path))?;
    folder.sync_all().map_err(io_error("sync the folder", path))
}
