//! Router and choice of experts in one dispatch, for next tokens.

use flint_shaders::layout::PickExpertsPush;

use super::fused::{Counters, FoldedNorm};
use super::router::{RouteBuffers, RoutePlace};
use super::{Binder, TileBuffers, assert_holds, groups};
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// [`super::Router`] and [`super::Route`] in one: who writes the last of a token's logits picks its experts.
pub struct PickExperts {
    pipeline: Pipeline,
    bindings: Bindings,
    push: PickExpertsPush,
    rows: u32,
    tokens_max: u32,
}

impl PickExperts {
    /// `x` f32 `[tokens, embed_dim]`, `weight` f32 `[expert_count, embed_dim]`; one counter a token.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    ///
    /// # Panics
    /// When the kernels were made without fused ones.
    #[expect(clippy::too_many_arguments, reason = "one argument a group of the kernel's bindings")]
    pub fn new(
        on: &Binder<'_>,
        x: &Buffer,
        norm: FoldedNorm<'_>,
        (weight, embed_dim): (&Buffer, u32),
        buffers: &RouteBuffers<'_>,
        tiles: &TileBuffers,
        place: RoutePlace,
        counters: Counters<'_>,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        let expert_count = pipelines.shape.expert_count;
        let table_first = place.check(on, "pick_experts", buffers);
        on.assert_rows("pick_experts", "x", x, u64::from(embed_dim));
        assert_holds("pick_experts", "norm", norm.weight, u64::from(embed_dim));
        assert_holds("pick_experts", "weight", weight, u64::from(expert_count) * u64::from(embed_dim));
        assert_holds("pick_experts", "counters", counters.buffer, u64::from(counters.first + tokens_max));
        let fused = on.fused();
        let bindings = gpu.bind(
            &fused.pick_experts,
            &[
                &[control.view()],
                &[x.view()],
                &[norm.weight.view()],
                &[weight.view()],
                &[buffers.logits.view()],
                &[buffers.table.view()],
                &[buffers.routes.view()],
                &[tiles.tiles.view()],
                &[tiles.pairs.view()],
                &[buffers.report.view()],
                &[counters.buffer.view()],
            ],
        )?;
        let push = PickExpertsPush {
            expert_count,
            column_count: embed_dim,
            layer: place.layer.0,
            table_first,
            report_first: place.report_first(pipelines.shape.experts_used),
            is_resolved: 0,
            weights_scale: place.weights_scale,
            epsilon: norm.epsilon,
            counter_first: counters.first,
        };
        let (pipeline, rows) = (fused.pick_experts.clone(), fused.rows_pick);
        Ok(Self { pipeline, bindings, push, rows, tokens_max })
    }

    /// As [`super::Route::record_resolved`].
    pub fn record_resolved(&self, recorder: &mut Recorder) {
        self.record(recorder, PickExpertsPush { is_resolved: 1, ..self.push }, 1);
    }

    /// As [`super::Route::record_guess`].
    pub fn record_guess(&self, recorder: &mut Recorder) {
        self.record(recorder, self.push, 1);
    }

    /// As [`super::Route::record_unresolved`].
    pub fn record_unresolved(&self, recorder: &mut Recorder, tokens: u32) {
        let report_first = self.push.report_first * tokens;
        self.record(recorder, PickExpertsPush { report_first, ..self.push }, tokens);
    }

    fn record(&self, recorder: &mut Recorder, push: PickExpertsPush, tokens: u32) {
        assert!(tokens <= self.tokens_max, "pick_experts: {tokens} tokens of {}", self.tokens_max);
        let grid = [groups(push.expert_count, self.rows), tokens, 1];
        recorder.dispatch(&self.pipeline, &self.bindings, push.bytes(), grid);
    }
}
