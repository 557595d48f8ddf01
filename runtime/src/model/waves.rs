//! The experts of a layer, wave after wave, for all rows of a step; and the commands of a step that are under way.
//!
//! A wave is as many experts as there are slots for, and few enough that the reads of the next one run while the device computes it.

use crate::base::events::Lane;
use crate::base::ids::{ExpertIndex, LayerIndex, SlotIndex};
use crate::gpu::{Commands, Mark, Recorder, Ticket};
use crate::kernels::{Rows, few_columns};
use crate::model::grouping::{Groups, tile_count};
use crate::model::layer::{Layer, WaveTiles};
use crate::model::{Model, ModelError};

/// Experts of a wave at most: the device computes one wave while the next is read, so a wave is short beside a layer; and long enough
/// that its kernels fill the device.
const WAVE_EXPERTS: usize = 32;

impl Model {
    /// Loads and runs the experts of one layer, wave after wave.
    pub(super) fn run_waves(
        &mut self,
        bound: &Layer,
        index: usize,
        rows: Rows,
        groups: &Groups,
        step: &mut Step,
    ) -> Result<(), ModelError> {
        let layer = LayerIndex(u32::try_from(index).expect("invariant: few layers"));
        let tile_pairs = self.pipelines.tuning().tile_pairs(
            rows.count(),
            self.config.experts_used,
            self.config.expert_count,
        );
        let mut left: Vec<ExpertIndex> = groups.experts();
        let mut experts = Vec::new();
        let mut tile_first = 0;
        self.scratch.tiles_upload.write(self.scratch.pairs_offset_bytes, &groups.pairs);
        while !(left.is_empty() && experts.is_empty()) {
            if experts.is_empty() {
                let behind = left.split_off(left.len().min(WAVE_EXPERTS));
                experts = std::mem::replace(&mut left, behind);
            }
            let wave = self.streamer.load_wave(layer, &mut experts)?;
            let (tiles, kinds) = wave_tiles(groups, &wave.experts, rows, tile_pairs, tile_first);
            let scratch = &self.scratch;
            let (offset_bytes, len_bytes) = (u64::from(tile_first) * 12, tiles.len() as u64 * 4);
            scratch.tiles_upload.write(offset_bytes, &tiles);
            let mut recorder = self.gpu.recorder()?;
            let mark = self.watch.clock.mark(Lane::Device, "a wave of experts", Some(layer.0), 0);
            self.watch.clock.begin(&mut recorder, mark);
            if tile_first == 0 {
                let pairs_bytes = groups.pairs.len() as u64 * 4;
                let from = scratch.pairs_offset_bytes;
                recorder.copy(&scratch.tiles_upload, from, &scratch.tiles.pairs, 0, pairs_bytes);
            }
            recorder.copy(&scratch.tiles_upload, offset_bytes, &scratch.tiles.tiles, offset_bytes, len_bytes);
            bound.record_wave(&mut recorder, &kinds);
            self.watch.clock.end(&mut recorder, mark);
            step.submit(self, recorder, vec![mark])?;
            tile_first += tile_count(&tiles);
        }
        Ok(())
    }
}

/// The tiles of a wave of `experts`, and what kinds of them there are, in order; the first is tile `tile_first`.
///
/// Few rows make tiles as large as what they hold, so that an expert that one token picked is not computed for eight.
fn wave_tiles(
    groups: &Groups,
    experts: &[(ExpertIndex, SlotIndex)],
    rows: Rows,
    tile_pairs: u32,
    tile_first: u32,
) -> (Vec<u32>, Vec<WaveTiles>) {
    let pairs_of = |expert| match rows {
        Rows::Many(_) => Rows::Many(tile_pairs),
        Rows::Few(_) => Rows::Few(few_columns(groups.count(expert))),
    };
    let mut sorted: Vec<_> = experts.iter().map(|&(expert, slot)| (pairs_of(expert), expert, slot)).collect();
    sorted.sort_by_key(|&(pairs, _, _)| pairs.count());
    let (mut tiles, mut kinds) = (Vec::new(), Vec::<WaveTiles>::new());
    for (pairs, expert, slot) in sorted {
        let first = tile_first + tile_count(&tiles);
        groups.append_tiles(expert, slot, pairs.count(), &mut tiles);
        let count = tile_first + tile_count(&tiles) - first;
        match kinds.last_mut() {
            Some(kind) if kind.pairs == pairs => kind.count += count,
            _ => kinds.push(WaveTiles { pairs, first, count }),
        }
    }
    (tiles, kinds)
}

/// Commands of a chunk that the device may still run.
#[derive(Default)]
pub(super) struct Step {
    in_flight: Vec<Commands>,
}

impl Step {
    /// What was submitted has run.
    pub(super) fn ended(&mut self) {
        self.in_flight.clear();
    }

    /// Submits what was recorded, and within it `marks`.
    pub(super) fn submit(
        &mut self,
        model: &Model,
        recorder: Recorder,
        marks: Vec<Option<Mark>>,
    ) -> Result<Ticket, ModelError> {
        let submitted =
            recorder.finish().and_then(|commands| Ok((model.gpu.submit(&[&commands])?, commands)));
        let ticket = submitted.as_ref().ok().map(|&(ticket, _)| ticket);
        marks.into_iter().for_each(|mark| model.watch.clock.ended(ticket, mark));
        let (ticket, commands) = submitted?;
        self.in_flight.push(commands);
        Ok(ticket)
    }
}
