//! A lock that knows who holds it, so that a callback that comes back in is refused instead of waiting for itself.
//!
//! - Owns: a value that one call at a time may use. In: calls from any thread. Out: the value, or why not.
//! - Invariants: calls from other threads wait their turn. A call that panicked leaves the value closed for good. No two threads
//!   wait for each other: sessions are entered before their model, several of them in the order of their numbers, a sampler or a
//!   pool last; and a callback of a call that has a model enters no session and no model at all, and waits for no sampler, which
//!   another call may have while its own callback runs.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::status::{Fault, Status};

thread_local! {
    /// Its address tells this thread from every other that lives. It has nothing to drop: a library whose threads have such
    /// destructors is not unloaded before they end.
    static HERE: u8 = const { 0 };
    /// Callbacks of this thread, within each other, whose calls have a model.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

/// Runs a callback of a call that has a model.
pub(super) fn in_callback<R>(callback: impl FnOnce() -> R) -> R {
    CALLBACKS.set(CALLBACKS.get() + 1);
    let answer = callback();
    CALLBACKS.set(CALLBACKS.get() - 1);
    answer
}

/// Whether this is within such a callback.
pub(super) fn is_in_callback() -> bool {
    CALLBACKS.get() > 0
}

fn this_thread() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// What a call may do while it has a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum While {
    /// Neither wait for other calls nor run callbacks: so callbacks may wait for its end.
    Brief,
    /// Run callbacks, so that they may enter what is free but wait for none.
    Callbacks,
    /// Wait for other calls, so that callbacks may not enter it.
    Waiting,
}

/// One value, one call at a time.
pub(super) struct Exclusive<T> {
    /// What it is, for messages.
    what: &'static str,
    /// What its calls may do meanwhile.
    held: While,
    /// The thread whose call has it; 0 when none has.
    owner: AtomicUsize,
    is_broken: AtomicBool,
    value: Mutex<T>,
}

/// The value, for the length of a call.
pub(super) struct Held<'a, T> {
    lock: &'a Exclusive<T>,
    value: MutexGuard<'a, T>,
}

impl<T> Exclusive<T> {
    /// A pool.
    pub(super) fn brief(what: &'static str, value: T) -> Self {
        Self::new(what, While::Brief, value)
    }

    /// A sampler.
    pub(super) fn with_callbacks(what: &'static str, value: T) -> Self {
        Self::new(what, While::Callbacks, value)
    }

    /// A session or a model.
    pub(super) fn waiting(what: &'static str, value: T) -> Self {
        Self::new(what, While::Waiting, value)
    }

    fn new(what: &'static str, held: While, value: T) -> Self {
        Self {
            what,
            held,
            owner: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
            value: Mutex::new(value),
        }
    }

    /// Whether a call of this thread has it.
    pub(super) fn is_held_here(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == this_thread()
    }

    /// Waits for calls of other threads, but not within a callback where those may run callbacks, too.
    ///
    /// # Errors
    /// [`Status::Reentrant`] within a callback that may not enter it, or not now; [`Status::Panic`] after a fault.
    pub(super) fn enter(&self) -> Result<Held<'_, T>, Fault> {
        if self.is_held_here() || (self.held == While::Waiting && is_in_callback()) {
            let text = format!(
                "a callback may not use a {} while its call computes: return from it first",
                self.what
            );
            return Err(Fault::new(Status::Reentrant, text));
        }
        let value = if self.held == While::Callbacks && is_in_callback() {
            match self.value.try_lock() {
                Ok(value) => value,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    let text = format!(
                        "a callback may not wait for the {}, which a call of another thread is using: return from it first",
                        self.what
                    );
                    return Err(Fault::new(Status::Reentrant, text));
                }
            }
        } else {
            self.value.lock().unwrap_or_else(PoisonError::into_inner)
        };
        if self.is_broken.load(Ordering::Relaxed) {
            let text =
                format!("an earlier call met a fault of the library: the {} can only be freed", self.what);
            return Err(Fault::new(Status::Panic, text));
        }
        self.owner.store(this_thread(), Ordering::Relaxed);
        Ok(Held { lock: self, value })
    }

    /// Runs `body` on the value while no call has it, broken or not; within a callback of a call that has it, without the
    /// value: that call is idle for as long.
    pub(super) fn while_idle<R>(&self, body: impl FnOnce(Option<&mut T>) -> R) -> R {
        if self.is_held_here() {
            return body(None);
        }
        body(Some(&mut self.value.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.lock.is_broken.store(true, Ordering::Relaxed);
        }
        self.lock.owner.store(0, Ordering::Relaxed);
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_within_a_call_is_refused_and_another_thread_waits() {
        let lock = Exclusive::with_callbacks("thing", 1);
        let mut held = lock.enter().unwrap();
        assert_eq!(lock.enter().err().map(|fault| fault.status), Some(Status::Reentrant));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.enter().unwrap());
            *held = 2;
            drop(held);
            assert_eq!(other.join().unwrap(), 2);
        });
    }

    #[test]
    fn a_callback_enters_what_is_last_and_nothing_else() {
        let (session, sampler) =
            (Exclusive::waiting("session", ()), Exclusive::with_callbacks("sampler", ()));
        in_callback(|| {
            assert_eq!(session.enter().err().map(|fault| fault.status), Some(Status::Reentrant));
            assert!(sampler.enter().is_ok());
        });
        assert!(session.enter().is_ok());
    }

    #[test]
    fn callbacks_of_two_threads_do_not_wait_for_each_others_samplers() {
        let samplers = [Exclusive::with_callbacks("sampler", ()), Exclusive::with_callbacks("sampler", ())];
        let both = std::sync::Barrier::new(2);
        let generate = |own: usize| {
            let held = samplers[own].enter().unwrap();
            both.wait();
            let others = in_callback(|| samplers[1 - own].enter().err().map(|fault| fault.status));
            both.wait();
            drop(held);
            others
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| generate(1));
            assert_eq!(generate(0), Some(Status::Reentrant));
            assert_eq!(other.join().unwrap(), Some(Status::Reentrant));
        });
    }

    #[test]
    fn a_callback_waits_for_what_is_held_briefly() {
        let pool = Exclusive::brief("pool", 1);
        let mut held = pool.enter().unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| in_callback(|| *pool.enter().unwrap()));
            *held = 2;
            drop(held);
            assert_eq!(other.join().unwrap(), 2);
        });
    }

    #[test]
    fn a_panic_closes_it() {
        let lock = Exclusive::brief("thing", ());
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = lock.enter();
            std::panic::resume_unwind(Box::new("on purpose"));
        }));
        assert!(caught.is_err());
        assert_eq!(lock.enter().err().map(|fault| fault.status), Some(Status::Panic));
        lock.while_idle(|value| assert!(value.is_some()));
    }
}
