//! What a connection's socket and its requests know of each other.
//!
//! HTTP's library sees bytes and requests, but not both: whether a client that has closed its sending side waits for an answer, and
//! whether a body that was refused is still being sent, is told by the one to the other through this.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::Body as AnyBody;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::{Request, Version};
use tokio::sync::Notify;

/// Shared by a connection's socket and the request that it carries; one at a time.
#[derive(Debug, Default)]
pub(crate) struct Talk {
    /// A request has come whose answer is not out yet.
    is_asked: AtomicBool,
    /// Its body has not been read to the end.
    is_unread: AtomicBool,
    /// Something of its answer is out.
    is_answered: AtomicBool,
    /// Whether the client knows interim answers.
    takes_interim: AtomicBool,
    /// The client has closed its sending side; what it was told since may show whether it is still there.
    is_half_closed: AtomicBool,
    half_closed: Notify,
    /// It came by a socket file, which no page of a browser reaches.
    is_by_file: bool,
}

impl Talk {
    /// Of a connection by a socket file, or by an address.
    pub(crate) fn new(is_by_file: bool) -> Arc<Self> {
        Arc::new(Self { is_by_file, ..Self::default() })
    }

    pub(crate) fn is_by_file(&self) -> bool {
        self.is_by_file
    }

    /// A request begins; its body tells when it is read.
    fn begin(self: &Arc<Self>, request: &Request<impl Body>) {
        self.is_unread.store(!request.body().is_end_stream(), Ordering::Relaxed);
        self.is_answered.store(false, Ordering::Relaxed);
        self.takes_interim.store(request.version() >= Version::HTTP_11, Ordering::Relaxed);
        self.is_half_closed.store(false, Ordering::Relaxed);
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Whether a request has come whose answer is not out yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// Whether a body is on its way that nobody reads.
    pub(crate) fn is_unread(&self) -> bool {
        self.is_unread.load(Ordering::Relaxed)
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed)
    }

    pub(crate) fn set_answered(&self) {
        self.is_answered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn takes_interim(&self) -> bool {
        self.takes_interim.load(Ordering::Relaxed)
    }

    /// The client has closed its sending side; whether that is new for this request.
    pub(crate) fn half_close(&self) -> bool {
        let is_new = !self.is_half_closed.swap(true, Ordering::Relaxed);
        if is_new {
            self.half_closed.notify_one();
        }
        is_new
    }

    /// Done when the client closes its sending side.
    pub(crate) async fn half_closed(self: Arc<Self>) {
        self.half_closed.notified().await;
    }
}

/// What holds a request's state open: dropped when its answer is out, or given up.
pub(crate) struct Asked(Arc<Talk>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.is_asked.store(false, Ordering::Relaxed);
    }
}

/// Takes a request on: its handler finds `talk` among the extensions.
pub(crate) fn take<B>(talk: &Arc<Talk>, request: Request<B>) -> (Request<AnyBody>, Asked)
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin + Send + 'static,
{
    talk.begin(&request);
    let mut request = request.map(|body| AnyBody::new(Watched { body, talk: talk.clone() }));
    request.extensions_mut().insert(talk.clone());
    (request, Asked(talk.clone()))
}

/// A request's body, which tells when it has been read to its end.
struct Watched<B> {
    body: B,
    talk: Arc<Talk>,
}

impl<B: Body + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if self.body.is_end_stream() || matches!(frame, Poll::Ready(None)) {
            self.talk.is_unread.store(false, Ordering::Relaxed);
            // What was sent until now was leave to send the body.
            self.talk.is_answered.store(false, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body, with what its request holds.
pub(crate) struct Answered {
    body: AnyBody,
    _asked: Asked,
}

impl Answered {
    pub(crate) fn new(body: AnyBody, asked: Asked) -> Self {
        Self { body, _asked: asked }
    }
}

impl Body for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
