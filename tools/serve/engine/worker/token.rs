//! A token of what a step computed: chosen, told, and whether it was the last.

use std::sync::Arc;
use std::time::Instant;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::EngineError;
use flint_rt::model::Want;
use flint_rt::model::decode::StepOutput;
use flint_rt::sample::{log_probabilities, top_n};

use super::Worker;
use super::running::{Outcome, Running};
use crate::engine::backend::Backend;
use crate::engine::constraint::Constraint;
use crate::engine::job::{End, Event};
use crate::engine::reply::TokenInfo;

/// A token's log-probability, and the best alternatives with theirs, where they are told.
type Logprobs = Option<(f64, Vec<(TokenId, f64)>)>;

impl<B: Backend> Worker<B> {
    /// What a step made of a job.
    pub(super) fn take_output(&mut self, index: usize, running: &mut Running, output: StepOutput) -> Outcome {
        if running.next.is_none() {
            let held = self.backend.tokens(&self.slots[index].session).len();
            let done = u32::try_from(held).expect("invariant: it fits the context");
            running.send(Event::Progress(running.progress(done)));
            if done < running.numbers.prompt_tokens {
                return Outcome::GoesOn;
            }
            running.numbers.prompt = running.began.elapsed();
            running.first_token_at = Instant::now();
            self.shared.metrics.prompt_done(&running.numbers);
        }
        let asked = running.want;
        let mut outcome = self.take_token(running, output);
        // What the step computed for drafts that are chosen now, as long as it gives what they are chosen from: where a call is opened
        // logits are wanted from then on, and the step may have none.
        while let (Outcome::GoesOn, Some(token), true) = (&outcome, running.next, running.want == asked) {
            match self.backend.take_ahead(&mut self.slots[index].session, token) {
                Ok(Some(output)) => {
                    running.numbers.draft_accepted += 1;
                    outcome = self.take_token(running, output);
                }
                Ok(None) => break,
                Err(error) => return Outcome::Failed(Arc::new(error)),
            }
        }
        outcome
    }

    /// Chooses the next token, and gives its text.
    fn take_token(&mut self, running: &mut Running, output: StepOutput) -> Outcome {
        let generation = &running.job.generation;
        if generation.tokens_max == 0 {
            return Outcome::Ended(End::Length);
        }
        let may_end = !generation.ignores_stops && running.numbers.reply_tokens >= generation.tokens_min;
        let is_over_thought = running.reply.is_thinking()
            && generation.thought_max.is_some_and(|most| running.reply.reasoning_tokens() >= most);
        let chosen = self.choose(running, output, may_end);
        let (token, logprobs) = match chosen {
            Ok((token, logprobs)) if !is_over_thought => (token, logprobs),
            Ok((token, logprobs)) => (self.think_close.unwrap_or(token), logprobs),
            Err(outcome) => return outcome,
        };
        let constraint = constraint_of(running);
        let is_held = constraint.as_ref().is_some_and(|constraint| constraint.is_active());
        if (may_end || is_held) && self.stop_ids.contains(&token) {
            return Outcome::Ended(End::Stop);
        }
        let is_complete = match constraint.map(|constraint| constraint.take(token)) {
            None | Some(Ok(false)) => false,
            Some(Ok(true)) => true,
            Some(Err(error)) => return Outcome::Refused(error),
        };
        running.sampler.accept(token);
        running.numbers.reply_tokens += 1;
        running.numbers.reply = running.first_token_at.elapsed();
        let (numbers, events) = (&mut running.numbers, &running.job.events);
        let mut is_heard = true;
        running.reply.push(TokenInfo { id: token, logprobs }, &mut |piece| {
            is_heard &= events.try_send(Event::Piece(piece, *numbers)).is_ok();
        });
        numbers.reasoning_tokens = running.reply.reasoning_tokens();
        if !is_heard {
            return Outcome::GivenUp;
        }
        if let Some(stop) = running.reply.stop_string() {
            return Outcome::Ended(End::StopString(stop.to_owned()));
        }
        if is_complete {
            return Outcome::Ended(End::Stop);
        }
        if numbers.reply_tokens >= running.job.generation.tokens_max {
            return Outcome::Ended(End::Length);
        }
        running.next = Some(token);
        running.want = running.wanted();
        Outcome::GoesOn
    }

    /// The next token, and what is told of it on request.
    fn choose(
        &mut self,
        running: &mut Running,
        output: StepOutput,
        may_end: bool,
    ) -> Result<(TokenId, Logprobs), Outcome> {
        if let (Some(token), Want::Greedy) = (output.greedy, running.want) {
            return Ok((token, None));
        }
        self.backend.read_logits(&output, &mut self.logits);
        // As the model had them: penalties, bias and forms change the others.
        let plain = running.job.generation.top_logprobs.map(|count| (count, self.logits.clone()));
        let allowed =
            constraint_of(running).map(Constraint::allowed).transpose().map_err(Outcome::Refused)?.flatten();
        let forbidden: &[TokenId] = if may_end { &[] } else { &self.stop_ids };
        let sampled = match allowed {
            None => running.sampler.sample_without(&mut self.logits, forbidden),
            Some(allowed) => running.sampler.sample_among(&mut self.logits, allowed),
        };
        let token = sampled.map_err(|error| Outcome::Failed(Arc::new(error.into())))?;
        let logprobs = plain.map(|(count, plain)| token_logprobs(&plain, token, count)).transpose();
        Ok((token, logprobs.map_err(|error| Outcome::Failed(Arc::new(error)))?))
    }
}

/// The form that the next token has to keep to. A thought has none.
fn constraint_of(running: &mut Running) -> Option<&mut Constraint> {
    running.job.generation.constraint.as_mut().filter(|_| !running.reply.is_thinking())
}

/// The log-probability of `token`, and the `count` best with theirs.
fn token_logprobs(
    logits: &[f32],
    token: TokenId,
    count: u32,
) -> Result<(f64, Vec<(TokenId, f64)>), EngineError> {
    let mut ids = vec![token];
    ids.extend(top_n(logits, count as usize).into_iter().map(|(id, _)| id));
    let found = log_probabilities(logits, &ids)?;
    Ok((found[0], ids.into_iter().zip(found).skip(1).collect()))
}
