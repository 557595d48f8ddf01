//! A test file of our own: the one thing that this command ever writes.
//!
//! - Owns: a folder with one file, removed when it is dropped, and by Ctrl-C and SIGTERM. In: a folder, a length.
//! - Invariants: room is looked for before the first byte; the bytes are random, since drives and file systems compress.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flint_rt::base::split_mix::mix;
use flint_rt::base::units::display_bytes;
use flint_rt::base::volume::free_bytes;
use tempfile::TempDir;

use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::{self, Working};
use crate::terminal::Bar;

/// Left free beside the file, so that nobody else's write fails for it.
const SPARED_BYTES: u64 = 256 << 20;

/// The file, while it lives.
pub(crate) struct Made {
    path: PathBuf,
    // Dropped in this order: the folder goes before a signal stops looking for it.
    _dir: TempDir,
    _working: Working,
}

impl Made {
    /// Writes `len_bytes` into a file in `folder`.
    pub(crate) fn new(folder: &Path, len_bytes: u64) -> Outcome<Self> {
        let shown = folder.display().to_string();
        let failed = |error: io::Error| Failure::because(Exit::of_io(&error), shown.clone(), &error);
        let free = free_bytes(folder).map_err(failed)?;
        if free < len_bytes.saturating_add(SPARED_BYTES) {
            return Err(Failure::new(
                Exit::Memory,
                format!(
                    "{shown}: a file of {} is to be made, and {} are free, of which {} stay free: give a smaller \
                     --make-file",
                    display_bytes(len_bytes),
                    display_bytes(free),
                    display_bytes(SPARED_BYTES)
                ),
            ));
        }
        let dir = tempfile::Builder::new().prefix("flint-rt-measure-").tempdir_in(folder).map_err(failed)?;
        let made = Self {
            path: dir.path().join("records"),
            _working: Working::begin(dir.path().to_owned()),
            _dir: dir,
        };
        let is_whole = write(&made.path, len_bytes).map_err(failed)?;
        if is_whole { Ok(made) } else { Err(Failure::Interrupted) }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether the file became whole: an interrupt ends it early.
fn write(path: &Path, len_bytes: u64) -> io::Result<bool> {
    let bar = Bar::bytes("writing a file");
    let mut file = File::create_new(path)?;
    let mut state = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), len_bytes);
    let mut block = vec![0_u8; 1 << 20];
    let mut done = 0;
    while done < len_bytes {
        for word in block.chunks_exact_mut(8) {
            state = mix(state);
            word.copy_from_slice(&state.to_le_bytes());
        }
        let len = usize::try_from(len_bytes - done).unwrap_or(usize::MAX).min(block.len());
        file.write_all(&block[..len])?;
        done += len as u64;
        bar.set(done, len_bytes);
        if interrupt::is_requested() {
            return Ok(false);
        }
    }
    bar.message("syncing");
    file.sync_all()?;
    Ok(!interrupt::is_requested())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole_has_no_repetition_and_is_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let made = Made::new(folder.path(), (1 << 20) + 5000).unwrap();
        let bytes = std::fs::read(made.path()).unwrap();
        assert_eq!(bytes.len(), (1 << 20) + 5000);
        let words: std::collections::HashSet<&[u8]> = bytes.chunks_exact(8).collect();
        assert_eq!(words.len(), bytes.len() / 8, "repeated words");
        drop(made);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn too_little_room_is_said_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let Err(Failure::Told { exit, text }) = Made::new(folder.path(), 1 << 60) else { panic!("made") };
        assert!(exit == Exit::Memory && text.contains("--make-file"), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
