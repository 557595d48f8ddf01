//! Sockets: accepted, limited in number and time, and closed in good order.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

use crate::limits::{CONNECTIONS_MAX, HEAD_BYTES_MAX, HEAD_TIME, WRITE_STALL};

/// How long to wait after a failed accept: only a shortage of descriptors or memory fails, and connections that end mend it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Sockets that listen, one an address.
pub(crate) async fn bind(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, (SocketAddr, io::Error)> {
    let mut listeners = Vec::with_capacity(addresses.len());
    for address in addresses {
        listeners.push(TcpListener::bind(address).await.map_err(|error| (*address, error))?);
    }
    Ok(listeners)
}

/// Serves until `stop` is done; then waits for the connections for `patience`, and leaves.
pub(crate) async fn serve(
    listeners: Vec<TcpListener>,
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
                    Ok((stream, _)) => {
                        let connection = connections.watch(connection(stream, router.clone()));
                        tokio::spawn(async move {
                            // A client that breaks off is its own affair.
                            let _ = connection.await;
                            drop(place);
                        });
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

/// A socket whose other side has to read.
type Socket = TokioIo<Pin<Box<TimeoutStream<TcpStream>>>>;

/// One connection.
fn connection(stream: TcpStream, router: Router) -> http1::Connection<Socket, TowerToHyperService<Router>> {
    // Tokens are to arrive when they are made, not when there are enough of them. Without it they only come later.
    let _ = stream.set_nodelay(true);
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_STALL));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES_MAX)
        // Names are the same however they are written; some clients look for those that everybody writes.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router))
}
