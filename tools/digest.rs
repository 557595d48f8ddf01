//! The SHA-256 of a file, computed once and remembered until the file changes (`FileNotes`).

use std::ops::ControlFlow;
use std::path::Path;
use std::time::SystemTime;

use flint_rt::store::{FileNotes, Sha256Digest, StoreError, sha256_of_file};

use crate::exit::Outcome;
use crate::terminal::Bar;
use crate::{folders, interrupt};

/// Where digests are remembered.
pub(crate) fn notes() -> Option<FileNotes> {
    folders::state_dir().map(|dir| FileNotes::new(dir.join("sha256")))
}

/// The SHA-256 of the file at `path`, from memory if it is the file that was read before.
///
/// # Errors
/// When it cannot be read, or is written to meanwhile.
pub(crate) fn of_file(path: &Path) -> Outcome<Sha256Digest> {
    let notes = notes();
    if let Some(known) = notes.as_ref().map(|notes| notes.look_up(path)).transpose()?.flatten()
        && known.is_unchanged
    {
        return Ok(known.sha256);
    }
    let (bar, _asking) = (Bar::bytes("comparing"), interrupt::Reply::begin());
    let read_from = SystemTime::now();
    let summed: Result<_, StoreError> = sha256_of_file(path, &mut |progress| {
        bar.set(progress.done_bytes, progress.total_bytes);
        if interrupt::is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.clear();
    let (sha256, stamp) = summed?;
    // Not to remember costs time the next time, and nothing else.
    let _ = notes.map(|notes| notes.remember(&stamp, sha256, read_from));
    Ok(sha256)
}
