//! Per-head norm, rotation and cache write; attention of single tokens over the cache.

use flint_shaders::layout::{AttentionMergePush, AttentionPush, RopePush};

use super::{Binder, KernelShape, assert_holds};
use crate::base::limits::STEP_SEQUENCES_MAX;
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// What a layer's attention looks like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub head_count: u32,
    /// KV heads.
    pub kv_head_count: u32,
    /// Values of a head.
    pub head_dim: u32,
    /// Keys that a query sees, its own included; 0 for all.
    pub window: u32,
    /// Whether queries and keys are rotated by their position.
    pub is_rotated: bool,
    /// Rows of the KV cache; position `p` lies in row `p % ring_rows`.
    pub ring_rows: u32,
    /// Epsilon of the per-head norm.
    pub epsilon: f32,
}

impl AttentionShape {
    /// Values of all query heads, and of all KV heads.
    fn dims(&self) -> (u64, u64) {
        let dim = |heads: u32| u64::from(heads) * u64::from(self.head_dim);
        (dim(self.head_count), dim(self.kv_head_count))
    }

    /// Asserts that the kernels were made for it.
    pub(super) fn assert_compiled(&self, compiled: KernelShape) {
        assert!(
            compiled.head_dim == self.head_dim && compiled.group * self.kv_head_count == self.head_count,
            "attention: kernels are made for another shape"
        );
    }
}

/// Normalises and rotates q and k, writes k and v to the cache as f16.
pub struct Rope {
    pipeline: Pipeline,
    bindings: Bindings,
    push: RopePush,
    tokens_max: u32,
    /// Tokens of one sequence: two of them in one row of the ring would be a race.
    ring_tokens: u32,
}

/// The buffers of [`Rope`].
pub struct RopeBuffers<'a> {
    /// f32 `[tokens, head_count, head_dim]`, rewritten in place.
    pub q: &'a Buffer,
    /// f32 `[tokens, kv_head_count, head_dim]`.
    pub k: &'a Buffer,
    /// f32 `[tokens, kv_head_count, head_dim]`.
    pub v: &'a Buffer,
    /// f32 `[head_dim]`.
    pub q_norm: &'a Buffer,
    /// f32 `[head_dim]`.
    pub k_norm: &'a Buffer,
    /// f32 `[tokens, head_dim]`: cosines, then sines.
    pub angles: &'a Buffer,
    /// f16 `[ring_rows, kv_head_count, head_dim]`.
    pub k_cache: &'a Buffer,
    /// f16 `[ring_rows, kv_head_count, head_dim]`.
    pub v_cache: &'a Buffer,
}

impl RopeBuffers<'_> {
    /// Asserts that each holds its shape.
    pub(super) fn check(&self, on: &Binder<'_>, kernel: &str, shape: &AttentionShape) {
        let cache_words =
            u64::from(shape.ring_rows) * u64::from(shape.kv_head_count) * u64::from(shape.head_dim) / 2;
        let (q_dim, kv_dim) = shape.dims();
        on.assert_rows(kernel, "q", self.q, q_dim);
        on.assert_rows(kernel, "k", self.k, kv_dim);
        on.assert_rows(kernel, "v", self.v, kv_dim);
        on.assert_rows(kernel, "angles", self.angles, u64::from(shape.head_dim));
        assert_holds(kernel, "k_cache", self.k_cache, cache_words);
        assert_holds(kernel, "v_cache", self.v_cache, cache_words);
    }
}

impl Rope {
    /// Binds it to a layer.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(on: &Binder<'_>, buffers: &RopeBuffers<'_>, shape: &AttentionShape) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        buffers.check(on, "rope", shape);
        let pipeline = pipelines.rope.clone();
        let bindings = gpu.bind(
            &pipeline,
            &[
                &[control.view()],
                &[buffers.q.view()],
                &[buffers.k.view()],
                &[buffers.v.view()],
                &[buffers.q_norm.view()],
                &[buffers.k_norm.view()],
                &[buffers.angles.view()],
                &[buffers.k_cache.view()],
                &[buffers.v_cache.view()],
            ],
        )?;
        let push = RopePush {
            head_count: shape.head_count,
            kv_head_count: shape.kv_head_count,
            head_dim: shape.head_dim,
            is_rotated: u32::from(shape.is_rotated),
            ring_rows: shape.ring_rows,
            epsilon: shape.epsilon,
        };
        Ok(Self { pipeline, bindings, push, tokens_max, ring_tokens: shape.ring_rows })
    }

    /// Records it for `tokens` tokens, which lie in rows from 0 on.
    pub fn record(&self, recorder: &mut Recorder, tokens: u32) {
        self.record_from(recorder, 0, tokens);
    }

    /// Records it for `tokens` tokens, which lie in rows from `row_first` on: its control words say the position that row 0 would
    /// have, and for its token count the row behind the last.
    pub fn record_from(&self, recorder: &mut Recorder, row_first: u32, tokens: u32) {
        assert!(
            tokens <= self.ring_tokens,
            "rope: {tokens} tokens, of which a ring holds {}",
            self.ring_tokens
        );
        assert!(
            row_first + tokens <= self.tokens_max,
            "rope: {tokens} tokens from row {row_first} on, of {}",
            self.tokens_max
        );
        let heads = self.push.head_count + 2 * self.push.kv_head_count;
        let (base, grid) = ([0, row_first, 0], [heads, tokens, 1]);
        recorder.dispatch_from(&self.pipeline, &self.bindings, self.push.bytes(), base, grid);
    }
}

/// Softmax with a sink over the visible keys of one token, in splits that a second dispatch joins.
pub struct Attention {
    attend: Pipeline,
    merge: Pipeline,
    attend_bindings: Bindings,
    merge_bindings: Bindings,
    shape: AttentionShape,
    splits: u32,
    tokens_max: u32,
}

impl Attention {
    /// `q` f32 `[tokens, head_count, head_dim]`; caches as in [`Rope`]; `partial` f32 `[rows, head_count, splits,
    /// head_dim + 2]`, see [`Self::partial_words`]; `sinks` f32 `[head_count]`; `target` f32 `[tokens, head_count, head_dim]`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        [q, k_cache, v_cache, partial, sinks, target]: [&Buffer; 6],
        shape: &AttentionShape,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        shape.assert_compiled(pipelines.shape);
        let (q_dim, _) = shape.dims();
        let splits = pipelines.tuning.decode_splits;
        on.assert_rows("attention", "q", q, q_dim);
        on.assert_rows("attention", "target", target, q_dim);
        let words = Self::partial_words(splits, shape.head_count, shape.head_dim, tokens_max);
        assert_holds("attention", "partial", partial, words);
        assert_holds("attention", "sinks", sinks, u64::from(shape.head_count));
        let attend = pipelines.attention.clone();
        let merge = pipelines.attention_merge.clone();
        let attend_bindings = gpu.bind(
            &attend,
            &[&[control.view()], &[q.view()], &[k_cache.view()], &[v_cache.view()], &[partial.view()]],
        )?;
        let merge_bindings =
            gpu.bind(&merge, &[&[control.view()], &[partial.view()], &[sinks.view()], &[target.view()]])?;
        let shape = *shape;
        Ok(Self { attend, merge, attend_bindings, merge_bindings, shape, splits, tokens_max })
    }

    /// Words of `partial` for steps of up to `tokens_max` tokens: those of the next tokens of as many sequences as a step takes.
    pub fn partial_words(decode_splits: u32, head_count: u32, head_dim: u32, tokens_max: u32) -> u64 {
        let rows = u64::from(tokens_max.min(STEP_SEQUENCES_MAX));
        rows * u64::from(decode_splits) * u64::from(head_count) * u64::from(head_dim + 2)
    }

    /// Records both dispatches for one token in row 0.
    pub fn record(&self, recorder: &mut Recorder) {
        self.record_attend(recorder, 0, 1);
        recorder.barrier();
        self.record_merge(recorder, 0, 1);
    }

    /// Records the first dispatch for `count` tokens in rows from `row` on, with control words as those of [`Rope::record_from`].
    pub fn record_attend(&self, recorder: &mut Recorder, row: u32, count: u32) {
        self.assert_rows(row, count);
        let shape = &self.shape;
        let push = AttentionPush {
            head_count: shape.head_count,
            kv_head_count: shape.kv_head_count,
            window: shape.window,
            ring_rows: shape.ring_rows,
            splits: self.splits,
            scale: attention_scale(shape.head_dim),
        };
        let (base, grid) = ([0, 0, row], [shape.kv_head_count, self.splits, count]);
        recorder.dispatch_from(&self.attend, &self.attend_bindings, push.bytes(), base, grid);
    }

    /// Records the second dispatch, behind a barrier.
    pub fn record_merge(&self, recorder: &mut Recorder, row: u32, count: u32) {
        self.assert_rows(row, count);
        let AttentionShape { head_count, head_dim, .. } = self.shape;
        let push = AttentionMergePush { head_count, head_dim, splits: self.splits };
        let (base, grid) = ([0, row, 0], [head_count, count, 1]);
        recorder.dispatch_from(&self.merge, &self.merge_bindings, push.bytes(), base, grid);
    }

    fn assert_rows(&self, row: u32, count: u32) {
        let rows = self.tokens_max.min(STEP_SEQUENCES_MAX);
        assert!(row + count <= rows, "attention: {count} rows from {row} on, of {rows}");
    }
}

/// 1 / sqrt(head_dim), taken in double and rounded once.
#[expect(clippy::cast_possible_truncation, reason = "the rounding to f32 is the point")]
pub(super) fn attention_scale(head_dim: u32) -> f32 {
    (1.0 / f64::from(head_dim).sqrt()) as f32
}
