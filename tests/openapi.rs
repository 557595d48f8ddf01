//! The document that describes the server: it holds together, and its example requests do what it says.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/http_client.rs"]
mod http_client;
#[path = "support/stub_server.rs"]
mod stub_server;

use std::collections::BTreeSet;

use flint_serve::stub::Script;
use serde_json::Value;
use stub_server::Server;

const METHODS: [&str; 2] = ["get", "post"];

/// Each operation: its method, path, and what is said of it.
fn operations(document: &Value) -> Vec<(String, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    let of_path = |(path, item): (&String, _)| {
        let item: &Value = item;
        METHODS
            .iter()
            .filter_map(|method| Some((path.clone(), *method, item.get(method)?)))
            .collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

fn check_references(document: &Value, value: &Value) {
    match value {
        Value::Object(map) => {
            if let Some(target) = map.get("$ref") {
                let pointer = target.as_str().unwrap().strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{pointer} leads nowhere");
            }
            map.values().for_each(|value| check_references(document, value));
        }
        Value::Array(list) => list.iter().for_each(|value| check_references(document, value)),
        _ => {}
    }
}

#[test]
fn the_document_holds_together_and_its_examples_are_taken() {
    let server = Server::start(Script::default(), |_| {}).ready();
    let client = server.client;
    let document = client.get("/openapi.json").gives(200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    check_references(&document, &document);
    let mut ids = BTreeSet::new();
    for (path, method, operation) in operations(&document) {
        assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{path}");
        assert!(!operation["summary"].as_str().unwrap().is_empty());
        let responses = operation["responses"].as_object().unwrap();
        // Every part of a path that stands for something is described, with an example.
        let mut asked = path.clone();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            if parameter["in"] == "path" {
                let name = format!("{{{}}}", parameter["name"].as_str().unwrap());
                assert!(asked.contains(&name), "{path}");
                asked = asked.replace(&name, parameter["example"].as_str().unwrap());
            }
        }
        assert!(!asked.contains('{'), "{path}");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            if parameter["in"] == "query" && parameter["required"] == true {
                let (name, value) = (&parameter["name"], &parameter["example"]);
                asked += &format!("?{}={}", name.as_str().unwrap(), value.as_str().unwrap());
            }
        }
        let example = &operation["requestBody"]["content"]["application/json"]["example"];
        let body = if example.is_null() { "{}".to_owned() } else { example.to_string() };
        let got = client.ask(&method.to_uppercase(), &asked, &[("content-type", "application/json")], &body);
        assert!(
            responses.contains_key(&got.status.to_string()),
            "{method} {path}: {} {}",
            got.status,
            got.body
        );
        let Some(wanted) = responses.get("200") else { continue };
        assert_eq!(got.status, 200, "{method} {path}: {}", got.body);
        let kind = got.header("content-type").unwrap().split(';').next().unwrap();
        let schema = &wanted["content"][kind]["schema"];
        assert!(schema.is_object(), "{method} {path} answers {kind}");
        if kind == "application/json" {
            let schema = match schema["$ref"].as_str() {
                Some(reference) => document.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
                None => schema,
            };
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(got.json().get(name.as_str().unwrap()).is_some(), "{path} answers without {name}");
            }
        }
        // What is described as a stream is one.
        if wanted["content"]["text/event-stream"].is_object() {
            let mut example = example.clone();
            example["stream"] = true.into();
            let got = client.post(&asked, &example);
            assert_eq!((got.status, got.header("content-type")), (200, Some("text/event-stream")), "{path}");
        }
    }
    assert!(ids.len() > 15);
}
