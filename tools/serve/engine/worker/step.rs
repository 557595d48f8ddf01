//! A turn: what is saved and restored gets further, then one step of all that wait.

use std::sync::Arc;
use std::time::Instant;

use flint_rt::base::limits::STEP_SEQUENCES_MAX;
use flint_rt::engine::EngineError;
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::model::{ModelError, Want};

use super::Worker;
use super::running::{Outcome, Running};
use crate::engine::backend::{Backend, Feed, Outputs, is_device_lost};
use crate::engine::job::{End, Job};
use crate::engine::shared::Shared;
use crate::engine::turn::{Room, Share, Waits};

/// Steps between two looks at the engine's counters.
const STEPS_A_LOOK: u32 = 32;

/// Gives a step up when nobody waits for any of its jobs.
struct StepWatch<'a> {
    jobs: Vec<&'a Job>,
    shared: &'a Shared,
}

impl PrefillObserver for StepWatch<'_> {
    fn should_stop(&mut self) -> bool {
        self.shared.is_halted() || self.jobs.iter().all(|job| job.is_cancelled())
    }
}

impl<B: Backend> Worker<B> {
    /// Goes on with what is to be saved and restored of a slot before its next step.
    fn run_errands(&mut self, index: usize) {
        if !self.store.is_busy(index) {
            return;
        }
        let (session, metrics) = (&mut self.slots[index].session, &self.shared.metrics.prefix);
        if let Err(error) = self.store.step(index, &mut self.backend, session, metrics) {
            tracing::error!("a slot was not saved or restored: {error}");
            self.close_if_lost(&error);
            self.settle(index, |_, _| Outcome::Failed(Arc::new(error)));
        }
        self.keep_prefix(index);
        self.show(index);
    }

    /// How many drafts may be in the step of `shares`: beside the token of a slot that is alone in it. Several slots' tokens share what a
    /// step reads as it is, and nobody's token is to wait for drafts of another's.
    fn drafts_beside(&self, shares: &[Share]) -> u32 {
        let [share] = shares else { return 0 };
        let running = self.slots[share.slot].running.as_ref();
        // A form is asked about one token after another, and cuts most drafts off.
        let is_held = |running: &Running| {
            let constraint = running.job.generation.constraint.as_ref();
            constraint.is_some_and(|constraint| constraint.is_active())
        };
        let free = running.filter(|running| running.next.is_some() && !is_held(running));
        free.map_or(0, |running| {
            let behind = running.job.generation.tokens_max.saturating_sub(running.numbers.reply_tokens + 1);
            behind.min(self.backend.drafts_max())
        })
    }

    /// Keeps what the step of `shares`, and of so many drafts, would overwrite and is wanted later. Gives those whose slots are fit for it.
    fn keep_cuts(&mut self, shares: Vec<Share>, drafts: u32) -> Vec<Share> {
        let mut fit = Vec::new();
        for share in shares {
            let (session, metrics) = (&self.slots[share.slot].session, &self.shared.metrics.prefix);
            let rows = share.rows + drafts;
            match self.store.before_step(share.slot, &mut self.backend, session, rows, metrics) {
                Ok(()) => fit.push(share),
                Err(error) => self.settle(share.slot, |_, _| Outcome::Failed(Arc::new(error))),
            }
        }
        fit
    }

    /// One step of all busy slots, as far as it has room.
    pub(super) fn turn(&mut self) {
        for index in 0..self.slots.len() {
            self.run_errands(index);
            let is_given_up = |running: &Running| running.job.is_cancelled() || self.shared.is_halted();
            if self.slots[index].running.as_ref().is_some_and(is_given_up) {
                self.settle(index, |_, _| Outcome::GivenUp);
            }
        }
        let waits: Vec<Option<Waits>> = (0..self.slots.len()).map(|index| self.waits(index)).collect();
        let room = Room { rows: self.backend.chunk_len(), sequences: STEP_SEQUENCES_MAX as usize };
        let shares = self.turns.plan(&waits, room);
        let drafts = self.drafts_beside(&shares);
        let shares = self.keep_cuts(shares, drafts);
        if shares.is_empty() {
            return;
        }
        let (begin, prompt_rows) = (Instant::now(), prompt_rows(&waits, &shares));
        let outputs = match shares.as_slice() {
            [share] if drafts > 0 => self.step_with_drafts(share.slot, drafts),
            shares => self.step(shares),
        };
        if outputs.is_ok() {
            let tokens = shares.iter().map(|share| share.rows).sum::<u32>() - prompt_rows;
            self.turns.piece.note(tokens, prompt_rows, begin.elapsed());
        }
        match outputs {
            Ok(outputs) => self.take_outputs(&shares, outputs),
            // Whoever gave up is gone in the next turn.
            Err(EngineError::Model(ModelError::Stopped)) => {}
            // So that a fault of one, such as an expert that cannot be read, is not that of others.
            Err(error) if shares.len() > 1 && !is_device_lost(&error) => {
                tracing::warn!(
                    "a step of {} conversations failed, each is tried alone: {error}",
                    shares.len()
                );
                for share in &shares {
                    match self.step(&[*share]) {
                        Ok(outputs) => self.take_outputs(&[*share], outputs),
                        Err(EngineError::Model(ModelError::Stopped)) => {}
                        Err(error) => self.settle(share.slot, |_, _| Outcome::Failed(Arc::new(error))),
                    }
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for share in &shares {
                    self.settle(share.slot, |_, _| Outcome::Failed(error.clone()));
                }
            }
        }
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_A_LOOK) {
            self.publish();
        }
    }

    /// What a slot waits for; none where it is idle, or being saved or restored.
    fn waits(&self, index: usize) -> Option<Waits> {
        let slot = &self.slots[index];
        let running = slot.running.as_ref().filter(|running| running.is_settled)?;
        Some(match running.next {
            Some(_) => Waits::Token,
            None => {
                let held = self.backend.tokens(&slot.session).len();
                let left = running.job.generation.ids.len() - held;
                Waits::Prompt(u32::try_from(left).expect("invariant: it fits the context"))
            }
        })
    }

    /// Feeds each slot of `shares`, which ascend, its tokens.
    fn step(&mut self, shares: &[Share]) -> Result<Outputs, EngineError> {
        let (backend, mut shares) = (&mut self.backend, shares.iter().peekable());
        let (mut feeds, mut jobs) = (Vec::new(), Vec::new());
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(share) = shares.next_if(|share| share.slot == index) else { continue };
            let running = slot.running.as_ref().expect("invariant: a slot that waits is running");
            let (tokens, want) = match &running.next {
                Some(token) => (std::slice::from_ref(token), running.want),
                None => {
                    let rest = &running.job.generation.ids[backend.tokens(&slot.session).len()..];
                    let tokens = &rest[..share.rows as usize];
                    (tokens, if tokens.len() == rest.len() { running.want } else { Want::Nothing })
                }
            };
            feeds.push(Feed { session: &mut slot.session, tokens, want });
            jobs.push(&running.job);
        }
        backend.step(&mut feeds, &mut StepWatch { jobs, shared: &self.shared })
    }

    /// Feeds a slot its next token, and beside it up to `drafts` of what may follow.
    fn step_with_drafts(&mut self, index: usize, drafts: u32) -> Result<Outputs, EngineError> {
        let slot = &mut self.slots[index];
        let running = slot.running.as_mut().expect("invariant: a slot that waits is running");
        let token = running.next.expect("invariant: it waits for the step of a token");
        let drafted = self.backend.counters().speculate.drafted;
        let mut watch = StepWatch { jobs: vec![&running.job], shared: &self.shared };
        let session = &mut slot.session;
        let output = self.backend.feed_speculating(session, token, running.want, drafts, &mut watch);
        let drafted = self.backend.counters().speculate.drafted - drafted;
        running.numbers.draft_tokens += u32::try_from(drafted).expect("invariant: a few drafts");
        match output {
            // No fault of the step.
            Err(error @ EngineError::Model(ModelError::ContextFull { .. })) => Ok(vec![Err(error)]),
            output => Ok(vec![Ok(output?)]),
        }
    }

    fn take_outputs(&mut self, shares: &[Share], outputs: Outputs) {
        for (share, output) in shares.iter().zip(outputs) {
            self.settle(share.slot, |worker, running| match output {
                Ok(output) => worker.take_output(share.slot, running, output),
                Err(EngineError::Model(ModelError::ContextFull { .. })) => Outcome::Ended(End::Length),
                Err(error) => Outcome::Failed(Arc::new(error)),
            });
        }
    }
}

/// Tokens of prompts in a step.
fn prompt_rows(waits: &[Option<Waits>], shares: &[Share]) -> u32 {
    let of_prompts = shares.iter().filter(|share| matches!(waits[share.slot], Some(Waits::Prompt(_))));
    of_prompts.map(|share| share.rows).sum()
}
