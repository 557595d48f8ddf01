//! What a layer does with a sequence's own cache: rotation, the cache's new rows, attention over it.
//!
//! In a step of several sequences each has its own kernels run on its own rows of the shared activations.

use crate::gpu::{GpuError, Recorder};
use crate::kernels::attention::RopeBuffers;
use crate::kernels::{self, Attention, AttentionRows, AttentionShape, Binder, Fusion, Rope, Rows};
use crate::model::Model;
use crate::model::kv_cache::LayerCache;
use crate::model::weights::LayerWeights;

/// What a layer does with a sequence's own cache.
pub(super) struct Attend {
    rope: Rope,
    /// Of one token, in splits.
    attention: Attention,
    /// Both in one, for a row that is a next token.
    next: Option<kernels::Attend>,
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
        let tuning = on.pipelines.tuning();
        let one_as_many = tuning.attends_next_as_prompt;
        let next = match tuning.fusion {
            Fusion::Stages | Fusion::StagesAndNorms if !one_as_many => {
                let buffers = [&scratch.partial, &weights.sinks, &scratch.attended];
                Some(kernels::Attend::new(on, &rope, buffers, shape, scratch.attend_counters())?)
            }
            _ => None,
        };
        Ok(Self {
            rope: Rope::new(on, &rope, shape)?,
            attention: Attention::new(on, attention, shape)?,
            next,
            rows: AttentionRows::new(on, rows, shape)?,
            one_as_many,
        })
    }

    /// For one token of a sequence that is alone in its step.
    pub(super) fn record_one(&self, recorder: &mut Recorder) {
        if let Some(next) = &self.next {
            next.record(recorder, 0);
            return;
        }
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

impl<'a> AttendRows<'a> {
    /// Of next tokens and drafts, where one kernel does all for a row: that, and how many rows there are.
    fn next(&self) -> Option<(&'a kernels::Attend, u32)> {
        match (&self.attend.next, self.rows) {
            (Some(next), Rows::Few(count)) => Some((next, count)),
            _ => None,
        }
    }
}

/// For the rows of several sequences, pieces of prompts last.
pub(super) fn record_all(parts: &[AttendRows<'_>], recorder: &mut Recorder) {
    for part in parts {
        match part.next() {
            Some((next, _)) => next.record(recorder, part.first),
            None => part.attend.rope.record_from(recorder, part.first, part.rows.count()),
        }
    }
    // A draft sees the key of the token before it, so a sequence's rows come one after another.
    let rows_most = parts.iter().filter_map(AttendRows::next).map(|(_, count)| count).max();
    for row in 1..rows_most.unwrap_or(0) {
        recorder.barrier();
        for (part, (next, count)) in parts.iter().filter_map(|part| Some((part, part.next()?))) {
            if row < count {
                next.record(recorder, part.first + row);
            }
        }
    }
    let rest: Vec<_> = parts.iter().filter(|part| part.next().is_none()).collect();
    if rest.is_empty() {
        return;
    }
    recorder.barrier();
    let is_split = |part: &AttendRows<'_>| matches!(part.rows, Rows::Few(_)) && !part.attend.one_as_many;
    for part in &rest {
        if is_split(part) {
            part.attend.attention.record_attend(recorder, part.first, part.rows.count());
        } else {
            part.attend.rows.record(recorder, part.first, part.rows.count());
        }
    }
    if rest.iter().any(|part| is_split(part)) {
        recorder.barrier();
    }
    for part in rest.iter().filter(|part| is_split(part)) {
        part.attend.attention.record_merge(recorder, part.first, part.rows.count());
    }
}
