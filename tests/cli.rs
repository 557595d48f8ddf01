//! The real binary: its commands, its two output streams, its exit codes.
//!
//! Each test has folders of its own, so none depends on what a user's folders hold. Tests that open a device say so
//! and pass where there is none.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/program.rs"]
mod program;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use program::{Ran, program};
use serde_json::Value;
use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/flint-nano-q4_1.gguf");

/// Folders for a run of the program.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        // The caller's settings are not under test, except for the device that tests are to use.
        let mut command = program(&["FLINT_RT_DEVICE", "FLINT_RT_VALIDATION"]);
        command
            .args(args)
            .env("HOME", self.path())
            .env("XDG_DATA_HOME", self.path().join("data"))
            .env("XDG_CACHE_HOME", CACHE.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran::new(self.command(args).output().unwrap())
    }

    fn run_with(&self, args: &[&str], variable: &str, value: &str) -> Ran {
        Ran::new(self.command(args).env(variable, value).output().unwrap())
    }

    fn run_with_input(&self, args: &[&str], input: impl AsRef<[u8]>) -> Ran {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        // A program that refuses its arguments does not read.
        let _ = child.stdin.take().unwrap().write_all(input.as_ref());
        Ran::new(child.wait_with_output().unwrap())
    }
}

/// Compiled kernels, for all tests of this file.
static CACHE: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

impl Ran {
    /// The last of the events, which come one a line.
    #[track_caller]
    fn last_event(&self) -> Value {
        serde_json::from_str(self.stdout.lines().last().unwrap()).unwrap()
    }
}

/// Whether there is a device to run on.
fn has_device(test: &str) -> bool {
    static HAS_DEVICE: LazyLock<bool> = LazyLock::new(|| Home::new().run(&["devices"]).code == Some(0));
    if !*HAS_DEVICE {
        eprintln!("SKIPPED {test}, no Vulkan device");
    }
    *HAS_DEVICE
}

fn vectors(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids_of(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn help_names_commands_and_exit_codes() {
    let help = Home::new().run(&["--help"]).gives(0);
    for word in
        ["generate", "chat", "ingest", "info", "tokenize", "eval", "devices", "Exit codes", "130", "143"]
    {
        assert!(help.stdout.contains(word), "{word} in {}", help.stdout);
    }
    for command in ["generate", "chat", "ingest", "info", "tokenize", "eval", "devices"] {
        Home::new().run(&[command, "--help"]).gives(0);
    }
    assert!(Home::new().run(&["--version"]).gives(0).stdout.starts_with("flint-rt "));
}

#[test]
fn flags_that_make_no_sense_are_usage_faults() {
    let home = Home::new();
    let runs: &[&[&str]] = &[
        &[],
        &["nonsense"],
        &["generate", "--nonsense"],
        &["generate", "x", "-n", "many"],
        &["generate", "x", "-n", "-1"],
        &["generate", "x", "-n", "4294967296"],
        &["generate", "x", "--temp", "hot"],
        &["generate", "x", "--temp", "-1"],
        &["generate", "x", "--temp", "nan"],
        &["generate", "x", "--top-p", "1.5"],
        &["generate", "x", "--min-p", "inf"],
        &["generate", "x", "--repeat-penalty", "0"],
        &["generate", "x", "--presence-penalty", "3"],
        &["generate", "x", "--gpu-memory", "lots"],
        &["generate", "x", "--read-path", "magic"],
        &["generate", "x", "--host-path", "magic"],
        &["generate", "x", "--think", "maybe"],
        &["generate", "x", "--chat", "--special"],
        &["eval"],
        &["eval", "--ids", "1", "--prompt", "x"],
        &["eval", "--ids", ""],
        &["eval", "--ids", "1,,2"],
        &["eval", "--ids", "-1"],
        &["eval", "--ids", "99999"],
        &["eval", "--prompt", ""],
        &["eval", "--ids", "1", "--top", "0"],
        &["eval", "--ids", "1", "--greedy", "5000"],
        &["eval", "--ids", "1", "--tokens", "5"],
        &["ingest", MODEL, "--name", "a/b"],
        &["ingest", MODEL, "--name", ".."],
    ];
    for args in runs {
        let ran = home.run(args).gives(2);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    // A number below zero is out of range, and no flag.
    for flag in ["-n", "--top-k", "--ctx-size", "--pool-slots", "--prefill-chunk"] {
        let ran = home.run(&["generate", "x", flag, "-1"]).gives(2);
        assert!(ran.stderr.contains("-1 is not in 0..=4294967295"), "{}", ran.stderr);
    }
    home.run(&["generate", "x", "--device", ""]).gives(2);
    home.run(&["info", MODEL, "--model", MODEL]).gives(2);
}

#[test]
fn a_fault_of_a_variable_names_it_and_an_empty_one_is_unset() {
    let home = Home::new();
    let ran = home.run_with(&["generate", "x"], "FLINT_RT_TOP_K", "all").gives(2);
    assert!(ran.stderr.contains("FLINT_RT_TOP_K"), "{}", ran.stderr);
    let ran = home.run_with(&["generate", "x", "--top-k", "all"], "FLINT_RT_TOP_K", "1").gives(2);
    assert!(!ran.stderr.contains("FLINT_RT_TOP_K"), "{}", ran.stderr);

    let mut all_empty = home.command(&["tokenize", "--json", "x"]);
    for variable in ["MODEL", "STORE_DIR", "DEVICE", "TOP_K", "CTX_SIZE", "READ_PATH", "SOURCE", "VALIDATION"]
    {
        all_empty.env(format!("FLINT_RT_{variable}"), "");
    }
    Ran::new(all_empty.output().unwrap()).gives(0);
    let mut engine = home.command(&["eval", "--ids", ""]);
    for variable in ["DEVICE", "CTX_SIZE", "READ_PATH", "SOURCE", "GPU_MEMORY", "VALIDATION"] {
        engine.env(format!("FLINT_RT_{variable}"), "");
    }
    let ran = Ran::new(engine.output().unwrap()).gives(2);
    assert!(!ran.stderr.contains("FLINT_RT_") && ran.stderr.contains("--ids"), "{}", ran.stderr);
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else { return };
    let mut child = Home::new().command(&["--help"]).stdout(full).spawn().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5), "there is no room");
}

#[test]
fn a_forced_read_path_that_is_impossible_is_blamed() {
    if !has_device("a_forced_read_path_that_is_impossible_is_blamed") {
        return;
    }
    let home = Home::new();
    home.run(&["eval", "-m", MODEL, "--ids", "1"]).gives(0);
    // The ring is the last to need a descriptor: some number of them is enough for all before it.
    for count in 4..16 {
        let limited = format!("ulimit -n {count}; exec \"$0\" \"$@\"");
        let program = env!("CARGO_BIN_EXE_flint-rt");
        let mut command = home.command(&[]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &limited, program, "eval", "-m", MODEL, "--ids", "1", "--read-path", "ring"]);
        for (name, value) in command.stdout(Stdio::piped()).get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let Ok(output) = shell.stdin(Stdio::null()).output() else { return };
        let ran = Ran::new(output);
        if ran.stderr.contains("io_uring") {
            return ran.refuses(1, "--read-path");
        }
        assert_ne!(ran.code, Some(3), "the model is not at fault: {}", ran.stderr);
    }
    eprintln!("SKIPPED a_forced_read_path_that_is_impossible_is_blamed, the ring never lacked a descriptor");
}

#[test]
fn input_without_end_is_refused_by_its_limit() {
    let home = Home::new();
    let zero = || std::fs::File::open("/dev/zero").unwrap();
    let ran = Ran::new(home.command(&["tokenize"]).stdin(zero()).output().unwrap());
    ran.refuses(2, "64.00 MiB");
    home.run(&["eval", "--perplexity", "/dev/zero", "-m", MODEL]).refuses(2, "64.00 MiB");
}

#[test]
fn a_conversation_that_is_none_names_message_and_field() {
    let home = Home::new();
    let file = home.path().join("chat.json");
    let path = file.to_str().unwrap();
    for (text, what) in [
        (r#"[{"role": "user", "content": "x"}, {"role": "narrator"}]"#, "messages[1].role"),
        (r#"[{"role": "user", "content": 5}]"#, "messages[0].content is a number"),
    ] {
        std::fs::write(&file, text).unwrap();
        home.run(&["eval", "-m", MODEL, "--chat", path]).refuses(2, what);
    }
    if has_device("a_conversation_that_is_none_names_message_and_field") {
        std::fs::write(&file, "[]").unwrap();
        let ran = home.run(&["eval", "-m", MODEL, "--chat", path, "--json"]).gives(0);
        assert_eq!(ids_of(&ran.json()["ids"]), [5]);
    }
}

/// The bundled model with `from` in its bytes made `to`, of the same length.
fn changed_model(folder: &Path, name: &str, from: &[u8], to: &[u8]) -> std::path::PathBuf {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(MODEL).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn another_tokenizer_is_refused_by_its_key() {
    let home = Home::new();
    let key = |name: &str, value: &str| {
        let mut bytes = name.as_bytes().to_vec();
        bytes.extend(8u32.to_le_bytes());
        bytes.extend((value.len() as u64).to_le_bytes());
        bytes.extend(value.as_bytes());
        bytes
    };
    for (name, found, other) in
        [("tokenizer.ggml.model", "gpt2", "bert"), ("tokenizer.ggml.pre", "flint", "llama")]
    {
        let path = changed_model(home.path(), "other.gguf", &key(name, found), &key(name, other));
        let path = path.to_str().unwrap();
        home.run(&["tokenize", "-m", path, "x"]).refuses(3, &format!("{name} is {other:?}"));
        home.run(&["ingest", path]).refuses(3, name);
    }
}

#[test]
fn names_of_a_file_do_not_reach_the_terminal_raw() {
    let home = Home::new();
    let name = b"blk.3.attn_norm.weight";
    let path = changed_model(home.path(), "other.gguf", name, b"blk.3.att\x1b[31mm.weight");
    let ran = home.run(&["tokenize", "-m", path.to_str().unwrap(), "x"]);
    let ran = if ran.code == Some(0) { home.run(&["info", path.to_str().unwrap()]) } else { ran }.gives(3);
    assert!(!ran.stderr.contains('\x1b') && ran.stderr.contains("u{1b}"), "{}", ran.stderr);
}

#[test]
fn a_store_of_other_weights_is_not_taken_for_this_file() {
    if !has_device("a_store_of_other_weights_is_not_taken_for_this_file") {
        return;
    }
    let home = Home::new();
    let first = home.path().join("first");
    std::fs::create_dir(&first).unwrap();
    let first = first.join("model.gguf");
    let mut bytes = std::fs::read(MODEL).unwrap();
    std::fs::write(&first, &bytes).unwrap();
    let second = home.path().join("model.gguf");
    let len = bytes.len();
    // The nibbles of the last blocks, not their scales: other weights, all finite.
    bytes[len - 100_000..].chunks_exact_mut(20).for_each(|block| block[4..].reverse());
    std::fs::write(&second, bytes).unwrap();

    let eval = |path: &Path, source: &str| {
        home.run(&["eval", "-m", path.to_str().unwrap(), "--source", source, "--ids", "4,50,5", "--json"])
            .gives(0)
    };
    eval(&first, "store");
    let of_store = eval(&second, "store");
    assert_eq!(of_store.stdout, eval(&second, "gguf").stdout);
    assert!(of_store.stderr.contains("is no store of this file"), "{}", of_store.stderr);
    for path in [&first, &second] {
        let again = eval(path, "store");
        assert!(again.stderr.contains("store: ") && !again.stderr.contains("making"), "{}", again.stderr);
        assert_eq!(again.stdout, eval(path, "gguf").stdout);
    }
}

#[test]
fn a_bundled_store_that_is_none_is_made_anew_once() {
    let home = Home::new();
    let dir = home.path().join("data/flint-rt");
    let store = dir.join("flint-nano-q4_1");
    let heals = |what: &str| {
        let ran = home.run(&["tokenize", "x"]).gives(0);
        assert!(!ran.stderr.contains("for this run only"), "{what}: {}", ran.stderr);
        assert!(ran.stderr.contains("anew"), "{what}: {}", ran.stderr);
        let again = home.run(&["tokenize", "x"]).gives(0);
        assert_eq!(again.stderr.lines().count(), 1, "{what}: {}", again.stderr);
    };
    std::fs::create_dir_all(&store).unwrap();
    heals("an empty folder");
    std::fs::remove_file(store.join("manifest.json")).unwrap();
    heals("no manifest");
    std::fs::write(store.join("manifest.json"), r#"{"format": "flint-rt store", "version": 0}"#).unwrap();
    heals("an older version");
    std::fs::remove_file(store.join("manifest.json")).unwrap();
    std::fs::write(store.join("diary.txt"), "dear diary").unwrap();
    heals("a folder that holds something else");
    assert_eq!(std::fs::read(dir.join("flint-nano-q4_1.old-1/diary.txt")).unwrap(), b"dear diary");

    std::fs::write(store.join("manifest.json"), r#"{"format": "flint-rt store", "version": 9999}"#).unwrap();
    let ran = home.run(&["tokenize", "x"]).gives(0);
    assert!(ran.stderr.contains("in place") && !ran.stderr.contains("anew"), "{}", ran.stderr);
}

#[test]
fn a_prompt_over_the_context_is_a_usage_fault() {
    let home = Home::new();
    let long = home.path().join("long.txt");
    std::fs::write(&long, "def f(x): return x\n".repeat(100)).unwrap();
    let long = long.to_str().unwrap();
    home.run(&["eval", "-m", MODEL, "--perplexity", long, "-c", "100", "--device", "none of these"])
        .refuses(2, "context of 100");
    if !has_device("a_prompt_over_the_context_is_a_usage_fault") {
        return;
    }
    let text = "def f(x): return x\n".repeat(100);
    let ran = home.run(&["generate", "-m", MODEL, "-c", "32", &text]).gives(2);
    assert!(ran.stderr.contains("tokens does not fit the context of 32"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--ctx-size"), "{}", ran.stderr);
    let ran = home.run_with_input(&["generate", "-m", MODEL], text.repeat(100)).gives(2);
    assert!(ran.stderr.contains("the model has at most"), "{}", ran.stderr);
}

#[test]
fn models_that_are_none_are_refused_by_name() {
    let home = Home::new();
    let text = home.path().join("text.gguf");
    std::fs::write(&text, "hello").unwrap();
    let short = home.path().join("short.gguf");
    std::fs::write(&short, &std::fs::read(MODEL).unwrap()[..100_000]).unwrap();
    let (text, short) = (text.to_str().unwrap(), short.to_str().unwrap());
    let folder = home.path().to_str().unwrap();
    for command in [&["generate", "x"][..], &["tokenize", "x"], &["info"], &["eval", "--ids", "1"], &["chat"]]
    {
        for (model, what) in [
            ("/nowhere/model.gguf", "/nowhere/model.gguf"),
            ("no-such-store", "no-such-store"),
            (text, "text.gguf"),
            (short, "short.gguf"),
            (folder, folder),
        ] {
            home.run(&[command, &["--model", model]].concat()).refuses(3, what);
        }
    }
    home.run(&["ingest", text]).refuses(3, "text.gguf");
    home.run(&["ingest", short]).refuses(3, "short.gguf");
    home.run(&["ingest", "/nowhere/model.gguf"]).refuses(3, "/nowhere/model.gguf");
    let stores = std::fs::read_dir(home.path().join("data")).map_or(0, Iterator::count);
    assert_eq!(stores, 0, "a refused file left something behind");
}

#[test]
fn tokenize_meets_the_vectors() {
    let home = Home::new();
    let vectors = vectors("tokenizer.json");
    for case in vectors["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        // An argument cannot hold a NUL; standard input can.
        let by_input = home.run_with_input(&["tokenize", "-m", MODEL, "--json"], text).gives(0);
        assert_eq!(ids_of(&by_input.json()["ids"]), ids_of(&case["ids"]), "{text:?}");
        if !text.contains('\0') && text.len() < 10_000 {
            let by_argument = home.run(&["tokenize", "-m", MODEL, "--json", "--", text]).gives(0);
            assert_eq!(by_argument.stdout, by_input.stdout, "{text:?}");
        }
        if let Some(plain) = case.get("ids_plain") {
            let ran = home.run_with_input(&["tokenize", "-m", MODEL, "--json", "--plain"], text).gives(0);
            assert_eq!(ids_of(&ran.json()["ids"]), ids_of(plain), "{text:?}");
        }
    }
    let lines = home.run(&["tokenize", "-m", MODEL, "a\u{e9}"]).gives(0);
    assert!(lines.stdout.lines().all(|line| line.split_once('\t').is_some()), "{}", lines.stdout);
}

#[test]
fn ingest_twice_makes_one_store() {
    let home = Home::new();
    let first = home.run(&["ingest", MODEL, "--json"]).gives(0).last_event();
    assert_eq!(first["made"], true);
    assert_eq!(first["source_sha256"], vectors("prompts.json")["sha256"]);
    let second = home.run(&["ingest", MODEL, "--json"]).gives(0).last_event();
    assert_eq!(second["made"], false);
    assert_eq!(first["store"], second["store"]);
    assert_eq!(first["source_sha256"], second["source_sha256"]);
    let path = first["store"].as_str().unwrap();
    assert_eq!(home.run(&["ingest", MODEL]).gives(0).stdout, format!("{path}\n"));

    // The store is found by its name and by its path.
    let by_name = home.run(&["tokenize", "-m", "flint-nano-q4_1", "--json", "x"]).gives(0);
    assert_eq!(by_name.stdout, home.run(&["tokenize", "-m", path, "--json", "x"]).gives(0).stdout);

    // Another file does not take its place.
    let other = home.run(&["ingest", MODEL, "--name", "other"]).gives(0);
    assert!(other.stdout.ends_with("other\n"), "{}", other.stdout);
    std::fs::create_dir(home.path().join("data/flint-rt/taken")).unwrap();
    home.run(&["ingest", MODEL, "--name", "taken"]).refuses(1, "taken");
}

#[test]
fn a_device_that_is_none_is_refused_with_a_list() {
    if !has_device("a_device_that_is_none_is_refused_with_a_list") {
        return;
    }
    let home = Home::new();
    let devices = home.run(&["devices", "--json"]).gives(0).json();
    let name = devices["devices"][0]["name"].as_str().unwrap().to_owned();
    home.run(&["generate", "x", "--device", "nonsense"]).refuses(4, &name);
    home.run(&["eval", "--ids", "1", "--device", "99"]).refuses(4, &name);
    let mut no_driver = home.command(&["devices"]);
    no_driver.env("VK_ICD_FILENAMES", "/nowhere").env("VK_DRIVER_FILES", "/nowhere");
    Ran::new(no_driver.output().unwrap()).refuses(4, "no Vulkan device");
}

#[test]
fn info_says_everything_as_json() {
    if !has_device("info_says_everything_as_json") {
        return;
    }
    let home = Home::new();
    let info = home.run(&["info", MODEL, "--json"]).gives(0).json();
    assert_eq!(info["model"]["kind"], "gguf");
    assert_eq!(info["model"]["layer_count"], 8);
    assert_eq!(info["tokenizer"]["tokens"], info["model"]["vocabulary"]);
    assert!(info["memory"]["pool_slots"].as_u64().unwrap() >= 4, "{}", info["memory"]);
    assert!(!info["devices"].as_array().unwrap().is_empty(), "{info}");
    for path in ["read_path", "host_path"] {
        assert!(info["paths"][path].is_string(), "{}", info["paths"]);
    }
    let text = home.run(&["info"]).gives(0);
    assert!(text.stderr.contains("bundled"), "{}", text.stderr);
    assert!(text.stdout.contains("store") && text.stdout.contains("expert slots"), "{}", text.stdout);
}

#[test]
fn generate_is_deterministic_and_keeps_its_streams_apart() {
    if !has_device("generate_is_deterministic_and_keeps_its_streams_apart") {
        return;
    }
    let home = Home::new();
    let vectors = vectors("prompts.json");
    let short =
        vectors["prompts"].as_array().unwrap().iter().find(|prompt| prompt["name"] == "short").unwrap();
    let text = short["text"].as_str().unwrap().strip_prefix("<|begin_of_text|>").unwrap();
    let wanted = short["greedy_text"].as_str().unwrap();

    let first = home.run(&["generate", text, "-n", "24", "--stats"]).gives(0);
    assert!(wanted.starts_with(first.stdout.trim_end_matches('\n')), "{:?}", first.stdout);
    for word in ["bundled", "device:", "tokens/s", "from disk"] {
        assert!(first.stderr.contains(word), "{word} in {}", first.stderr);
    }
    let profiled = home.run(&["generate", text, "-n", "24", "--profile"]).gives(0);
    assert_eq!(profiled.stdout, first.stdout);
    for word in ["profile of the prompt", "profile of the reply", "expert_gate_up", "without stamps: "] {
        assert!(profiled.stderr.contains(word), "{word} in {}", profiled.stderr);
    }
    // The bundled model's store is there now; a prompt by standard input loses one newline.
    let again = home.run_with_input(&["generate", "-n", "24"], format!("{text}\n")).gives(0);
    assert_eq!(again.stdout, first.stdout);

    // Sampling follows the seed.
    let drawn = |seed: &str| {
        let args = ["generate", text, "-n", "16", "--temp", "1.5", "--top-k", "40", "--seed", seed];
        home.run(&args).gives(0).stdout
    };
    assert_eq!(drawn("7"), drawn("7"));

    // A damaged store of the bundled model is made anew.
    let experts = home.path().join("data/flint-rt/flint-nano-q4_1/experts.bin");
    std::fs::write(&experts, "short").unwrap();
    let repaired = home.run(&["generate", text, "-n", "24"]).gives(0);
    assert_eq!(repaired.stdout, first.stdout);
    assert!(repaired.stderr.contains("anew"), "{}", repaired.stderr);
}

#[test]
fn the_bundled_model_runs_where_nothing_can_be_written() {
    if !has_device("the_bundled_model_runs_where_nothing_can_be_written") {
        return;
    }
    let home = Home::new();
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut command = home.command(&["generate", "def f", "-n", "3"]);
    let ran = Ran::new(command.env("XDG_DATA_HOME", file.join("below")).output().unwrap()).gives(0);
    assert!(ran.stderr.contains("for this run only"), "{}", ran.stderr);
}

#[test]
fn eval_meets_the_vectors() {
    if !has_device("eval_meets_the_vectors") {
        return;
    }
    let home = Home::new();
    let vectors = vectors("prompts.json");
    let short =
        vectors["prompts"].as_array().unwrap().iter().find(|prompt| prompt["name"] == "short").unwrap();
    let text = short["text"].as_str().unwrap();
    let args = ["eval", "-m", MODEL, "--prompt", text, "--routes", "--greedy", "48", "--json"];
    let got = home.run(&args).gives(0).json();

    assert_eq!(ids_of(&got["ids"]), ids_of(&short["ids"]));
    assert_eq!(ids_of(&got["argmax"]), ids_of(&short["argmax"]));
    let asserted = usize::try_from(short["assert_greedy"].as_u64().unwrap()).unwrap();
    assert_eq!(ids_of(&got["greedy"])[..asserted], ids_of(&short["greedy"])[..asserted]);
    let tolerance = vectors["tolerance"]["logit"].as_f64().unwrap();
    let top: Vec<(u64, f64)> = serde_json::from_value(got["top"].clone()).unwrap();
    let wanted: Vec<(u64, f64)> = serde_json::from_value(short["top"].clone()).unwrap();
    assert_eq!(top.len(), 20);
    for (id, logit) in &wanted[..10] {
        let (_, found) = top.iter().find(|(other, _)| other == id).unwrap();
        assert!((found - logit).abs() <= tolerance, "token {id}: {found}, wanted {logit}");
    }
    for (routes, wanted) in got["routes"].as_array().unwrap().iter().zip(short["routes"].as_array().unwrap())
    {
        assert_eq!(routes["layer"], wanted["layer"]);
        assert_eq!(routes["experts"], wanted["experts"], "layer {}", routes["layer"]);
    }
    let logprobs: Vec<Vec<(u64, f64)>> = serde_json::from_value(got["logprobs"].clone()).unwrap();
    assert_eq!(logprobs.len(), ids_of(&got["ids"]).len());
    assert!(logprobs.iter().flatten().all(|(_, value)| *value <= 0.0), "{logprobs:?}");

    // Ids in place of text, a store in place of the GGUF, other paths, few slots, chunks: the same bits.
    let ids: Vec<String> = ids_of(&got["ids"]).iter().map(u64::to_string).collect();
    let ids = ids.join(",");
    let base = ["eval", "-m", MODEL, "--ids", &ids, "--routes", "--greedy", "48", "--json"];
    for other in [
        &["--source", "store", "--read-path", "pool", "--host-path", "copy"][..],
        &["--pool-slots", "4", "--prefill-chunk", "1"],
        &["--source", "gguf", "--prefill-chunk", "7"],
    ] {
        let ran = home.run(&[&base, other].concat()).gives(0);
        let other_got = ran.json();
        for key in ["ids", "argmax", "greedy"] {
            assert_eq!(other_got[key], got[key], "{key} with {other:?}");
        }
    }

    // Messages of a file.
    let chat = vectors["prompts"].as_array().unwrap().iter().find(|prompt| prompt["name"] == "chat").unwrap();
    let file = home.path().join("chat.json");
    for messages in [chat["messages"].clone(), serde_json::json!({ "messages": chat["messages"] })] {
        std::fs::write(&file, messages.to_string()).unwrap();
        let ran = home.run(&["eval", "--chat", file.to_str().unwrap(), "--json"]).gives(0);
        assert_eq!(ids_of(&ran.json()["ids"]), ids_of(&chat["ids"]));
    }
    std::fs::write(&file, "{\"messages\": 5}").unwrap();
    home.run(&["eval", "--chat", file.to_str().unwrap()]).refuses(2, "chat.json");
    home.run(&["eval", "--ids", "1", "--source", "gguf", "-m", "flint-nano-q4_1"]).refuses(2, "--model");
}

#[test]
fn eval_gives_the_perplexity_of_a_text() {
    if !has_device("eval_gives_the_perplexity_of_a_text") {
        return;
    }
    let home = Home::new();
    let file = home.path().join("text.py");
    std::fs::write(&file, "def add(a, b):\n    return a + b\n".repeat(8)).unwrap();
    let file = file.to_str().unwrap();
    let got = home.run(&["eval", "--perplexity", file, "--tokens", "50", "--json"]).gives(0).json();
    assert_eq!(got["tokens"], 50);
    let (loss, perplexity) = (got["loss"].as_f64().unwrap(), got["perplexity"].as_f64().unwrap());
    assert!(loss > 0.0 && (loss.exp() - perplexity).abs() < 1e-9, "{got}");
    home.run(&["eval", "--perplexity", file, "--tokens", "100000"]).refuses(2, "text.py");
}

#[test]
fn chat_answers_lines_of_a_pipe() {
    if !has_device("chat_answers_lines_of_a_pipe") {
        return;
    }
    let home = Home::new();
    let question = "Write a Python function that reverses a string.";
    let input = format!(
        "/stats\n{question}\n/stats\n/reset\n\"\"\"\n{question}\n\"\"\"\n/nonsense\n/help\n/quit\nnever\n"
    );
    let ran = home.run_with_input(&["chat", "-n", "64"], &input).gives(0);
    let answer = "```python\ndef reverse_string(text):\n    \"\"\"Reverse a string.\"\"\"\n    return text[::-1]\n```\n";
    assert_eq!(ran.stdout, answer.repeat(2), "after /reset the same question has the same answer");
    for word in ["no reply yet", "tokens/s", "forgotten", "/nonsense", "Ctrl-C"] {
        assert!(ran.stderr.contains(word), "{word} in {}", ran.stderr);
    }

    // A conversation that outgrows the context says so, and a script sees it.
    let input =
        "Write a Python function that reverses a string, and explain each line of it to me.\n".repeat(3);
    let ran = home.run_with_input(&["chat", "-n", "8", "-c", "32"], &input).gives(1);
    assert!(ran.stderr.contains("/reset"), "{}", ran.stderr);
}

#[test]
fn chat_goes_on_after_a_line_that_is_no_text() {
    if !has_device("chat_goes_on_after_a_line_that_is_no_text") {
        return;
    }
    let home = Home::new();
    let question = "Write a Python function that reverses a string.";
    let input = [b"\xff\xfe\n\"\"\"\na\n\xff\n\"\"\"\n".as_slice(), question.as_bytes()].concat();
    let ran = home.run_with_input(&["chat", "-n", "8"], input).gives(1);
    assert!(ran.stdout.starts_with("```python"), "{}", ran.stdout);
    assert!(ran.stderr.contains("line 1 of standard input is not UTF-8"), "{}", ran.stderr);
    assert!(ran.stderr.contains("line 4 of standard input is not UTF-8"), "{}", ran.stderr);
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    if !has_device("a_closed_pipe_ends_it_quietly") {
        return;
    }
    let home = Home::new();
    let mut child = home.command(&["generate", "def f(", "-n", "4000"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 4]).unwrap();
    drop(stdout);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{stderr}");
    assert!(!stderr.contains("flint-rt:") && !stderr.contains("panicked"), "{stderr}");
}

#[test]
fn a_signal_ends_a_reply_with_its_code() {
    if !has_device("a_signal_ends_a_reply_with_its_code") {
        return;
    }
    let home = Home::new();
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut child = home.command(&["generate", "def f(", "-n", "4000"]).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 4]).unwrap();
        let kill = Command::new("sh").args(["-c", &format!("kill {signal} {}", child.id())]).status();
        if kill.is_err() {
            eprintln!("SKIPPED a_signal_ends_a_reply_with_its_code, no kill command");
        }
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
        let status = child.wait().unwrap();
        if kill.is_ok() {
            assert_eq!(status.code(), Some(code));
            assert_eq!(rest.last(), Some(&b'\n'), "the line is ended");
        }
    }
}

#[test]
fn a_signal_leaves_nothing_half_made() {
    let home = Home::new();
    let target = home.path().join("big.gguf");
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let size = ["--preset", "quarter", "--layers", "3", "--lead-layers", "1"];
        let args = [&["synth"][..], &size, &[target.to_str().unwrap()]].concat();
        let mut child = home.command(&args).spawn().unwrap();
        let partial = home.path().join("big.gguf.partial");
        while !partial.exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let kill = Command::new("sh").args(["-c", &format!("kill {signal} {}", child.id())]).status();
        if kill.is_err() {
            child.kill().unwrap();
            return;
        }
        let ran = Ran::new(child.wait_with_output().unwrap()).gives(code);
        assert!(!partial.exists() && !target.exists(), "{}", ran.stderr);
    }
}

#[test]
fn a_store_over_two_folders_runs_is_verified_and_goes_away() {
    if !has_device("a_store_over_two_folders_runs_is_verified_and_goes_away") {
        return;
    }
    let home = Home::new();
    let drives = ["one", "two"].map(|name| home.path().join(name));
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let [one, two] = drives.each_ref().map(|drive| drive.to_str().unwrap());
    let stripe = format!("{one}=2,{two}=1");
    home.run(&["ingest", MODEL, "--name", "striped", "--stripe", &stripe]).gives(0);
    let eval = |model: &str| {
        home.run(&["eval", "-m", model, "--ids", "4,50,5", "--greedy", "4", "--top", "3072", "--json"])
            .gives(0)
    };
    assert_eq!(eval("striped").stdout, eval(MODEL).stdout, "the same bits");
    home.run(&["verify", "striped"]).gives(0);
    // A drive that is not there is said in plain words.
    std::fs::rename(&drives[1], home.path().join("away")).unwrap();
    let ran = home.run(&["eval", "-m", "striped", "--ids", "4"]);
    assert!(ran.code != Some(0) && ran.stderr.contains(two), "{}", ran.stderr);
    std::fs::rename(home.path().join("away"), &drives[1]).unwrap();
    home.run(&["remove", "striped", "--yes"]).gives(0);
    assert!(
        drives.iter().all(|drive| std::fs::read_dir(drive).unwrap().next().is_none()),
        "stripes are left"
    );
    home.run(&["ingest", MODEL, "--stripe", &format!("{one}=2,{two}")]).refuses(2, "weight");
}

#[test]
fn a_dry_run_says_what_an_ingest_would_do_and_writes_nothing() {
    let home = Home::new();
    let args = ["ingest", MODEL, "--dry-run"];
    let ran = home.run(&args).gives(0);
    for word in ["9.19 MiB", "room", "free", "data/flint-rt/flint-nano-q4_1"] {
        assert!(ran.stdout.contains(word), "{word} in {}", ran.stdout);
    }
    let planned = home.run(&["ingest", MODEL, "--dry-run", "--json"]).gives(0).last_event();
    assert_eq!(planned["event"], "planned");
    assert!(!home.path().join("data").exists(), "nothing was made");
    // What was said is what the ingest then takes, but for its manifest.
    home.run(&["ingest", MODEL]).gives(0);
    let store = home.path().join("data/flint-rt/flint-nano-q4_1");
    let files = std::fs::read_dir(&store).unwrap().map(Result::unwrap);
    let bytes: u64 = files
        .filter(|file| file.file_name() != "manifest.json")
        .map(|file| file.metadata().unwrap().len())
        .sum();
    assert_eq!(planned["places"][0]["needed_bytes"].as_u64(), Some(bytes));
    let stripes = format!("{}=3,{}=1", home.path().join("a").display(), home.path().join("b").display());
    let args = ["ingest", MODEL, "--name", "other", "--dry-run", "--json", "--stripe", &stripes];
    let planned = home.run(&args).gives(0).last_event();
    assert_eq!(planned["places"].as_array().unwrap().len(), 3);
    assert!(!home.path().join("a").exists(), "nothing was made");
    // What another source has begun is refused, as the ingest would refuse it.
    let begun = home.path().join("data/flint-rt/begun.partial");
    std::fs::create_dir(&begun).unwrap();
    let stamp =
        serde_json::json!({ "kind": "http", "location": "http://x/y.gguf", "len_bytes": 7, "state": "" });
    let journal = serde_json::json!({ "task": { "stamps": [stamp] }, "offset_bytes": 5 });
    std::fs::write(begun.join("journal.json"), journal.to_string()).unwrap();
    home.run(&["ingest", MODEL, "--name", "begun", "--dry-run"]).refuses(1, "was begun with http://x/y.gguf");
    // Room that is taken is not asked for again; who is at work in the folder is named.
    std::fs::remove_file(begun.join("journal.json")).unwrap();
    std::fs::create_dir(begun.join("store")).unwrap();
    std::fs::write(begun.join("store/dense.bin"), vec![7; 1 << 20]).unwrap();
    let lock = std::fs::File::create(begun.join("lock")).unwrap();
    let planned =
        home.run(&["ingest", MODEL, "--name", "begun", "--dry-run", "--json"]).gives(0).last_event();
    assert!(planned["places"][0]["taken_bytes"].as_u64() >= Some(1 << 20), "{planned}");
    let me = format!("process {}", std::process::id());
    assert!(planned["running"][0].as_str().unwrap().contains(&me), "{planned}");
    let ran = home.run(&["ingest", MODEL, "--name", "begun", "--dry-run"]).gives(0);
    assert!(ran.stdout.contains("is running") && ran.stdout.contains("are taken"), "{}", ran.stdout);
    drop(lock);
    let ran = home.run(&["ingest", MODEL, "--name", "begun", "--dry-run"]).gives(0);
    assert!(!ran.stdout.contains("is running"), "{}", ran.stdout);
}

#[test]
fn a_place_that_takes_no_store_is_no_fault_of_the_model() {
    let home = Home::new();
    let there = home.path().join("there");
    std::fs::create_dir(&there).unwrap();
    for weight in ["", "=1"] {
        let stripes = format!("nowhere{weight},{}{weight}", there.display());
        home.run(&["ingest", MODEL, "--stripe", &stripes]).refuses(1, "make it, or mount its drive");
    }
    assert!(!home.path().join("data").exists(), "a folder was made");
    home.run(&["ingest", MODEL, "--store-dir", "/proc"]).refuses(1, "takes no folders");
    home.run(&["ingest", MODEL, "--store-dir", "/proc/x"]).refuses(1, "name another with --store-dir");
    let limited = "ulimit -n 8; exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", limited, env!("CARGO_BIN_EXE_flint-rt"), "ingest", MODEL, "--store-dir"]).arg(&there);
    Ran::new(shell.stdin(Stdio::null()).output().unwrap()).refuses(1, "ulimit -n");
}

#[test]
fn a_damaged_store_names_its_repair() {
    let home = Home::new();
    home.run(&["ingest", MODEL]).gives(0);
    let store = home.path().join("data/flint-rt/flint-nano-q4_1");
    let open = |name: &str| std::fs::File::options().write(true).open(store.join(name)).unwrap();
    open("experts.bin").set_len(100).unwrap();
    home.run(&["info", "-m", "flint-nano-q4_1"]).refuses(3, "--repair SOURCE.gguf");
    std::fs::remove_file(store.join("dense.bin")).unwrap();
    home.run(&["info", "-m", "flint-nano-q4_1"]).refuses(3, "--repair SOURCE.gguf");
    home.run(&["verify", "flint-nano-q4_1", "--repair", MODEL]).gives(0);
    open("manifest.json").set_len(100).unwrap();
    home.run(&["info", "-m", "flint-nano-q4_1"]).refuses(3, "remove the store");
    home.run(&["remove", "flint-nano-q4_1", "--yes"]).gives(0);
    home.run(&["ingest", MODEL]).gives(0);
}

#[test]
fn what_is_no_file_of_a_model_is_named_and_read_no_further() {
    let home = Home::new();
    let at = |name: &str| home.path().join(name);
    std::fs::create_dir(at("folder")).unwrap();
    std::fs::write(at("empty.gguf"), "").unwrap();
    std::fs::write(at("zeros.gguf"), [0; 5000]).unwrap();
    std::os::unix::fs::symlink(at("loop-b"), at("loop-a")).unwrap();
    std::os::unix::fs::symlink(at("loop-a"), at("loop-b")).unwrap();
    std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    for command in ["verify", "ingest", "info"] {
        for (name, words) in [
            ("folder", if command == "ingest" { "not a regular file" } else { "no manifest.json" }),
            ("empty.gguf", "truncated"),
            ("zeros.gguf", "not a GGUF"),
            ("loop-a", "symbolic links"),
            ("dangling", if command == "ingest" { "No such file" } else { "no such file" }),
            ("socket", "not a regular file"),
            ("pipe", "not a regular file"),
        ] {
            let path = at(name);
            home.run(&[command, path.to_str().unwrap()]).refuses(3, words);
        }
        for device in ["/dev/zero", "/dev/null"] {
            home.run(&[command, device]).refuses(3, "not a regular file");
        }
    }
    assert!(!home.path().join("data").join("flint-rt").join("folder").exists());
}

#[test]
fn settings_of_the_environment_are_named_when_they_do_not_fit() {
    let home = Home::new();
    for (variable, value) in [
        ("FLINT_RT_TEMP", "-1"),
        ("FLINT_RT_TOP_P", "2"),
        ("FLINT_RT_REPEAT_PENALTY", "0"),
        ("FLINT_RT_PRESENCE_PENALTY", "9"),
        ("FLINT_RT_MODEL", "./not/here"),
    ] {
        let ran = home.run_with(&["generate", "x"], variable, value);
        assert!(matches!(ran.code, Some(2 | 3)), "{variable}: {}", ran.stderr);
        assert!(ran.stderr.contains(variable), "{variable}: {}", ran.stderr);
    }
    // A flag wins, so the variable is not to blame.
    let ran = home.run_with(&["generate", "x", "--temp", "-2"], "FLINT_RT_TEMP", "-1").gives(2);
    assert!(!ran.stderr.contains("FLINT_RT_TEMP"), "{}", ran.stderr);
    if has_device("settings_of_the_environment") {
        let ran = home.run_with(&["generate", "x", "-m", MODEL], "FLINT_RT_CTX_SIZE", "99999999").gives(2);
        assert!(ran.stderr.contains("FLINT_RT_CTX_SIZE=99999999"), "{}", ran.stderr);
    }
}

#[test]
fn names_in_a_file_cannot_steer_the_terminal() {
    let home = Home::new();
    let mut bytes = std::fs::read(MODEL).unwrap();
    // The name's length stays, so all else stays in place.
    let name = b"Flint nano (test model)";
    let key = b"general.name";
    let start = bytes.windows(key.len()).position(|part| part == key).unwrap() + key.len() + 4 + 8;
    assert!(bytes[start..].starts_with(name), "the bundled model's name");
    bytes[start..start + name.len()].copy_from_slice(b"a\x1b[2J\nb\x07c..............");
    let path = home.path().join("steering.gguf");
    std::fs::write(&path, bytes).unwrap();
    let ran = home.run(&["info", path.to_str().unwrap()]);
    assert!(ran.stdout.contains("model a\\u{1b}[2J\\nb\\u{7}c"), "{}", ran.stdout);
    assert!(!ran.stdout.contains(['\x1b', '\x07']), "{}", ran.stdout);
}

#[test]
fn too_little_memory_is_said_and_is_no_panic() {
    let home = Home::new();
    for kibibytes in (40_000..=100_000).step_by(10_000) {
        for command in ["verify", "ingest"] {
            let limited = home.command(&[command, MODEL]);
            let program = limited.get_program().to_owned();
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("ulimit -v {kibibytes}; exec \"$@\""), "sh"]).arg(program);
            shell.args(limited.get_args()).stdin(Stdio::null());
            for (name, value) in limited.get_envs() {
                match value {
                    Some(value) => shell.env(name, value),
                    None => shell.env_remove(name),
                };
            }
            let ran = Ran::new(shell.output().unwrap());
            assert!(!ran.stderr.contains("panicked"), "{command}, {kibibytes} KiB: {}", ran.stderr);
            // So little that the program itself is not loaded ends by a signal, or with the loader's 127.
            if kibibytes >= 60_000 {
                assert!(
                    matches!(ran.code, Some(0 | 5)),
                    "{command}, {kibibytes}: {:?} {}",
                    ran.code,
                    ran.stderr
                );
            }
        }
    }
}
