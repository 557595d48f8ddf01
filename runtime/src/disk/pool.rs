//! The read path without io_uring: a bounded pool of threads that call pread.
//!
//! Owns: the threads, and what is in flight: a read waiting or ended stands in the shared lists, one under way with
//! its thread. In and out: as every [`ReadQueue`].
//!
//! Invariants:
//! - waiting + under way + ended <= depth, so the lists never grow beyond what they were made with;
//! - a thread owns the buffer that it reads into;
//! - dropping the queue lets reads that did not begin end unread, and waits for those that did.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::DiskError;
use super::busy::BusyTime;
use super::in_flight::{Begun, InFlight};
use super::progress::Outcome;
use super::queue::{Completion, PushRefused, Read, ReadCounters, ReadQueue};
use super::source::SourceFile;
use super::sys::wake;
use crate::base::limits::{POOL_THREADS_MAX, READ_STALL_MAX};

struct State {
    waiting: VecDeque<InFlight>,
    ended: VecDeque<Completion>,
    counters: ReadCounters,
    busy: BusyTime,
    threads: usize,
    is_closing: bool,
    /// Told of each read that ends.
    wake: Option<OwnedFd>,
}

impl State {
    fn end(&mut self, completion: Completion) {
        self.ended.push_back(completion);
        if let Some(eventfd) = &self.wake {
            wake(eventfd.as_fd());
        }
    }
}

struct Shared {
    files: Vec<Arc<SourceFile>>,
    state: Mutex<State>,
    has_work: Condvar,
    has_news: Condvar,
}

impl Shared {
    /// The state. No thread panics while it holds the lock, as nothing under it can; a poisoned lock's state is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`ReadQueue`] of pread threads.
pub(super) struct PoolQueue {
    shared: Arc<Shared>,
    depth: usize,
    in_flight: usize,
    handles: Vec<JoinHandle<()>>,
}

impl PoolQueue {
    /// Starts one thread a read of the depth, up to [`POOL_THREADS_MAX`]; fewer where the system gives fewer.
    ///
    /// # Errors
    /// [`DiskError::PoolThreads`] when not even one starts.
    pub(super) fn start(files: Vec<Arc<SourceFile>>, depth: usize) -> Result<Self, DiskError> {
        let state = State {
            waiting: VecDeque::with_capacity(depth),
            ended: VecDeque::with_capacity(depth),
            counters: ReadCounters::default(),
            busy: BusyTime::default(),
            threads: 0,
            is_closing: false,
            wake: None,
        };
        let shared = Arc::new(Shared {
            files,
            state: Mutex::new(state),
            has_work: Condvar::new(),
            has_news: Condvar::new(),
        });
        let mut queue = Self { shared, depth, in_flight: 0, handles: Vec::new() };
        for index in 0..depth.min(POOL_THREADS_MAX) {
            let shared = Arc::clone(&queue.shared);
            queue.shared.lock().threads += 1;
            let started = thread::Builder::new().name(format!("read-{index}")).spawn(move || work(&shared));
            match started {
                Ok(handle) => queue.handles.push(handle),
                Err(source) => {
                    let mut state = queue.shared.lock();
                    state.threads -= 1;
                    if state.threads == 0 {
                        drop(state);
                        return Err(DiskError::PoolThreads { source });
                    }
                    break;
                }
            }
        }
        Ok(queue)
    }

    /// Threads that read.
    pub(super) fn threads(&self) -> usize {
        self.shared.lock().threads
    }

    /// Takes a read that another queue began. The caller keeps to the depth.
    pub(super) fn adopt(&mut self, read: InFlight) {
        assert!(self.in_flight < self.depth, "more reads than the depth of {}", self.depth);
        self.in_flight += 1;
        let mut state = self.shared.lock();
        state.busy.begin(Instant::now());
        state.waiting.push_back(read);
        drop(state);
        self.shared.has_work.notify_one();
    }
}

/// What each thread does until the queue closes.
fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if state.is_closing {
            break;
        }
        let Some(mut read) = state.waiting.pop_front() else {
            state = shared.has_work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        drop(state);
        let file = &shared.files[read.file];
        let mut counters = ReadCounters::default();
        let result = loop {
            let answer = file.read(read.progress.next(), read.buffer.as_mut_slice());
            match read.progress.finish(answer, &mut counters) {
                Outcome::Again => {}
                Outcome::Done(range) => break Ok(range),
                Outcome::Failed(failure) => break Err(failure),
            }
        };
        let completion = read.end(result, file.as_ref());
        state = shared.lock();
        state.counters.add(&counters);
        state.busy.end(1, Instant::now());
        state.end(completion);
        shared.has_news.notify_one();
    }
    state.threads -= 1;
    shared.has_news.notify_one();
}

impl ReadQueue for PoolQueue {
    fn push(&mut self, read: Read) -> Result<(), PushRefused> {
        if self.in_flight == self.depth {
            return Err(PushRefused { read, depth: self.depth });
        }
        let file = &self.shared.files[usize::from(read.file.0)];
        let mut counters = ReadCounters::default();
        match InFlight::begin(read, file.as_ref(), &mut counters) {
            Begun::Reading(read) => self.adopt(read),
            Begun::Ended(completion) => {
                self.in_flight += 1;
                let mut state = self.shared.lock();
                state.counters.add(&counters);
                state.end(completion);
            }
        }
        Ok(())
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), DiskError> {
        let begin = Instant::now();
        let mut state = self.shared.lock();
        while wait && state.ended.is_empty() && self.in_flight > 0 {
            let Some(left) = READ_STALL_MAX.checked_sub(begin.elapsed()) else {
                return Err(DiskError::Stalled {
                    in_flight: self.in_flight,
                    waited_s: READ_STALL_MAX.as_secs(),
                });
            };
            state = wait_for_news(&self.shared, state, left);
        }
        self.in_flight -= state.ended.len();
        done.extend(state.ended.drain(..));
        Ok(())
    }

    fn wake_by(&mut self, eventfd: BorrowedFd<'_>) -> Result<(), DiskError> {
        let eventfd = eventfd.try_clone_to_owned().map_err(|source| DiskError::WakeRefused { source })?;
        self.shared.lock().wake = Some(eventfd);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn counters(&self) -> ReadCounters {
        let state = self.shared.lock();
        ReadCounters { busy_ns: state.busy.ns(Instant::now()), ..state.counters }
    }
}

fn wait_for_news<'a>(
    shared: &Shared,
    state: MutexGuard<'a, State>,
    at_most: Duration,
) -> MutexGuard<'a, State> {
    shared.has_news.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner).0
}

impl Drop for PoolQueue {
    /// A thread that the drive never answers is left behind after [`READ_STALL_MAX`]: it owns its buffer, so whatever
    /// the drive still does is harmless.
    fn drop(&mut self) {
        let begin = Instant::now();
        let mut state = self.shared.lock();
        state.is_closing = true;
        self.shared.has_work.notify_all();
        while state.threads > 0 {
            let Some(left) = READ_STALL_MAX.checked_sub(begin.elapsed()) else { break };
            state = wait_for_news(&self.shared, state, left);
        }
        let have_ended = state.threads == 0;
        drop(state);
        // To their very end, so that whoever unloads the library next takes no code away from under them.
        for handle in self.handles.drain(..).filter(|handle| have_ended || handle.is_finished()) {
            let _ = handle.join();
        }
    }
}
