//! Damage of every kind is found, named, and mended to the exact bytes; and none reaches the device.

#![allow(clippy::unwrap_used, clippy::missing_assert_message, reason = "a test may fail where it stands")]

#[path = "support/nano.rs"]
mod nano;

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flint_rt::base::ids::{ExpertKey, Span};
use flint_rt::disk::{Completion, DiskError, PushRefused, Read, ReadCounters, ReadQueue, SourceFile};
use flint_rt::engine::{Engine, EngineError, EngineOptions};
use flint_rt::expert::{
    Check, CheckStats, ExpertError, ExpertSpace, Move, Policy, Streamer, Transport, TransportOptions,
};
use flint_rt::gpu::{Gpu, GpuError, GpuOptions, Placement};
use flint_rt::model::Want;
use flint_rt::model::prefill::NoObserver;
use flint_rt::store::{
    Cause, Damage, DamagedPart, RepairReport, Sha256Digest, Source, StoreError, VerifyOptions,
    VerifyProgress, VerifyReport, ingest, repair_store, verify_store,
};
use nano::{nano_path, open_nano, skip_without_device};
use serde_json::Value;
use tempfile::TempDir;

const QUICK: VerifyOptions = VerifyOptions { threads: Some(4), with_sha256: false };
const FULL: VerifyOptions = VerifyOptions { threads: Some(3), with_sha256: true };

fn quiet(_: VerifyProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A store of the bundled model, and its bytes as they were made.
struct Made {
    folder: TempDir,
    store: PathBuf,
    files: Vec<(PathBuf, Vec<u8>)>,
}

fn made() -> Made {
    let folder = TempDir::new().unwrap();
    let store = folder.path().join("nano");
    ingest(&nano_path(), &store, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut files: Vec<_> = fs::read_dir(&store)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect();
    files.sort();
    Made { folder, store, files }
}

impl Made {
    fn path(&self, name: &str) -> PathBuf {
        self.store.join(name)
    }

    fn open(&self, name: &str) -> File {
        OpenOptions::new().read(true).write(true).open(self.path(name)).unwrap()
    }

    fn verify(&self, options: &VerifyOptions) -> VerifyReport {
        verify_store(&self.store, options, &mut quiet).unwrap()
    }

    #[track_caller]
    fn assert_as_made(&self) {
        for (path, bytes) in &self.files {
            assert!(fs::read(path).unwrap() == *bytes, "{} differs", path.display());
        }
        assert_eq!(fs::read_dir(&self.store).unwrap().count(), self.files.len());
    }

    /// Mends it, and sees to it that it is as it was made.
    #[track_caller]
    fn assert_repairable(&self) {
        let report = patient_repair(&self.store, &nano_path()).unwrap();
        assert_eq!(report.unusable, [] as [String; 0]);
        assert!(report.after.is_whole(), "{:?}", report.after.damage);
        self.assert_as_made();
    }
}

/// A program that another test is starting holds our locks for a moment, until it is itself.
fn patient_repair(store: &Path, source: &Path) -> Result<RepairReport, StoreError> {
    let started = Instant::now();
    loop {
        match repair_store(store, source, &QUICK, &mut quiet) {
            Err(StoreError::InUse { .. }) if started.elapsed() < Duration::from_secs(5) => {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other,
        }
    }
}

fn flip(file: &File, offset_bytes: u64, bit: u32) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset_bytes).unwrap();
    byte[0] ^= 1 << bit;
    file.write_all_at(&byte, offset_bytes).unwrap();
}

/// SplitMix64 (Steele, Lea & Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn bit(&mut self) -> u32 {
        u32::try_from(self.below(8)).unwrap()
    }
}

fn names(damage: &[Damage]) -> Vec<String> {
    damage.iter().map(|damage| damage.part.to_string()).collect()
}

#[test]
fn a_healthy_store_is_whole() {
    let made = made();
    for options in [QUICK, FULL, VerifyOptions::default(), VerifyOptions { threads: Some(1), ..FULL }] {
        let mut seen = Vec::new();
        let report = verify_store(&made.store, &options, &mut |progress| {
            seen.push(progress);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(report.damage, []);
        assert_eq!(report.record_count, 96);
        let source = Source::open(&made.store).unwrap();
        let dense = source.gguf().tensors.iter().filter(|tensor| source.tensor_span(&tensor.name).is_some());
        assert_eq!(report.tensor_count, dense.count() as u64);
        assert!(seen.is_sorted_by_key(|progress| progress.done_bytes));
        let last = seen.last().unwrap();
        assert_eq!((last.done_bytes, last.total_bytes), (report.total_bytes, report.total_bytes));
    }
    made.assert_as_made();
    let stopped = verify_store(&made.store, &QUICK, &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(StoreError::Stopped)));
}

#[test]
fn every_flipped_bit_is_found_and_named() {
    let made = made();
    let source = Source::open(&made.store).unwrap();
    let keys: Vec<ExpertKey> = source.expert_keys().collect();
    let tensors: Vec<(String, Span)> = source
        .gguf()
        .tensors
        .iter()
        .filter_map(|tensor| Some((tensor.name.clone(), source.tensor_span(&tensor.name)?)))
        .collect();
    let (experts, dense) = (made.open("experts.bin"), made.open("dense.bin"));
    let mut random = Random(7);
    let mut count = 0;
    for round in 0..16 {
        let mut flips = Vec::new();
        let mut wanted = BTreeSet::new();
        for &key in &keys {
            // Half of the records, so that a right one beside a wrong one is not named.
            if random.below(2) == 0 {
                let span = source.expert_pieces(key)[0].span;
                flips.push((&experts, span.offset_bytes + random.below(span.len_bytes), random.bit()));
                wanted.insert(key.to_string());
            }
        }
        for (name, span) in &tensors {
            if random.below(3) == 0 {
                flips.push((&dense, span.offset_bytes + random.below(span.len_bytes), random.bit()));
                wanted.insert(format!("tensor {name}"));
            }
        }
        flips.iter().for_each(|&(file, at, bit)| flip(file, at, bit));
        let report = made.verify(if round == 0 { &FULL } else { &QUICK });
        let found = names(&report.damage);
        assert_eq!(found.len(), wanted.len());
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), wanted, "round {round}");
        count += flips.len();
        flips.iter().for_each(|&(file, at, bit)| flip(file, at, bit));
    }
    assert!(count > 800, "{count} flips");
    made.assert_as_made();
    assert!(made.verify(&FULL).is_whole());
}

#[test]
fn damage_names_layer_expert_file_and_offset() {
    let made = made();
    let source = Source::open(&made.store).unwrap();
    let key = source.expert_keys().nth(37).unwrap();
    let span = source.expert_pieces(key)[0].span;
    flip(&made.open("experts.bin"), span.offset_bytes + 5, 3);
    let report = made.verify(&FULL);
    let [damage] = report.damage.as_slice() else { panic!("{:?}", report.damage) };
    assert_eq!(damage.part, DamagedPart::Record(key));
    assert_eq!(damage.path, made.path("experts.bin"));
    assert_eq!((damage.offset_bytes, damage.len_bytes), (span.offset_bytes, span.len_bytes));
    assert!(matches!(damage.cause, Cause::Checksum { .. }));
    drop(source);
    made.assert_repairable();
}

#[test]
fn right_bytes_in_the_wrong_place_are_wrong() {
    let made = made();
    let source = Source::open(&made.store).unwrap();
    let keys: Vec<ExpertKey> = source.expert_keys().collect();
    let span = |key: ExpertKey| source.expert_pieces(key)[0].span;
    let file = made.open("experts.bin");
    let read = |key| {
        let mut bytes = vec![0; usize::try_from(span(key).len_bytes).unwrap()];
        file.read_exact_at(&mut bytes, span(key).offset_bytes).unwrap();
        bytes
    };
    let (one, other) = (keys[3], keys[90]);
    let (of_one, of_other) = (read(one), read(other));
    file.write_all_at(&of_other, span(one).offset_bytes).unwrap();
    file.write_all_at(&of_one, span(other).offset_bytes).unwrap();
    assert_eq!(names(&made.verify(&QUICK).damage), [one.to_string(), other.to_string()]);

    // A record of another store: the same place in a store of a model that was trained on.
    let trained = made.folder.path().join("trained.gguf");
    let mut bytes = fs::read(nano_path()).unwrap();
    let place = Source::open(&nano_path()).unwrap().expert_pieces(one)[0].span.offset_bytes;
    bytes[usize::try_from(place).unwrap()] ^= 1;
    fs::write(&trained, &bytes).unwrap();
    let foreign = made.folder.path().join("foreign");
    ingest(&trained, &foreign, &mut |_| ControlFlow::Continue(())).unwrap();
    file.write_all_at(&of_other, span(other).offset_bytes).unwrap();
    let mut record = of_one.clone();
    File::open(foreign.join("experts.bin"))
        .unwrap()
        .read_exact_at(&mut record, span(one).offset_bytes)
        .unwrap();
    assert_ne!(record, of_one);
    file.write_all_at(&record, span(one).offset_bytes).unwrap();
    assert_eq!(names(&made.verify(&QUICK).damage), [one.to_string()]);
    drop(source);

    // That model has the same header and length, so the same identity; but not the bytes that are missing.
    let report = patient_repair(&made.store, &trained).unwrap();
    assert_eq!((report.unusable, report.written_bytes), (vec![one.to_string()], 0));
    assert_eq!(names(&report.after.damage), [one.to_string()]);
    made.assert_repairable();
}

#[test]
fn bytes_between_records_count_as_well() {
    let made = made();
    let (experts, dense) = (made.open("experts.bin"), made.open("dense.bin"));
    let end = experts.metadata().unwrap().len();
    flip(&experts, end - 1, 0);
    flip(&experts, 30_720, 7);
    let source = Source::open(&made.store).unwrap();
    let spans = source.gguf().tensors.iter().filter_map(|tensor| source.tensor_span(&tensor.name));
    let gap = spans.map(|span| span.offset_bytes + span.len_bytes).find(|end| end % 4096 != 0).unwrap();
    flip(&dense, gap, 1);
    let found = made.verify(&FULL).damage;
    assert_eq!(names(&found), ["padding", "padding", "padding"]);
    assert_eq!(found[0].offset_bytes, gap);
    drop(source);
    made.assert_repairable();
}

#[test]
fn files_cut_grown_or_gone_are_named_and_made_whole() {
    let made = made();
    let len = |name| fs::metadata(made.path(name)).unwrap().len();
    for name in ["experts.bin", "dense.bin", "header.bin"] {
        let whole = len(name);
        for cut in
            [0, 1, 4095, 32_768, whole / 2, whole - 30_721, whole - 4096, whole - 1, whole + 1, whole + 5000]
        {
            made.open(name).set_len(cut).unwrap();
            let report = made.verify(&QUICK);
            assert!(!report.is_whole(), "{name} of {cut} B");
            assert!(report.damage.iter().all(|damage| damage.path == made.path(name)), "{name} of {cut} B");
            if name == "experts.bin" && cut < whole {
                let records =
                    report.damage.iter().filter(|damage| matches!(damage.part, DamagedPart::Record(_)));
                // A record of which only padding is cut is there.
                let there = (0..96).filter(|index| index * 32_768 + 30_720 <= cut).count();
                assert_eq!(records.count(), 96 - there, "{name} of {cut} B");
            }
            Source::open(&made.store).expect_err("it does not open");
            made.assert_repairable();
        }
        fs::remove_file(made.path(name)).unwrap();
        let report = made.verify(&QUICK);
        assert_eq!(report.damage.len(), 1, "{name}: {:?}", report.damage);
        assert_eq!(report.damage[0].cause, Cause::Missing);
        made.assert_repairable();
    }
    flip(&made.open("header.bin"), 1000, 2);
    assert_eq!(names(&made.verify(&QUICK).damage), ["header"]);
    made.assert_repairable();
}

#[test]
fn a_damaged_manifest_is_refused() {
    let made = made();
    let (path, whole) = made.files.iter().find(|(path, _)| path.ends_with("manifest.json")).unwrap();
    let mut random = Random(11);
    for _ in 0..100 {
        let mut bytes = whole.clone();
        let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
        bytes[at] ^= 1 << random.bit();
        fs::write(path, &bytes).unwrap();
        match verify_store(&made.store, &QUICK, &mut quiet) {
            Err(error) => assert!(!error.to_string().is_empty()),
            // Space between the fields is no part of what a manifest says.
            Ok(report) => assert!(report.is_whole() && whole[at].is_ascii_whitespace(), "byte {at}"),
        }
    }
    fs::write(path, whole).unwrap();
    assert!(made.verify(&FULL).is_whole());
}

#[test]
fn a_repair_asks_for_the_right_model_and_for_quiet() {
    let made = made();
    flip(&made.open("experts.bin"), 40_000, 0);
    let before = fs::read(made.path("experts.bin")).unwrap();

    // Another model: one letter of its header differs.
    let mut bytes = fs::read(nano_path()).unwrap();
    let at = bytes.windows(12).position(|window| window == b"general.name").unwrap();
    bytes[at + 12 + 12] ^= 1;
    let other = made.folder.path().join("other.gguf");
    fs::write(&other, bytes).unwrap();
    let refused = patient_repair(&made.store, &other).unwrap_err();
    assert!(matches!(refused, StoreError::RepairSource { .. }), "{refused}");

    let reader = Source::open(&made.store).unwrap();
    let refused = repair_store(&made.store, &nano_path(), &QUICK, &mut quiet).unwrap_err();
    assert!(matches!(refused, StoreError::InUse { .. }), "{refused}");
    drop(reader);
    assert!(fs::read(made.path("experts.bin")).unwrap() == before, "nothing was written");
    made.assert_repairable();
}

/// The program, in a home of its own.
fn program(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flint-rt"));
    command.args(args).env("HOME", home).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "FLINT_RT_STORE_DIR", "FLINT_RT_MODEL"]
    {
        command.env_remove(name);
    }
    command
}

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(home: &Path, args: &[&str]) -> Ran {
    let output = program(home, args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let ran = Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    ran
}

#[test]
fn a_killed_repair_leaves_a_store_that_can_be_repaired() {
    let made = made();
    let home = made.folder.path();
    let (store, source) = (made.store.to_str().unwrap(), nano_path());
    let mut random = Random(5);
    let mut killed = 0;
    for round in 0..16 {
        if round % 2 == 0 {
            // What the last one did not come to is gone already.
            let _ = fs::remove_file(made.path("experts.bin"));
            let _ = fs::remove_file(made.path("header.bin"));
            made.open("dense.bin").set_len(7).unwrap();
        }
        let started = Instant::now();
        let args = ["verify", store, "--repair", source.to_str().unwrap(), "--json"];
        let mut child = program(home, &args).spawn().unwrap();
        let pause = Duration::from_millis(random.below(120));
        while started.elapsed() < pause && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        killed += u32::from(child.try_wait().unwrap().is_none());
        let _ = child.kill();
        child.wait().unwrap();
        // Whatever it left: either it is not whole, or it is as it was made.
        if made.verify(&QUICK).is_whole() {
            for (path, bytes) in &made.files {
                assert!(fs::read(path).unwrap() == *bytes, "round {round}: {} differs", path.display());
            }
        }
    }
    println!("{killed} of 16 repairs were killed under way");
    let _ = fs::remove_file(made.path("header.bin.repair"));
    made.assert_repairable();
    assert!(made.verify(&FULL).is_whole());
}

#[test]
fn the_command_names_damage_and_mends_it() {
    let made = made();
    let home = made.folder.path();
    let store = made.store.to_str().unwrap();
    let ran = run(home, &["verify", store]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("whole"), "{}", ran.stdout);

    let source = Source::open(&made.store).unwrap();
    let key = source.expert_keys().nth(20).unwrap();
    flip(&made.open("experts.bin"), source.expert_pieces(key)[0].span.offset_bytes, 0);
    drop(source);
    let ran = run(home, &["verify", store, "--quick"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stdout.contains(&key.to_string()) && ran.stdout.contains("experts.bin"), "{}", ran.stdout);
    assert!(ran.stderr.contains("--repair"), "{}", ran.stderr);

    let ran = run(home, &["verify", store, "--json"]);
    assert_eq!(ran.code, Some(1));
    let events: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let done = events.iter().find(|event| event["event"] == "done").unwrap();
    assert_eq!(done["whole"], false);
    assert_eq!(done["damage"][0]["layer"], key.layer.0);
    assert_eq!(done["damage"][0]["expert"], key.expert.0);
    assert_eq!(events.last().unwrap()["event"], "error");

    let ran = run(home, &["verify", store, "--repair", nano_path().to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    made.assert_as_made();

    fs::remove_file(made.path("manifest.json")).unwrap();
    assert_eq!(run(home, &["verify", store]).code, Some(3));
    assert_eq!(run(home, &["verify", "nowhere"]).code, Some(3));
    let gguf = nano_path();
    let gguf = gguf.to_str().unwrap();
    for wrong in [&["verify"][..], &["verify", gguf, "--repair", gguf], &["verify", gguf, "--sha256", "12"]] {
        assert_eq!(run(home, wrong).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn a_gguf_is_compared_with_what_it_was() {
    let folder = TempDir::new().unwrap();
    let home = folder.path();
    let path = home.join("model.gguf");
    fs::copy(nano_path(), &path).unwrap();
    let name = path.to_str().unwrap();
    let digest = Sha256Digest::of(&fs::read(&path).unwrap()).to_string();
    // Until the file has rested, its state is not believed.
    std::thread::sleep(Duration::from_millis(3100));
    let ran = run(home, &["verify", name]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stdout.contains(&digest) && ran.stderr.contains("remembered"),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
    let ran = run(home, &["verify", name]);
    assert!(ran.code == Some(0) && ran.stderr.contains("as it was before"), "{}", ran.stderr);
    assert_eq!(run(home, &["verify", name, "--sha256", &digest]).code, Some(0));
    assert_eq!(run(home, &["verify", name, "--sha256", &"0".repeat(64)]).code, Some(1));

    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let end = file.metadata().unwrap().len();
    flip(&file, end - 100, 0);
    let ran = run(home, &["verify", name, "--json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let done: Value = serde_json::from_str(ran.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&done["event"], &done["whole"]), (&Value::from("done"), &Value::from(false)));
    assert!(ran.stderr.contains("changed since"), "{}", ran.stderr);
    // It is not remembered as right, until it is said to be.
    assert_eq!(run(home, &["verify", name]).code, Some(1));
    let changed = Sha256Digest::of(&fs::read(&path).unwrap()).to_string();
    assert_eq!(run(home, &["verify", name, "--sha256", &changed]).code, Some(0));
    assert_eq!(run(home, &["verify", name]).code, Some(0));
}

/// Flips a bit of the first reads that come back.
struct Flipping {
    inner: Box<dyn ReadQueue>,
    flips_left: u32,
}

impl ReadQueue for Flipping {
    fn push(&mut self, read: Read) -> Result<(), PushRefused> {
        self.inner.push(read)
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), DiskError> {
        let from = done.len();
        let polled = self.inner.poll(wait, done);
        for completion in &mut done[from..] {
            if let (Ok(range), true) = (&completion.result, self.flips_left > 0) {
                self.flips_left -= 1;
                completion.buffer.as_mut_slice()[range.end - 1] ^= 0x10;
            }
        }
        polled
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn counters(&self) -> ReadCounters {
        self.inner.counters()
    }
}

/// Fails the first reads at an offset, and gives them back before all others; reads at some other offsets come back when nothing else
/// is under way.
struct Failing {
    inner: Box<dyn ReadQueue>,
    bad_offset_bytes: u64,
    late_offsets_bytes: Vec<u64>,
    failures_left: u32,
    /// By tag.
    offsets_bytes: HashMap<u64, u64>,
    held: Vec<Completion>,
}

impl ReadQueue for Failing {
    fn push(&mut self, read: Read) -> Result<(), PushRefused> {
        self.offsets_bytes.insert(read.tag, read.offset_bytes);
        self.inner.push(read)
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), DiskError> {
        while self.inner.in_flight() > 0 {
            self.inner.poll(true, &mut self.held)?;
        }
        let offset_bytes = |completion: &Completion| self.offsets_bytes[&completion.tag];
        if let Some(at) = self.held.iter().position(|read| offset_bytes(read) == self.bad_offset_bytes) {
            let mut read = self.held.remove(at);
            if self.failures_left > 0 {
                self.failures_left -= 1;
                read.result = Err(DiskError::Read {
                    path: nano_path(),
                    offset_bytes: self.bad_offset_bytes,
                    len_bytes: 1,
                    align_bytes: 1,
                    retries: 0,
                    errno: 5,
                    source: std::io::Error::from_raw_os_error(5),
                });
            }
            done.push(read);
            return Ok(());
        }
        let is_late = |read: &Completion| self.late_offsets_bytes.contains(&offset_bytes(read));
        let (late, others): (Vec<_>, Vec<_>) = self.held.drain(..).partition(is_late);
        let (now, held) = if others.is_empty() && wait { (late, others) } else { (others, late) };
        done.extend(now);
        self.held = held;
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn counters(&self) -> ReadCounters {
        self.inner.counters()
    }
}

fn open_gpu() -> Option<Gpu> {
    let options = GpuOptions::default();
    match Gpu::open(&options) {
        Ok(gpu) => Some(gpu),
        Err(GpuError::LoaderMissing { .. } | GpuError::NoDevice { .. }) => None,
        Err(error) => panic!("no device opens: {error}"),
    }
}

/// A transport over the store, with checks.
fn transport(gpu: &Gpu, source: &Arc<Source>, span_bytes_max: u32) -> Transport {
    let files: Vec<_> = source.files().iter().map(|path| Arc::new(SourceFile::open(path).unwrap())).collect();
    let options =
        TransportOptions { read_path: None, host_path: None, span_bytes_max, buffer_count: 6, depth: 4 };
    let mut transport = Transport::open(gpu, &files, &options).unwrap();
    transport.check_against(source.clone());
    transport
}

#[test]
fn no_flipped_bit_of_a_record_reaches_the_device() {
    let Some(gpu) = open_gpu() else { return skip_without_device() };
    let made = made();
    let source = Arc::new(Source::open(&made.store).unwrap());
    let mut transport = transport(&gpu, &source, 32_768);
    let experts = made.open("experts.bin");
    let keys: Vec<ExpertKey> = source.expert_keys().collect();
    let record_bytes = source.record().record_bytes();
    let target = gpu.buffer("records", record_bytes * 8, Placement::Readback).unwrap();
    let load = |transport: &mut Transport, keys: &[ExpertKey]| {
        let mut moves = keys.iter().zip(0..).map(|(&key, place)| Move {
            span: source.expert_pieces(key)[0].span,
            target: target.clone(),
            target_offset_bytes: place * record_bytes,
            check: Some(Check::Record(key)),
        });
        let ticket = transport.run(&mut moves, &mut |_| {}, &mut |_| {})?;
        gpu.wait(ticket).map_err(ExpertError::from)
    };
    let mut random = Random(3);
    for round in 0..300 {
        let first = usize::try_from(random.below(keys.len() as u64 - 8)).unwrap();
        let wave = &keys[first..first + 8];
        let bad = wave[usize::try_from(random.below(8)).unwrap()];
        let span = source.expert_pieces(bad)[0].span;
        let (at, bit) = (span.offset_bytes + random.below(span.len_bytes), random.bit());
        flip(&experts, at, bit);
        let mark = vec![0xAA_u8; usize::try_from(record_bytes).unwrap()];
        let place = wave.iter().position(|&key| key == bad).unwrap() as u64 * record_bytes;
        target.write(place, &mark);
        match load(&mut transport, wave) {
            Err(ExpertError::Damaged { what, path, offset_bytes, .. }) => {
                assert_eq!(
                    (what, path, offset_bytes),
                    (bad.to_string(), made.path("experts.bin"), span.offset_bytes)
                );
            }
            other => panic!("round {round}: byte {at}, bit {bit}: {other:?}"),
        }
        let mut seen = vec![0_u8; mark.len()];
        target.read(place, &mut seen);
        assert!(seen == mark, "round {round}: damaged bytes reached the device");
        flip(&experts, at, bit);
        load(&mut transport, wave).unwrap();
    }
    assert_eq!(transport.check_stats().second_reads, 300);
}

#[test]
fn a_read_that_was_wrong_once_is_read_again() {
    let Some(gpu) = open_gpu() else { return skip_without_device() };
    let made = made();
    let source = Arc::new(Source::open(&made.store).unwrap());
    let key = source.expert_keys().nth(11).unwrap();
    let span = source.expert_pieces(key)[0].span;
    let target = gpu.buffer("record", span.len_bytes, Placement::Readback).unwrap();
    let item =
        || Move { span, target: target.clone(), target_offset_bytes: 0, check: Some(Check::Record(key)) };
    for (flips_left, heals) in [(1, true), (2, false)] {
        let mut transport =
            transport(&gpu, &source, 32_768).wrap_queue(|inner| Box::new(Flipping { inner, flips_left }));
        let result = transport.run(&mut std::iter::once(item()), &mut |_| {}, &mut |_| {});
        assert_eq!(result.is_ok(), heals, "{flips_left} wrong reads");
        assert_eq!(transport.check_stats().second_reads, 1);
        // And the ring is whole again.
        let ticket = transport.run(&mut std::iter::once(item()), &mut |_| {}, &mut |_| {}).unwrap();
        gpu.wait(ticket).unwrap();
        let mut wanted = vec![0; usize::try_from(span.len_bytes).unwrap()];
        made.open("experts.bin").read_exact_at(&mut wanted, span.offset_bytes).unwrap();
        let mut got = vec![0_u8; wanted.len()];
        target.read(0, &mut got);
        assert!(got == wanted);
    }
}

#[test]
fn a_guess_that_has_failed_is_read_again_for_the_step_that_wants_it() {
    let Some(gpu) = open_gpu() else { return skip_without_device() };
    let source = Arc::new(Source::open(&nano_path()).unwrap());
    let keys: Vec<ExpertKey> = source.expert_keys().collect();
    let (guessed, other) = (keys[0], keys[1]);
    let expert_count = keys.iter().filter(|key| key.layer == guessed.layer).count();
    let space = ExpertSpace {
        layer_first: guessed.layer.0,
        layer_count: u32::try_from(keys.len() / expert_count).unwrap(),
        expert_count: u32::try_from(expert_count).unwrap(),
    };
    let files: Vec<_> = source.files().iter().map(|path| Arc::new(SourceFile::open(path).unwrap())).collect();
    let options = TransportOptions {
        read_path: None,
        host_path: None,
        span_bytes_max: 32_768,
        buffer_count: 12,
        depth: 8,
    };
    let pieces = source.expert_pieces(guessed);
    let offsets_bytes: Vec<u64> = pieces.iter().map(|piece| piece.span.offset_bytes).collect();
    for (failures_left, heals) in [(1, true), (2, false)] {
        let transport = Transport::open(&gpu, &files, &options).unwrap().wrap_queue(|inner| {
            Box::new(Failing {
                inner,
                bad_offset_bytes: offsets_bytes[0],
                late_offsets_bytes: offsets_bytes[1..].to_vec(),
                failures_left,
                offsets_bytes: HashMap::new(),
                held: Vec::new(),
            })
        });
        let mut streamer =
            Streamer::new(&gpu, source.clone(), transport, 4, Policy::default(), space, 0).unwrap();
        let load = |streamer: &mut Streamer, key: ExpertKey| {
            streamer.load_wave(key.layer, &mut vec![key.expert]).map(|_| ())
        };
        streamer.begin_step();
        streamer.guess(guessed.layer, &[guessed.expert.0]);
        // Beside its reads the guess is begun, and its first piece fails.
        load(&mut streamer, other).unwrap();
        assert_eq!(streamer.inflow_stats().guesses_issued, 1);
        let loaded = load(&mut streamer, guessed);
        assert_eq!(loaded.is_ok(), heals, "{failures_left} failed reads: {loaded:?}");
        let stats = streamer.inflow_stats();
        assert_eq!((stats.demand_reads, stats.guesses_used_late), (2, 0), "{stats:?}");
        load(&mut streamer, guessed).expect("the drive gives it again");
    }
}

#[test]
fn tensors_are_checked_in_parts_and_damaged_ones_are_named() {
    let Some(gpu) = open_gpu() else { return skip_without_device() };
    let made = made();
    let source = Arc::new(Source::open(&made.store).unwrap());
    let mut transport = transport(&gpu, &source, 4096);
    let tensors: Vec<(Arc<str>, Span)> = source
        .gguf()
        .tensors
        .iter()
        .filter_map(|tensor| Some((tensor.name.as_str().into(), source.tensor_span(&tensor.name)?)))
        .filter(|(_, span): &(Arc<str>, Span)| span.len_bytes < 100_000)
        .collect();
    let target = gpu.buffer("tensors", 100_000, Placement::Device).unwrap();
    let load = |transport: &mut Transport| {
        let mut moves = tensors.iter().flat_map(|(name, span)| {
            const PART_BYTES: u64 = 4000;
            let target = &target;
            (0..span.len_bytes.div_ceil(PART_BYTES)).map(move |part| {
                let at = part * PART_BYTES;
                let len_bytes = PART_BYTES.min(span.len_bytes - at);
                Move {
                    span: Span { offset_bytes: span.offset_bytes + at, len_bytes, ..*span },
                    target: target.clone(),
                    target_offset_bytes: at,
                    check: Some(Check::TensorPart {
                        name: name.clone(),
                        is_last: at + len_bytes == span.len_bytes,
                    }),
                }
            })
        });
        transport.run(&mut moves, &mut |_| {}, &mut |_| {})
    };
    load(&mut transport).unwrap();
    let bytes: u64 = tensors.iter().map(|(_, span)| span.len_bytes).sum();
    assert!(matches!(transport.check_stats(), CheckStats { bytes: checked, .. } if checked == bytes));
    let dense = made.open("dense.bin");
    let mut random = Random(13);
    for _ in 0..40 {
        let (name, span) = &tensors[usize::try_from(random.below(tensors.len() as u64)).unwrap()];
        let (at, bit) = (span.offset_bytes + random.below(span.len_bytes), random.bit());
        flip(&dense, at, bit);
        match load(&mut transport) {
            Err(ExpertError::Damaged { what, offset_bytes, .. }) => {
                assert_eq!((what, offset_bytes), (format!("tensor {name}"), span.offset_bytes));
            }
            other => panic!("{name}: {:?}", other.map(|_| ())),
        }
        flip(&dense, at, bit);
        load(&mut transport).unwrap();
    }
}

fn open_store(store: &Path, change: impl FnOnce(&mut EngineOptions)) -> Result<Engine, EngineError> {
    let mut options =
        EngineOptions { model: store.to_owned(), pool_slots: Some(8), ..EngineOptions::default() };
    change(&mut options);
    Engine::open(&options, &mut |_| {})
}

#[test]
fn an_engine_refuses_damaged_weights_and_survives_damaged_experts() {
    if open_nano(|_| {}).is_none() {
        return skip_without_device();
    }
    let made = made();
    let source = Source::open(&made.store).unwrap();
    let dense = made.open("dense.bin");
    for name in ["token_embd.weight", "output.weight", "blk.0.attn_norm.weight"] {
        let span = source.tensor_span(name).unwrap();
        let at = span.offset_bytes + span.len_bytes / 2;
        flip(&dense, at, 0);
        let error = open_store(&made.store, |_| {}).err().expect("a damaged tensor").to_string();
        assert!(error.contains(name) && error.contains("flint-rt verify"), "{error}");
        open_store(&made.store, |options| options.skip_checks = true).expect("checks are off");
        flip(&dense, at, 0);
    }

    let mut engine = open_store(&made.store, |_| {}).unwrap();
    assert!(engine.paths().is_checked);
    let ids = [4, 5, 6, 7, 8, 9];
    let feed = |engine: &mut Engine| {
        let mut session = engine.session().unwrap();
        engine.feed_prompt(&mut session, &ids, Want::Greedy, &mut NoObserver).map(|fed| fed.step.greedy)
    };
    let experts = made.open("experts.bin");
    let flip_all = || {
        for key in source.expert_keys() {
            flip(&experts, source.expert_pieces(key)[0].span.offset_bytes + 777, 4);
        }
    };
    flip_all();
    let error = feed(&mut engine).expect_err("damaged records").to_string();
    assert!(error.contains("experts.bin") && error.contains("expert"), "{error}");
    flip_all();
    let after = feed(&mut engine).expect("they are right again");
    let mut other = open_nano(|_| {}).unwrap();
    assert!(!other.paths().is_checked, "a GGUF in place has no checksums");
    assert_eq!(after, feed(&mut other).unwrap());
    assert!(engine.check_stats().bytes > 0);
}

#[test]
fn check_source_stops_a_gguf_that_changed() {
    let folder = TempDir::new().unwrap();
    let home = folder.path();
    let path = home.join("model.gguf");
    fs::copy(nano_path(), &path).unwrap();
    let name = path.to_str().unwrap();
    std::thread::sleep(Duration::from_millis(3100));
    let args = ["generate", "-m", name, "-n", "1", "--check-source", "def"];
    let first = run(home, &args);
    assert!(first.stderr.contains("remembered"), "{}", first.stderr);
    let second = run(home, &args);
    assert_eq!(first.code, second.code);
    assert!(!second.stderr.contains("remembered"), "done once: {}", second.stderr);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    flip(&file, file.metadata().unwrap().len() - 100, 0);
    let third = run(home, &args);
    assert_eq!(third.code, Some(3), "{}", third.stderr);
    let mut bytes = Vec::new();
    File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
    assert!(third.stderr.contains("changed since"), "{}", third.stderr);
}
