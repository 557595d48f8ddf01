//! Conversations that no slot holds, by the real binary: kept in host memory and on disk, brought back, saved to files; what each
//! then says is what it says in a slot of its own.
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

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http_client::Client;
use serde_json::{Value, json};
use served::{Server, run};

/// The window of the bundled model is 129 tokens, so each of these goes beyond it.
const OPENINGS: [&str; 3] = [
    "def add(a, b):\n    \"\"\"Adds two numbers.\"\"\"\n    return a + b\n\n",
    "class Shape:\n    \"\"\"A thing with an area.\"\"\"\n    def area(self):\n        return 0\n\n",
    "for word in words:\n    print(word, len(word))\n    count = count + 1\n\n",
];

/// Tokens of a chunk, and so of what a ring has beyond its window.
const CHUNK: &str = "48";

fn tokens(client: Client, text: &str) -> Vec<Value> {
    let answer = client.post("/tokenize", &json!({ "content": text })).gives(200);
    answer["tokens"].as_array().unwrap().clone()
}

/// A conversation of token ids, so that nothing of a reply is rendered differently the next time.
struct Talk {
    ids: Vec<Value>,
}

/// What a turn gave: how much of the prompt was there, and the reply.
#[derive(Debug, PartialEq)]
struct Turn {
    cached: usize,
    reply: Vec<Value>,
}

impl Talk {
    fn new(client: Client, opening: &str) -> Self {
        Self { ids: tokens(client, &opening.repeat(8)) }
    }

    /// Has it continued by `count` tokens, which then belong to it.
    fn go_on(&mut self, client: Client, count: usize) -> Turn {
        let body = json!({
            "prompt": self.ids, "max_tokens": count, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
        });
        let answer = client.post("/v1/completions", &body).gives(200);
        let usage = &answer["usage"];
        assert_eq!(usage["prompt_tokens"].as_u64(), Some(self.ids.len() as u64));
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let reply = answer["choices"][0]["token_ids"].as_array().unwrap().clone();
        assert_eq!(reply.len(), count);
        self.ids.extend(reply.clone());
        Turn { cached: usize::try_from(cached).unwrap(), reply }
    }

    /// What a cache holds after a turn: the reply's last token was never fed.
    fn held(&self) -> usize {
        self.ids.len() - 1
    }
}

fn metric(client: Client, name: &str) -> u64 {
    let text = client.get("/metrics").body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
}

fn hits(client: Client, from: &str) -> u64 {
    let text = client.get("/metrics").body;
    let name = format!("flint_rt_prompt_cache_hits_total{{from=\"{from}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
}

fn ends_well(server: Server) -> String {
    let (code, said) = server.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("validation:") && !said.contains("panicked"), "{said}");
    said
}

/// Files of kept conversations.
fn kept_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "flint-kv")).collect()
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_there() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn conversations_take_turns_in_one_slot() {
    let name = "conversations_take_turns_in_one_slot";
    let flags = ["--parallel", "1", "-c", "640", "--prefill-chunk", CHUNK, "--prompt-cache-memory", "64MiB"];
    let Some(server) = Server::start(name, &flags) else { return };
    let client = server.client;
    let mut turns = Vec::new();
    let mut talks: Vec<Talk> = OPENINGS.iter().map(|opening| Talk::new(client, opening)).collect();
    for turn in 0..3 {
        for talk in &mut talks {
            let held = if turn == 0 { 0 } else { talk.held() };
            if turn > 0 {
                talk.ids.extend(tokens(client, "# And now?\n"));
            }
            let got = talk.go_on(client, 20);
            assert_eq!(got.cached, held, "turn {turn}: all that was there, to the token");
            turns.push(got.reply);
        }
    }
    assert_eq!((hits(client, "memory"), hits(client, "slot")), (6, 0));
    assert_eq!(metric(client, "flint_rt_prompt_cache_kept_total"), 8);
    let bytes = metric(client, "flint_rt_prompt_cache_memory_bytes");
    assert!(bytes > 0 && bytes <= 64 << 20, "{bytes}");
    ends_well(server);

    // Each in a slot of its own, with nothing kept: the same to the last token.
    let flags = ["--parallel", "3", "-c", "640", "--prefill-chunk", CHUNK, "--prompt-cache-memory", "0"];
    let server = Server::start(name, &flags).unwrap();
    let client = server.client;
    let mut talks: Vec<Talk> = OPENINGS.iter().map(|opening| Talk::new(client, opening)).collect();
    let mut wanted = turns.into_iter();
    for turn in 0..3 {
        for talk in &mut talks {
            if turn > 0 {
                talk.ids.extend(tokens(client, "# And now?\n"));
            }
            assert_eq!(Some(talk.go_on(client, 20).reply), wanted.next(), "turn {turn}");
        }
    }
    assert_eq!((hits(client, "memory"), hits(client, "slot")), (0, 6));
    assert_eq!(metric(client, "flint_rt_prompt_cache_memory_bytes"), 0);
    ends_well(server);
}

#[test]
fn what_is_kept_stays_within_its_limit() {
    let name = "what_is_kept_stays_within_its_limit";
    // A conversation of these takes 1.3 to 1.9 MB: one has room, two have not.
    let flags = ["--parallel", "1", "-c", "640", "--prefill-chunk", CHUNK, "--prompt-cache-memory", "2MiB"];
    let Some(server) = Server::start(name, &flags) else { return };
    let client = server.client;
    let mut talks: Vec<Talk> = OPENINGS.iter().map(|opening| Talk::new(client, opening)).collect();
    let mut held = Vec::new();
    for talk in &mut talks {
        assert_eq!(talk.go_on(client, 4).cached, 0);
        held.push(talk.held());
        let bytes = metric(client, "flint_rt_prompt_cache_memory_bytes");
        assert!(bytes <= 2 << 20, "{bytes}");
    }
    assert!(metric(client, "flint_rt_prompt_cache_evicted_total") > 0);
    // The second displaced the first, so it is the second that is still there.
    assert_eq!(talks[1].go_on(client, 4).cached, held[1]);
    assert_eq!(talks[0].go_on(client, 4).cached, 0);
    ends_well(server);

    let flags = ["--parallel", "1", "-c", "640", "--prefill-chunk", CHUNK, "--prompt-cache-memory", "64KiB"];
    let server = Server::start(name, &flags).unwrap();
    let client = server.client;
    for talk in &mut talks[..2] {
        talk.go_on(client, 4);
    }
    assert_eq!(metric(client, "flint_rt_prompt_cache_dropped_total"), 1);
    assert_eq!(metric(client, "flint_rt_prompt_cache_memory_bytes"), 0);
    ends_well(server);
}

#[test]
fn what_rings_have_lost_comes_from_cuts() {
    let name = "what_rings_have_lost_comes_from_cuts";
    let flags = ["--parallel", "1", "-c", "640", "--prefill-chunk", CHUNK];
    let Some(server) = Server::start(name, &flags) else { return };
    let client = server.client;
    // A reply that is longer than the rings' slack, and then is left out of the next prompt, as a thought would be.
    let mut talk = Talk::new(client, OPENINGS[0]);
    let prompt = talk.ids.clone();
    talk.go_on(client, 90);
    let mut again = Talk { ids: [prompt.clone(), tokens(client, "# Another.\n")].concat() };
    let got = again.go_on(client, 8);
    assert_eq!(got.cached, prompt.len());
    assert_eq!(hits(client, "cut"), 1);

    // Two chats that share a system prompt which is longer than the window.
    let rules = "Say what a function does in one line. ".repeat(24);
    let ask = |task: &str| {
        let messages = json!([{ "role": "system", "content": rules }, { "role": "user", "content": task }]);
        let body = json!({ "messages": messages, "temperature": 0, "max_tokens": 4 });
        let usage = client.post("/v1/chat/completions", &body).gives(200)["usage"].clone();
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (usage["prompt_tokens"].as_u64().unwrap(), cached)
    };
    let long_task = "Look at this and think of that. ".repeat(16);
    let (first_len, cached) = ask(&long_task);
    assert!(cached < 40, "{cached}");
    let shared = tokens(client, &rules).len() as u64;
    assert!(first_len > shared + 129, "the rings have left the system prompt behind");
    let (second_len, cached) = ask("Sort these.");
    assert!(cached >= shared && cached < second_len, "{cached} of {shared} that both have");
    // Back to the first: it was displaced, and is there to its last token but one.
    let (_, cached) = ask(&long_task);
    assert!(cached + 16 >= first_len, "{cached} of {first_len}");
    ends_well(server);
}

#[test]
fn what_is_on_disk_outlives_the_server() {
    let name = "what_is_on_disk_outlives_the_server";
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let flags = [
        "--parallel",
        "1",
        "-c",
        "640",
        "--prefill-chunk",
        CHUNK,
        "--prompt-cache-dir",
        kept.to_str().unwrap(),
    ];
    let Some(server) = Server::start(name, &flags) else { return };
    let client = server.client;
    let mut talks: Vec<Talk> = OPENINGS[..2].iter().map(|opening| Talk::new(client, opening)).collect();
    for talk in &mut talks {
        talk.go_on(client, 10);
    }
    ends_well(server);
    assert_eq!(kept_files(&kept).len(), 2, "both, also the one that its slot held");

    let server = Server::start(name, &flags).unwrap();
    let client = server.client;
    let mut replies = Vec::new();
    for talk in &mut talks {
        let held = talk.held();
        talk.ids.extend(tokens(client, "# And now?\n"));
        let got = talk.go_on(client, 10);
        assert_eq!(got.cached, held);
        replies.push(got.reply);
    }
    assert_eq!((hits(client, "disk"), hits(client, "memory")), (2, 0));
    // The first was displaced, in its longer form: when that is written, its shorter one goes.
    wait_for("the displaced conversation is written", || {
        metric(client, "flint_rt_prompt_cache_written_bytes_total") > 0
    });
    wait_for("its older file goes", || kept_files(&kept).len() == 2);
    let (_, said) = server.end("-KILL");
    assert!(!said.contains("validation:"), "{said}");
    std::fs::write(kept.join(".x.flint-kv.1-1.flint-kv-partial"), b"half").unwrap();

    let server = Server::start(name, &flags).unwrap();
    let client = server.client;
    assert_eq!(std::fs::read_dir(&kept).unwrap().count(), 2, "what was half written is removed");
    let held = talks[0].held();
    assert_eq!(talks[0].go_on(client, 1).cached, held);
    ends_well(server);

    // A flipped bit costs time, and nothing else.
    for path in kept_files(&kept) {
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() - 40;
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).unwrap();
    }
    let server = Server::start(name, &flags).unwrap();
    let client = server.client;
    let mut second = Talk::new(client, OPENINGS[1]);
    second.ids.clone_from(&talks[1].ids);
    second.ids.truncate(second.ids.len() - replies[1].len());
    let got = second.go_on(client, 10);
    assert_eq!(got.cached, 0);
    assert_eq!(got.reply, replies[1], "fed again, the same is said");
    let said = ends_well(server);
    assert!(said.contains("cannot be used") && said.contains("damaged"), "{said}");
}

#[test]
fn slots_are_saved_restored_and_erased() {
    let name = "slots_are_saved_restored_and_erased";
    let flags = ["--parallel", "2", "-c", "640", "--prefill-chunk", CHUNK];
    let Some(server) = Server::start(name, &flags) else { return };
    let refused = server.client.post("/slots/0?action=save", &json!({ "filename": "a" })).gives(501);
    assert!(refused["error"]["message"].as_str().unwrap().contains("--slot-save-path"), "{refused}");
    ends_well(server);

    let folder = tempfile::tempdir().unwrap();
    let flags = [&flags[..], &["--slot-save-path", folder.path().to_str().unwrap()]].concat();
    let server = Server::start(name, &flags).unwrap();
    let client = server.client;
    let act = |slot: &str, action: &str, file: &str| {
        client.post(&format!("/slots/{slot}?action={action}"), &json!({ "filename": file }))
    };
    let nothing = act("0", "save", "empty").gives(400);
    assert!(nothing["error"]["message"].as_str().unwrap().contains("holds no token"), "{nothing}");

    let mut talk = Talk::new(client, OPENINGS[0]);
    talk.go_on(client, 10);
    let held = talk.held();
    let holder = || {
        let slots = client.get("/slots").gives(200);
        slots.as_array().unwrap().iter().position(|slot| slot["n_held"] == held)
    };
    // The board is written behind the answer.
    wait_for("the slot says what it holds", || holder().is_some());
    let slot = holder().unwrap();
    let (slot, other) = (slot.to_string(), (1 - slot).to_string());
    let saved = act(&slot, "save", "talk.bin").gives(200);
    let bytes = std::fs::metadata(folder.path().join("talk.bin")).unwrap().len();
    assert_eq!((&saved["n_saved"], &saved["n_written"]), (&json!(held), &json!(bytes)), "{saved}");
    assert_eq!(
        (&saved["id_slot"], &saved["filename"]),
        (&json!(slot.parse::<u64>().unwrap()), &json!("talk.bin"))
    );
    assert!(saved["timings"]["save_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(act(&slot, "erase", "").gives(200)["n_erased"], held);
    assert_eq!(act(&slot, "erase", "").gives(200)["n_erased"], 0);

    // Into the other slot: the conversation goes on there.
    let restored = act(&other, "restore", "talk.bin").gives(200);
    assert_eq!((&restored["n_restored"], &restored["n_read"]), (&json!(held), &json!(bytes)), "{restored}");
    assert!(restored["timings"]["restore_ms"].as_f64().unwrap() > 0.0);
    talk.ids.extend(tokens(client, "# And now?\n"));
    assert_eq!(talk.go_on(client, 10).cached, held);

    for file in ["../up", "/etc/hostname", "a/b", "..", "", ".x", "a\u{0}b"] {
        for action in ["save", "restore"] {
            act("0", action, file).gives(400);
        }
    }
    std::os::unix::fs::symlink("/etc/hostname", folder.path().join("link")).unwrap();
    act("0", "restore", "link").gives(400);
    act("0", "save", "link").gives(400);
    std::fs::write(folder.path().join("noise"), [7; 1000]).unwrap();
    act("0", "save", "noise").gives(400);
    assert_eq!(std::fs::read(folder.path().join("noise")).unwrap(), [7; 1000], "not overwritten");
    let mut torn = std::fs::read(folder.path().join("talk.bin")).unwrap();
    torn.pop();
    std::fs::write(folder.path().join("torn"), torn).unwrap();
    let held = talk.held();
    for (file, why) in [("noise", "no saved slot"), ("torn", "damaged"), ("nowhere", "no such file")] {
        let refused = act(&other, "restore", file).gives(400);
        assert!(refused["error"]["message"].as_str().unwrap().contains(why), "{refused}");
    }
    wait_for("the slot is as it was", || {
        client.get("/slots").gives(200)[other.parse::<usize>().unwrap()]["n_held"] == held
    });
    act("2", "erase", "").gives(400);
    act("x", "erase", "").gives(400);
    act("0", "flip", "").gives(400);
    client.post("/slots/0", &json!({})).gives(400);
    client.post("/slots/0?action=save", &json!({})).gives(400);
    ends_well(server);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let flags = ["serve", "--prompt-cache-dir", path, "--prompt-cache-memory", "0"];
    run(&flags).refuses(2, "--prompt-cache-memory");
    run(&["serve", "--slot-save-path", "/does/not/exist"]).refuses(2, "/does/not/exist");
    run(&["serve", "--prompt-cache-memory", "much"]).gives(2);
}

#[test]
fn what_a_released_engine_held_is_kept_and_other_weights_do_not_take_it_up() {
    let name = "what_a_released_engine_held_is_kept_and_other_weights_do_not_take_it_up";
    let folder = tempfile::tempdir().unwrap();
    let (kept, model) = (folder.path().join("kept"), folder.path().join("model.gguf"));
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/flint-nano-q4_1.gguf");
    std::fs::write(&model, std::fs::read(bundled).unwrap()).unwrap();
    let (model_flag, kept_flag) = (model.to_str().unwrap(), kept.to_str().unwrap());
    let flags = ["-m", model_flag, "--parallel", "1", "-c", "640", "--prefill-chunk", CHUNK];
    let flags = [&flags[..], &["--idle-release", "1", "--prompt-cache-dir", kept_flag]].concat();
    let Some(server) = Server::start(name, &flags) else { return };
    let client = server.client;
    let is_released = || client.get("/health").gives(200)["engine"] == "released";
    let mut talk = Talk::new(client, OPENINGS[0]);
    talk.go_on(client, 4);
    wait_for("the engine is closed", is_released);
    assert_eq!(client.get("/slots").gives(200)[0]["n_held"], 0);
    let held = talk.held();
    assert_eq!(talk.go_on(client, 4).cached, held, "from host memory");
    wait_for("the engine is closed again", is_released);
    // Whoever asks for a slot opens it, and is answered.
    let erased = client.post("/slots/0?action=erase", &json!({})).gives(200);
    assert_eq!(erased["n_erased"], 0);
    wait_for("the engine is closed once more", is_released);
    ends_well(server);
    assert_eq!(kept_files(&kept).len(), 1, "written, though no slot held it at the end");

    // The same header and length, one byte of the weights another.
    let mut bytes = std::fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&model, bytes).unwrap();
    let server = Server::start(name, &flags).unwrap();
    assert_eq!(talk.go_on(server.client, 4).cached, 0);
    ends_well(server);
}
