//! The weighted sum of the picks, the shared expert and the residual.

use flint_shaders::layout::CombinePush;

use super::{Binder, groups};
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// `x = (sum_j w_j y_j + shared) + x`, in the router's order.
pub struct Combine {
    pipeline: Pipeline,
    bindings: Bindings,
    push: CombinePush,
    per_group: u32,
    tokens_max: u32,
}

impl Combine {
    /// `routes` u32 `[tokens, 2, experts_used]`, `y` f32 `[tokens, experts_used, embed_dim]`, `shared` and `x` f32
    /// `[tokens, embed_dim]`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        [routes, y, shared, x]: [&Buffer; 4],
        embed_dim: u32,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        let used = u64::from(pipelines.shape.experts_used);
        on.assert_rows("combine", "routes", routes, 2 * used);
        on.assert_rows("combine", "y", y, used * u64::from(embed_dim));
        on.assert_rows("combine", "shared", shared, u64::from(embed_dim));
        on.assert_rows("combine", "x", x, u64::from(embed_dim));
        let pipeline = pipelines.combine.clone();
        let bindings = gpu.bind(
            &pipeline,
            &[&[control.view()], &[routes.view()], &[y.view()], &[shared.view()], &[x.view()]],
        )?;
        let push = CombinePush { embed_dim, experts_used: pipelines.shape.experts_used };
        Ok(Self { pipeline, bindings, push, per_group: pipelines.workgroup, tokens_max })
    }

    /// Records it for `tokens` tokens.
    pub fn record(&self, recorder: &mut Recorder, tokens: u32) {
        assert!(tokens <= self.tokens_max, "combine: {tokens} tokens of {}", self.tokens_max);
        let grid = [groups(self.push.embed_dim, self.per_group), tokens, 1];
        recorder.dispatch(&self.pipeline, &self.bindings, self.push.bytes(), grid);
    }
}
