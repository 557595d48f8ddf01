//! One token: run until an expert is missing, read it, go on.
//!
//! The commands of a token lie recorded, one segment a layer. The router kernel looks each pick up in the device's table; as
//! long as all are there, the device goes from layer to layer with no word to the host. Where one is missing it sets the stop
//! word, and every kernel behind returns at once; the host finds the layer in the control words and the picks in the route
//! report, has them loaded, and submits again from that layer's experts.
//!
//! How many segments are submitted at once follows what happened last: twice as many after a clean run, as many as were
//! useful after a stop, because the kernels of a stopped tail cost 1 to 2 us each.

use flint_shaders::layout::{CONTROL_STOP, CONTROL_WORDS, NO_SLOT};

use crate::base::ids::{ExpertIndex, LayerIndex, TokenId};
use crate::base::limits::{COMMANDS_PER_SUBMIT_MAX, EXPERTS_USED_MAX};
use crate::model::sequence::{DecodeCommands, Sequence};
use crate::model::step::{Part, Placed};
use crate::model::{LayerRoutes, Model, ModelError, Want};

/// What a step gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepOutput {
    /// The largest logit's token, where it was wanted.
    pub greedy: Option<TokenId>,
    /// Where the logits lie for [`Model::read_logits_of`], until the next step, where they were wanted.
    pub logits_row: u32,
}

impl Model {
    /// Feeds one token and advances the sequence by it.
    ///
    /// # Errors
    /// When the context is full, a read or the device fails, or the logits are not finite. The sequence has then not
    /// advanced; after [`ModelError::NotFinite`] it is empty.
    pub fn decode(
        &mut self,
        sequence: &mut Sequence,
        token: TokenId,
        want: Want,
    ) -> Result<StepOutput, ModelError> {
        // As a step of this part alone, but without the lists of one, so that a token takes nothing of the heap.
        let part = Part { sequence, tokens: &[token], drafts: 0, want };
        self.check(&part)?;
        self.decode_one(&mut Placed::alone(part), want)
    }

    /// A step of one part of one token, whose context has room for it.
    pub(super) fn decode_one(&mut self, part: &mut Placed<'_>, want: Want) -> Result<StepOutput, ModelError> {
        self.inputs.write(
            &self.embedding,
            &self.scratch,
            self.forced.as_ref(),
            std::slice::from_mut(part),
        )?;
        let sequence = &mut *part.sequence;
        let with_guesses = self.streamer.wants_guesses() && sequence.decode_guessing.is_some();
        let commands = sequence
            .decode_commands(with_guesses)
            .take()
            .expect("invariant: recorded when the sequence was made");
        let ran = self.run_segments(sequence, &commands, want, with_guesses);
        *sequence.decode_commands(with_guesses) = Some(commands);
        ran?;
        let greedy = match want {
            // The head ran in any case; its result is looked at only when it was asked for.
            Want::Nothing => None,
            Want::Greedy | Want::Logits => Some(self.read_greedy(sequence, 0, 0)?),
        };
        sequence.position += 1;
        Ok(StepOutput { greedy, logits_row: 0 })
    }

    fn run_segments(
        &mut self,
        sequence: &mut Sequence,
        commands: &DecodeCommands,
        want: Want,
        with_guesses: bool,
    ) -> Result<(), ModelError> {
        self.streamer.begin_step();
        self.counters.tokens += 1;
        let lead = self.config.lead_layer_count;
        let used = self.config.experts_used as usize;
        let segment_count = commands.segments.len();
        // Layers whose picks were counted; the next to count is `lead + counted`.
        let mut counted = 0;
        let mut from = 0;
        let mut resumed_at: Option<u32> = None;
        while from < segment_count {
            // Beside the segments a submission holds up to three commands.
            let run_ahead = sequence.run_ahead.min(COMMANDS_PER_SUBMIT_MAX - 3);
            let to = segment_count.min(from + run_ahead);
            let mut batch = [&commands.seal; COMMANDS_PER_SUBMIT_MAX];
            let resume = resumed_at.map(|moe_layer| &commands.resume[moe_layer as usize]);
            let logits = (to == segment_count && want == Want::Logits).then_some(&commands.logits);
            let in_order = resume.into_iter().chain(&commands.segments[from..to]).chain(logits);
            let before_seal = batch.iter_mut().zip(in_order).map(|(place, command)| *place = command).count();
            let ticket = self.gpu.submit(&batch[..=before_seal])?;
            self.counters.submissions += 1;
            self.counters.segments += (to - from) as u64;
            for &mark in &commands.marks[from..to] {
                self.watch.clock.submitted(ticket, mark, false);
            }
            self.wait(ticket)?;

            let mut control = [0_u32; CONTROL_WORDS as usize];
            self.scratch.control_report.read(0, &mut control);
            let stop = control[CONTROL_STOP as usize];
            // Segment i ends with the router of expert layer i, but for the last one, which ends with the head.
            let stopped_at = if stop == 0 { None } else { Some(stop - 1 - lead) };
            let routed = stopped_at.unwrap_or(u32::try_from(to).expect("invariant: few layers"));
            let complete = routed.min(self.config.layer_count - lead);
            while counted < complete {
                let picks = self.picks_of_one(counted);
                self.streamer.touch(LayerIndex(lead + counted), &picks[..used]);
                counted += 1;
            }
            match stopped_at {
                None => {
                    from = to;
                    resumed_at = None;
                    sequence.run_ahead = (sequence.run_ahead * 2).min(segment_count);
                }
                Some(moe_layer) => {
                    self.counters.stops += 1;
                    assert!(
                        resumed_at.is_none_or(|at| at < moe_layer),
                        "a loaded expert is not in the device's table"
                    );
                    let picks = self.picks_of_one(moe_layer);
                    if with_guesses {
                        self.streamer.settle_guesses(LayerIndex(lead + moe_layer), &picks[..used]);
                        self.guess_next(sequence.position, moe_layer);
                    }
                    let mut experts: Vec<_> = picks[..used].iter().copied().map(ExpertIndex).collect();
                    self.streamer.load_wave(LayerIndex(lead + moe_layer), &mut experts)?;
                    assert!(experts.is_empty(), "a pool holds at least one token's picks of a layer");
                    counted = moe_layer + 1;
                    let resume_at = moe_layer as usize + 1;
                    sequence.run_ahead = (resume_at - from).max(1);
                    from = resume_at;
                    resumed_at = Some(moe_layer);
                }
            }
        }
        Ok(())
    }

    /// Has the likely picks of the expert layer behind `moe_layer` read, as far as the drive has nothing better to do.
    fn guess_next(&mut self, position: u32, moe_layer: u32) {
        let next = moe_layer + 1;
        let lead = self.config.lead_layer_count;
        if lead + next >= self.config.layer_count {
            return;
        }
        let used = self.config.experts_used as usize;
        let mut guesses = [0_u32; EXPERTS_USED_MAX as usize];
        self.scratch.guess_report.read(u64::from(next) * used as u64 * 8, &mut guesses[..used]);
        if let Some(forced) = &self.forced {
            // The model's own routers know nothing of the picks that are dictated.
            let Some(recorded) = forced.guess(position, next) else { return };
            guesses.iter_mut().zip(recorded).for_each(|(guess, &expert)| *guess = expert.into());
        }
        // Best first: the drive gets as far as it does.
        self.streamer.guess(LayerIndex(lead + next), &guesses[..used]);
    }

    /// The picks of expert layer `moe_layer` of a single token, best first: the first `experts_used` of what is returned.
    fn picks_of_one(&self, moe_layer: u32) -> [u32; EXPERTS_USED_MAX as usize] {
        let used = self.config.experts_used as usize;
        let mut picks = [0_u32; EXPERTS_USED_MAX as usize];
        self.scratch.route_report.read(u64::from(moe_layer) * used as u64 * 8, &mut picks[..used]);
        picks
    }

    /// The greedy token of row `row` of the report, which belongs to token `index` of the step; checked.
    pub(super) fn read_greedy(
        &self,
        sequence: &mut Sequence,
        row: u32,
        index: u32,
    ) -> Result<TokenId, ModelError> {
        let mut token = [0_u32];
        self.scratch.argmax_report.read(u64::from(row) * 4, &mut token);
        if token[0] == NO_SLOT {
            let position = sequence.position + index;
            sequence.rewind(0);
            return Err(ModelError::NotFinite { position });
        }
        Ok(token[0])
    }

    /// The logits of the last step that wanted them, `[vocabulary]`; of one of several sequences.
    pub fn read_logits(&self, logits: &mut Vec<f32>) {
        self.read_logits_of(&StepOutput::default(), logits);
    }

    /// The logits that `output` of the last step stands for, `[vocabulary]`.
    pub fn read_logits_of(&self, output: &StepOutput, logits: &mut Vec<f32>) {
        let vocabulary = self.config.vocabulary;
        logits.resize(vocabulary as usize, 0.0);
        let offset_bytes = u64::from(output.logits_row) * u64::from(vocabulary) * 4;
        self.scratch.logits_report.read(offset_bytes, logits);
    }

    /// The routes of the last single-token step, one an expert layer.
    pub fn read_routes_of_one(&self) -> Vec<LayerRoutes> {
        let used = self.config.experts_used as usize;
        (self.config.lead_layer_count..self.config.layer_count)
            .zip(0_u64..)
            .map(|(layer, moe_layer)| {
                let mut words = vec![0_u32; 2 * used];
                self.scratch.route_report.read(moe_layer * used as u64 * 8, &mut words);
                let weights = words.split_off(used).into_iter().map(f32::from_bits).collect();
                LayerRoutes { layer, experts: words, weights }
            })
            .collect()
    }
}
