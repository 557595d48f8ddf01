//! One sequence: its cache, the layers bound to it, and the recorded commands of a token.

use std::ops::Deref;

use flint_shaders::layout::{CONTROL_STOP, CONTROL_WORDS};

use crate::base::events::Lane;
use crate::gpu::{Buffer, Clock, Commands, GpuError, Mark, Placement, Recorder};
use crate::kernels::group::GroupBuffers;
use crate::kernels::{Argmax, Embed, FoldedNorm, Fusion, Group, Matmul, NormMatmul, RmsNorm, Rows};
use crate::model::kv_cache::KvCache;
use crate::model::layer::Layer;
use crate::model::scratch::LOGIT_ROWS;
use crate::model::{Model, ModelError};

/// The output head, bound to the scratch.
pub(super) struct Head {
    norm: RmsNorm,
    output: Matmul,
    /// Norm and output in one, of rows of the residual and of rows that were gathered: where norms are folded.
    folded: Option<[NormMatmul; 2]>,
    argmax: Argmax,
}

impl Head {
    fn new(model: &Model) -> Result<Self, GpuError> {
        let (config, scratch) = (&model.config, &model.scratch);
        let on = model.binder(LOGIT_ROWS);
        let norm = FoldedNorm { weight: &model.weights.output_norm, epsilon: config.norm_epsilon };
        let folded = |x: &Buffer| NormMatmul::new(&on, x, norm, &model.weights.output, &scratch.logits);
        let folded = match model.pipelines.tuning().fusion {
            Fusion::StagesAndNorms => Some([folded(&scratch.x)?, folded(&scratch.normed)?]),
            Fusion::Nothing | Fusion::Stages => None,
        };
        Ok(Self {
            norm: RmsNorm::new(
                &on,
                &scratch.x,
                &model.weights.output_norm,
                &scratch.normed,
                config.embed_dim,
                config.norm_epsilon,
            )?,
            output: Matmul::new(&on, &scratch.normed, &model.weights.output, &scratch.logits, false)?,
            folded,
            argmax: Argmax::new(
                &on,
                &scratch.logits,
                &scratch.argmax_partial,
                &scratch.argmax_report,
                scratch.argmax_counters(),
                config.vocabulary,
            )?,
        })
    }

    /// Logits and greedy tokens of rows `row_first ..` of the residual.
    pub(super) fn record(&self, recorder: &mut Recorder, row_first: u32, rows: u32) {
        recorder.barrier();
        match (&self.folded, Rows::from(rows)) {
            (Some([residual, _]), Rows::Few(_)) => residual.record_rows(recorder, row_first, rows),
            (_, summed) => {
                self.norm.record(recorder, rows, row_first, 0);
                recorder.barrier();
                self.output.record_rows(recorder, summed);
            }
        }
        self.record_argmax(recorder, rows);
    }

    /// Logits and greedy tokens of these rows of the residual of `model`, each as it would be alone.
    pub(super) fn record_each(&self, model: &Model, recorder: &mut Recorder, rows: &[u32]) {
        let count = u32::try_from(rows.len()).expect("invariant: at most LOGIT_ROWS");
        recorder.barrier();
        match &self.folded {
            Some([residual, _]) if rows.is_sorted_by(|&row, &next| next == row + 1) => {
                residual.record_rows(recorder, rows[0], count);
            }
            Some([_, gathered]) => {
                let scratch = &model.scratch;
                let row_bytes = u64::from(model.config.embed_dim) * 4;
                for (target, &row) in (0..).zip(rows) {
                    let from = u64::from(row) * row_bytes;
                    recorder.copy(&scratch.x, from, &scratch.normed, target * row_bytes, row_bytes);
                }
                recorder.barrier();
                gathered.record_rows(recorder, 0, count);
            }
            None => {
                for (target, &row) in (0..).zip(rows) {
                    self.norm.record(recorder, 1, row, target);
                }
                recorder.barrier();
                self.output.record_rows(recorder, Rows::Few(count));
            }
        }
        self.record_argmax(recorder, count);
    }

    fn record_argmax(&self, recorder: &mut Recorder, rows: u32) {
        recorder.barrier();
        self.argmax.record(recorder, rows);
    }
}

/// The commands of one token, recorded once and submitted again and again. Position, token count and stop flag lie in the
/// control buffer, so nothing in them changes.
pub(super) struct DecodeCommands {
    /// First: inputs, lead layers, attention and router of the first expert layer. Then one a layer: its experts, and
    /// attention and router of the next; after the last layer's experts, the head.
    pub(super) segments: Vec<Commands>,
    /// One a segment, where a timeline is kept.
    pub(super) marks: Marks,
    /// Copies the logits to the host.
    pub(super) logits: Commands,
    /// Copies the control words to the host: runs even where kernels were stopped.
    pub(super) seal: Commands,
    /// One an expert layer: clears the stop flag and looks the layer's picks up again, now that they are loaded.
    pub(super) resume: Vec<Commands>,
}

/// Marks that are given back when their commands are gone, also where these were never recorded to their end.
pub(super) struct Marks {
    marks: Vec<Option<Mark>>,
    clock: Clock,
}

impl Deref for Marks {
    type Target = [Option<Mark>];

    fn deref(&self) -> &Self::Target {
        &self.marks
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        self.clock.give_back(self.marks.iter().flatten().copied());
    }
}

/// A sequence of tokens, and all that the device needs to go on with it.
pub struct Sequence {
    pub(super) cache: KvCache,
    pub(super) layers: Vec<Layer>,
    pub(super) head: Head,
    embed: Embed,
    /// Groups what the rows of a step picked.
    pub(super) group: Group,
    /// u32 `[8]`: control words of its rows in a step that it may share with others.
    pub(super) control: Buffer,
    pub(super) decode: Option<DecodeCommands>,
    /// The same, with guesses at every layer's picks one layer early; none where the pool holds every expert.
    pub(super) decode_guessing: Option<DecodeCommands>,
    /// Positions that are filled.
    pub(super) position: u32,
    /// Layers submitted ahead of a miss at decode.
    pub(super) run_ahead: usize,
}

impl Sequence {
    /// An empty sequence of up to `context_len` tokens.
    ///
    /// # Errors
    /// When the device has too little memory.
    pub fn new(model: &Model, context_len: u32) -> Result<Self, ModelError> {
        let (config, scratch) = (&model.config, &model.scratch);
        let cache = KvCache::new(&model.gpu, config, context_len, scratch.tokens_max)?;
        let control =
            model.gpu.buffer("control of a sequence", CONTROL_WORDS as u64 * 4, Placement::Upload)?;
        let layers = (0..)
            .zip(&cache.layers)
            .map(|(index, layer)| Layer::new(model, index, layer, &control))
            .collect::<Result<_, GpuError>>()?;
        let on = model.binder(scratch.tokens_max);
        let embed = Embed::new(&on, &scratch.rows, &scratch.row_index, &scratch.x, config.embed_dim)?;
        let group = GroupBuffers {
            routes: &scratch.routes,
            table: model.streamer.table(),
            groups: &scratch.groups,
            grids: &scratch.grids,
        };
        let mut sequence = Self {
            cache,
            layers,
            head: Head::new(model)?,
            embed,
            group: Group::new(&on, &group, &scratch.tiles)?,
            control,
            decode: None,
            decode_guessing: None,
            position: 0,
            run_ahead: 1,
        };
        sequence.decode = Some(sequence.record_decode(model, false)?);
        if model.streamer.can_guess() {
            sequence.decode_guessing = Some(sequence.record_decode(model, true)?);
        }
        Ok(sequence)
    }

    /// Tokens that are in the cache.
    pub fn position(&self) -> u32 {
        self.position
    }

    /// Tokens that fit.
    pub fn context_len(&self) -> u32 {
        self.cache.context_len
    }

    /// Keeps the first `position` tokens and forgets the rest; where a ring has lost what comes next, forgets all.
    /// Returns the position from which to go on.
    pub fn rewind(&mut self, position: u32) -> u32 {
        assert!(position <= self.position, "a sequence is rewound, not wound on");
        if position == 0 || !self.cache.can_continue_at(position) {
            self.cache.reset();
            self.position = 0;
        } else {
            self.position = position;
        }
        self.position
    }

    /// What it holds of keys and values.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Goes on from `position`: the cache was written from outside, see [`KvCache::restored`].
    ///
    /// # Panics
    /// When that is beyond the context.
    pub fn adopt(&mut self, position: u32, held_from: impl Fn(u32) -> u32) {
        assert!(position <= self.cache.context_len, "what was restored fits the context");
        self.cache.restored(position, held_from);
        self.position = position;
    }

    /// Where the commands of a token lie, unless a step is using them.
    pub(super) fn decode_commands(&mut self, with_guesses: bool) -> &mut Option<DecodeCommands> {
        if with_guesses { &mut self.decode_guessing } else { &mut self.decode }
    }

    /// What every step begins with: inputs and token rows.
    pub(super) fn record_inputs(&self, model: &Model, recorder: &mut Recorder, tokens: u32) {
        let (config, scratch) = (&model.config, &model.scratch);
        recorder.copy(&scratch.control_upload, 0, &scratch.control, 0, CONTROL_WORDS as u64 * 4);
        let angle_bytes = u64::from(tokens) * u64::from(config.head_dim) * 4;
        recorder.copy(&scratch.angles_upload, 0, &scratch.angles, 0, angle_bytes);
        // They are zero, unless a step before was given up by a device that had only begun it.
        for counters in [&scratch.counters, &scratch.guess_counters] {
            recorder.fill(counters, 0, counters.len_bytes(), 0);
        }
        recorder.barrier();
        self.embed.record(recorder, tokens);
    }

    /// What a token begins with: inputs, token rows, lead layers, attention and router of the first expert layer.
    fn record_beginning(&self, model: &Model, recorder: &mut Recorder, guesses: bool) {
        self.record_inputs(model, recorder, 1);
        let lead = model.config.lead_layer_count as usize;
        for layer in &self.layers[..lead] {
            layer.record_attend_one(recorder);
            layer.record_dense(recorder, Rows::Few(1), guesses);
        }
        self.layers[lead].record_attend_one(recorder);
        self.layers[lead].record_route(recorder, Rows::Few(1), true, guesses);
    }

    fn record_decode(&self, model: &Model, guesses: bool) -> Result<DecodeCommands, GpuError> {
        let (gpu, scratch) = (&model.gpu, &model.scratch);
        let lead = model.config.lead_layer_count as usize;
        let clock = &model.watch.clock;
        let (mut segments, mut marks) = (Vec::new(), Marks { marks: Vec::new(), clock: clock.clone() });
        let mut recorder = gpu.recorder()?;
        marks.marks.push(clock.mark(Lane::Device, "lead layers, attention and router", Some(0), 0));
        clock.begin(&mut recorder, marks[0]);
        self.record_beginning(model, &mut recorder, guesses);
        clock.end(&mut recorder, marks[0]);
        segments.push(recorder.finish()?);
        for (index, layer) in self.layers.iter().enumerate().skip(lead) {
            let mut recorder = gpu.recorder()?;
            let layer_index = u32::try_from(index).expect("invariant: few layers");
            let mark = clock.mark(Lane::Device, "experts, and what follows", Some(layer_index), 0);
            marks.marks.push(mark);
            clock.begin(&mut recorder, mark);
            layer.record_experts_of_one(&mut recorder);
            match self.layers.get(index + 1) {
                Some(next) => {
                    next.record_attend_one(&mut recorder);
                    next.record_route(&mut recorder, Rows::Few(1), true, guesses);
                }
                None => self.head.record(&mut recorder, 0, 1),
            }
            clock.end(&mut recorder, mark);
            segments.push(recorder.finish()?);
        }

        let mut recorder = gpu.recorder()?;
        let logits_bytes = u64::from(model.config.vocabulary) * 4;
        recorder.copy(&scratch.logits, 0, &scratch.logits_report, 0, logits_bytes);
        let logits = recorder.finish()?;
        let mut recorder = gpu.recorder()?;
        recorder.copy(&scratch.control, 0, &scratch.control_report, 0, CONTROL_WORDS as u64 * 4);
        let seal = recorder.finish()?;
        let resume = self.layers[lead..]
            .iter()
            .map(|layer| {
                let mut recorder = gpu.recorder()?;
                recorder.fill(&scratch.control, CONTROL_STOP as u64 * 4, 4, 0);
                recorder.barrier();
                layer.record_lookup(&mut recorder);
                recorder.finish()
            })
            .collect::<Result<_, GpuError>>()?;
        Ok(DecodeCommands { segments, marks, logits, seal, resume })
    }
}
