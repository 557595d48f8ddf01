//! Conversations in a folder, which outlive the server.
//!
//! - Owns: an index of the folder's files of this model: tokens and cuts of each, not the rows. In: snapshots to write, prompts.
//!   Out: the file that has most of a prompt.
//! - A file is named after its model and otherwise unlike any other, and appears whole (`flint_rt::engine::snapshot::file`); so
//!   several servers can use one folder. What another one removed is forgotten when it is missed.
//! - Invariants: after a write, all files of the folder together keep to the limit, also those of other models: the longest unused
//!   leave, by the times of the files. Nothing but files with our ending is ever removed.
//! - It is called from the engine's thread to look, from the threads of `files` to read and write; the lock is held for neither.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use flint_rt::base::ids::TokenId;
use flint_rt::engine::snapshot::CacheShape;
use flint_rt::engine::snapshot::file::{SnapshotHead, remove_partial};
use flint_rt::engine::{Snapshot, SnapshotError};
use flint_rt::store::Sha256Digest;

use super::policy::{Kept, victims};

/// The ending of our files.
const ENDING: &str = "flint-kv";

/// Files of a model that are looked at when the server starts: the latest. Each has its tokens in memory, 4 bytes each.
const FILES_MAX: usize = 4096;

struct Entry {
    path: PathBuf,
    head: SnapshotHead,
}

/// The folder.
pub(super) struct Disk {
    folder: PathBuf,
    bytes_max: u64,
    model: Sha256Digest,
    shape: CacheShape,
    entries: Mutex<Vec<Entry>>,
    /// Bytes of all files with our ending, when they were last counted.
    bytes: AtomicU64,
}

/// A file of the folder.
struct Found {
    path: PathBuf,
    bytes: u64,
    modified: SystemTime,
}

impl Disk {
    /// Opens the folder, or makes it, and reads what its files of this model hold.
    ///
    /// # Errors
    /// When it cannot be made or read.
    pub(super) fn open(
        folder: &Path,
        bytes_max: u64,
        model: Sha256Digest,
        shape: CacheShape,
    ) -> Result<Self, SnapshotError> {
        let failed = |what| move |source| SnapshotError::Io { what, path: folder.to_owned(), source };
        // What was talked about is nobody else's business.
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed("make"))?;
        fs::read_dir(folder).map_err(failed("read"))?;
        let left = remove_partial(folder);
        if left > 0 {
            tracing::info!(files = left, "removed what was left half written in the prompt cache's folder");
        }
        let disk = Self {
            folder: folder.to_owned(),
            bytes_max,
            model,
            shape,
            entries: Mutex::new(Vec::new()),
            bytes: AtomicU64::new(0),
        };
        let mut files = disk.files();
        files.retain(|file| file.path.file_name().is_some_and(|name| disk.is_of_model(name)));
        files.sort_by_key(|file| std::cmp::Reverse(file.modified));
        files.truncate(FILES_MAX);
        let heads = files.into_iter().filter_map(|file| {
            match SnapshotHead::read(&file.path, (disk.model, &disk.shape)) {
                Ok(head) => Some(Entry { path: file.path, head }),
                Err(error) => {
                    disk.forget(&file.path, &error);
                    None
                }
            }
        });
        let heads = heads.collect();
        *disk.lock() = heads;
        disk.make_room(0);
        Ok(disk)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        // Nothing that holds it can panic half way.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What our files of this model begin with.
    fn prefix(&self) -> String {
        self.model.to_string()[..16].to_owned()
    }

    fn is_of_model(&self, name: &OsStr) -> bool {
        name.as_encoded_bytes().starts_with(self.prefix().as_bytes())
    }

    /// All files with our ending. What cannot be read is not there.
    fn files(&self) -> Vec<Found> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let found = entries.filter_map(|entry| {
            let path = entry.path();
            let found = entry.metadata().ok().filter(|found| found.is_file())?;
            let modified = found.modified().unwrap_or(UNIX_EPOCH);
            (path.extension() == Some(OsStr::new(ENDING))).then_some(Found {
                path,
                bytes: found.len(),
                modified,
            })
        });
        found.collect()
    }

    /// Removes the longest unused files, so that `new_bytes` fit with the others. Whether they do.
    fn make_room(&self, new_bytes: u64) -> bool {
        let files = self.files();
        let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let kept: Vec<Kept> = files
            .iter()
            .map(|file| Kept {
                bytes: file.bytes,
                used: u64::try_from(since(file.modified)).unwrap_or(u64::MAX),
                is_held: false,
            })
            .collect();
        let leave = victims(&kept, new_bytes, self.bytes_max);
        let leaves = |index: usize| leave.as_ref().is_some_and(|leave| leave.contains(&index));
        let (mut bytes, mut stay) = (0, Vec::new());
        for (index, file) in files.into_iter().enumerate() {
            // What another server removed first is gone, too.
            if leaves(index) && fs::remove_file(&file.path).is_ok() {
                continue;
            }
            bytes += file.bytes;
            stay.push(file.path);
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        self.lock().retain(|entry| stay.contains(&entry.path));
        leave.is_some()
    }

    /// The file that has most of `prompt`, with how much, and the host memory that it takes.
    pub(super) fn find(&self, prompt: &[TokenId]) -> Option<(PathBuf, u32, u64)> {
        let entries = self.lock();
        let reached = entries.iter().map(|entry| (entry, entry.head.reach(prompt)));
        let (entry, reach) = reached.filter(|(_, reach)| *reach > 0).max_by_key(|(_, reach)| *reach)?;
        Some((entry.path.clone(), reach, entry.head.bytes()))
    }

    /// Whether a file holds this very conversation.
    pub(super) fn has(&self, tokens: &[TokenId]) -> bool {
        self.lock().iter().any(|entry| entry.head.tokens == tokens)
    }

    /// Bytes of all files, when they were last counted.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Writes a conversation, in the place of those that it continues. Returns its bytes; none where it is longer than the limit,
    /// or there already.
    ///
    /// # Errors
    /// As [`Snapshot::save`].
    pub(super) fn write(
        &self,
        snapshot: &Snapshot,
        is_given_up: &dyn Fn() -> bool,
    ) -> Result<Option<u64>, SnapshotError> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        if self.has(snapshot.tokens()) || !self.make_room(snapshot.file_bytes()) {
            return Ok(None);
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{time:x}-{:x}-{count:x}.{ENDING}", self.prefix(), std::process::id());
        let path = self.folder.join(name);
        let bytes = snapshot.save(&path, is_given_up)?;
        let head = SnapshotHead::read(&path, (self.model, &self.shape))?;
        let mut entries = self.lock();
        let continued = |entry: &Entry| snapshot.tokens().starts_with(&entry.head.tokens);
        let old: Vec<PathBuf> =
            entries.iter().filter(|entry| continued(entry)).map(|entry| entry.path.clone()).collect();
        entries.retain(|entry| !continued(entry));
        entries.push(Entry { path, head });
        drop(entries);
        for path in old {
            // One that another server removed first is gone, too.
            let _ = fs::remove_file(path);
        }
        self.make_room(0);
        Ok(Some(bytes))
    }

    /// Reads a file of the folder. One that is damaged is removed, one that is gone is forgotten.
    ///
    /// # Errors
    /// As [`Snapshot::load`].
    pub(super) fn read(&self, path: &Path) -> Result<Snapshot, SnapshotError> {
        let loaded = Snapshot::load(path, (self.model, &self.shape));
        match &loaded {
            // So that it leaves late. Where that is not allowed it leaves earlier.
            Ok(_) => {
                let _ =
                    File::options().append(true).open(path).map(|file| file.set_modified(SystemTime::now()));
            }
            Err(error) => self.forget(path, error),
        }
        loaded
    }

    /// Removes the files that `prompt` could go on from.
    pub(super) fn remove(&self, prompt: &[TokenId]) {
        let mut entries = self.lock();
        let (leave, stay) =
            std::mem::take(&mut *entries).into_iter().partition(|entry| entry.head.reach(prompt) > 0);
        *entries = stay;
        drop(entries);
        let leave: Vec<Entry> = leave;
        for entry in leave {
            // One that another server removed first is gone, too.
            let _ = fs::remove_file(entry.path);
        }
    }

    fn forget(&self, path: &Path, error: &SnapshotError) {
        self.lock().retain(|entry| entry.path != path);
        let is_worthless = matches!(
            error,
            SnapshotError::Damaged { .. }
                | SnapshotError::NotASnapshot { .. }
                | SnapshotError::OtherLength { .. }
                | SnapshotError::BadHead { .. }
        );
        let removed = is_worthless && fs::remove_file(path).is_ok();
        tracing::warn!(removed, "a kept conversation cannot be used: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::memory::tests::snapshot;
    use super::*;

    fn open(folder: &Path, bytes_max: u64) -> Disk {
        let shape = CacheShape { row_bytes: 4, windows: Vec::new() };
        Disk::open(folder, bytes_max, Sha256Digest([1; 32]), shape).expect("a folder")
    }

    fn write(disk: &Disk, tokens: &[TokenId]) -> Option<u64> {
        disk.write(&snapshot(tokens), &|| false).expect("written")
    }

    fn names(folder: &Path) -> usize {
        fs::read_dir(folder).expect("a folder").count()
    }

    #[test]
    fn what_was_written_is_found_after_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("made/anew");
        let disk = open(&folder, 10_000);
        assert!(write(&disk, &[1, 2, 3]).is_some() && write(&disk, &[4, 5]).is_some());
        assert!(write(&disk, &[4, 5]).is_none(), "it is there");
        fs::write(folder.join(".x.1-1.flint-kv-partial"), b"half").expect("written");
        let disk = open(&folder, 10_000);
        assert_eq!(names(&folder), 2, "what was half written is gone");
        let (path, reach, bytes) = disk.find(&[1, 2, 3, 9]).expect("kept");
        assert_eq!((reach, bytes), (3, 12));
        assert_eq!(disk.read(&path).expect("whole").tokens(), [1, 2, 3]);
        assert!(disk.find(&[9]).is_none());
        // It goes on, and takes its own place.
        write(&disk, &[1, 2, 3, 4]);
        assert_eq!((names(&folder), disk.has(&[1, 2, 3]), disk.has(&[1, 2, 3, 4])), (2, false, true));
    }

    #[test]
    fn the_longest_unused_file_leaves() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let disk = open(folder, u64::MAX);
        let bytes = write(&disk, &[1, 1, 1]).expect("written");
        let long_ago = |path: &Path, seconds| {
            let file = File::options().append(true).open(path).expect("open");
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).expect("a time");
        };
        for (tokens, seconds) in [([2, 2, 2], 50), ([3, 3, 3], 90)] {
            write(&disk, &tokens);
            long_ago(&disk.find(&[tokens[0], 0]).expect("kept").0, seconds);
        }
        long_ago(&disk.find(&[1, 0]).expect("kept").0, 100);
        // Of another model, and of somebody else.
        let other = folder.join(format!("0123456789abcdef-1.{ENDING}"));
        fs::write(&other, vec![0; 100]).expect("written");
        long_ago(&other, 1000);
        fs::write(folder.join("notes.txt"), vec![0; 10_000]).expect("written");

        let disk = open(folder, 3 * bytes);
        assert!(!other.exists() && names(folder) == 4, "the other model's was the oldest");
        // A use makes it young.
        let (first, ..) = disk.find(&[1, 0]).expect("kept");
        disk.read(&first).expect("whole");
        write(&disk, &[4, 4, 4]);
        assert!(disk.find(&[3, 0]).is_none(), "the longest unused");
        assert!(disk.find(&[1, 0]).is_some() && disk.find(&[2, 0]).is_some());
        assert!(disk.bytes() <= 3 * bytes && folder.join("notes.txt").exists());
        assert!(write(&disk, &[5; 200]).is_none(), "longer than all that is allowed");
        assert_eq!(names(folder), 4);
    }

    #[test]
    fn two_servers_share_a_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, two) = (open(folder.path(), 10_000), open(folder.path(), 10_000));
        write(&one, &[1, 2, 3]);
        write(&two, &[1, 2, 3]);
        assert_eq!(names(folder.path()), 2, "names never meet");
        let (path, ..) = one.find(&[1, 2, 9]).expect("kept");
        fs::remove_file(&path).expect("removed by the other");
        assert!(matches!(one.read(&path), Err(SnapshotError::Io { .. })));
        assert!(one.find(&[1, 2, 9]).is_none(), "forgotten");
        // One that is damaged is refused, and removed.
        let (path, ..) = two.find(&[1, 2, 9]).expect("kept");
        let mut bytes = fs::read(&path).expect("read");
        *bytes.last_mut().expect("a byte") ^= 1;
        fs::write(&path, bytes).expect("written");
        assert!(matches!(two.read(&path), Err(SnapshotError::Damaged { .. })));
        assert!(!path.exists() && two.find(&[1, 2, 9]).is_none());
    }
}
