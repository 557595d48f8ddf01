//! The server around a stand-in for the engine: who is let in, what is refused and how, and what clients that misbehave cost
//! others. No device is needed.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/http_client.rs"]
mod http_client;
#[path = "support/stub_server.rs"]
mod stub_server;

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flint_serve::stub::{Script, Stub};
use flint_serve::{Listen, Origins, ServeError};
use http_client::{Connection, request};
use serde_json::{Value, json};
use stub_server::{Server, options};

fn chat(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// So long that it is never done while a test looks.
fn endless() -> Script {
    Script {
        repeats: true,
        token_time: Duration::from_millis(5),
        context_len: 1_000_000,
        ..Script::default()
    }
}

/// How long a test waits for what comes at once on a machine that has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn what_makes_no_sense_is_refused_in_the_words_of_its_interface() {
    let server = Server::start(Script::default(), |_| {}).ready();
    let client = server.client;
    let post = |path: &str, body: &str| client.ask("POST", path, &[], body);
    let deep = format!(r#"{{"unknown":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    for body in ["", "{", "[]", "5", "{\"messages\":[}", "\u{feff}{}", deep.as_str()] {
        let error = post("/v1/chat/completions", body).gives(400);
        assert_eq!(error["error"]["type"], "invalid_request_error", "{error}");
        let error = post("/v1/messages", body).gives(400);
        assert_eq!(
            (&error["type"], &error["error"]["type"]),
            (&"error".into(), &"invalid_request_error".into())
        );
        assert!(error["request_id"].as_str().unwrap().starts_with("req_"));
    }
    let error = post("/v1/chat/completions", r#"{"messages":[{"role":"user"}],"temperature":-1}"#).gives(400);
    assert_eq!(error["error"]["param"], "temperature");
    assert_eq!(client.ask("DELETE", "/v1/models", &[], "").gives(405)["error"]["code"], 405);
    assert_eq!(client.get("/v1/nothing").gives(404)["error"]["type"], "not_found_error");
    assert_eq!(client.get("/v1/models/../../etc/passwd").status, 404);
    assert_eq!(client.get("/v1/models/%2e%2e").gives(404)["error"]["type"], "not_found_error");
    let error = post("/v1/embeddings", "{}").gives(501);
    assert_eq!(error["error"]["type"], "not_supported_error");
    let error = client.ask("POST", "/v1/completions", &[("content-encoding", "gzip")], "x").gives(415);
    assert!(error["error"]["message"].as_str().unwrap().contains("compressed"));
    // And it still works.
    client.post("/v1/chat/completions", &chat(json!({}))).gives(200);
}

#[test]
fn bodies_have_a_limit_and_are_not_read_beyond_it() {
    let server = Server::start(Script::default(), |options| options.body_bytes_max = 1000).ready();
    let mut connection = Connection::open(server.client.0);
    // Told too long: refused before a byte of it came.
    connection
        .send("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n");
    let got = connection.answer().unwrap();
    assert_eq!(got.gives(413)["error"]["code"], 413);
    // Not told: refused as soon as it is.
    let mut connection = Connection::open(server.client.0);
    connection.send("POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n");
    for _ in 0..20 {
        connection.send(format!("64\r\n{}\r\n", "x".repeat(100)));
    }
    assert_eq!(connection.answer().unwrap().gives(413)["error"]["type"], "request_too_large");
    // Both lengths, or none that is a number: smuggling or nonsense.
    for head in ["content-length: 3\r\ncontent-length: 4\r\n", "content-length: x\r\n"] {
        let mut connection = Connection::open(server.client.0);
        connection.send(format!("POST /tokenize HTTP/1.1\r\nhost: localhost\r\n{head}\r\nabcd"));
        assert_eq!(connection.head().unwrap().0, 400);
    }
    let mut connection = Connection::open(server.client.0);
    connection.send("POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n");
    assert_eq!(connection.head().map_or(400, |(status, _)| status), 400);
}

#[test]
fn who_sends_all_of_a_refused_body_first_hears_why() {
    let server = Server::start(Script::default(), |options| options.body_bytes_max = 1000).ready();
    // Far more than the buffers of the system hold, and with a key's check, too.
    let locked = Server::start(Script::default(), |options| options.keys = vec!["secret".to_owned()]).ready();
    let block = vec![b'x'; 1 << 20];
    for (address, status) in [(server.client.0, 413), (locked.client.0, 401)] {
        let mut connection = Connection::open(address);
        let head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 33554432\r\n\r\n";
        assert!(connection.send(head));
        for _ in 0..32 {
            assert!(connection.send(&block), "the connection was closed while the body was sent");
        }
        assert_eq!(connection.answer().unwrap().status, status);
        assert!(connection.head().is_none(), "a connection with a rest of a body is not used again");
    }
}

#[test]
fn a_client_that_closes_its_sending_side_is_answered() {
    let script = Script {
        chunk_time: Duration::from_millis(300),
        token_time: Duration::from_millis(5),
        ..Script::default()
    };
    let server = Server::start(script, |_| {}).ready();
    for (path, streams) in [
        ("/v1/chat/completions", true),
        ("/v1/chat/completions", false),
        ("/v1/messages", false),
        ("/tokenize", false),
    ] {
        let body = chat(json!({ "stream": streams, "max_tokens": 50, "content": "a" }));
        let mut connection = server.client.begin(path, &body);
        connection.end_sending();
        assert_eq!(connection.head().unwrap().0, 200, "{path}");
        let rest = connection.rest();
        assert!(rest.contains(if streams { "[DONE]" } else { "}" }), "{path}: {rest}");
    }
    // With what came before in the same breath.
    let mut connection = Connection::open(server.client.0);
    connection.send([request("GET", "/health", &[], ""), request("GET", "/v1/models", &[], "")].concat());
    connection.end_sending();
    assert_eq!(connection.answer().unwrap().status, 200);
    assert_eq!(connection.answer().unwrap().status, 200);
    // A request that is not whole is none.
    let mut connection = Connection::open(server.client.0);
    connection.send("POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{");
    connection.end_sending();
    assert!(connection.head().is_none_or(|(status, _)| status == 400));
}

#[test]
fn a_head_has_a_limit() {
    let server = Server::start(Script::default(), |_| {}).ready();
    let mut connection = Connection::open(server.client.0);
    let long = "x".repeat(100_000);
    connection.send(format!("GET /health HTTP/1.1\r\nhost: localhost\r\nx-long: {long}\r\n\r\n"));
    assert!(connection.head().is_none_or(|(status, _)| status == 431));
    server.client.get("/health").gives(200);
}

#[test]
fn a_body_that_does_not_come_holds_up_nobody() {
    let server = Server::start(Script::default(), |_| {}).ready();
    let mut slow = Connection::open(server.client.0);
    slow.send("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{");
    for _ in 0..5 {
        server.client.post("/v1/chat/completions", &chat(json!({}))).gives(200);
    }
    let begin = Instant::now();
    let got = slow.answer().unwrap();
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    assert!(got.gives(408)["error"]["message"].as_str().unwrap().contains("too slowly"));
}

#[test]
fn keys_are_checked_before_anything_is_read() {
    let server = Server::start(Script::default(), |options| options.keys = vec!["secret".to_owned()]);
    let client = server.client;
    let mut connection = Connection::open(client.0);
    connection.send("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n");
    let error = connection.answer().unwrap().gives(401);
    assert_eq!(error["error"]["type"], "authentication_error");
    let server = server.ready();
    assert_eq!(client.ask("GET", "/v1/models", &[("authorization", "Bearer wrong")], "").status, 401);
    for headers in [[("authorization", "Bearer secret")], [("x-api-key", "secret")]] {
        client.ask("GET", "/v1/models", &headers, "").gives(200);
    }
    client.get("/health").gives(200);
    assert_eq!(client.get("/metrics").status, 401);
    let error = client.ask("POST", "/v1/messages", &[], "{}").gives(401);
    assert_eq!(error["error"]["type"], "authentication_error");
    drop(server);
}

#[test]
fn pages_and_names_of_others_are_kept_out() {
    let server = Server::start(Script::default(), |_| {}).ready();
    let client = server.client;
    let ask = |host: &str, more: &str| {
        let mut connection = Connection::open(client.0);
        connection.send(format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\n{more}\r\n"));
        connection.answer().unwrap()
    };
    assert_eq!(ask("evil.example", "").gives(403)["error"]["type"], "permission_error");
    assert_eq!(ask("localhost", "origin: https://evil.example\r\n").status, 403);
    assert_eq!(ask("localhost", "").status, 200);
    let open = Server::start(Script::default(), |options| options.origins = Origins::Localhost).ready();
    let got = open.client.ask("OPTIONS", "/v1/chat/completions", &[("origin", "http://localhost:3000")], "");
    assert_eq!(got.status, 200);
    assert_eq!(got.header("access-control-allow-origin"), Some("http://localhost:3000"));
    assert!(got.header("access-control-allow-credentials").is_none());
    let origin = [("origin", "http://localhost.evil.com")];
    let got = open.client.ask("OPTIONS", "/v1/chat/completions", &origin, "");
    assert_eq!((got.status, got.header("access-control-allow-origin")), (200, None));
}

#[test]
fn a_full_queue_refuses_and_everything_else_answers() {
    let server = Server::start(endless(), |options| options.queue = 2).ready();
    let client = server.client;
    let stream = chat(json!({ "stream": true }));
    let running = client.begin("/v1/chat/completions", &stream);
    client.wait_for_busy(1, PATIENCE);
    let waiting: Vec<Connection> = (0..2)
        .map(|_| {
            let mut connection = client.begin("/v1/chat/completions", &stream);
            // Headers and the first event come at once, and a ping after a while, although nothing is computed.
            let (status, _) = connection.head().unwrap();
            assert_eq!(status, 200);
            assert!(connection.chunk().unwrap().contains("\"role\":\"assistant\""));
            assert_eq!(connection.chunk().unwrap(), ": ping\n\n");
            connection
        })
        .collect();
    let full = client.post("/v1/chat/completions", &stream);
    assert_eq!((full.status, full.header("retry-after")), (429, Some("5")));
    assert_eq!(full.json()["error"]["type"], "rate_limit_error");
    assert_eq!(client.post("/v1/messages", &chat(json!({ "max_tokens": 5 }))).status, 429);
    assert_eq!(client.get("/ready").status, 503);
    client.get("/health").gives(200);
    assert!(client.get("/metrics").body.contains("flint_rt_requests_waiting 2"));
    // A place is free as soon as one of those goes away.
    drop(waiting);
    let begin = Instant::now();
    while client.get("/ready").status != 200 {
        assert!(begin.elapsed() < PATIENCE);
    }
    drop(running);
    client.wait_for_busy(0, PATIENCE);
}

#[test]
fn who_goes_away_is_given_up_in_every_phase() {
    let prefill = Script { chunk_time: Duration::from_secs(600), ..endless() };
    for (phase, script) in [("prompt", prefill), ("reply", endless())] {
        let server = Server::start(script, |_| {}).ready();
        let client = server.client;
        for streams in [true, false] {
            for path in ["/v1/chat/completions", "/v1/messages"] {
                let connection =
                    client.begin(path, &chat(json!({ "stream": streams, "max_tokens": 900_000 })));
                client.wait_for_busy(1, PATIENCE);
                if phase == "reply" {
                    std::thread::sleep(Duration::from_millis(20));
                }
                drop(connection);
                client.wait_for_busy(0, PATIENCE);
            }
        }
        let text = client.get("/metrics").body;
        assert!(text.contains("flint_rt_requests_total{end=\"cancelled\"} 4"), "{text}");
    }
}

#[test]
fn many_clients_that_vanish_leave_nothing_behind() {
    let script = Script { token_time: Duration::from_millis(1), ..endless() };
    let server = Server::start(script, |options| (options.slots, options.queue) = (3, 64)).ready();
    let client = server.client;
    let threads: Vec<_> = (0..24_u64)
        .map(|number| {
            std::thread::spawn(move || {
                let body = chat(json!({ "stream": number % 2 == 0, "max_tokens": 200 }));
                let mut connection = client.begin("/v1/chat/completions", &body);
                std::thread::sleep(Duration::from_millis(number * 7 % 60));
                if number % 3 == 0 {
                    let _ = connection.head();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    client.wait_for_busy(0, PATIENCE);
    assert!(client.get("/metrics").body.contains("flint_rt_requests_waiting 0"));
    client.post("/v1/chat/completions", &chat(json!({ "max_tokens": 3 }))).gives(200);
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody() {
    let script =
        Script { reply: "word ".repeat(40), repeats: true, context_len: 100_000, ..Script::default() };
    let server = Server::start(script, |options| options.slots = 2).ready();
    let client = server.client;
    let deaf = client.begin("/v1/chat/completions", &chat(json!({ "stream": true, "max_tokens": 90_000 })));
    let begin = Instant::now();
    for _ in 0..5 {
        client.post("/v1/chat/completions", &chat(json!({ "max_tokens": 50 }))).gives(200);
    }
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    drop(deaf);
    client.wait_for_busy(0, PATIENCE);
}

#[test]
fn a_failed_step_is_an_event_after_the_headers_and_a_status_before() {
    let script = Script { fails_after: Some(3), ..Script::default() };
    let server = Server::start(script, |_| {}).ready();
    let got = server.client.post("/v1/chat/completions", &chat(json!({ "stream": true })));
    let events = got.events();
    assert_eq!((got.status, &events.last().unwrap()["error"]["type"]), (200, &"server_error".into()));
    assert!(events.len() > 2 && !got.body.contains("[DONE]"));
    let error = server.client.post("/v1/chat/completions", &chat(json!({}))).gives(500);
    assert_eq!(error["error"]["type"], "server_error");
    let got = server.client.post("/v1/messages", &chat(json!({ "stream": true, "max_tokens": 5 })));
    assert_eq!(got.events().last().unwrap()["error"]["type"], "api_error");
    let got = server.client.post("/v1/responses", &json!({ "input": "hi", "stream": true }));
    assert_eq!(got.events().last().unwrap()["type"], "response.failed");
}

/// The content of a chat's stream.
fn streamed(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

#[test]
fn replies_get_a_token_with_every_piece_of_a_long_prompt() {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let script = Script { chunk_len: 512, steps: Some(steps.clone()), ..endless() };
    let server = Server::start(script, |options| options.slots = 3).ready();
    let client = server.client;
    let stream = chat(json!({ "stream": true, "max_tokens": 4000 }));
    let mut streams: Vec<Connection> =
        (0..2).map(|_| client.begin("/v1/chat/completions", &stream)).collect();
    for stream in &mut streams {
        stream.head().unwrap();
        while !stream.chunk().unwrap().contains("content\":\"d") {}
    }
    let first = steps.lock().unwrap().len();
    let text = "word ".repeat(1500);
    let long = chat(json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 2 }));
    let tokens = client.post("/v1/chat/completions", &long).gives(200)["usage"]["prompt_tokens"].clone();
    let steps = steps.lock().unwrap()[first..].to_vec();
    let pieces: Vec<usize> = steps
        .iter()
        .filter(|rows| rows.iter().any(|&rows| rows > 1))
        .map(|rows| {
            assert_eq!(rows[..2], [1, 1], "both replies get a token");
            rows[2]
        })
        .collect();
    assert_eq!(json!(pieces.iter().sum::<usize>()), tokens, "{pieces:?}");
    assert!(pieces[0] <= 64 && pieces.len() >= 4 && pieces.iter().all(|&rows| rows <= 510), "{pieces:?}");
}

#[test]
fn one_that_leaves_a_step_harms_no_other() {
    let reply = "def add(a, b):\n    return a + b".repeat(4);
    let script = Script { reply: reply.clone(), token_time: Duration::from_millis(50), ..Script::default() };
    let server = Server::start(script, |options| options.slots = 3).ready();
    let client = server.client;
    let leaving: Vec<Connection> = (0..2)
        .map(|_| {
            let mut stream = client.begin("/v1/chat/completions", &chat(json!({ "stream": true })));
            stream.head().unwrap();
            stream.chunk().unwrap();
            stream
        })
        .collect();
    let staying =
        std::thread::spawn(move || client.post("/v1/chat/completions", &chat(json!({ "stream": true }))));
    client.wait_for_busy(3, PATIENCE);
    drop(leaving);
    assert_eq!(streamed(&staying.join().unwrap().events()), reply);
}

#[test]
fn a_step_that_fails_for_several_is_tried_for_each() {
    let reply = "def add(a, b):\n    return a + b".to_owned();
    let steps = Arc::new(Mutex::new(Vec::new()));
    let script = Script {
        reply: reply.clone(),
        tears_after: Some(0),
        token_time: Duration::from_millis(50),
        steps: Some(steps.clone()),
        ..Script::default()
    };
    let server = Server::start(script, |options| options.slots = 2).ready();
    let client = server.client;
    let threads: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(move || client.post("/v1/chat/completions", &chat(json!({}))).gives(200)))
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap()["choices"][0]["message"]["content"], reply.as_str());
    }
    assert!(steps.lock().unwrap().iter().any(|rows| rows.len() == 2), "there was a step of both");
}

#[test]
fn a_lost_device_is_told_to_everybody() {
    // Not before all three are in.
    let script = Script { dies_after: Some(600), ..endless() };
    let server = Server::start(script, |options| options.slots = 3).ready();
    let client = server.client;
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let body = chat(json!({ "stream": true }));
            std::thread::spawn(move || client.post("/v1/chat/completions", &body))
        })
        .collect();
    for thread in threads {
        let got = thread.join().unwrap();
        let events = got.events();
        let message = events.last().unwrap()["error"]["message"].as_str().unwrap();
        assert!(message.contains("GPU was lost"), "{message}");
    }
    client.post("/v1/chat/completions", &chat(json!({}))).gives(503);
}

#[test]
fn while_it_loads_it_says_so() {
    let (go, wait) = mpsc::channel::<()>();
    let server = Server::start_with(
        |_| {},
        move || {
            wait.recv().unwrap();
            Ok(Stub::new(Script::default()))
        },
    );
    let client = server.client;
    let health = client.get("/health");
    assert_eq!((health.status, health.header("retry-after")), (503, Some("5")));
    assert_eq!(health.json()["error"]["type"], "unavailable_error");
    for path in ["/v1/chat/completions", "/tokenize", "/v1/messages"] {
        assert_eq!(client.post(path, &json!({})).status, 503, "{path}");
    }
    assert_eq!(client.get("/v1/models").status, 503);
    assert_eq!(client.get("/metrics").status, 200);
    go.send(()).unwrap();
    let server = server.ready();
    client.post("/v1/chat/completions", &chat(json!({}))).gives(200);
    server.stop().unwrap();
}

#[test]
fn a_model_that_does_not_open_ends_it() {
    let mut server = Server::start_with(|_| {}, || Err("no device".to_owned()));
    let outcome = server.thread.take().unwrap().join().unwrap();
    assert!(matches!(outcome, Err(ServeError::Open(why)) if why == "no device"));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let server = Server::start(Script::default(), |_| {});
    let mut options = options();
    options.listen = vec![Listen::Address(server.client.0)];
    let error = flint_serve::run(options, |_| Ok::<_, String>(Stub::new(Script::default())), || false);
    let error = error.unwrap_err().to_string();
    assert!(error.contains(&server.client.0.to_string()) && error.contains("another --port"), "{error}");
}

#[test]
fn stopping_lets_replies_end_and_refuses_new_ones() {
    let reply = "def add(a, b):\n    return a + b".repeat(4);
    let script = Script { reply, token_time: Duration::from_millis(50), ..Script::default() };
    let server = Server::start(script, |options| options.stop_time = PATIENCE).ready();
    let client = server.client;
    let mut running = client.begin("/v1/chat/completions", &chat(json!({ "stream": true })));
    client.wait_for_busy(1, PATIENCE);
    let mut waiting = client.begin("/v1/chat/completions", &chat(json!({})));
    let begin = Instant::now();
    while !client.get("/metrics").body.contains("flint_rt_requests_waiting 1") {
        assert!(begin.elapsed() < PATIENCE);
    }
    let mut kept = Connection::open(client.0);
    kept.send(request("GET", "/health", &[], ""));
    assert_eq!(kept.answer().unwrap().status, 200);
    let stopped = std::thread::spawn(move || server.stop());
    assert_eq!(waiting.answer().unwrap().gives(503)["error"]["message"], "the server is stopping");
    let got = running.answer().unwrap();
    assert!(got.body.ends_with("data: [DONE]\n\n"), "{}", got.body);
    stopped.join().unwrap().unwrap();
}

#[test]
fn replies_that_take_too_long_are_broken_off_by_stopping() {
    let server = Server::start(endless(), |options| options.stop_time = Duration::from_millis(100)).ready();
    let client = server.client;
    let mut running = client.begin("/v1/chat/completions", &chat(json!({ "stream": true })));
    client.wait_for_busy(1, PATIENCE);
    let begin = Instant::now();
    server.stop().unwrap();
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    let got = running.answer().unwrap();
    assert_eq!(got.events().last().unwrap()["error"]["message"], "the server is stopping");
}

#[test]
fn calls_of_tools_reach_every_interface() {
    let reply = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, \"a\": 2}}\n</tool_call>";
    let server = Server::start(Script { reply: reply.to_owned(), ..Script::default() }, |_| {}).ready();
    let client = server.client;
    let function = json!({ "name": "add", "description": "Adds.", "parameters": { "type": "object" } });
    let tools = json!({ "tools": [{ "type": "function", "function": function }] });
    let got = client.post("/v1/chat/completions", &chat(tools.clone())).gives(200);
    let choice = &got["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let call = choice["message"]["tool_calls"][0].clone();
    assert_eq!(call["function"], json!({ "name": "add", "arguments": "{\"b\": 1, \"a\": 2}" }));
    let mut stream = tools.clone();
    stream["stream"] = true.into();
    let events = client.post("/v1/chat/completions", &chat(stream)).events();
    assert_eq!(events[1]["choices"][0]["delta"]["tool_calls"][0]["function"], call["function"]);
    assert_eq!(events[2]["choices"][0]["finish_reason"], "tool_calls");
    // The next turn begins with the very tokens of this one.
    let history = json!([
        { "role": "user", "content": "hi" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": call["id"], "content": "3" },
    ]);
    let mut next = tools;
    next["messages"] = history;
    let again = client.post("/v1/chat/completions", &chat(next)).gives(200);
    let held = got["usage"]["total_tokens"].as_u64().unwrap();
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], held);

    let tools = json!([{ "name": "add", "description": "Adds.", "input_schema": { "type": "object" } }]);
    let got = client.post("/v1/messages", &chat(json!({ "max_tokens": 99, "tools": tools }))).gives(200);
    assert_eq!((&got["stop_reason"], &got["content"][0]["input"]["a"]), (&"tool_use".into(), &2.into()));
    let mut function = function;
    function["type"] = "function".into();
    let got = client.post("/v1/responses", &json!({ "input": "hi", "tools": [function] })).gives(200);
    assert_eq!(
        (&got["output"][0]["type"], &got["output"][0]["name"]),
        (&"function_call".into(), &"add".into())
    );
}

#[test]
fn what_is_opened_as_a_call_becomes_one_whatever_the_model_would_write() {
    let script =
        Script { reply: "So: <tool_call>nonsense and more ".to_owned(), repeats: true, ..Script::default() };
    let server = Server::start(script, |_| {}).ready();
    let client = server.client;
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer", "minimum": 0, "maximum": 99 } },
        "required": ["a"], "additionalProperties": false });
    let is_right = |arguments: &Value| arguments["a"].as_u64().is_some_and(|a| a <= 99);
    let function = json!({ "name": "add", "parameters": schema });
    for temperature in [0, 1] {
        let ask = json!({ "tools": [{ "type": "function", "function": function }], "tool_choice": "auto",
            "parallel_tool_calls": false, "temperature": temperature, "max_tokens": 300 });
        let got = client.post("/v1/chat/completions", &chat(ask)).gives(200);
        let (choice, message) = (&got["choices"][0], &got["choices"][0]["message"]);
        assert_eq!((&choice["finish_reason"], &message["content"]), (&"tool_calls".into(), &"So:".into()));
        let call = &message["tool_calls"][0]["function"];
        assert_eq!(call["name"], "add");
        assert!(is_right(&serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap()), "{call}");
    }
    let own = json!([{ "name": "add", "input_schema": schema }]);
    let choice = json!({ "type": "auto", "disable_parallel_tool_use": true });
    let ask = json!({ "max_tokens": 300, "tools": own, "tool_choice": choice, "stream": true });
    let got = client.post("/v1/messages", &chat(ask)).body;
    assert!(got.contains("\"stop_reason\":\"tool_use\""), "{got}");
    let item = json!({ "type": "function", "name": "add", "parameters": schema });
    let ask = json!({ "input": "hi", "tools": [item], "max_output_tokens": 300 });
    let got = client.post("/v1/responses", &ask).gives(200);
    let calls: Vec<&Value> =
        got["output"].as_array().unwrap().iter().filter(|item| item["type"] == "function_call").collect();
    // One after the other, as this model goes on for ever.
    assert!(calls.len() > 1, "{got}");
    for call in calls {
        assert!(is_right(&serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap()), "{call}");
    }
    // What nobody has to call may have any form; what is strict has to have one that can be followed.
    for (is_strict, status) in [(false, 200), (true, 400)] {
        let function = json!({ "name": "odd", "strict": is_strict, "parameters": { "type": "nonsense" } });
        let ask = json!({ "tools": [{ "type": "function", "function": function }], "max_tokens": 3 });
        client.post("/v1/chat/completions", &chat(ask)).gives(status);
    }
}

#[test]
fn an_agents_conversation_finds_all_of_its_last_turn_again() {
    let call = "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \"a.py\"}}\n</tool_call>";
    let server =
        Server::start(Script { reply: call.to_owned(), ..Script::default() }, |options| options.slots = 2)
            .ready();
    let client = server.client;
    let function = json!({ "name": "read", "description": "Reads.", "parameters": { "type": "object" } });
    let mut messages = vec![
        json!({ "role": "system", "content": [{ "type": "text", "text": "You work on code. ".repeat(20) }] }),
        json!({ "role": "user", "content": "Look at a.py." }),
    ];
    let mut held = 0;
    for turn in 0..5 {
        let ask = json!({
            "messages": messages,
            "tools": [{ "type": "function", "function": function }],
            "stream": turn % 2 == 1,
            "stream_options": { "include_usage": true },
        });
        let got = client.post("/v1/chat/completions", &ask);
        let (calls, usage) = if turn % 2 == 1 {
            let events = got.events();
            (events[1]["choices"][0]["delta"]["tool_calls"].clone(), events.last().unwrap()["usage"].clone())
        } else {
            let answer = got.gives(200);
            (answer["choices"][0]["message"]["tool_calls"].clone(), answer["usage"].clone())
        };
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], held, "turn {turn}");
        held = usage["total_tokens"].as_u64().unwrap();
        // A title, asked for beside it, goes to the other slot.
        client.post("/v1/chat/completions", &chat(json!({ "max_tokens": 3 }))).gives(200);
        messages.push(json!({ "role": "assistant", "content": null, "tool_calls": calls }));
        messages.push(
            json!({ "role": "tool", "tool_call_id": calls[0]["id"], "content": format!("print({turn})") }),
        );
    }
}

#[test]
fn fields_of_the_wrong_kind_are_refused_by_name_on_every_path() {
    let server = Server::start(Script::default(), |_| {}).ready();
    let client = server.client;
    let message = json!([{ "role": "user", "content": "hi" }]);
    let bases = [
        ("/v1/chat/completions", json!({ "messages": message })),
        ("/v1/completions", json!({ "prompt": "hi" })),
        ("/completion", json!({ "prompt": "hi" })),
        ("/v1/messages", json!({ "messages": message, "max_tokens": 5 })),
        ("/v1/responses", json!({ "input": "hi" })),
    ];
    // Of all paths.
    let shared = [
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stream",
        "model",
        "min_p",
        "repetition_penalty",
        "cache_prompt",
    ];
    for (path, base) in &bases {
        let more: &[&str] = match *path {
            "/v1/chat/completions" => &[
                "messages",
                "tools",
                "tool_choice",
                "parallel_tool_calls",
                "response_format",
                "stream_options",
                "stop",
                "max_tokens",
                "logprobs",
                "chat_template_kwargs",
                "reasoning_effort",
                "json_schema",
                "n",
            ],
            "/v1/messages" => {
                &["messages", "system", "tools", "tool_choice", "thinking", "stop_sequences", "max_tokens"]
            }
            "/v1/responses" => {
                &["input", "tools", "tool_choice", "instructions", "text", "reasoning", "max_output_tokens"]
            }
            "/v1/completions" => {
                &["prompt", "stop", "max_tokens", "echo", "stream_options", "logprobs", "response_format"]
            }
            _ => &["prompt", "stop", "n_predict", "n_probs", "json_schema"],
        };
        // llama-server's own has no name of a model.
        let shared = shared.iter().filter(|name| *path != "/completion" || **name != "model");
        for name in shared.chain(more) {
            // No field takes all of these; each takes what it takes.
            let wrong = [json!({ "a": [] }), json!([[{}]]), json!("word"), json!(true), json!(-7.5)];
            let refused = wrong.iter().filter(|value| {
                let mut body = base.clone();
                body[*name] = (*value).clone();
                let got = client.post(path, &body);
                assert!(
                    got.status == 200 || got.status == 400,
                    "{path} {name} {value}: {} {}",
                    got.status,
                    got.body
                );
                let is_refused = got.status == 400;
                if is_refused {
                    assert!(got.body.contains(name), "{path} {name} {value}: {}", got.body);
                }
                is_refused
            });
            assert!(refused.count() >= 3, "{path} takes nearly everything for {name}");
        }
    }
}

#[test]
fn several_prompts_and_pings_of_every_interface() {
    let server =
        Server::start(Script { chunk_time: Duration::from_secs(1), ..Script::default() }, |_| {}).ready();
    let client = server.client;
    let got = client.post("/v1/completions", &json!({ "prompt": ["a", "b"], "stream": true }));
    let ends: Vec<_> = got
        .events()
        .iter()
        .filter(|event| !event["choices"][0]["finish_reason"].is_null())
        .cloned()
        .collect();
    assert_eq!(ends.len(), 2);
    assert_eq!((&ends[0]["choices"][0]["index"], &ends[1]["choices"][0]["index"]), (&0.into(), &1.into()));
    assert!(got.body.matches(": ping\n\n").count() >= 3, "{}", got.body);
    let got = client.post("/v1/completions", &json!({ "prompt": ["a", "b"] })).gives(200);
    assert_eq!(got["choices"].as_array().unwrap().len(), 2);
    let got = client.post("/v1/messages", &chat(json!({ "stream": true, "max_tokens": 50 })));
    assert!(got.body.contains("event: ping\n"), "{}", got.body);
    let got = client.post("/v1/chat/completions", &chat(json!({ "stream": true, "return_progress": true })));
    let progress: Vec<_> =
        got.events().iter().filter_map(|event| event.get("prompt_progress").cloned()).collect();
    let last = progress.last().unwrap();
    assert_eq!(last["processed"], last["total"]);
}
