//! `flint-rt serve` among its neighbours: socket files, service managers, memory that is given back, logs, settings that make no sense.
//!
//! Tests that open a device say so and pass where there is none.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/http_client.rs"]
mod http_client;
#[path = "support/program.rs"]
mod program;
#[path = "support/served.rs"]
mod served;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use http_client::Client;
use serde_json::{Value, json};
use served::{Server, command, run};

const PATIENCE: Duration = Duration::from_secs(120);

fn chat(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }], "temperature": 0, "max_tokens": 16 })
}

/// Asks by a socket file, with a host that no address check would let pass.
fn ask_file(path: &Path, method_and_path: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    let head = format!("{method_and_path} HTTP/1.1\r\nhost: proxy.example\r\nconnection: close\r\n");
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Waits until `is_so`.
#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_socket_file_is_its_owners_alone_and_goes_with_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flint.sock");
    // Left behind by one that was killed.
    drop(UnixListener::bind(&path).unwrap());
    let file = path.to_str().unwrap();
    let Some(server) =
        Server::start("a_socket_file_is_its_owners_alone_and_goes_with_the_server", &["--socket", file])
    else {
        return;
    };
    assert!(server.said.contains(&format!("listening on unix:{file}")), "{}", server.said);
    let metadata = std::fs::symlink_metadata(&path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!(ask_file(&path, "GET /health", "").starts_with("HTTP/1.1 200 OK"));
    let answer = ask_file(&path, "POST /v1/chat/completions", &chat("hi").to_string());
    assert!(answer.contains("chat.completion"), "{answer}");
    // Where somebody listens, nobody else does.
    run(&["serve", "--socket", file]).refuses(1, "another program listens there");
    let (code, said) = server.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(!path.exists());
    // What is no socket is left alone.
    std::fs::write(&path, "mine").unwrap();
    run(&["serve", "--socket", file]).refuses(1, "no socket");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn a_service_manager_hears_what_happens() {
    if run(&["devices"]).code != Some(0) {
        return eprintln!("SKIPPED a_service_manager_hears_what_happens, no Vulkan device");
    }
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut serve = command(&home, &["serve", "--port", "0"]);
    serve.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000").env_remove("WATCHDOG_PID");
    let server = Server::run(serve, home);
    let wait_for = |wanted: &str| {
        let mut bytes = [0; 4096];
        loop {
            let len = manager.recv(&mut bytes).unwrap();
            if String::from_utf8_lossy(&bytes[..len]).lines().any(|line| line == wanted) {
                return;
            }
        }
    };
    wait_for("READY=1");
    wait_for("WATCHDOG=1");
    wait_for("WATCHDOG=1");
    let (code, said) = server.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    wait_for("STOPPING=1");
}

#[test]
fn sockets_that_are_handed_over_are_served() {
    if run(&["devices"]).code != Some(0) {
        return eprintln!("SKIPPED sockets_that_are_handed_over_are_served, no Vulkan device");
    }
    let home = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let plain = command(&home, &["serve"]);
    // The first socket is descriptor 3, and the variables name the process, which the shell becomes.
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" serve"])
        .arg(plain.get_program());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
        .stdin(OwnedFd::from(listener))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let server = Server::run(shell, home);
    Client(address).get("/health").gives(200);
    drop(server);
}

/// Memory that a process holds, in KiB.
fn resident_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn memory_is_given_back_when_nobody_asks_and_the_next_request_has_it_again() {
    let args = ["--idle-release", "2", "--ping", "1"];
    let test = "memory_is_given_back_when_nobody_asks_and_the_next_request_has_it_again";
    let Some(server) = Server::start(test, &args) else { return };
    let client = server.client;
    let first = client.post("/v1/chat/completions", &chat("Write a loop.")).gives(200);
    let held = resident_kib(&server);
    for round in 1..=2_u32 {
        wait_until(|| client.get("/health").gives(200)["engine"] == "released");
        let released = resident_kib(&server);
        // The program and the driver keep theirs, which is most of it with a model of 10 MB.
        assert!(released + (32 << 10) < held, "{released} KiB of {held} are still held");
        assert_eq!(client.get("/props").gives(200)["is_sleeping"], true);
        assert_eq!(client.get("/ready").status, 200);
        let metrics = client.get("/metrics").body;
        assert!(metrics.contains("flint_rt_engine_open 0"), "{metrics}");
        assert!(metrics.contains(&format!("flint_rt_engine_releases_total {round}")), "{metrics}");
        // A stream begins at once, before anything is open; whole answers wait.
        let again = if round == 1 {
            let mut body = chat("Write a loop.");
            body["stream"] = true.into();
            let events = client.post("/v1/chat/completions", &body).events();
            events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
        } else {
            let answer = client.post("/v1/chat/completions", &chat("Write a loop.")).gives(200);
            answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        };
        assert_eq!(first["choices"][0]["message"]["content"], again);
        // Where two seconds have passed meanwhile, it has been given back once more.
        let metrics = client.get("/metrics").body;
        let is_open = metrics.contains("flint_rt_engine_open 1");
        let was_open = metrics.contains(&format!("flint_rt_engine_releases_total {}", round + 1));
        assert!(is_open || was_open, "{metrics}");
    }
    let (code, said) = server.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_released_server_stops_at_once() {
    let Some(server) = Server::start("a_released_server_stops_at_once", &["--idle-release", "1"]) else {
        return;
    };
    let client = server.client;
    wait_until(|| client.get("/health").gives(200)["engine"] == "released");
    let begin = Instant::now();
    let (code, said) = server.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}

#[test]
fn a_request_leaves_one_line_of_numbers_and_none_of_its_words() {
    let (key, word, wrong) = ("sesame-key-4711", "xylophone", "wrong-key-0815");
    let args = ["--log-format", "json", "--api-key", key];
    let test = "a_request_leaves_one_line_of_numbers_and_none_of_its_words";
    let Some(server) = Server::start(test, &args) else { return };
    let client = server.client;
    let bearer = format!("Bearer {key}");
    let ask =
        |path: &str, body: &Value| client.ask("POST", path, &[("authorization", &bearer)], &body.to_string());
    ask("/v1/chat/completions", &chat(word)).gives(200);
    ask("/v1/messages", &chat(word)).gives(200);
    // What is refused, at the door and behind it, with the word in every place.
    client
        .ask("POST", "/v1/chat/completions", &[("authorization", &format!("Bearer {wrong}"))], "{}")
        .gives(401);
    ask("/v1/chat/completions", &json!({ "messages": word, word: word })).gives(400);
    ask("/v1/chat/completions", &json!({ "messages": [{ "role": word, "content": word }] })).gives(400);
    ask(&format!("/{word}"), &json!({})).gives(404);
    ask("/tokenize", &json!({ "content": word })).gives(200);
    let mut schema = chat(word);
    schema["response_format"] =
        json!({ "type": "json_schema", "json_schema": { "schema": { "type": word } } });
    assert_eq!(ask("/v1/chat/completions", &schema).status, 400);
    let (code, said) = server.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    for secret in [key, word, wrong] {
        assert!(!said.contains(secret), "{secret} is in the log: {said}");
    }
    let lines: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let requests: Vec<&Value> = lines.iter().filter(|line| line["message"] == "request").collect();
    assert_eq!(requests.len(), 2, "{said}");
    for line in requests {
        for key in ["prompt_tokens", "reply_tokens", "first_token_ms", "tokens_a_second", "hit_rate"] {
            assert!(line[key].as_f64().is_some_and(|number| number > 0.0), "{key}: {line}");
        }
        assert!(
            line["cached_tokens"].is_u64() && line["read_bytes"].is_u64() && line["queued_ms"].is_u64(),
            "{line}"
        );
        assert_eq!(line["end"], "length");
    }
    // What was refused has a line, too: where, and why by its number.
    let refused: Vec<u64> = lines.iter().filter_map(|line| line["status"].as_u64()).collect();
    assert_eq!(refused, [401, 400, 400, 404, 400], "{said}");
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for (args, what) in [
        (["--alias", ""], "a name"),
        (["--alias", " "], "a name"),
        (["--body-limit", "0"], "1024 or more"),
        (["-n", "0"], "1..=4294967295"),
        (["--idle-release", "0"], "1..=31536000"),
    ] {
        let ran = run(&[&["serve"], args.as_slice()].concat());
        assert_eq!(ran.code, Some(2), "{args:?}");
        assert!(ran.stderr.contains(what), "{args:?}: {}", ran.stderr);
    }
    // A file without an end is read as far as a template may go.
    run(&["serve", "--chat-template", "/dev/zero"]).refuses(2, "longer than 1048576 bytes");
}
