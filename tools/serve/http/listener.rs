//! Sockets: accepted, limited in number and time, and closed in good order.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulConnection, GracefulShutdown};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::socket::{Socket, Stream};
use super::talk::{self, Answered, Talk};
use super::unix::{self, SocketFile};
use crate::limits::{CONNECTIONS_MAX, HEAD_BYTES_MAX, HEAD_TIME};

/// How long to wait after a failed accept: only a shortage of descriptors or memory fails, and connections that end mend it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where to listen.
#[derive(Debug)]
pub enum Listen {
    /// On an address.
    Address(SocketAddr),
    /// On a socket file, which only its owner may use; it is made, and removed at the end.
    File(PathBuf),
    /// On a socket of an address that somebody else has opened.
    OpenAddress(std::net::TcpListener),
    /// On a socket file that somebody else has opened.
    OpenFile(std::os::unix::net::UnixListener),
}

impl Listen {
    /// The address, where it has one.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::OpenAddress(listener) => listener.local_addr().ok(),
            Self::File(_) | Self::OpenFile(_) => None,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::File(path) => path.display().fmt(f),
            Self::OpenAddress(_) | Self::OpenFile(_) => f.write_str("a socket that was handed over"),
        }
    }
}

enum Accepting {
    Address(TcpListener),
    File(UnixListener),
}

/// A socket that listens.
pub(crate) struct Listener {
    accepting: Accepting,
    /// Removed with the listener.
    _file: Option<SocketFile>,
    /// Where, for people.
    pub(crate) shown: String,
}

/// Sockets that listen, one a place.
pub(crate) async fn bind(places: Vec<Listen>) -> Result<Vec<Listener>, (Listen, io::Error)> {
    let mut listeners = Vec::with_capacity(places.len());
    for place in places {
        let listener = match &place {
            Listen::Address(address) => of_address(TcpListener::bind(address).await),
            Listen::OpenAddress(listener) => of_address(listener.try_clone().and_then(|listener| {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener)
            })),
            Listen::File(path) => unix::bind(path).map(|(listener, file)| Listener {
                accepting: Accepting::File(listener),
                _file: Some(file),
                shown: format!("unix:{}", path.display()),
            }),
            Listen::OpenFile(listener) => listener.try_clone().and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(Listener {
                    accepting: Accepting::File(UnixListener::from_std(listener)?),
                    _file: None,
                    shown: "a socket file that was handed over".to_owned(),
                })
            }),
        };
        listeners.push(listener.map_err(|error| (place, error))?);
    }
    Ok(listeners)
}

fn of_address(listener: io::Result<TcpListener>) -> io::Result<Listener> {
    let listener = listener?;
    let shown = format!("http://{}", listener.local_addr()?);
    Ok(Listener { accepting: Accepting::Address(listener), _file: None, shown })
}

/// A client's socket.
enum Accepted {
    Address(TcpStream),
    File(UnixStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<Accepted> {
        Ok(match &self.accepting {
            Accepting::Address(listener) => Accepted::Address(listener.accept().await?.0),
            Accepting::File(listener) => Accepted::File(listener.accept().await?.0),
        })
    }
}

/// Serves until `stop` is done; then waits for the connections for `patience`, and leaves.
pub(crate) async fn serve(
    listeners: Vec<Listener>,
    router: Router,
    stop: impl Future<Output = ()>,
    patience: Duration,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let connections = Arc::new(GracefulShutdown::new());
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let (places, connections, router) = (places.clone(), connections.clone(), router.clone());
        accepting.spawn(async move {
            loop {
                let place = places.clone().acquire_owned().await;
                let Ok(place) = place else { return };
                match listener.accept().await {
                    Ok(Accepted::Address(stream)) => {
                        // Tokens are to arrive when they are made, not when there are enough of them. Without it they only come
                        // later.
                        let _ = stream.set_nodelay(true);
                        let connection = connection(stream, Talk::new(false), router.clone());
                        spawn(connections.watch(connection), place);
                    }
                    Ok(Accepted::File(stream)) => {
                        let connection = connection(stream, Talk::new(true), router.clone());
                        spawn(connections.watch(connection), place);
                    }
                    Err(error) => {
                        tracing::warn!("a connection could not be accepted: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
    }
    stop.await;
    accepting.shutdown().await;
    if let Some(connections) = Arc::into_inner(connections) {
        let _ = tokio::time::timeout(patience, connections.shutdown()).await;
    }
}

fn spawn(
    connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
    place: tokio::sync::OwnedSemaphorePermit,
) {
    tokio::spawn(async move {
        // A client that breaks off is its own affair.
        let _ = connection.await;
        drop(place);
    });
}

/// One connection.
fn connection<S: Stream>(
    stream: S,
    talk: Arc<Talk>,
    router: Router,
) -> impl GracefulConnection<Error = hyper::Error> + Send + 'static {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        // Names are the same however they are written; some clients look for those that everybody writes.
        .title_case_headers(true)
        .serve_connection(
            TokioIo::new(Socket::new(stream, talk.clone())),
            Requests { talk, router: TowerToHyperService::new(router) },
        )
}

/// The requests of one connection.
struct Requests {
    talk: Arc<Talk>,
    router: TowerToHyperService<Router>,
}

impl Service<Request<Incoming>> for Requests {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (request, asked) = talk::take(&self.talk, request);
        let answer = self.router.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Body::new(Answered::new(body, asked)))) })
    }
}
