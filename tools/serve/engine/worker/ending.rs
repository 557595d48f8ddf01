//! How a job ended: told to its client, counted, logged.

use std::time::Instant;

use flint_rt::engine::EngineError;
use flint_rt::model::ModelError;
use flint_rt::sample::SampleError;

use super::Worker;
use super::running::{Outcome, Running};
use crate::engine::backend::{Backend, is_device_lost};
use crate::engine::job::{End, Event, Summary};
use crate::engine::log;
use crate::wire::error::{ApiError, Kind};

impl<B: Backend> Worker<B> {
    /// Does with a slot's job as `decide` says.
    pub(super) fn settle(&mut self, index: usize, decide: impl FnOnce(&mut Self, &mut Running) -> Outcome) {
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
            Outcome::Failed(error) => {
                if matches!(*error, EngineError::Model(ModelError::NotFinite { .. })) {
                    self.store.distrust(index, running.job.generation.prefix());
                }
                self.fail(&running, &error);
            }
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
    pub(super) fn close_if_lost(&self, error: &EngineError) {
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
}

/// What those are told whose replies end with the server.
pub(crate) fn stopping() -> ApiError {
    ApiError::later(Kind::Unavailable, "the server is stopping", 10)
}

/// What a client is told of a failed step: the log has the rest, which may name paths.
pub(super) fn told(error: &EngineError) -> ApiError {
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
