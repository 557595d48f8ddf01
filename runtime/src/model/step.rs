//! One pass through all layers for the next tokens of several sequences.
//!
//! Rows of all sequences go through norms, projections, router and experts together, so a weight is read once for all of them;
//! rotation, attention and the cache are each sequence's own. A sequence's rows may be the token after the last, or a piece of
//! its prompt; or the token after the last and drafts of those behind it, each of which gives what it would give if all in front of
//! it are right. A step of one token of one sequence takes the way of [`crate::model::decode`], every other the one of
//! [`crate::model::prefill`].
//!
//! Where no sequence has a piece of a prompt, each row is summed as it would be alone, so it gets the same bits. Where one of them has,
//! all are summed as a prompt is: the same bits on a device whose mat-vecs have one subgroup, others where they have several.

use std::ops::Range;

use crate::base::ids::TokenId;
use crate::base::limits::STEP_SEQUENCES_MAX;
use crate::kernels::Rows;
use crate::model::decode::StepOutput;
use crate::model::layer::LayerRows;
use crate::model::prefill::PrefillObserver;
use crate::model::sequence::Sequence;
use crate::model::{Model, ModelError, Want};

/// What one sequence has in a step.
pub struct Part<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// Its next tokens, at least one.
    pub tokens: &'a [TokenId],
    /// How many of them, behind the first, are drafts: then this is the next token and nothing of a prompt, each row gives what is
    /// wanted, and the sequence advances by the first alone.
    pub drafts: u32,
    /// What the last of them is to give.
    pub want: Want,
}

/// A part, and where its rows lie.
pub(super) struct Placed<'a> {
    pub(super) sequence: &'a mut Sequence,
    pub(super) tokens: &'a [TokenId],
    drafts: u32,
    pub(super) want: Want,
    /// The first of its rows.
    pub(super) row_first: u32,
    /// Its place among the parts that the caller gave.
    index: usize,
}

impl<'a> Placed<'a> {
    /// The only part of a step.
    pub(super) fn alone(part: Part<'a>) -> Self {
        Self {
            sequence: part.sequence,
            tokens: part.tokens,
            drafts: part.drafts,
            want: part.want,
            row_first: 0,
            index: 0,
        }
    }
}

impl Placed<'_> {
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("invariant: a step is small")
    }

    /// Its rows, and how they are summed.
    fn rows(&self) -> Rows {
        match self.count() - self.drafts {
            1 => Rows::Few(self.count()),
            _ => Rows::Many(self.count()),
        }
    }

    /// The rows whose logits are the part's, if any are: the last, or where it has drafts all.
    pub(super) fn wanted_rows(&self) -> Range<u32> {
        let end = self.row_first + self.count();
        match self.want {
            Want::Nothing => end..end,
            Want::Greedy | Want::Logits => end - 1 - self.drafts..end,
        }
    }
}

/// All rows of a step, and how they are summed.
pub(super) fn rows_of(parts: &[Placed<'_>]) -> Rows {
    let count = parts.last().map_or(0, |part| part.row_first + part.count());
    let is_few = parts.iter().all(|part| matches!(part.rows(), Rows::Few(_)));
    if is_few { Rows::Few(count) } else { Rows::Many(count) }
}

/// Layer `index` of every part.
pub(super) fn layers_of<'a>(parts: &'a [Placed<'_>], index: usize) -> Vec<LayerRows<'a>> {
    parts
        .iter()
        .map(|part| LayerRows {
            layer: &part.sequence.layers[index],
            first: part.row_first,
            rows: part.rows(),
        })
        .collect()
}

impl Model {
    /// Feeds every part's tokens and advances its sequence by them; gives each part's result, in the order of `parts`.
    ///
    /// A part is refused before the step, and the others go on without it, when its context is full or a token is not in the
    /// vocabulary. Where a part's logits are not finite its sequence is empty afterwards; the others are not touched by it.
    ///
    /// # Errors
    /// When a read or the device fails, or the observer stops the step: no sequence has then advanced.
    ///
    /// # Panics
    /// When a part has no token, all have more than [`crate::model::scratch::Scratch::tokens_max`] together, or there are more parts
    /// and drafts than [`STEP_SEQUENCES_MAX`].
    pub fn step(
        &mut self,
        parts: &mut [Part<'_>],
        observer: &mut dyn PrefillObserver,
    ) -> Result<Vec<Result<StepOutput, ModelError>>, ModelError> {
        let drafts: usize = parts.iter().map(|part| part.drafts as usize).sum();
        let few = parts.len() + drafts;
        assert!(few <= STEP_SEQUENCES_MAX as usize, "a step of {} sequences, {drafts} drafts", parts.len());
        let tokens: usize = parts.iter().map(|part| part.tokens.len()).sum();
        assert!(tokens <= self.scratch.tokens_max as usize, "a step of {tokens} tokens fits the scratch");
        let mut outputs: Vec<_> = parts.iter().map(|part| self.check(part)).collect();
        let mut placed = place(parts, |index| outputs[index].is_ok());
        match placed.as_mut_slice() {
            [] => {}
            [part] if part.tokens.len() == 1 => {
                let alone = self.step_one(part, observer);
                outputs[part.index] = match alone {
                    Err(error @ ModelError::NotFinite { .. }) => Err(error),
                    other => Ok(other?),
                };
            }
            several => {
                self.run_layers(several, observer)?;
                let mut report_row = 0;
                for part in several {
                    outputs[part.index] = self.take_output(part, &mut report_row);
                }
            }
        }
        Ok(outputs)
    }

    /// Why a part cannot be in a step, if so.
    pub(super) fn check(&self, part: &Part<'_>) -> Result<StepOutput, ModelError> {
        assert!(part.tokens.len() > part.drafts as usize, "a part has a token");
        assert!(part.drafts == 0 || part.tokens.len() == part.drafts as usize + 1, "a prompt has no drafts");
        let context_len = part.sequence.context_len();
        if part.tokens.len() > (context_len - part.sequence.position) as usize {
            return Err(ModelError::ContextFull { context_len });
        }
        let vocabulary = self.config.vocabulary;
        match part.tokens.iter().find(|&&token| token >= vocabulary) {
            Some(&token) => Err(ModelError::UnknownToken { token, vocabulary }),
            None => Ok(StepOutput::default()),
        }
    }

    /// Advances a part's sequence by what a step did; `report_row` counts the rows of those who want something.
    fn take_output(&self, part: &mut Placed<'_>, report_row: &mut u32) -> Result<StepOutput, ModelError> {
        let advance = part.count() - part.drafts;
        let wanted = part.wanted_rows().len();
        let mut output = StepOutput::default();
        if wanted > 0 {
            output.logits_row = *report_row;
            *report_row += u32::try_from(wanted).expect("invariant: a step is small");
            output.greedy = Some(self.read_greedy(part.sequence, output.logits_row, advance - 1)?);
        }
        part.sequence.position += advance;
        Ok(output)
    }

    /// Advances a sequence by a draft of the last step that turned out right, and gives what its row gave: `output` is that of the row
    /// in front of it.
    ///
    /// # Errors
    /// When the logits are not finite; the sequence is then empty.
    pub fn take_draft(&self, sequence: &mut Sequence, output: &StepOutput) -> Result<StepOutput, ModelError> {
        let logits_row = output.logits_row + 1;
        let greedy = self.read_greedy(sequence, logits_row, 0)?;
        sequence.position += 1;
        Ok(StepOutput { greedy: Some(greedy), logits_row })
    }
}

/// The parts that `is_taken`, with their rows: pieces of prompts last, each in the caller's order.
fn place<'a>(parts: &'a mut [Part<'_>], is_taken: impl Fn(usize) -> bool) -> Vec<Placed<'a>> {
    let mut placed: Vec<Placed<'a>> = parts
        .iter_mut()
        .enumerate()
        .filter(|&(index, _)| is_taken(index))
        .map(|(index, part)| Placed {
            sequence: &mut *part.sequence,
            tokens: part.tokens,
            drafts: part.drafts,
            want: part.want,
            row_first: 0,
            index,
        })
        .collect();
    placed.sort_by_key(|part| matches!(part.rows(), Rows::Many(_)));
    let mut row_first = 0;
    for part in &mut placed {
        part.row_first = row_first;
        row_first += part.count();
    }
    placed
}
