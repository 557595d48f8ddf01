//! Attention of many rows of one sequence: blocks of rows share the keys and values that are loaded for them.

use flint_shaders::layout::AttentionRowsPush;

use super::attention::attention_scale;
use super::{AttentionShape, Binder, assert_holds, groups};
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// Softmax with a sink over the visible keys, of tokens whose keys are not split.
pub struct AttentionRows {
    pipeline: Pipeline,
    bindings: Bindings,
    push: AttentionRowsPush,
    /// Rows of a workgroup: a row is a token and one of the query heads of a KV head.
    block: u32,
    /// Query heads of a KV head.
    group: u32,
    tokens_max: u32,
}

impl AttentionRows {
    /// `q` f32 `[tokens, head_count, head_dim]`; caches as in [`super::Rope`]; `sinks` f32 `[head_count]`; `target` f32 `[tokens,
    /// head_count, head_dim]`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        [q, k_cache, v_cache, sinks, target]: [&Buffer; 5],
        shape: &AttentionShape,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        let &AttentionShape { head_count, kv_head_count, head_dim, window, ring_rows, .. } = shape;
        let compiled = pipelines.shape;
        assert!(
            compiled.head_dim == head_dim && compiled.group * kv_head_count == head_count,
            "attention_rows: kernels are made for another shape"
        );
        let row_words = u64::from(head_count) * u64::from(head_dim);
        let cache_words = u64::from(ring_rows) * u64::from(kv_head_count) * u64::from(head_dim) / 2;
        on.assert_rows("attention_rows", "q", q, row_words);
        on.assert_rows("attention_rows", "target", target, row_words);
        assert_holds("attention_rows", "k_cache", k_cache, cache_words);
        assert_holds("attention_rows", "v_cache", v_cache, cache_words);
        assert_holds("attention_rows", "sinks", sinks, u64::from(head_count));
        let pipeline = pipelines.attention_rows.clone();
        let bindings = gpu.bind(
            &pipeline,
            &[
                &[control.view()],
                &[q.view()],
                &[k_cache.view()],
                &[v_cache.view()],
                &[sinks.view()],
                &[target.view()],
            ],
        )?;
        let scale = attention_scale(head_dim);
        let push = AttentionRowsPush { head_count, kv_head_count, window, ring_rows, token_first: 0, scale };
        let (block, group) = (pipelines.attention_block, compiled.group);
        Ok(Self { pipeline, bindings, push, block, group, tokens_max })
    }

    /// Records it for `tokens` tokens, which lie in rows from `row_first` on, with control words as those of
    /// [`super::Rope::record_from`].
    pub fn record(&self, recorder: &mut Recorder, row_first: u32, tokens: u32) {
        assert!(
            row_first + tokens <= self.tokens_max,
            "attention_rows: {tokens} tokens from row {row_first} on, of {}",
            self.tokens_max
        );
        let push = AttentionRowsPush { token_first: row_first, ..self.push };
        let grid = [push.kv_head_count, groups(tokens * self.group, self.block), 1];
        recorder.dispatch(&self.pipeline, &self.bindings, push.bytes(), grid);
    }
}
