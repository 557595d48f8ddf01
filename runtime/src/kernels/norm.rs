//! RMS norm of rows.

use flint_shaders::layout::RmsNormPush;

use super::{Binder, assert_holds};
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// `target[i] = source[i] / rms(source[i]) * weight`, a row at a time.
pub struct RmsNorm {
    pipeline: Pipeline,
    bindings: Bindings,
    push: RmsNormPush,
    source_rows: u32,
    target_rows: u32,
}

impl RmsNorm {
    /// `source` and `target` f32 `[*, dim]`, `weight` f32 `[dim]`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        source: &Buffer,
        weight: &Buffer,
        target: &Buffer,
        dim: u32,
        epsilon: f32,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, .. } = *on;
        assert_holds("rms_norm", "weight", weight, u64::from(dim));
        let pipeline = pipelines.rms_norm.clone();
        let bindings =
            gpu.bind(&pipeline, &[&[control.view()], &[source.view()], &[weight.view()], &[target.view()]])?;
        let rows = |buffer: &Buffer| {
            u32::try_from(buffer.len_bytes() / (u64::from(dim) * 4))
                .expect("invariant: a buffer is below 16 TiB")
        };
        Ok(Self {
            pipeline,
            bindings,
            push: RmsNormPush { dim, source_row: 0, target_row: 0, epsilon },
            source_rows: rows(source),
            target_rows: rows(target),
        })
    }

    /// Records it for `rows` rows, from `source_row` to `target_row` on.
    pub fn record(&self, recorder: &mut Recorder, rows: u32, source_row: u32, target_row: u32) {
        assert!(
            source_row + rows <= self.source_rows && target_row + rows <= self.target_rows,
            "rms_norm: {rows} rows from {source_row} to {target_row}, of {} and {}",
            self.source_rows,
            self.target_rows
        );
        let push = RmsNormPush { source_row, target_row, ..self.push };
        recorder.dispatch(&self.pipeline, &self.bindings, push.bytes(), [rows, 1, 1]);
    }
}
