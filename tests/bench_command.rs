//! `flint-rt bench` by the real binary: its rows in every format, warm and cold, driven by routes, compared, ended early.
//!
//! Each test has folders of its own. Tests that open a device say so and pass where there is none.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/program.rs"]
mod program;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use flint_rt::engine::simulate::{self, CacheKind, Prefetch, Rule, Setup};
use flint_rt::expert::{Policy, RouteTrace};
use program::{Ran, program};
use serde_json::Value;
use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/flint-nano-q4_1.gguf");

/// Its layers with experts, the first of them, experts of a layer, and of a token in it.
const LAYERS: u32 = 6;
const FIRST: u32 = 2;
const EXPERTS: u32 = 16;
const USED: u32 = 4;

/// Compiled kernels, for all tests of this file.
static CACHE: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = program(&["FLINT_RT_DEVICE", "FLINT_RT_VALIDATION"]);
        command
            .args(args)
            .env("HOME", self.0.path())
            .env("XDG_DATA_HOME", self.0.path().join("data"))
            .env("XDG_STATE_HOME", self.0.path().join("state"))
            .env("XDG_CACHE_HOME", CACHE.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn bench(&self, args: &[&str]) -> Ran {
        let args: Vec<&str> = ["bench"].iter().chain(args).copied().collect();
        let output = self.command(&args).output().unwrap();
        Ran::new(output)
    }

    /// The rows of a run on the model's GGUF, and `args`.
    fn rows(&self, args: &[&str]) -> Vec<Value> {
        // What is not about the plan need not be measured for it.
        let args: Vec<&str> =
            args.iter().chain(&["-m", MODEL, "-o", "json", "--plan", "estimate"]).copied().collect();
        let ran = self.bench(&args).gives(0);
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stdout))
    }
}

fn has_device(test: &str) -> bool {
    static HAS_DEVICE: LazyLock<bool> =
        LazyLock::new(|| Home::new().command(&["devices"]).status().unwrap().success());
    if !*HAS_DEVICE {
        eprintln!("SKIPPED {test}, no Vulkan device");
    }
    *HAS_DEVICE
}

/// A trace of the model's shape.
fn trace(picks: Vec<u16>) -> RouteTrace {
    RouteTrace {
        model: "made by a test".to_owned(),
        model_sha256: None,
        expert_layer_first: FIRST,
        layer_count: LAYERS,
        expert_count: EXPERTS,
        experts_used: USED,
        picks,
        guesses: None,
        context_starts: vec![0],
        source: "a test".to_owned(),
        expansion: None,
    }
}

/// Picks of so many tokens, in an order that repeats itself late.
fn mixed_picks(tokens: u32) -> Vec<u16> {
    let mut picks = Vec::new();
    let mut state = 12_345_u32;
    for _ in 0..tokens * LAYERS {
        let mut of_layer = BTreeSet::new();
        let mut row = Vec::new();
        while row.len() < USED as usize {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let pick = u16::try_from((state >> 16) % EXPERTS).unwrap();
            if of_layer.insert(pick) {
                row.push(pick);
            }
        }
        picks.extend(row);
    }
    picks
}

/// The simulator's hits and misses of the trace, by the product's policy.
fn hits_and_misses(trace: &RouteTrace, slots: u32) -> (u64, u64) {
    hits_and_misses_by(trace, slots, Policy::default())
}

fn hits_and_misses_by(trace: &RouteTrace, slots: u32, policy: Policy) -> (u64, u64) {
    let prefetch = Prefetch::default();
    let setup = Setup { cache: CacheKind::Pool(policy), slots, rule: Rule::Waves, prefetch, cost: None };
    let outcome = simulate::run(trace, &setup);
    (outcome.hits, outcome.misses)
}

#[test]
fn rows_have_the_keys_of_llama_bench_and_ours() {
    if !has_device("rows_have_the_keys_of_llama_bench_and_ours") {
        return;
    }
    let home = Home::new();
    let args = ["-p", "4,8", "-n", "2-3", "-pg", "4,2", "-d", "0,4", "-r", "2", "--pool-slots", "48"];
    let rows = home.rows(&args);
    let names: Vec<&str> = rows.iter().map(|row| row["test"].as_str().unwrap()).collect();
    let plain = ["pp4", "pp8", "tg2", "tg3", "pp4+tg2"];
    let deep: Vec<String> = plain.iter().map(|name| format!("{name} @ d4")).collect();
    let wanted: Vec<&str> = plain.iter().copied().chain(deep.iter().map(String::as_str)).collect();
    assert_eq!(names, wanted);
    for row in &rows {
        for key in [
            "build_commit",
            "build_number",
            "cpu_info",
            "gpu_info",
            "backends",
            "model_filename",
            "model_type",
            "n_batch",
            "n_ubatch",
            "n_threads",
            "cpu_mask",
            "cpu_strict",
            "poll",
            "type_k",
            "type_v",
            "n_gpu_layers",
            "n_cpu_moe",
            "split_mode",
            "main_gpu",
            "no_kv_offload",
            "flash_attn",
            "devices",
            "tensor_split",
            "tensor_buft_overrides",
            "use_mmap",
            "use_direct_io",
            "embeddings",
            "no_op_offload",
            "no_host",
            "n_prompt",
            "n_gen",
            "n_depth",
            "test_time",
            "avg_ns",
            "stddev_ns",
            "avg_ts",
            "stddev_ts",
            "samples_ns",
            "samples_ts",
            "hit_rate",
            "disk_gb_s",
            "disk_busy_share",
            "prefetch",
            "drive_profile",
            "plan_ratio",
        ] {
            assert!(row.get(key).is_some(), "{key} is missing: {row}");
        }
        assert_eq!(row["schema_version"], 2);
        assert_eq!(row["model_n_params"], 10_844_448);
        assert_eq!(row["pool_slots"], 48);
        assert_eq!(row["cache"], "warm");
        assert_eq!(row["prefetch"], "next router");
        assert!(row["drive_profile"].as_str().unwrap().contains("run flint-rt disk-profile"), "{row}");
        let tokens = row["n_prompt"].as_f64().unwrap() + row["n_gen"].as_f64().unwrap();
        let (ns, ts) = (row["samples_ns"].as_array().unwrap(), row["samples_ts"].as_array().unwrap());
        assert_eq!((ns.len(), ts.len()), (2, 2));
        let mean = ns.iter().map(|ns| tokens * 1e9 / ns.as_f64().unwrap()).sum::<f64>() / 2.0;
        assert!((row["avg_ts"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9, "{row}");
        let busy = row["disk_busy_share"].as_f64().unwrap();
        assert!((0.0..=1.001).contains(&busy), "{row}");
        // A read may be under way whose end lies outside.
        assert!(busy > 0.0 || row["disk_gb_s"].is_null(), "{row}");
        // The parts are the steps' whole time, which the timed part holds.
        let part = |key: &str| row[key].as_f64().unwrap();
        let parts = ["disk_ns_a_token", "copy_ns_a_token", "gpu_ns_a_token", "host_ns_a_token"].map(part);
        let whole = part("avg_ns") / tokens;
        assert!(parts.iter().sum::<f64>() <= whole * 1.001, "{row}");
        assert!(parts.iter().sum::<f64>() >= whole * 0.5, "{row}");
        assert_eq!(row["plan_ts"].is_number(), row["n_prompt"] == 0, "{row}");
    }
}

#[test]
fn several_conversations_and_a_profile_are_rows_of_their_own() {
    if !has_device("several_conversations_and_a_profile_are_rows_of_their_own") {
        return;
    }
    let home = Home::new();
    let rows = home.rows(&["-p", "8", "-n", "4", "-npl", "1,3", "-d", "0,5", "-r", "2", "--profile"]);
    let names: Vec<&str> = rows.iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp8", "tg4", "tg4 pl3", "pp8 @ d5", "tg4 @ d5", "tg4 pl3 @ d5"]);
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} is no number: {row}"));
        let tokens = (number("n_prompt") + number("n_gen")) * number("n_parallel");
        // Rates are of all conversations together.
        let ns = row["samples_ns"][0].as_f64().unwrap();
        assert!((row["samples_ts"][0].as_f64().unwrap() / (tokens * 1e9 / ns) - 1.0).abs() < 1e-9, "{row}");
        let kernels = row["kernels"].as_array().unwrap();
        // Prompts have experts apart, next tokens together with the shared one.
        let experts = ["expert_gate_up", "ffn_gate_up"].map(Value::from);
        assert!(kernels.iter().any(|kernel| experts.contains(&kernel["kernel"])), "{row}");
        let sum = |key: &str| kernels.iter().map(|kernel| kernel[key].as_f64().unwrap()).sum::<f64>();
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs();
        assert!(near(sum("ns_a_token"), number("dispatch_ns_a_token")) && near(sum("share"), 1.0), "{row}");
        assert!(near(sum("count_a_token"), number("dispatches_a_token")), "{row}");
        assert!(number("stages_a_token") <= number("dispatches_a_token"), "{row}");
        let gap = 1.0 - number("dispatch_ns_a_token") / (number("avg_ns") / tokens);
        assert!((number("dispatch_gap_share") - gap).abs() < 1e-6, "{row}");
        assert!(number("dispatch_ns_a_token") <= number("stamped_ns_a_token"), "{row}");
        assert_eq!(row["plan_ts"].is_null(), row["n_parallel"] != 1 || row["n_gen"] == 0, "{row}");
    }
    let plain = home.rows(&["-p", "0", "-n", "2", "-r", "1", "--deterministic"]);
    assert!(plain[0]["kernels"].as_array().unwrap().is_empty() && plain[0]["dispatch_gap_share"].is_null());
    assert_eq!(plain[0]["deterministic"], true);
    assert!(plain[0]["tuning"].as_str().unwrap().contains("decode_splits=1"), "{plain:?}");

    for (args, word) in [(["-npl", "0"], "1 to 32"), (["-npl", "33"], "1 to 32")] {
        let ran = home.bench(&[&["-m", MODEL][..], &args].concat()).gives(2);
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
    let md = home.bench(&["-m", MODEL, "-p", "0", "-n", "2", "-r", "1", "--profile", "--plan", "estimate"]);
    let md = md.gives(0).stdout;
    assert!(md.contains("profile of tg2") && md.contains("1 - dispatches / token without stamps: "), "{md}");
}

#[test]
fn limits_are_measured_without_a_model() {
    if !has_device("limits_are_measured_without_a_model") {
        return;
    }
    let home = Home::new();
    let ran = home.bench(&["--limits", "-m", MODEL, "-o", "json"]).gives(0);
    let limits: Value = serde_json::from_str(&ran.stdout).unwrap();
    let keys = ["dispatch_dependent_us", "dispatch_independent_us", "record_us", "submit_us"];
    for key in keys.iter().chain(&["round_trip_wait_us", "round_trip_spin_us", "copy_gb_s", "fill_gb_s"]) {
        assert!(limits[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {limits}");
    }
    let matrices = limits["matrices"].as_array().unwrap();
    let memory = limits["copy_gb_s"].as_f64().unwrap().max(limits["fill_gb_s"].as_f64().unwrap());
    let mut chosen = 0_usize;
    for row in matrices {
        let number = |key: &str| row[key].as_f64().unwrap();
        let rate = number("bytes") / number("stream_us") / 1e3;
        assert!((number("stream_gb_s") / rate - 1.0).abs() < 1e-6, "{row}");
        assert!((number("stream_share") / (rate / memory) - 1.0).abs() < 1e-6, "{row}");
        chosen += usize::from(row["is_chosen"] == true);
    }
    assert!(chosen > 0 && matrices.len().is_multiple_of(chosen), "each shape has one way that is chosen");
    assert_eq!(home.bench(&["--limits", "-m", MODEL, "-o", "csv"]).gives(2).stdout, "");
}

#[test]
fn what_tune_finds_is_used_from_then_on() {
    if !has_device("what_tune_finds_is_used_from_then_on") {
        return;
    }
    let home = Home::new();
    let ran = home.bench(&["--tune=4", "-m", MODEL, "-o", "json"]).gives(0);
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    let choices = found["choices"].as_array().unwrap();
    assert!(!choices.is_empty(), "{found}");
    for choice in choices {
        let times = choice["ns"].as_array().unwrap();
        assert!(times.iter().any(|time| time[0] == choice["taken"]), "{choice}");
        assert!(times.iter().all(|time| time[1].as_f64().unwrap() > 0.0), "{choice}");
    }
    let info = |args: &[&str]| {
        let args: Vec<&str> = ["info", MODEL, "--json"].iter().chain(args).copied().collect();
        let output = home.command(&args).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["tuning"].clone()
    };
    let tuning = info(&[]);
    assert_eq!((&tuning["source"], &tuning["path"]), (&Value::from("remembered"), &found["path"]));
    for choice in choices {
        assert_eq!(tuning["values"][choice["name"].as_str().unwrap()], choice["taken"]);
    }
    assert_eq!(info(&["--no-tuned"])["source"], "table");
    let by_hand = info(&["--no-tuned", "--tuning", "rows_few=1"]);
    assert_eq!((&by_hand["values"]["rows_few"], &by_hand["changed"]), (&Value::from(1), &Value::from(true)));
    let wrong = home.command(&["info", MODEL, "--tuning", "rows_few=3"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("none of [1, 2, 4, 8]"));
}

#[test]
fn the_formats_say_the_same() {
    if !has_device("the_formats_say_the_same") {
        return;
    }
    let home = Home::new();
    let args = ["-m", MODEL, "-p", "4", "-n", "2", "-r", "2", "--no-warmup", "--plan", "estimate"];
    let run = |format: &[&str]| home.bench(&[&args[..], format].concat()).gives(0);

    let md = run(&[]).stdout;
    let lines: Vec<&str> = md.lines().collect();
    assert!(
        lines[0].starts_with("| model ") && lines[0].contains(" t/s ") && lines[0].contains(" hit "),
        "{md}"
    );
    assert!(lines[1].starts_with("| -----"), "{md}");
    let columns = |line: &str| line.matches('|').count();
    assert!(lines[2].contains(" pp4 ") && lines[3].contains(" tg2 "), "{md}");
    assert!(lines[..4].iter().all(|line| columns(line) == columns(lines[0])), "{md}");
    assert!(md.contains("build: flint-rt ") && md.contains("cache: warm"), "{md}");

    // Rows on standard error, too.
    let both = run(&["-o", "jsonl", "-oe", "csv"]);
    let rows: Vec<Value> = both.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["test"].as_str().unwrap()).collect::<Vec<_>>(), ["pp4", "tg2"]);
    let csv: Vec<&str> = both.stderr.lines().skip_while(|line| !line.starts_with("build_commit,")).collect();
    assert_eq!(csv.len(), 3, "{}", both.stderr);
    let titles: Vec<&str> = csv[0].split(',').collect();
    assert!(!titles.contains(&"samples_ns"), "lists are left out");
    for (line, row) in csv[1..].iter().zip(&rows) {
        let values: Vec<&str> = line.trim_matches('"').split("\",\"").collect();
        assert_eq!(values.len(), titles.len(), "{line}");
        let at = |title: &str| values[titles.iter().position(|other| *other == title).unwrap()];
        assert_eq!(at("test"), row["test"].as_str().unwrap());
        assert_eq!(at("avg_ns"), row["avg_ns"].to_string());
        assert_eq!(at("hits"), row["hits"].to_string());
    }
}

#[test]
fn a_cold_run_reads_everything_again() {
    if !has_device("a_cold_run_reads_everything_again") {
        return;
    }
    let home = Home::new();
    let row = &home.rows(&["-p", "0", "-n", "4", "-d", "2", "-r", "3", "--cold"])[0];
    assert_eq!(row["cache"], "cold");
    assert!(row["cache_policy"].as_str().unwrap().contains("emptied before each repetition"), "{row}");
    let read = row["samples_read_bytes"].as_array().unwrap();
    let record_bytes = row["record_bytes"].as_u64().unwrap();
    // The first token finds nothing.
    assert!(read[0].as_u64().unwrap() >= u64::from(LAYERS * USED) * record_bytes, "{row}");
    assert!(read.iter().all(|bytes| bytes == &read[0]), "the same tokens read the same: {row}");
    assert!(row["read_bytes_a_token"].as_f64().unwrap() > 0.0, "{row}");

    // The same model warm, all of it in slots: the repetitions after the warm-up of the same tokens read less.
    let warm = &home.rows(&["-p", "0", "-n", "4", "-d", "2", "-r", "3"])[0];
    let sum = |row: &Value| {
        row["samples_read_bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap()).sum::<u64>()
    };
    assert!(sum(warm) < sum(row), "warm {} B, cold {} B", sum(warm), sum(row));
}

#[test]
fn routes_give_exactly_the_hits_of_the_trace() {
    if !has_device("routes_give_exactly_the_hits_of_the_trace") {
        return;
    }
    let home = Home::new();
    let path = home.path("mixed.json");
    let mixed = trace(mixed_picks(12));
    mixed.save(Path::new(&path)).unwrap();
    let uses = u64::from(12 * LAYERS * USED);
    let distinct: BTreeSet<(usize, u16)> = (0..)
        .zip(mixed.picks.chunks(USED as usize))
        .flat_map(|(row, picks): (usize, _)| picks.iter().map(move |&pick| (row % LAYERS as usize, pick)))
        .collect();
    let distinct = distinct.len() as u64;
    for slots in [LAYERS * EXPERTS, 40, 25, 7] {
        let slots_text = slots.to_string();
        let recorded = home.path("recorded.json");
        let row = &home.rows(&[
            "-p",
            "0",
            "-n",
            "12",
            "-r",
            "1",
            "--no-warmup",
            "--routes",
            &path,
            "--pool-slots",
            &slots_text,
            "--record-routes",
            &recorded,
        ])[0];
        let (hits, misses) = hits_and_misses(&mixed, slots);
        assert_eq!(hits + misses, uses);
        if slots == LAYERS * EXPERTS {
            assert_eq!(misses, distinct, "a pool of everything misses each expert once");
        }
        assert_eq!(
            (row["hits"].as_u64(), row["misses"].as_u64()),
            (Some(hits), Some(misses)),
            "{slots} slots"
        );
        assert_eq!(row["routes"], "routes: mixed");
        // The picks themselves, in the order of the trace.
        assert_eq!(RouteTrace::load(Path::new(&recorded)).unwrap().picks, mixed.picks);
    }

    // Another policy, another count.
    let policy_args =
        ["-p", "0", "-n", "12", "-r", "1", "--no-warmup", "--pool-slots", "40", "--policy", "lru"];
    let row = &home.rows(&[&policy_args[..], &["--routes", &path]].concat())[0];
    let (hits, misses) = hits_and_misses_by(&mixed, 40, Policy::Lru);
    assert_eq!((row["hits"].as_u64(), row["misses"].as_u64()), (Some(hits), Some(misses)));
    assert_eq!(row["policy"], "lru");

    // A prompt: one chunk uses each expert of a layer once.
    let row = &home.rows(&["-p", "12", "-n", "0", "-r", "1", "--no-warmup", "--routes", &path])[0];
    assert_eq!((row["hits"].as_u64(), row["misses"].as_u64()), (Some(0), Some(distinct)));

    // Repetitions go on where the one before ended: three of four tokens are the twelve.
    let row = &home.rows(&[
        "-p",
        "0",
        "-n",
        "4",
        "-r",
        "3",
        "--no-warmup",
        "--routes",
        &path,
        "--pool-slots",
        "40",
    ])[0];
    let (hits, misses) = hits_and_misses(&mixed, 40);
    assert_eq!((row["hits"].as_u64(), row["misses"].as_u64()), (Some(hits), Some(misses)));
}

#[test]
fn a_trace_of_another_shape_is_expanded_and_called_so() {
    if !has_device("a_trace_of_another_shape_is_expanded_and_called_so") {
        return;
    }
    let home = Home::new();
    let path = home.path("small.json");
    let small = RouteTrace {
        layer_count: 2,
        expert_count: 8,
        experts_used: 2,
        picks: (0..40_u16).flat_map(|index| [index % 8, (index + 3) % 8]).collect(),
        ..trace(Vec::new())
    };
    small.save(Path::new(&path)).unwrap();
    let args = ["-p", "0", "-n", "4", "-r", "1", "--no-warmup", "--routes", &path, "--seed", "5"];
    let row = &home.rows(&args)[0];
    let label = row["routes"].as_str().unwrap();
    assert!(label.starts_with("expanded: small") && label.contains("seed 5"), "{label}");
    assert!(label.contains("points beside the recorded at pools of 10, 25, 50 %"), "{label}");
    assert_eq!((row["hits"].clone(), row["misses"].clone()), {
        let again = &home.rows(&args)[0];
        (again["hits"].clone(), again["misses"].clone())
    });
}

#[test]
fn recorded_routes_drive_the_next_run() {
    if !has_device("recorded_routes_drive_the_next_run") {
        return;
    }
    let home = Home::new();
    let (first, second) = (home.path("first.json"), home.path("second.json"));
    let args = ["-p", "6", "-n", "5", "-r", "2", "--no-warmup", "--seed", "3"];
    home.rows(&[&args[..], &["--record-routes", &first]].concat());
    let recorded = RouteTrace::load(Path::new(&first)).unwrap();
    assert_eq!(recorded.token_count(), 2 * 6 + 2 * 5);
    assert_eq!(recorded.context_starts, [0, 6, 12, 17]);
    // Other tokens, and the same picks.
    let other = ["-p", "6", "-n", "5", "-r", "2", "--no-warmup", "--seed", "4"];
    home.rows(&[&other[..], &["--routes", &first, "--record-routes", &second]].concat());
    assert_eq!(RouteTrace::load(Path::new(&second)).unwrap().picks, recorded.picks);
}

#[test]
fn a_sweep_runs_each_pool_size() {
    if !has_device("a_sweep_runs_each_pool_size") {
        return;
    }
    let home = Home::new();
    let rows = home.rows(&["-p", "0", "-n", "3", "-r", "1", "--sweep", "pool=25%,50%,...,100%"]);
    let slots: Vec<u64> = rows.iter().map(|row| row["pool_slots"].as_u64().unwrap()).collect();
    assert_eq!(slots, [24, 48, 72, 96]);
    assert!(rows.iter().all(|row| row["test"] == "tg3"), "{rows:?}");
}

#[test]
fn a_simulated_drive_is_no_faster_than_its_model_and_says_what_it_is() {
    if !has_device("a_simulated_drive_is_no_faster_than_its_model_and_says_what_it_is") {
        return;
    }
    let home = Home::new();
    let row =
        &home.rows(&["-p", "0", "-n", "4", "-r", "2", "--cold", "--simulated-drive", "20MB/s,500us"])[0];
    assert!(row["simulated_drive"].as_str().unwrap().contains("0.02 GB/s, 500 us"), "{row}");
    assert!(row["drive_profile"].as_str().unwrap().starts_with("simulated drive"), "{row}");
    let (ns, read) = (row["samples_ns"].as_array().unwrap(), row["samples_read_bytes"].as_array().unwrap());
    for (ns, bytes) in ns.iter().zip(read) {
        let at_least = bytes.as_f64().unwrap() / 20e6;
        assert!(ns.as_f64().unwrap() / 1e9 >= at_least, "{row}");
    }
    // The drive alone is a bound, which is not beaten.
    assert_eq!(row["bound"], "disk");
    let share = row["bound_share"].as_f64().unwrap();
    assert!(share > 0.05 && share <= 1.0, "{share}");
    assert_eq!(row["use_direct_io"], false, "its bytes come from the page cache");
}

#[test]
fn a_result_compared_with_itself_has_no_difference() {
    if !has_device("a_result_compared_with_itself_has_no_difference") {
        return;
    }
    let home = Home::new();
    let path = home.path("a.json");
    let rows = home.rows(&["-p", "4", "-n", "2", "-r", "3"]);
    fs::write(&path, Value::from(rows.clone()).to_string()).unwrap();
    let ran = home.bench(&["--compare", &path, &path, "-o", "json"]).gives(0);
    let differences: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(differences.len(), 2);
    for difference in &differences {
        assert_eq!(difference["verdict"], "not significant", "{difference}");
        assert_eq!(difference["p"], 1.0);
        assert_eq!(difference["change"], 0.0);
    }

    // A result of twice the speed, with its samples, is another.
    let mut faster = rows;
    for row in &mut faster {
        row["avg_ts"] = Value::from(2.0 * row["avg_ts"].as_f64().unwrap());
        row["samples_ts"] = [100.0, 101.0, 102.0].map(|ts| Value::from(ts * 1e3)).to_vec().into();
    }
    let other = home.path("b.jsonl");
    fs::write(&other, faster.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
    let ran = home.bench(&["--compare", &path, &other]).gives(0);
    assert_eq!(ran.stdout.matches("| faster |").count(), 2, "{}", ran.stdout);
    assert!(ran.stdout.contains("+100.0%"), "{}", ran.stdout);

    // What else differs is said, and rows of other keys are not compared.
    for row in &mut faster {
        row["policy"] = "lru".into();
    }
    fs::write(&other, Value::from(faster.clone()).to_string()).unwrap();
    let ran = home.bench(&["--compare", &path, &other]).gives(0);
    assert!(ran.stdout.contains("other cache policy"), "{}", ran.stdout);
    faster[0]["schema_version"] = 99.into();
    fs::write(&other, Value::from(faster).to_string()).unwrap();
    let ran = home.bench(&["--compare", &path, &other]).gives(2);
    assert!(ran.stderr.contains("schema version 99"), "{}", ran.stderr);
}

#[test]
fn an_interrupt_keeps_what_was_measured() {
    if !has_device("an_interrupt_keeps_what_was_measured") {
        return;
    }
    let home = Home::new();
    let args = ["bench", "-m", MODEL, "-p", "0", "-n", "1,1000", "-r", "3", "--no-warmup", "-o", "json"];
    let args = [&args[..], &["--plan", "estimate"]].concat();
    let mut child = home.command(&args).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = String::new();
    let mut block = [0; 512];
    while !text.contains('}') {
        let count = stdout.read(&mut block).unwrap();
        assert!(count > 0, "the first row came: {text}");
        text.push_str(std::str::from_utf8(&block[..count]).unwrap());
    }
    let kill = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status();
    if kill.is_err() {
        eprintln!("SKIPPED an_interrupt_keeps_what_was_measured, no shell");
    }
    stdout.read_to_string(&mut text).unwrap();
    let status = child.wait().unwrap();
    if kill.is_ok() {
        assert_eq!(status.code(), Some(130), "{text}");
    }
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(rows[0]["test"], "tg1");
    for row in &rows[1..] {
        assert_eq!(row["samples_ns"].as_array().unwrap().len() < 3, row["interrupted"] == true, "{row}");
    }
}

/// The trace in the simulator: no model, no device.
#[test]
fn a_trace_is_simulated_with_every_policy() {
    let home = Home::new();
    let path = home.path("mixed.json");
    let mixed = trace(mixed_picks(12));
    mixed.save(Path::new(&path)).unwrap();
    let ran = home.bench(&["--simulate", &path, "--sweep", "pool=50%", "-o", "json"]).gives(0);
    let rows: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let lru = rows.iter().find(|row| row["policy"] == "lru").unwrap();
    let (hits, misses) = hits_and_misses_by(&mixed, 48, Policy::Lru);
    let rate = hits as f64 / (hits + misses) as f64;
    assert!((lru["hit_rate"].as_f64().unwrap() - rate).abs() < 1e-12, "{lru}");
}

/// What `disk-profile` saved is what the drive is measured by.
#[test]
fn the_drives_profile_is_found() {
    if !has_device("the_drives_profile_is_found") {
        return;
    }
    let home = Home::new();
    // In the home's own file system, whatever that is.
    let model = home.path("model.gguf");
    fs::copy(MODEL, &model).unwrap();
    let profiled = home.command(&["disk-profile", &model, "--seconds", "2"]).output().unwrap();
    assert!(profiled.status.success(), "{}", String::from_utf8_lossy(&profiled.stderr));
    let args = ["-m", &model, "-p", "0", "-n", "2", "-r", "1", "--cold", "-o", "jsonl", "--plan", "estimate"];
    let row: Value = serde_json::from_str(&home.bench(&args).gives(0).stdout).unwrap();
    assert!(!row["drive_profile"].as_str().unwrap().contains("no profile"), "{row}");
    let number = |key: &str| row[key].as_f64().unwrap();
    let share = number("disk_gb_s") / number("drive_gb_s");
    assert!((number("disk_share") / share - 1.0).abs() < 1e-9, "{row}");
    assert!(number("disk_bound_ts") > 0.0);
    assert_eq!(row["plan_drive"], "profile");
    assert!(row["plan_device"].as_str().unwrap().starts_with("estimate for"), "{row}");
}

/// Without being told otherwise, the plan of generated tokens rests on what was measured beside them.
#[test]
fn the_plan_rests_on_measurements_of_the_same_run() {
    if !has_device("the_plan_rests_on_measurements_of_the_same_run") {
        return;
    }
    let home = Home::new();
    let args = ["-m", MODEL, "-p", "4", "-n", "4", "-r", "2", "--pool-slots", "48", "-o", "json"];
    let rows: Vec<Value> = serde_json::from_str(&home.bench(&args).gives(0).stdout).unwrap();
    assert!(rows[0]["plan_ts"].is_null() && rows[0]["memory_bytes_a_token"].is_null(), "{}", rows[0]);
    let row = &rows[1];
    assert_eq!((&row["plan_drive"], &row["plan_device"]), (&"measured now".into(), &"measured now".into()));
    // A validated, unoptimized program on a busy machine: only the order of magnitude is certain.
    let ratio = row["plan_ratio"].as_f64().unwrap();
    assert!((0.1..10.0).contains(&ratio), "{row}");
    assert!(row["memory_bytes_a_token"].as_u64().unwrap() > 0, "{row}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let home = Home::new();
    let (bad, missing) = (home.path("bad.json"), home.path("missing.json"));
    fs::write(&bad, "{}").unwrap();
    for (args, what) in [
        (&["-p", "x"][..], "--n-prompt"),
        (&["-p", "9-3"], "ends before it begins"),
        (&["-n", "1-9+0"], "does not rise"),
        (&["-pg", "5"], "PROMPT,GEN"),
        (&["-p", "0", "-n", "0"], "no test"),
        (&["-r", "0"], "--repetitions"),
        (&["-o", "xml"], "--output"),
        (&["--sweep", "10%"], "--sweep"),
        (&["--sweep", "pool=120%"], "pool size"),
        (&["--sweep", "pool=10%", "--pool-slots", "7"], "--pool-slots"),
        (&["--simulated-drive", "7"], "--simulated-drive"),
        (&["-m", MODEL, "-p", "100000"], "does not fit the context"),
        (&["-m", MODEL, "--routes", &missing], "--routes"),
        (&["-m", MODEL, "--routes", &bad], "--routes"),
        (&["--policy", "mru"], "--policy"),
        (&["--simulate", &missing], "--simulate"),
        (&["--simulate", &missing, "-o", "csv"], "md, json or jsonl"),
        (&["-m", MODEL, "-ub", "4,8", "--record-routes", &bad], "one chunk size"),
        (&["--compare", &bad], "--compare"),
        (&["--compare", &missing, &bad], "missing.json"),
        (&["--compare", &bad, &bad], "bad.json"),
    ] {
        let ran = home.bench(args).gives(2);
        assert_eq!(ran.stdout, "", "{args:?}");
        assert!(ran.stderr.contains(what), "{args:?}: wanted {what:?} in {}", ran.stderr);
    }
    // Before a model is looked for.
    let ran = home.bench(&["-m", "no-such-model", "--text", &missing]).gives(1);
    assert!(ran.stderr.contains("missing.json"), "{}", ran.stderr);
}
