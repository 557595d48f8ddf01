//! The generations of one request, one after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::engine::job::{Event, Generation};
use crate::engine::queue::{Queue, Ticket};
use crate::wire::error::{ApiError, Kind};

/// What is still to be done of a request, and what is being done. Dropping it gives all of it up.
pub(crate) struct Jobs {
    queue: Arc<Queue>,
    waiting: VecDeque<Generation>,
    ticket: Ticket,
    index: usize,
    is_over: bool,
}

impl Jobs {
    /// Enters the queue with the first of them.
    ///
    /// # Errors
    /// When the queue is full or closed.
    pub(crate) fn submit(queue: &Arc<Queue>, generations: Vec<Generation>) -> Result<Self, ApiError> {
        let mut waiting = VecDeque::from(generations);
        let first = waiting.pop_front().expect("invariant: a request asks for something");
        let ticket = queue.submit(first)?;
        Ok(Self { queue: queue.clone(), waiting, ticket, index: 0, is_over: false })
    }

    /// The next event, of which generation, and whether that is the last one; none when all is said. After a failure nothing
    /// more comes.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Event, bool)>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let event = match self.ticket.events.poll_recv(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(event)) => event,
            Poll::Ready(None) => Event::Failed(ApiError::new(
                Kind::Server,
                "the reply was broken off; the server's log says why",
            )),
        };
        let (index, is_last) = (self.index, self.waiting.is_empty());
        match (&event, self.waiting.front()) {
            (Event::Done(_), Some(_)) => {
                let next = self.waiting.pop_front().expect("invariant: it was just seen");
                match self.queue.submit(next) {
                    Ok(ticket) => self.ticket = ticket,
                    Err(error) => {
                        self.is_over = true;
                        return Poll::Ready(Some((index, Event::Failed(error), true)));
                    }
                }
                self.index += 1;
            }
            (Event::Done(_) | Event::Failed(_), _) => self.is_over = true,
            (Event::Progress(_) | Event::Piece(..), _) => {}
        }
        Poll::Ready(Some((index, event, is_last)))
    }

    /// The same for those who can wait.
    pub(crate) async fn next(&mut self) -> Option<(usize, Event, bool)> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}
