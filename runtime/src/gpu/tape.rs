//! Command buffers, each with a pool of its own, used over and over.
//!
//! Owns the pools of one queue family that nobody records to. In: nothing. Out: a [`Tape`] that is being recorded.
//!
//! Invariant: a pool has one command buffer and one owner, so recordings on several threads need no lock.

use std::sync::{Arc, Mutex};

use ash::vk;

use super::device::Device;
use super::error::GpuError;
use super::instance::lock;

/// Free pools that are kept. A prefill chunk records a few at a time; what a model records once is not given back.
const FREE_MAX: usize = 16;

/// One pool and its command buffer.
pub(super) struct Tape {
    pool: vk::CommandPool,
    pub(super) buffer: vk::CommandBuffer,
}

pub(super) struct Tapes {
    device: Arc<Device>,
    family: u32,
    free: Mutex<Vec<Tape>>,
}

impl Tapes {
    pub(super) fn new(device: Arc<Device>, family: u32) -> Self {
        Self { device, family, free: Mutex::new(Vec::with_capacity(FREE_MAX)) }
    }

    /// A tape whose recording has begun.
    pub(super) fn take(&self) -> Result<Tape, GpuError> {
        self.device.check_alive("vkBeginCommandBuffer")?;
        let free = lock(&self.free).pop();
        let tape = match free {
            Some(tape) => tape,
            None => self.create()?,
        };
        let info = vk::CommandBufferBeginInfo::default();
        // SAFETY: the buffer is in its initial state: new, or its pool was reset.
        match unsafe { self.device.raw.begin_command_buffer(tape.buffer, &info) } {
            Ok(()) => Ok(tape),
            Err(result) => {
                self.destroy(&tape);
                Err(self.device.failed("vkBeginCommandBuffer", result))
            }
        }
    }

    /// Takes back a tape that the device no longer uses.
    pub(super) fn give_back(&self, tape: Tape) {
        // SAFETY: its command buffer is not pending, and its one owner has given it up.
        let answer =
            unsafe { self.device.raw.reset_command_pool(tape.pool, vk::CommandPoolResetFlags::empty()) };
        let mut free = lock(&self.free);
        if answer.is_ok() && free.len() < FREE_MAX {
            free.push(tape);
        } else {
            self.destroy(&tape);
        }
    }

    fn create(&self) -> Result<Tape, GpuError> {
        let device = &self.device;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(self.family);
        // SAFETY: the family is one that the device was made with.
        let pool = unsafe { device.raw.create_command_pool(&info, None) }
            .map_err(|result| device.failed("vkCreateCommandPool", result))?;
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool was just made.
        let answer = unsafe { device.raw.allocate_command_buffers(&info) };
        let buffer = answer
            .and_then(|buffers| buffers.first().copied().ok_or(vk::Result::ERROR_UNKNOWN))
            .map_err(|result| {
                // SAFETY: nothing was made from the pool.
                unsafe { device.raw.destroy_command_pool(pool, None) };
                device.failed("vkAllocateCommandBuffers", result)
            })?;
        Ok(Tape { pool, buffer })
    }

    fn destroy(&self, tape: &Tape) {
        // SAFETY: its command buffer is not pending; its owner gives it up. The buffer goes with it.
        unsafe { self.device.raw.destroy_command_pool(tape.pool, None) };
    }
}

impl Drop for Tapes {
    fn drop(&mut self) {
        let free: Vec<Tape> = lock(&self.free).drain(..).collect();
        for tape in &free {
            self.destroy(tape);
        }
    }
}
