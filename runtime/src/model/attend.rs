//! What a layer does with a sequence's own cache: rotation, the cache's new rows, attention over it.
//!
//! In a step of several sequences each has its own kernels run on its own rows of the shared activations.

use crate::gpu::{GpuError, Recorder};
use crate::kernels::attention::RopeBuffers;
use crate::kernels::{Attention, AttentionShape, Binder, Rope, Rows};
use crate::model::Model;
use crate::model::kv_cache::LayerCache;
use crate::model::weights::LayerWeights;

/// What a layer does with a sequence's own cache.
pub(super) struct Attend {
    rope: Rope,
    attention: Attention,
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
        Ok(Self { rope: Rope::new(on, &rope, shape)?, attention: Attention::new(on, attention, shape)? })
    }

    /// For one token of a sequence that is alone in its step.
    pub(super) fn record_one(&self, recorder: &mut Recorder) {
        self.rope.record(recorder, 1);
        recorder.barrier();
        self.attention.record(recorder, 1);
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
    // The sums of a row's splits and those of a prompt's rows share a buffer, so these come after those.
    let (few, many) = parts.split_at(parts.partition_point(|part| matches!(part.rows, Rows::Few(_))));
    for group in [few, many].into_iter().filter(|group| !group.is_empty()) {
        recorder.barrier();
        for part in group {
            part.attend.attention.record_attend(recorder, part.first, part.rows);
        }
        recorder.barrier();
        for part in group {
            part.attend.attention.record_merge(recorder, part.first, part.rows);
        }
    }
}
