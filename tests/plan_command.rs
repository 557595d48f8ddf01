//! `flint-rt plan`, `list`, `remove` and what `info` says of files, by the real binary.
//!
//! Each test has folders of its own. Tests that open a device say so and pass where there is none.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/program.rs"]
mod program;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use flint_rt::disk::DriveIdentity;
use flint_rt::disk::profile::DriveProfile;
use program::{Ran, program};
use serde_json::{Value, json};
use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/flint-nano-q4_1.gguf");
const NAME: &str = "flint-nano-q4_1";

/// A home with a store folder.
struct Home(TempDir, #[expect(dead_code, reason = "held until it drops")] Turn);

/// Who measures has the machine for itself; the others run side by side.
static MACHINE: RwLock<()> = RwLock::new(());

#[expect(dead_code, reason = "held until it drops")]
enum Turn {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Home {
    fn new() -> Self {
        let turn = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        Self(tempfile::tempdir().unwrap(), Turn::Shared(turn))
    }

    /// One beside which no other test of this file runs.
    fn alone() -> Self {
        let turn = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
        Self(tempfile::tempdir().unwrap(), Turn::Alone(turn))
    }

    /// A path in the store folder.
    fn store(&self, name: &str) -> PathBuf {
        self.0.path().join("data/flint-rt").join(name)
    }

    /// Makes the folder of a store by hand.
    fn make(&self, name: &str, files: &[(&str, &str)]) -> PathBuf {
        let path = self.store(name);
        fs::create_dir_all(&path).unwrap();
        for (file, content) in files {
            fs::write(path.join(file), content).unwrap();
        }
        path
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran::new(self.command(args).output().unwrap())
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = program(&["FLINT_RT_DEVICE"]);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().to_lowercase().ends_with("_proxy") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .env("HOME", self.0.path())
            .env("XDG_DATA_HOME", self.0.path().join("data"))
            .env("XDG_CACHE_HOME", self.0.path().join("cache"))
            .env("XDG_STATE_HOME", self.0.path().join("state"))
            .stdin(Stdio::null());
        command
    }

    fn stores(&self) -> Vec<Value> {
        self.run(&["list", "--json"]).gives(0).json()["stores"].as_array().unwrap().clone()
    }
}

fn has_device(test: &str) -> bool {
    static HAS_DEVICE: LazyLock<bool> = LazyLock::new(|| Home::new().run(&["devices"]).code == Some(0));
    if !*HAS_DEVICE {
        eprintln!("SKIPPED {test}, no Vulkan device");
    }
    *HAS_DEVICE
}

#[test]
fn list_knows_whole_damaged_and_unfinished_stores() {
    let home = Home::new();
    let empty = home.run(&["list"]).gives(0);
    assert_eq!(empty.stdout, "");
    assert!(empty.stderr.contains("flint-rt ingest"), "{}", empty.stderr);

    home.run(&["ingest", MODEL]).gives(0);
    home.run(&["ingest", MODEL, "--name", "short"]).gives(0);
    fs::write(home.store("short/experts.bin"), "short").unwrap();
    let journal = json!({
        "format": "flint-rt journal",
        "task": {
            "store_id": "00",
            "stamps": [{ "kind": "file", "location": "/tmp/big.gguf", "len_bytes": 1000, "state": "" }],
            "folders": [null],
        },
        "offset_bytes": 250,
    });
    home.make("big.partial", &[("journal.json", &journal.to_string())]);
    home.make("big.partial/store", &[("experts.bin", "xx")]);
    home.make("not-a-store", &[("notes.txt", "mine")]);
    fs::write(home.store("a-file"), "x").unwrap();
    symlink(home.store(NAME), home.store("link")).unwrap();

    let stores = home.stores();
    let names: Vec<_> = stores.iter().map(|store| store["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["big.partial", NAME, "link", "short"]);
    let [unfinished, whole, link, short] = stores.as_slice() else { panic!("{stores:?}") };
    assert_eq!(unfinished["state"], "unfinished");
    assert_eq!(unfinished["complete"], false);
    assert_eq!(unfinished["progress"]["done_bytes"], 250);
    assert_eq!(unfinished["progress"]["total_bytes"], 1000);
    assert_eq!(unfinished["progress"]["at_work"], false);
    assert_eq!(whole["complete"], true);
    assert_eq!(whole["source"]["file_name"], "flint-nano-q4_1.gguf");
    assert_eq!(whole["source"]["size_bytes"], fs::metadata(MODEL).unwrap().len());
    assert!(whole["size_bytes"].as_u64().unwrap() > 9_000_000, "{whole}");
    assert!(link["link"].is_string(), "{link}");
    assert_eq!(short["state"], "damaged");
    assert!(short["why"].as_str().unwrap().contains("experts.bin"), "{short}");

    let text = home.run(&["list"]).gives(0).stdout;
    for word in ["complete", "damaged", "250 B of 1000 B (25 %)", "/tmp/big.gguf", "SHA-256 add0fe3a"] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[test]
fn remove_takes_stores_away_and_nothing_else() {
    let home = Home::new();
    home.run(&["ingest", MODEL]).gives(0);
    home.run(&["remove", NAME]).refuses(2, "--yes");
    home.run(&["remove", "no-such", "--yes"]).refuses(3, "no-such");
    home.run(&["remove", "", "--yes"]).gives(2);
    for name in [".", ".."] {
        home.run(&["remove", name, "--yes"]).refuses(2, "name");
    }
    assert_eq!(home.stores().len(), 1);

    // By a link, nothing goes.
    symlink(home.store(NAME), home.store("link")).unwrap();
    home.run(&["remove", "link", "--yes"]).refuses(2, "link");
    let by_path = home.store("link/");
    home.run(&["remove", by_path.to_str().unwrap(), "--yes"]).refuses(2, "link");
    fs::remove_file(home.store("link")).unwrap();

    // What is not a store stays.
    let mine = home.make("mine", &[("notes.txt", "mine")]);
    home.run(&["remove", "mine", "--yes"]).refuses(2, "notes.txt");
    let bare = home.make("bare", &[("dense.bin", "")]);
    home.run(&["remove", "bare", "--yes"]).refuses(2, "no store");
    let mixed = home.make("mixed", &[("manifest.json", "{}"), ("notes.txt", "mine")]);
    home.run(&["remove", "mixed", "--yes"]).refuses(2, "notes.txt");
    let outside = home.0.path().join("outside.bin");
    fs::write(&outside, "precious").unwrap();
    let lured = home.make("lured", &[("manifest.json", "{}")]);
    symlink(&outside, lured.join("experts.bin")).unwrap();
    home.run(&["remove", "lured", "--yes"]).refuses(2, "experts.bin");
    for path in [mine.join("notes.txt"), bare.join("dense.bin"), mixed.join("manifest.json"), outside] {
        assert!(path.exists(), "{} is gone", path.display());
    }

    // Whole, damaged and unfinished ones go, by name and by path.
    let removed = home.run(&["remove", NAME, "--yes", "--json"]).gives(0).json();
    assert_eq!(removed["removed"], json!([home.store(NAME).to_str().unwrap()]));
    home.make("damaged", &[("manifest.json", "{"), ("header.bin", "x"), ("experts-0.bin", "x")]);
    home.make("half.partial", &[("journal.json", "{}"), ("pieces.bin", "x"), ("lock", "")]);
    home.make("half.partial/store", &[("experts.bin", "x")]);
    home.run(&["remove", home.store("damaged").to_str().unwrap(), "-y"]).gives(0);
    home.run(&["remove", "half.partial", "-y"]).gives(0);
    for name in [NAME, "damaged", "half.partial"] {
        assert!(!home.store(name).exists(), "{name} is still there");
    }
}

#[test]
fn a_store_in_use_is_not_removed() {
    let home = Home::new();
    home.run(&["ingest", MODEL]).gives(0);
    let manifest = File::open(home.store(NAME).join("manifest.json")).unwrap();
    manifest.lock_shared().unwrap();
    home.run(&["remove", NAME, "--yes"]).refuses(1, "in use");
    drop(manifest);

    // Also by one who locks nothing.
    let experts = File::open(home.store(NAME).join("experts.bin"));
    let experts = experts.or_else(|_| File::open(home.store(NAME).join("experts-0.bin"))).unwrap();
    home.run(&["remove", NAME, "--yes"]).refuses(1, &std::process::id().to_string());
    assert_eq!(home.stores()[0]["complete"], true);
    drop(experts);
    home.run(&["remove", NAME, "--yes"]).gives(0);
}

#[test]
fn stripes_go_with_their_store_and_others_stay() {
    let home = Home::new();
    let make_stripe = |name: &str, id: &str| {
        let path = home.0.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("stripe.json"), json!({ "store_id": id, "index": 1 }).to_string()).unwrap();
        fs::write(path.join("experts-1.bin"), "records").unwrap();
        path
    };
    let ours = make_stripe("ours.stripe", "aa");
    let foreign = make_stripe("foreign.stripe", "bb");
    let behind = make_stripe("behind.stripe", "aa");
    let link = home.0.path().join("link.stripe");
    symlink(&behind, &link).unwrap();
    let gone = home.0.path().join("gone.stripe");
    let files: Vec<_> = [&ours, &foreign, &link, &gone]
        .iter()
        .map(|folder| json!({ "folder": folder.to_str().unwrap(), "name": "experts-1.bin" }))
        .collect();
    let manifest = json!({ "store_id": "aa", "experts": { "files": files } });
    home.make("striped", &[("manifest.json", &manifest.to_string()), ("experts-0.bin", "records")]);

    let ran = home.run(&["remove", "striped", "--yes", "--json"]).gives(0);
    assert_eq!(ran.json()["removed"].as_array().unwrap().len(), 2, "{}", ran.stdout);
    assert!(!home.store("striped").exists() && !ours.exists());
    assert!(foreign.join("experts-1.bin").exists() && behind.join("experts-1.bin").exists());
    for word in ["foreign.stripe", "another store", "link.stripe", "gone.stripe"] {
        assert!(ran.stderr.contains(word), "{word} in {}", ran.stderr);
    }
}

#[test]
fn info_says_how_files_lie_and_what_they_hold() {
    if !has_device("info_says_how_files_lie_and_what_they_hold") {
        return;
    }
    let home = Home::new();
    home.run(&["ingest", MODEL]).gives(0);
    // In a changed root the kernel lists the mounts below it only.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let sees_its_root = mounts.lines().any(|mount| mount.split(' ').nth(4) == Some("/"));
    for model in [MODEL, NAME] {
        let info = home.run(&["info", model, "--json"]).gives(0).json();
        let of_model = &info["model"];
        assert_eq!(of_model["attention"], "wwwFwwwF");
        assert_eq!(of_model["tensor_types"]["F32"]["tensors"], 48);
        assert_eq!(of_model["tensor_types"]["Q4_1"]["tensors"], 75);
        assert_eq!(of_model["record"]["record_bytes"], 30_720);
        assert_eq!(of_model["record"]["records"], 96);
        for file in info["files"].as_array().unwrap() {
            assert!(file["file_system"].is_string() || !sees_its_root, "{file}");
            assert!(file["direct"] == true || file["why_buffered"].is_string(), "{file}");
        }
        assert!(info["memory"]["pool_slots"].is_u64() && info["paths"]["read_path"].is_string(), "{info}");
        let text = home.run(&["info", model]).gives(0).stdout;
        for word in ["w: sees 129 tokens, RoPE (6 layers)", "F: sees all tokens, no RoPE (2 layers)", "statx"]
        {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
}

#[test]
fn plan_says_what_to_expect_and_that_it_is_an_estimate() {
    if !has_device("plan_says_what_to_expect_and_that_it_is_an_estimate") {
        return;
    }
    let home = Home::new();
    let plan = home.run(&["plan", MODEL, "--json", "--pool-slots", "48"]).gives(0).json();
    assert_eq!(plan["model"]["kind"], "gguf");
    assert_eq!(plan["memory"]["pool_slots"], 48);
    assert_eq!(
        (&plan["drive"]["measured"], &plan["device_cost"]["measured"]),
        (&json!(false), &json!(false))
    );
    let expected = &plan["expectation"];
    assert_eq!(expected["is_estimate"], true);
    let rate = |name: &str| expected[name]["tokens_a_second"].as_f64().unwrap();
    assert!(0.0 < rate("cold") && rate("cold") < rate("typical") && rate("typical") < rate("resident"));
    assert_eq!(expected["cold"]["read_bytes"], 6.0 * 4.0 * 30_720.0);
    assert_eq!(expected["resident"]["read_bytes"], 0.0);
    assert!(expected["typical"]["limit"].is_string(), "{expected}");
    let flags: Vec<_> = plan["flags"].as_array().unwrap().iter().map(|flag| flag.as_str().unwrap()).collect();
    assert!(flags.windows(2).any(|pair| pair == ["--pool-slots", "48"]), "{flags:?}");

    // A slower drive, a slower cold token; the same plan and the same resident one.
    let slow =
        home.run(&["plan", MODEL, "--json", "--pool-slots", "48", "--drive-rate", "0.1"]).gives(0).json();
    let slow_rate = |name: &str| slow["expectation"][name]["tokens_a_second"].as_f64().unwrap();
    assert!(slow_rate("cold") < rate("cold"), "{slow}");
    assert_eq!(slow_rate("resident"), rate("resident"));
    assert_eq!(slow["expectation"]["cold"]["limit"], "the drive");

    let text = home.run(&["plan", MODEL]).gives(0).stdout;
    for word in ["estimates", "cold", "typical", "resident", "limited by", "not measured", "recorded routes"]
    {
        assert!(text.contains(word), "{word} in {text}");
    }
}

/// A profile of the drive under `file`, whose bursts take `seconds` for any number of records.
fn saved_profile(home: &Home, file: &str, seconds: f64) {
    let latency = json!({ "mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0, "p99.9": 1.0, "max": 1.0 });
    let row = |depth: u32| {
        json!({
            "engine": "ring", "pattern": "random", "is_record": true, "block_bytes": 30_720, "depth": depth,
            "with_uploads": false, "seconds": 1.0, "reads": 10, "bytes": 307_200, "gb_s": 2.5, "iops": 10.0,
            "latency_us": latency, "cpu_s_per_gb": 0.1,
        })
    };
    let profile: DriveProfile = serde_json::from_value(json!({
        "schema_version": 1, "program_version": "0.1.0", "measured_at": 951_782_400, "paths": [file],
        "drives": [DriveIdentity::of(Path::new(file))], "record_bytes": 30_720, "record_from": "model",
        "reads_a_record": 3, "read_path": "ring", "is_direct": true, "spread_bytes": 9_000_000, "seconds": 2.0,
        "rows": [row(1), row(8)],
        "bursts": [{ "records": 1, "bursts": 3, "seconds": seconds, "gb_s": 1.0, "latency_us": latency }],
        "findings": [],
    }))
    .unwrap();
    profile.save(&home.0.path().join("state/flint-rt/drives")).unwrap();
}

#[test]
fn plan_takes_the_saved_profile_of_the_drive_and_says_so() {
    if !has_device("plan_takes_the_saved_profile_of_the_drive_and_says_so") {
        return;
    }
    let home = Home::new();
    let plan = |flags: &[&str]| home.run(&[&["plan", MODEL, "--json"], flags].concat()).gives(0).json();
    assert_eq!(plan(&[])["drive"]["from"], "assumed");
    saved_profile(&home, MODEL, 0.1);
    let found = plan(&[]);
    assert_eq!(found["drive"]["from"], "profile of 2000-02-29");
    assert_eq!(found["drive"]["bytes_a_second"], 2.5e9);
    // Six layers, each of which waits for a burst.
    assert!(found["expectation"]["cold"]["drive_seconds"].as_f64().unwrap() >= 0.6, "{found}");
    assert!(found["basis"].to_string().contains("drive: profile of 2000-02-29"), "{found}");
    assert_eq!(plan(&["--drive-rate", "1"])["drive"]["from"], "assumed");
    assert_eq!(plan(&["--measure", "--seconds", "1"])["drive"]["from"], "measured now");

    // One of another version is said and left out.
    for file in fs::read_dir(home.0.path().join("state/flint-rt/drives")).unwrap() {
        fs::write(file.unwrap().path(), r#"{ "schema_version": 99 }"#).unwrap();
    }
    let ran = home.run(&["plan", MODEL, "--json"]).gives(0);
    assert_eq!(ran.json()["drive"]["from"], "assumed");
    assert!(ran.stderr.contains("schema version 99"), "{}", ran.stderr);
}

/// The memory plan, without what the host has available, which is never the same twice.
fn memory(plan: &Value) -> Value {
    let mut memory = plan["memory"].clone();
    assert!(memory.as_object_mut().unwrap().remove("host_available_bytes").is_some(), "{plan}");
    memory
}

#[test]
fn plan_splits_memory_as_the_flags_say() {
    if !has_device("plan_splits_memory_as_the_flags_say") {
        return;
    }
    let home = Home::new();
    let plan = |flags: &[&str]| {
        let mut args = vec!["plan", MODEL, "--json", "--drive-rate", "0.05", "--pool-slots", "20"];
        args.extend(flags);
        home.run(&args).gives(0).json()
    };
    let number = |plan: &Value, key: &str| plan["memory"][key].as_u64().unwrap();
    let speed = |plan: &Value| plan["expectation"]["typical"]["tokens_a_second"].as_f64().unwrap();
    let none = plan(&["--host-memory", "0"]);
    assert_eq!(number(&none, "host_slots"), 0);
    assert_eq!(none["expectation"]["typical"]["host_hit_rate"], 0.0);
    // All that the pool does not hold, where there is as much as that: with it only copies are waited for.
    let all = plan(&["--host-memory", "auto"]);
    assert_eq!(number(&all, "host_slots"), 96 - 20);
    assert_eq!(all["expectation"]["typical"]["read_bytes"], 0.0);
    let some = plan(&["--host-memory", "20MiB"]);
    assert!((1..76).contains(&number(&some, "host_slots")), "{}", some["memory"]);
    assert!(speed(&none) < speed(&some) && speed(&some) < speed(&all), "{none}, {some}, {all}");
    assert!(some["flags"].to_string().contains("--host-memory"), "{}", some["flags"]);

    let both = plan(&["--memory", "100MiB"]);
    let parts = ["resident_bytes", "kv_bytes", "scratch_bytes", "pool_bytes", "staging_bytes", "host_bytes"];
    let taken: u64 = parts.iter().map(|part| number(&both, part)).sum();
    assert!(taken <= 100 << 20 && number(&both, "host_slots") > 0, "{}", both["memory"]);

    let text = home.run(&["plan", MODEL, "--pool-slots", "20", "--host-memory", "20MiB"]).gives(0).stdout;
    assert!(text.contains("kept experts") && text.contains("% on host"), "{text}");
    home.run(&["plan", MODEL, "--pool-slots", "20", "--host-memory", "1KiB"]).refuses(2, "one expert");
    home.run(&["plan", MODEL, "--memory", "50MiB"]).refuses(5, "of --memory the host takes");
    home.run(&["plan", MODEL, "--gpu-memory", "9999GiB"]).refuses(5, "are free");
    let wrong = home.run(&["plan", MODEL, "--host-memory", "all"]).gives(2).stderr;
    assert!(wrong.contains("or auto"), "{wrong}");
    // The environment says it, too, and a flag wins.
    let mut command = home.command(&["plan", MODEL, "--json", "--pool-slots", "20", "--host-memory", "0"]);
    command.env("FLINT_RT_HOST_MEMORY", "20MiB").env("FLINT_RT_MEMORY", "auto");
    assert_eq!(number(&Ran::new(command.output().unwrap()).gives(0).json(), "host_slots"), 0);
    let mut command = home.command(&["plan", MODEL, "--json", "--pool-slots", "20"]);
    command.env("FLINT_RT_HOST_MEMORY", "0");
    assert_eq!(number(&Ran::new(command.output().unwrap()).gives(0).json(), "host_slots"), 0);
}

#[test]
fn plan_lowers_what_does_not_fit_and_refuses_only_what_cannot_run() {
    if !has_device("plan_lowers_what_does_not_fit_and_refuses_only_what_cannot_run") {
        return;
    }
    let home = Home::new();
    let plan = home.run(&["plan", MODEL, "--json", "--gpu-memory", "12MiB"]).gives(0).json();
    assert_eq!(plan["is_lowered"], true);
    let flags = plan["flags"].to_string();
    assert!(flags.contains("--prefill-chunk") && flags.contains("--ctx-size"), "{flags}");
    // The flags that it gives are those of a plan that fits.
    let words: Vec<String> = serde_json::from_value(plan["flags"].clone()).unwrap();
    let mut again = vec!["plan", "--json"];
    again.extend(words.iter().map(String::as_str));
    let again = home.run(&again).gives(0).json();
    assert_eq!(again["is_lowered"], false);
    assert_eq!(memory(&again), memory(&plan));

    home.run(&["plan", MODEL, "--gpu-memory", "1MiB"]).refuses(5, "dense weights");
    home.run(&["plan", MODEL, "--ctx-size", "0"]).refuses(2, "context size");
    home.run(&["plan", "/nowhere/model.gguf"]).refuses(3, "/nowhere/model.gguf");
    home.run(&["plan", MODEL, "--measure=/nowhere"]).refuses(2, "/nowhere");
    // The flag that it names is not one of plan's, and it says whose.
    let small = home.0.path().join("small.bin");
    fs::write(&small, [7; 1000]).unwrap();
    let measure = format!("--measure={}", small.display());
    home.run(&["plan", MODEL, &measure]).refuses(2, "name a longer file, or give `flint-rt disk-profile`");
    for wrong in [&["--drive-rate", "0"][..], &["--drive-rate", "fast"], &["--seconds", "3"]] {
        home.run(&[&["plan", MODEL], wrong].concat()).gives(2);
    }
}

#[test]
fn plan_measures_by_the_reads_of_decode() {
    if !has_device("plan_measures_by_the_reads_of_decode") {
        return;
    }
    let home = Home::alone();
    home.run(&["ingest", MODEL]).gives(0);
    let folder = home.0.path().join("drive");
    fs::create_dir(&folder).unwrap();
    let places = [(MODEL, "--measure".to_owned()), (NAME, "--measure".to_owned())];
    let made = (MODEL, format!("--measure={}", folder.display()));
    for (model, measure) in places.into_iter().chain([made]) {
        let plan = home.run(&["plan", model, "--json", &measure, "--seconds", "1"]).gives(0).json();
        let drive = &plan["drive"];
        assert_eq!(drive["measured"], true);
        assert!(drive["bytes_a_second"].as_f64().unwrap() > 1e6, "{drive}");
        let records: Vec<_> = drive["bursts"].as_array().unwrap().iter().map(|run| &run["records"]).collect();
        assert_eq!(records, [1, 2, 4]);
        assert!(drive["read_bytes"].as_u64().unwrap() > 0, "{drive}");
        assert!(!drive["doubts"].as_array().unwrap().is_empty(), "so few bytes are worth a doubt: {drive}");
        // The device, too: what it was not asked it does not know.
        let device = &plan["device_cost"];
        assert_eq!(device["measured"], true);
        let seconds = |part: &str| device[part].as_f64().unwrap();
        assert!(0.0 < seconds("kernel_seconds") && seconds("kernel_seconds") < 5.0, "{device}");
        // Differences of times: on a busy machine they may be lost in the noise, and are nothing then.
        assert!(seconds("stall_seconds") >= 0.0 && seconds("record_seconds") >= 0.0, "{device}");
        let basis = plan["basis"].to_string();
        assert!(basis.contains("device: measured now") && basis.contains("6 of 6 expert layers"), "{basis}");
        let rates: Vec<f64> = plan["expectation"]["by_hit_rate"]
            .as_array()
            .unwrap()
            .iter()
            .map(|point| point["tokens_a_second"].as_f64().unwrap())
            .collect();
        // Fewer stops lie further apart, and more is gone through in vain between them: where that is dear, the curve dips a little.
        let rises = rates.windows(2).all(|pair| pair[1] > 0.9 * pair[0]);
        assert!(rates.len() == 21 && rises && rates[20] > rates[0], "{rates:?}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the file that was made is still there");
}

/// Serves a file's bytes by HTTP, with ranges, until the test ends.
fn serve(file: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(&stream, Path::new(file)));
        }
    });
    format!("http://{address}/model.gguf")
}

fn answer(mut stream: &TcpStream, file: &Path) {
    let mut start = None;
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap_or_default().to_lowercase();
        if let Some(range) = line.strip_prefix("range: bytes=") {
            start = range.split('-').next().and_then(|start| start.parse::<usize>().ok());
        }
        if line.is_empty() {
            break;
        }
    }
    let bytes = fs::read(file).unwrap();
    let at = start.unwrap_or(0).min(bytes.len());
    let head = match start {
        None => "HTTP/1.1 200 OK\r\n".to_owned(),
        Some(start) => format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{}/{}\r\n",
            bytes.len() - 1,
            bytes.len()
        ),
    };
    let rest = format!(
        "Accept-Ranges: bytes\r\nETag: \"1\"\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        bytes.len() - at
    );
    // The client goes away when it has what it wants.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(rest.as_bytes()));
    let _ = stream.write_all(&bytes[at..]);
}

#[test]
fn plan_reads_a_header_over_the_network() {
    if !has_device("plan_reads_a_header_over_the_network") {
        return;
    }
    let home = Home::new();
    let url = serve(MODEL);
    let remote = home.run(&["plan", &url, "--json"]).gives(0).json();
    assert_eq!(remote["model"]["kind"], "http");
    let local = home.run(&["plan", MODEL, "--json"]).gives(0).json();
    // It will be a store, whose records are one read: its read buffers are fewer.
    let (mut of_store, of_file) = (memory(&remote), memory(&local));
    assert!(of_store["staging_bytes"].as_u64().unwrap() < of_file["staging_bytes"].as_u64().unwrap());
    of_store["staging_bytes"] = of_file["staging_bytes"].clone();
    assert_eq!(of_store, of_file);
    // It runs after an ingest, by the store's name.
    assert_eq!(remote["flags"][1], "model", "{}", remote["flags"]);
    let text = home.run(&["plan", &url]).gives(0).stdout;
    assert!(
        text.contains(&format!("flint-rt ingest {url}")) && text.contains("chat --model model"),
        "{text}"
    );
    assert_eq!(remote["expectation"]["cold"], local["expectation"]["cold"]);
    // Nothing of it came to stay.
    assert!(!home.store(NAME).exists());
    home.run(&["plan", &url, "--measure"]).refuses(2, "--measure=");
    let text = serve(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"));
    home.run(&["plan", &text]).refuses(3, "GGUF");
}
