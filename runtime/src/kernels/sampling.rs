//! The index of the largest logit.

use flint_shaders::layout::ArgmaxPush;

use super::fused::Counters;
use super::{Binder, assert_holds};
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// Parts into which a row is cut: enough workgroups to fill a device with Flint's 150,144 logits, few enough for the last of
/// them to join.
const PARTS: u32 = 128;

/// `result[row] = argmax(source[row])`, ties to the lower index, `NO_SLOT` when a value is not finite.
pub struct Argmax {
    pipeline: Pipeline,
    bindings: Bindings,
    push: ArgmaxPush,
    rows_max: u32,
}

impl Argmax {
    /// Words of `partial` for `rows` rows.
    pub fn partial_words(rows: u32) -> u64 {
        u64::from(rows) * u64::from(PARTS) * 2
    }

    /// `source` f32 `[rows, column_count]`, `partial` u32 `[rows, parts, 2]`, `result` u32 `[rows]`; a counter a row.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        source: &Buffer,
        partial: &Buffer,
        result: &Buffer,
        counters: Counters<'_>,
        column_count: u32,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        on.assert_rows("argmax", "source", source, u64::from(column_count));
        on.assert_rows("argmax", "result", result, 1);
        assert_holds("argmax", "partial", partial, Self::partial_words(tokens_max));
        assert_holds("argmax", "counters", counters.buffer, u64::from(counters.first + tokens_max));
        let pipeline = pipelines.argmax.clone();
        let bindings = gpu.bind(
            &pipeline,
            &[
                &[control.view()],
                &[source.view()],
                &[partial.view()],
                &[result.view()],
                &[counters.buffer.view()],
            ],
        )?;
        let push = ArgmaxPush { column_count, parts: PARTS, counter_first: counters.first };
        Ok(Self { pipeline, bindings, push, rows_max: tokens_max })
    }

    /// Records it for `rows` rows.
    pub fn record(&self, recorder: &mut Recorder, rows: u32) {
        assert!(rows <= self.rows_max, "argmax: {rows} rows of {}", self.rows_max);
        recorder.dispatch(&self.pipeline, &self.bindings, self.push.bytes(), [PARTS, rows, 1]);
    }
}
