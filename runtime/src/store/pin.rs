//! Remembers the SHA-256 of files that do not change, so that 26 GB are summed once.
//!
//! - Owns: a folder of small JSON files, one a file remembered. In: a path, and the digest that was computed of it. Out: the
//!   digest, and whether the file still is in the state in which it was computed.
//! - Invariants: a note is believed only where path, device, inode, length, modification and change time are equal, and
//!   only where the file had rested when it was read: two writes within one tick of the clock look alike. A note that is
//!   damaged is none. Notes are replaced by a rename, so there is never half a one.

use std::fs::{self, File, Metadata};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::store::digest::Sha256Digest;
use crate::store::error::{StoreError, io_error};

/// How long a file must have rested: the coarsest clock of a file system that is in use (FAT) ticks every two seconds.
const REST: Duration = Duration::from_secs(2);

const FORMAT: &str = "flint-rt file note";

/// The state of a file. Equal states of a file that had rested mean equal bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileStamp {
    /// Absolute, without links.
    path: String,
    device: u64,
    inode: u64,
    len_bytes: u64,
    /// Modification and change time: seconds and nanoseconds.
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl FileStamp {
    /// The state of `file`, which was opened by `path`.
    ///
    /// # Errors
    /// [`StoreError::Io`] when it cannot be looked up, or the path is gone.
    pub fn of(path: &Path, file: &File) -> Result<Self, StoreError> {
        let metadata = file.metadata().map_err(io_error("look up", path))?;
        Self::from_metadata(path, &metadata)
    }

    /// The state of the file at `path` now.
    ///
    /// # Errors
    /// As [`FileStamp::of`].
    pub fn now(path: &Path) -> Result<Self, StoreError> {
        let metadata = fs::metadata(path).map_err(io_error("look up", path))?;
        Self::from_metadata(path, &metadata)
    }

    fn from_metadata(path: &Path, found: &Metadata) -> Result<Self, StoreError> {
        let real = fs::canonicalize(path).map_err(io_error("look up", path))?;
        Ok(Self {
            path: real.to_string_lossy().into_owned(),
            device: found.dev(),
            inode: found.ino(),
            len_bytes: found.len(),
            mtime: (found.mtime(), found.mtime_nsec()),
            ctime: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// Bytes of the file.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn had_rested(&self, at: SystemTime) -> bool {
        let now = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let last = self.mtime.0.max(self.ctime.0);
        let last = Duration::from_secs(u64::try_from(last).unwrap_or(0).saturating_add(1));
        now >= last + REST
    }
}

/// What is known of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// What its bytes gave.
    pub sha256: Sha256Digest,
    /// Whether it still is in the state in which they were read.
    pub is_unchanged: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    format: String,
    version: u32,
    stamp: FileStamp,
    /// Whether the stamp may be believed.
    had_rested: bool,
    sha256: Sha256Digest,
}

/// The notes.
#[derive(Debug, Clone)]
pub struct FileNotes {
    folder: PathBuf,
}

impl FileNotes {
    /// Notes in `folder`, which is made when the first is written.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// What is known of the file at `path`.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the file cannot be looked up. A note that cannot be read is none.
    pub fn look_up(&self, path: &Path) -> Result<Option<Remembered>, StoreError> {
        let now = FileStamp::now(path)?;
        let note = fs::read(self.note_path(&now)).ok();
        let note = note.and_then(|bytes| serde_json::from_slice::<Note>(&bytes).ok());
        let note =
            note.filter(|note| note.format == FORMAT && note.version == 1 && note.stamp.path == now.path);
        Ok(note.map(|note| Remembered {
            sha256: note.sha256,
            is_unchanged: note.had_rested && note.stamp == now,
        }))
    }

    /// Notes that the file in state `stamp` has `sha256`; `read_from` is when its bytes began to be read.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the note cannot be written.
    pub fn remember(
        &self,
        stamp: &FileStamp,
        sha256: Sha256Digest,
        read_from: SystemTime,
    ) -> Result<(), StoreError> {
        let note = Note {
            format: FORMAT.to_owned(),
            version: 1,
            stamp: stamp.clone(),
            had_rested: stamp.had_rested(read_from),
            sha256,
        };
        let path = self.note_path(stamp);
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        fs::create_dir_all(&self.folder).map_err(io_error("make", &self.folder))?;
        let written = File::create(&temporary).and_then(|mut file| {
            serde_json::to_writer(&file, &note)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        });
        written.map_err(|error| {
            // It may not be there; what matters is why.
            let _ = fs::remove_file(&temporary);
            io_error("write", &path)(error)
        })
    }

    fn note_path(&self, stamp: &FileStamp) -> PathBuf {
        self.folder.join(format!("{}.json", Sha256Digest::of(stamp.path.as_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: Sha256Digest = Sha256Digest([9; 32]);

    #[test]
    fn a_note_holds_until_the_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"bytes").unwrap();
        let notes = FileNotes::new(folder.path().join("deep/notes"));
        assert_eq!(notes.look_up(&path).unwrap(), None);
        let stamp = FileStamp::now(&path).unwrap();
        let later = SystemTime::now() + Duration::from_secs(10);
        notes.remember(&stamp, DIGEST, later).unwrap();
        let known = |is_unchanged| Some(Remembered { sha256: DIGEST, is_unchanged });
        assert_eq!(notes.look_up(&path).unwrap(), known(true));

        // The same bytes and times by another name are another file.
        let copy = folder.path().join("copy");
        fs::hard_link(&path, &copy).unwrap();
        assert_eq!(notes.look_up(&copy).unwrap(), None);
        fs::remove_file(&copy).unwrap();

        fs::write(&path, b"bytes and more").unwrap();
        assert_eq!(notes.look_up(&path).unwrap(), known(false));
    }

    #[test]
    fn a_file_that_had_not_rested_is_summed_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"bytes").unwrap();
        let notes = FileNotes::new(folder.path().to_owned());
        notes.remember(&FileStamp::now(&path).unwrap(), DIGEST, SystemTime::now()).unwrap();
        assert!(!notes.look_up(&path).unwrap().unwrap().is_unchanged);
    }

    #[test]
    fn a_damaged_note_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"bytes").unwrap();
        let notes = FileNotes::new(folder.path().join("notes"));
        let stamp = FileStamp::now(&path).unwrap();
        notes.remember(&stamp, DIGEST, SystemTime::now()).unwrap();
        let note = notes.note_path(&stamp);
        let whole = fs::read(&note).unwrap();
        for len in [0, 1, whole.len() / 2, whole.len() - 3] {
            fs::write(&note, &whole[..len]).unwrap();
            assert_eq!(notes.look_up(&path).unwrap(), None, "{len} bytes of a note");
        }
    }
}
