//! What a layer does with a sequence's own cache: rotation, the cache's new rows, attention over it.
//!
//! In a step of several sequences each has its own kernels run on its own rows of the shared activations.

use crate::gpu::{GpuError, Recorder};
use crate::kernels::attention::RopeBuffers;
use crate::kernels::{Attention, AttentionRows, AttentionShape, Binder, Rope, Rows};
use crate::model::Model;
use crate::model::kv_cache::LayerCache;
use crate::model::weights::LayerWeights;

/// What a layer does with a sequence's own cache.
pub(super) struct Attend {
    rope: Rope,
    /// Of one token, in splits.
    attention: Attention,
    /// Of pieces of prompts.
    rows: AttentionRows,
    /// Whether one token takes the way of many.
    one_as_many: bool,
}

impl Attend {
    /// Binds it to the control words of `on`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub(super) fn new(
        on: &Binder<'_>,
        model: &Model,
        weights: &LayerWeights,
        cache: &LayerCache,
        shape: &AttentionShape,
    ) -> Result<Self, GpuError> {
        let scratch = &model.scratch;
        let rope = RopeBuffers {
            q: &scratch.q,
            k: &scratch.k,
            v: &scratch.v,
            q_norm: &weights.q_norm,
            k_norm: &weights.k_norm,
            angles: &scratch.angles,
            k_cache: &cache.keys,
            v_cache: &cache.values,
        };
        let attention =
            [&scratch.q, &cache.keys, &cache.values, &scratch.partial, &weights.sinks, &scratch.attended];
        let rows = [&scratch.q, &cache.keys, &cache.values, &weights.sinks, &scratch.attended];
        Ok(Self {
            rope: Rope::new(on, &rope, shape)?,
            attention: Attention::new(on, attention, shape)?,
            rows: AttentionRows::new(on, rows, shape)?,
            one_as_many: on.pipelines.tuning().attends_next_as_prompt,
        })
    }

    /// For one token of a sequence that is alone in its step.
    pub(super) fn record_one(&self, recorder: &mut Recorder) {
        self.rope.record(recorder, 1);
        recorder.barrier();
        if self.one_as_many {
            self.rows.record(recorder, 0, 1);
        } else {
            self.attention.record(recorder);
        }
    }
}

/// The rows of a sequence in a step.
#[derive(Clone, Copy)]
pub(super) struct AttendRows<'a> {
    /// Bound to the sequence's cache and its control words.
    pub(super) attend: &'a Attend,
    /// The first of its rows.
    pub(super) first: u32,
    /// How many there are, and whether each is as it would be alone.
    pub(super) rows: Rows,
}

/// For the rows of several sequences, pieces of prompts last.
pub(super) fn record_all(parts: &[AttendRows<'_>], recorder: &mut Recorder) {
    for part in parts {
        part.attend.rope.record_from(recorder, part.first, part.rows.count());
    }
    recorder.barrier();
    let is_split = |part: &&AttendRows<'_>| matches!(part.rows, Rows::Few(_)) && !part.attend.one_as_many;
    for part in parts {
        if is_split(&part) {
            part.attend.attention.record_attend(recorder, part.first, part.rows.count());
        } else {
            part.attend.rows.record(recorder, part.first, part.rows.count());
        }
    }
    if parts.iter().any(|part| is_split(&part)) {
        recorder.barrier();
    }
    for part in parts.iter().filter(is_split) {
        part.attend.attention.record_merge(recorder, part.first, part.rows.count());
    }
}
