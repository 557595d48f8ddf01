//! Layers of a step of many rows that the device runs without a word to the host, as long as every pick is in a slot.

use std::ops::Range;

use flint_shaders::layout::CONTROL_STOP;

use crate::base::events::Lane;
use crate::base::ids::{ExpertIndex, LayerIndex};
use crate::gpu::{Buffer, Mark, Recorder, Ticket};
use crate::kernels::{Rows, TileKinds};
use crate::model::grouping::Groups;
use crate::model::layer::{Grouped, Layer};
use crate::model::prefill::PrefillObserver;
use crate::model::step::{Placed, layers_of};
use crate::model::waves::Step;
use crate::model::{Model, ModelError};

/// Layers that one submission holds: the device begins with them while the host records the next.
pub(super) const LAYERS_A_SUBMISSION: usize = 8;

/// Where the stop word lies among control words.
const STOP_BYTE: u64 = CONTROL_STOP as u64 * 4;

/// How the rows of a step are computed.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) rows: Rows,
    /// Whether each layer's picks are guessed at one layer early.
    pub(super) guesses: bool,
    /// Whether the head follows the last layer.
    pub(super) has_head: bool,
}

/// Layers that were submitted together.
struct Piece {
    layers: Range<usize>,
    ticket: Ticket,
}

impl Model {
    /// Has the device run `layers` by itself, and tells `observer` what was picked in those that it ran to their end. Gives the layer
    /// at which it stopped for an expert, if it did; the kernels of the step then do nothing until [`Self::go_on`]. All that was
    /// submitted has then run, unless `layers` are none.
    pub(super) fn run_alone(
        &mut self,
        parts: &[Placed<'_>],
        way: Way,
        layers: Range<usize>,
        step: &mut Step,
        observer: &mut dyn PrefillObserver,
    ) -> Result<Option<usize>, ModelError> {
        let pieces = self.submit_alone(parts, way, layers, step)?;
        let mut groups = Groups::default();
        let mut stopped_at = None;
        // A piece's picks are noted while the device runs the next.
        for (index, Piece { layers, ticket }) in (0..).zip(pieces) {
            self.wait_and_read(ticket)?;
            if stopped_at.is_some() {
                continue;
            }
            let mut stop = [0_u32];
            self.scratch.stop_report.read(index * 4, &mut stop);
            stopped_at = (stop[0] as usize).checked_sub(1);
            for layer in layers.start..stopped_at.unwrap_or(layers.end) {
                let routes = self.read_routes_of_many(layer, way.rows.count());
                groups.sort(routes.experts.iter().copied(), self.config.expert_count);
                self.note_alone(layer, &groups);
                observer.routes(routes);
            }
        }
        Ok(stopped_at)
    }

    /// Submits the experts of `layers`, and behind each what [`Self::record_behind`] says; and behind each piece its stop word.
    fn submit_alone(
        &mut self,
        parts: &[Placed<'_>],
        way: Way,
        mut layers: Range<usize>,
        step: &mut Step,
    ) -> Result<Vec<Piece>, ModelError> {
        let config = &self.config;
        let tile_pairs =
            self.pipelines.tuning().tile_pairs(way.rows.count(), config.experts_used, config.expert_count);
        let kinds = TileKinds::of(way.rows, tile_pairs, config.experts_used);
        let others: Vec<&Buffer> = parts.iter().map(|part| &part.sequence.control).collect();
        let mut pieces = Vec::new();
        while !layers.is_empty() {
            let end = layers.end.min(layers.start + LAYERS_A_SUBMISSION);
            let piece = std::mem::replace(&mut layers.start, end)..end;
            let scratch = &self.scratch;
            let grouped = Grouped {
                group: &parts[0].sequence.group,
                kinds,
                grids: &scratch.grids,
                control: &scratch.control,
                others: &others,
            };
            let mut recorder = self.gpu.recorder()?;
            let mut marks = Vec::new();
            for index in piece.clone() {
                let mark = self.mark_layer("experts, and what follows", index);
                self.watch.clock.begin(&mut recorder, mark);
                parts[0].sequence.layers[index].record_grouped_experts(&mut recorder, way.rows, grouped);
                self.record_behind(parts, way, index, &mut recorder);
                self.watch.clock.end(&mut recorder, mark);
                marks.push(mark);
            }
            recorder.barrier();
            recorder.copy(&scratch.control, STOP_BYTE, &scratch.stop_report, pieces.len() as u64 * 4, 4);
            let ticket = step.submit(self, recorder, marks)?;
            self.step_counters.submissions += 1;
            pieces.push(Piece { layers: piece, ticket });
        }
        Ok(pieces)
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
            next[0].layer.record_route(recorder, way.rows, false, way.guesses);
        } else if way.has_head {
            self.record_wanted_logits(parts, recorder);
        }
    }

    /// Has the kernels run again that a stop has silenced.
    pub(super) fn go_on(&mut self, parts: &[Placed<'_>], step: &mut Step) -> Result<(), ModelError> {
        let mut recorder = self.gpu.recorder()?;
        let controls = parts.iter().map(|part| &part.sequence.control).chain([&self.scratch.control]);
        controls.for_each(|control| recorder.fill(control, STOP_BYTE, 4, 0));
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
    fn note_alone(&mut self, index: usize, groups: &Groups) {
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
