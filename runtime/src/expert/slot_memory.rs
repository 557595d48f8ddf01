//! The memory of the device's slots: as many buffers as its limits ask for.

use crate::base::ids::SlotIndex;
use crate::base::limits::POOL_BUFFERS_MAX;
use crate::expert::ExpertError;
use crate::gpu::{Buffer, Gpu, Placement};

const _: () = assert!(
    POOL_BUFFERS_MAX == flint_shaders::layout::POOL_BUFFERS,
    "the pool may spread over exactly the buffers that kernels bind"
);

/// The slots' memory.
pub struct SlotMemory {
    /// Buffers of `slots_per_buffer` slots each; the last may hold fewer.
    pub buffers: Vec<Buffer>,
    /// Slots in a buffer.
    pub slots_per_buffer: u32,
    /// Bytes of a slot.
    pub record_bytes: u64,
}

/// How `slots` records of `record_bytes` spread over buffers no larger than `range_bytes`: slots in a buffer.
///
/// # Errors
/// When kernels could not bind them all.
pub fn slots_per_buffer(slots: u32, record_bytes: u64, range_bytes: u64) -> Result<u32, ExpertError> {
    let per_buffer = u32::try_from((range_bytes / record_bytes).clamp(1, u64::from(u32::MAX)))
        .expect("invariant: clamped to u32");
    let buffers = slots.div_ceil(per_buffer);
    if buffers > POOL_BUFFERS_MAX {
        return Err(ExpertError::PoolTooLarge {
            slots,
            record_bytes,
            buffers,
            buffers_max: POOL_BUFFERS_MAX,
            slots_max: per_buffer.saturating_mul(POOL_BUFFERS_MAX),
        });
    }
    Ok(per_buffer.min(slots))
}

impl SlotMemory {
    /// Memory for `slots` records.
    ///
    /// # Errors
    /// When the device has too little, or kernels could not bind it.
    pub fn new(gpu: &Gpu, slots: u32, record_bytes: u64) -> Result<Self, ExpertError> {
        let slots_per_buffer = slots_per_buffer(slots, record_bytes, gpu.info().limits.largest_binding())?;
        let mut buffers = Vec::new();
        let mut left = slots;
        while left > 0 {
            let count = left.min(slots_per_buffer);
            let len_bytes = u64::from(count) * record_bytes;
            buffers.push(gpu.buffer("expert slots", len_bytes, Placement::Device)?);
            left -= count;
        }
        Ok(Self { buffers, slots_per_buffer, record_bytes })
    }

    /// Where a slot lies.
    pub(super) fn place(&self, slot: SlotIndex) -> (&Buffer, u64) {
        let buffer = &self.buffers[(slot.0 / self.slots_per_buffer) as usize];
        (buffer, u64::from(slot.0 % self.slots_per_buffer) * self.record_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_spread_over_buffers_that_kernels_can_bind() {
        assert_eq!(slots_per_buffer(96, 30_720, 128 << 20).unwrap(), 96);
        assert_eq!(slots_per_buffer(100, 1_966_080, 128 << 20).unwrap(), 68);
        assert_eq!(slots_per_buffer(12_032, 1_966_080, (4 << 30) - 1).unwrap(), 2184);
        let error = slots_per_buffer(12_032, 1_966_080, 128 << 20).unwrap_err();
        assert!(error.to_string().contains("at most 1088 slots"), "{error}");
    }
}
