//! Many rows, layer by layer: a chunk of a prompt, or rows of several sequences.
//!
//! As long as every pick is in a slot, the device groups them by expert and goes from layer to layer by itself
//! (`resident`); how many layers it is given at once follows what happened last ([`crate::model::Ahead`]).
//!
//! Where an expert is missing, the host reads the picks of all tokens, groups them, and runs the layer's experts in waves of as
//! many as there are slots: while the device computes one wave, the reads of the next are under way. A wave's copies are
//! submitted behind the work that still reads the slots they overwrite, so nothing waits on the host for that.
//!
//! A step of one token takes the decode path.

use std::time::Instant;

use crate::base::events::Lane;
use crate::base::ids::{LayerIndex, TokenId};
use crate::gpu::{Recorder, Ticket};
use crate::kernels::Rows;
use crate::model::decode::StepOutput;
use crate::model::grouping::Groups;
use crate::model::layer::Layer;
use crate::model::resident::{Way, layer_index};
use crate::model::scratch::LOGIT_ROWS;
use crate::model::sequence::Sequence;
use crate::model::step::{Part, Placed, layers_of, rows_of};
use crate::model::waves::Step;
use crate::model::{LayerRoutes, Model, ModelError, Want};

/// Who watches a chunk.
pub trait PrefillObserver {
    /// Asked before each chunk, and within it whenever the host has waited for the device: before the experts of a layer, at most some
    /// 250 ms after it was asked last; `true` gives the chunk up.
    fn should_stop(&mut self) -> bool {
        false
    }

    /// Called by [`crate::engine::Engine::feed_prompt`] after each chunk: tokens fed, of how many.
    fn progress(&mut self, _done: u32, _total: u32) {}

    /// The picks of a layer, for all tokens of the chunk; layer by layer, but some time after they were made.
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
        let mut outputs = self.step(&mut [Part { sequence, tokens, drafts: 0, want }], observer)?;
        outputs.pop().expect("invariant: a part has an output")
    }

    /// One token of one sequence, watched.
    pub(super) fn step_one(
        &mut self,
        part: &mut Placed<'_>,
        observer: &mut dyn PrefillObserver,
    ) -> Result<StepOutput, ModelError> {
        if observer.should_stop() {
            return Err(ModelError::Stopped);
        }
        let want = part.want;
        let step_want = if observer.wants_logits() { Want::Logits } else { want };
        let output = self.decode_one(part, step_want)?;
        for routes in self.read_routes_of_one() {
            observer.routes(routes);
        }
        if let (true, Some(greedy)) = (observer.wants_logits(), output.greedy) {
            let mut logits = Vec::new();
            self.read_logits(&mut logits);
            observer.logits(0, &logits, greedy);
        }
        Ok(StepOutput { greedy: output.greedy.filter(|_| want != Want::Nothing), ..output })
    }

    /// Runs all rows of a step through the layers, and leaves logits and greedy tokens of those that are wanted in the reports, in
    /// the order of `parts`.
    pub(super) fn run_layers(
        &mut self,
        parts: &mut [Placed<'_>],
        observer: &mut dyn PrefillObserver,
    ) -> Result<(), ModelError> {
        self.inputs.write(&self.embedding, &self.scratch, self.forced.as_ref(), parts)?;
        let rows = rows_of(parts);
        let count = rows.count();
        let has_watched_logits = observer.wants_logits();
        assert!(!has_watched_logits || parts.len() == 1, "all logits are watched of one sequence only");
        let is_sweep = self.uses_nearly_all(count);
        if is_sweep {
            self.streamer.begin_sweep();
        } else {
            self.streamer.begin_step();
        }
        self.step_counters.steps += 1;
        // A sweep reads ahead in the order of the file instead.
        let guesses = matches!(rows, Rows::Few(_)) && !is_sweep && self.streamer.wants_guesses();
        let way = Way { rows, guesses, has_head: !has_watched_logits };
        let kind = usize::from(matches!(rows, Rows::Many(_)));
        let mut step = Step::default();
        let mut ticket = self.begin_layers(parts, way, &mut step)?;

        let layer_count = self.config.layer_count as usize;
        let mut groups = Groups::default();
        // The first layer whose experts have not run. Its picks are in the report once what was submitted has run.
        let mut index = self.config.lead_layer_count as usize;
        while index < layer_count {
            let (alone, began) = (self.ahead[kind].layers(count, layer_count - index), Instant::now());
            let stopped_at = self.run_alone(parts, way, index..index + alone, &mut step, observer)?;
            match stopped_at {
                Some(stop) => self.ahead[kind].stopped(stop - index),
                None if alone > 0 => self.ahead[kind].ran(count, alone, began.elapsed()),
                None => self.wait_and_read(ticket)?,
            }
            step.ended();
            index = stopped_at.unwrap_or(index + alone);
            if index == layer_count {
                break;
            }
            if observer.should_stop() {
                return Err(ModelError::Stopped);
            }
            let routes = self.read_routes_of_many(index, count);
            groups.sort(routes.experts.iter().copied(), self.config.expert_count);
            if stopped_at.is_some() {
                self.step_counters.stops += 1;
                self.go_on(parts, &mut step)?;
            } else {
                let is_resident = self.are_resident(index, &groups);
                if alone == 0 {
                    self.ahead[kind].looked(is_resident);
                }
                if is_resident {
                    continue;
                }
            }
            if guesses {
                self.guess_for_few(parts, index, &routes.experts);
            }
            observer.routes(routes);
            if is_sweep && self.streamer.wants_guesses_in_prompts() && index + 1 < layer_count {
                self.streamer.read_ahead(layer_index(index + 1));
            }
            ticket = self.run_layer(parts, way, index, &groups, &mut step)?;
            index += 1;
        }
        self.watch.wait_gpu(&self.gpu, ticket)?;
        step.ended();

        if has_watched_logits {
            self.observe_logits(parts[0].sequence, count, observer)?;
            // The observer's rows went through the same buffers: the wanted one comes once more, alone.
            let mut recorder = self.gpu.recorder()?;
            self.record_wanted_logits(parts, &mut recorder);
            let commands = recorder.finish()?;
            self.watch.wait_gpu(&self.gpu, self.gpu.submit(&[&commands])?)?;
        }
        Ok(())
    }

    /// Runs the experts of layer `index` in waves, and submits what follows them.
    fn run_layer(
        &mut self,
        parts: &[Placed<'_>],
        way: Way,
        index: usize,
        groups: &Groups,
        step: &mut Step,
    ) -> Result<Ticket, ModelError> {
        let layer = &parts[0].sequence.layers[index];
        self.run_waves(layer, index, way.rows, groups, step)?;
        let mut recorder = self.gpu.recorder()?;
        let mark = self.mark_layer("shared expert, sum, and what follows", index);
        self.watch.clock.begin(&mut recorder, mark);
        layer.record_shared_and_combine(&mut recorder, way.rows);
        self.record_behind(parts, way, index, &mut recorder);
        self.watch.clock.end(&mut recorder, mark);
        self.step_counters.submissions += 1;
        step.submit(self, recorder, vec![mark])
    }

    /// Submits inputs, lead layers, attention and router of the first expert layer.
    fn begin_layers(
        &mut self,
        parts: &[Placed<'_>],
        way: Way,
        step: &mut Step,
    ) -> Result<Ticket, ModelError> {
        let Way { rows, guesses, .. } = way;
        let mut recorder = self.gpu.recorder()?;
        let mark = self.watch.clock.mark(Lane::Device, "lead layers, attention and router", Some(0), 0);
        self.watch.clock.begin(&mut recorder, mark);
        parts[0].sequence.record_inputs(self, &mut recorder, rows.count());
        let lead = self.config.lead_layer_count as usize;
        for index in 0..=lead {
            let layers = layers_of(parts, index);
            Layer::record_attend(&layers, &mut recorder, rows);
            if index < lead {
                layers[0].layer.record_dense(&mut recorder, rows, false);
            } else {
                layers[0].layer.record_route(&mut recorder, rows, false, guesses);
            }
        }
        self.watch.clock.end(&mut recorder, mark);
        self.step_counters.submissions += 1;
        step.submit(self, recorder, vec![mark])
    }

    /// Waits for work of the chunk while reads go on.
    pub(super) fn wait_and_read(&mut self, ticket: Ticket) -> Result<(), ModelError> {
        self.step_counters.waits += 1;
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

    /// Gives up what was guessed wrongly of layer `index`, whose `picks` are known, and has the likely picks of the layer behind it
    /// read as far as the drive has nothing better to do: first everybody's best, then everybody's second.
    fn guess_for_few(&mut self, parts: &[Placed<'_>], index: usize, picks: &[u32]) {
        let layer = u32::try_from(index).expect("invariant: few layers");
        self.streamer.settle_guesses(LayerIndex(layer), picks);
        let next = layer + 1;
        if next >= self.config.layer_count {
            return;
        }
        let used = self.config.experts_used as usize;
        let mut words = vec![0_u32; rows_of(parts).count() as usize * 2 * used];
        let moe_layer = u64::from(next - self.config.lead_layer_count);
        self.scratch.guess_report.read(moe_layer * words.len() as u64 * 4, &mut words);
        if let Some(forced) = &self.forced {
            // The model's own routers know nothing of the picks that are dictated.
            let positions = parts.iter().flat_map(|part| (part.sequence.position..).take(part.tokens.len()));
            for (position, guesses) in positions.zip(words.chunks_exact_mut(2 * used)) {
                let moe_layer = next - self.config.lead_layer_count;
                let Some(recorded) = forced.guess(position, moe_layer) else { return };
                guesses.iter_mut().zip(recorded).for_each(|(guess, &expert)| *guess = expert.into());
            }
        }
        let mut guesses: Vec<u32> = Vec::new();
        for rank in 0..used {
            for expert in words.chunks_exact(2 * used).map(|guesses| guesses[rank]) {
                if !guesses.contains(&expert) {
                    guesses.push(expert);
                }
            }
        }
        self.streamer.guess(LayerIndex(next), &guesses);
    }

    pub(super) fn read_routes_of_many(&self, index: usize, count: u32) -> LayerRoutes {
        let used = self.config.experts_used as usize;
        let mut words = vec![0_u32; count as usize * 2 * used];
        let moe_layer = index - self.config.lead_layer_count as usize;
        self.scratch.route_report.read((moe_layer * words.len()) as u64 * 4, &mut words);
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

    /// The head on the wanted rows of each part, and the copy of the logits that are wanted.
    pub(super) fn record_wanted_logits(&self, parts: &[Placed<'_>], recorder: &mut Recorder) {
        let rows: Vec<u32> = parts.iter().flat_map(Placed::wanted_rows).collect();
        if rows.is_empty() {
            return;
        }
        parts[0].sequence.head.record_each(self, recorder, &rows);
        recorder.barrier();
        let mut first = 0;
        for part in parts {
            let count = u32::try_from(part.wanted_rows().len()).expect("invariant: at most LOGIT_ROWS");
            if part.want == Want::Logits {
                self.record_logits_copy(recorder, first, count);
            }
            first += count;
        }
    }

    /// Copies logits to the host, behind a barrier.
    fn record_logits_copy(&self, recorder: &mut Recorder, row_first: u32, rows: u32) {
        let row_bytes = u64::from(self.config.vocabulary) * 4;
        let (offset_bytes, len_bytes) = (u64::from(row_first) * row_bytes, u64::from(rows) * row_bytes);
        let scratch = &self.scratch;
        recorder.copy(&scratch.logits, offset_bytes, &scratch.logits_report, offset_bytes, len_bytes);
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
            recorder.barrier();
            self.record_logits_copy(&mut recorder, 0, rows);
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
