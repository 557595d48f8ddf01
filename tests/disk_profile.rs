//! `flint-rt disk-profile` by the real binary: what it prints, saves, finds, refuses, and that it writes nothing.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/program.rs"]
mod program;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use program::{Ran, program};
use serde_json::Value;
use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/flint-nano-q4_1.gguf");

/// Rows of a test are as short as they may be.
const QUICK: [&str; 3] = ["--row-seconds", "0.02", "--no-gpu"];

struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file of numbers that are not zero.
    fn file(&self, name: &str, len_bytes: usize) -> String {
        let bytes: Vec<u8> = (0..len_bytes).map(|i| u8::try_from(i * 7 % 251).unwrap() + 1).collect();
        fs::write(self.path(name), bytes).unwrap();
        self.path(name).display().to_string()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = program(&[]);
        command.arg("disk-profile").args(args).stdin(Stdio::null());
        command.env("HOME", self.0.path()).env("XDG_STATE_HOME", self.path("state"));
        command.env("XDG_DATA_HOME", self.path("data"));
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        let output = self.command(args).output().unwrap();
        Ran::new(output)
    }

    /// Names of the profiles that were saved.
    fn profiles(&self) -> Vec<PathBuf> {
        let found = fs::read_dir(self.path("state/flint-rt/drives")).into_iter().flatten();
        found.map(|entry| entry.unwrap().path()).collect()
    }
}

fn codes(profile: &Value) -> Vec<&str> {
    profile["findings"].as_array().unwrap().iter().map(|found| found["code"].as_str().unwrap()).collect()
}

/// Every file below a folder, with its length and when it was written.
fn snapshot(folder: &Path) -> BTreeMap<PathBuf, (u64, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() {
            found.extend(snapshot(&entry.path()));
        } else {
            found.insert(entry.path(), (metadata.len(), metadata.modified().unwrap()));
        }
    }
    found
}

#[test]
fn the_bundled_model_is_measured_by_its_own_records_and_saved() {
    let home = Home::new();
    let profile = home.run(&[&[MODEL, "--json"], &QUICK[..]].concat()).gives(0).json();
    assert_eq!(profile["schema_version"], 1);
    assert_eq!((&profile["record_from"], &profile["reads_a_record"]), (&"model".into(), &3.into()));
    assert!(profile["record_bytes"].as_u64().unwrap() > 0);
    let rows = profile["rows"].as_array().unwrap();
    let engine = rows[0]["engine"].as_str().unwrap();
    let is_record = |row: &&Value| row["is_record"] == true && row["engine"] == engine;
    let depths: Vec<_> = rows.iter().filter(is_record).map(|row| row["depth"].as_u64().unwrap()).collect();
    assert_eq!(depths, [1, 2, 4, 8, 16, 32, 64]);
    for name in ["pool", "buffered", "mmap"] {
        assert!(rows.iter().any(|row| row["engine"] == name), "{name} is missing");
    }
    for row in rows {
        for key in ["gb_s", "iops", "seconds", "block_bytes", "reads"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key} in {row}");
        }
        // Beside copies the processor works for both.
        let cpu = row["cpu_s_per_gb"].as_f64();
        assert_eq!(cpu.is_some_and(|seconds| seconds > 0.0), row["with_uploads"] == false, "{row}");
        let latency = &row["latency_us"];
        let of = |key: &str| latency[key].as_f64().unwrap();
        assert!(
            of("p50") > 0.0 && of("p50") <= of("p90") && of("p90") <= of("p99") && of("p99") <= of("p99.9"),
            "{row}"
        );
        match row["fio"].as_str() {
            Some(job) => assert!(job.contains("--readonly"), "{row}"),
            None => assert!(row["pattern"] == "sequential" && row["engine"] == "pool", "{row}"),
        }
    }
    let counts: Vec<_> =
        profile["bursts"].as_array().unwrap().iter().map(|burst| burst["records"].clone()).collect();
    assert_eq!(counts, [1, 2, 4, 8, 16, 32]);
    assert!(codes(&profile).contains(&"small_spread"), "{:?}", codes(&profile));

    let saved = home.profiles();
    assert_eq!(saved.len(), 1, "{saved:?}");
    assert_eq!(profile["saved"], saved[0].display().to_string());
    let kept: Value = serde_json::from_str(&fs::read_to_string(&saved[0]).unwrap()).unwrap();
    assert_eq!(kept["bursts"], profile["bursts"]);
}

#[test]
fn a_measurement_writes_nothing_but_the_profile() {
    let home = Home::new();
    let folder = home.path("drive");
    fs::create_dir(&folder).unwrap();
    home.file("drive/a", 300_000);
    home.file("drive/b", 200_000);
    let before = snapshot(&folder);
    let folder_named = folder.display().to_string();
    let quick = [&[folder_named.as_str(), "--record", "8192", "--json"], &QUICK[..]].concat();
    let profile = home.run(&quick).gives(0).json();
    assert_eq!(snapshot(&folder), before);
    // 36 whole records in the one, 24 in the other.
    assert_eq!(profile["spread_bytes"], (36 + 24) * 8192);
    assert_eq!(home.profiles().len(), 1);
    let again = Home::new();
    again.run(&[&quick[..], &["--no-save"]].concat()).gives(0);
    assert!(again.profiles().is_empty(), "--no-save saved");
}

#[test]
fn several_paths_are_read_together_and_alone() {
    let home = Home::new();
    let (a, b) = (home.file("a", 400_000), home.file("b", 100_000));
    let profile = home.run(&[&[&a, &b, "--record", "4096", "--json"], &QUICK[..]].concat()).gives(0).json();
    let parts: Vec<_> =
        profile["rows"].as_array().unwrap().iter().filter_map(|row| row["part"].as_str()).collect();
    assert_eq!(parts, [a.as_str(), b.as_str()]);
    assert_eq!(profile["spread_bytes"], (97 + 24) * 4096);
}

#[test]
fn one_measurement_is_as_asked_for_and_not_saved() {
    let home = Home::new();
    let file = home.file("f", 1 << 20);
    let base = [file.as_str(), "--row-seconds", "0.05", "--json"];
    for engine in ["pool", "buffered", "mmap"] {
        let asked = ["--engine", engine, "--depth", "2", "--block", "4096", "--sequential"];
        let profile = home.run(&[&base[..], &asked].concat()).gives(0).json();
        let rows = profile["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (&rows[0]["engine"], &rows[0]["pattern"], &rows[0]["block_bytes"], &rows[0]["depth"]),
            (&engine.into(), &"sequential".into(), &4096.into(), &2.into())
        );
        if engine != "pool" {
            assert!(rows[0]["reads"].as_u64().unwrap() <= 256, "cached pages were read twice: {}", rows[0]);
        }
    }
    assert!(home.profiles().is_empty());
}

#[test]
fn a_long_run_shows_the_rate_over_time() {
    let home = Home::new();
    let file = home.file("f", 1 << 20);
    let profile = home
        .run(&[
            &file,
            "--depth",
            "4",
            "--block",
            "4096",
            "--row-seconds",
            "0.05",
            "--record",
            "4096",
            "--seconds",
            "3",
            "--json",
        ])
        .gives(0)
        .json();
    let samples = profile["sustained"].as_array().unwrap();
    assert!((1..=3).contains(&samples.len()), "{samples:?}");
    for sample in samples {
        assert!(
            sample["gb_s"].as_f64().unwrap() > 0.0 && sample["p99_us"].as_f64().unwrap() > 0.0,
            "{sample}"
        );
    }
}

#[test]
fn a_sparse_file_is_noted() {
    let home = Home::new();
    let path = home.path("sparse");
    File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let path = path.display().to_string();
    let ran = home.run(&[&path, "--depth", "1", "--row-seconds", "0.02", "--json"]).gives(0);
    assert!(codes(&ran.json()).contains(&"sparse_file"), "{}", ran.stdout);
}

#[test]
fn tables_have_a_line_a_row() {
    let home = Home::new();
    let file = home.file("f", 1 << 20);
    let base = [&[file.as_str(), "--record", "65536"], &QUICK[..]].concat();
    let text = home.run(&base).gives(0).stdout;
    for word in [
        "records in random order",
        "p99.9",
        "bursts of records",
        "CPU s/GB",
        "fio --name=row",
        "saved as",
        "warning: only",
    ] {
        assert!(text.contains(word), "{word} is missing in {text}");
    }
    let csv = home.run(&[&base[..], &["-o", "csv"]].concat()).gives(0).stdout;
    assert!(csv.starts_with("engine,pattern,") && csv.lines().count() > 10, "{csv}");
    let md = home.run(&[&base[..], &["-o", "md"]].concat()).gives(0).stdout;
    assert!(md.contains("| engine | pattern |") && md.contains("| --- |"), "{md}");
}

#[test]
fn a_file_of_our_own_is_gone_afterwards() {
    let home = Home::new();
    let folder = home.path("drive");
    fs::create_dir(&folder).unwrap();
    let named = folder.display().to_string();
    let args = [
        named.as_str(),
        "--make-file",
        "8MiB",
        "--record",
        "65536",
        "--depth",
        "2",
        "--row-seconds",
        "0.02",
        "--json",
    ];
    let profile = home.run(&args).gives(0).json();
    assert_eq!(profile["spread_bytes"], 8 << 20);
    assert!(codes(&profile).contains(&"fresh_file"));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "the file that was made is still there");
    home.run(&[&named, "--make-file", "9000000TiB"]).refuses(5, "are free");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

/// Starts a long run over a file of its own; waits until the file is there.
fn start_long(home: &Home, folder: &Path) -> Child {
    fs::create_dir(folder).unwrap();
    let named = folder.display().to_string();
    let args =
        [named.as_str(), "--make-file", "8MiB", "--record", "65536", "--depth", "2", "--row-seconds", "60"];
    let child = home.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while fs::read_dir(folder).unwrap().count() == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_ne!(fs::read_dir(folder).unwrap().count(), 0, "no file was made");
    child
}

#[test]
fn signals_remove_the_file_too() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let home = Home::new();
        let folder = home.path("drive");
        let child = start_long(&home, &folder);
        let kill = format!("kill -{signal} {}", child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "after SIG{signal} the file is still there");
    }
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let home = Home::new();
    home.run(&[]).gives(2);
    home.run(&["/nowhere/at/all"]).refuses(2, "/nowhere/at/all");
    home.run(&["/dev/null"]).refuses(2, "/dev/null");
    let short = home.file("short", 100);
    home.run(&[&short]).refuses(2, "--record");
    let empty = home.path("empty");
    fs::create_dir(&empty).unwrap();
    home.run(&[&empty.display().to_string()]).refuses(2, "--make-file");
    home.run(&[&short, "--make-file", "1GiB"]).refuses(2, "name one folder");
    home.run(&[&empty.display().to_string(), "--make-file", "4096"]).refuses(2, "no two records");
    let file = home.file("file", 1 << 20);
    home.run(&[MODEL, &file]).refuses(2, "no common record");
    for wrong in [
        &["--depth", "0"][..],
        &["--depth", "65"],
        &["--block", "1000"],
        &["--record", "1"],
        &["--row-seconds", "0"],
        &["--seconds", "0"],
        &["--engine", "dma"],
        &["-o", "yaml"],
        &["-o", "csv", "--json"],
        &["--full", "--engine", "pool"],
        &["--full", "--depth", "4"],
        &["--full", "--block", "4096"],
        &["--full", "--sequential"],
    ] {
        home.run(&[&[file.as_str()], wrong].concat()).gives(2);
    }
    if program(&[]).arg("devices").output().unwrap().status.success() {
        home.run(&[MODEL, "--device", "no such device"]).refuses(4, "no such device");
    } else {
        eprintln!("SKIPPED a device that is none: there is no Vulkan here");
    }
}
