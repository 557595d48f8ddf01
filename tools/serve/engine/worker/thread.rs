//! The thread's round: jobs are let in, everything gets a step further, and in the end what is held is kept.

use std::time::Instant;

use flint_rt::engine::EngineError;
use flint_rt::model::Want;
use flint_rt::sample::Sampler;

use super::ending::told;
use super::running::Running;
use super::{Rest, Worker};
use crate::engine::backend::Backend;
use crate::engine::job::{Event, Job, Numbers};
use crate::engine::queue::Next;
use crate::engine::reply::Reply;

impl<B: Backend> Worker<B> {
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
            && !generation.ignores_stops;
        let now = Instant::now();
        let prompt_tokens = u32::try_from(generation.ids.len()).expect("invariant: it fits the context");
        let mut running = Running {
            is_plain,
            numbers: Numbers { prompt_tokens, queued: now - job.arrived, ..Numbers::default() },
            sampler,
            reply,
            want: Want::Nothing,
            next: None,
            began: now,
            first_token_at: now,
            is_settled: false,
            counters: self.backend.counters(),
            job,
        };
        running.want = running.wanted();
        slot.running = Some(running);
        self.keep_prefix(index);
        self.show(index);
    }

    /// Forgets what a slot holds beyond the beginning of its prompt, unless something is still to be saved or restored.
    pub(super) fn keep_prefix(&mut self, index: usize) {
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
}
