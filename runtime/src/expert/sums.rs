//! Threads that sum what has landed, beside the one that drives the engine.
//!
//! - Owns: the threads, and the pieces that they have or are to have. In: pieces of records, read-only. Out: their checksums.
//! - Invariants: at most [`OUTSTANDING_MAX`] pieces are taken and not given back; one more is refused, and whoever wanted it summed
//!   sums it. Pieces that a step waits for go before all others. A thread lets go of a piece before its sum is to be had. A thread
//!   with nothing to sum sleeps, and whoever waits for a sum does what no thread has begun. Nobody waits for a thread that panicked:
//!   whoever would panics as well.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::base::region::HostBuffer;
use crate::store::piece_checksum;

/// Pieces that are taken and not given back: three a read under way, which is what may land at once.
const OUTSTANDING_MAX: usize = 3 * crate::base::limits::READS_IN_FLIGHT_MAX as usize;

/// Threads at most. One sums 6 to 7 GB/s of memory that nobody has read yet, so two are enough for a drive of 12.
const THREADS_MAX: usize = 2;

/// Threads that sum on a machine of so many processors: one is left to the thread that drives the engine.
pub(super) fn thread_count(processors: usize) -> usize {
    processors.saturating_sub(1).min(THREADS_MAX)
}

/// A piece to be summed.
#[derive(Debug)]
pub(super) struct Piece {
    /// The caller's own number.
    pub(super) tag: u64,
    /// Where its bytes lie.
    pub(super) buffer: Arc<HostBuffer>,
    /// The matrices in it; those that are not there are empty.
    pub(super) matrices: [Range<usize>; 3],
}

/// The sums of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sums {
    /// The piece's number.
    pub(super) tag: u64,
    /// One a matrix; 0 for those that were not there.
    pub(super) sums: [u128; 3],
    /// What was summed.
    pub(super) bytes: u64,
    /// For how long, in nanoseconds.
    pub(super) ns: u64,
}

impl Piece {
    /// Bytes to be summed.
    pub(super) fn len_bytes(&self) -> u64 {
        self.matrices.iter().map(|matrix| matrix.len() as u64).sum()
    }

    /// Sums it, and lets go of it.
    pub(super) fn sum(self) -> Sums {
        let begin = Instant::now();
        let (tag, bytes) = (self.tag, self.len_bytes());
        let sums = self.matrices.map(|matrix| match matrix.is_empty() {
            true => 0,
            false => piece_checksum(&self.buffer.as_slice()[matrix]),
        });
        drop(self.buffer);
        Sums { tag, sums, bytes, ns: u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX) }
    }
}

struct State {
    wanted: VecDeque<Piece>,
    others: VecDeque<Piece>,
    done: Vec<Sums>,
    is_closing: bool,
    /// Whether a thread has panicked, with a piece that nobody sums any more.
    has_failed: bool,
}

impl State {
    /// # Panics
    /// When a thread has: what it was to sum would be waited for for ever.
    fn check(&self) {
        assert!(!self.has_failed, "a thread that sums what was read has panicked");
    }

    fn next(&mut self) -> Option<Piece> {
        self.wanted.pop_front().or_else(|| self.others.pop_front())
    }
}

struct Shared {
    state: Mutex<State>,
    has_work: Condvar,
    has_news: Condvar,
}

impl Shared {
    /// The state, which is whole whoever panicked: nothing under the lock can.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The threads.
pub(super) struct Summers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    outstanding: usize,
}

impl Summers {
    /// Starts `count` threads, or fewer where the system gives fewer; without any, every piece is refused.
    pub(super) fn start(count: usize) -> Self {
        let state = State {
            wanted: VecDeque::with_capacity(OUTSTANDING_MAX),
            others: VecDeque::with_capacity(OUTSTANDING_MAX),
            done: Vec::with_capacity(OUTSTANDING_MAX),
            is_closing: false,
            has_failed: false,
        };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), has_work: Condvar::new(), has_news: Condvar::new() });
        let start = |index| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(format!("sums {index}")).spawn(move || work(&shared)).ok()
        };
        let threads = (0..count).map_while(start).collect();
        Self { shared, threads, outstanding: 0 }
    }

    /// Pieces that are taken and not given back.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Takes a piece; those that a step waits for are summed first.
    ///
    /// # Errors
    /// The piece, where there is no thread, or too many wait.
    pub(super) fn push(&mut self, piece: Piece, is_wanted: bool) -> Result<(), Piece> {
        if self.threads.is_empty() || self.outstanding == OUTSTANDING_MAX {
            return Err(piece);
        }
        self.outstanding += 1;
        let mut state = self.shared.lock();
        if is_wanted { &mut state.wanted } else { &mut state.others }.push_back(piece);
        drop(state);
        self.shared.has_work.notify_one();
        Ok(())
    }

    /// Appends the sums that are ready.
    ///
    /// # Panics
    /// When a thread has.
    pub(super) fn take(&mut self, done: &mut Vec<Sums>) {
        if self.outstanding == 0 {
            return;
        }
        let mut state = self.shared.lock();
        state.check();
        self.outstanding -= state.done.len();
        done.append(&mut state.done);
    }

    /// As [`Self::take`], and waits for at least one, unless nothing is outstanding: what no thread has begun is summed here.
    ///
    /// # Panics
    /// As [`Self::take`].
    pub(super) fn wait(&mut self, done: &mut Vec<Sums>) {
        if self.outstanding == 0 {
            return;
        }
        let mut state = self.shared.lock();
        while state.done.is_empty() {
            state.check();
            if let Some(piece) = state.next() {
                drop(state);
                let sums = piece.sum();
                state = self.shared.lock();
                state.done.push(sums);
            } else {
                state = self.shared.has_news.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        self.outstanding -= state.done.len();
        done.append(&mut state.done);
    }
}

/// Tells whoever waits when the thread that it lives on panics.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().has_failed = true;
            self.0.has_news.notify_all();
        }
    }
}

/// What each thread does until its owner is gone.
fn work(shared: &Shared) {
    // Dropped after the state's lock, which it takes.
    let _alarm = Alarm(shared);
    let mut state = shared.lock();
    while !state.is_closing {
        let Some(piece) = state.next() else {
            state = shared.has_work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(state);
        let sums = piece.sum();
        state = shared.lock();
        state.done.push(sums);
        shared.has_news.notify_one();
    }
}

impl Drop for Summers {
    /// What no thread has begun is summed by nobody.
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.has_work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::region::HostRegion;

    fn buffers(count: usize) -> Vec<Arc<HostBuffer>> {
        let region = HostRegion::new(count * 4096).unwrap();
        let fill = |(index, mut buffer): (usize, HostBuffer)| {
            buffer.as_mut_slice().fill(u8::try_from(index % 256).unwrap());
            Arc::new(buffer)
        };
        region.split(4096, count).into_iter().enumerate().map(fill).collect()
    }

    fn piece(tag: u64, buffer: &Arc<HostBuffer>) -> Piece {
        Piece { tag, buffer: Arc::clone(buffer), matrices: [0..100, 100..4096, 0..0] }
    }

    #[test]
    fn every_piece_is_summed_once_and_let_go_of() {
        let buffers = buffers(OUTSTANDING_MAX);
        for threads in [1, 2] {
            let mut summers = Summers::start(threads);
            for (tag, buffer) in (0..).zip(&buffers) {
                assert!(summers.push(piece(tag, buffer), tag % 2 == 0).is_ok());
            }
            assert!(summers.push(piece(999, &buffers[0]), true).is_err(), "more than the bound");
            let mut done = Vec::new();
            while summers.outstanding() > 0 {
                summers.wait(&mut done);
            }
            done.sort_unstable_by_key(|sums| sums.tag);
            assert_eq!(done.len(), OUTSTANDING_MAX);
            for (sums, buffer) in done.iter().zip(&buffers) {
                let bytes = buffer.as_slice();
                assert_eq!(
                    (sums.sums, sums.bytes),
                    ([piece_checksum(&bytes[..100]), piece_checksum(&bytes[100..]), 0], 4096)
                );
                assert_eq!(Arc::strong_count(buffer), 1, "somebody still holds piece {}", sums.tag);
            }
        }
    }

    #[test]
    fn without_threads_every_piece_is_refused() {
        let buffers = buffers(1);
        let mut summers = Summers::start(thread_count(1));
        assert!(summers.push(piece(0, &buffers[0]), true).is_err());
        assert_eq!([1, 2, 3, 64].map(thread_count), [0, 1, 2, 2]);
        summers.wait(&mut Vec::new());
    }

    #[test]
    fn what_a_step_waits_for_goes_first() {
        let buffers = buffers(4);
        let mut state = State {
            wanted: VecDeque::new(),
            others: VecDeque::new(),
            done: Vec::new(),
            is_closing: false,
            has_failed: false,
        };
        state.others.push_back(piece(0, &buffers[0]));
        state.wanted.push_back(piece(1, &buffers[1]));
        state.others.push_back(piece(2, &buffers[2]));
        state.wanted.push_back(piece(3, &buffers[3]));
        let order: Vec<u64> = std::iter::from_fn(|| state.next()).map(|piece| piece.tag).collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    #[should_panic(expected = "a thread that sums what was read has panicked")]
    fn nobody_waits_for_a_thread_that_panicked() {
        let buffers = buffers(1);
        let mut summers = Summers::start(1);
        let beyond = Piece { matrices: [0..4097, 0..0, 0..0], ..piece(0, &buffers[0]) };
        assert!(summers.push(beyond, true).is_ok());
        // The thread is to have it, and not the one that waits.
        while !summers.shared.lock().wanted.is_empty() {
            std::thread::yield_now();
        }
        summers.wait(&mut Vec::new());
    }

    #[test]
    fn what_was_not_begun_is_dropped_with_its_owner() {
        let buffers = buffers(OUTSTANDING_MAX);
        let mut summers = Summers::start(1);
        for (tag, buffer) in (0..).zip(&buffers) {
            assert!(summers.push(piece(tag, buffer), true).is_ok());
        }
        drop(summers);
        assert!(buffers.iter().all(|buffer| Arc::strong_count(buffer) == 1), "a piece outlives its owner");
    }
}
