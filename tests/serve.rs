//! `flint-rt serve` by the real binary with the bundled model: every interface, whole and as a stream, over real sockets.
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

use std::time::{Duration, Instant};

use http_client::{Client, Connection};
use serde_json::{Value, json};
use served::{Server, run};

/// How long a test waits for what comes soon on a machine that has nothing else to do.
const PATIENCE: Duration = Duration::from_secs(120);

const TASK: &str = "Write a Python function that adds two numbers.";

fn chat(more: Value) -> Value {
    let mut body =
        json!({ "messages": [{ "role": "user", "content": TASK }], "temperature": 0, "max_tokens": 24 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// The content of a chat's stream.
fn streamed(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

#[test]
fn every_interface_says_what_the_program_says() {
    let Some(server) = Server::start("every_interface_says_what_the_program_says", &[]) else { return };
    let client = server.client;
    let direct = run(&["generate", "--chat", "-n", "24", TASK]).gives(0);
    let wanted = direct.stdout.trim_end_matches('\n');
    assert!(!wanted.is_empty());

    let whole = client.post("/v1/chat/completions", &chat(json!({}))).gives(200);
    assert_eq!(content(&whole).trim_end_matches('\n'), wanted);
    let got = client.post("/v1/chat/completions", &chat(json!({ "stream": true })));
    assert_eq!(got.header("content-type"), Some("text/event-stream"));
    assert_eq!(got.header("cache-control"), Some("no-cache"));
    assert_eq!(streamed(&got.events()), content(&whole));
    assert!(got.body.ends_with("data: [DONE]\n\n"));
    for event in &got.events() {
        assert_ne!(event["choices"][0]["delta"]["content"], "", "an empty delta");
    }

    let messages = client.post("/v1/messages", &chat(json!({}))).gives(200);
    assert_eq!(messages["content"][0]["text"], content(&whole));
    let got = client.post("/v1/messages", &chat(json!({ "stream": true })));
    let text: String = got.events().iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, content(&whole));

    let ask = json!({ "input": TASK, "temperature": 0, "max_output_tokens": 24 });
    let response = client.post("/v1/responses", &ask).gives(200);
    assert_eq!(response["output"][0]["content"][0]["text"], content(&whole));
    let mut ask = ask;
    ask["stream"] = true.into();
    let events = client.post("/v1/responses", &ask).events();
    let text: String = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .filter_map(|event| event["delta"].as_str())
        .collect();
    assert_eq!(text, content(&whole));

    // A raw prompt in the chat's form, with the same tokens.
    let prompt = client.post("/apply-template", &chat(json!({}))).gives(200)["prompt"].clone();
    let ask = json!({ "prompt": prompt, "temperature": 0, "max_tokens": 24 });
    let completion = client.post("/v1/completions", &ask).gives(200);
    assert_eq!(completion["choices"][0]["text"], content(&whole));
    assert_eq!(completion["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    let counted = client.post("/v1/messages/count_tokens", &chat(json!({}))).gives(200);
    assert_eq!(counted["input_tokens"], whole["usage"]["prompt_tokens"]);
}

#[test]
fn what_is_told_of_the_model_and_its_tokens() {
    let Some(server) =
        Server::start("what_is_told_of_the_model_and_its_tokens", &["--alias", "nano", "-c", "512"])
    else {
        return;
    };
    let client = server.client;
    for prefix in ["", "/v1"] {
        let models = client.get(&format!("{prefix}/models")).gives(200);
        let entry = &models["data"][0];
        assert_eq!((&entry["id"], &entry["max_model_len"]), (&"nano".into(), &512.into()));
        assert_eq!((&entry["meta"]["n_ctx"], &entry["context_length"]), (&512.into(), &512.into()));
        assert_eq!(client.get(&format!("{prefix}/models/{}", "nano")).gives(200)["id"], "nano");
        assert_eq!(client.get(&format!("{prefix}/models/{}", "other")).status, 404);
        client.get(&format!("{prefix}/health")).gives(200);
    }
    let props = client.get("/props").gives(200);
    assert_eq!(
        (&props["total_slots"], &props["default_generation_settings"]["n_ctx"]),
        (&4.into(), &512.into())
    );
    assert!(props["chat_template"].as_str().unwrap().contains("<|assistant|>"), "{props}");
    assert_eq!(client.get("/slots").gives(200).as_array().unwrap().len(), 4);
    let text = "def f(x):\n    return x # é 🦀 <|user|>";
    let tokens = client.post("/tokenize", &json!({ "content": text })).gives(200)["tokens"].clone();
    assert_eq!(client.post("/detokenize", &json!({ "tokens": tokens })).gives(200)["content"], text);
    let plain = client.post("/tokenize", &json!({ "content": text, "parse_special": false })).gives(200);
    assert!(plain["tokens"].as_array().unwrap().len() > tokens.as_array().unwrap().len());
    let pieces = client.post("/tokenize", &json!({ "content": "🦀", "with_pieces": true })).gives(200);
    assert!(pieces["tokens"].as_array().unwrap().iter().any(|token| token["piece"].is_array()), "{pieces}");
    client.post("/detokenize", &json!({ "tokens": [99_999_999] })).gives(400);
    let metrics = client.get("/metrics").body;
    assert!(metrics.contains("# TYPE flint_rt_expert_hits counter"), "{metrics}");

    let long = client.post(
        "/v1/chat/completions",
        &chat(json!({ "messages": [{ "role": "user",
        "content": "word ".repeat(2000) }] })),
    );
    let error = long.gives(400);
    assert_eq!(error["error"]["type"], "exceed_context_size_error");
    assert_eq!(error["error"]["n_ctx"], 512);
    // The reply ends where the context does.
    let ask = json!({ "prompt": "x = [", "max_tokens": -1, "ignore_eos": true, "temperature": 0 });
    let filled = client.post("/v1/completions", &ask).gives(200);
    assert_eq!(filled["choices"][0]["finish_reason"], "length");
    assert_eq!(filled["usage"]["total_tokens"], 513);
    let (code, said) = server.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_conversation_is_not_computed_twice() {
    let Some(server) = Server::start("a_conversation_is_not_computed_twice", &[]) else { return };
    let client = server.client;
    let mut messages = vec![json!({ "role": "user", "content": TASK })];
    let mut held = 0;
    for turn in 0..3 {
        let answer = client.post("/v1/chat/completions", &chat(json!({ "messages": messages }))).gives(200);
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        if turn > 0 {
            // All that was there before but the reply's last token, which was never fed, and what trimming took from its end.
            assert!(cached + 3 >= held && cached <= held, "turn {turn}: {cached} of {held}");
        }
        held = usage["total_tokens"].as_u64().unwrap();
        assert_eq!(answer["timings"]["cache_n"], cached);
        // A request about something else goes to the other slot.
        let other = json!({ "messages": [{ "role": "system", "content": "Name this." }, { "role": "user",
            "content": "title" }] });
        client.post("/v1/chat/completions", &chat(other)).gives(200);
        messages.push(json!({ "role": "assistant", "content": content(&answer) }));
        messages.push(json!({ "role": "user", "content": "Now subtract them." }));
    }
    let fresh = client.post("/v1/chat/completions", &chat(json!({ "cache_prompt": false }))).gives(200);
    assert_eq!(fresh["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[test]
fn replies_follow_their_options() {
    let Some(server) = Server::start("replies_follow_their_options", &[]) else { return };
    let client = server.client;
    let ask = |more: Value| client.post("/v1/chat/completions", &chat(more)).gives(200);
    let greedy = ask(json!({}));
    // Equal seeds give equal replies, others others.
    let warm = |seed: u64| ask(json!({ "temperature": 1.5, "top_k": 0, "top_p": 1, "seed": seed }));
    assert_eq!(content(&warm(5)), content(&warm(5)));
    assert_ne!(content(&warm(5)), content(&warm(6)));
    // top_k of 1 leaves nothing to draw.
    assert_eq!(content(&ask(json!({ "temperature": 1, "top_k": 1 }))), content(&greedy));
    // A stop string across tokens, never shown.
    let text = content(&greedy);
    let stop: String = text.chars().skip(3).take(6).collect();
    let stopped = ask(json!({ "stop": [stop] }));
    assert_eq!(content(&stopped), text.split(&stop).next().unwrap());
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let got = client.post("/v1/messages", &chat(json!({ "stop_sequences": [stop] }))).gives(200);
    assert_eq!(
        (&got["stop_reason"], &got["stop_sequence"]),
        (&"stop_sequence".into(), &stop.as_str().into())
    );
    // A forbidden token does not come.
    let ids = ask(json!({ "return_token_ids": true }));
    let first = ids["choices"][0]["token_ids"][0].as_u64().unwrap();
    let other = ask(json!({ "return_token_ids": true, "logit_bias": [[first, false]] }));
    assert!(!other["choices"][0]["token_ids"].as_array().unwrap().contains(&first.into()));
    // Log-probabilities: of the best token, the best.
    let told = ask(json!({ "logprobs": true, "top_logprobs": 3, "max_tokens": 4 }));
    assert_eq!(told["usage"]["completion_tokens"], 4);
    for token in told["choices"][0]["logprobs"]["content"].as_array().unwrap() {
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
        assert_eq!(
            (&token["token"], &token["logprob"]),
            (&token["top_logprobs"][0]["token"], &token["top_logprobs"][0]["logprob"])
        );
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
    // As many tokens as asked for, through what would end it.
    let full = ask(json!({ "ignore_eos": true, "max_tokens": 200 }));
    assert_eq!(full["usage"]["completion_tokens"], 200);
    assert_eq!(ask(json!({ "max_tokens": 0 }))["usage"]["completion_tokens"], 0);
    // A thought is told apart, and closed by its budget.
    let thought =
        ask(json!({ "chat_template_kwargs": { "enable_thinking": true }, "thinking_budget_tokens": 4 }));
    let message = &thought["choices"][0]["message"];
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty(), "{thought}");
    assert!(!message["content"].as_str().unwrap().contains("think>"), "{thought}");
    let reasoning = thought["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!((4..=5).contains(&reasoning), "{thought}");
}

#[test]
fn forced_forms_are_kept_by_any_model() {
    let Some(server) = Server::start("forced_forms_are_kept_by_any_model", &[]) else { return };
    let client = server.client;
    type Fits = fn(&Value) -> bool;
    let object = |properties: Value, required: &[&str]| json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
    let short = json!({ "type": "string", "maxLength": 8 });
    let schemas: [(Value, Fits); 9] = [
        (json!({ "type": "boolean" }), Value::is_boolean),
        (json!({ "type": "null" }), Value::is_null),
        (json!({ "type": "integer", "minimum": 3, "maximum": 17 }), |value| {
            value.as_i64().is_some_and(|number| (3..=17).contains(&number))
        }),
        (json!({ "enum": ["red", "green", 5] }), |value| *value == "red" || *value == "green" || *value == 5),
        (short.clone(), |value| value.as_str().is_some_and(|text| text.chars().count() <= 8)),
        (json!({ "type": "array", "items": { "type": "boolean" }, "minItems": 2, "maxItems": 3 }), |value| {
            value
                .as_array()
                .is_some_and(|list| (2..=3).contains(&list.len()) && list.iter().all(Value::is_boolean))
        }),
        (object(json!({ "name": short, "ok": { "type": "boolean" } }), &["name", "ok"]), |value| {
            value["name"].is_string() && value["ok"].is_boolean() && value.as_object().unwrap().len() == 2
        }),
        (json!({ "anyOf": [{ "type": "null" }, { "type": "boolean" }] }), |value| {
            value.is_null() || value.is_boolean()
        }),
        (json!({ "type": "string", "pattern": "^[a-c]{2,4}$" }), |value| {
            value.as_str().is_some_and(|text| {
                (2..=4).contains(&text.len()) && text.bytes().all(|byte| (b'a'..=b'c').contains(&byte))
            })
        }),
    ];
    for (schema, fits) in &schemas {
        for (temperature, seed) in [(0, 1), (2, 2), (2, 3), (2, 4)] {
            let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
            let ask = json!({ "response_format": format, "temperature": temperature, "seed": seed, "top_k": 0,
                "top_p": 1, "max_tokens": 400 });
            let got = client.post("/v1/chat/completions", &chat(ask)).gives(200);
            assert_eq!(got["choices"][0]["finish_reason"], "stop", "{schema}: {got}");
            let value: Value = serde_json::from_str(content(&got)).unwrap();
            assert!(fits(&value), "{schema}: {value}");
        }
    }
    let tools = json!([
        { "type": "function", "function": { "name": "add", "parameters": object(json!({ "a": { "type": "integer",
            "minimum": 0, "maximum": 9 } }), &["a"]) } },
        { "type": "function", "function": { "name": "stop", "parameters": object(json!({}), &[]) } },
    ]);
    for choice in [json!("required"), json!({ "type": "function", "function": { "name": "add" } })] {
        let ask =
            json!({ "tools": tools, "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": 200 });
        let got = client.post("/v1/chat/completions", &chat(ask)).gives(200);
        let choice_got = &got["choices"][0];
        assert_eq!(choice_got["finish_reason"], "tool_calls", "{got}");
        let call = &choice_got["message"]["tool_calls"][0]["function"];
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments.is_object() && (call["name"] == "stop" || arguments["a"].is_u64()), "{got}");
        assert!(choice.is_string() || call["name"] == "add", "{got}");
    }
    // A bias that forbids the only token which the schema allows is the request's fault.
    let one = client.post("/tokenize", &json!({ "content": "1" })).gives(200)["tokens"][0].clone();
    let only = json!({ "schema": { "type": "integer", "minimum": 1, "maximum": 1 } });
    let ask = json!({ "response_format": { "type": "json_schema", "json_schema": only },
        "logit_bias": [[one, false]] });
    let got = client.post("/v1/chat/completions", &chat(ask)).gives(400);
    assert!(got["error"]["message"].as_str().unwrap().contains("logit_bias"), "{got}");
    let bad = json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "type": "nonsense" } } } });
    client.post("/v1/chat/completions", &chat(bad)).gives(400);
}

#[test]
fn neighbours_change_nothing_and_who_leaves_is_given_up() {
    let Some(server) =
        Server::start("neighbours_change_nothing_and_who_leaves_is_given_up", &["--parallel", "2"])
    else {
        return;
    };
    let client = server.client;
    let alone = client.post("/v1/chat/completions", &chat(json!({ "max_tokens": 60 }))).gives(200);
    let endless = chat(json!({ "stream": true, "ignore_eos": true, "max_tokens": 4000, "temperature": 1 }));
    let mut neighbour = client.begin("/v1/chat/completions", &endless);
    assert_eq!(neighbour.head().unwrap().0, 200);
    client.wait_for_busy(1, PATIENCE);
    let beside = client.post("/v1/chat/completions", &chat(json!({ "max_tokens": 60 }))).gives(200);
    assert_eq!(content(&beside), content(&alone));
    drop(neighbour);
    client.wait_for_busy(0, PATIENCE);
    let given_up = |count: u32| format!("flint_rt_requests_total{{end=\"cancelled\"}} {count}");
    let metrics = client.get("/metrics").body;
    assert!(metrics.contains(&given_up(1)), "{metrics}");
    // One that leaves while its prompt is fed.
    let long = chat(json!({ "messages": [{ "role": "user", "content": "words ".repeat(900) }] }));
    let leaving: Connection = client.begin("/v1/chat/completions", &long);
    let begin = Instant::now();
    let holds_a_chunk = |slot: &Value| slot["is_processing"] == true && slot["n_held"].as_u64() >= Some(512);
    while !client.get("/slots").gives(200).as_array().unwrap().iter().any(holds_a_chunk) {
        assert!(begin.elapsed() < PATIENCE, "no chunk was fed");
    }
    drop(leaving);
    client.wait_for_busy(0, PATIENCE);
    let metrics = client.get("/metrics").body;
    assert!(metrics.contains(&given_up(2)), "{metrics}");
    // Who asks again goes on where the first was given up.
    let again = client.post("/v1/chat/completions", &long).gives(200);
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert!(cached >= Some(512), "{again}");
    let again = client.post("/v1/chat/completions", &chat(json!({ "max_tokens": 60 }))).gives(200);
    assert_eq!(content(&again), content(&alone));
    let (code, said) = server.end("-INT");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("validation:"), "{said}");
}

/// Bytes of experts that were read since the server began.
fn read_bytes(client: Client) -> u64 {
    let text = client.get("/metrics").body;
    let line = text.lines().find(|line| line.starts_with("flint_rt_expert_read_bytes_total ")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn four_chats_at_once_say_what_each_says_alone_and_share_what_is_read() {
    let name = "four_chats_at_once_say_what_each_says_alone_and_share_what_is_read";
    let flags =
        ["--parallel", "4", "--pool-slots", "8", "--host-memory", "0", "--prefetch", "off", "-c", "512"];
    let flags = [&flags[..], &["--speculate", "off"]].concat();
    let Some(server) = Server::start(name, &flags) else { return };
    let client = server.client;
    let ask = |task: &str, more: Value| {
        let messages = json!([{ "role": "user", "content": task }]);
        let mut body = chat(json!({ "messages": messages, "max_tokens": 40, "cache_prompt": false }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.post("/v1/chat/completions", &body).gives(200)
    };
    let drawn = json!({ "temperature": 1, "seed": 7 });
    let asked = [
        ("Reverse a list.", json!({})),
        (TASK, drawn.clone()),
        ("What does a decorator do, and when is it called?", json!({ "logprobs": true })),
        ("Sort these words by their length, longest first.", drawn),
    ];
    let before = read_bytes(client);
    let alone: Vec<Value> = asked.iter().map(|(task, more)| ask(task, more.clone())).collect();
    let bytes_alone = read_bytes(client) - before;
    let before = read_bytes(client);
    let together: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            asked.iter().map(|(task, more)| scope.spawn(|| ask(task, more.clone()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let bytes_together = read_bytes(client) - before;
    for (alone, together) in alone.iter().zip(&together) {
        assert_eq!(content(alone), content(together));
        assert_eq!(alone["usage"]["completion_tokens"], together["usage"]["completion_tokens"]);
        assert_eq!(alone["choices"][0]["logprobs"], together["choices"][0]["logprobs"]);
    }
    // How much is shared depends on when the requests arrive; alone they share nothing.
    assert!(
        bytes_together < bytes_alone,
        "{bytes_alone} bytes one after the other, {bytes_together} together"
    );
    let (code, said) = server.end("-INT");
    assert_eq!(code, Some(0), "{said}");
}

/// Drafts are told of, and are all that differs: greedy, drawn, with log-probabilities, stop strings and budgets; a form has none.
#[test]
fn drafts_change_no_reply() {
    let words = "def add(a, b):\n    return a + b\n\n";
    let prompt = words.repeat(4);
    let asked = [
        json!({}),
        json!({ "temperature": 1, "seed": 7 }),
        json!({ "logprobs": 3 }),
        json!({ "stop": ["b)"] }),
        json!({ "max_tokens": 3 }),
        json!({ "response_format": { "type": "json_object" } }),
    ];
    let mut replies = Vec::new();
    for mode in ["off", "5"] {
        let flags = ["--speculate", mode, "-c", "512"];
        let Some(server) = Server::start("drafts_change_no_reply", &flags) else { return };
        let ask = |more: &Value| {
            let mut body =
                json!({ "prompt": prompt, "temperature": 0, "max_tokens": 40, "cache_prompt": false });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            server.client.post("/v1/completions", &body).gives(200)
        };
        let got: Vec<Value> = asked.iter().map(ask).collect();
        let drafted: Vec<u64> =
            got.iter().map(|got| got["timings"]["draft_n"].as_u64().unwrap_or(0)).collect();
        match mode {
            "off" => assert_eq!(drafted, [0; 6]),
            _ => {
                assert!(drafted[0] > 0 && drafted[2] > 0 && drafted[5] == 0, "{drafted:?}");
                let accepted = &got[0]["timings"]["draft_n_accepted"];
                assert!((1..=drafted[0]).contains(&accepted.as_u64().unwrap()), "{accepted}");
                let text = server.client.get("/metrics").body;
                assert!(text.contains("flint_rt_draft_tokens_accepted_total"), "{text}");
            }
        }
        replies.push(got);
        let (code, said) = server.end("-INT");
        assert_eq!(code, Some(0), "{said}");
    }
    for (index, more) in asked.iter().enumerate() {
        let [plain, drafted] = [&replies[0][index], &replies[1][index]];
        assert_eq!(plain["choices"], drafted["choices"], "{more}");
        assert_eq!(plain["usage"]["completion_tokens"], drafted["usage"]["completion_tokens"], "{more}");
    }
}

#[test]
fn memory_is_planned_for_every_conversation() {
    let kv_bytes = |command: &str, parallel: &str| {
        let flags = [command, "--json", "--parallel", parallel, "-c", "512"];
        let ran = run(&flags);
        (ran.code == Some(0)).then(|| {
            let plan: Value = serde_json::from_str(&ran.stdout).unwrap();
            plan["memory"]["kv_bytes"].as_u64().unwrap()
        })
    };
    for command in ["info", "plan"] {
        let Some(one) = kv_bytes(command, "1") else {
            eprintln!("SKIPPED memory_is_planned_for_every_conversation, no Vulkan device");
            return;
        };
        assert_eq!(kv_bytes(command, "4"), Some(4 * one), "{command}");
    }
}

#[test]
fn the_built_in_form_gives_the_same() {
    let name = "the_built_in_form_gives_the_same";
    let Some(template) = Server::start(name, &[]) else { return };
    let Some(built_in) = Server::start(name, &["--chat-template", "flint"]) else { return };
    for body in [
        chat(json!({})),
        chat(json!({ "messages": [{ "role": "system", "content": "Be brief." },
        { "role": "user", "content": "hi <|user|> 🦀" }, { "role": "assistant", "content": "<think>a</think>b" },
        { "role": "user", "content": "go on" }] })),
    ] {
        let answers = [template.client, built_in.client]
            .map(|client| client.post("/v1/chat/completions", &body).gives(200));
        // A marker in a user's text is text in both; the template has it as it is, the built-in form as it was trained.
        if !body.to_string().contains("<|user|>") {
            assert_eq!(content(&answers[0]), content(&answers[1]));
        }
    }
}

#[test]
fn what_the_flags_cannot_mean_is_refused_before_anything_is_opened() {
    let begin = Instant::now();
    run(&["serve", "--host", "0.0.0.0"]).refuses(2, "--api-key");
    run(&["serve", "--host", "0.0.0.0", "--api-key", ""]).gives(2);
    run(&["serve", "--api-key-file", "/does/not/exist"]).refuses(1, "/does/not/exist");
    run(&["serve", "--chat-template", "/does/not/exist"]).refuses(1, "/does/not/exist");
    run(&["serve", "--parallel", "0"]).gives(2);
    assert!(begin.elapsed() < PATIENCE);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    run(&["serve", "--port", &port]).refuses(1, "another program listens there");
}
