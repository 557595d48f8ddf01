//! A queue and its timeline: what was submitted, how far the device has come.
//!
//! Owns one timeline semaphore and a share of the queue. In: command buffers, and tickets of other timelines that they wait for. Out:
//! [`Ticket`]s, and waiting for them.
//!
//! Invariants: ticket `n` is the `n`-th submission of its timeline and has passed when the semaphore counts `n` or more; the count only
//! grows; submissions are made under one lock, so that their tickets are in order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ash::vk;

use crate::base::limits::COMMANDS_PER_SUBMIT_MAX;

use super::device::Device;
use super::error::GpuError;
use super::instance::lock;
use super::queues::{Lane, QueueKind};

/// How long a wait polls before it sleeps. A wake-up costs 20 to 30 us on a real GPU, polling 14 us; a software device
/// needs the core that would poll.
const POLL: Duration = Duration::from_micros(50);

/// How long a wait sleeps before the device counts as hung. Watchdogs of GPU drivers strike within 10 s.
const HANG: Duration = Duration::from_secs(60);

/// A submission, to be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    pub(super) kind: QueueKind,
    pub(super) value: u64,
}

/// A queue of the device, under whose lock all is submitted to it.
pub(super) type RawQueue = Arc<Mutex<vk::Queue>>;

/// The first queue, or the `index`-th, of `family`.
pub(super) fn raw_queue(device: &Device, lane: Lane) -> RawQueue {
    // SAFETY: the device was made with this queue.
    Arc::new(Mutex::new(unsafe { device.raw.get_device_queue(lane.family, lane.index) }))
}

pub(super) struct Timeline {
    device: Arc<Device>,
    kind: QueueKind,
    semaphore: vk::Semaphore,
    queue: RawQueue,
    /// Submissions; changed under the queue's lock only.
    submitted: AtomicU64,
    /// The largest count seen.
    passed: AtomicU64,
}

impl Timeline {
    pub(super) fn new(device: Arc<Device>, kind: QueueKind, queue: RawQueue) -> Result<Self, GpuError> {
        let mut timeline = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut timeline);
        // SAFETY: timelineSemaphore is enabled.
        let semaphore = unsafe { device.raw.create_semaphore(&info, None) }
            .map_err(|result| device.failed("vkCreateSemaphore", result))?;
        let (submitted, passed) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { device, kind, semaphore, queue, submitted, passed })
    }

    /// What it counts.
    pub(super) fn kind(&self) -> QueueKind {
        self.kind
    }

    /// The last submission's ticket.
    pub(super) fn last(&self) -> Option<Ticket> {
        let value = self.submitted.load(Ordering::Acquire);
        (value > 0).then_some(Ticket { kind: self.kind, value })
    }

    /// What another timeline waits for that is to go on after `value`.
    fn passing(&self, value: u64) -> vk::SemaphoreSubmitInfo<'static> {
        vk::SemaphoreSubmitInfo::default()
            .semaphore(self.semaphore)
            .value(value)
            .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)
    }

    /// Submits `count` command buffers in order, behind what `after` names of another timeline. Under the queue's lock `fill` checks and
    /// names them, and `note` learns the ticket once they are submitted.
    ///
    /// # Errors
    /// What `fill` or the driver says; then nothing was submitted.
    pub(super) fn submit(
        &self,
        count: usize,
        after: Option<(&Self, Ticket)>,
        fill: impl FnOnce(&mut [vk::CommandBufferSubmitInfo<'_>]) -> Result<(), GpuError>,
        note: impl FnOnce(Ticket),
    ) -> Result<Ticket, GpuError> {
        self.device.check_alive("vkQueueSubmit2")?;
        let queue = lock(&self.queue);
        let value = self.submitted.load(Ordering::Acquire) + 1;
        let ticket = Ticket { kind: self.kind, value };
        // On the stack: it is short.
        let mut buffers = [vk::CommandBufferSubmitInfo::default(); COMMANDS_PER_SUBMIT_MAX];
        fill(&mut buffers[..count])?;
        let signals = [self.passing(value)];
        let waits = after.map(|(other, ticket)| [other.passing(ticket.value)]);
        let submits = [vk::SubmitInfo2::default()
            .wait_semaphore_infos(waits.as_ref().map_or(&[], |waits| &waits[..]))
            .command_buffer_infos(&buffers[..count])
            .signal_semaphore_infos(&signals)];
        // SAFETY:
        // - The queue is used under its lock only; synchronization2 is enabled.
        // - `fill` named executable command buffers of this device, none of them pending.
        // - The value is larger than every one signalled before (VUID-VkSubmitInfo2-semaphore-03882): the lock is held.
        // - What is waited for was submitted before, so it is signalled whatever comes later.
        unsafe { self.device.raw.queue_submit2(*queue, &submits, vk::Fence::null()) }
            .map_err(|result| self.device.failed("vkQueueSubmit2", result))?;
        self.submitted.store(value, Ordering::Release);
        note(ticket);
        Ok(ticket)
    }

    /// Whether `ticket` has passed, by one look at the counter.
    ///
    /// # Errors
    /// [`GpuError::DeviceLost`].
    pub(super) fn is_done(&self, ticket: Ticket) -> Result<bool, GpuError> {
        if self.passed.load(Ordering::Acquire) >= ticket.value {
            return Ok(true);
        }
        self.device.check_alive("vkGetSemaphoreCounterValue")?;
        // SAFETY: the semaphore is a timeline of this device and lives as long as `self`.
        let count = unsafe { self.device.raw.get_semaphore_counter_value(self.semaphore) }
            .map_err(|result| self.device.failed("vkGetSemaphoreCounterValue", result))?;
        // Mesa's drivers report the largest value for a lost device: what the device was to write must not be taken for written.
        if count == u64::MAX {
            return Err(self.device.failed("vkGetSemaphoreCounterValue", vk::Result::ERROR_DEVICE_LOST));
        }
        self.passed.fetch_max(count, Ordering::AcqRel);
        Ok(count >= ticket.value)
    }

    /// Waits until `ticket` has passed.
    ///
    /// # Errors
    /// [`GpuError::DeviceLost`], [`GpuError::Timeout`] after 60 s of a device that is no processor.
    ///
    /// # Panics
    /// When the ticket was never submitted: the wait could not end.
    pub(super) fn wait(&self, ticket: Ticket) -> Result<(), GpuError> {
        if !self.device.info.is_software() {
            let start = Instant::now();
            while start.elapsed() < POLL {
                if self.is_done(ticket)? {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        if self.is_done(ticket)? {
            return Ok(());
        }
        assert!(self.last() >= Some(ticket), "ticket {} was never submitted", ticket.value);
        let semaphores = [self.semaphore];
        let values = [ticket.value];
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // A processor that poses as a device takes minutes for what a GPU does in seconds, and does not hang.
        let timeout_ns = if self.device.info.is_software() {
            u64::MAX
        } else {
            u64::try_from(HANG.as_nanos()).expect("invariant: a minute in nanoseconds fits")
        };
        // SAFETY: the semaphore is a timeline of this device and lives as long as `self`.
        match unsafe { self.device.raw.wait_semaphores(&info, timeout_ns) } {
            Ok(()) => {
                self.passed.fetch_max(ticket.value, Ordering::AcqRel);
                Ok(())
            }
            Err(vk::Result::TIMEOUT) => {
                Err(GpuError::Timeout { ticket: ticket.value, seconds: HANG.as_secs() })
            }
            Err(result) => Err(self.device.failed("vkWaitSemaphores", result)),
        }
    }
}

impl Timeline {
    /// Waits for all that was submitted, and until the queue no longer knows of it.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub(super) fn drain(&self) -> Result<(), GpuError> {
        self.last().map_or(Ok(()), |last| self.wait(last))?;
        let queue = lock(&self.queue);
        // SAFETY: the queue is used under its lock only.
        unsafe { self.device.raw.queue_wait_idle(*queue) }
            .map_err(|result| self.device.failed("vkQueueWaitIdle", result))
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        let waited = self.last().map_or(Ok(()), |last| self.wait(last));
        if matches!(waited, Err(GpuError::Timeout { .. })) {
            // A hung device still owns the semaphore: it is left to the process's end.
            return;
        }
        // SAFETY: its last signal has passed, or the device is lost; nobody else holds it.
        unsafe { self.device.raw.destroy_semaphore(self.semaphore, None) };
    }
}
