//! The engine's thread: jobs from the queue into slots, one step of each slot in turn, tokens out.
//!
//! - Owns: the engine and its sessions. In: jobs. Out: events over each job's channel; the board; metrics.
//! - A turn gives each busy slot one step: a chunk of its prompt, or a token. So a long prompt delays the tokens of others
//!   by a chunk, not by itself.
//! - Invariants: it never waits for a client; a job that is given up stops within one step, in a prompt within a layer; what a
//!   slot computes does not depend on its neighbours.

use std::sync::Arc;
use std::time::Instant;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::EngineError;
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::model::{ModelError, Want};
use flint_rt::sample::{SampleError, Sampler, log_probabilities, top_n};
use flint_rt::text::chat::Marker;

use super::backend::{Backend, is_device_lost};
use super::board::SlotView;
use super::constraint::Constraint;
use super::job::{End, Event, Job, Numbers, Progress, Summary};
use super::prefix_store::{PrefixOptions, PrefixStore};
use super::queue::Next;
use super::reply::{Reply, TokenInfo};
use super::shared::Shared;
use crate::wire::error::{ApiError, Kind};

/// Steps between two looks at the engine's counters.
const STEPS_A_LOOK: u32 = 32;

/// A session, and what it is doing.
struct Slot<S> {
    session: S,
    running: Option<Running>,
    /// When it was used last, as a count of jobs; 0 for never.
    used: u64,
}

/// A job that is being done.
struct Running {
    job: Job,
    sampler: Sampler,
    reply: Reply,
    /// What each step is asked for.
    want: Want,
    /// The token to feed next; none while the prompt is fed.
    next: Option<TokenId>,
    numbers: Numbers,
    began: Instant,
    first_token_at: Instant,
    /// Whether its slot holds what is re-used of its prompt, and nothing else.
    is_settled: bool,
}

/// How a step left a job.
enum Outcome {
    GoesOn,
    Ended(End),
    /// Nobody waits for it any more.
    GivenUp,
    Failed(EngineError),
    /// What was asked for cannot be.
    Refused(ApiError),
}

/// A token's log-probability, and the best alternatives with theirs, where they are told.
type Logprobs = Option<(f64, Vec<(TokenId, f64)>)>;

/// Everything that the thread owns.
pub(crate) struct Worker<B: Backend> {
    backend: B,
    slots: Vec<Slot<B::Session>>,
    /// What no slot holds.
    store: PrefixStore,
    shared: Arc<Shared>,
    /// The ids that end a reply.
    stop_ids: Vec<TokenId>,
    think_close: Option<TokenId>,
    logits: Vec<f32>,
    jobs: u64,
    steps: u32,
}

/// Gives a prompt up with its job.
struct PromptWatch<'a>(&'a Job, &'a Shared);

impl PrefillObserver for PromptWatch<'_> {
    fn should_stop(&mut self) -> bool {
        self.0.is_cancelled() || self.1.is_halted()
    }
}

impl<B: Backend> Worker<B> {
    /// Opens `slots` sessions, and what is kept beside them.
    ///
    /// # Errors
    /// When the device has too little memory, or a folder cannot be used.
    pub(crate) fn new(
        mut backend: B,
        slots: u32,
        prefix: &PrefixOptions,
        shared: Arc<Shared>,
    ) -> Result<Self, EngineError> {
        let facts = backend.facts();
        let slots = (0..slots)
            .map(|_| Ok(Slot { session: backend.open_session()?, running: None, used: 0 }))
            .collect::<Result<Vec<_>, EngineError>>()?;
        shared.board.reset(slots.len(), facts.context_len);
        let store = PrefixStore::open(prefix, &backend, slots.len())?;
        let worker = Self {
            store,
            stop_ids: facts.stops.entries().iter().map(|(id, _)| *id).collect(),
            think_close: Marker::ThinkClose.id(&facts.tokenizer).ok(),
            backend,
            slots,
            logits: Vec::new(),
            jobs: 0,
            steps: 0,
            shared,
        };
        worker.publish();
        Ok(worker)
    }

    /// Works until the queue ends; then says what was wrong with the engine, if anything.
    pub(crate) fn run(mut self) -> Result<(), String> {
        loop {
            self.store.serve(&self.shared.slot_requests, |index| self.slots[index].running.is_none());
            loop {
                let free = (0..self.slots.len()).filter(|index| self.is_free(*index)).count();
                if free == 0 {
                    break;
                }
                let is_idle = free == self.slots.len();
                match self.shared.queue.next(free, is_idle) {
                    Next::Job(job) => self.begin(job),
                    Next::Nothing => {
                        if is_idle {
                            self.backend.rest();
                            self.publish();
                        }
                        break;
                    }
                    Next::End if is_idle => {
                        let sessions = self.slots.iter().map(|slot| &slot.session);
                        let is_given_up = || self.shared.is_halted();
                        let metrics = &self.shared.metrics.prefix;
                        self.store.finish(&mut self.backend, sessions, &is_given_up, metrics);
                        return self.backend.close();
                    }
                    Next::End => break,
                }
            }
            for index in 0..self.slots.len() {
                self.turn(index);
            }
        }
    }

    /// Whether a slot does no job, and nothing is being saved of it or restored to it.
    fn is_free(&self, index: usize) -> bool {
        self.slots[index].running.is_none() && !self.store.is_busy(index)
    }

    fn begin(&mut self, job: Job) {
        if job.is_cancelled() {
            return;
        }
        let generation = &job.generation;
        let facts = self.shared.facts().expect("invariant: the queue is open, so the model is loaded");
        let reply = Reply::new(&facts.tokenizer, generation.shape, generation.stops.clone())
            .map_err(EngineError::from)
            .and_then(|reply| Ok((reply, Sampler::new(generation.sampling.clone(), facts.vocabulary)?)));
        let (reply, mut sampler) = match reply {
            Ok(made) => made,
            Err(error) => {
                let _ = job.events.try_send(Event::Failed(told(&error)));
                return;
            }
        };
        sampler.start_from(&generation.ids);
        let free: Vec<Option<(&B::Session, u64)>> = (0..)
            .zip(&self.slots)
            .map(|(index, slot)| self.is_free(index).then_some((&slot.session, slot.used)))
            .collect();
        let index = self.store.choose(&self.backend, &free, generation.prefix(), &generation.ids);
        self.jobs += 1;
        let slot = &mut self.slots[index];
        slot.used = self.jobs;
        let is_plain = generation.sampling.is_plain_argmax()
            && generation.top_logprobs.is_none()
            && generation.tokens_min == 0
            && generation.constraint.is_none()
            && !generation.ignores_stops;
        let now = Instant::now();
        let prompt_tokens = u32::try_from(generation.ids.len()).expect("invariant: it fits the context");
        let running = Running {
            numbers: Numbers { prompt_tokens, queued: now - job.arrived, ..Numbers::default() },
            sampler,
            reply,
            want: if is_plain { Want::Greedy } else { Want::Logits },
            next: None,
            began: now,
            first_token_at: now,
            is_settled: false,
            job,
        };
        slot.running = Some(running);
        if !self.store.is_busy(index) {
            self.settle(index);
        }
        self.show(index);
    }

    /// Forgets what a slot holds beyond the beginning of its prompt, once nothing is to be saved or restored any more.
    fn settle(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let Some(running) = slot.running.as_mut().filter(|running| !running.is_settled) else { return };
        let cached = self.backend.keep_prefix(&mut slot.session, running.job.generation.prefix());
        self.store.settled(index, cached, &self.shared.metrics.prefix);
        running.is_settled = true;
        running.numbers.cached_tokens = cached;
        running.send(Event::Progress(running.progress(cached)));
    }

    /// Goes on with what is to be saved and restored of a slot before its next step. Whether that is all.
    fn run_errands(&mut self, index: usize) -> bool {
        if self.store.is_busy(index) {
            let (slot, metrics) = (&mut self.slots[index], &self.shared.metrics.prefix);
            if let Err(error) = self.store.step(index, &mut self.backend, &mut slot.session, metrics) {
                match slot.running.take() {
                    Some(running) => self.fail(&running, &error),
                    None => self.failed(&error),
                }
            }
            self.show(index);
        }
        if self.store.is_busy(index) {
            return false;
        }
        self.settle(index);
        true
    }

    /// One step of one slot.
    fn turn(&mut self, index: usize) {
        if !self.run_errands(index) {
            return;
        }
        let slot = &mut self.slots[index];
        let Some(mut running) = slot.running.take() else { return };
        let outcome = if running.job.is_cancelled() || self.shared.is_halted() {
            Outcome::GivenUp
        } else {
            let step = match running.next {
                None => self.feed_chunk(index, &mut running),
                Some(token) => self.before_step(index, 1).and_then(|()| {
                    let slot = &mut self.slots[index];
                    self.backend.feed_token(&mut slot.session, token, running.want).map(Some)
                }),
            };
            match step {
                Ok(None) => Outcome::GoesOn,
                Ok(Some(greedy)) => self.take_token(&mut running, greedy),
                Err(EngineError::Model(ModelError::Stopped)) => Outcome::GivenUp,
                Err(EngineError::Model(ModelError::ContextFull { .. })) => Outcome::Ended(End::Length),
                Err(error) => Outcome::Failed(error),
            }
        };
        self.steps += 1;
        match outcome {
            Outcome::GoesOn => self.slots[index].running = Some(running),
            Outcome::Ended(end) => self.finish(running, end),
            Outcome::GivenUp => {
                // Heard only where it is the server that gives up.
                running.send(Event::Failed(stopping()));
                self.shared.metrics.cancelled();
                tracing::info!(
                    job = running.job.number,
                    reply_tokens = running.numbers.reply_tokens,
                    "given up"
                );
            }
            Outcome::Failed(error) => self.fail(&running, &error),
            Outcome::Refused(error) => {
                self.shared.metrics.failed();
                running.send(Event::Failed(error));
            }
        }
        self.show(index);
        if self.slots[index].running.is_none() || self.steps.is_multiple_of(STEPS_A_LOOK) {
            self.publish();
        }
    }

    /// Keeps what the next step of `tokens` would overwrite and is wanted later.
    fn before_step(&mut self, index: usize, tokens: u32) -> Result<(), EngineError> {
        let (session, metrics) = (&self.slots[index].session, &self.shared.metrics.prefix);
        self.store.before_step(index, &mut self.backend, session, tokens, metrics)
    }

    /// Feeds the next chunk of the prompt; gives what the last one gives.
    fn feed_chunk(
        &mut self,
        index: usize,
        running: &mut Running,
    ) -> Result<Option<Option<TokenId>>, EngineError> {
        self.before_step(index, self.backend.chunk_len())?;
        let slot = &mut self.slots[index];
        let ids = &running.job.generation.ids;
        let held = self.backend.tokens(&slot.session).len();
        let end = ids.len().min(held + self.backend.chunk_len() as usize);
        let is_last = end == ids.len();
        let want = if is_last { running.want } else { Want::Nothing };
        let greedy = self.backend.feed_prompt(
            &mut slot.session,
            &ids[..end],
            want,
            &mut PromptWatch(&running.job, &self.shared),
        )?;
        let done = u32::try_from(end).expect("invariant: it fits the context");
        running.send(Event::Progress(running.progress(done)));
        if !is_last {
            return Ok(None);
        }
        running.numbers.prompt = running.began.elapsed();
        running.first_token_at = Instant::now();
        self.shared.metrics.prompt_done(&running.numbers);
        Ok(Some(greedy))
    }

    /// Chooses the next token, and gives its text.
    fn take_token(&mut self, running: &mut Running, greedy: Option<TokenId>) -> Outcome {
        let generation = &running.job.generation;
        if generation.tokens_max == 0 {
            return Outcome::Ended(End::Length);
        }
        let may_end = !generation.ignores_stops && running.numbers.reply_tokens >= generation.tokens_min;
        let is_over_thought = running.reply.is_thinking()
            && generation.thought_max.is_some_and(|most| running.reply.reasoning_tokens() >= most);
        let chosen = self.choose(running, greedy, may_end);
        let (token, logprobs) = match chosen {
            Ok((token, logprobs)) if !is_over_thought => (token, logprobs),
            Ok((token, logprobs)) => (self.think_close.unwrap_or(token), logprobs),
            Err(outcome) => return outcome,
        };
        let constraint = constraint_of(running);
        if (may_end || constraint.is_some()) && self.stop_ids.contains(&token) {
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
        Outcome::GoesOn
    }

    /// The next token, and what is told of it on request.
    fn choose(
        &mut self,
        running: &mut Running,
        greedy: Option<TokenId>,
        may_end: bool,
    ) -> Result<(TokenId, Logprobs), Outcome> {
        if let (Some(token), Want::Greedy) = (greedy, running.want) {
            return Ok((token, None));
        }
        self.backend.read_logits(&mut self.logits);
        // As the model had them: penalties, bias and forms change the others.
        let plain = running.job.generation.top_logprobs.map(|count| (count, self.logits.clone()));
        let allowed =
            constraint_of(running).map(Constraint::allowed).transpose().map_err(Outcome::Refused)?;
        let forbidden: &[TokenId] = if may_end { &[] } else { &self.stop_ids };
        let sampled = match allowed {
            None => running.sampler.sample_without(&mut self.logits, forbidden),
            Some(allowed) => running.sampler.sample_among(&mut self.logits, allowed),
        };
        let token = sampled.map_err(|error| Outcome::Failed(error.into()))?;
        let logprobs = plain.map(|(count, plain)| token_logprobs(&plain, token, count)).transpose();
        Ok((token, logprobs.map_err(Outcome::Failed)?))
    }

    fn finish(&mut self, mut running: Running, end: End) {
        let (numbers, events) = (running.numbers, &running.job.events);
        let tail = running.reply.finish(&mut |piece| {
            let _ = events.try_send(Event::Piece(piece, numbers));
        });
        self.shared.metrics.finished(&end, &numbers);
        tracing::info!(
            job = running.job.number,
            prompt_tokens = numbers.prompt_tokens,
            cached_tokens = numbers.cached_tokens,
            reply_tokens = numbers.reply_tokens,
            queued_ms = millis(numbers.queued),
            first_token_ms = millis(numbers.prompt),
            reply_ms = millis(numbers.reply),
            end = match end {
                End::Length => "length",
                End::Stop | End::StopString(_) => "stop",
            },
            "done"
        );
        running.send(Event::Done(Summary { end, numbers, tail }));
    }

    fn fail(&self, running: &Running, error: &EngineError) {
        tracing::error!(job = running.job.number, "a step failed: {error}");
        self.shared.metrics.failed();
        running.send(Event::Failed(told(error)));
        self.failed(error);
    }

    /// Lets nothing in any more where nothing can be computed any more.
    fn failed(&self, error: &EngineError) {
        if is_device_lost(error) {
            let why =
                ApiError::new(Kind::Unavailable, "the GPU was lost: the server has to be started again");
            self.shared.queue.close(&why);
        }
    }

    fn show(&self, index: usize) {
        let slot = &self.slots[index];
        let held = self.backend.tokens(&slot.session).len();
        self.shared.board.set(
            index,
            SlotView {
                job: slot.running.as_ref().map(|running| (running.job.number, running.numbers)),
                held_tokens: held,
            },
        );
    }

    fn publish(&self) {
        self.shared.metrics.engine(&self.backend.counters());
        self.store.tell(&self.shared.metrics.prefix);
    }
}

impl Running {
    /// Tells the client; who does not listen is noticed at the next step.
    fn send(&self, event: Event) {
        let _ = self.job.events.try_send(event);
    }

    fn progress(&self, done: u32) -> Progress {
        Progress {
            total: self.numbers.prompt_tokens,
            cached: self.numbers.cached_tokens,
            done,
            elapsed: self.began.elapsed(),
        }
    }
}

/// The form that the next token has to keep to. A thought has none.
fn constraint_of(running: &mut Running) -> Option<&mut Constraint> {
    running.job.generation.constraint.as_mut().filter(|_| !running.reply.is_thinking())
}

/// What those are told whose replies end with the server.
pub(crate) fn stopping() -> ApiError {
    ApiError::later(Kind::Unavailable, "the server is stopping", 10)
}

/// Milliseconds for a log.
fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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

/// What a client is told of a failed step: the log has the rest, which may name paths.
fn told(error: &EngineError) -> ApiError {
    let (kind, message) = match error {
        EngineError::Sample(SampleError::NothingAllowed) => {
            (Kind::Invalid, "logit_bias forbids every token that can come next here")
        }
        EngineError::Model(ModelError::NotFinite { .. }) | EngineError::Sample(_) => (
            Kind::Server,
            "the model computed something that is no number; the conversation was reset, try again",
        ),
        error if is_device_lost(error) => {
            (Kind::Unavailable, "the GPU was lost: the server has to be started again")
        }
        _ => (Kind::Server, "a step of the model failed; the server's log says why"),
    };
    ApiError::new(kind, message)
}
