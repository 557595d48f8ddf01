//! The engine's thread: jobs from the queue into slots, one step of all of them after another, tokens out.
//!
//! - Owns: the engine and its sessions. In: jobs. Out: events over each job's channel; the board; metrics.
//! - A turn is one step: the next token of each slot that has one, and beside them pieces of prompts ([`super::turn`]). Before it
//!   slots that are being saved or restored get a little further ([`super::prefix_store`]).
//! - Invariants: it never waits for a client; a job that is given up stops within one step, and within a layer where it is alone in
//!   it; a step that fails for several is tried again for each alone, so that a fault of one is not that of others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flint_rt::base::ids::TokenId;
use flint_rt::base::limits::STEP_SEQUENCES_MAX;
use flint_rt::engine::EngineError;
use flint_rt::model::decode::StepOutput;
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::model::{ModelError, Want};
use flint_rt::sample::{SampleError, Sampler, log_probabilities, top_n};
use flint_rt::text::chat::Marker;

use super::backend::{Backend, Counters, Feed, Outputs, is_device_lost};
use super::board::SlotView;
use super::constraint::Constraint;
use super::job::{End, Event, Job, Numbers, Progress, Summary};
use super::log;
use super::prefix_store::{PrefixOptions, PrefixStore};
use super::queue::Next;
use super::reply::{Reply, TokenInfo};
use super::shared::Shared;
use super::turn::{Room, Share, Turns, Waits};
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
    /// The engine's counters when it began.
    counters: Counters,
}

/// Why the thread has nothing to do.
pub(crate) enum Rest {
    /// Nobody asked for long; this is kept for those who will.
    Idle(PrefixStore),
    /// Nobody will ask any more.
    End,
}

/// How a step left a job.
enum Outcome {
    GoesOn,
    Ended(End),
    /// Nobody waits for it any more.
    GivenUp,
    Failed(Arc<EngineError>),
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
    turns: Turns,
    jobs: u64,
    steps: u32,
    /// After which time without a job the engine is given back.
    idle_release: Option<Duration>,
    idle_since: Instant,
}

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
    /// Opens `slots` sessions, and what is kept beside them, unless an earlier worker left that in `kept`.
    ///
    /// # Errors
    /// When the device has too little memory, or a folder cannot be used.
    pub(crate) fn new(
        mut backend: B,
        slots: u32,
        idle_release: Option<Duration>,
        prefix: &PrefixOptions,
        kept: &mut Option<PrefixStore>,
        shared: Arc<Shared>,
    ) -> Result<Self, EngineError> {
        let facts = backend.facts();
        let slots = (0..slots)
            .map(|_| Ok(Slot { session: backend.open_session()?, running: None, used: 0 }))
            .collect::<Result<Vec<_>, EngineError>>()?;
        shared.board.reset(slots.len(), facts.context_len);
        let worker = Self {
            store: match kept.take() {
                Some(store) => store,
                None => PrefixStore::open(prefix, &backend, slots.len())?,
            },
            stop_ids: facts.stops.entries().iter().map(|(id, _)| *id).collect(),
            think_close: Marker::ThinkClose.id(&facts.tokenizer).ok(),
            backend,
            slots,
            logits: Vec::new(),
            turns: Turns::default(),
            jobs: 0,
            steps: 0,
            idle_release,
            idle_since: Instant::now(),
            shared,
        };
        worker.publish();
        Ok(worker)
    }

    /// Works until the queue ends or nobody has asked for long; then says what was wrong with the engine, if anything.
    pub(crate) fn run(mut self) -> Result<Rest, String> {
        loop {
            if self.shared.is_halted() {
                self.store.give_up();
            }
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
                            let is_over = |after| self.idle_since.elapsed() >= after;
                            if self.idle_release.is_some_and(is_over) && self.shared.slot_requests.is_empty()
                            {
                                return self.let_go();
                            }
                        }
                        break;
                    }
                    Next::End if is_idle => {
                        let sessions = self.slots.iter().map(|slot| &slot.session);
                        let is_given_up = || self.shared.is_halted();
                        let metrics = &self.shared.metrics.prefix;
                        self.store.finish(&mut self.backend, sessions, &is_given_up, metrics);
                        return self.backend.close().map(|()| Rest::End);
                    }
                    Next::End => break,
                }
            }
            self.turn();
        }
    }

    /// Gives the engine back, but keeps what its slots hold.
    fn let_go(mut self) -> Result<Rest, String> {
        let sessions = self.slots.iter().map(|slot| &slot.session);
        // Who asks meanwhile does not wait for a slow drive.
        let is_given_up = || self.shared.is_halted() || self.shared.queue.len() > 0;
        self.store.let_go(&mut self.backend, sessions, &is_given_up, &self.shared.metrics.prefix);
        let context_len = self.backend.facts().context_len;
        self.shared.board.reset(self.slots.len(), context_len);
        self.backend.close()?;
        Ok(Rest::Idle(self.store))
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
            counters: self.backend.counters(),
            job,
        };
        slot.running = Some(running);
        self.keep_prefix(index);
        self.show(index);
    }

    /// Forgets what a slot holds beyond the beginning of its prompt, unless something is still to be saved or restored.
    fn keep_prefix(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let Some(running) = slot.running.as_mut().filter(|running| !running.is_settled) else { return };
        if self.store.is_busy(index) {
            return;
        }
        let cached = self.backend.keep_prefix(&mut slot.session, running.job.generation.prefix());
        self.store.settled(index, cached, &self.shared.metrics.prefix);
        running.is_settled = true;
        running.numbers.cached_tokens = cached;
        running.send(Event::Progress(running.progress(cached)));
    }

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
        // A form is asked about one token after another.
        let free =
            running.filter(|running| running.next.is_some() && running.job.generation.constraint.is_none());
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
    fn turn(&mut self) {
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

    /// Does with a slot's job as `decide` says.
    fn settle(&mut self, index: usize, decide: impl FnOnce(&mut Self, &mut Running) -> Outcome) {
        let Some(mut running) = self.slots[index].running.take() else { return };
        match decide(self, &mut running) {
            Outcome::GoesOn => self.slots[index].running = Some(running),
            Outcome::Ended(end) => self.finish(running, end),
            Outcome::GivenUp => {
                // Heard only where it is the server that gives up.
                running.send(Event::Failed(stopping()));
                self.shared.metrics.cancelled();
                self.log(&running, "given up");
            }
            Outcome::Failed(error) => self.fail(&running, &error),
            Outcome::Refused(error) => {
                self.shared.metrics.failed();
                self.log(&running, "refused");
                running.send(Event::Failed(error));
            }
        }
        self.show(index);
        if self.slots[index].running.is_none() {
            self.idle_since = Instant::now();
            self.publish();
        }
    }

    /// What a step made of a job.
    fn take_output(&mut self, index: usize, running: &mut Running, output: StepOutput) -> Outcome {
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
        let mut outcome = self.take_token(running, output);
        // What the step computed for drafts that are chosen now.
        while let (Outcome::GoesOn, Some(token)) = (&outcome, running.next) {
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
            constraint_of(running).map(Constraint::allowed).transpose().map_err(Outcome::Refused)?;
        let forbidden: &[TokenId] = if may_end { &[] } else { &self.stop_ids };
        let sampled = match allowed {
            None => running.sampler.sample_without(&mut self.logits, forbidden),
            Some(allowed) => running.sampler.sample_among(&mut self.logits, allowed),
        };
        let token = sampled.map_err(|error| Outcome::Failed(Arc::new(error.into())))?;
        let logprobs = plain.map(|(count, plain)| token_logprobs(&plain, token, count)).transpose();
        Ok((token, logprobs.map_err(|error| Outcome::Failed(Arc::new(error)))?))
    }

    fn finish(&mut self, mut running: Running, end: End) {
        let (numbers, events) = (running.numbers, &running.job.events);
        let tail = running.reply.finish(&mut |piece| {
            let _ = events.try_send(Event::Piece(piece, numbers));
        });
        self.shared.metrics.finished(&end, &numbers);
        self.log(
            &running,
            match end {
                End::Length => "length",
                End::Stop | End::StopString(_) => "stop",
            },
        );
        running.send(Event::Done(Summary { end, numbers, tail }));
    }

    fn fail(&self, running: &Running, error: &EngineError) {
        tracing::error!(job = running.job.number, "a step failed: {error}");
        self.shared.metrics.failed();
        self.log(running, "failed");
        running.send(Event::Failed(told(error)));
        self.close_if_lost(error);
    }

    /// Lets nothing in any more where nothing can be computed any more.
    fn close_if_lost(&self, error: &EngineError) {
        if is_device_lost(error) {
            let why =
                ApiError::new(Kind::Unavailable, "the GPU was lost: the server has to be started again");
            self.shared.queue.close(&why);
        }
    }

    /// The line of one request.
    fn log(&self, running: &Running, end: &'static str) {
        log::ended(running.job.number, &running.numbers, &running.counters, &self.backend.counters(), end);
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

/// Tokens of prompts in a step.
fn prompt_rows(waits: &[Option<Waits>], shares: &[Share]) -> u32 {
    let of_prompts = shares.iter().filter(|share| matches!(waits[share.slot], Some(Waits::Prompt(_))));
    of_prompts.map(|share| share.rows).sum()
}

/// The form that the next token has to keep to. A thought has none.
fn constraint_of(running: &mut Running) -> Option<&mut Constraint> {
    running.job.generation.constraint.as_mut().filter(|_| !running.reply.is_thinking())
}

/// What those are told whose replies end with the server.
pub(crate) fn stopping() -> ApiError {
    ApiError::later(Kind::Unavailable, "the server is stopping", 10)
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
