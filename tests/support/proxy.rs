//! An http proxy on the loopback that takes CONNECT and notes what it was asked.

#![allow(clippy::unwrap_used, reason = "a server of ours, on the loopback")]

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// The proxy; it ends with the process.
pub(crate) struct Proxy {
    /// Host and port.
    pub(crate) address: String,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Connects everything to `target`, whatever name was asked for; `refusal` is a status to answer with instead.
    pub(crate) fn start(target: &str, refusal: Option<u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (log, target) = (Arc::clone(&heads), target.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, target) = (Arc::clone(&log), target.clone());
                thread::spawn(move || serve(stream, &target, refusal, &log));
            }
        });
        Self { address, heads }
    }

    /// The heads of all requests so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn serve(mut client: TcpStream, target: &str, refusal: Option<u16>, log: &Mutex<Vec<String>>) -> Option<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if client.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    log.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
    if let Some(status) = refusal {
        return write!(client, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n").ok();
    }
    let server = TcpStream::connect(target).ok()?;
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").ok()?;
    let (mut from_client, mut to_server) = (client.try_clone().ok()?, server.try_clone().ok()?);
    thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let (mut from_server, mut to_client) = (server, client);
    let _ = io::copy(&mut from_server, &mut to_client);
    to_client.shutdown(Shutdown::Both).ok()
}
