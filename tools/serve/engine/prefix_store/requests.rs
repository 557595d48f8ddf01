//! What is asked of a slot from outside: to be saved to a file, restored from one, or emptied.
//!
//! - In: requests, from any task. Out: to the engine's thread, which serves them when their slot is free.
//! - Invariants: no more wait than the limit says; one that nobody waits for any more is dropped.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::wire::error::{ApiError, Kind};

/// Requests that wait for their slots.
const WAITING_MAX: usize = 16;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Write what it holds to this file.
    Save(PathBuf),
    /// Have it hold what this file has.
    Restore(PathBuf),
    /// Have it hold nothing.
    Erase,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    /// Tokens that were saved, restored or erased.
    pub(crate) tokens: u32,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// How long it took, waiting for the slot not counted.
    pub(crate) time: Duration,
}

/// Who asked.
pub(crate) struct Asker {
    answer: oneshot::Sender<Result<Done, ApiError>>,
    began: Instant,
}

impl Asker {
    /// Says what was done; who does not wait any more does not hear it.
    pub(super) fn done(self, tokens: usize, bytes: u64) {
        let tokens = u32::try_from(tokens).expect("invariant: a context is a u32");
        let _ = self.answer.send(Ok(Done { tokens, bytes, time: self.began.elapsed() }));
    }

    /// Says that it could not be done.
    pub(super) fn failed(self, kind: Kind, message: impl Into<String>) {
        let _ = self.answer.send(Err(ApiError::new(kind, message)));
    }
}

/// A request.
pub(crate) struct Request {
    pub(super) slot: usize,
    pub(super) action: Action,
    pub(super) asker: Asker,
}

/// Those that wait.
#[derive(Default)]
pub(crate) struct Requests {
    waiting: Mutex<VecDeque<Request>>,
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Request>> {
        // Nothing that holds it can panic half way.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts one at the end.
    ///
    /// # Errors
    /// When too many wait.
    pub(crate) fn submit(
        &self,
        slot: usize,
        action: Action,
    ) -> Result<oneshot::Receiver<Result<Done, ApiError>>, ApiError> {
        let mut waiting = self.lock();
        waiting.retain(|request| !request.asker.answer.is_closed());
        if waiting.len() >= WAITING_MAX {
            return Err(ApiError::later(
                Kind::Busy,
                "too many wait for slots already: try again in a while",
                5,
            ));
        }
        let (answer, answered) = oneshot::channel();
        waiting.push_back(Request { slot, action, asker: Asker { answer, began: Instant::now() } });
        Ok(answered)
    }

    /// The next one whose slot is free.
    pub(super) fn next(&self, is_free: impl Fn(usize) -> bool) -> Option<Request> {
        let mut waiting = self.lock();
        waiting.retain(|request| !request.asker.answer.is_closed());
        let index = waiting.iter().position(|request| is_free(request.slot))?;
        let mut request = waiting.remove(index)?;
        request.asker.began = Instant::now();
        Some(request)
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Tells all who wait that nothing is done any more.
    pub(crate) fn refuse(&self, why: &ApiError) {
        for request in self.lock().drain(..) {
            let _ = request.asker.answer.send(Err(why.clone()));
        }
    }
}

/// Longest name of a file.
const NAME_BYTES_MAX: usize = 200;

/// A file's name, if it is one and nothing else: neither a way to another folder, nor hidden, nor with control characters.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn plain_name(name: &str) -> Result<&str, &'static str> {
    match name {
        "" => Err("is empty"),
        name if name.len() > NAME_BYTES_MAX => Err("has more than 200 bytes"),
        name if name.starts_with('.') => Err("begins with a dot"),
        name if name.contains(['/', '\\']) => Err("has a / or \\: name a file, not a way to one"),
        name if name.contains(char::is_control) => Err("has control characters"),
        name => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere() {
        assert_eq!(plain_name("slot1.bin"), Ok("slot1.bin"));
        assert_eq!(plain_name("Gespräch 3"), Ok("Gespräch 3"));
        let long = "x".repeat(201);
        for name in ["", ".", "..", ".hidden", "../up", "/etc/passwd", "a/b", "a\\b", "a\0b", "a\nb", &long] {
            assert!(plain_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn requests_wait_for_their_slot_and_are_few() {
        let requests = Requests::default();
        let _first = requests.submit(0, Action::Erase).expect("room");
        let second = requests.submit(1, Action::Erase).expect("room");
        assert!(requests.next(|_| false).is_none());
        assert_eq!(requests.next(|slot| slot == 1).map(|request| request.slot), Some(1));
        drop(second);
        let given_up = requests.submit(0, Action::Erase).expect("room");
        drop(given_up);
        let mut held = Vec::new();
        while let Ok(answered) = requests.submit(2, Action::Erase) {
            held.push(answered);
        }
        assert_eq!(held.len(), WAITING_MAX - 1, "what was given up leaves its place");
        requests.refuse(&ApiError::new(Kind::Unavailable, "over"));
        let answer = held.pop().expect("one").try_recv().expect("an answer");
        assert_eq!(answer.expect_err("refused").message, "over");
        assert!(requests.next(|_| true).is_none());
    }
}
