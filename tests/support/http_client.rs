//! A client of HTTP/1.1 over a bare socket, so that tests see every byte and can misbehave.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test or a bench that panics has failed, and says where")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than any answer here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// An answer.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    /// Names in small letters.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The answer, if it has this status.
    #[track_caller]
    pub(crate) fn gives(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.body);
        self.json()
    }

    /// The objects of its events.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        let lines = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

/// A request's bytes.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if method == "POST" {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text + "\r\n" + body
}

/// A connection.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { reader: BufReader::new(stream) }
    }

    /// Sends bytes; whether the other side took them.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.reader.get_mut().write_all(bytes.as_ref()).is_ok()
    }

    /// Says that nothing more is sent; answers still come.
    pub(crate) fn end_sending(&mut self) {
        self.reader.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// All that comes until the other side closes.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.reader.read_to_string(&mut rest).unwrap();
        rest
    }

    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line.trim_end_matches(['\r', '\n']).to_owned()),
        }
    }

    /// Status and headers, after the interim ones; none where the connection ends.
    pub(crate) fn head(&mut self) -> Option<(u16, Vec<(String, String)>)> {
        loop {
            let head = self.any_head()?;
            if head.0 != 100 {
                return Some(head);
            }
        }
    }

    fn any_head(&mut self) -> Option<(u16, Vec<(String, String)>)> {
        let status = self.line()?;
        let status = status.split(' ').nth(1)?.parse().ok()?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Some((status, headers));
            }
            let (name, value) = line.split_once(':')?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// One chunk of a chunked body; none at its end.
    pub(crate) fn chunk(&mut self) -> Option<String> {
        let len = usize::from_str_radix(&self.line()?, 16).ok()?;
        let mut bytes = vec![0; len + 2];
        self.reader.read_exact(&mut bytes).ok()?;
        bytes.truncate(len);
        // Characters are whole in every chunk.
        (len > 0).then(|| String::from_utf8(bytes).unwrap())
    }

    /// A whole answer; none where the connection ends before.
    pub(crate) fn answer(&mut self) -> Option<Got> {
        let (status, headers) = self.head()?;
        let find =
            |name: &str| headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone());
        let body = match (find("transfer-encoding"), find("content-length")) {
            (Some(_), _) => std::iter::from_fn(|| self.chunk()).collect(),
            (None, Some(len)) => {
                let mut bytes = vec![0; len.parse().ok()?];
                self.reader.read_exact(&mut bytes).ok()?;
                String::from_utf8(bytes).unwrap()
            }
            (None, None) => String::new(),
        };
        Some(Got { status, headers, body })
    }
}

/// A server's address, and plain questions to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client(pub(crate) SocketAddr);

impl Client {
    #[track_caller]
    pub(crate) fn ask(self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Got {
        let mut connection = Connection::open(self.0);
        connection.send(request(method, path, headers, body));
        connection.answer().expect("an answer")
    }

    #[track_caller]
    pub(crate) fn get(self, path: &str) -> Got {
        self.ask("GET", path, &[], "")
    }

    #[track_caller]
    pub(crate) fn post(self, path: &str, body: &Value) -> Got {
        self.ask("POST", path, &[("content-type", "application/json")], &body.to_string())
    }

    /// A connection on which this was asked and nothing read yet.
    pub(crate) fn begin(self, path: &str, body: &Value) -> Connection {
        let mut connection = Connection::open(self.0);
        connection.send(request("POST", path, &[], &body.to_string()));
        connection
    }

    /// How many slots work.
    #[track_caller]
    pub(crate) fn busy_slots(self) -> usize {
        let slots = self.get("/slots").gives(200);
        slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
    }

    /// Waits until so many slots work, for as long as `patience`.
    #[track_caller]
    pub(crate) fn wait_for_busy(self, wanted: usize, patience: Duration) {
        let begin = std::time::Instant::now();
        while self.busy_slots() != wanted {
            assert!(begin.elapsed() < patience, "{} slots work, wanted {wanted}", self.busy_slots());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
