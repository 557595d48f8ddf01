//! A connection's socket as HTTP's library gets it, with the two ends that the library does not know.
//!
//! - A client may close its sending side when it has asked, and read the answer afterwards. That looks like one that has gone away,
//!   until something is sent to it: an interim answer, or an event's ping, to which the system of one that has gone answers that
//!   nobody is there.
//! - A client may send all of a body before it reads that the body was refused. If the socket is closed before that, its system
//!   throws the answer away; so what still comes is read and dropped, for a while.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, Sleep, sleep};
use tokio_io_timeout::TimeoutStream;

use super::talk::Talk;
use crate::limits::{HALF_CLOSED_LOOK, LINGER_BYTES_MAX, LINGER_STALL, LINGER_TIME, WRITE_STALL};

/// An interim answer that every client of HTTP/1.1 skips.
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Bytes that are thrown away at a time.
const DROP_BYTES: usize = 16 << 10;

/// A stream of the system's.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Writes what goes out at once; fails where nobody is on the other side any more, with no bytes to write, too.
    fn write_now(&self, bytes: &[u8]) -> io::Result<usize>;
}

impl Stream for TcpStream {
    fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write(bytes)
    }
}

impl Stream for UnixStream {
    fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write(bytes)
    }
}

/// How far a close is.
struct Lingering {
    /// Until when.
    end: Instant,
    bytes: u64,
}

/// The socket.
pub(crate) struct Socket<S> {
    stream: Pin<Box<TimeoutStream<S>>>,
    talk: Arc<Talk>,
    /// The client sends nothing more.
    is_ended: bool,
    lingering: Option<Lingering>,
    /// The next look at a client that has closed its sending side, or the end of a pause while lingering.
    next: Pin<Box<Sleep>>,
}

impl<S: Stream> Socket<S> {
    pub(crate) fn new(stream: S, talk: Arc<Talk>) -> Self {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(WRITE_STALL));
        Self {
            stream: Box::pin(stream),
            talk,
            is_ended: false,
            lingering: None,
            next: Box::pin(sleep(HALF_CLOSED_LOOK)),
        }
    }

    /// Whether nobody takes `bytes` any more, which are few.
    fn is_gone(&self, bytes: &[u8]) -> bool {
        match self.stream.get_ref().write_now(bytes) {
            // Half of them would spoil what follows.
            Ok(written) => written < bytes.len(),
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Ready when a client that has closed its sending side has gone, awaits no answer, or has not sent all of its request.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if !self.talk.is_asked() {
                return Poll::Ready(());
            }
            // What can be answered at once is; and what is here of a body is read by then.
            ready!(self.next.as_mut().poll(context));
            self.next.as_mut().reset(Instant::now() + HALF_CLOSED_LOOK);
            if self.talk.is_unread() {
                return Poll::Ready(());
            }
            // First what shows whether it is there. An answer that has begun is written on: its events ping.
            let is_told = self.talk.half_close() && !self.talk.is_answered();
            if (is_told && !self.talk.takes_interim()) || self.is_gone(if is_told { INTERIM } else { &[] }) {
                return Poll::Ready(());
            }
        }
    }

    /// Ready when enough of what nobody wants was thrown away.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        if self.lingering.is_none() {
            self.next.as_mut().reset(now + LINGER_STALL);
        }
        let lingering = self.lingering.get_or_insert(Lingering { end: now + LINGER_TIME, bytes: 0 });
        let mut dropped = [0; DROP_BYTES];
        loop {
            let mut buffer = ReadBuf::new(&mut dropped);
            match self.stream.as_mut().poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    lingering.bytes += buffer.filled().len() as u64;
                    let now = Instant::now();
                    if lingering.bytes > LINGER_BYTES_MAX || now > lingering.end {
                        return Poll::Ready(());
                    }
                    self.next.as_mut().reset(now + LINGER_STALL);
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.next.as_mut().poll(context),
            }
        }
    }
}

impl<S: Stream> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.is_ended {
            let before = buffer.filled().len();
            let is_read = ready!(this.stream.as_mut().poll_read(context, buffer));
            this.is_ended = is_read.is_ok() && buffer.filled().len() == before && buffer.remaining() > 0;
            if !this.is_ended {
                return Poll::Ready(is_read);
            }
            this.next.as_mut().reset(Instant::now() + HALF_CLOSED_LOOK);
        }
        this.poll_gone(context).map(Ok)
    }
}

impl<S: Stream> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.talk.set_answered();
        self.stream.as_mut().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.talk.set_answered();
        self.stream.as_mut().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(this.stream.as_mut().poll_shutdown(context))?;
            if !this.talk.is_unread() || this.is_ended {
                return Poll::Ready(Ok(()));
            }
        }
        this.poll_linger(context).map(Ok)
    }
}
