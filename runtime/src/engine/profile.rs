//! Where the device's time goes within a step: every dispatch, summed by kernel and shape.
//!
//! - Owns, while it is on: the stamps of the device's recordings. In: what has run since the last step. Out: a [`StepProfile`].
//! - Invariants: commands that were recorded before it was begun are not stamped, so off costs nothing; those of single tokens are
//!   recorded when a session is opened. The times of all kernels add up to [`StepProfile::dispatch_ns`].
//!
//! What a dispatch's time is, [`crate::gpu::Dispatches`] says. Stamps cost time of their own and keep dispatches from overlapping
//! as they might, so a step that is stamped takes longer than one that is not: hold the sum of the times against the step's time
//! without ([`StepProfile::gap_share`]).

use std::collections::HashMap;
use std::sync::Arc;

use crate::engine::{Engine, EngineError};
use crate::gpu::{DispatchLabel, DispatchSpan, Dispatches};
use crate::kernels::work::Work;

/// Dispatches of one kernel with one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// The kernel, or `copy`, `fill`, `update`.
    pub kernel: String,
    /// Its shape, in words.
    pub shape: String,
    /// How many dispatches.
    pub count: u64,
    /// Nanoseconds of all of them.
    pub ns: f64,
    /// Bytes that all of them could not do without.
    pub bytes: Option<u64>,
    /// Multiplications and additions of all of them.
    pub flops: Option<u64>,
}

impl KernelTime {
    /// 1e9 bytes a second.
    pub fn gb_s(&self) -> Option<f64> {
        self.bytes.filter(|_| self.ns > 0.0).map(|bytes| bytes as f64 / self.ns)
    }

    /// 1e9 multiplications and additions a second.
    pub fn gflop_s(&self) -> Option<f64> {
        self.flops.filter(|_| self.ns > 0.0).map(|flops| flops as f64 / self.ns)
    }
}

/// What was profiled of some steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepProfile {
    /// Largest first.
    pub kernels: Vec<KernelTime>,
    /// Steps.
    pub steps: u64,
    /// Nanoseconds of these steps with stamps, on the host's clock.
    pub step_ns: u64,
    /// Stages: what lies between two barriers and has a dispatch.
    pub stages: u64,
    /// Dispatches that were not timed, for want of stamps or room.
    pub left_out: u64,
}

impl StepProfile {
    /// Dispatches that were timed.
    pub fn count(&self) -> u64 {
        self.kernels.iter().map(|kernel| kernel.count).sum()
    }

    /// Nanoseconds of all dispatches.
    pub fn dispatch_ns(&self) -> f64 {
        self.kernels.iter().map(|kernel| kernel.ns).sum()
    }

    /// The part of `plain_ns`, what these steps take without stamps, in which no dispatch ran: barriers, submissions, the host. Below 0
    /// where stamps keep apart what would overlap.
    pub fn gap_share(&self, plain_ns: f64) -> Option<f64> {
        (plain_ns > 0.0 && self.count() > 0).then(|| 1.0 - self.dispatch_ns() / plain_ns)
    }
}

/// Sums under way.
pub(super) struct Profiler {
    dispatches: Dispatches,
    /// Of each label its sum, and what one dispatch adds to it.
    known: HashMap<Arc<DispatchLabel>, (usize, Work)>,
    sums: StepProfile,
}

impl Profiler {
    fn add(&mut self, spans: &[DispatchSpan]) {
        for span in spans {
            let kernels = &mut self.sums.kernels;
            let (index, work) = self.known.entry(Arc::clone(&span.label)).or_insert_with(|| {
                let work = Work::of(&span.label);
                (index_of(kernels, span.label.name, &work.shape), work)
            });
            let sum = &mut kernels[*index];
            sum.count += 1;
            sum.ns += span.end_ns - span.begin_ns;
            sum.bytes = sum.bytes.zip(work.bytes).map(|(sum, more)| sum + more);
            sum.flops = sum.flops.zip(work.flops).map(|(sum, more)| sum + more);
            self.sums.stages += u64::from(span.begins_stage);
        }
    }
}

/// The sum of a kernel and a shape.
fn index_of(sums: &mut Vec<KernelTime>, kernel: &str, shape: &str) -> usize {
    let found = sums.iter().position(|sum| sum.kernel == kernel && sum.shape == shape);
    found.unwrap_or_else(|| {
        let (kernel, shape) = (kernel.to_owned(), shape.to_owned());
        sums.push(KernelTime { kernel, shape, count: 0, ns: 0.0, bytes: Some(0), flops: Some(0) });
        sums.len() - 1
    })
}

impl Engine {
    /// Times every dispatch from now on: of prompts and of steps for several sessions, and of single tokens in sessions that are opened
    /// from now on. Slows steps down.
    ///
    /// # Errors
    /// Where the device has no clock, [`crate::gpu::GpuError::FeatureMissing`].
    pub fn begin_profile(&mut self) -> Result<(), EngineError> {
        let dispatches = Dispatches::begin(&self.model.gpu)?;
        self.profiler = Some(Profiler { dispatches, known: HashMap::new(), sums: StepProfile::default() });
        Ok(())
    }

    /// What was timed since [`Self::begin_profile`] or the last call, largest first; nothing where nobody asked for it.
    pub fn take_profile(&mut self) -> StepProfile {
        let Some(profiler) = &mut self.profiler else { return StepProfile::default() };
        profiler.known.clear();
        let mut sums = std::mem::take(&mut profiler.sums);
        for sum in &mut sums.kernels {
            sum.bytes = sum.bytes.filter(|&bytes| bytes > 0);
            sum.flops = sum.flops.filter(|&flops| flops > 0);
        }
        sums.kernels.sort_by(|a, b| b.ns.total_cmp(&a.ns));
        sums
    }

    /// Times nothing from now on. Sessions that were opened meanwhile go on with stamps; what they note is lost.
    pub fn end_profile(&mut self) {
        self.profiler = None;
    }

    /// Takes what has run in a step of `step_ns`.
    pub(super) fn note_dispatches(&mut self, step_ns: u64) {
        let Some(profiler) = &mut self.profiler else { return };
        profiler.sums.steps += 1;
        profiler.sums.step_ns += step_ns;
        match profiler.dispatches.take() {
            Ok((spans, left_out)) => {
                profiler.sums.left_out += left_out;
                profiler.add(&spans);
                self.model
                    .watch
                    .clock
                    .note_dispatches(&spans, |span| Work::of(&span.label).bytes.unwrap_or(0));
            }
            // The device is lost: the next step says so.
            Err(_) => profiler.sums.left_out += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_what_no_dispatch_fills() {
        let kernel = |ns| KernelTime {
            kernel: "matmul".to_owned(),
            shape: "2x2".to_owned(),
            count: 3,
            ns,
            bytes: Some(600),
            flops: None,
        };
        let profile =
            StepProfile { kernels: vec![kernel(300.0), kernel(100.0)], steps: 2, ..StepProfile::default() };
        assert_eq!((profile.count(), profile.dispatch_ns()), (6, 400.0));
        assert_eq!(profile.gap_share(500.0), Some(1.0 - 400.0 / 500.0));
        assert_eq!((profile.gap_share(0.0), StepProfile::default().gap_share(500.0)), (None, None));
        assert_eq!((profile.kernels[0].gb_s(), profile.kernels[0].gflop_s()), (Some(2.0), None));
    }
}
