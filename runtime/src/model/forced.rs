//! Picks that a measurement dictates instead of the router: those of a recorded trace.
//!
//! - Owns: the picks, and the buffer in which the device finds those of a step.
//! - In: picks `[tokens, expert layers, experts_used]`, best first; which of them belongs to position 0.
//! - Out: the rows of a step, written before it. The kernel `force_routes` turns them into router logits, so everything behind
//!   the router, from the table's look-up to the waves of a prompt, runs as it always does.
//! - Invariants: a position's picks depend on nothing but the position and [`Forced::start_at`]; behind the last token of the
//!   trace comes its first. What the model then says is nonsense by design: only its time and its reads mean something.

use std::sync::Arc;

use crate::gpu::{Buffer, Gpu, GpuError, Placement};

/// Picks for tokens one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForcedPicks {
    picks: Arc<[u16]>,
    /// As `picks`: what was guessed one layer early.
    guesses: Option<Arc<[u16]>>,
    layer_count: u32,
    expert_count: u32,
    experts_used: u32,
}

/// Why picks cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForcedPicksError {
    /// Not a whole number of tokens, or none.
    #[error(
        "{got} picks are no whole number of tokens of {layer_count} layers with {experts_used} picks, at least one"
    )]
    Length {
        /// Picks that there are.
        got: usize,
        /// Layers of a token.
        layer_count: u32,
        /// Picks of a layer.
        experts_used: u32,
    },
    /// A pick that no layer has.
    #[error("token {token}, layer {layer}: expert {got} of {expert_count}")]
    Expert {
        /// The token, from 0.
        token: usize,
        /// The expert layer, from 0.
        layer: usize,
        /// The pick.
        got: u16,
        /// Experts of a layer.
        expert_count: u32,
    },
    /// One expert picked twice.
    #[error("token {token}, layer {layer}: expert {got} is picked twice")]
    Twice {
        /// The token, from 0.
        token: usize,
        /// The expert layer, from 0.
        layer: usize,
        /// The pick.
        got: u16,
    },
}

impl ForcedPicks {
    /// `picks` `[tokens, layer_count, experts_used]`, each below `expert_count` and once in its layer.
    ///
    /// # Errors
    /// [`ForcedPicksError`].
    pub fn new(
        picks: impl Into<Arc<[u16]>>,
        layer_count: u32,
        expert_count: u32,
        experts_used: u32,
    ) -> Result<Self, ForcedPicksError> {
        let picks = picks.into();
        let (layers, used) = (layer_count as usize, experts_used as usize);
        if picks.is_empty() || layers * used == 0 || picks.len() % (layers * used) != 0 {
            return Err(ForcedPicksError::Length { got: picks.len(), layer_count, experts_used });
        }
        for (index, of_layer) in picks.chunks_exact(used).enumerate() {
            let (token, layer) = (index / layers, index % layers);
            for (place, &got) in of_layer.iter().enumerate() {
                if u32::from(got) >= expert_count {
                    return Err(ForcedPicksError::Expert { token, layer, got, expert_count });
                }
                if of_layer[..place].contains(&got) {
                    return Err(ForcedPicksError::Twice { token, layer, got });
                }
            }
        }
        Ok(Self { picks, guesses: None, layer_count, expert_count, experts_used })
    }

    /// The same with guesses of the same shape, which then stand for those of the model's own routers.
    ///
    /// # Errors
    /// [`ForcedPicksError`], also for guesses of another length.
    pub fn with_guesses(mut self, guesses: impl Into<Arc<[u16]>>) -> Result<Self, ForcedPicksError> {
        let Self { layer_count, expert_count, experts_used, .. } = self;
        let checked = Self::new(guesses, layer_count, expert_count, experts_used)?;
        if checked.picks.len() != self.picks.len() {
            return Err(ForcedPicksError::Length { got: checked.picks.len(), layer_count, experts_used });
        }
        self.guesses = Some(checked.picks);
        Ok(self)
    }

    /// Layers, experts of a layer, and picks of a token in a layer.
    pub fn shape(&self) -> [u32; 3] {
        [self.layer_count, self.expert_count, self.experts_used]
    }

    /// Tokens after which they begin anew.
    pub fn token_count(&self) -> usize {
        self.picks.len() / self.words_a_token()
    }

    fn words_a_token(&self) -> usize {
        self.layer_count as usize * self.experts_used as usize
    }

    /// The picks `[layers, experts_used]` of token `index` of an endless repetition.
    pub fn of_token(&self, index: u64) -> &[u16] {
        self.row(&self.picks, index)
    }

    fn row<'a>(&self, all: &'a [u16], index: u64) -> &'a [u16] {
        let words = self.words_a_token();
        let token = usize::try_from(index % self.token_count() as u64).expect("invariant: below a usize");
        &all[token * words..][..words]
    }
}

/// The picks on their way to the device.
pub struct Forced {
    picks: ForcedPicks,
    /// The trace's token for position 0 of every sequence.
    first: u64,
    /// u32 `[tokens_max, layers, experts_used]`.
    pub(super) buffer: Buffer,
}

impl Forced {
    /// For steps of up to `tokens_max` tokens.
    ///
    /// # Errors
    /// When there is too little memory.
    pub fn new(gpu: &Gpu, picks: ForcedPicks, tokens_max: u32) -> Result<Self, GpuError> {
        let words = u64::from(tokens_max) * picks.words_a_token() as u64;
        let buffer = gpu.buffer("forced picks", words * 4, Placement::Upload)?;
        Ok(Self { picks, first: 0, buffer })
    }

    /// Lets position 0 have the picks of the trace's token `first`, counted on through its repetitions.
    pub fn start_at(&mut self, first: u64) {
        self.first = first;
    }

    /// What was guessed of the picks of expert layer `moe_layer` at `position`, where guesses were recorded.
    pub(super) fn guess(&self, position: u32, moe_layer: u32) -> Option<&[u16]> {
        let all = self.picks.guesses.as_ref()?;
        let used = self.picks.experts_used as usize;
        let row = self.picks.row(all, self.first + u64::from(position));
        Some(&row[moe_layer as usize * used..][..used])
    }

    pub(super) fn layer_count(&self) -> u32 {
        self.picks.layer_count
    }

    /// Hands over the picks of `count` positions from `position` on, for the rows from `row_first` on. No step may be running.
    pub(super) fn write(&self, row_first: u32, position: u32, count: u32) {
        let rows: Vec<u32> = (u64::from(position)..u64::from(position) + u64::from(count))
            .flat_map(|position| self.picks.of_token(self.first + position).iter().copied().map(u32::from))
            .collect();
        let row_bytes = self.picks.words_a_token() as u64 * 4;
        self.buffer.write(u64::from(row_first) * row_bytes, &rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_repeat_behind_their_end() {
        let picks = ForcedPicks::new(vec![0, 1, 2, 3, 4, 5, 6, 7], 2, 8, 2).unwrap();
        assert_eq!(picks.token_count(), 2);
        assert_eq!(picks.of_token(0), [0, 1, 2, 3]);
        assert_eq!(picks.of_token(5), [4, 5, 6, 7]);
    }

    #[test]
    fn picks_that_no_router_could_make_are_refused() {
        let of = |picks: Vec<u16>| ForcedPicks::new(picks, 2, 8, 2).unwrap_err().to_string();
        assert!(of(vec![]).contains("0 picks"));
        assert!(of(vec![0, 1, 2]).contains("3 picks"));
        assert!(of(vec![0, 1, 2, 8]).contains("token 0, layer 1: expert 8 of 8"));
        assert!(of(vec![0, 1, 2, 3, 4, 4, 0, 1]).contains("token 1, layer 0: expert 4 is picked twice"));
    }
}
