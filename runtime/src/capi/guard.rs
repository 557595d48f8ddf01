//! What every call goes through: panics end here, and what went wrong is kept for `flint_rt_last_error`.
//!
//! - Owns: the text of the last fault of this thread where there was no handle for it; the hook that keeps a panic's place.
//! - In: the body of a call. Out: its [`Status`].
//! - Invariants: no panic leaves. A call that succeeds takes no memory here. Nothing that a thread owns has a destructor, so that
//!   the library can be unloaded while the thread lives.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::{Mutex, Once, PoisonError};

use super::status::{Fault, Status};

/// A text of a fixed length: what does not fit is left out.
struct Line {
    bytes: [u8; 1024],
    len: usize,
}

impl Line {
    const fn new() -> Self {
        Self { bytes: [0; 1024], len: 0 }
    }

    fn set(&mut self, text: &str) {
        self.len = text.floor_char_boundary(self.bytes.len());
        self.bytes[..self.len].copy_from_slice(&text.as_bytes()[..self.len]);
    }

    fn get(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len]).expect("invariant: cut between characters")
    }
}

thread_local! {
    static LAST: RefCell<Line> = const { RefCell::new(Line::new()) };
    static PLACE: RefCell<Line> = const { RefCell::new(Line::new()) };
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// The text of an object's last fault.
#[derive(Default)]
pub(super) struct LastError(Mutex<String>);

impl LastError {
    fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// Runs `body` with the text.
    pub(super) fn read<T>(&self, body: impl FnOnce(&str) -> T) -> T {
        body(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Runs `body` with the text of this thread's last fault without a handle.
pub(super) fn read_thread_error<T>(body: impl FnOnce(&str) -> T) -> T {
    LAST.with_borrow(|line| body(line.get()))
}

/// Panics of our own threads are shown; those within a call are told by its status.
fn hook(info: &PanicHookInfo<'_>) {
    if CALLS.get() > 0 {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        PLACE.with_borrow_mut(|line| line.set(&place));
    } else {
        // Nobody is left to be told that this failed.
        let _ = writeln!(std::io::stderr(), "libflint_rt: {info}");
    }
}

fn panicked(payload: &(dyn Any + Send)) -> Fault {
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    let text = PLACE.with_borrow(|place| {
        format!("a fault of libflint_rt, please report it: {message}, at {}", place.get())
    });
    Fault::new(Status::Panic, text)
}

/// Runs the body of a call, and keeps its fault with `errors`, or with the thread where there is no object.
pub(super) fn run(errors: Option<&LastError>, body: impl FnOnce() -> Result<(), Fault>) -> Status {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| panic::set_hook(Box::new(hook)));
    CALLS.set(CALLS.get() + 1);
    let caught = panic::catch_unwind(AssertUnwindSafe(body));
    CALLS.set(CALLS.get() - 1);
    let fault = match caught {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(fault)) => fault,
        Err(payload) => panicked(payload.as_ref()),
    };
    let status = fault.status;
    match errors {
        Some(errors) => errors.set(fault.text),
        None => LAST.with_borrow_mut(|line| line.set(&fault.text)),
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status_with_its_message_and_place() {
        let status = run(None, || panic!("on purpose {}", 1));
        assert_eq!(status, Status::Panic);
        read_thread_error(|text| {
            assert!(text.contains("on purpose 1") && text.contains("guard.rs"), "{text}");
        });
        let errors = LastError::default();
        assert_eq!(run(Some(&errors), || Err(Fault::argument("no"))), Status::Argument);
        errors.read(|text| assert_eq!(text, "no"));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let mut line = Line::new();
        line.set(&"é".repeat(1000));
        assert_eq!(line.get(), "é".repeat(512));
    }
}
