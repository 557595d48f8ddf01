//! GGUF -> store -> bytes, exact; and everything that must not become, or pass for, a store.

#![allow(clippy::unwrap_used, clippy::missing_assert_message, reason = "a test may fail where it stands")]

use std::fs::{self, File, OpenOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flint_rt::base::ids::{ExpertKey, FileIndex, LayerIndex};
use flint_rt::store::{
    IngestOptions, IngestPhase, Sha256Digest, Source, SourceKind, StoreError, StripePlan, VerifyOptions,
    WriterLock, begun_weights, ingest, ingest_from, open_local, part_name, read_header, record_checksum,
    tensor_checksum, tree_digest, verify_store,
};
use tempfile::TempDir;

#[path = "support/small_model.rs"]
mod small_model;

use small_model::{
    FLINT, TensorSpec, aligned_gguf, bytes_of, contents, entries, gguf, quiet, record_of, small,
    small_tensors,
};

const NANO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/flint-nano-q4_1.gguf");

fn assert_same_model(gguf: &Source, store: &Source) {
    assert_eq!((gguf.kind(), store.kind()), (SourceKind::Gguf, SourceKind::Store));
    assert_eq!(gguf.identity(), store.identity());
    assert_eq!(gguf.record(), store.record());
    assert_eq!(gguf.gguf(), store.gguf());
    let stride = store.record().stride_bytes();
    let keys: Vec<_> = gguf.expert_keys().collect();
    assert_eq!(keys, store.expert_keys().collect::<Vec<_>>());
    let layout = store.record();
    let mut records = Vec::new();
    for (index, &key) in (0u64..).zip(&keys) {
        let pieces = store.expert_pieces(key);
        assert_eq!(pieces.len(), 1, "one read an expert");
        if store.files().len() == 2 {
            assert_eq!(pieces[0].span.offset_bytes, index * stride);
        }
        assert_eq!(gguf.expert_pieces(key).len(), 3);
        let record = record_of(store, key);
        assert!(record == record_of(gguf, key), "the bytes of {key} differ");
        let sum = record_checksum(store.identity(), key, &layout, &record);
        assert_eq!(store.record_checksum(key), Some(sum));
        assert_eq!(gguf.record_checksum(key), None);
        records.push(record);
    }
    let len = records.len();
    records.sort();
    records.dedup();
    assert_eq!(records.len(), len, "experts differ, so a mix-up would have been seen");
    let mut dense = 0;
    for tensor in gguf.gguf().tensors.iter() {
        match gguf.tensor_span(&tensor.name) {
            Some(span) => {
                let stored = store.tensor_span(&tensor.name).unwrap();
                assert_eq!(stored.offset_bytes % 4096, 0);
                let bytes = bytes_of(store, stored);
                assert!(bytes_of(gguf, span) == bytes, "{} differs", tensor.name);
                let sum = tensor_checksum(store.identity(), &tensor.name, &bytes);
                assert_eq!(store.tensor_checksum(&tensor.name), Some(sum));
                dense += 1;
            }
            None => {
                assert!(tensor.name.contains("_exps."), "{} is lost", tensor.name);
                assert_eq!(store.tensor_span(&tensor.name), None);
            }
        }
    }
    assert_eq!(dense + 3 * gguf.expert_layers().len(), gguf.gguf().tensors.len());
    for file in (0..store.files().len()).map(|file| FileIndex(u16::try_from(file).unwrap())) {
        let leaves = store.digested_pieces(file).into_iter();
        let digest = tree_digest(leaves.map(|span| Sha256Digest::of(&bytes_of(store, span))));
        assert_eq!(store.file_digest(file), Some(digest));
        assert_eq!(gguf.file_digest(file), None);
    }
}

#[test]
fn a_store_of_the_bundled_model_holds_its_bytes() {
    let folder = TempDir::new().unwrap();
    let target = folder.path().join("nano");
    let mut steps = Vec::new();
    let report = ingest(Path::new(NANO), &target, &mut |step| {
        steps.push(step);
        ControlFlow::Continue(())
    })
    .unwrap();

    let source_bytes = fs::metadata(NANO).unwrap().len();
    assert_eq!(report.source_bytes, source_bytes);
    assert_eq!(report.source_sha256, [Sha256Digest::of(&fs::read(NANO).unwrap())]);
    assert_eq!(report.record_count, 6 * 16);
    assert_eq!(report.resumed_bytes, 0);
    let files = ["dense.bin", "experts.bin", "header.bin", "manifest.json"];
    assert_eq!(entries(&target), files);
    let lens = files.map(|name| fs::metadata(target.join(name)).unwrap().len());
    assert_eq!(report.store_bytes, lens.iter().sum::<u64>());
    assert_eq!(entries(folder.path()), ["nano"]);

    let copied: Vec<_> = steps.iter().filter(|step| step.phase == IngestPhase::Copy).collect();
    assert_eq!((copied[0].done_bytes, copied[0].total_bytes), (0, source_bytes));
    assert_eq!(copied.last().unwrap().done_bytes, source_bytes);
    assert!(copied.is_sorted_by_key(|step| step.done_bytes));
    assert_eq!(steps.last().unwrap().done_bytes, report.store_bytes);

    let gguf = Source::open(Path::new(NANO)).unwrap();
    let store = Source::open(&target).unwrap();
    assert_same_model(&gguf, &store);
    assert_eq!(store.file_name(), "flint-nano-q4_1.gguf");
    assert_eq!(gguf.file_name(), store.file_name());
    assert_eq!(store.source_sha256(), Some(report.source_sha256[0]));
    assert_eq!(gguf.source_sha256(), None);
    assert_eq!(store.expert_layers(), (2..8).map(LayerIndex).collect::<Vec<_>>());
    // 30,720 bytes are seven and a half pages: padded, and the padding is zero.
    assert_eq!((store.record().record_bytes(), store.record().stride_bytes()), (30_720, 32_768));
    let experts = fs::read(target.join("experts.bin")).unwrap();
    assert!(experts.chunks(32_768).all(|stride| stride[30_720..].iter().all(|&byte| byte == 0)));
    assert_eq!(fs::read(target.join("header.bin")).unwrap(), gguf.gguf().header_bytes());

    let moved = folder.path().join("elsewhere");
    fs::rename(&target, &moved).unwrap();
    assert_same_model(&gguf, &Source::open(&moved).unwrap());
}

#[test]
fn layers_with_experts_need_not_be_neighbours_nor_in_order() {
    let small = small();
    let store = Source::open(&small.store).unwrap();
    assert_eq!(store.expert_layers(), [LayerIndex(1), LayerIndex(3)]);
    assert_eq!(store.expert_count(), 3);
    assert_same_model(&Source::open(&small.gguf).unwrap(), &store);
}

#[test]
#[should_panic(expected = "the model has no layer 0 expert 1")]
fn an_expert_that_is_none_is_our_mistake() {
    let small = small();
    Source::open(&small.store).unwrap().expert_pieces(ExpertKey::new(0, 1));
}

#[test]
fn two_ingests_give_equal_bytes() {
    let small = small();
    let again = small.folder.path().join("again");
    ingest(&small.gguf, &again, &mut quiet).unwrap();
    for name in entries(&again) {
        assert_eq!(
            fs::read(again.join(&name)).unwrap(),
            fs::read(small.store.join(&name)).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn models_that_cannot_run_are_refused_and_nothing_is_published() {
    let with = |change: &dyn Fn(&mut Vec<TensorSpec>)| {
        let mut tensors = small_tensors();
        change(&mut tensors);
        gguf(&FLINT, &tensors)
    };
    let q4_0 = 3 * 32 * 2 * 18;
    let cases: [(&str, Vec<u8>, &str); 10] = [
        ("architecture", gguf(&[("general.architecture", "llama")], &small_tensors()), "\"llama\""),
        ("no architecture", gguf(&[], &small_tensors()), "general.architecture"),
        ("no experts", with(&|t| t.retain(|t| !t.0.contains("exps"))), "no layer has routed experts"),
        (
            "missing",
            with(&|t| t.retain(|t| t.0 != "blk.1.ffn_up_exps.weight")),
            "blk.1.ffn_up_exps.weight is missing",
        ),
        (
            "fused",
            with(&|t| t.push(("blk.1.ffn_gate_up_exps.weight".into(), vec![64, 64, 3], 3, 3 * 2560))),
            "blk.1.ffn_gate_up_exps.weight is not known",
        ),
        (
            "bias",
            with(&|t| t.push(("blk.1.ffn_up_exps.bias".into(), vec![32, 3], 0, 384))),
            "ffn_up_exps.bias",
        ),
        ("kind", with(&|t| (t[1].2, t[1].3) = (2, q4_0)), "type Q4_0"),
        ("shape", with(&|t| t[1].1 = vec![64, 32, 3]), "dimensions [64, 32, 3]"),
        (
            "fewer experts",
            with(&|t| (t[5].1, t[5].3) = (vec![32, 64, 2], 2560)),
            "dimensions [32, 64, 2], wanted [32, 64, 3]",
        ),
        ("layer", with(&|t| t[1].0 = "blk.512.ffn_down_exps.weight".into()), "the limit is 511"),
    ];
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    for (name, bytes, said) in cases {
        fs::write(&path, bytes).unwrap();
        let refused = ingest(&path, &folder.path().join("store"), &mut quiet).unwrap_err().to_string();
        assert!(refused.contains(said), "{name}: {refused}");
        assert_eq!(Source::open(&path).unwrap_err().to_string(), refused, "{name}");
        assert_eq!(entries(folder.path()), ["model.gguf"], "{name}");
    }
}

#[test]
fn a_truncated_gguf_makes_no_store() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    let whole = gguf(&FLINT, &small_tensors());
    // The last tensor ends where the file does, so no shorter file is whole.
    for len in (0..whole.len()).step_by(61).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..len]).unwrap();
        ingest(&path, &folder.path().join("store"), &mut quiet).unwrap_err();
        Source::open(&path).unwrap_err();
        assert_eq!(entries(folder.path()), ["model.gguf"], "cut at {len}");
    }
}

#[test]
fn a_source_that_changes_under_way_makes_no_store() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.gguf");
    let whole = gguf(&FLINT, &small_tensors());
    let changes: [&dyn Fn(&File); 4] = [
        &|file| file.set_len(whole.len() as u64 - 1).unwrap(),
        &|file| file.set_len(whole.len() as u64 + 1).unwrap(),
        &|file| file.write_all_at(b"X", 60).unwrap(),
        &|file| file.write_all_at(b"X", whole.len() as u64 - 9).unwrap(),
    ];
    for (number, change) in changes.iter().enumerate() {
        fs::write(&path, &whole).unwrap();
        // A file system may keep times only to a few milliseconds.
        std::thread::sleep(Duration::from_millis(20));
        let mut is_first = true;
        let refused = ingest(&path, &folder.path().join("store"), &mut |_| {
            if std::mem::take(&mut is_first) {
                change(&OpenOptions::new().write(true).open(&path).unwrap());
            }
            ControlFlow::Continue(())
        })
        .unwrap_err();
        match number {
            0 => assert!(matches!(refused, StoreError::SourceTruncated { .. }), "{refused}"),
            _ => assert!(matches!(refused, StoreError::SourceChanged { .. }), "{number}: {refused}"),
        }
        assert_eq!(entries(folder.path()), ["model.gguf"]);
    }
}

#[test]
fn a_wrong_sha256_makes_no_store_and_the_right_one_does() {
    let small = small();
    let target = small.folder.path().join("checked");
    let right = Sha256Digest::of(&fs::read(&small.gguf).unwrap());
    let wrong = Sha256Digest::of(b"");
    let checked = |digest| {
        let options = IngestOptions { sha256: vec![digest], ..IngestOptions::default() };
        ingest_from(open_local(&small.gguf).unwrap(), &target, &options, &mut quiet)
    };
    let refused = checked(wrong).unwrap_err();
    assert!(matches!(&refused, StoreError::SourceDigest { found, .. } if *found == right), "{refused}");
    assert_eq!(entries(small.folder.path()), ["small", "small.gguf"]);
    checked(right).unwrap();
    Source::open(&target).unwrap();
}

/// A download that took its room ahead and broke off: the length is right, the content is not.
#[test]
fn a_hole_in_a_file_of_the_right_length_is_found_by_its_sha256() {
    let small = small();
    let target = small.folder.path().join("checked");
    let whole = fs::read(&small.gguf).unwrap();
    let sha256 = vec![Sha256Digest::of(&whole)];
    let options = IngestOptions { sha256, chunk_bytes: 4096, ..IngestOptions::default() };
    let header_bytes = Source::open(&small.gguf).unwrap().gguf().header_bytes().len();
    for from in [header_bytes, whole.len() / 2, whole.len() - 1] {
        let file = File::create(&small.gguf).unwrap();
        file.write_all_at(&whole[..from], 0).unwrap();
        file.set_len(whole.len() as u64).unwrap();
        let refused =
            ingest_from(open_local(&small.gguf).unwrap(), &target, &options, &mut quiet).unwrap_err();
        assert!(matches!(refused, StoreError::SourceDigest { .. }), "zeros from {from} on: {refused}");
        assert_eq!(entries(small.folder.path()), ["small", "small.gguf"], "zeros from {from} on");
    }
    // Zeros within the header are found without a sum, and nothing is begun.
    let mut bytes = whole.clone();
    bytes[header_bytes / 2..].fill(0);
    fs::write(&small.gguf, bytes).unwrap();
    let refused = ingest(&small.gguf, &target, &mut quiet).unwrap_err();
    assert!(matches!(refused, StoreError::Gguf(_)), "{refused}");
    assert_eq!(entries(small.folder.path()), ["small", "small.gguf"]);
}

#[test]
fn sums_of_parts_in_another_order_make_no_store() {
    let folder = TempDir::new().unwrap();
    let parts = split_model(folder.path(), &[0..3, 3..6, 6..small_tensors().len()]);
    let before = entries(folder.path());
    let mut sha256: Vec<_> = parts.iter().map(|part| Sha256Digest::of(&fs::read(part).unwrap())).collect();
    sha256.swap(1, 2);
    let options = IngestOptions { sha256, ..IngestOptions::default() };
    let target = folder.path().join("store");
    let refused = ingest_from(open_local(&parts[0]).unwrap(), &target, &options, &mut quiet).unwrap_err();
    let StoreError::SourceDigest { path, .. } = &refused else { panic!("{refused}") };
    assert_eq!(path.file_name(), parts[1].file_name(), "the first that is wrong is named");
    assert_eq!(entries(folder.path()), before);
}

#[test]
fn another_process_that_ingests_the_same_target_is_refused() {
    let small = small();
    let target = small.folder.path().join("twice");
    let mut is_first = true;
    ingest(&small.gguf, &target, &mut |_| {
        if std::mem::take(&mut is_first) {
            let answer = said(&mut child(&[], &small.gguf, &target));
            let owner = format!("process {}", std::process::id());
            assert!(answer.contains("Busy") && answer.contains(&owner), "{answer}");
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(contents(&target) == contents(&small.store), "the one who was first is not disturbed");
    assert_eq!(entries(small.folder.path()), ["small", "small.gguf", "twice"]);
}

/// Everything is there but its name, which something else took.
#[test]
fn an_unpublished_store_is_not_opened_by_any_name() {
    let small = small();
    let at = |name: &str| small.folder.path().join(name);
    let refused = ingest(&small.gguf, &at("late"), &mut |step| {
        if step.done_bytes == step.total_bytes && !at("late").exists() {
            fs::create_dir(at("late")).unwrap();
        }
        ControlFlow::Continue(())
    })
    .unwrap_err();
    assert!(matches!(refused, StoreError::TargetExists { .. }), "{refused}");
    let made = at("late.partial/store");
    assert_eq!(contents(&made), contents(&small.store), "whole, but not published");
    std::os::unix::fs::symlink(&made, at("link")).unwrap();
    std::os::unix::fs::symlink(at("late.partial"), at("folder")).unwrap();
    for name in ["late.partial", "late.partial/store", "late.partial/store/.", "link", "folder/store"] {
        let refused = Source::open(&at(name)).unwrap_err();
        assert!(matches!(refused, StoreError::Unfinished { .. }), "{name}: {refused}");
    }
    fs::remove_dir(at("late")).unwrap();
    ingest(&small.gguf, &at("late"), &mut quiet).unwrap();
    Source::open(&at("late")).unwrap();
}

#[test]
fn a_panic_of_the_caller_leaves_no_store() {
    let small = small();
    let target = small.folder.path().join("store");
    let result = std::panic::catch_unwind(|| ingest(&small.gguf, &target, &mut |_| panic!("of the caller")));
    result.unwrap_err();
    assert_eq!(entries(small.folder.path()), ["small", "small.gguf", "store.partial"]);
    ingest(&small.gguf, &target, &mut quiet).unwrap();
    assert_eq!(entries(small.folder.path()), ["small", "small.gguf", "store"]);
}

#[test]
fn a_target_that_exists_is_left_as_it_is() {
    let small = small();
    let at = |name: &str| small.folder.path().join(name);
    fs::create_dir(at("empty")).unwrap();
    fs::write(at("file"), "mine").unwrap();
    std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
    let before = entries(small.folder.path());
    for name in ["small", "empty", "file", "link", "small.gguf", "empty/"] {
        let refused = ingest(&small.gguf, &at(name), &mut quiet).unwrap_err();
        assert!(matches!(refused, StoreError::TargetExists { .. }), "{name}: {refused}");
        assert!(refused.to_string().contains("choose another name"), "{refused}");
    }
    // One that appears while the ingest is at work, too.
    for late in ["late", "late-file"] {
        let mut is_first = true;
        let refused = ingest(&small.gguf, &at(late), &mut |_| {
            if std::mem::take(&mut is_first) {
                match late {
                    "late" => fs::create_dir(at(late)).unwrap(),
                    _ => fs::write(at(late), "mine").unwrap(),
                }
            }
            ControlFlow::Continue(())
        })
        .unwrap_err();
        assert!(matches!(refused, StoreError::TargetExists { .. }), "{refused}");
    }
    assert_eq!(entries(&at("late")), [] as [&str; 0]);
    assert_eq!(fs::read(at("file")).unwrap(), b"mine");
    assert_eq!(fs::read(at("late-file")).unwrap(), b"mine");
    // The work is kept: when the other thing is gone, the store has its name at once.
    assert_eq!(entries(small.folder.path()).len(), before.len() + 4);
    fs::remove_dir(at("late")).unwrap();
    let report = ingest(&small.gguf, &at("late"), &mut quiet).unwrap();
    assert_eq!(report.resumed_bytes, report.source_bytes);
    assert_eq!(contents(&at("late")), contents(&small.store));
    Source::open(&small.store).unwrap();
}

#[test]
fn names_that_no_store_may_have() {
    let small = small();
    let long = "x".repeat(201);
    for name in ["..", "a\nb", "a\u{7}", "store.partial", "store.partial-17", long.as_str()] {
        let refused = ingest(&small.gguf, &small.folder.path().join(name), &mut quiet).unwrap_err();
        assert!(matches!(refused, StoreError::TargetName { .. }), "{name:?}: {refused}");
    }
    for name in ["", "/"] {
        let refused = ingest(&small.gguf, Path::new(name), &mut quiet).unwrap_err();
        assert!(matches!(refused, StoreError::TargetName { .. }), "{name:?}: {refused}");
    }
    let refused = ingest(&small.gguf, &small.folder.path().join("no/where"), &mut quiet).unwrap_err();
    assert!(matches!(refused, StoreError::TargetParent { .. }), "{refused}");
    for name in ["store.partial-", "store.partial-x", "Flint Größe", ".hidden"] {
        ingest(&small.gguf, &small.folder.path().join(name), &mut quiet).unwrap();
        Source::open(&small.folder.path().join(name)).unwrap();
    }
}

#[test]
fn an_ingest_of_the_same_target_at_once_is_refused() {
    let small = small();
    let target = small.folder.path().join("twice");
    let mut is_first = true;
    ingest(&small.gguf, &target, &mut |_| {
        if std::mem::take(&mut is_first) {
            let refused = ingest(&small.gguf, &target, &mut quiet).unwrap_err();
            let owner = format!("process {}", std::process::id());
            assert!(
                matches!(&refused, StoreError::Busy { owner: found, .. } if *found == owner),
                "{refused}"
            );
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    Source::open(&target).unwrap();
}

#[test]
fn what_is_no_model_is_named() {
    let small = small();
    let error = Source::open(&small.folder.path().join("nothing")).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    let error = Source::open(small.folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::NotAStore { .. }), "{error}");
    let error = ingest(&small.store, &small.folder.path().join("again"), &mut quiet).unwrap_err();
    assert!(matches!(error, StoreError::Gguf(_)), "{error}");
    Source::open(Path::new("/dev/null")).unwrap_err();
}

#[test]
fn readers_share_a_store_and_a_writer_excludes() {
    let small = small();
    let one = Source::open(&small.store).unwrap();
    let other = Source::open(&small.store).unwrap();
    let refused = WriterLock::take(&small.store).unwrap_err();
    assert!(matches!(refused, StoreError::InUse { .. }), "{refused}");
    drop((one, other));
    let writer = WriterLock::take(&small.store).unwrap();
    let refused = Source::open(&small.store).unwrap_err();
    assert!(matches!(refused, StoreError::BeingChanged { .. }), "{refused}");
    assert!(matches!(WriterLock::take(&small.store).unwrap_err(), StoreError::InUse { .. }));
    drop(writer);
    Source::open(&small.store).unwrap();
}

/// Not a test of its own: a process that has the store open until its input ends.
#[test]
#[ignore = "started by other tests"]
fn child_reads() {
    let Some(store) = std::env::var_os("FLINT_RT_TEST_STORE") else { return };
    let _source = Source::open(Path::new(&store)).unwrap();
    println!("open");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn another_process_that_reads_keeps_writers_out_until_it_ends() {
    use std::io::{BufRead, BufReader};
    let small = small();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["child_reads", "--exact", "--ignored", "--nocapture"])
        .env("FLINT_RT_TEST_STORE", &small.store)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("open")));
    Source::open(&small.store).unwrap();
    assert!(matches!(WriterLock::take(&small.store).unwrap_err(), StoreError::InUse { .. }));
    process.kill().unwrap();
    process.wait().unwrap();
    WriterLock::take(&small.store).unwrap();
}

#[test]
fn a_store_over_several_drives_is_the_same_model() {
    let small = small();
    let drives = ["a", "b", "c"].map(|name| small.folder.path().join(name));
    drives.iter().for_each(|drive| fs::create_dir(drive).unwrap());
    let stripe = |folder: Option<&PathBuf>, weight| StripePlan { folder: folder.cloned(), weight };
    let plans = [
        vec![stripe(Some(&drives[0]), 3.0), stripe(Some(&drives[1]), 1.0), stripe(None, 2.0)],
        vec![stripe(Some(&drives[2]), 0.5)],
    ];
    let made = |name: &str, stripes: &[StripePlan]| {
        let target = small.folder.path().join(name);
        let options = IngestOptions { stripes: stripes.to_vec(), ..IngestOptions::default() };
        ingest_from(open_local(&small.gguf).unwrap(), &target, &options, &mut quiet).map(|_| target)
    };
    let gguf = Source::open(&small.gguf).unwrap();
    let over_three = made("three", &plans[0]).unwrap();
    let store = Source::open(&over_three).unwrap();
    assert_same_model(&gguf, &store);
    assert_eq!(store.files().len(), 4);
    let lens: Vec<_> = store.files()[1..].iter().map(|file| fs::metadata(file).unwrap().len()).collect();
    assert_eq!(lens, [3 * 4096, 4096, 2 * 4096], "six records by weights of 3, 1, 2");
    drop(store);
    let over_one = made("one", &plans[1]).unwrap();
    assert_same_model(&gguf, &Source::open(&over_one).unwrap());

    // The store may move; its stripes may not, and a missing drive is said in plain words.
    let moved = small.folder.path().join("moved");
    fs::rename(&over_three, &moved).unwrap();
    assert_same_model(&gguf, &Source::open(&moved).unwrap());
    fs::rename(&drives[1], small.folder.path().join("unmounted")).unwrap();
    let refused = Source::open(&moved).unwrap_err();
    assert!(matches!(refused, StoreError::StripeMissing { .. }), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("b/three.stripe") && said.contains("moved") && said.contains("mount"), "{said}");
    // Another stripe in its place is not taken for it.
    fs::create_dir(&drives[1]).unwrap();
    fs::create_dir(drives[1].join("three.stripe")).unwrap();
    for entry in fs::read_dir(drives[0].join("three.stripe")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, drives[1].join("three.stripe").join(path.file_name().unwrap())).unwrap();
    }
    let refused = Source::open(&moved).unwrap_err();
    assert!(matches!(refused, StoreError::StripeForeign { .. }), "{refused}");

    for (stripes, said) in [
        (vec![stripe(Some(&drives[0]), 1.0), stripe(Some(&drives[0]), 1.0)], "named twice"),
        (vec![stripe(None, 1.0), stripe(None, 1.0)], "named twice"),
        (vec![stripe(Some(&drives[0]), 0.0)], "weight"),
        (vec![stripe(Some(&drives[0]), f64::NAN)], "weight"),
        (vec![stripe(Some(&drives[0].join("none")), 1.0)], "mount"),
    ] {
        let refused = made("refused", &stripes).unwrap_err();
        assert!(matches!(refused, StoreError::StripeFolder { .. }), "{refused}");
        assert!(refused.to_string().contains(said), "{refused}");
    }
    let refused = made("three", &plans[0]).unwrap_err();
    assert!(matches!(refused, StoreError::TargetExists { .. }), "the stripe is there: {refused}");
}

/// The small model in `count` parts, its metadata in the first, as its splitter writes it.
fn split_model(folder: &Path, tensors_of: &[std::ops::Range<usize>]) -> Vec<PathBuf> {
    let tensors = small_tensors();
    let count = u32::try_from(tensors_of.len()).unwrap();
    (1..=count)
        .zip(tensors_of)
        .map(|(number, range)| {
            let path = folder.join(part_name("split", number, count));
            let keys: &[_] = if number == 1 { &FLINT } else { &[("general.name", "a later part")] };
            fs::write(&path, gguf(keys, &tensors[range.clone()])).unwrap();
            path
        })
        .collect()
}

#[test]
fn a_split_gguf_is_one_model_in_place_and_as_a_store() {
    let folder = TempDir::new().unwrap();
    let count = small_tensors().len();
    // A cut within a layer; a first part without tensors.
    for (round, cuts) in [vec![0..3, 3..6, 6..count], vec![0..0, 0..count]].iter().enumerate() {
        let folder = folder.path().join(round.to_string());
        fs::create_dir(&folder).unwrap();
        let parts = split_model(&folder, cuts);
        let source = Source::open(&parts[0]).unwrap();
        assert_eq!(source.files(), parts);
        assert_eq!(source.gguf().tensors.len(), count);
        assert_eq!(Source::open(parts.last().unwrap()).unwrap().identity(), source.identity());

        let target = folder.join("store");
        let options = IngestOptions {
            sha256: parts.iter().map(|part| Sha256Digest::of(&fs::read(part).unwrap())).collect(),
            chunk_bytes: 4096,
            checkpoint_bytes: 8192,
            ..IngestOptions::default()
        };
        let report = ingest_from(open_local(&parts[0]).unwrap(), &target, &options, &mut quiet).unwrap();
        assert_eq!(report.source_sha256, options.sha256);
        let store = Source::open(&target).unwrap();
        assert_same_model(&source, &store);
        assert_eq!(store.source_sha256(), None);
        let origin: Vec<_> = store.origin().iter().map(|part| part.sha256.unwrap()).collect();
        assert_eq!(origin, options.sha256);
        let names: Vec<_> = store.origin().iter().map(|part| part.file_name.clone()).collect();
        assert_eq!(
            names,
            parts.iter().map(|part| part.file_name().unwrap().to_str().unwrap()).collect::<Vec<_>>()
        );

        let last = parts.last().unwrap();
        let held = folder.join("held");
        fs::rename(last, &held).unwrap();
        for refused in [Source::open(&parts[0]).unwrap_err(), open_local(&parts[0]).err().unwrap()] {
            assert!(matches!(refused, StoreError::PartMissing { .. }), "{refused}");
            assert!(refused.to_string().contains(last.file_name().unwrap().to_str().unwrap()), "{refused}");
        }
        // A part of another split, or the same part twice.
        fs::copy(&parts[0], last).unwrap();
        Source::open(&parts[0]).unwrap_err();
        // A part cut short.
        let bytes = fs::read(&held).unwrap();
        fs::write(last, &bytes[..bytes.len() - 1]).unwrap();
        Source::open(&parts[0]).unwrap_err();
        fs::rename(&held, last).unwrap();
        Source::open(&parts[0]).unwrap();
    }
    let wrong = folder.path().join("x-00004-of-00003.gguf");
    fs::write(&wrong, gguf(&FLINT, &small_tensors())).unwrap();
    assert!(matches!(Source::open(&wrong).unwrap_err(), StoreError::PartNumber { .. }));
}

/// The length of the file is no multiple of anything, and the last tensor ends it.
#[test]
fn any_alignment_and_any_end_of_the_file_are_read_exactly() {
    let folder = TempDir::new().unwrap();
    let whole = gguf(&FLINT, &small_tensors());
    let wanted = small();
    for extra in [0, 1, 31, 4095, 4096, 4097] {
        let path = folder.path().join(format!("{extra}.gguf"));
        let mut bytes = whole.clone();
        bytes.resize(whole.len() + extra, 7);
        fs::write(&path, &bytes).unwrap();
        let source = Source::open(&path).unwrap();
        let target = folder.path().join(format!("store{extra}"));
        let options = IngestOptions { chunk_bytes: 4096, ..IngestOptions::default() };
        let report = ingest_from(open_local(&path).unwrap(), &target, &options, &mut quiet).unwrap();
        assert_eq!(report.source_sha256, [Sha256Digest::of(&bytes)]);
        assert_same_model(&source, &Source::open(&target).unwrap());
        for name in ["dense.bin", "experts.bin"] {
            assert!(
                fs::read(target.join(name)).unwrap() == fs::read(wanted.store.join(name)).unwrap(),
                "{extra}"
            );
        }
    }
    for alignment in [1, 2, 8, 64, 512, 4096, 65_536, 1 << 20] {
        let path = folder.path().join(format!("aligned{alignment}.gguf"));
        fs::write(&path, aligned_gguf(&FLINT, &small_tensors(), Some(alignment))).unwrap();
        let target = folder.path().join(format!("aligned{alignment}"));
        ingest(&path, &target, &mut quiet).unwrap();
        assert_same_model(&Source::open(&path).unwrap(), &Source::open(&target).unwrap());
    }
}

/// The files of a store that is open stay readable when its folder is removed or replaced, and what is then under
/// the same name is another store to every sum.
#[test]
fn a_store_replaced_under_a_reader_is_never_mixed_with_the_new_one() {
    let small = small();
    let source = Source::open(&small.store).unwrap();
    let files: Vec<_> = source.files().iter().map(|path| File::open(path).unwrap()).collect();
    let keys: Vec<_> = source.expert_keys().collect();
    let before: Vec<_> = keys.iter().map(|&key| record_of(&source, key)).collect();

    // The same header, so the same identity, but other weights.
    let other = small.folder.path().join("other.gguf");
    let mut bytes = fs::read(&small.gguf).unwrap();
    let header = source.gguf().header_bytes().len();
    bytes[header..].iter_mut().for_each(|byte| *byte ^= 0x5a);
    fs::write(&other, bytes).unwrap();
    fs::remove_dir_all(&small.store).unwrap();
    ingest(&other, &small.store, &mut quiet).unwrap();
    for (&key, wanted) in keys.iter().zip(&before) {
        let span = source.expert_pieces(key)[0].span;
        let mut bytes = vec![0; wanted.len()];
        files[usize::from(span.file.0)].read_exact_at(&mut bytes, span.offset_bytes).unwrap();
        assert!(bytes == *wanted, "the open file changed");
        let now = record_of(&source, key);
        assert!(now != *wanted, "the new store has the old bytes");
        let sum = record_checksum(source.identity(), key, &source.record(), &now);
        assert_ne!(
            Some(sum),
            source.record_checksum(key),
            "a record of the new store passed for one of the old"
        );
    }
}

#[test]
fn a_header_is_read_of_any_source() {
    let small = small();
    let header = read_header(&mut open_local(&small.gguf).unwrap()).unwrap();
    assert_eq!(&header, Source::open(&small.gguf).unwrap().gguf());
}

/// Not a test of its own: an ingest in a process of its own, as the environment says.
#[test]
#[ignore = "started by other tests"]
fn child_ingests() {
    let Some(source) = std::env::var_os("FLINT_RT_TEST_SOURCE") else { return };
    let target = PathBuf::from(std::env::var_os("FLINT_RT_TEST_TARGET").unwrap());
    let fills = std::env::var_os("FLINT_RT_TEST_FILL").is_some();
    let mut calls = 0;
    let result = ingest(Path::new(&source), &target, &mut |_| {
        if fills && calls == 0 {
            let ballast = vec![1; 1 << 16];
            let file = File::create(target.with_file_name("ballast")).unwrap();
            (0u64..).find(|index| file.write_all_at(&ballast, index << 16).is_err());
        }
        calls += 1;
        ControlFlow::Continue(())
    });
    match result {
        Ok(_) => println!("made in {calls} calls"),
        Err(error) => {
            let mut names = entries(target.parent().unwrap());
            names.retain(|name| name != "ballast");
            println!("refused: {error} [{error:?}] left: {names:?}");
        }
    }
}

/// The call of [`child_ingests`], behind `wrapper`.
fn child(wrapper: &[&str], source: &Path, target: &Path) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut command = match wrapper {
        [] => Command::new(exe),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(exe);
            command
        }
    };
    command.args(["child_ingests", "--exact", "--ignored", "--nocapture"]);
    command.env("FLINT_RT_TEST_SOURCE", source).env("FLINT_RT_TEST_TARGET", target);
    command
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_limit_of_file_length_ends_an_ingest_cleanly() {
    let folder = TempDir::new().unwrap();
    let target = folder.path().join("store");
    // In units of 512 or 1,024 bytes, by shell: below the header's, the dense file's and the experts' length.
    for limit in ["0", "1", "100", "1000", "2500"] {
        let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$@\"");
        // The answer goes through a pipe, which has no such limit.
        let answer = said(&mut child(&["sh", "-c", &script, "sh"], Path::new(NANO), &target));
        assert!(answer.contains("refused: ") && answer.contains("DriveFull"), "limit {limit}: {answer}");
        assert!(answer.contains("left: []"), "limit {limit}: {answer}");
        assert_eq!(entries(folder.path()), [] as [&str; 0]);
    }
}

/// Runs [`child_ingests`] on a file system of its own at `mount`; nothing where that is not allowed.
fn on_tmpfs(options: &str, mount: &Path, fills: bool) -> Option<String> {
    let script = format!("mount -t tmpfs -o {options} none '{}' && exec \"$@\"", mount.display());
    let wrapper = ["unshare", "-rm", "sh", "-c", &script, "sh"];
    let allowed = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none"]).arg(mount).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this process may not mount a file system of its own");
        return None;
    }
    let mut command = child(&wrapper, Path::new(NANO), &mount.join("store"));
    if fills {
        command.env("FLINT_RT_TEST_FILL", "1");
    }
    Some(said(&mut command))
}

#[test]
fn a_full_drive_is_named_before_and_during_the_ingest() {
    let folder = TempDir::new().unwrap();
    let Some(answer) = on_tmpfs("size=4m", folder.path(), false) else { return };
    assert!(answer.contains("NoSpace") && answer.contains("are free"), "{answer}");
    assert!(answer.contains("left: []"), "{answer}");
    let Some(answer) = on_tmpfs("size=16m", folder.path(), true) else { return };
    assert!(answer.contains("DriveFull") && answer.contains("still to write and 0 B free"), "{answer}");
    assert!(answer.contains("left: [\"store.partial\"]"), "{answer}");
    let Some(answer) = on_tmpfs("size=16m", folder.path(), false) else { return };
    assert!(answer.contains("made in "), "{answer}");
}

#[test]
fn a_folder_that_may_not_be_written_is_named() {
    let folder = TempDir::new().unwrap();
    let Some(answer) = on_tmpfs("ro", folder.path(), false) else { return };
    assert!(answer.contains("cannot make the folder") && answer.contains("left: []"), "{answer}");
}

/// Stores as they were written by each version, of the small model.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/stores");

fn version_of(store: &Path) -> u64 {
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(store.join("manifest.json")).unwrap()).unwrap();
    manifest["version"].as_u64().unwrap()
}

#[test]
fn a_store_of_every_version_opens_or_is_refused_with_the_way_out() {
    let small = small();
    let now = version_of(&small.store);
    let current = Path::new(KEPT).join(format!("version-{now}"));
    assert!(current.is_dir(), "keep one: cargo test --test store -- --ignored keep_a_store_of_this_version");
    assert!(contents(&current) == contents(&small.store), "other bytes must be another version");
    let made = Source::open(&small.store).unwrap();
    for name in entries(Path::new(KEPT)) {
        let store = Path::new(KEPT).join(&name);
        let version = version_of(&store);
        assert_eq!(name, format!("version-{version}"));
        match Source::open(&store) {
            Ok(source) => {
                let report =
                    verify_store(&store, &VerifyOptions::default(), &mut |_| ControlFlow::Continue(()));
                assert!(report.unwrap().is_whole(), "{name}");
                for key in
                    [1, 3].iter().flat_map(|&layer| (0..3).map(move |expert| ExpertKey::new(layer, expert)))
                {
                    assert!(record_of(&source, key) == record_of(&made, key), "{name}: {key}");
                }
            }
            Err(error) => {
                assert!(version != now, "{error}");
                let is_version =
                    matches!(error, StoreError::ManifestVersion { found, .. } if found == version);
                assert!(is_version && error.to_string().contains("ingest the model again"), "{error}");
            }
        }
    }
    assert!(entries(Path::new(KEPT)).contains(&"version-2".to_owned()), "the oldest that is kept");
}

/// For whoever makes a new version. A store that is kept is never replaced.
#[test]
#[ignore = "writes into the tree, once a version"]
fn keep_a_store_of_this_version() {
    let small = small();
    let target = Path::new(KEPT).join(format!("version-{}", version_of(&small.store)));
    fs::create_dir_all(KEPT).unwrap();
    fs::create_dir(&target).unwrap();
    for (name, bytes) in contents(&small.store) {
        fs::write(target.join(name), bytes).unwrap();
    }
}

#[test]
fn the_shares_of_an_interrupted_ingest_are_found_again() {
    let small = small();
    let drives = ["a", "b"].map(|name| small.folder.path().join(name));
    drives.iter().for_each(|drive| fs::create_dir(drive).unwrap());
    // A number that has no short decimal form.
    let shares = [0.1 + 0.2, 1.0 / 3.0];
    let plan = |shares: &[f64]| IngestOptions {
        stripes: drives
            .iter()
            .zip(shares)
            .map(|(drive, &weight)| StripePlan { folder: Some(drive.clone()), weight })
            .collect(),
        chunk_bytes: 4096,
        ..IngestOptions::default()
    };
    let target = small.folder.path().join("striped");
    assert_eq!(begun_weights(&target, &drives), None, "nothing was begun");
    let stopped = ingest_from(open_local(&small.gguf).unwrap(), &target, &plan(&shares), &mut |progress| {
        if progress.done_bytes >= 8192 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(StoreError::Stopped)));
    let [a, b] = drives.clone();
    assert_eq!(begun_weights(&target, &[b, a.clone()]), None, "in another order");
    assert_eq!(begun_weights(&target, &[a]), None, "over fewer drives");
    let found = begun_weights(&target, &drives).unwrap();
    assert_eq!(found, shares, "the very numbers");
    let other = ingest_from(open_local(&small.gguf).unwrap(), &target, &plan(&[1.0, 9.0]), &mut quiet);
    assert!(matches!(other, Err(StoreError::StripesOther { .. })), "other shares are another store");
    let report = ingest_from(open_local(&small.gguf).unwrap(), &target, &plan(&found), &mut quiet).unwrap();
    assert!(report.resumed_bytes >= 8192);
    assert_eq!(begun_weights(&target, &drives), None, "it is done");
}
