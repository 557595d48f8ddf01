//! The index of the largest logit.

use flint_shaders::layout::ArgmaxPush;

use super::{Binder, assert_holds};
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// Parts into which a row is cut: enough workgroups to fill a device with Flint's 150,144 logits, few enough for one
/// subgroup to join.
const PARTS: u32 = 128;

/// `result[row] = argmax(source[row])`, ties to the lower index, `NO_SLOT` when a value is not finite.
pub struct Argmax {
    parts: Pipeline,
    last: Pipeline,
    bindings: Bindings,
    push: ArgmaxPush,
    rows_max: u32,
}

impl Argmax {
    /// Words of `partial` for `rows` rows.
    pub fn partial_words(rows: u32) -> u64 {
        u64::from(rows) * u64::from(PARTS) * 2
    }

    /// `source` f32 `[rows, column_count]`, `partial` u32 `[rows, parts, 2]`, `result` u32 `[rows]`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        source: &Buffer,
        partial: &Buffer,
        result: &Buffer,
        column_count: u32,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        on.assert_rows("argmax", "source", source, u64::from(column_count));
        on.assert_rows("argmax", "result", result, 1);
        assert_holds("argmax", "partial", partial, Self::partial_words(tokens_max));
        let parts = pipelines.argmax_parts.clone();
        let bindings =
            gpu.bind(&parts, &[&[control.view()], &[source.view()], &[partial.view()], &[result.view()]])?;
        let push = ArgmaxPush { column_count, parts: PARTS };
        Ok(Self { parts, last: pipelines.argmax_final.clone(), bindings, push, rows_max: tokens_max })
    }

    /// Records both passes for `rows` rows.
    pub fn record(&self, recorder: &mut Recorder, rows: u32) {
        assert!(rows <= self.rows_max, "argmax: {rows} rows of {}", self.rows_max);
        recorder.dispatch(&self.parts, &self.bindings, self.push.bytes(), [PARTS, rows, 1]);
        recorder.barrier();
        recorder.dispatch(&self.last, &self.bindings, self.push.bytes(), [1, rows, 1]);
    }
}
