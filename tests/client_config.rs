//! `flint-rt client-config`: every client's text is what its format says, and holds what was asked for or what the server says.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/program.rs"]
mod program;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use program::{Ran, program};
use serde_json::Value;

fn run(args: &[&str]) -> Ran {
    Ran::new(program(&[]).arg("client-config").args(args).stdin(Stdio::null()).output().unwrap())
}

/// Whether this machine has `program`, which would read `text` from standard input and find no fault.
fn reads(program: &str, args: &[&str], text: &str) {
    let spawned = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else { return eprintln!("SKIPPED {program}, which is not here") };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program}: {}\n{text}", String::from_utf8_lossy(&output.stderr));
}

/// Every text of a value, at any depth.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(list) => list.iter().for_each(|value| texts(value, found)),
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            found.push(key.clone());
            texts(value, found);
        }),
        Value::Number(number) => found.push(number.to_string()),
        _ => {}
    }
}

/// The texts of a piece in a format of data.
fn data(format: &str, text: &str) -> Option<Vec<String>> {
    let value: Value = match format {
        "json" => serde_json::from_str(text).unwrap(),
        "toml" => toml::from_str(text).unwrap(),
        "yaml" => serde_saphyr::from_str(text).unwrap(),
        _ => return None,
    };
    let mut found = Vec::new();
    texts(&value, &mut found);
    Some(found)
}

#[test]
fn every_client_is_set_up_in_its_own_format_with_what_was_asked_for() {
    let list = run(&["--json"]).gives(0).json();
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|client| client["name"].as_str().unwrap()).collect();
    for wanted in [
        "aider",
        "cline",
        "continue",
        "codex",
        "claude-code",
        "opencode",
        "pi",
        "qwen-code",
        "zed",
        "openai-python",
        "openai-node",
        "anthropic-python",
        "anthropic-node",
        "langchain",
        "litellm",
        "systemd",
    ] {
        assert!(names.contains(&wanted), "{wanted}");
    }
    // Characters that mean something in one format or another.
    let (key, model) = ("k'e\"y$\\ {}", "my: \"model\" #1");
    // A port on which nobody answers.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    for name in names {
        let args = [name, "--json", "--port", &port, "--api-key", key, "--model", model, "-c", "12345"];
        let told = run(&args).gives(0).json();
        assert_eq!(told["server"]["is_running"], false);
        let pieces = told["pieces"].as_array().unwrap();
        let mut held = String::new();
        for piece in pieces {
            let (format, text) = (piece["format"].as_str().unwrap(), piece["text"].as_str().unwrap());
            assert!(!piece["place"].as_str().unwrap().is_empty());
            match data(format, text) {
                Some(found) => held.push_str(&found.join("\n")),
                None => held.push_str(text),
            }
            match format {
                "shell" => reads("sh", &["-n"], text),
                "python" => reads("python3", &["-c", "import ast,sys; ast.parse(sys.stdin.read())"], text),
                "javascript" => reads("node", &["--check", "--input-type=module", "-"], text),
                _ => {}
            }
        }
        assert!(held.contains(&format!("127.0.0.1:{port}")) || name == "systemd", "{name}: {held}");
        if name == "systemd" {
            assert!(held.contains("Type=notify") && held.contains(&format!("--port {port}")), "{held}");
            continue;
        }
        // As data, or as each language writes it.
        let shapes = |text: &str| {
            [text.to_owned(), Value::from(text).to_string(), format!("'{}'", text.replace('\'', "'\\''"))]
        };
        assert!(shapes(key).iter().any(|key| held.contains(key)), "{name}: {held}");
        assert!(shapes(model).iter().any(|model| held.contains(model)), "{name}: {held}");
        // Without --json the text alone is on standard output.
        let plain = run(&[&[name], &args[2..]].concat()).gives(0);
        assert!(plain.stdout.starts_with(pieces[0]["text"].as_str().unwrap().trim_end()), "{name}");
        assert!(plain.stderr.contains(pieces[0]["place"].as_str().unwrap()), "{name}");
    }
    for (name, wanted) in [("opencode", "12345"), ("zed", "12345"), ("continue", "12345"), ("codex", "12345")]
    {
        let told = run(&[name, "--json", "--port", &port, "-c", wanted]).gives(0).json();
        let piece = &told["pieces"][0];
        let found = data(piece["format"].as_str().unwrap(), piece["text"].as_str().unwrap()).unwrap();
        assert!(found.iter().any(|text| text == wanted), "{name}: {found:?}");
    }
}

#[test]
fn a_server_that_runs_says_its_model_and_context() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 4096];
        let len = stream.read(&mut bytes).unwrap();
        let body = r#"{"model_alias":"from-props","default_generation_settings":{"n_ctx":77777}}"#;
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    });
    let told = run(&["opencode", "--json", "--port", &port, "--api-key", "secret"]).gives(0).json();
    assert_eq!(told["server"]["is_running"], true);
    let text = told["pieces"][0]["text"].as_str().unwrap();
    let settings: Value = serde_json::from_str(text).unwrap();
    assert_eq!(settings["provider"]["flint-rt"]["models"]["from-props"]["limit"]["context"], 77777);
    let asked = asked.join().unwrap();
    assert!(asked.starts_with("GET /props") && asked.contains("Bearer secret"), "{asked}");
}

#[test]
fn names_that_are_unknown_are_refused_with_those_that_are() {
    run(&["emacs"]).refuses(2, "wanted one of aider");
    let list = run(&[]).gives(0);
    assert!(list.stdout.lines().count() >= 15 && list.stdout.contains("codex"));
}
