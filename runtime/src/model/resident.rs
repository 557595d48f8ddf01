//! Layers of a step of many rows that the device runs without a word to the host, as long as every pick is in a slot.

use std::ops::Range;

use flint_shaders::layout::{CONTROL_STOP, CONTROL_WORDS};

use crate::base::events::Lane;
use crate::base::ids::{ExpertIndex, LayerIndex};
use crate::gpu::{Buffer, Mark, Recorder, Ticket};
use crate::kernels::{Rows, TileKinds};
use crate::model::grouping::Groups;
use crate::model::layer::{Grouped, Layer};
use crate::model::step::{Placed, layers_of};
use crate::model::waves::Step;
use crate::model::{Model, ModelError};

/// Layers that one submission holds: the device begins with them while the host records the next.
const LAYERS_A_SUBMISSION: usize = 8;

/// How the rows of a step are computed.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) rows: Rows,
    /// Whether each layer's picks are guessed at one layer early.
    pub(super) guesses: bool,
    /// Whether the head follows the last layer.
    pub(super) has_head: bool,
}

impl Model {
    /// Submits the experts of `layers`, and behind each what [`Self::record_behind`] says; and behind all the control words for
    /// [`Self::stopped_at`].
    pub(super) fn submit_alone(
        &mut self,
        parts: &[Placed<'_>],
        way: Way,
        layers: Range<usize>,
        step: &mut Step,
    ) -> Result<Ticket, ModelError> {
        let tuning = self.pipelines.tuning();
        let others: Vec<&Buffer> = parts.iter().map(|part| &part.sequence.control).collect();
        let grouped = Grouped {
            group: &parts[0].sequence.group,
            kinds: TileKinds::of(way.rows, tuning.tokens_many, self.config.experts_used),
            grids: &self.scratch.grids,
            control: &self.scratch.control,
            others: &others,
        };
        let mut first = layers.start;
        loop {
            let end = layers.end.min(first + LAYERS_A_SUBMISSION);
            let mut recorder = self.gpu.recorder()?;
            let mut marks = Vec::new();
            for index in first..end {
                let mark = self.mark_layer("experts, and what follows", index);
                self.watch.clock.begin(&mut recorder, mark);
                parts[0].sequence.layers[index].record_grouped_experts(&mut recorder, way.rows, grouped);
                self.record_behind(parts, way, index, &mut recorder);
                self.watch.clock.end(&mut recorder, mark);
                marks.push(mark);
            }
            if end == layers.end {
                recorder.barrier();
                let (control, report) = (&self.scratch.control, &self.scratch.control_report);
                recorder.copy(control, 0, report, 0, u64::from(CONTROL_WORDS) * 4);
            }
            self.step_counters.submissions += 1;
            let ticket = step.submit(self, recorder, marks)?;
            if end == layers.end {
                return Ok(ticket);
            }
            first = end;
        }
    }

    /// What follows the experts of layer `index`: attention and router of the next one, or the head.
    pub(super) fn record_behind(
        &self,
        parts: &[Placed<'_>],
        way: Way,
        index: usize,
        recorder: &mut Recorder,
    ) {
        if index + 1 < self.config.layer_count as usize {
            let next = layers_of(parts, index + 1);
            Layer::record_attend(&next, recorder, way.rows);
            next[0].layer.record_route(recorder, way.rows.count(), false, way.guesses);
        } else if way.has_head {
            self.record_wanted_logits(parts, recorder);
        }
    }

    /// The layer at which what [`Self::submit_alone`] submitted last has stopped, once it has been waited for.
    pub(super) fn stopped_at(&self) -> Option<usize> {
        let mut control = [0_u32; CONTROL_WORDS as usize];
        self.scratch.control_report.read(0, &mut control);
        (control[CONTROL_STOP as usize] as usize).checked_sub(1)
    }

    /// Has the kernels run again that a stop has silenced.
    pub(super) fn go_on(&mut self, parts: &[Placed<'_>], step: &mut Step) -> Result<(), ModelError> {
        let mut recorder = self.gpu.recorder()?;
        let controls = parts.iter().map(|part| &part.sequence.control).chain([&self.scratch.control]);
        controls.for_each(|control| recorder.fill(control, u64::from(CONTROL_STOP) * 4, 4, 0));
        self.step_counters.submissions += 1;
        step.submit(self, recorder, vec![])?;
        Ok(())
    }

    /// Whether all experts that a layer's rows picked are in slots.
    pub(super) fn are_resident(&self, index: usize, groups: &Groups) -> bool {
        let layer = layer_index(index);
        groups.experts().into_iter().all(|expert| self.streamer.is_resident(layer, expert))
    }

    /// Notes the uses of a layer that the device ran alone.
    pub(super) fn note_alone(&mut self, index: usize, groups: &Groups) {
        let experts: Vec<u32> = groups.experts().into_iter().map(|ExpertIndex(expert)| expert).collect();
        self.streamer.touch(layer_index(index), &experts);
        self.step_counters.layers_alone += 1;
    }

    /// A mark of its own for work of layer `index`.
    pub(super) fn mark_layer(&self, what: &'static str, index: usize) -> Option<Mark> {
        self.watch.clock.mark(Lane::Device, what, Some(layer_index(index).0), 0)
    }
}

/// The layer's number as other stations count it.
pub(super) fn layer_index(index: usize) -> LayerIndex {
    LayerIndex(u32::try_from(index).expect("invariant: few layers"))
}
