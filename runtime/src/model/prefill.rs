//! A chunk of prompt tokens, layer by layer.
//!
//! Per expert layer the host reads the picks of all tokens, groups the tokens by expert, and runs the experts in waves of as
//! many as there are slots: while the device computes one wave, the reads of the next are under way. A wave's copies are
//! submitted behind the work that still reads the slots they overwrite, so nothing waits on the host for that.
//!
//! A chunk of one token takes the decode path.

use std::time::Instant;

use crate::base::events::Lane;
use crate::base::ids::{ExpertIndex, LayerIndex, TokenId};
use crate::gpu::{Commands, Mark, Recorder, Ticket};
use crate::model::decode::StepOutput;
use crate::model::grouping::{Groups, tile_count};
use crate::model::scratch::LOGIT_ROWS;
use crate::model::sequence::Sequence;
use crate::model::{LayerRoutes, Model, ModelError, Want};

/// Experts of a wave at most: the device computes one wave while the next is read, so a wave is short beside a layer; and long enough
/// that its kernels fill the device.
const WAVE_EXPERTS: usize = 32;

/// Who watches a chunk.
pub trait PrefillObserver {
    /// Asked before each chunk, and within it before the experts of each layer; `true` gives the chunk up.
    fn should_stop(&mut self) -> bool {
        false
    }

    /// Called by [`crate::engine::Engine::feed_prompt`] after each chunk: tokens fed, of how many.
    fn progress(&mut self, _done: u32, _total: u32) {}

    /// The picks of a layer, for all tokens of the chunk.
    fn routes(&mut self, _routes: LayerRoutes) {}

    /// Whether [`Self::logits`] is to be called at all.
    fn wants_logits(&self) -> bool {
        false
    }

    /// The logits `[vocabulary]` and the greedy token of one token of the chunk; called in order.
    fn logits(&mut self, _index: u32, _logits: &[f32], _greedy: TokenId) {}
}

/// Nobody.
pub struct NoObserver;

impl PrefillObserver for NoObserver {}

impl Model {
    /// Feeds up to [`crate::model::scratch::Scratch::tokens_max`] tokens and advances the sequence by them.
    ///
    /// # Errors
    /// As [`Model::decode`], and [`ModelError::Stopped`] when the observer wants it. The sequence has then not advanced.
    pub fn prefill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[TokenId],
        want: Want,
        observer: &mut dyn PrefillObserver,
    ) -> Result<StepOutput, ModelError> {
        assert!(!tokens.is_empty(), "a chunk has a token");
        assert!(tokens.len() <= self.scratch.tokens_max as usize, "a chunk fits the scratch");
        if let [token] = tokens {
            return self.prefill_one(sequence, *token, want, observer);
        }
        let count = u32::try_from(tokens.len()).expect("invariant: asserted above");
        let has_watched_logits = observer.wants_logits();
        sequence.write_inputs(self, tokens)?;
        let is_sweep = self.uses_nearly_all(count);
        if is_sweep {
            self.streamer.begin_sweep();
        } else {
            self.streamer.begin_step();
        }
        let mut step = Step { in_flight: Vec::new() };
        let mut recorder = self.gpu.recorder()?;
        let mark = self.watch.clock.mark(Lane::Device, "lead layers, attention and router", Some(0), 0);
        self.watch.clock.begin(&mut recorder, mark);
        sequence.record_beginning(self, &mut recorder, count, false, false);
        let mut ticket = step.submit(self, recorder, mark)?;

        let lead = self.config.lead_layer_count as usize;
        let mut groups = Groups::default();
        for index in lead..sequence.layers.len() {
            self.wait_and_read(ticket)?;
            step.in_flight.clear();
            if observer.should_stop() {
                return Err(ModelError::Stopped);
            }
            let routes = self.read_routes_of_many(index, count);
            groups.sort(routes.experts.iter().copied(), self.config.expert_count);
            observer.routes(routes);
            let reads_ahead = is_sweep && self.streamer.wants_guesses_in_prompts();
            if reads_ahead && index + 1 < sequence.layers.len() {
                let next = u32::try_from(index + 1).expect("invariant: few layers");
                self.streamer.read_ahead(LayerIndex(next));
            }
            self.run_waves(sequence, index, &groups, &mut step)?;

            let mut recorder = self.gpu.recorder()?;
            let what = "shared expert, sum, and what follows";
            let layer = u32::try_from(index).expect("invariant: few layers");
            let mark = self.watch.clock.mark(Lane::Device, what, Some(layer), 0);
            self.watch.clock.begin(&mut recorder, mark);
            sequence.layers[index].record_shared_and_combine(&mut recorder, count);
            if let Some(next) = sequence.layers.get(index + 1) {
                next.record_attend(&mut recorder, count);
                next.record_route(&mut recorder, count, false, false);
            } else if want != Want::Nothing && !has_watched_logits {
                self.record_last_logits(sequence, &mut recorder, count, want);
            }
            ticket = step.submit(self, recorder, mark)?;
        }
        self.watch.wait_gpu(&self.gpu, ticket)?;
        step.in_flight.clear();

        if has_watched_logits {
            self.observe_logits(sequence, count, observer)?;
            if want != Want::Nothing {
                // The observer's rows went through the same buffers: the last position comes once more, alone.
                let mut recorder = self.gpu.recorder()?;
                self.record_last_logits(sequence, &mut recorder, count, want);
                let commands = recorder.finish()?;
                self.watch.wait_gpu(&self.gpu, self.gpu.submit(&[&commands])?)?;
            }
        }
        let greedy = match want {
            Want::Nothing => None,
            Want::Greedy | Want::Logits => Some(self.read_greedy(sequence, 0, count - 1)?),
        };
        sequence.position += count;
        Ok(StepOutput { greedy })
    }

    fn prefill_one(
        &mut self,
        sequence: &mut Sequence,
        token: TokenId,
        want: Want,
        observer: &mut dyn PrefillObserver,
    ) -> Result<StepOutput, ModelError> {
        if observer.should_stop() {
            return Err(ModelError::Stopped);
        }
        let step_want = if observer.wants_logits() { Want::Logits } else { want };
        let output = self.decode(sequence, token, step_want)?;
        for routes in self.read_routes_of_one() {
            observer.routes(routes);
        }
        if let (true, Some(greedy)) = (observer.wants_logits(), output.greedy) {
            let mut logits = Vec::new();
            self.read_logits(&mut logits);
            observer.logits(0, &logits, greedy);
        }
        Ok(StepOutput { greedy: output.greedy.filter(|_| want != Want::Nothing) })
    }

    /// Waits for work of the chunk while reads go on.
    fn wait_and_read(&mut self, ticket: Ticket) -> Result<(), ModelError> {
        let begin = Instant::now();
        self.streamer.wait_and_read(&self.gpu, ticket)?;
        self.watch.wait_gpu_since(&self.gpu, ticket, begin)?;
        Ok(())
    }

    /// Whether a layer of `count` tokens is likely to use nine of ten experts, if it picks them evenly.
    fn uses_nearly_all(&self, count: u32) -> bool {
        let left = 1.0 - f64::from(self.config.experts_used) / f64::from(self.config.expert_count);
        left.powf(f64::from(count)) <= 0.1
    }

    /// Loads and runs the experts of one layer, wave after wave.
    fn run_waves(
        &mut self,
        sequence: &Sequence,
        index: usize,
        groups: &Groups,
        step: &mut Step,
    ) -> Result<(), ModelError> {
        let layer = LayerIndex(u32::try_from(index).expect("invariant: few layers"));
        let tile_max = self.pipelines.tuning().tokens_many;
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
            let mut tiles = Vec::new();
            for &(expert, slot) in &wave.experts {
                groups.append_tiles(expert, slot, tile_max, &mut tiles);
            }
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
            sequence.layers[index].record_wave(&mut recorder, tile_first, tile_count(&tiles));
            step.submit(self, recorder, mark)?;
            tile_first += tile_count(&tiles);
        }
        Ok(())
    }

    fn read_routes_of_many(&self, index: usize, count: u32) -> LayerRoutes {
        let used = self.config.experts_used as usize;
        let mut words = vec![0_u32; count as usize * 2 * used];
        self.scratch.route_report.read(0, &mut words);
        let mut routes = LayerRoutes {
            layer: u32::try_from(index).expect("invariant: few layers"),
            experts: Vec::with_capacity(count as usize * used),
            weights: Vec::with_capacity(count as usize * used),
        };
        for token in words.chunks_exact(2 * used) {
            routes.experts.extend_from_slice(&token[..used]);
            routes.weights.extend(token[used..].iter().map(|&bits| f32::from_bits(bits)));
        }
        routes
    }

    /// The head on the last of `count` rows, and the copy of its logits where they are wanted.
    fn record_last_logits(&self, sequence: &Sequence, recorder: &mut Recorder, count: u32, want: Want) {
        sequence.head.record(recorder, count - 1, 1);
        if want == Want::Logits {
            self.record_logits_copy(recorder, 1);
        }
    }

    fn record_logits_copy(&self, recorder: &mut Recorder, rows: u32) {
        let len_bytes = u64::from(rows) * u64::from(self.config.vocabulary) * 4;
        recorder.barrier();
        recorder.copy(&self.scratch.logits, 0, &self.scratch.logits_report, 0, len_bytes);
    }

    /// Logits of every token of the chunk that has just run, a few rows at a time.
    fn observe_logits(
        &mut self,
        sequence: &mut Sequence,
        count: u32,
        observer: &mut dyn PrefillObserver,
    ) -> Result<(), ModelError> {
        let vocabulary = self.config.vocabulary as usize;
        let mut first = 0;
        while first < count {
            let rows = LOGIT_ROWS.min(count - first);
            let mut recorder = self.gpu.recorder()?;
            sequence.head.record(&mut recorder, first, rows);
            self.record_logits_copy(&mut recorder, rows);
            let commands = recorder.finish()?;
            self.watch.wait_gpu(&self.gpu, self.gpu.submit(&[&commands])?)?;
            let mut logits = vec![0.0_f32; rows as usize * vocabulary];
            self.scratch.logits_report.read(0, &mut logits);
            for (row, values) in (0..rows).zip(logits.chunks_exact(vocabulary)) {
                let greedy = self.read_greedy(sequence, row, first + row)?;
                observer.logits(first + row, values, greedy);
            }
            first += rows;
        }
        Ok(())
    }
}

/// Commands of a chunk that the device may still run.
struct Step {
    in_flight: Vec<Commands>,
}

impl Step {
    /// Submits what was recorded within `mark`, which began with it.
    fn submit(
        &mut self,
        model: &Model,
        mut recorder: Recorder,
        mark: Option<Mark>,
    ) -> Result<Ticket, ModelError> {
        let clock = &model.watch.clock;
        clock.end(&mut recorder, mark);
        let submitted =
            recorder.finish().and_then(|commands| Ok((model.gpu.submit(&[&commands])?, commands)));
        clock.ended(submitted.as_ref().ok().map(|&(ticket, _)| ticket), mark);
        let (ticket, commands) = submitted?;
        self.in_flight.push(commands);
        Ok(ticket)
    }
}
