//! A reply as a stream of events: what is ready goes out at once, and a ping where nothing is.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep};

use super::jobs::Jobs;
use crate::engine::job::Event;
use crate::wire::calls::{Calls, Said};
use crate::wire::render::Answer;

/// Bytes after which what is ready goes out before more is looked for.
const FRAME_BYTES: usize = 16 << 10;

/// The body of a streamed answer.
pub(crate) struct EventBody {
    jobs: Jobs,
    answer: Box<dyn Answer>,
    calls: Option<Calls>,
    ping: Duration,
    silent_until: Pin<Box<Sleep>>,
    /// Done when the client closes its sending side: a ping shows whether it is still there.
    half_closed: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Written and not yet sent.
    out: String,
    is_over: bool,
}

impl EventBody {
    /// Begins with what the answer says before anything is computed.
    pub(crate) fn new(
        jobs: Jobs,
        mut answer: Box<dyn Answer>,
        calls: Option<Calls>,
        ping: Duration,
        half_closed: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let mut out = String::new();
        answer.begin(&mut out);
        Self {
            jobs,
            answer,
            calls,
            ping,
            silent_until: Box::pin(sleep(ping)),
            half_closed: Some(Box::pin(half_closed)),
            out,
            is_over: false,
        }
    }

    fn write(&mut self, index: usize, event: Event, is_last: bool) {
        let out = &mut self.out;
        match event {
            Event::Progress(progress) => self.answer.progress(&progress, out),
            Event::Piece(piece, numbers) => match &mut self.calls {
                None => self.answer.piece(index, &piece, &numbers, out),
                Some(calls) => calls.push(piece, &mut |said| match said {
                    Said::Piece(piece) => self.answer.piece(index, &piece, &numbers, out),
                    Said::Call(call) => self.answer.call(&call, out),
                }),
            },
            Event::Done(summary) => {
                if let Some(calls) = &mut self.calls {
                    calls.finish(&mut |said| {
                        if let Said::Piece(piece) = said {
                            self.answer.piece(index, &piece, &summary.numbers, out);
                        }
                    });
                }
                self.answer.done(index, &summary, is_last, out);
                self.is_over = is_last;
            }
            Event::Failed(error) => {
                self.answer.failed(&error, out);
                self.is_over = true;
            }
        }
    }
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        while !this.is_over && this.out.len() < FRAME_BYTES {
            match this.jobs.poll_next(context) {
                Poll::Ready(Some((index, event, is_last))) => this.write(index, event, is_last),
                Poll::Ready(None) => this.is_over = true,
                Poll::Pending => break,
            }
        }
        if this.out.is_empty() {
            if this.is_over {
                return Poll::Ready(None);
            }
            let is_half_closed =
                this.half_closed.as_mut().is_some_and(|closed| closed.as_mut().poll(context).is_ready());
            if is_half_closed {
                this.half_closed = None;
            } else if this.silent_until.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            this.out.push_str(this.answer.ping());
        }
        this.silent_until.as_mut().reset(Instant::now() + this.ping);
        let frame = Bytes::from(std::mem::take(&mut this.out));
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }
}
