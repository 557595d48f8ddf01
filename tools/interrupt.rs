//! Ctrl-C: it ends a reply that is being made, and the program where none is.
//!
//! Owns: the signal's handler and its flags, which are the only globals of the program. SIGTERM is left to the system,
//! which ends the process with code 143; what an ingest leaves behind then is a working folder that names itself so.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Exit;
use crate::terminal::note;

static IS_REPLYING: AtomicBool = AtomicBool::new(false);
static IS_REQUESTED: AtomicBool = AtomicBool::new(false);
static WORKING_FOLDER: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Installs the handler.
pub(crate) fn install() {
    if let Err(error) = ctrlc::set_handler(handle) {
        note(&format!("Ctrl-C will end the program at once: {error}"));
    }
}

fn handle() {
    if IS_REPLYING.load(Ordering::SeqCst) && !IS_REQUESTED.swap(true, Ordering::SeqCst) {
        return;
    }
    if let Ok(Some(folder)) = WORKING_FOLDER.lock().map(|mut folder| folder.take()) {
        // It may not be there yet, or not any more.
        let _ = std::fs::remove_dir_all(folder);
    }
    std::process::exit(Exit::Interrupted as i32);
}

/// Whether the reply that is being made is to end.
pub(crate) fn is_requested() -> bool {
    IS_REQUESTED.load(Ordering::SeqCst)
}

/// While it lives, the first Ctrl-C only asks; the second ends the program.
pub(crate) struct Reply(());

impl Reply {
    /// A reply begins.
    pub(crate) fn begin() -> Self {
        IS_REQUESTED.store(false, Ordering::SeqCst);
        IS_REPLYING.store(true, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        IS_REPLYING.store(false, Ordering::SeqCst);
    }
}

/// While it lives, Ctrl-C removes this folder before the program ends.
pub(crate) struct Working(());

impl Working {
    /// Work in `folder` begins.
    pub(crate) fn begin(folder: PathBuf) -> Self {
        set_folder(Some(folder));
        Self(())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        set_folder(None);
    }
}

fn set_folder(folder: Option<PathBuf>) {
    if let Ok(mut held) = WORKING_FOLDER.lock() {
        *held = folder;
    }
}
