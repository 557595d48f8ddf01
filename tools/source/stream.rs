//! A transfer on a thread of its own, so that fetching and writing go on at once, and Ctrl-C need not wait for a server.
//!
//! - Owns: the thread and the open body. In: a request. Out: its [`Event`]s, in order.
//! - Invariants: at most [`CHUNKS`] chunks wait; bytes come only after an [`Event::Opened`], and never more than it said.
//!   Dropping the stream ends the thread at its next byte, or when the server has been silent for too long.

use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use flint_rt::base::units::display_bytes;

use crate::source::answer::{self, Answer, Identity};
use crate::source::client::{Client, network_error};
use crate::source::error::{Cause, FetchError};
use crate::source::retry::{Pace, Patience};
use crate::source::url::Url;

const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS: usize = 16;

/// How often the person's wish to stop is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// What happens to a transfer.
pub(super) enum Event {
    /// The server has what was asked for.
    Opened(Answer),
    /// The next bytes.
    Bytes(Vec<u8>),
    /// All that was announced is there.
    End,
    /// Nothing more comes.
    Failed(FetchError),
}

/// A transfer.
pub(super) struct Stream(Receiver<Event>);

impl Stream {
    /// Asks for the bytes from `offset_bytes` on.
    pub(super) fn start(
        client: Arc<Client>,
        url: Url,
        offset_bytes: u64,
        known: Option<Identity>,
        patience: Patience,
    ) -> Self {
        let (sender, receiver) = sync_channel(CHUNKS);
        let work = move || {
            if let Err(error) = transfer(&client, &url, offset_bytes, known.as_ref(), patience, &sender) {
                // Nobody listens any more: nobody misses it.
                let _ = sender.send(Event::Failed(error));
            }
        };
        // A thread that cannot be made drops the sender, which the other end takes for a broken connection.
        let _ = thread::Builder::new().name("fetch".to_owned()).spawn(work);
        Self(receiver)
    }

    /// The next event; while it is waited for, `is_stopped` is asked.
    pub(super) fn next(&self, is_stopped: fn() -> bool) -> Event {
        loop {
            match self.0.recv_timeout(LOOK) {
                Ok(event) => return event,
                Err(RecvTimeoutError::Timeout) if is_stopped() => return Event::Failed(FetchError::Stopped),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Event::Failed(FetchError::Network {
                        host: "the transfer".to_owned(),
                        cause: Cause::Connection,
                        text: "ended without a word".to_owned(),
                    });
                }
            }
        }
    }
}

/// Waits, unless `is_stopped`.
pub(super) fn pause(wait: Duration, is_stopped: fn() -> bool) -> Result<(), FetchError> {
    let mut left = wait;
    while !left.is_zero() {
        if is_stopped() {
            return Err(FetchError::Stopped);
        }
        let step = left.min(LOOK);
        thread::sleep(step);
        left -= step;
    }
    Ok(())
}

fn transfer(
    client: &Client,
    url: &Url,
    offset_bytes: u64,
    known: Option<&Identity>,
    patience: Patience,
    events: &SyncSender<Event>,
) -> Result<(), FetchError> {
    let reply = client.get(url, offset_bytes, known.and_then(Identity::if_range))?;
    let answer = answer::check(&reply, offset_bytes, known, &url.to_string())?;
    let (host, end_bytes) = (reply.host, answer.end_bytes);
    let mut at_bytes = offset_bytes;
    let is_gone = |event| events.send(event).is_err();
    if is_gone(Event::Opened(answer)) {
        return Ok(());
    }
    let mut body = reply.body.into_reader();
    let mut pace = Pace::new(patience);
    while at_bytes < end_bytes {
        let left_bytes = end_bytes - at_bytes;
        let mut chunk =
            vec![0; usize::try_from(left_bytes).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES))];
        let asked = Instant::now();
        let got = match body.read(&mut chunk) {
            Ok(0) => return Err(FetchError::Truncated { host, at_bytes, left_bytes }),
            Ok(got) => got,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(FetchError::Truncated { host, at_bytes, left_bytes });
            }
            Err(error) => return Err(network_error(&ureq::Error::from(error), &host)),
        };
        chunk.truncate(got);
        at_bytes += got as u64;
        let pace = pace.see(asked.elapsed(), got as u64);
        if is_gone(Event::Bytes(chunk)) {
            return Ok(());
        }
        // The last bytes need no more patience.
        if let (Err(stalled), true) = (pace, at_bytes < end_bytes) {
            let (bytes, seconds) = (display_bytes(stalled.bytes), stalled.waited.as_secs_f64());
            let text = format!("only {bytes} came in {seconds:.1} s");
            return Err(FetchError::Network { host, cause: Cause::Silence, text });
        }
    }
    is_gone(Event::End);
    Ok(())
}
