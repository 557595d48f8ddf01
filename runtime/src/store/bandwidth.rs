//! How fast a drive writes and reads, for the shares of a striped store.
//!
//! - Owns: a file of its own in the folder, removed at the end. In: a folder. Out: bytes a second.
//! - Invariants: past the page cache where that works, in pieces of the size that a store is read in, several at a time.
//!   Where it does not work, the numbers are those of the page cache, and the answer says so.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::base::region::{HostBuffer, HostRegion};
use crate::base::volume::reserve;
use crate::store::error::{StoreError, io_error};

/// Bytes of a request: an expert's record of the real Flint, rounded.
const PIECE_BYTES: usize = 2 << 20;

/// Requests at a time.
const THREADS: usize = 4;

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bandwidth {
    /// Bytes a second, written and confirmed by the drive.
    pub write: f64,
    /// Bytes a second, read.
    pub read: f64,
    /// Whether the page cache was passed by; otherwise the numbers say little of the drive.
    pub is_direct: bool,
}

/// Writes a file of about `len_bytes` into `folder`, reads it, and removes it. 256 MiB take well under a second on an
/// NVMe drive, and are more than most drives' own caches hide.
///
/// # Errors
/// The folder cannot be written, or has too little room.
pub fn measure_bandwidth(folder: &Path, len_bytes: u64) -> Result<Bandwidth, StoreError> {
    let path = folder.join(format!(".flint-rt-bandwidth-{}", std::process::id()));
    let _removed = Removed(path.clone());
    let pieces = len_bytes.div_ceil((PIECE_BYTES * THREADS) as u64).max(1) * THREADS as u64;
    let len_bytes = pieces * PIECE_BYTES as u64;
    let made = OpenOptions::new().write(true).create_new(true).open(&path);
    let made = made.map_err(io_error("make the file", &path))?;
    reserve(&made, len_bytes).map_err(io_error("make room in", &path))?;
    made.sync_all().map_err(io_error("sync", &path))?;
    let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
    let (file, is_direct) = match direct {
        Ok(file) => (file, true),
        Err(_) => {
            (OpenOptions::new().read(true).write(true).open(&path).map_err(io_error("open", &path))?, false)
        }
    };

    let region = HostRegion::new(PIECE_BYTES * THREADS)?;
    let mut buffers = region.split(PIECE_BYTES, THREADS);
    // Not zeros: there are drives and file systems that do not write those.
    let mut state = 1u64;
    for buffer in &mut buffers {
        for word in buffer.as_mut_slice().as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *word = state.to_le_bytes();
        }
    }
    let rate = |started: Instant| len_bytes as f64 / started.elapsed().as_secs_f64().max(1e-9);
    let started = Instant::now();
    let write = |file: &File, buffer: &mut HostBuffer, at| file.write_all_at(buffer.as_slice(), at);
    each(&file, &mut buffers, pieces, write).map_err(io_error("write", &path))?;
    file.sync_all().map_err(io_error("sync", &path))?;
    let written = rate(started);
    let started = Instant::now();
    let read = |file: &File, buffer: &mut HostBuffer, at| file.read_exact_at(buffer.as_mut_slice(), at);
    each(&file, &mut buffers, pieces, read).map_err(io_error("read", &path))?;
    Ok(Bandwidth { write: written, read: rate(started), is_direct })
}

/// Does `step` once for each piece of the file, on one thread a buffer.
fn each(
    file: &File,
    buffers: &mut [HostBuffer],
    pieces: u64,
    step: impl Fn(&File, &mut HostBuffer, u64) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let step = &step;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(buffers)
            .map(|(first, buffer)| {
                std::thread::Builder::new().spawn_scoped(scope, move || {
                    (first..pieces)
                        .step_by(THREADS)
                        .try_for_each(|piece| step(file, buffer, piece * PIECE_BYTES as u64))
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread?.join().expect("invariant: reading and writing do not panic"))
    })
}

/// Removes the file, whatever happens.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // It may never have been made.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_a_bandwidth_and_keeps_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let bandwidth = measure_bandwidth(folder.path(), 16 << 20).unwrap();
        assert!(bandwidth.write > 0.0 && bandwidth.read > 0.0, "{bandwidth:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file is still there");
        assert!(measure_bandwidth(&folder.path().join("none"), 1).is_err(), "there is no such folder");
    }
}
