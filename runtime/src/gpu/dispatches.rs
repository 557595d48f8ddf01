//! How long every dispatch takes, on the device's clock.
//!
//! - Owns: stamps, handed out to recordings in blocks. In: recordings that are begun while it is on. Out: [`DispatchSpan`]s.
//! - Invariants: where it is off a recording holds nothing of it. A block is read before it is noted again and before it is given
//!   back. What there are no stamps for, or no room, is counted, and runs as it would.
//!
//! What is measured: dispatches between two barriers are a stage, and the device may run them side by side. A stamp lies behind the
//! barrier, before the stage's first dispatch, and one behind each dispatch; each is noted when all that stands before it is done. So
//! the times of a stage's dispatches add up to the stage's time, from the moment at which it may begin to its end, and each is what its
//! dispatch added to that. What passes between one stage's end and the next one's beginning (the barrier, and the stamps themselves) is
//! in no dispatch's time.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use flint_shaders::Kernel;

use super::context::{Gpu, Shared};
use super::error::GpuError;
use super::recorder::Recorder;
use super::timeline::Ticket;
use super::timestamps::Timestamps;
use crate::base::limits::{DISPATCHES_MAX, STAMPS_MAX};

/// Stamps that a recording takes at a time: a layer of a token has about twenty.
const BLOCK_STAMPS: u32 = 32;

/// What a dispatch was recorded with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DispatchLabel {
    /// The kernel's name; `copy`, `fill` or `update` for what is none.
    pub name: &'static str,
    /// Names of the kernel's specialization constants.
    pub constants: &'static [&'static str],
    /// Their values.
    pub values: Arc<[u32]>,
    /// Push constants.
    pub push: Box<[u8]>,
    /// Workgroups; none where the device counts them itself.
    pub groups: [u32; 3],
    /// Bytes that were copied or filled.
    pub bytes: u64,
}

impl DispatchLabel {
    pub(super) fn of_kernel(
        kernel: &'static Kernel,
        values: &Arc<[u32]>,
        push: &[u8],
        groups: [u32; 3],
    ) -> Self {
        Self {
            name: kernel.name,
            constants: kernel.constants,
            values: Arc::clone(values),
            push: push.into(),
            groups,
            bytes: 0,
        }
    }

    pub(super) fn of_transfer(name: &'static str, bytes: u64) -> Self {
        Self { name, constants: &[], values: Arc::new([]), push: Box::default(), groups: [0; 3], bytes }
    }
}

/// A dispatch that has run.
#[derive(Debug, Clone, PartialEq)]
pub struct DispatchSpan {
    /// What it was.
    pub label: Arc<DispatchLabel>,
    /// Whether it is the first behind a barrier.
    pub begins_stage: bool,
    /// Nanoseconds on the device's clock: when the dispatch before it in its stage was done, or the stage could begin.
    pub begin_ns: f64,
    /// Nanoseconds on the device's clock: when it was done.
    pub end_ns: f64,
}

/// What a recording noted: its stamps, and for each dispatch what it was and whether a stamp of its stage's beginning stands before it.
#[derive(Debug, Default)]
struct Noted {
    /// First stamps of its blocks, and how many of each were taken.
    blocks: Vec<(u32, u32)>,
    dispatches: Vec<(Arc<DispatchLabel>, bool)>,
    left_out: u64,
}

struct State {
    /// First stamps of blocks that nobody has.
    free: Vec<u32>,
    pending: Vec<(Ticket, Arc<Noted>)>,
    done: Vec<DispatchSpan>,
    left_out: u64,
}

pub(super) struct Inner {
    stamps: Timestamps,
    state: Mutex<State>,
}

/// Keeps a device's recordings stamped, as long as it lives: those that begin after it was made. Recordings that were made before
/// or come after it run without.
pub struct Dispatches {
    inner: Arc<Inner>,
    shared: Arc<Shared>,
}

impl Dispatches {
    /// Begins. One at a time: a second one takes the place of the first.
    ///
    /// # Errors
    /// [`GpuError::FeatureMissing`] where the device has no clock.
    pub fn begin(gpu: &Gpu) -> Result<Self, GpuError> {
        let stamps = gpu.timestamps(STAMPS_MAX)?;
        let free = (0..STAMPS_MAX / BLOCK_STAMPS).rev().map(|block| block * BLOCK_STAMPS).collect();
        let state = State { free, pending: Vec::new(), done: Vec::new(), left_out: 0 };
        let inner = Arc::new(Inner { stamps, state: Mutex::new(state) });
        let shared = gpu.shared();
        shared.set_dispatches(Arc::downgrade(&inner));
        Ok(Self { inner, shared: Arc::clone(shared) })
    }

    /// What has run since the last call, and how many dispatches were left out for want of stamps or room.
    ///
    /// # Errors
    /// The driver's.
    pub fn take(&self) -> Result<(Vec<DispatchSpan>, u64), GpuError> {
        self.inner.collect(&self.shared)?;
        let mut state = self.inner.lock();
        Ok((std::mem::take(&mut state.done), std::mem::take(&mut state.left_out)))
    }
}

impl Drop for Dispatches {
    fn drop(&mut self) {
        self.shared.set_dispatches(Weak::new());
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what has run.
    pub(super) fn collect(&self, shared: &Shared) -> Result<(), GpuError> {
        let mut state = self.lock();
        let state = &mut *state;
        let mut failure = None;
        state.pending.retain(|(ticket, noted)| {
            let read = shared
                .timeline(*ticket)
                .is_done(*ticket)
                .and_then(|is_done| if is_done { self.read(noted) } else { Ok(None) });
            match read {
                Ok(None) => return true,
                Ok(Some(at)) => spans(noted, &at, &mut state.done, &mut state.left_out),
                Err(error) => failure = Some(error),
            }
            false
        });
        failure.map_or(Ok(()), Err)
    }

    /// All stamps of a recording in their order; `None` while one is not noted.
    fn read(&self, noted: &Noted) -> Result<Option<Vec<f64>>, GpuError> {
        let mut at = Vec::new();
        for &(first, count) in &noted.blocks {
            match self.stamps.read_ns(first, count)? {
                Some(read) => at.extend(read),
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    fn give_back(&self, blocks: &[(u32, u32)]) {
        self.lock().free.extend(blocks.iter().map(|&(first, _)| first));
    }
}

/// The spans of a recording with stamps `at`. Pure.
fn spans(noted: &Noted, at: &[f64], done: &mut Vec<DispatchSpan>, left_out: &mut u64) {
    let mut next = at.iter().copied();
    let mut before = 0.0;
    for (label, begins_stage) in &noted.dispatches {
        if *begins_stage {
            before = next.next().unwrap_or(before);
        }
        let end = next.next().unwrap_or(before);
        if done.len() < DISPATCHES_MAX {
            done.push(DispatchSpan {
                label: Arc::clone(label),
                begins_stage: *begins_stage,
                begin_ns: before,
                end_ns: end.max(before),
            });
        } else {
            *left_out += 1;
        }
        before = end.max(before);
    }
}

/// What a recording under way notes.
pub(super) struct Notes {
    inner: Arc<Inner>,
    noted: Noted,
    /// Whether a dispatch was noted since the last barrier.
    is_in_stage: bool,
}

impl Notes {
    /// Of a recording that begins now; `None` where nobody asks, which is as good as always.
    pub(super) fn of(shared: &Shared) -> Option<Self> {
        let inner = shared.dispatches()?;
        Some(Self { inner, noted: Noted::default(), is_in_stage: false })
    }

    /// What is recorded from here on belongs to another stage.
    pub(super) fn barrier(&mut self) {
        self.is_in_stage = false;
    }

    /// To be called before a dispatch is recorded: records what has to stand before it, and gives the stamp to note behind it.
    pub(super) fn before(
        &mut self,
        recorder: &mut Recorder,
        label: DispatchLabel,
    ) -> Option<(Timestamps, u32)> {
        let begins_stage = !self.is_in_stage;
        let stamps = &self.inner.stamps;
        let count = 1 + u32::from(begins_stage);
        if self.noted.blocks.last().is_none_or(|(_, used)| used + count > BLOCK_STAMPS) {
            let Some(first) = self.inner.lock().free.pop() else {
                self.noted.left_out += 1;
                return None;
            };
            recorder.reset_stamps(stamps, first, BLOCK_STAMPS);
            self.noted.blocks.push((first, 0));
        }
        let (first, used) = self.noted.blocks.last_mut().expect("invariant: one was pushed");
        let next = *first + *used;
        *used += count;
        if begins_stage {
            recorder.stamp(stamps, next);
        }
        self.is_in_stage = true;
        self.noted.dispatches.push((Arc::new(label), begins_stage));
        Some((stamps.clone(), next + count - 1))
    }

    /// The recording is finished.
    pub(super) fn finish(mut self) -> Stamped {
        Stamped { inner: Arc::clone(&self.inner), noted: Arc::new(std::mem::take(&mut self.noted)) }
    }
}

impl Drop for Notes {
    /// Of a recording that was given up: nothing of it was submitted.
    fn drop(&mut self) {
        self.inner.give_back(&self.noted.blocks);
    }
}

/// The stamps of finished commands.
pub(super) struct Stamped {
    inner: Arc<Inner>,
    noted: Arc<Noted>,
}

impl Stamped {
    /// To be called before its commands are submitted again: what they noted last is read first.
    pub(super) fn collect(&self, shared: &Shared) -> Result<(), GpuError> {
        self.inner.collect(shared)
    }

    /// Its commands were submitted.
    pub(super) fn submitted(&self, ticket: Ticket) {
        let mut state = self.inner.lock();
        state.left_out += self.noted.left_out;
        if !self.noted.blocks.is_empty() {
            state.pending.push((ticket, Arc::clone(&self.noted)));
        }
    }

    /// Its commands have run for the last time, and are gone.
    pub(super) fn end(self, shared: &Shared) {
        // A device that cannot say what was noted is found out where it is waited for.
        let _ = self.inner.collect(shared);
        self.inner.lock().pending.retain(|(_, noted)| !Arc::ptr_eq(noted, &self.noted));
        self.inner.give_back(&self.noted.blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_stage_add_up_and_what_lies_between_stages_is_nobodys() {
        let label = || Arc::new(DispatchLabel::of_transfer("copy", 4));
        let noted = Noted {
            blocks: vec![(0, 5)],
            dispatches: vec![(label(), true), (label(), false), (label(), true)],
            left_out: 0,
        };
        let (mut done, mut left_out) = (Vec::new(), 0);
        spans(&noted, &[10.0, 14.0, 15.5, 20.0, 21.0], &mut done, &mut left_out);
        let times: Vec<_> = done.iter().map(|span| (span.begin_ns, span.end_ns, span.begins_stage)).collect();
        assert_eq!(times, [(10.0, 14.0, true), (14.0, 15.5, false), (20.0, 21.0, true)]);
        // A clock that steps back gives no time below zero.
        spans(&noted, &[10.0, 9.0, 15.5, 20.0, 21.0], &mut done, &mut left_out);
        assert_eq!((done[3].end_ns, done[4].begin_ns, left_out), (10.0, 10.0, 0));
    }
}
