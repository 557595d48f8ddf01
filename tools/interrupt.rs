//! SIGINT (Ctrl-C) and SIGTERM: they end a reply that is being made, ask a server to end, and
//! end the program otherwise.
//!
//! Owns: the thread that waits for signals and its flags, which are the only globals of the program. In: signals; paths
//! that are half made. Out: flags for whoever works; an exit with code 130 or 143.
//!
//! Invariants: both signals have a handler, so that they also end the first process of a container, to which the kernel
//! gives no default; no path that is half made is left behind by either.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;

use crate::exit::Exit;
use crate::terminal::note;

static IS_SERVING: AtomicBool = AtomicBool::new(false);
static IS_REPLYING: AtomicBool = AtomicBool::new(false);
static IS_REQUESTED: AtomicBool = AtomicBool::new(false);
static IS_TERMINATING: AtomicBool = AtomicBool::new(false);
static HALF_MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// How long a reply has to end after SIGTERM: service managers kill after some 10 s.
const GRACE: Duration = Duration::from_secs(3);

/// How often a folder is removed into which another thread still writes.
const REMOVALS_MAX: u32 = 20;

/// Installs the handlers.
pub(crate) fn install() {
    let started = Signals::new([SIGINT, SIGTERM]).and_then(|mut signals| {
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                handle(signal);
            }
        })
    });
    // Its default ends the program where a file reaches `ulimit -f`; with a handler the write fails, and is reported.
    let _ = signal_hook::flag::register(libc::SIGXFSZ, Arc::default());
    if let Err(error) = started {
        note(&format!("Ctrl-C will end the program at once: {error}"));
    }
}

fn handle(signal: i32) {
    if IS_SERVING.load(Ordering::SeqCst) {
        if signal == SIGTERM {
            IS_TERMINATING.store(true, Ordering::SeqCst);
        }
        // A server ends in its own time; who asks twice does not want to wait.
        if !IS_REQUESTED.swap(true, Ordering::SeqCst) {
            return;
        }
    } else if signal == SIGTERM {
        let is_first = !IS_TERMINATING.swap(true, Ordering::SeqCst);
        if is_first && IS_REPLYING.load(Ordering::SeqCst) {
            IS_REQUESTED.store(true, Ordering::SeqCst);
            let ended = std::thread::Builder::new().spawn(|| {
                std::thread::sleep(GRACE);
                end();
            });
            if ended.is_ok() {
                return;
            }
        }
    } else if IS_REPLYING.load(Ordering::SeqCst) && !IS_REQUESTED.swap(true, Ordering::SeqCst) {
        return;
    }
    end();
}

/// Removes what is half made and ends the process, without the destructors that other threads' work would race with.
fn end() -> ! {
    // Held to the end: who made a path waits for the lock, and so does not report that it is gone.
    let paths = paths();
    for path in paths.iter() {
        for _ in 0..REMOVALS_MAX {
            // It may not be there yet, or not any more; or a file appears in it while it is emptied.
            let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
            if path.symlink_metadata().is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    low_level::exit(exit() as i32)
}

/// The code of the signal that came.
pub(crate) fn exit() -> Exit {
    if is_terminating() { Exit::Terminated } else { Exit::Interrupted }
}

/// Whether the reply that is being made is to end.
pub(crate) fn is_requested() -> bool {
    IS_REQUESTED.load(Ordering::SeqCst)
}

/// Whether the program is to end, and not only a reply.
pub(crate) fn is_terminating() -> bool {
    IS_TERMINATING.load(Ordering::SeqCst)
}

/// From now on the first signal only asks a server to end, however long that takes; the second ends the program.
pub(crate) fn serve() {
    IS_SERVING.store(true, Ordering::SeqCst);
}

/// While it lives, the first signal only asks; the second ends the program.
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

/// While it lives, a signal removes this file or folder before the program ends.
pub(crate) struct Working(PathBuf);

impl Working {
    /// Work in `path` begins.
    pub(crate) fn begin(path: PathBuf) -> Self {
        paths().push(path.clone());
        Self(path)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut paths = paths();
        if let Some(index) = paths.iter().position(|path| *path == self.0) {
            paths.swap_remove(index);
        }
    }
}

fn paths() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    HALF_MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
