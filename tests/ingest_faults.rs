//! An ingest that is interrupted, at any operation and in any way, ends in the same store as one that is not.
//!
//! The faults of a drive come from a simulated one; kills are real, of real processes. `FLINT_RT_KILLS` sets how many
//! there are, `FLINT_RT_SEED` the first seed.

#![allow(clippy::unwrap_used, clippy::missing_assert_message, reason = "a test may fail where it stands")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flint_rt::store::{
    ByteSource, Drive, DriveFile, Entry, Fault, IngestOptions, IngestReport, LockAnswer, RealDrive,
    SimulatedDrive, Source, SourceError, SourceStamp, StoreError, StripePlan, VerifyOptions, ingest_from,
    ingest_on, open_local, verify_store,
};
use tempfile::TempDir;

#[path = "support/small_model.rs"]
mod small_model;

use small_model::{Small, contents, entries, quiet, small};

const NANO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/flint-nano-q4_1.gguf");

/// Small steps, so that there are many points to be interrupted at.
fn in_steps(checkpoint_bytes: u64) -> IngestOptions {
    IngestOptions {
        chunk_bytes: 4096,
        checkpoint_bytes,
        checkpoint_after: Duration::from_secs(600),
        ..IngestOptions::default()
    }
}

fn seed() -> u64 {
    std::env::var("FLINT_RT_SEED").map_or(1, |seed| seed.parse().unwrap())
}

/// A number from a seed.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 31)
}

/// What there is to compare with, and the folders of the simulated drive.
struct Case {
    small: Small,
    options: IngestOptions,
    /// Path and bytes of every file that must be there in the end.
    wanted: BTreeMap<PathBuf, Vec<u8>>,
    /// Operations of an ingest without a fault.
    operations: u64,
}

const ROOT: &str = "/tmp/drive";

fn target() -> PathBuf {
    Path::new(ROOT).join("store")
}

fn files_of(drive: &SimulatedDrive) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = drive.paths(Path::new(ROOT)).into_iter();
    paths.filter_map(|path| Some((path.clone(), drive.bytes(&path)?))).collect()
}

fn case(options: IngestOptions) -> Case {
    let small = small();
    let drive = SimulatedDrive::new(Path::new(ROOT), 0);
    ingest_on(&drive, open_local(&small.gguf).unwrap(), &target(), &options, &mut quiet).unwrap();
    Case { wanted: files_of(&drive), operations: drive.operations(), small, options }
}

impl Case {
    fn ingest(&self, drive: &SimulatedDrive) -> Result<IngestReport, StoreError> {
        ingest_on(drive, open_local(&self.small.gguf).unwrap(), &target(), &self.options, &mut quiet)
    }

    /// A store that is there is whole.
    fn assert_whole_or_absent(&self, drive: &SimulatedDrive, told: &str) {
        let found = files_of(drive);
        let is_store = |path: &Path| path.starts_with(target());
        if found.keys().any(|path| is_store(path)) {
            for (path, wanted) in self.wanted.iter().filter(|(path, _)| is_store(path)) {
                assert!(found.get(path) == Some(wanted), "{told}: {} is not whole", path.display());
            }
        }
    }

    /// Runs ingests until the store is there; what it holds is what it must.
    fn assert_resumes(&self, drive: &SimulatedDrive, told: &str) {
        match self.ingest(drive) {
            Ok(_) | Err(StoreError::TargetExists { .. }) => {}
            Err(error) => panic!("{told}: {error} [{error:?}]"),
        }
        self.assert_same(drive, told);
    }

    /// The store is there, and nothing else is.
    fn assert_same(&self, drive: &SimulatedDrive, told: &str) {
        let found = files_of(drive);
        let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&self.wanted), "{told}: the files");
        assert!(found == self.wanted, "{told}: the bytes");
    }
}

#[test]
fn the_simulated_drive_gets_the_store_that_a_real_one_gets() {
    let case = case(in_steps(1 << 14));
    let real = contents(&case.small.store);
    let found: BTreeMap<_, _> = case
        .wanted
        .iter()
        .map(|(path, bytes)| (path.file_name().unwrap().to_str().unwrap().to_owned(), bytes.clone()))
        .collect();
    assert_eq!(found, real);
    let folder = TempDir::new().unwrap();
    let drive = SimulatedDrive::new(Path::new(ROOT), 0);
    case.ingest(&drive).unwrap();
    drive.cut_power();
    drive.export(Path::new(ROOT), folder.path()).unwrap();
    Source::open(&folder.path().join("store")).unwrap();
    println!("{} operations", case.operations);
    assert!(case.operations > 80, "many points to fail at: {}", case.operations);
}

/// Power loss at every operation, with what was not synced kept or lost block by block.
fn power_loss_everywhere(case: &Case, seeds: u64) {
    let mut cuts = 0;
    for number in 0..case.operations {
        for seed in seed()..seed() + seeds {
            let told = format!("FLINT_RT_SEED={seed}, power lost at operation {number}");
            let drive = SimulatedDrive::new(Path::new(ROOT), seed ^ (number << 20));
            drive.fail_at(number, Fault::PowerLoss);
            let _ = case.ingest(&drive);
            drive.cut_power();
            case.assert_whole_or_absent(&drive, &told);
            // And again while it goes on, at another point.
            let mut state = seed ^ number;
            if random(&mut state) & 1 == 1 {
                drive.fail_at(random(&mut state) % case.operations, Fault::PowerLoss);
                let _ = case.ingest(&drive);
                drive.cut_power();
                case.assert_whole_or_absent(&drive, &told);
                cuts += 1;
            }
            case.assert_resumes(&drive, &told);
            // What was published is there for good.
            drive.cut_power();
            case.assert_same(&drive, &format!("{told}: after it was published"));
            cuts += 1;
        }
    }
    println!("{cuts} power losses, {} operations", case.operations);
}

#[test]
fn power_loss_at_every_operation_ends_in_the_same_store() {
    power_loss_everywhere(&case(in_steps(1 << 13)), 2);
}

#[test]
fn power_loss_of_a_striped_store_ends_in_the_same_store() {
    let stripe = |name: Option<&str>, weight| StripePlan {
        folder: name.map(|name| Path::new(ROOT).join(name)),
        weight,
    };
    let options =
        IngestOptions { stripes: vec![stripe(None, 1.0), stripe(Some(""), 2.0)], ..in_steps(1 << 15) };
    power_loss_everywhere(&case(options), 1);
}

/// Every operation fails once with every error; the ingest stops with a typed error and goes on later.
#[test]
fn an_error_at_every_operation_is_typed_and_the_ingest_goes_on_after_it() {
    let case = case(in_steps(1 << 14));
    let mut counts = BTreeMap::new();
    for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG, libc::EIO] {
        for number in 0..case.operations {
            let told = format!("errno {errno} at operation {number}");
            let drive = SimulatedDrive::new(Path::new(ROOT), seed() ^ number);
            drive.fail_at(number, Fault::Error(errno));
            match case.ingest(&drive) {
                // The clearing up after the store is published may fail.
                Ok(_) => assert!(number + 12 > case.operations, "{told}: not noticed"),
                Err(error) => {
                    let kind = format!("{error:?}").split([' ', '{', '(']).next().unwrap().to_owned();
                    match &error {
                        StoreError::DriveFull { free_bytes, needed_bytes, .. } => {
                            assert!(errno != libc::EIO && *free_bytes > 0, "{told}");
                            assert!(*needed_bytes > 0, "{told}: nothing left to write?");
                            assert!(error.to_string().contains("make room"), "{told}: {error}");
                        }
                        StoreError::SyncFailed { .. } | StoreError::Io { .. } => {}
                        _ => panic!("{told}: {error} [{error:?}]"),
                    }
                    *counts.entry((errno, kind)).or_insert(0) += 1;
                }
            }
            case.assert_whole_or_absent(&drive, &told);
            // The sync that failed may have lost what the cache still shows: only what is on the drive counts.
            if number % 2 == 0 {
                drive.cut_power();
            }
            case.assert_resumes(&drive, &told);
            drive.cut_power();
            case.assert_same(&drive, &format!("{told}: the drive has other bytes than the cache"));
        }
    }
    println!("{counts:?}");
    assert!(counts.contains_key(&(libc::ENOSPC, "DriveFull".to_owned())), "{counts:?}");
    assert!(counts.contains_key(&(libc::EIO, "SyncFailed".to_owned())), "{counts:?}");
}

#[test]
fn too_little_room_is_said_before_anything_is_written() {
    let case = case(in_steps(1 << 14));
    let drive = SimulatedDrive::new(Path::new(ROOT), 0);
    drive.set_free_bytes(1 << 20);
    let refused = case.ingest(&drive).unwrap_err();
    let StoreError::NoSpace { needed_bytes, free_bytes, .. } = refused else { panic!("{refused}") };
    assert!(needed_bytes > 1 << 20 && free_bytes == 1 << 20);
    assert_eq!(drive.paths(Path::new(ROOT)), [] as [PathBuf; 0]);
}

/// Interrupts an ingest after `bytes` of the source; what is left is an unfinished one.
fn interrupted(case: &Case, drive: &SimulatedDrive, bytes: u64) {
    let sources = open_local(&case.small.gguf).unwrap();
    let stopped = ingest_on(drive, sources, &target(), &case.options, &mut |progress| {
        if progress.done_bytes >= bytes { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(StoreError::Stopped)));
}

#[test]
fn a_stopped_ingest_goes_on_where_it_was_stopped() {
    let case = case(in_steps(u64::MAX));
    let len = fs::metadata(&case.small.gguf).unwrap().len();
    for bytes in (4096..len).step_by(4096) {
        let drive = SimulatedDrive::new(Path::new(ROOT), 0);
        interrupted(&case, &drive, bytes);
        let report = case.ingest(&drive).unwrap();
        assert_eq!(report.resumed_bytes, bytes, "not a byte is read twice");
        assert!(files_of(&drive) == case.wanted, "stopped at {bytes}");
    }
}

/// Whatever is flipped in the journal, the ingest is refused or ends in the right store.
#[test]
fn a_flipped_bit_of_the_journal_is_refused_or_means_the_same() {
    let case = case(in_steps(u64::MAX));
    let begun = SimulatedDrive::new(Path::new(ROOT), 0);
    interrupted(&case, &begun, 20_000);
    let working = Path::new(ROOT).join("store.partial");
    let (mut refused, mut same) = (0, 0);
    let journal = String::from_utf8(begun.bytes(&working.join("journal.json")).unwrap()).unwrap();
    let count = journal.split("\"piece_count\": ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    // What lies behind the sums that are there is not yet anything.
    let sums_bytes = 48 * count.parse::<usize>().unwrap();
    for (name, len) in [("journal.json", journal.len()), ("pieces.bin", sums_bytes)] {
        let path = working.join(name);
        for byte in 0..len {
            let bit = u8::try_from(byte % 8).unwrap();
            let drive = SimulatedDrive::new(Path::new(ROOT), 0);
            interrupted(&case, &drive, 20_000);
            drive.flip_bit(&path, byte, bit);
            match case.ingest(&drive) {
                Ok(_) => {
                    assert!(files_of(&drive) == case.wanted, "bit {bit} of byte {byte} of {name}");
                    same += 1;
                }
                Err(StoreError::JournalDamaged { .. }) => {
                    refused += 1;
                    // The way out.
                    if byte % 64 == 0 {
                        let options = IngestOptions { restart: true, ..case.options.clone() };
                        let sources = open_local(&case.small.gguf).unwrap();
                        ingest_on(&drive, sources, &target(), &options, &mut quiet).unwrap();
                        assert!(files_of(&drive) == case.wanted);
                    }
                }
                Err(error) => panic!("bit {bit} of byte {byte} of {name}: {error}"),
            }
        }
    }
    println!("{refused} refused, {same} meant the same");
    assert!(refused > 20 * same, "{refused} refused, {same} meant the same");
}

/// What lies on the drive of an interrupted ingest may rot as well. Then it is refused, or ends in the right store, or the
/// store's sums are the source's and find it: they never vouch for what the drive made of the bytes.
#[test]
fn a_flipped_bit_of_what_was_done_is_never_vouched_for() {
    let case = case(in_steps(u64::MAX));
    let store = Path::new(ROOT).join("store.partial/store");
    let (mut refused, mut same, mut found) = (0, 0, 0);
    // In the middle of a record, and of a dense tensor.
    for stop in [12_000, 20_000, 28_000] {
        for name in ["header.bin", "dense.bin", "experts.bin"] {
            let len = case.wanted[&target().join(name)].len();
            for byte in (0..len).step_by(97) {
                let told = format!("byte {byte} of {name}, stopped at {stop}");
                let drive = SimulatedDrive::new(Path::new(ROOT), 0);
                interrupted(&case, &drive, stop);
                drive.flip_bit(&store.join(name), byte, u8::try_from(byte % 8).unwrap());
                match case.ingest(&drive) {
                    Ok(_) if files_of(&drive) == case.wanted => same += 1,
                    Ok(_) => {
                        let folder = TempDir::new().unwrap();
                        drive.export(Path::new(ROOT), folder.path()).unwrap();
                        let made = folder.path().join("store");
                        let report =
                            verify_store(
                                &made,
                                &VerifyOptions::default(),
                                &mut |_| ControlFlow::Continue(()),
                            );
                        assert!(!report.unwrap().is_whole(), "{told}: the store vouches for it");
                        found += 1;
                    }
                    Err(StoreError::JournalDamaged { .. }) => refused += 1,
                    Err(error) => panic!("{told}: {error}"),
                }
            }
        }
    }
    println!("{refused} refused, {same} written again, {found} found by the sums");
    assert!(refused > 0 && same > 0 && found > 0, "{refused} refused, {same} the same, {found} found");
}

#[test]
fn files_of_an_ingest_that_are_cut_or_gone_are_noticed() {
    let case = case(in_steps(u64::MAX));
    let working = Path::new(ROOT).join("store.partial");
    for name in ["journal.json", "pieces.bin", "store/header.bin", "store/dense.bin", "store/experts.bin"] {
        let path = working.join(name);
        let begun = SimulatedDrive::new(Path::new(ROOT), 0);
        interrupted(&case, &begun, 20_000);
        let whole = begun.bytes(&path).unwrap();
        // No file at all, and files cut anywhere; a journal may end without its line feed.
        let cuts = (0..whole.len() - 1).step_by(whole.len() / 20).map(Some);
        for cut in cuts.chain([Some(whole.len() - 2), None]) {
            let drive = SimulatedDrive::new(Path::new(ROOT), 0);
            interrupted(&case, &drive, 20_000);
            drive.remove(&path).unwrap();
            if let Some(cut) = cut {
                drive.create_file(&path, cut as u64).unwrap().write_at(&whole[..cut], 0).unwrap();
            }
            match case.ingest(&drive) {
                // Without a journal nothing was done; the sums behind those that are there are not yet anything.
                Ok(_) => assert!(
                    (name == "journal.json" && cut.is_none()) || (name == "pieces.bin" && cut.is_some()),
                    "{name} cut at {cut:?} was not noticed"
                ),
                Err(StoreError::JournalDamaged { .. }) => {
                    let options = IngestOptions { restart: true, ..case.options.clone() };
                    let sources = open_local(&case.small.gguf).unwrap();
                    ingest_on(&drive, sources, &target(), &options, &mut quiet).unwrap();
                }
                Err(error) => panic!("{name} cut at {cut:?}: {error}"),
            }
            assert!(files_of(&drive) == case.wanted, "{name} cut at {cut:?}");
        }
    }
}

#[test]
fn a_source_that_changed_between_two_runs_is_refused() {
    let case = case(in_steps(u64::MAX));
    let drive = SimulatedDrive::new(Path::new(ROOT), 0);
    interrupted(&case, &drive, 20_000);
    let before = files_of(&drive);
    let whole = fs::read(&case.small.gguf).unwrap();
    let last = whole.len() - 9;
    // A byte of a tensor; a byte of the header; a byte more.
    for change in 0..3 {
        let mut bytes = whole.clone();
        match change {
            0 => bytes[last] ^= 1,
            1 => bytes[60] ^= 1,
            _ => bytes.push(0),
        }
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&case.small.gguf, bytes).unwrap();
        let refused = case.ingest(&drive).unwrap_err();
        assert!(
            matches!(refused, StoreError::SourceOther { .. } | StoreError::Gguf(_)),
            "change {change}: {refused}"
        );
        assert!(files_of(&drive) == before, "a refusal changes nothing");
    }
}

#[test]
fn other_stripes_do_not_go_on_with_what_was_begun() {
    let case = case(in_steps(u64::MAX));
    let drive = SimulatedDrive::new(Path::new(ROOT), 0);
    interrupted(&case, &drive, 20_000);
    let stripes =
        [1.0, 2.0].map(|weight| StripePlan { folder: (weight > 1.5).then(|| PathBuf::from(ROOT)), weight });
    let options = IngestOptions { stripes: stripes.to_vec(), ..case.options.clone() };
    let sources = open_local(&case.small.gguf).unwrap();
    let refused = ingest_on(&drive, sources, &target(), &options, &mut quiet).unwrap_err();
    assert!(matches!(refused, StoreError::StripesOther { .. }), "{refused}");
    case.assert_resumes(&drive, "with the stripes it was begun with");
}

/// A source that gives few bytes at a time, and breaks off at one of its reads.
struct Flaky {
    bytes: Arc<Vec<u8>>,
    reads_left: u64,
    most: usize,
    state: String,
}

impl ByteSource for Flaky {
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn name(&self) -> &str {
        "flaky.gguf"
    }

    fn stamp(&self) -> Result<SourceStamp, SourceError> {
        Ok(SourceStamp {
            kind: "test".to_owned(),
            location: "flaky".to_owned(),
            len_bytes: self.len_bytes(),
            state: self.state.clone(),
        })
    }

    fn read_from(&mut self, offset_bytes: u64, target: &mut [u8]) -> Result<usize, SourceError> {
        if self.reads_left == 0 {
            let source = io::Error::from(io::ErrorKind::ConnectionReset).into();
            return Err(SourceError::Read { location: "flaky".to_owned(), offset_bytes, source });
        }
        self.reads_left -= 1;
        let rest = &self.bytes[usize::try_from(offset_bytes).unwrap()..];
        let len = rest.len().min(target.len()).min(self.most);
        target[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }
}

/// Network loss: whatever came before it counts, and the store is the same.
#[test]
fn a_source_that_breaks_off_again_and_again_is_gone_on_with() {
    let case = case(in_steps(u64::MAX));
    let bytes = Arc::new(fs::read(&case.small.gguf).unwrap());
    let drive = SimulatedDrive::new(Path::new(ROOT), 0);
    let (mut runs, mut resumed) = (0, 0);
    loop {
        let source = Flaky { bytes: bytes.clone(), reads_left: 44, most: 1000, state: "one".to_owned() };
        let options = &case.options;
        match ingest_on(&drive, vec![Box::new(source)], &target(), options, &mut |progress| {
            assert!(progress.resumed_bytes >= resumed, "went back");
            resumed = progress.resumed_bytes;
            ControlFlow::Continue(())
        }) {
            Ok(_) => break,
            Err(StoreError::Source(SourceError::Read { .. })) => runs += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(runs < 100, "no progress");
    }
    assert!(runs >= 3, "broke off {runs} times");
    // Another name of the source is in the manifest, nothing else differs.
    let found = files_of(&drive);
    for (path, wanted) in case.wanted.iter().filter(|(path, _)| !path.ends_with("manifest.json")) {
        assert!(found.get(path) == Some(wanted), "{}", path.display());
    }
    // A source that says it is another one is refused.
    let drive = SimulatedDrive::new(Path::new(ROOT), 0);
    let flaky = |state: &str| -> Vec<Box<dyn ByteSource>> {
        vec![Box::new(Flaky { bytes: bytes.clone(), reads_left: 44, most: 1000, state: state.to_owned() })]
    };
    ingest_on(&drive, flaky("one"), &target(), &case.options, &mut quiet).unwrap_err();
    let refused = ingest_on(&drive, flaky("two"), &target(), &case.options, &mut quiet).unwrap_err();
    assert!(matches!(refused, StoreError::SourceOther { .. }), "{refused}");
}

/// A source that ends before it said it would, once and for all, publishes nothing and leaves nothing.
#[test]
fn a_source_that_ends_early_makes_no_store() {
    struct Ends(Arc<Vec<u8>>, usize);
    impl ByteSource for Ends {
        fn len_bytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn name(&self) -> &str {
            "ends.gguf"
        }

        fn stamp(&self) -> Result<SourceStamp, SourceError> {
            let (kind, location, state) = ("test".to_owned(), "ends".to_owned(), String::new());
            Ok(SourceStamp { kind, location, len_bytes: self.len_bytes(), state })
        }

        fn read_from(&mut self, offset_bytes: u64, target: &mut [u8]) -> Result<usize, SourceError> {
            let start = usize::try_from(offset_bytes).unwrap();
            // The header is read with the first bytes; it is the pass that meets the end.
            let end = if start == 0 && target.len() == self.0.len() { self.0.len() } else { self.1 };
            let len = end.saturating_sub(start).min(target.len());
            target[..len].copy_from_slice(&self.0[start..start + len]);
            Ok(len)
        }
    }
    let case = case(IngestOptions { chunk_bytes: 4096, ..in_steps(u64::MAX) });
    let bytes = Arc::new(fs::read(&case.small.gguf).unwrap());
    for end in (0..bytes.len()).step_by(499).chain([bytes.len() - 1]) {
        let drive = SimulatedDrive::new(Path::new(ROOT), 0);
        let source = Box::new(Ends(Arc::clone(&bytes), end));
        let refused = ingest_on(&drive, vec![source], &target(), &case.options, &mut quiet).unwrap_err();
        let StoreError::SourceTruncated { want_bytes, got_bytes, .. } = refused else { panic!("{refused}") };
        assert_eq!((want_bytes, got_bytes), (bytes.len() as u64, end as u64));
        assert_eq!(drive.paths(Path::new(ROOT)), [] as [PathBuf; 0], "ended at {end}");
    }
}

/// A real drive whose process dies by SIGKILL at one of its operations.
struct Deadly {
    operations: AtomicU64,
    at: u64,
}

impl Deadly {
    fn count(&self) {
        if self.operations.fetch_add(1, Ordering::SeqCst) == self.at {
            let pid = i32::try_from(std::process::id()).unwrap();
            // SAFETY: the call takes two numbers and touches no memory.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            std::thread::sleep(Duration::from_secs(60));
        }
    }

    /// Dies before or after an operation.
    fn around<T>(&self, operation: impl FnOnce() -> T) -> T {
        self.count();
        let answer = operation();
        self.count();
        answer
    }
}

#[derive(Debug)]
struct DeadlyFile {
    file: Box<dyn DriveFile>,
    drive: &'static Deadly,
}

impl std::fmt::Debug for Deadly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Deadly({})", self.at)
    }
}

impl DriveFile for DeadlyFile {
    fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.drive.around(|| self.file.write_at(bytes, offset_bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.drive.around(|| self.file.sync())
    }
}

struct DeadlyDrive(&'static Deadly);

impl Drive for DeadlyDrive {
    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        RealDrive.free_bytes(folder)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<Entry>> {
        RealDrive.entry(path)
    }

    fn read_at(&self, path: &Path, offset_bytes: u64, target: &mut [u8]) -> io::Result<()> {
        RealDrive.read_at(path, offset_bytes, target)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.0.around(|| RealDrive.create_folder(path))
    }

    fn create_file(&self, path: &Path, len_bytes: u64) -> io::Result<Box<dyn DriveFile>> {
        let file = self.0.around(|| RealDrive.create_file(path, len_bytes))?;
        Ok(Box::new(DeadlyFile { file, drive: self.0 }))
    }

    fn open_file(&self, path: &Path) -> io::Result<Box<dyn DriveFile>> {
        Ok(Box::new(DeadlyFile { file: RealDrive.open_file(path)?, drive: self.0 }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.around(|| RealDrive.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.around(|| RealDrive.remove(path))
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.0.around(|| RealDrive.sync_folder(folder))
    }

    fn lock(&self, path: &Path) -> io::Result<LockAnswer> {
        self.0.around(|| RealDrive.lock(path))
    }
}

/// Not a test of its own: an ingest in a process of its own that dies as the environment says.
#[test]
#[ignore = "started by other tests"]
fn child_dies() {
    let Some(source) = std::env::var_os("FLINT_RT_TEST_SOURCE") else { return };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let target = PathBuf::from(std::env::var_os("FLINT_RT_TEST_TARGET").unwrap());
    let drive: &'static Deadly =
        Box::leak(Box::new(Deadly { operations: AtomicU64::new(0), at: number("FLINT_RT_TEST_AT") }));
    let chunk_bytes = usize::try_from(number("FLINT_RT_TEST_CHUNK")).unwrap();
    let options = IngestOptions { chunk_bytes, ..in_steps(2 * chunk_bytes as u64) };
    let sources = open_local(Path::new(&source)).unwrap();
    match ingest_on(&DeadlyDrive(drive), sources, &target, &options, &mut quiet) {
        Ok(_) => println!("made in {} operations", drive.operations.load(Ordering::SeqCst)),
        Err(StoreError::TargetExists { .. }) => println!("there in 0 operations"),
        Err(error) => panic!("{error}"),
    }
}

fn child(source: &Path, target: &Path, at: u64, chunk_bytes: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child_dies", "--exact", "--ignored", "--nocapture"]);
    command.env("FLINT_RT_TEST_SOURCE", source).env("FLINT_RT_TEST_TARGET", target);
    command.env("FLINT_RT_TEST_AT", at.to_string()).env("FLINT_RT_TEST_CHUNK", chunk_bytes.to_string());
    command
}

fn kills() -> u64 {
    std::env::var("FLINT_RT_KILLS").map_or(60, |count| count.parse().unwrap())
}

/// `kill -9` at named points, evenly over all operations, and again while it goes on.
#[test]
fn a_kill_at_any_operation_ends_in_the_same_store() {
    let small = small();
    let wanted = contents(&small.store);
    let folder = TempDir::new().unwrap();
    let target = folder.path().join("store");
    let output = child(&small.gguf, &target, u64::MAX, 4096).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let operations = said.split("made in ").nth(1).and_then(|rest| rest.split(' ').next());
    let operations: u64 = operations.unwrap_or_else(|| panic!("{said}")).parse().unwrap();
    assert!(contents(&target) == wanted);
    fs::remove_dir_all(&target).unwrap();

    let (mut killed, count) = (0, kills());
    let mut state = seed();
    for point in 0..count {
        let at = point * operations / count;
        let mut runs = 0;
        let mut at = Some(at);
        loop {
            let status = child(&small.gguf, &target, at.unwrap_or(u64::MAX), 4096).output().unwrap().status;
            runs += 1;
            if target.exists() {
                assert!(contents(&target) == wanted, "FLINT_RT_SEED={}, point {point}: not whole", seed());
            }
            if status.success() {
                break;
            }
            assert_eq!(status.signal(), Some(libc::SIGKILL), "point {point}: an error, not the kill");
            killed += 1;
            let opened = Source::open(&folder.path().join("store.partial"));
            assert!(opened.is_err(), "an unfinished store was opened");
            at = (runs < 3).then(|| random(&mut state) % operations);
        }
        assert_eq!(entries(folder.path()), ["store"], "point {point}: something was left");
        fs::remove_dir_all(&target).unwrap();
    }
    println!("{killed} kills at {count} points of {operations} operations");
    assert!(killed >= count);
}

/// `kill -9` at any time, from outside.
#[test]
fn a_kill_at_any_time_ends_in_the_same_store() {
    let folder = TempDir::new().unwrap();
    let (target, whole) = (folder.path().join("store"), folder.path().join("whole"));
    let started = std::time::Instant::now();
    assert!(child(Path::new(NANO), &whole, u64::MAX, 1 << 18).output().unwrap().status.success());
    let usual_us = u64::try_from(started.elapsed().as_micros()).unwrap();
    let wanted = contents(&whole);
    let (mut killed, mut state) = (0, seed());
    for round in 0.. {
        if killed >= kills() {
            break;
        }
        for _ in 0..8 {
            let mut process = child(Path::new(NANO), &target, u64::MAX, 1 << 18)
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_micros(random(&mut state) % usual_us));
            process.kill().unwrap();
            killed += u64::from(process.wait().unwrap().signal() == Some(libc::SIGKILL));
            if target.exists() {
                break;
            }
        }
        let options = IngestOptions { chunk_bytes: 1 << 18, ..IngestOptions::default() };
        match ingest_from(open_local(Path::new(NANO)).unwrap(), &target, &options, &mut quiet) {
            Ok(_) | Err(StoreError::TargetExists { .. }) => {}
            Err(error) => panic!("FLINT_RT_SEED={}, round {round}: {error}", seed()),
        }
        assert!(contents(&target) == wanted, "FLINT_RT_SEED={}, round {round}", seed());
        assert_eq!(entries(folder.path()), ["store", "whole"]);
        fs::remove_dir_all(&target).unwrap();
    }
    println!("{killed} kills");
}
