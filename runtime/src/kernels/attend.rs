//! Rotation, cache write and attention of a sequence's next token in one dispatch.

use flint_shaders::layout::AttendPush;

use super::attention::{Attention, AttentionShape, RopeBuffers, attention_scale};
use super::fused::Counters;
use super::{Binder, assert_holds};
use crate::base::limits::STEP_SEQUENCES_MAX;
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// [`super::Rope`] and [`super::Attention`] in one, for a row that is the next token of its sequence.
pub struct Attend {
    pipeline: Pipeline,
    bindings: Bindings,
    push: AttendPush,
    splits: u32,
    rows_max: u32,
}

impl Attend {
    /// `rope` as in [`super::Rope`], of which q stays as it is; `partial` as in
    /// [`super::Attention`], `sinks` f32 `[head_count]`, `target` f32 `[tokens, head_count, head_dim]`; a counter a row and KV
    /// head.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    ///
    /// # Panics
    /// When the kernels were made without fused ones, or for another shape.
    pub fn new(
        on: &Binder<'_>,
        rope: &RopeBuffers<'_>,
        [partial, sinks, target]: [&Buffer; 3],
        shape: &AttentionShape,
        counters: Counters<'_>,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        shape.assert_compiled(pipelines.shape);
        let splits = pipelines.tuning.decode_splits;
        let rows_max = tokens_max.min(STEP_SEQUENCES_MAX);
        rope.check(on, "attend", shape);
        on.assert_rows("attend", "target", target, u64::from(shape.head_count) * u64::from(shape.head_dim));
        assert_holds(
            "attend",
            "partial",
            partial,
            Attention::partial_words(splits, shape.head_count, shape.head_dim, tokens_max),
        );
        assert_holds("attend", "sinks", sinks, u64::from(shape.head_count));
        let counted = u64::from(counters.first) + Self::counter_words(shape.kv_head_count, rows_max);
        assert_holds("attend", "counters", counters.buffer, counted);
        let pipeline = on.fused().attend.clone();
        let bindings = gpu.bind(
            &pipeline,
            &[
                &[control.view()],
                &[rope.q.view()],
                &[rope.k.view()],
                &[rope.v.view()],
                &[rope.q_norm.view()],
                &[rope.k_norm.view()],
                &[rope.angles.view()],
                &[rope.k_cache.view()],
                &[rope.v_cache.view()],
                &[sinks.view()],
                &[partial.view()],
                &[target.view()],
                &[counters.buffer.view()],
            ],
        )?;
        let push = AttendPush {
            head_count: shape.head_count,
            kv_head_count: shape.kv_head_count,
            window: shape.window,
            ring_rows: shape.ring_rows,
            is_rotated: u32::from(shape.is_rotated),
            split_keys: pipelines.tuning.split_keys,
            counter_first: counters.first,
            scale: attention_scale(shape.head_dim),
            epsilon: shape.epsilon,
        };
        Ok(Self { pipeline, bindings, push, splits, rows_max })
    }

    /// Counters that it wants for `rows` rows.
    pub fn counter_words(kv_head_count: u32, rows: u32) -> u64 {
        u64::from(kv_head_count) * u64::from(rows)
    }

    /// Records it for the token in row `row`; its control words are those of [`super::Rope::record_from`].
    pub fn record(&self, recorder: &mut Recorder, row: u32) {
        assert!(row < self.rows_max, "attend: row {row} of {}", self.rows_max);
        let (base, grid) = ([0, 0, row], [self.push.kv_head_count, self.splits, 1]);
        recorder.dispatch_from(&self.pipeline, &self.bindings, self.push.bytes(), base, grid);
    }
}
