//! A file on a server, read from any byte on as if it were here.
//!
//! - Owns: the open transfer. In: a URL, what is known of the file. Out: bytes in order, an [`Identity`].
//! - Invariants: a byte is handed out once its answer was found to be of this very file and of this very place in it.
//!   What breaks off is continued at the next byte. Only tries that bring nothing to speak of are counted
//!   against the limit.

use std::sync::Arc;

use crate::source::answer::Identity;
use crate::source::client::Client;
use crate::source::error::FetchError;
use crate::source::hub::Token;
use crate::source::retry::{Patience, RETRY_AFTER_MAX};
use crate::source::stream::{Event, Stream, pause};
use crate::source::url::Url;

/// Bytes of a file's beginning that are kept; enough for the header of the full Flint, with its vocabulary.
const HEAD_BYTES_MAX: usize = 32 << 20;

/// How to fetch.
#[derive(Clone, Copy)]
pub(crate) struct FetchOptions {
    pub(crate) patience: Patience,
    /// Whether the person asked to stop.
    pub(crate) is_stopped: fn() -> bool,
    /// Is told why something is tried again.
    pub(crate) note: fn(&str),
}

/// A file on a server.
pub(crate) struct HttpSource {
    client: Arc<Client>,
    url: Url,
    options: FetchOptions,
    identity: Identity,
    stream: Option<Stream>,
    /// Where the next byte of `stream` belongs.
    at_bytes: u64,
    /// Came, and was not taken yet; the part from `taken` on is left.
    chunk: Vec<u8>,
    taken: usize,
    /// The file's first bytes, as far as they were read: a header is read to look at it, and again to take it.
    head: Vec<u8>,
    failed_tries: u32,
    /// Came of the transfer at hand.
    try_bytes: u64,
}

impl HttpSource {
    /// Asks the server for the file. `token` is a token and the endpoint that it is for.
    pub(crate) fn open(
        url: Url,
        token: Option<(Url, Token)>,
        options: FetchOptions,
    ) -> Result<Self, FetchError> {
        let variable = |name: &str| std::env::var(name).ok();
        let client = Arc::new(Client::new(options.patience.silence, token, &variable)?);
        let mut failed_tries = 0;
        loop {
            let stream = Stream::start(Arc::clone(&client), url.clone(), 0, None, options.patience);
            match stream.next(options.is_stopped) {
                Event::Opened(answer) => {
                    let identity = answer.identity;
                    return Ok(Self {
                        client,
                        url,
                        options,
                        identity,
                        stream: Some(stream),
                        at_bytes: 0,
                        chunk: Vec::new(),
                        taken: 0,
                        head: Vec::new(),
                        failed_tries,
                        try_bytes: 0,
                    });
                }
                Event::Failed(error) if error.is_transient(false) => {
                    be_patient(error, &mut failed_tries, options)?
                }
                Event::Failed(error) => return Err(error),
                Event::Bytes(_) | Event::End => unreachable!("invariant: a transfer begins with its answer"),
            }
        }
    }

    /// What the server says of the file.
    pub(crate) fn about(&self) -> &Identity {
        &self.identity
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// Fills the beginning of `target` with the bytes from `offset_bytes` on; gives how many, 0 at the end only.
    pub(crate) fn fetch(&mut self, offset_bytes: u64, target: &mut [u8]) -> Result<usize, FetchError> {
        if offset_bytes >= self.identity.len_bytes || target.is_empty() {
            return Ok(0);
        }
        let kept = usize::try_from(offset_bytes).ok().and_then(|offset| self.head.get(offset..));
        if let Some(kept) = kept.filter(|kept| !kept.is_empty()) {
            let count = kept.len().min(target.len());
            target[..count].copy_from_slice(&kept[..count]);
            return Ok(count);
        }
        if offset_bytes != self.at_bytes {
            (self.stream, self.at_bytes) = (None, offset_bytes);
            self.chunk.clear();
            self.taken = 0;
        }
        while self.taken == self.chunk.len() {
            self.receive()?;
        }
        let rest = &self.chunk[self.taken..];
        let count = rest.len().min(target.len());
        target[..count].copy_from_slice(&rest[..count]);
        if offset_bytes == self.head.len() as u64 {
            let kept = &rest[..count.min(HEAD_BYTES_MAX.saturating_sub(self.head.len()))];
            // What there is no memory to keep is fetched again.
            if self.head.try_reserve(kept.len()).is_ok() {
                self.head.extend_from_slice(kept);
            }
        }
        self.taken += count;
        self.at_bytes += count as u64;
        Ok(count)
    }

    /// Waits for the next event, and begins a transfer where there is none.
    fn receive(&mut self) -> Result<(), FetchError> {
        let stream = self.stream.get_or_insert_with(|| {
            let known = Some(self.identity.clone());
            self.try_bytes = 0;
            Stream::start(
                Arc::clone(&self.client),
                self.url.clone(),
                self.at_bytes,
                known,
                self.options.patience,
            )
        });
        match stream.next(self.options.is_stopped) {
            Event::Opened(_) => {}
            Event::Bytes(chunk) => {
                (self.chunk, self.taken) = (chunk, 0);
                self.try_bytes += self.chunk.len() as u64;
                // A server that drips would else be asked for ever.
                if self.try_bytes >= self.options.patience.bytes_min() {
                    self.failed_tries = 0;
                }
            }
            // A part of the rest, or all of it; the next request shows.
            Event::End => {
                self.stream = None;
                let left_bytes = self.identity.len_bytes - self.at_bytes;
                if self.try_bytes < self.options.patience.bytes_min() && left_bytes > 0 {
                    let (host, at_bytes) = (self.url.host_and_port().to_owned(), self.at_bytes);
                    let error = FetchError::Truncated { host, at_bytes, left_bytes };
                    be_patient(error, &mut self.failed_tries, self.options)?;
                }
            }
            Event::Failed(error) if error.is_transient(true) => {
                self.stream = None;
                be_patient(error, &mut self.failed_tries, self.options)?;
            }
            Event::Failed(error) => return Err(error),
        }
        Ok(())
    }
}

/// Counts a failure and waits, or gives up.
fn be_patient(error: FetchError, failed_tries: &mut u32, options: FetchOptions) -> Result<(), FetchError> {
    let retry_after = error.retry_after();
    if let (FetchError::Busy { host, status, .. }, Some(retry_after)) = (&error, retry_after)
        && retry_after > RETRY_AFTER_MAX
    {
        return Err(FetchError::BusyForLong { host: host.clone(), status: *status, retry_after });
    }
    *failed_tries += 1;
    if *failed_tries >= options.patience.tries_max {
        return Err(FetchError::GaveUp { tries: *failed_tries, last: Box::new(error) });
    }
    let wait = options.patience.wait(*failed_tries, retry_after);
    (options.note)(&format!("{error}; trying again in {:.1} s", wait.as_secs_f64()));
    pause(wait, options.is_stopped)
}
