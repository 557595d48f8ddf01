//! Ctrl-C: it ends a reply that is being made, and the program where none is.
//!
//! Owns: the signal's handler and its flags, which are the only globals of the program. SIGTERM is left to the system,
//! which ends the process with code 143; what an ingest leaves behind then, the next one goes on with.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit::Exit;
use crate::terminal::note;

static IS_REPLYING: AtomicBool = AtomicBool::new(false);
static IS_REQUESTED: AtomicBool = AtomicBool::new(false);

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
