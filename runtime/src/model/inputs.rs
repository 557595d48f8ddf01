//! What a step hands to the device before it begins: token rows, angles, positions, and dictated picks where there are any.

use flint_shaders::layout::{CONTROL_POSITION, CONTROL_TOKEN_COUNT, CONTROL_WORDS};

use crate::base::ids::TokenId;
use crate::model::ModelError;
use crate::model::angles::Angles;
use crate::model::embedding::Embedding;
use crate::model::forced::Forced;
use crate::model::hparams::FlintConfig;
use crate::model::scratch::Scratch;
use crate::model::step::Placed;

/// The inputs of steps, in memory that is kept from one step to the next.
pub struct Inputs {
    angles: Angles,
    tokens: Vec<TokenId>,
    rows_buffer: Vec<f32>,
    angles_buffer: Vec<f32>,
}

impl Inputs {
    /// For a model of these numbers.
    pub fn new(config: &FlintConfig) -> Self {
        Self {
            angles: Angles::new(config.head_dim, config.rope_base),
            tokens: Vec::new(),
            rows_buffer: Vec::new(),
            angles_buffer: Vec::new(),
        }
    }

    /// Hands over the inputs of a step of `parts`, whose rows follow one another. No step may be running.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, or its row cannot be read.
    pub(super) fn write(
        &mut self,
        embedding: &Embedding,
        scratch: &Scratch,
        forced: Option<&Forced>,
        parts: &mut [Placed<'_>],
    ) -> Result<(), ModelError> {
        self.tokens.clear();
        self.tokens.extend(parts.iter().flat_map(|part| part.tokens));
        embedding.read(&self.tokens, &mut self.rows_buffer)?;
        scratch.rows.write(0, &self.rows_buffer);
        self.angles_buffer.clear();
        for part in &mut *parts {
            let count = part.count();
            let sequence = &mut *part.sequence;
            for position in sequence.position..sequence.position + count {
                self.angles.append(position, &mut self.angles_buffer);
            }
            if let Some(forced) = forced {
                forced.write(part.row_first, sequence.position, count);
            }
            // The position that row 0 would have, which may lie before the sequence's first.
            let position = sequence.position.wrapping_sub(part.row_first);
            sequence.control.write(0, &control_words(part.row_first + count, position));
            sequence.cache.note_written(sequence.position + count);
        }
        scratch.angles_upload.write(0, &self.angles_buffer);
        // Kernels that look at the position through these words run only where the step has one part, whose first row is 0.
        let position = parts.first().map_or(0, |part| part.sequence.position);
        let count = u32::try_from(self.tokens.len()).expect("invariant: a step is small");
        scratch.control_upload.write(0, &control_words(count, position));
        Ok(())
    }
}

/// Control words of a step that nothing has stopped.
fn control_words(token_count: u32, position: u32) -> [u32; CONTROL_WORDS as usize] {
    let mut words = [0; CONTROL_WORDS as usize];
    words[CONTROL_TOKEN_COUNT as usize] = token_count;
    words[CONTROL_POSITION as usize] = position;
    words
}
