//! A server of one file on the loopback that fails as a script says.
//!
//! In: the file's bytes, and for each request a [`Fault`]. Out: its address, and what was asked of it. It speaks as much
//! HTTP/1.1 as a download needs, one request a connection.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a server of ours, on the loopback")]

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What goes wrong with one request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// The connection is closed before anything is said.
    Refuse,
    /// The connection is closed after that many bytes of the body.
    Drop(usize),
    /// After that many bytes of the body nothing more is said.
    Stall(usize),
    /// The head is never sent.
    Mute,
    /// After that many bytes of the body the others come one by one, 50 ms apart.
    Drip(usize),
    /// The body comes in pieces of that many bytes, a millisecond apart.
    Slow(usize),
    /// 206 for that many bytes only.
    Short(usize),
    /// 200 and the whole file, whatever was asked for.
    Whole,
    /// This status with these header lines, and no body.
    Status(u16, &'static str),
    /// To another address, which is where the path goes on.
    Redirect(u16, String),
    /// A redirect with what a hub says of its file.
    HubRedirect(String, String),
    /// The part is said to begin so many bytes later than it does.
    ShiftedRange(i64),
    /// The part is of a file so many bytes longer.
    OtherTotal(u64),
    /// `Content-Length` is so many bytes more than the part.
    OtherLength(i64),
    /// 206 without `Content-Range`.
    NoRange,
    /// 200 without `Content-Length`, to the end of the connection.
    NoLength,
    /// Said to be compressed.
    Gzip,
    /// Chunks in place of a `Content-Length`.
    Chunked,
    /// Another file with another tag.
    Other(Arc<Vec<u8>>),
    /// The same file with another tag.
    OtherTag,
    /// The same file without tag and date.
    NoTag,
    /// Not HTTP.
    Garbage,
}

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// From 0.
    pub(crate) number: usize,
    pub(crate) path: String,
    pub(crate) host: String,
    pub(crate) first_byte: Option<usize>,
    pub(crate) authorization: Option<String>,
    pub(crate) if_range: Option<String>,
    pub(crate) accept_encoding: Option<String>,
}

/// The server; it ends with the process.
pub(crate) struct FaultServer {
    address: String,
    scheme: &'static str,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// A connection, in the clear or not.
trait Line: Read + Write {
    fn socket(&self) -> &TcpStream;
}

impl Line for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl Line for StreamOwned<ServerConnection, TcpStream> {
    fn socket(&self) -> &TcpStream {
        &self.sock
    }
}

impl FaultServer {
    /// Serves `content`; `fault` decides over each request.
    pub(crate) fn start(
        content: Arc<Vec<u8>>,
        fault: impl Fn(&Asked) -> Fault + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(None, move |_| Some(Arc::clone(&content)), fault)
    }

    /// The same by https, with the certificate of `tls`.
    pub(crate) fn start_tls(
        tls: Arc<ServerConfig>,
        content: Arc<Vec<u8>>,
        fault: impl Fn(&Asked) -> Fault + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(Some(tls), move |_| Some(Arc::clone(&content)), fault)
    }

    /// Serves what `file` gives for each path, and 404 where that is nothing.
    pub(crate) fn start_files(
        file: impl Fn(&str) -> Option<Arc<Vec<u8>>> + Send + Sync + 'static,
        fault: impl Fn(&Asked) -> Fault + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(None, file, fault)
    }

    fn start_with(
        tls: Option<Arc<ServerConfig>>,
        file: impl Fn(&str) -> Option<Arc<Vec<u8>>> + Send + Sync + 'static,
        fault: impl Fn(&Asked) -> Fault + Send + Sync + 'static,
    ) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, fault, file) = (Arc::clone(&asked), Arc::new(fault), Arc::new(file));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let (file, log, fault) = (Arc::clone(&file), Arc::clone(&log), Arc::clone(&fault));
                let tls = tls.clone();
                // What the client does to the connection is its own business.
                thread::spawn(move || match tls {
                    None => serve(stream, &*file, &log, &*fault),
                    Some(tls) => {
                        let connection = ServerConnection::new(tls).unwrap();
                        serve(StreamOwned::new(connection, stream), &*file, &log, &*fault)
                    }
                });
            }
        });
        Self { address, scheme, asked }
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A URL of `path`, which begins with a slash.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    /// All that was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: impl Line,
    file: &dyn Fn(&str) -> Option<Arc<Vec<u8>>>,
    log: &Mutex<Vec<Asked>>,
    fault: &dyn Fn(&Asked) -> Fault,
) -> Option<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
        // A handshake of TLS; this is no such server.
        if head == [0x16] {
            return stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").ok();
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let header = |name: &str| {
        head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    };
    let asked = {
        let mut log = log.lock().unwrap();
        let asked = Asked {
            number: log.len(),
            path: head.split_whitespace().nth(1)?.to_owned(),
            host: header("host").unwrap_or_default(),
            first_byte: header("range")
                .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()),
            authorization: header("authorization"),
            if_range: header("if-range"),
            accept_encoding: header("accept-encoding"),
        };
        log.push(asked.clone());
        asked
    };
    match file(&asked.path) {
        Some(content) => answer(&mut stream, &content, &asked, fault(&asked)),
        None => answer(&mut stream, &[], &asked, Fault::Status(404, "")),
    }
}

fn answer(stream: &mut dyn Line, content: &[u8], asked: &Asked, fault: Fault) -> Option<()> {
    let first = asked.first_byte.unwrap_or(0);
    let (content, tag) = match &fault {
        Fault::Other(other) => (other.as_slice(), "\"other\""),
        Fault::OtherTag => (content, "\"other\""),
        _ => (content, "\"first\""),
    };
    let mut head = String::new();
    let mut say = |line: &str| head.push_str(&format!("{line}\r\n"));
    match &fault {
        Fault::Refuse => return None,
        Fault::Mute => {
            wait_for_hangup(stream);
            return None;
        }
        Fault::Garbage => {
            stream.write_all(b"EHLO this is a mail server\r\n\r\n").ok()?;
            return None;
        }
        Fault::Status(status, lines) => {
            say(&format!("HTTP/1.1 {status} Told"));
            lines.lines().for_each(&mut say);
            say("Content-Length: 0\r\nConnection: close\r\n");
            return stream.write_all(head.as_bytes()).ok();
        }
        Fault::Redirect(status, place) => {
            say(&format!("HTTP/1.1 {status} Elsewhere"));
            say(&format!("Location: {place}\r\nContent-Length: 0\r\nConnection: close\r\n"));
            return stream.write_all(head.as_bytes()).ok();
        }
        Fault::HubRedirect(place, sha256) => {
            say("HTTP/1.1 302 Found");
            say(&format!(
                "Location: {place}\r\nX-Linked-Etag: \"{sha256}\"\r\nX-Linked-Size: {}",
                content.len()
            ));
            say("X-Repo-Commit: 0123456789\r\nContent-Length: 0\r\nConnection: close\r\n");
            return stream.write_all(head.as_bytes()).ok();
        }
        _ => {}
    }
    let is_other_file =
        asked.if_range.as_deref().is_some_and(|wanted| wanted.starts_with('"') && wanted != tag);
    let is_whole =
        matches!(fault, Fault::Whole | Fault::NoLength) || asked.first_byte.is_none() || is_other_file;
    if !is_whole && first >= content.len() {
        say("HTTP/1.1 416 Beyond");
        say(&format!(
            "Content-Range: bytes */{}\r\nContent-Length: 0\r\nConnection: close\r\n",
            content.len()
        ));
        return stream.write_all(head.as_bytes()).ok();
    }
    let body = if is_whole { content } else { &content[first..] };
    let body = if let Fault::Short(count) = fault { &body[..body.len().min(count)] } else { body };
    say(if is_whole { "HTTP/1.1 200 OK" } else { "HTTP/1.1 206 Partial Content" });
    if !matches!(fault, Fault::NoTag) {
        say(&format!("ETag: {tag}\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT"));
    }
    if !is_whole && fault != Fault::NoRange {
        let shift = if let Fault::ShiftedRange(shift) = fault { shift } else { 0 };
        let more = if let Fault::OtherTotal(more) = fault { more } else { 0 };
        let said = i64::try_from(first).unwrap() + shift;
        say(&format!(
            "Content-Range: bytes {said}-{}/{}",
            said + i64::try_from(body.len()).unwrap() - 1,
            content.len() as u64 + more
        ));
    }
    if fault == Fault::Gzip {
        say("Content-Encoding: gzip");
    }
    match fault {
        Fault::NoLength => {}
        Fault::Chunked => say("Transfer-Encoding: chunked"),
        Fault::OtherLength(more) => {
            say(&format!("Content-Length: {}", i64::try_from(body.len()).unwrap() + more));
        }
        _ => say(&format!("Content-Length: {}", body.len())),
    }
    say("Connection: close\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    match fault {
        Fault::Drop(count) => stream.write_all(&body[..body.len().min(count)]).ok(),
        Fault::Stall(count) => {
            stream.write_all(&body[..body.len().min(count)]).ok()?;
            wait_for_hangup(stream);
            None
        }
        Fault::Drip(count) => {
            let (at_once, drops) = body.split_at(body.len().min(count));
            stream.write_all(at_once).ok()?;
            drops.chunks(1).try_for_each(|drop| {
                thread::sleep(Duration::from_millis(50));
                stream.write_all(drop).ok()
            })
        }
        Fault::Slow(count) => body.chunks(count).try_for_each(|piece| {
            thread::sleep(Duration::from_millis(1));
            stream.write_all(piece).ok()
        }),
        Fault::Chunked => {
            for piece in body.chunks(100_000) {
                let mut size = String::new();
                write!(size, "{:x}\r\n", piece.len()).unwrap();
                stream.write_all(&[size.as_bytes(), piece, b"\r\n"].concat()).ok()?;
            }
            stream.write_all(b"0\r\n\r\n").ok()
        }
        _ => stream.write_all(body).ok(),
    }
}

fn wait_for_hangup(stream: &mut dyn Line) {
    stream.socket().set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = stream.read(&mut [0]);
}
