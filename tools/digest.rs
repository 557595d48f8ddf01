//! The SHA-256 of a file, computed once.
//!
//! - Owns: `digests.json` in the cache folder. In: a path. Out: the file's SHA-256.
//! - Invariants: what was remembered counts only for a file of the same path, length, times and inode. A memory that
//!   cannot be read or written costs time, never an error.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use flint_rt::store::Sha256Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::folders;
use crate::terminal::Bar;

/// Files remembered at most; when there are more, all are forgotten.
const FILES_MAX: usize = 256;

/// Largest memory that is believed.
const MEMORY_BYTES_MAX: u64 = 1 << 20;

/// Read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// What tells a file from another that took its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    device: u64,
    inode: u64,
    len_bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(file: &std::fs::Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            len_bytes: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    stamp: Stamp,
    sha256: Sha256Digest,
}

type Memory = BTreeMap<String, Entry>;

/// The SHA-256 of the file at `path`, from memory if it is the file that was read before.
///
/// # Errors
/// When it cannot be read, or is written to meanwhile.
pub(crate) fn of_file(path: &Path) -> io::Result<Sha256Digest> {
    remembered(path, folders::cache_dir().as_deref())
}

fn remembered(path: &Path, cache_dir: Option<&Path>) -> io::Result<Sha256Digest> {
    let file = File::open(path)?;
    let stamp = Stamp::of(&file.metadata()?);
    // A path that is not UTF-8 is not remembered.
    let key = path.canonicalize()?.into_os_string().into_string().ok();
    let place = cache_dir.map(|dir| dir.join("digests.json"));
    let mut memory = place.as_deref().and_then(read_memory).unwrap_or_default();
    let known = key.as_ref().and_then(|key| memory.get(key)).filter(|entry| entry.stamp == stamp);
    if let Some(entry) = known {
        return Ok(entry.sha256);
    }
    let sha256 = compute(&file, stamp.len_bytes)?;
    if Stamp::of(&file.metadata()?) != stamp {
        return Err(io::Error::other("it is being written to: try again when it is complete"));
    }
    if let (Some(key), Some(place)) = (key, place) {
        if memory.len() >= FILES_MAX {
            memory.clear();
        }
        memory.insert(key, Entry { stamp, sha256 });
        // The next run computes it again.
        let _ = write_memory(&place, &memory);
    }
    Ok(sha256)
}

fn compute(mut file: &File, len_bytes: u64) -> io::Result<Sha256Digest> {
    let bar = Bar::bytes("comparing");
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut done_bytes = 0;
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(Sha256Digest(hash.finalize().into())),
            Ok(len) => {
                hash.update(&piece[..len]);
                done_bytes += len as u64;
                bar.set(done_bytes, len_bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn read_memory(place: &Path) -> Option<Memory> {
    if !std::fs::metadata(place).ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(place).ok()?.take(MEMORY_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn write_memory(place: &PathBuf, memory: &Memory) -> io::Result<()> {
    let dir = place.parent().ok_or_else(|| io::Error::other("no folder"))?;
    std::fs::create_dir_all(dir)?;
    let mut file = tempfile::Builder::new().prefix(".digests-").tempfile_in(dir)?;
    serde_json::to_writer(&mut file, memory).map_err(io::Error::from)?;
    file.write_all(b"\n")?;
    file.persist(place).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_and_again_when_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("cache");
        let path = dir.path().join("file");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(remembered(&path, Some(&cache)).unwrap(), Sha256Digest::of(b"abc"));

        // A wrong memory shows that it is believed.
        let place = cache.join("digests.json");
        let mut memory = read_memory(&place).unwrap();
        memory.values_mut().next().unwrap().sha256 = Sha256Digest::of(b"other");
        write_memory(&place, &memory).unwrap();
        assert_eq!(remembered(&path, Some(&cache)).unwrap(), Sha256Digest::of(b"other"));

        std::fs::write(&path, "abd").unwrap();
        assert_eq!(remembered(&path, Some(&cache)).unwrap(), Sha256Digest::of(b"abd"));
        std::fs::write(&place, "damaged").unwrap();
        assert_eq!(remembered(&path, Some(&cache)).unwrap(), Sha256Digest::of(b"abd"));
        assert_eq!(remembered(&path, None).unwrap(), Sha256Digest::of(b"abd"));
    }
}
