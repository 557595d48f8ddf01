//! The queue and its timeline: what was submitted, how far the device has come.
//!
//! Owns the queue and one timeline semaphore. In: command buffers. Out: [`Ticket`]s, and waiting for them.
//!
//! Invariants: ticket `n` is the `n`-th submission and has passed when the semaphore counts `n` or more; the count only
//! grows; submissions are made under one lock, so that their tickets are in order.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ash::vk;

use crate::base::limits::COMMANDS_PER_SUBMIT_MAX;

use super::device::Device;
use super::error::GpuError;
use super::instance::lock;

/// How long a wait polls before it sleeps. A wake-up costs 20 to 30 us on a real GPU, polling 14 us; a software device
/// needs the core that would poll.
const POLL: Duration = Duration::from_micros(50);

/// How long a wait sleeps before the device counts as hung. Watchdogs of GPU drivers strike within 10 s.
const HANG: Duration = Duration::from_secs(60);

/// A submission, to be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

pub(super) struct Timeline {
    device: Arc<Device>,
    semaphore: vk::Semaphore,
    queue: Mutex<Queue>,
    /// The largest count seen.
    passed: AtomicU64,
}

struct Queue {
    raw: vk::Queue,
    submitted: u64,
}

impl Timeline {
    pub(super) fn new(device: Arc<Device>) -> Result<Self, GpuError> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: timelineSemaphore is enabled.
        let semaphore = unsafe { device.raw.create_semaphore(&info, None) }
            .map_err(|result| device.failed("vkCreateSemaphore", result))?;
        // SAFETY: the device was made with one queue of this family.
        let raw = unsafe { device.raw.get_device_queue(device.family, 0) };
        Ok(Self {
            device,
            semaphore,
            queue: Mutex::new(Queue { raw, submitted: 0 }),
            passed: AtomicU64::new(0),
        })
    }

    /// Submits `count` command buffers in order. Under the queue's lock `fill` checks and names them, and `note` learns
    /// the ticket once they are submitted.
    ///
    /// # Errors
    /// What `fill` or the driver says; then nothing was submitted.
    pub(super) fn submit(
        &self,
        count: usize,
        fill: impl FnOnce(&mut [vk::CommandBufferSubmitInfo<'_>]) -> Result<(), GpuError>,
        note: impl FnOnce(Ticket),
    ) -> Result<Ticket, GpuError> {
        self.device.check_alive("vkQueueSubmit2")?;
        let mut queue = lock(&self.queue);
        let ticket = Ticket(queue.submitted + 1);
        // On the stack: it is short.
        let mut buffers = [vk::CommandBufferSubmitInfo::default(); COMMANDS_PER_SUBMIT_MAX];
        fill(&mut buffers[..count])?;
        let signals = [vk::SemaphoreSubmitInfo::default()
            .semaphore(self.semaphore)
            .value(ticket.0)
            .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)];
        let submits = [vk::SubmitInfo2::default()
            .command_buffer_infos(&buffers[..count])
            .signal_semaphore_infos(&signals)];
        // SAFETY:
        // - The queue is used under its lock only; synchronization2 is enabled.
        // - `fill` named executable command buffers of this device, none of them pending.
        // - The value is larger than every one signalled before (VUID-VkSubmitInfo2-semaphore-03882): the lock is held.
        unsafe { self.device.raw.queue_submit2(queue.raw, &submits, vk::Fence::null()) }
            .map_err(|result| self.device.failed("vkQueueSubmit2", result))?;
        queue.submitted = ticket.0;
        note(ticket);
        Ok(ticket)
    }

    /// Whether `ticket` has passed, by one look at the counter.
    ///
    /// # Errors
    /// [`GpuError::DeviceLost`].
    pub(super) fn is_done(&self, ticket: Ticket) -> Result<bool, GpuError> {
        if self.passed.load(Ordering::Acquire) >= ticket.0 {
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
        Ok(count >= ticket.0)
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
        assert!(ticket.0 <= lock(&self.queue).submitted, "ticket {} was never submitted", ticket.0);
        let semaphores = [self.semaphore];
        let values = [ticket.0];
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
                self.passed.fetch_max(ticket.0, Ordering::AcqRel);
                Ok(())
            }
            Err(vk::Result::TIMEOUT) => Err(GpuError::Timeout { ticket: ticket.0, seconds: HANG.as_secs() }),
            Err(result) => Err(self.device.failed("vkWaitSemaphores", result)),
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        let last = Ticket(lock(&self.queue).submitted);
        if matches!(self.wait(last), Err(GpuError::Timeout { .. })) {
            // A hung device still owns the semaphore: it is left to the process's end.
            return;
        }
        // SAFETY: its last signal has passed, or the device is lost; nobody else holds it.
        unsafe { self.device.raw.destroy_semaphore(self.semaphore, None) };
    }
}
