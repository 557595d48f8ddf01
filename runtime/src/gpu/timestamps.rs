//! The device's clock: how long dispatches take.
//!
//! Owns a query pool. In: stamps noted while recording ([`super::Recorder::stamp`]). Out: nanoseconds.
//!
//! Invariants: a stamp is read only after it was noted; until then there is no answer rather than a wrong one. All are reset
//! before the first is read, as the driver may say anything of one that never was.

use std::sync::Arc;

use ash::vk;

use super::context::Shared;
use super::error::GpuError;

pub(super) struct TimestampsInner {
    pub(super) pool: vk::QueryPool,
    count: u32,
    shared: Arc<Shared>,
}

impl Drop for TimestampsInner {
    fn drop(&mut self) {
        // SAFETY: commands that use it hold it and have run.
        unsafe { self.shared.device.raw.destroy_query_pool(self.pool, None) };
    }
}

/// A row of stamps on the device's clock.
#[derive(Clone)]
pub struct Timestamps {
    pub(super) inner: Arc<TimestampsInner>,
}

impl Timestamps {
    /// See [`super::Gpu::timestamps`].
    pub(super) fn new(shared: &Arc<Shared>, count: u32) -> Result<Self, GpuError> {
        let device = &shared.device;
        assert!(count > 0, "no stamps");
        if device.info.limits.timestamp_ns <= 0.0 {
            let features = vec!["timestamps on its compute queue".to_owned()];
            return Err(GpuError::FeatureMissing { device: device.info.title(), features });
        }
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(count);
        // SAFETY: a count above zero of a core query type.
        let pool = unsafe { device.raw.create_query_pool(&info, None) }
            .map_err(|result| device.failed("vkCreateQueryPool", result))?;
        Ok(Self { inner: Arc::new(TimestampsInner { pool, count, shared: Arc::clone(shared) }) })
    }

    /// How many stamps there are.
    pub fn count(&self) -> u32 {
        self.inner.count
    }

    /// Nanoseconds between each stamp and the next, `count - 1` of them; `None` while a stamp is not noted yet. To be
    /// called after the ticket of commands that reset and noted all of them.
    ///
    /// # Errors
    /// When the driver cannot say.
    pub fn spans_ns(&self) -> Result<Option<Vec<f64>>, GpuError> {
        let at = self.read_ns(0, self.inner.count)?;
        Ok(at.map(|at| at.windows(2).map(|pair| (pair[1] - pair[0]).max(0.0)).collect()))
    }

    /// `count` stamps from `first` on, in nanoseconds of the device's clock, which begins anywhere; `None` while one is not
    /// noted yet.
    ///
    /// # Errors
    /// When the driver cannot say.
    ///
    /// # Panics
    /// When there are no such stamps.
    pub fn read_ns(&self, first: u32, count: u32) -> Result<Option<Vec<f64>>, GpuError> {
        self.check_range(first, count);
        let device = &self.inner.shared.device;
        let mut ticks = vec![0u64; usize::try_from(count).expect("invariant: 32 bits fit")];
        let flags = vk::QueryResultFlags::TYPE_64;
        // SAFETY: the slice has a 64-bit word a query, and the queries are of the pool.
        let answer = unsafe { device.raw.get_query_pool_results(self.inner.pool, first, &mut ticks, flags) };
        match answer {
            Ok(()) => {}
            Err(vk::Result::NOT_READY) => return Ok(None),
            Err(result) => return Err(device.failed("vkGetQueryPoolResults", result)),
        }
        let unit_ns = f64::from(device.info.limits.timestamp_ns);
        Ok(Some(ticks.into_iter().map(|ticks| ticks as f64 * unit_ns).collect()))
    }

    pub(super) fn check_range(&self, first: u32, count: u32) {
        let all = self.inner.count;
        assert!(
            first.checked_add(count).is_some_and(|end| end <= all),
            "{count} stamps from {first} of {all}"
        );
    }

    pub(super) fn check_device(&self, shared: &Arc<Shared>) {
        assert!(Arc::ptr_eq(shared, &self.inner.shared), "stamps of another device");
    }
}
