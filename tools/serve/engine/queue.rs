//! The bounded queue between the connections and the engine's thread.
//!
//! - Owns: the jobs that wait. In: generations, from any task. Out: jobs, in their order, to the one engine thread.
//! - Invariants: no more wait than the limit says; a job whose client went away leaves its place at once; after closing nothing
//!   enters, and who waits is told why.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::job::{Event, Generation, Job};
use crate::limits::EVENTS_MAX;
use crate::wire::error::{ApiError, Kind};

/// The longest that the engine's thread waits without looking after what it holds.
const IDLE_LOOK: Duration = Duration::from_secs(1);

struct State {
    jobs: VecDeque<Job>,
    next_number: u64,
    /// Slots that take a job as soon as the engine's thread comes round: such a job does not wait.
    free_slots: usize,
    /// Why nothing enters; it does if `None`.
    closed: Option<ApiError>,
    /// Whether the engine's thread is to end when it has nothing left to do.
    is_ending: bool,
    /// Whether there is something for the engine's thread outside of the queue.
    is_woken: bool,
}

impl State {
    fn is_full(&self, limit: usize) -> bool {
        self.jobs.len() >= limit.saturating_add(self.free_slots)
    }
}

/// The queue.
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
}

/// A job on the client's side: what it says, and the right to have it done.
pub(crate) struct Ticket {
    pub(crate) events: mpsc::Receiver<Event>,
    _guard: Guard,
}

/// Gives the job up when it is dropped.
struct Guard {
    queue: Arc<Queue>,
    number: u64,
    cancel: Arc<AtomicBool>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        self.queue.forget(self.number);
    }
}

/// What the engine's thread finds.
pub(crate) enum Next {
    Job(Job),
    /// Nothing to do now.
    Nothing,
    /// Nothing to do ever.
    End,
}

impl Queue {
    /// An empty queue of up to `limit` jobs, which is closed as `why` says until [`Self::open`].
    pub(crate) fn new(limit: usize, why: ApiError) -> Self {
        let state = State {
            jobs: VecDeque::new(),
            next_number: 0,
            free_slots: 0,
            closed: Some(why),
            is_ending: false,
            is_woken: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), limit }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets jobs in.
    pub(crate) fn open(&self) {
        let mut state = self.state();
        if !state.is_ending {
            state.closed = None;
        }
    }

    /// Lets nothing in any more, and tells those who wait.
    pub(crate) fn close(&self, why: &ApiError) {
        let mut state = self.state();
        state.closed = Some(why.clone());
        drop(state);
        self.fail_all(why);
    }

    /// The same, and the engine's thread ends when it has finished what it does.
    pub(crate) fn end(&self, why: &ApiError) {
        self.close(why);
        self.state().is_ending = true;
        self.changed.notify_all();
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.state().jobs.len()
    }

    /// Whether no more would be let in now.
    pub(crate) fn is_full(&self) -> bool {
        self.state().is_full(self.limit)
    }

    /// Why nothing enters, if nothing does.
    pub(crate) fn closed(&self) -> Option<ApiError> {
        self.state().closed.clone()
    }

    /// Puts a job at the end.
    ///
    /// # Errors
    /// When the queue is full or closed.
    pub(crate) fn submit(self: &Arc<Self>, generation: Generation) -> Result<Ticket, ApiError> {
        let mut state = self.state();
        if let Some(why) = &state.closed {
            return Err(why.clone());
        }
        if state.is_full(self.limit) {
            return Err(ApiError::later(
                Kind::Busy,
                format!(
                    "{} requests wait already: try again, or start the server with a larger --queue",
                    self.limit
                ),
                // About what a short reply takes; who waits in the queue is served first anyway.
                5,
            ));
        }
        let number = state.next_number;
        state.next_number += 1;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let cancel = Arc::new(AtomicBool::new(false));
        state.jobs.push_back(Job {
            number,
            generation,
            events: sender,
            cancel: cancel.clone(),
            arrived: Instant::now(),
        });
        drop(state);
        self.changed.notify_one();
        Ok(Ticket { events, _guard: Guard { queue: self.clone(), number, cancel } })
    }

    /// The next job for one of `free_slots`; where there is none, waits for one for a while if `waits`.
    pub(crate) fn next(&self, free_slots: usize, waits: bool) -> Next {
        let mut state = self.state();
        state.free_slots = free_slots;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.free_slots = state.free_slots.saturating_sub(1);
                return Next::Job(job);
            }
            if state.is_ending {
                return Next::End;
            }
            if !waits || std::mem::take(&mut state.is_woken) {
                return Next::Nothing;
            }
            let (again, waited) =
                self.changed.wait_timeout(state, IDLE_LOOK).unwrap_or_else(PoisonError::into_inner);
            state = again;
            if waited.timed_out() && state.jobs.is_empty() && !state.is_ending {
                return Next::Nothing;
            }
        }
    }

    /// Has the engine's thread come round, though there may be no job.
    pub(crate) fn wake(&self) {
        self.state().is_woken = true;
        self.changed.notify_all();
    }

    /// Waits until a job is there or somebody wakes the engine's thread; not so when nothing will come any more.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state();
        loop {
            if state.is_ending || !state.jobs.is_empty() || std::mem::take(&mut state.is_woken) {
                return !state.is_ending;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends those that wait now; others may come.
    pub(crate) fn fail_all(&self, why: &ApiError) {
        for job in self.state().jobs.drain(..) {
            // Who does not listen does not wait.
            let _ = job.events.try_send(Event::Failed(why.clone()));
        }
    }

    fn forget(&self, number: u64) {
        let mut state = self.state();
        // Numbers grow along the queue.
        if let Ok(index) = state.jobs.binary_search_by_key(&number, |job| job.number) {
            state.jobs.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use flint_rt::sample::SamplerOptions;

    use super::*;
    use crate::engine::reply::Shape;

    fn generation() -> Generation {
        Generation {
            ids: vec![1],
            shape: Shape::Text,
            sampling: SamplerOptions::default(),
            tokens_max: 1,
            tokens_min: 0,
            ignores_stops: false,
            stops: Vec::new(),
            top_logprobs: None,
            thought_max: None,
            reuses_prefix: true,
            constraint: None,
        }
    }

    fn queue(limit: usize) -> Arc<Queue> {
        let queue = Arc::new(Queue::new(limit, ApiError::later(Kind::Unavailable, "loading", 5)));
        queue.open();
        queue
    }

    #[test]
    fn it_is_bounded_and_a_place_is_free_at_once() {
        let queue = queue(2);
        let tickets = [queue.submit(generation()).unwrap(), queue.submit(generation()).unwrap()];
        let full = queue.submit(generation()).err().unwrap();
        assert_eq!((full.kind, full.retry_after_s), (Kind::Busy, Some(5)));
        let [first, _second] = tickets;
        drop(first);
        assert_eq!(queue.len(), 1);
        let _third = queue.submit(generation()).unwrap();
        assert!(matches!(queue.next(1, false), Next::Job(job) if job.number == 1));
        assert!(matches!(queue.next(1, false), Next::Job(job) if job.number == 2));
        assert!(matches!(queue.next(1, false), Next::Nothing));
    }

    #[test]
    fn who_finds_a_free_slot_does_not_wait() {
        let queue = queue(0);
        assert!(queue.submit(generation()).is_err(), "nobody has come round yet");
        assert!(matches!(queue.next(2, false), Next::Nothing));
        let _tickets = [queue.submit(generation()).unwrap(), queue.submit(generation()).unwrap()];
        assert!(queue.submit(generation()).is_err() && queue.is_full());
        assert!(matches!(queue.next(2, false), Next::Job(_)));
        assert!(matches!(queue.next(1, false), Next::Job(_)));
        assert!(queue.submit(generation()).is_err(), "both slots are at work");
    }

    #[test]
    fn a_taken_job_hears_that_its_client_went_away() {
        let queue = queue(1);
        let ticket = queue.submit(generation()).unwrap();
        let Next::Job(job) = queue.next(1, false) else { panic!("there is a job") };
        assert!(!job.is_cancelled());
        drop(ticket);
        assert!(job.is_cancelled());
    }

    #[test]
    fn who_is_woken_does_not_wait() {
        let queue = queue(1);
        queue.wake();
        let began = Instant::now();
        assert!(matches!(queue.next(1, true), Next::Nothing));
        assert!(began.elapsed() < IDLE_LOOK, "at once");
    }

    #[test]
    fn closing_refuses_and_tells_those_who_wait() {
        let queue = Arc::new(Queue::new(1, ApiError::later(Kind::Unavailable, "loading", 5)));
        assert_eq!(queue.submit(generation()).err().unwrap().message, "loading");
        queue.open();
        let mut waiting = queue.submit(generation()).unwrap();
        queue.end(&ApiError::new(Kind::Unavailable, "stopping"));
        assert!(matches!(waiting.events.try_recv(), Ok(Event::Failed(why)) if why.message == "stopping"));
        assert_eq!(queue.submit(generation()).err().unwrap().message, "stopping");
        assert!(matches!(queue.next(1, true), Next::End));
        // Not opened again by a model that was loaded meanwhile.
        queue.open();
        assert!(queue.closed().is_some());
    }
}
