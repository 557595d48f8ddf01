//! Token rows into the residual stream.

use flint_shaders::layout::EmbedPush;

use super::Binder;
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// `x[t] = rows[row_index[t]]`.
pub struct Embed {
    pipeline: Pipeline,
    bindings: Bindings,
    push: EmbedPush,
    tokens_max: u32,
}

impl Embed {
    /// `rows` f32 `[*, embed_dim]`, `row_index` u32 `[tokens_max]`, `x` f32 `[tokens_max, embed_dim]`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        rows: &Buffer,
        row_index: &Buffer,
        x: &Buffer,
        embed_dim: u32,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        on.assert_rows("embed", "row_index", row_index, 1);
        on.assert_rows("embed", "x", x, u64::from(embed_dim));
        on.assert_rows("embed", "rows", rows, u64::from(embed_dim));
        let pipeline = pipelines.embed.clone();
        let bindings =
            gpu.bind(&pipeline, &[&[control.view()], &[rows.view()], &[row_index.view()], &[x.view()]])?;
        Ok(Self { pipeline, bindings, push: EmbedPush { embed_dim }, tokens_max })
    }

    /// Records it for `tokens` tokens.
    pub fn record(&self, recorder: &mut Recorder, tokens: u32) {
        assert!(tokens <= self.tokens_max, "embed: {tokens} tokens of {}", self.tokens_max);
        recorder.dispatch(&self.pipeline, &self.bindings, self.push.bytes(), [1, tokens, 1]);
    }
}
