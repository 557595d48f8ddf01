//! Feeds a session with drafts beside its next token, and takes those that turn out right.

use std::time::Instant;

use crate::base::ids::TokenId;
use crate::engine::speculate::control::{SpeculateMode, StepCost};
use crate::engine::speculate::drafts::{DraftIndex, Found};
use crate::engine::{Engine, EngineError, Session};
use crate::model::decode::StepOutput;
use crate::model::prefill::{NoObserver, PrefillObserver};
use crate::model::step::Part;
use crate::model::{ModelError, Want};

/// What speculation did, since the engine was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpeculateStats {
    /// Steps with drafts.
    pub steps: u64,
    /// Drafts that were verified.
    pub drafted: u64,
    /// Those that were right, and so spared a step each.
    pub accepted: u64,
}

impl SpeculateStats {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            drafted: self.drafted + other.drafted,
            accepted: self.accepted + other.accepted,
        }
    }

    /// Tokens that a step gave, where these drafts belong to `tokens` tokens, each of which would have taken a step.
    pub fn tokens_a_step(self, tokens: u64) -> f64 {
        tokens as f64 / tokens.saturating_sub(self.accepted).max(1) as f64
    }
}

/// What a session's tokens give for drafts.
#[derive(Default)]
pub(in crate::engine) struct Speculation {
    /// Of the session's tokens, or of a beginning of them; made when drafts are wanted for the first time.
    index: Option<DraftIndex>,
    ahead: Option<Ahead>,
    /// The order and the first token of a draft that the last step did not verify.
    unverified: Option<(usize, TokenId)>,
}

/// The rows of the last step that lie behind the session's end.
struct Ahead {
    order: usize,
    drafts: Vec<TokenId>,
    /// Drafts that were right so far.
    accepted: u32,
    cost: StepCost,
    /// Of the last row that was taken.
    output: StepOutput,
    /// The number of the step: logits lie where they do until the next one.
    step: u64,
}

impl Speculation {
    /// The session goes on with what nobody asked for drafts of.
    pub(in crate::engine) fn interrupt(&mut self) {
        (self.ahead, self.unverified) = (None, None);
    }

    /// The session holds only its first `len` tokens from now on.
    pub(in crate::engine) fn truncate(&mut self, len: usize) {
        self.interrupt();
        if let Some(index) = &mut self.index {
            index.truncate(len);
        }
    }

    /// The draft of what follows `tokens` and then `token`.
    fn find(&mut self, context_len: u32, tokens: &[TokenId], token: TokenId) -> Option<(&DraftIndex, Found)> {
        let index = self.index.get_or_insert_with(|| DraftIndex::new(context_len));
        // A token that was to be next, and was not fed.
        index.truncate(tokens.len());
        for &token in tokens[index.len()..].iter().chain([&token]) {
            index.push(token);
        }
        let found = index.find()?;
        Some((index, found))
    }
}

/// A point from which a step's cost is counted.
struct Meter {
    begin: Instant,
    disk_ns: u64,
    read_bytes: u64,
}

impl Engine {
    /// Feeds one more token, as [`Self::feed_token`], and beside it up to `drafts_max` drafts of those that may follow, as many as are
    /// expected to pay. Those that are then chosen are had by [`Self::take_ahead`], without a step.
    ///
    /// `drafts_max` is how many tokens the caller may want to feed behind this one.
    ///
    /// # Errors
    /// As [`Self::feed_token`].
    pub fn feed_speculating(
        &mut self,
        session: &mut Session,
        token: TokenId,
        want: Want,
        drafts_max: u32,
        observer: &mut dyn PrefillObserver,
    ) -> Result<StepOutput, EngineError> {
        if self.speculation.mode() == SpeculateMode::Off {
            return self.feed_observed(session, token, want, observer);
        }
        self.conclude(session, token);
        let meter = self.meter();
        if let Some((order, drafts)) = self.propose(session, token, drafts_max) {
            let tokens = [&[token], drafts.as_slice()].concat();
            if let Some(output) = self.feed_drafts(session, &tokens, want, observer)? {
                let cost = self.cost_since(&meter);
                let step = self.step_count;
                session.speculation.ahead = Some(Ahead { order, drafts, accepted: 0, cost, output, step });
                return Ok(output);
            }
        }
        let unverified = session.speculation.unverified.take();
        let output = self.feed_observed(session, token, want, observer)?;
        session.speculation.unverified = unverified;
        let cost = self.cost_since(&meter);
        self.speculation.note_plain(cost);
        Ok(output)
    }

    /// What `token` gives, if the last step took it for the session's next one; the session then holds it. Nothing where another was
    /// expected, or a step was made since, of this session or of another: then it is to be fed.
    ///
    /// # Errors
    /// When the logits are not finite; the session is then empty.
    pub fn take_ahead(
        &mut self,
        session: &mut Session,
        token: TokenId,
    ) -> Result<Option<StepOutput>, EngineError> {
        let Some(ahead) = &mut session.speculation.ahead else { return Ok(None) };
        let expected = ahead.drafts.get(ahead.accepted as usize);
        if ahead.step != self.step_count || expected != Some(&token) {
            return Ok(None);
        }
        match self.model.take_draft(&mut session.sequence, &ahead.output) {
            Ok(output) => {
                ahead.output = output;
                ahead.accepted += 1;
                self.speculate_stats.accepted += 1;
                session.tokens.push(token);
                Ok(Some(output))
            }
            Err(error) => {
                session.settle();
                Err(error.into())
            }
        }
    }

    /// Feeds one more token, by [`Self::take_ahead`] or else by [`Self::feed_speculating`].
    ///
    /// # Errors
    /// As [`Self::feed_token`].
    pub fn feed_next(
        &mut self,
        session: &mut Session,
        token: TokenId,
        want: Want,
        drafts_max: u32,
    ) -> Result<StepOutput, EngineError> {
        match self.take_ahead(session, token)? {
            Some(output) => Ok(output),
            None => self.feed_speculating(session, token, want, drafts_max, &mut NoObserver),
        }
    }

    /// When drafts are verified.
    pub fn speculates(&self) -> SpeculateMode {
        self.speculation.mode()
    }

    /// What speculation did, since the engine was opened.
    pub fn speculate_stats(&self) -> SpeculateStats {
        self.speculate_stats
    }

    /// The step of a token and drafts behind it; nothing where it failed for what may lie with a draft.
    fn feed_drafts(
        &mut self,
        session: &mut Session,
        tokens: &[TokenId],
        want: Want,
        observer: &mut dyn PrefillObserver,
    ) -> Result<Option<StepOutput>, EngineError> {
        let drafts = u32::try_from(tokens.len() - 1).expect("invariant: a few drafts");
        let begin = Instant::now();
        let part = Part { sequence: &mut session.sequence, tokens, drafts, want };
        let output = self.model.step(&mut [part], observer).and_then(|mut outputs| {
            let output = outputs.pop();
            output.expect("invariant: a part has an output")
        });
        self.note_step("drafts", begin);
        match output {
            Ok(output) => {
                self.speculate_stats.steps += 1;
                self.speculate_stats.drafted += u64::from(drafts);
                session.tokens.push(tokens[0]);
                Ok(Some(output))
            }
            Err(error @ (ModelError::Stopped | ModelError::NotFinite { .. })) => {
                session.settle();
                Err(error.into())
            }
            // Such as an expert that cannot be read, which only a draft wanted.
            Err(_) => Ok(None),
        }
    }

    /// One token alone.
    fn feed_observed(
        &mut self,
        session: &mut Session,
        token: TokenId,
        want: Want,
        observer: &mut dyn PrefillObserver,
    ) -> Result<StepOutput, EngineError> {
        if observer.should_stop() {
            return Err(ModelError::Stopped.into());
        }
        self.feed_token(session, token, want)
    }

    /// The drafts of what follows `token`, and the order of the suffix that they come from. Where there are some and none is worth a step,
    /// notes the first of them.
    fn propose(
        &mut self,
        session: &mut Session,
        token: TokenId,
        drafts_max: u32,
    ) -> Option<(usize, Vec<TokenId>)> {
        // Rows of the longest step, less that of the token itself.
        let rows_max = self.model.scratch.tokens_max.min(session.room());
        let drafts_max = drafts_max.min(rows_max.saturating_sub(1));
        let context_len = session.context_len();
        let (index, found) = session.speculation.find(context_len, &session.tokens, token)?;
        let depth = self.speculation.depth(found.order, drafts_max);
        // What ends a reply is never fed.
        let is_fed = |&token: &TokenId| !self.is_stop(token);
        let first = index.draft(found, 0);
        let drafts: Vec<TokenId> =
            (0..depth as usize).map(|ahead| index.draft(found, ahead)).take_while(is_fed).collect();
        if drafts.is_empty() {
            session.speculation.unverified = Some((found.order, first));
            return None;
        }
        Some((found.order, drafts))
    }

    /// Tells the controller what became of the session's last step, now that `token` is known to follow.
    fn conclude(&mut self, session: &mut Session, token: TokenId) {
        if let Some(Ahead { order, drafts, accepted, cost, .. }) = session.speculation.ahead.take() {
            let drafted = u32::try_from(drafts.len()).expect("invariant: a few drafts");
            // One that is right and was not taken, as another session's step came between, says nothing.
            if drafts.get(accepted as usize) != Some(&token) {
                self.speculation.note_drafted(order, drafted, accepted, cost);
            }
        }
        if let Some((order, draft)) = session.speculation.unverified.take() {
            self.speculation.note_unverified(order, draft == token);
        }
    }

    fn meter(&self) -> Meter {
        Meter {
            begin: Instant::now(),
            disk_ns: self.time_split().disk_ns,
            read_bytes: self.stream_stats().read_bytes,
        }
    }

    fn cost_since(&self, meter: &Meter) -> StepCost {
        StepCost {
            seconds: meter.begin.elapsed().as_secs_f64(),
            disk_seconds: (self.time_split().disk_ns - meter.disk_ns) as f64 / 1e9,
            read_bytes: (self.stream_stats().read_bytes - meter.read_bytes) as f64,
        }
    }
}
