//! `flint-rt synth`: its bytes, what the library says of them, and how a model of random weights behaves.
//!
//! The numbers that say whether routing collapses are printed: `cargo test --test synth -- --nocapture`.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/nano.rs"]
mod nano;

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use flint_rt::base::ids::TokenId;
use flint_rt::engine::Engine;
use flint_rt::engine::open::read_tokenizer;
use flint_rt::gguf::Gguf;
use flint_rt::model::hparams::FlintConfig;
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::model::{LayerRoutes, Want};
use flint_rt::text::Specials;
use nano::{open_nano, skip_without_device};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn command(target: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flint-rt"));
    command.arg("synth").args(args).arg(target).stdin(Stdio::null());
    command
}

fn run(target: &Path, args: &[&str]) -> Output {
    command(target, args).output().unwrap()
}

/// Writes a model of seed 1; gives its path.
fn made(folder: &TempDir, name: &str, args: &[&str]) -> PathBuf {
    let path = folder.path().join(name);
    let output = run(&path, &[&["--seed", "1"], args].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), path.display().to_string());
    path
}

fn sha256(path: &Path) -> String {
    Sha256::digest(fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn equal_seeds_give_equal_bytes_on_every_machine() {
    let folder = folder();
    let path = made(&folder, "tiny.gguf", &["--preset", "tiny"]);
    assert_eq!(sha256(&path), TINY_SHA256);
    let skewed = made(&folder, "skewed.gguf", &["--preset", "tiny", "--skew", "1"]);
    assert_eq!(sha256(&skewed), TINY_SKEWED_SHA256);

    // Longer than a piece, so that there is something to divide.
    let dimensions = ["--preset", "nano", "--layers", "20"];
    let one = made(&folder, "one.gguf", &[&dimensions[..], &["--threads", "1"]].concat());
    let many = made(&folder, "many.gguf", &[&dimensions[..], &["--threads", "7"]].concat());
    assert!(fs::metadata(&one).unwrap().len() > 16 << 20, "several pieces");
    assert!(fs::read(&one).unwrap() == fs::read(&many).unwrap(), "threads change no byte");
    let other = folder.path().join("other.gguf");
    assert!(run(&other, &["--preset", "tiny", "--seed", "2"]).status.success());
    assert_ne!(sha256(&other), TINY_SHA256, "another seed");
}

const TINY_SHA256: &str = "8592b00516d4fe3270ae258a034cdff251c9d1ea9e3d27f8c02daa75ed8e00c9";
const TINY_SKEWED_SHA256: &str = "ee16e32a409221b883a2b49f6cb7a83e8d4add52f4615293ac71719110b16f33";

#[test]
fn every_preset_is_a_model_that_runs() {
    let folder = folder();
    for preset in ["tiny", "nano", "quarter", "full"] {
        let path = made(&folder, preset, &["--preset", preset, "--header-only"]);
        let gguf = Gguf::read(&path).unwrap();
        FlintConfig::from_gguf(&gguf).unwrap_or_else(|error| panic!("{preset}: {error}"));
        let tokenizer = read_tokenizer(&gguf).unwrap();
        let text = "def binary_search(items, target):\n    return 42  # \u{4e2d}\u{6587}";
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, Specials::Plain)), text);
        flint_rt::text::chat::check_markers(&tokenizer).unwrap();
    }
}

#[test]
fn the_full_preset_has_the_dimensions_and_the_bytes_of_flint() {
    let folder = folder();
    let path = made(&folder, "full.gguf", &["--preset", "full", "--header-only"]);
    let gguf = Gguf::read(&path).unwrap();
    let config = FlintConfig::from_gguf(&gguf).unwrap();
    assert_eq!(gguf.tensors.iter().map(|tensor| tensor.len_bytes).sum::<u64>(), 25_987_497_088);
    assert_eq!(gguf.tensors.len(), 779);
    assert_eq!((config.layer_count, config.lead_layer_count, config.moe_layer_count()), (49, 2, 47));
    assert_eq!((config.expert_count, config.experts_used, config.record_bytes()), (256, 6, 1_966_080));
    assert_eq!((config.vocabulary, config.window, config.context_len), (150_144, 513, 262_144));
    let full: Vec<usize> = (0..49)
        .filter(|layer| config.layers[*layer].window.is_none() && !config.layers[*layer].rope)
        .collect();
    assert_eq!(full, [0, 1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 48]);
    let sliding = config.layers.iter().filter(|layer| layer.window == Some(513) && layer.rope).count();
    assert_eq!(sliding, 35, "the others slide and rotate");
}

#[test]
fn dimensions_and_alignment_can_be_chosen_and_do_not_touch_the_rest() {
    let folder = folder();
    let plain = made(&folder, "plain.gguf", &["--preset", "tiny"]);
    let aligned = made(&folder, "aligned.gguf", &["--preset", "tiny", "--alignment", "65536"]);
    let (plain_header, aligned_header) = (Gguf::read(&plain).unwrap(), Gguf::read(&aligned).unwrap());
    assert_eq!(aligned_header.alignment, 65536);
    let (plain, aligned) = (fs::read(plain).unwrap(), fs::read(aligned).unwrap());
    for tensor in plain_header.tensors.iter() {
        let twin = aligned_header.tensors.get(&tensor.name).unwrap();
        assert!(twin.offset_bytes.is_multiple_of(65536), "{}", tensor.name);
        let place = |offset: u64| usize::try_from(offset).unwrap();
        let range = |offset: u64| place(offset)..place(offset + tensor.len_bytes);
        assert!(plain[range(tensor.offset_bytes)] == aligned[range(twin.offset_bytes)], "{}", tensor.name);
    }

    let changed = made(
        &folder,
        "changed.gguf",
        &["--preset", "tiny", "--experts", "40", "--vocabulary", "1000", "--layers", "3"],
    );
    let config = FlintConfig::from_gguf(&Gguf::read(&changed).unwrap()).unwrap();
    assert_eq!((config.expert_count, config.vocabulary, config.layer_count), (40, 1000, 3));
}

#[test]
fn what_makes_no_model_is_refused_before_anything_is_written() {
    let folder = folder();
    let path = folder.path().join("no.gguf");
    for args in [
        &["--embed", "100"][..],
        &["--experts-used", "17"],
        &["--kv-heads", "3"],
        &["--lead-layers", "6"],
        &["--alignment", "48"],
        &["--vocabulary", "200"],
        &["--vocabulary", "9999999"],
        &["--head-dim", "512"],
        &["--skew", "-1"],
        &["--skew", "nan"],
        &["--context", "0"],
    ] {
        let output = run(&path, &[&["--preset", "tiny"], args].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{args:?}");
    }
}

#[test]
fn the_largest_file_of_a_process_is_an_error_and_leaves_nothing() {
    let folder = folder();
    let program = env!("CARGO_BIN_EXE_flint-rt");
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 100 && exec \"$0\" synth --preset tiny big.gguf", program])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("largest file"), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_file_that_is_there_is_replaced_only_when_asked_and_two_writers_do_not_meet() {
    let folder = folder();
    let path = folder.path().join("tiny.gguf");
    fs::write(&path, "mine").unwrap();
    let refused = run(&path, &["--preset", "tiny", "--json"]);
    assert_eq!(refused.status.code(), Some(1));
    let event: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(event["event"], "error");
    assert!(event["message"].as_str().unwrap().contains("--force"), "{event}");
    assert_eq!(fs::read(&path).unwrap(), b"mine");

    // What a killed run has left is taken over, what a living one writes is not.
    let partial = folder.path().join("tiny.gguf.partial");
    fs::write(&partial, vec![7; 1 << 20]).unwrap();
    let writer = File::open(&partial).unwrap();
    writer.try_lock().unwrap();
    let refused = run(&path, &["--preset", "tiny", "--force"]);
    assert_eq!(refused.status.code(), Some(1), "{}", String::from_utf8_lossy(&refused.stderr));
    assert_eq!(fs::metadata(&partial).unwrap().len(), 1 << 20, "it is not touched");
    drop(writer);
    let output = run(&path, &["--preset", "tiny", "--seed", "1", "--force", "--json"]);
    let event: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&event["event"], event["bytes"].as_u64()),
        (&"done".into(), Some(fs::metadata(&path).unwrap().len()))
    );
    assert_eq!(sha256(&path), TINY_SHA256);
    assert!(!partial.exists());
}

/// A model of 1 GB, of which a fraction gets made before a signal comes.
const LARGE: [&str; 6] = ["--preset", "tiny", "--embed", "2048", "--vocabulary", "100000"];

/// Sends `signal` as soon as there is `path`; gives the exit code and what was printed. None where there is no room.
fn interrupted(mut command: Command, path: &Path, signal: &str) -> Option<(Option<i32>, Vec<Value>, String)> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while !path.exists() && child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(5) {
        println!("skipped: no room for 1 GB");
        return None;
    }
    assert!(sent.success());
    let stdout = String::from_utf8(output.stdout).unwrap();
    let events = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    Some((output.status.code(), events, String::from_utf8(output.stderr).unwrap()))
}

#[test]
fn a_signal_leaves_nothing_of_a_file_that_was_begun() {
    for (signal, wanted) in [("INT", 130), ("TERM", 143)] {
        let folder = folder();
        let (path, partial) = (folder.path().join("large.gguf"), folder.path().join("large.gguf.partial"));
        let command = command(&path, &[&LARGE[..], &["--json"]].concat());
        let Some((code, events, _)) = interrupted(command, &partial, signal) else { return };
        assert_eq!(code, Some(wanted), "{events:?}");
        assert_eq!(events.last().unwrap()["message"], "interrupted", "{events:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left after {signal}");
    }
}

#[test]
fn a_signal_leaves_of_a_store_what_the_next_run_goes_on_with() {
    for (signal, wanted) in [("INT", 130), ("TERM", 143)] {
        let folder = folder();
        let store = folder.path().join("large");
        let journal = folder.path().join("large.partial/journal.json");
        let command = store_command(&store, &[&LARGE[..], &["--json"]].concat());
        let Some((code, events, _)) = interrupted(command, &journal, signal) else { return };
        assert_eq!(code, Some(wanted), "{events:?}");
        let message = events.last().unwrap()["message"].as_str().unwrap();
        assert!(message.contains("the same command goes on"), "{message}");
        assert!(!store.exists() && journal.exists(), "kept for the next run, and no store yet");
        // Another recipe is another source: what lies there is not mixed into it.
        let other = store_command(&store, &["--preset", "tiny"]).output().unwrap();
        assert_eq!(other.status.code(), Some(1), "{}", String::from_utf8_lossy(&other.stderr));
        assert!(journal.exists(), "it stays");
    }
}

fn store_command(store: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flint-rt"));
    command.args(["synth", "--store"]).arg(store).args(args).stdin(Stdio::null());
    command
}

/// Names and bytes of a folder's files.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    });
    files.collect()
}

#[test]
fn a_store_is_what_ingest_makes_of_the_file_to_the_byte() {
    let folder = folder();
    // The second is longer than a chunk of the ingest, so that threads share it and chunks end within tensors.
    let larger = ["--preset", "nano", "--layers", "20", "--skew", "1", "--alignment", "4096"];
    for (name, args) in [("tiny", &["--preset", "tiny"][..]), ("larger", &larger)] {
        let gguf = made(&folder, &format!("{name}.gguf"), args);
        let ingested = folder.path().join("ingested");
        let output = Command::new(env!("CARGO_BIN_EXE_flint-rt"))
            .arg("ingest")
            .arg(&gguf)
            .args(["--name", name, "--store-dir"])
            .arg(&ingested)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

        // By its path, and by its name in the store folder.
        let direct = folder.path().join("direct").join(name);
        let args = [&["--seed", "1", "--json"], args].concat();
        let output = store_command(&direct, &args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let stdout = String::from_utf8(output.stdout).unwrap();
        let done: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        assert_eq!(done["event"], "done");
        assert_eq!(done["source_sha256"], sha256(&gguf));
        let named = store_command(Path::new(name), &args)
            .args(["--threads", "7", "--store-dir"])
            .arg(folder.path().join("named"))
            .output()
            .unwrap();
        assert!(named.status.success(), "{}", String::from_utf8_lossy(&named.stderr));

        let wanted = contents(&ingested.join(name));
        for found in [contents(&direct), contents(&folder.path().join("named").join(name))] {
            assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
            for (file, bytes) in &wanted {
                assert!(found[file] == *bytes, "{name}/{file}");
            }
        }
    }
    let again = store_command(&folder.path().join("direct/tiny"), &["--preset", "tiny"]).output().unwrap();
    assert_eq!(again.status.code(), Some(1), "a store that is there stays");
}

/// What a prompt of random tokens showed.
#[derive(Default)]
struct Seen {
    /// Experts picked, for each expert layer and token.
    picks: Vec<Vec<Vec<u32>>>,
    experts_used: usize,
    lead_layers: u32,
    logits: usize,
}

impl PrefillObserver for Seen {
    fn routes(&mut self, routes: LayerRoutes) {
        let layer = (routes.layer - self.lead_layers) as usize;
        if self.picks.len() <= layer {
            self.picks.resize(layer + 1, Vec::new());
        }
        self.picks[layer].extend(routes.experts.chunks(self.experts_used).map(<[u32]>::to_vec));
        assert!(
            routes.weights.iter().all(|weight| weight.is_finite() && *weight > 0.0),
            "{:?}",
            routes.weights
        );
    }

    fn wants_logits(&self) -> bool {
        true
    }

    fn logits(&mut self, _index: u32, logits: &[f32], _greedy: TokenId) {
        assert!(logits.iter().all(|logit| logit.is_finite()), "token {}", self.logits);
        self.logits += 1;
    }
}

/// Means over the expert layers.
#[derive(Debug)]
struct Use {
    /// Distinct experts of the first 64 tokens.
    distinct: f64,
    /// Picks that a token shares with the one before.
    shared: f64,
    /// Entropy of the picks in bits, less the bias of a finite sample (Miller 1955).
    entropy_bits: f64,
    /// Share of tokens that the most used expert of a layer serves.
    top: f64,
}

impl Seen {
    fn measure(&self, expert_count: usize) -> Use {
        let mut means = Use { distinct: 0.0, shared: 0.0, entropy_bits: 0.0, top: 0.0 };
        for tokens in &self.picks {
            let layers = self.picks.len() as f64;
            let distinct: HashSet<u32> = tokens[..64].iter().flatten().copied().collect();
            means.distinct += distinct.len() as f64 / layers;
            let shared: usize = tokens
                .windows(2)
                .map(|pair| pair[1].iter().filter(|expert| pair[0].contains(expert)).count())
                .sum();
            means.shared += shared as f64 / (tokens.len() - 1) as f64 / layers;
            let mut counts = vec![0.0_f64; expert_count];
            tokens.iter().flatten().for_each(|expert| counts[*expert as usize] += 1.0);
            let all: f64 = counts.iter().sum();
            let used = counts.iter().filter(|count| **count > 0.0);
            let entropy: f64 = used.clone().map(|count| -count / all * (count / all).log2()).sum();
            let missing = (used.count() as f64 - 1.0) / (2.0 * all) * std::f64::consts::LOG2_E;
            means.entropy_bits += (entropy + missing) / layers;
            means.top += counts.iter().copied().fold(0.0, f64::max) / tokens.len() as f64 / layers;
        }
        means
    }
}

/// Feeds `count` random tokens.
fn feed(engine: &mut Engine, count: usize) -> Seen {
    let config = engine.config();
    let mut seen = Seen {
        experts_used: config.experts_used as usize,
        lead_layers: config.lead_layer_count,
        ..Seen::default()
    };
    let vocabulary = u64::from(config.vocabulary);
    let mut state = 1_u64;
    let ids: Vec<TokenId> = (0..count)
        .map(|_| {
            // The upper half of a linear congruence (Knuth, MMIX).
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            TokenId::try_from((state >> 32) % vocabulary).unwrap()
        })
        .collect();
    let mut session = engine.session().unwrap();
    engine.feed_prompt(&mut session, &ids, Want::Greedy, &mut seen).unwrap();
    assert_eq!(seen.logits, count);
    seen
}

/// 256 experts of which a token uses 6, as in Flint, in as small a model as can show it.
fn use_of(folder: &TempDir, skew: &str) -> Option<Use> {
    let args = [
        "--preset",
        "tiny",
        "--embed",
        "256",
        "--experts",
        "256",
        "--experts-used",
        "6",
        "--vocabulary",
        "4096",
    ];
    let path = made(folder, &format!("skew-{skew}.gguf"), &[&args[..], &["--skew", skew]].concat());
    let mut engine = open_nano(|options| {
        options.model = path;
        options.context_len = Some(320);
        options.prefill_chunk = Some(64);
    })?;
    let seen = feed(&mut engine, 300);
    let measured = seen.measure(256);
    println!("skew {skew}: {measured:?}");
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
    Some(measured)
}

#[test]
fn routing_does_not_collapse_and_a_skew_follows_its_law() {
    let folder = folder();
    // What Zipf's law gives where no expert is picked more often than for 98 % of tokens and picks are independent: for
    // shares p of tokens, the sums of 1 - (1 - p)^64, of p^2, and of -(p/6) log2(p/6).
    let laws = [
        ("0", [199.9, 0.141, 8.00, 0.023]),
        ("0.5", [181.1, 0.236, 7.71, 0.196]),
        ("1", [122.1, 1.575, 6.22, 0.980]),
        ("2", [43.8, 3.775, 4.08, 0.980]),
    ];
    for (skew, [distinct, shared, entropy_bits, top]) in laws {
        let Some(found) = use_of(&folder, skew) else { return skip_without_device() };
        assert!((found.distinct - distinct).abs() < 10.0, "skew {skew}: {found:?}, wanted {distinct}");
        assert!(
            (found.shared - shared).abs() < 0.05 + 0.1 * shared,
            "skew {skew}: {found:?}, wanted {shared}"
        );
        assert!(
            (found.entropy_bits - entropy_bits).abs() < 0.15,
            "skew {skew}: {found:?}, wanted {entropy_bits}"
        );
        assert!((found.top - top).abs() < 0.06, "skew {skew}: {found:?}, wanted {top}");
    }
}

#[test]
#[ignore = "writes 3 GB, and takes minutes on a software device"]
fn routing_does_not_collapse_at_full_width() {
    let folder = folder();
    for skew in ["0", "1"] {
        let path =
            made(&folder, "wide.gguf", &["--preset", "full", "--layers", "5", "--skew", skew, "--force"]);
        let opened = open_nano(|options| {
            options.model = path;
            options.context_len = Some(128);
            options.prefill_chunk = Some(64);
        });
        let Some(mut engine) = opened else { return skip_without_device() };
        println!("full width, skew {skew}: {:?}", feed(&mut engine, 128).measure(256));
    }
}

#[test]
fn activations_stay_finite_over_4096_tokens() {
    let folder = folder();
    for preset in ["tiny", "nano"] {
        let path = made(&folder, preset, &["--preset", preset]);
        let opened = open_nano(|options| {
            options.model = path;
            options.context_len = Some(4096);
        });
        let Some(mut engine) = opened else { return skip_without_device() };
        let count = if preset == "tiny" { 4096 } else { 300 };
        let experts = engine.config().expert_count as usize;
        println!("{preset}, {count} tokens: {:?}", feed(&mut engine, count).measure(experts));
    }
}
