//! One conversation: its tokens and the sequence that holds them.

use std::time::Instant;

use crate::base::ids::TokenId;
use crate::engine::speculate::feed::Speculation;
use crate::engine::{Engine, EngineError};
use crate::model::decode::StepOutput;
use crate::model::prefill::PrefillObserver;
use crate::model::sequence::Sequence;
use crate::model::step::Part;
use crate::model::{LayerRoutes, ModelError, Want};

/// A conversation.
pub struct Session {
    pub(super) sequence: Sequence,
    /// What the cache holds, in order.
    pub(super) tokens: Vec<TokenId>,
    pub(super) speculation: Speculation,
}

/// What one session is fed in a step that it shares with others.
pub struct Feed<'a> {
    /// The session.
    pub session: &'a mut Session,
    /// What follows what it holds, at least one token.
    pub tokens: &'a [TokenId],
    /// What the last of them is to give.
    pub want: Want,
}

/// What feeding a prompt took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptOutput {
    /// What the last step gave.
    pub step: StepOutput,
    /// Tokens that were in the cache already.
    pub reused: u32,
    /// Tokens that were fed.
    pub fed: u32,
}

/// How many tokens of `wanted` a cache of `cached` may keep: their common beginning, but never all of `wanted`, because
/// the last token must be fed to have its logits.
pub fn common_prefix(cached: &[TokenId], wanted: &[TokenId]) -> usize {
    let common = cached.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    common.min(wanted.len().saturating_sub(1))
}

impl Session {
    pub(super) fn new(sequence: Sequence) -> Self {
        Self { sequence, tokens: Vec::new(), speculation: Speculation::default() }
    }

    /// What the cache holds.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Tokens that fit in all.
    pub fn context_len(&self) -> u32 {
        self.sequence.context_len()
    }

    /// Tokens that can still be fed.
    pub fn room(&self) -> u32 {
        self.sequence.context_len() - self.sequence.position()
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.sequence.rewind(0);
        self.settle();
    }

    /// Keeps what it holds of the beginning of `ids`, but never all of `ids`, and forgets the rest; where the cache cannot
    /// go back that far, forgets everything. Returns how many tokens it kept: from there on `ids` is to be fed.
    pub fn keep_prefix(&mut self, ids: &[TokenId]) -> u32 {
        let keep = common_prefix(&self.tokens, ids);
        let keep = u32::try_from(keep).expect("invariant: a context is a u32");
        let kept = self.sequence.rewind(keep);
        self.settle();
        kept
    }

    /// How many tokens [`Self::keep_prefix`] would keep of `ids`.
    pub fn reach(&self, ids: &[TokenId]) -> u32 {
        let keep = common_prefix(&self.tokens, ids);
        let keep = u32::try_from(keep).expect("invariant: a context is a u32");
        if self.can_continue_at(keep) { keep } else { 0 }
    }

    /// Whether it can go back to its first `position` tokens and on from there.
    pub fn can_continue_at(&self, position: u32) -> bool {
        position <= self.sequence.position() && self.sequence.cache().can_continue_at(position)
    }

    /// Whether that will still be so when `tokens` more have been fed.
    pub fn could_continue_at(&self, position: u32, tokens: u32) -> bool {
        self.sequence.cache().could_continue_at(position, tokens)
    }

    /// The sequence, for those who copy its cache.
    pub(super) fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// Goes on with `tokens`, which the cache was made to hold; see [`Sequence::adopt`].
    pub(super) fn adopt(&mut self, tokens: &[TokenId], held_from: impl Fn(u32) -> u32) {
        let position = u32::try_from(tokens.len()).expect("invariant: a context is a u32");
        self.sequence.adopt(position, held_from);
        self.tokens.clear();
        self.speculation.truncate(0);
        self.tokens.extend_from_slice(tokens);
    }

    /// Brings the token list in line with what the cache holds, whatever a step did.
    pub(super) fn settle(&mut self) {
        self.tokens.truncate(self.sequence.position() as usize);
        self.speculation.truncate(self.tokens.len());
    }
}

impl Engine {
    /// Makes the session hold exactly `ids`, re-using what it has of them, and gives what `want` asks of the last.
    ///
    /// `observer` watches every chunk; it does not see re-used tokens.
    ///
    /// # Errors
    /// When the prompt is empty or does not fit, a step fails, or the observer stops it: the session then holds the
    /// chunks that were finished.
    pub fn feed_prompt(
        &mut self,
        session: &mut Session,
        ids: &[TokenId],
        want: Want,
        observer: &mut dyn PrefillObserver,
    ) -> Result<PromptOutput, EngineError> {
        if ids.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        self.tokenizer().check_ids(ids)?;
        let context_len = session.sequence.context_len();
        if ids.len() > context_len as usize {
            return Err(ModelError::ContextFull { context_len }.into());
        }
        let reused = session.keep_prefix(ids);
        let fed = &ids[reused as usize..];
        let total = u32::try_from(fed.len()).expect("invariant: a context is a u32");
        let mut done = 0;
        let mut step = StepOutput::default();
        let chunk_len = self.model.scratch.tokens_max as usize;
        for chunk in fed.chunks(chunk_len) {
            done += u32::try_from(chunk.len()).expect("invariant: a chunk is a u32");
            let chunk_want = if done == total { want } else { Want::Nothing };
            let begin = Instant::now();
            let output = self.model.prefill(&mut session.sequence, chunk, chunk_want, observer);
            self.note_step("chunk", begin);
            match output {
                Ok(output) => step = output,
                Err(error) => {
                    session.settle();
                    return Err(error.into());
                }
            }
            session.tokens.extend_from_slice(chunk);
            observer.progress(done, total);
        }
        Ok(PromptOutput { step, reused, fed: total })
    }

    /// Feeds one more token.
    ///
    /// # Errors
    /// When the context is full or a step fails: the token is then not in the session.
    pub fn feed_token(
        &mut self,
        session: &mut Session,
        token: TokenId,
        want: Want,
    ) -> Result<StepOutput, EngineError> {
        session.speculation.interrupt();
        let begin = Instant::now();
        let output = self.model.decode(&mut session.sequence, token, want);
        self.note_step("token", begin);
        match output {
            Ok(output) => {
                session.tokens.push(token);
                Ok(output)
            }
            Err(error) => {
                session.settle();
                Err(error.into())
            }
        }
    }

    /// One step for several sessions: the next tokens of replies, pieces of prompts, or both. Each expert is loaded once for all of
    /// them. Gives each session's result, in the order of `feeds`.
    ///
    /// A session whose context is full, or whose tokens are not in the vocabulary, is refused before the step, and the others go on
    /// without it. One whose logits are not finite is empty afterwards; the others are not touched by that.
    ///
    /// Where each session has one token, what each gets is bit for bit what [`Self::feed_token`] gives it. Where one has more, that
    /// holds on devices whose mat-vecs have one subgroup (software devices), and with
    /// [`EngineOptions::is_deterministic`](crate::engine::EngineOptions::is_deterministic).
    ///
    /// # Errors
    /// When a read or the device fails, or the observer stops the step: every session is then as it was.
    ///
    /// # Panics
    /// When a feed has no token, all have more than [`Self::step_tokens_max`], or there are more than
    /// [`STEP_SEQUENCES_MAX`](crate::base::limits::STEP_SEQUENCES_MAX).
    pub fn feed_many(
        &mut self,
        feeds: &mut [Feed<'_>],
        observer: &mut dyn PrefillObserver,
    ) -> Result<Vec<Result<StepOutput, EngineError>>, EngineError> {
        let begin = Instant::now();
        let mut parts: Vec<Part<'_>> = feeds
            .iter_mut()
            .map(|feed| {
                let Session { sequence, speculation, .. } = &mut *feed.session;
                speculation.interrupt();
                Part { sequence, tokens: feed.tokens, drafts: 0, want: feed.want }
            })
            .collect();
        let outputs = self.model.step(&mut parts, observer);
        self.note_step("step", begin);
        let outputs = match outputs {
            Ok(outputs) => outputs,
            Err(error) => {
                // Logits that are not finite empty a sequence that is watched.
                feeds.iter_mut().for_each(|feed| feed.session.settle());
                return Err(error.into());
            }
        };
        let note = |(output, feed): (Result<StepOutput, ModelError>, &mut Feed<'_>)| {
            match &output {
                Ok(_) => feed.session.tokens.extend_from_slice(feed.tokens),
                Err(_) => feed.session.settle(),
            }
            output.map_err(EngineError::from)
        };
        Ok(outputs.into_iter().zip(feeds).map(note).collect())
    }

    /// Tokens of a step at most, of all its sessions together.
    pub fn step_tokens_max(&self) -> u32 {
        self.model.scratch.tokens_max
    }

    /// The logits of one session of the last step, where it wanted them, `[vocabulary]`.
    pub fn read_logits_of(&self, output: &StepOutput, logits: &mut Vec<f32>) {
        self.model.read_logits_of(output, logits);
    }

    /// The picks of the last [`Self::feed_token`], one an expert layer.
    pub fn last_routes(&self) -> Vec<LayerRoutes> {
        self.model.read_routes_of_one()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_token_is_always_fed() {
        assert_eq!(common_prefix(&[], &[1, 2]), 0);
        assert_eq!(common_prefix(&[1, 2, 3], &[1, 2, 3, 4]), 3);
        assert_eq!(common_prefix(&[1, 2, 3], &[1, 2, 3]), 2);
        assert_eq!(common_prefix(&[1, 2, 3], &[1, 2]), 1);
        assert_eq!(common_prefix(&[1, 9, 3], &[1, 2, 3]), 1);
    }
}
