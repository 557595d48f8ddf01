//! GGUF -> store -> bytes, exact; and everything that must not become, or pass for, a store.

#![allow(clippy::unwrap_used, clippy::missing_assert_message, reason = "a test may fail where it stands")]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use flint_rt::base::ids::{ExpertKey, LayerIndex, Span};
use flint_rt::store::{
    IngestPhase, IngestProgress, MANIFEST_NAME, Sha256Digest, Source, SourceKind, StoreError, ingest,
    ingest_checked,
};
use tempfile::TempDir;

const NANO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/flint-nano-q4_1.gguf");

fn quiet(_: IngestProgress) {}

fn bytes_of(source: &Source, span: Span) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(span.len_bytes).unwrap()];
    let file = File::open(&source.files()[usize::from(span.file.0)]).unwrap();
    file.read_exact_at(&mut bytes, span.offset_bytes).unwrap();
    bytes
}

fn record_of(source: &Source, key: ExpertKey) -> Vec<u8> {
    let mut record = Vec::new();
    for piece in source.expert_pieces(key).iter() {
        assert_eq!(piece.record_offset_bytes, record.len() as u64, "pieces come in order, without gaps");
        record.extend(bytes_of(source, piece.span));
    }
    assert_eq!(record.len() as u64, source.record().record_bytes());
    record
}

/// The names in a folder, sorted.
fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Name, dimensions, type code, bytes.
type TensorSpec = (String, Vec<u64>, u32, usize);

/// A GGUF of string keys and tensors, at alignment 32.
fn gguf(keys: &[(&str, &str)], tensors: &[TensorSpec]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    let text = |file: &mut Vec<u8>, text: &str| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    };
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        text(&mut file, key);
        file.extend(8u32.to_le_bytes());
        text(&mut file, value);
    }
    let mut offset = 0u64;
    for (name, dims, kind, bytes) in tensors {
        text(&mut file, name);
        file.extend(u32::try_from(dims.len()).unwrap().to_le_bytes());
        dims.iter().for_each(|dim| file.extend(dim.to_le_bytes()));
        file.extend(kind.to_le_bytes());
        file.extend(offset.to_le_bytes());
        offset += (*bytes as u64).next_multiple_of(32);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    let mut state = 1u32;
    for (_, _, _, bytes) in tensors {
        for _ in 0..bytes.next_multiple_of(32) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            file.push(state.to_be_bytes()[0]);
        }
    }
    file
}

const FLINT: [(&str, &str); 1] = [("general.architecture", "flint")];

/// The tensors of a model of four layers, two of which, not side by side, have three experts each.
fn small_tensors() -> Vec<TensorSpec> {
    let mut tensors = vec![("output_norm.weight".to_owned(), vec![5], 0, 20)];
    for layer in [3, 1] {
        tensors.push((format!("blk.{layer}.ffn_down_exps.weight"), vec![32, 64, 3], 3, 3 * 1280));
        tensors.push((format!("blk.{layer}.attn_q.weight"), vec![64, 7], 3, 7 * 40));
        tensors.push((format!("blk.{layer}.ffn_gate_exps.weight"), vec![64, 32, 3], 3, 3 * 1280));
        tensors.push((format!("blk.{layer}.ffn_up_exps.weight"), vec![64, 32, 3], 3, 3 * 1280));
    }
    tensors.push(("blk.0.attn_q.weight".to_owned(), vec![64, 248], 3, 248 * 40));
    tensors
}

/// A folder with the small model and a store of it.
struct Small {
    folder: TempDir,
    gguf: PathBuf,
    store: PathBuf,
}

fn small() -> Small {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("small.gguf");
    fs::write(&path, gguf(&FLINT, &small_tensors())).unwrap();
    let store = folder.path().join("small");
    ingest(&path, &store, &mut quiet).unwrap();
    Small { folder, gguf: path, store }
}

fn assert_same_model(gguf: &Source, store: &Source) {
    assert_eq!((gguf.kind(), store.kind()), (SourceKind::Gguf, SourceKind::Store));
    assert_eq!(gguf.identity(), store.identity());
    assert_eq!(gguf.record(), store.record());
    assert_eq!(gguf.gguf(), store.gguf());
    let stride = store.record().stride_bytes();
    let keys: Vec<_> = gguf.expert_keys().collect();
    assert_eq!(keys, store.expert_keys().collect::<Vec<_>>());
    let mut records = Vec::new();
    for (index, &key) in (0u64..).zip(&keys) {
        let pieces = store.expert_pieces(key);
        assert_eq!(pieces.len(), 1, "one read an expert");
        assert_eq!(pieces[0].span.offset_bytes, index * stride);
        assert_eq!(gguf.expert_pieces(key).len(), 3);
        let record = record_of(store, key);
        assert!(record == record_of(gguf, key), "the bytes of {key} differ");
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
                assert!(bytes_of(gguf, span) == bytes_of(store, stored), "{} differs", tensor.name);
                dense += 1;
            }
            None => {
                assert!(tensor.name.contains("_exps."), "{} is lost", tensor.name);
                assert_eq!(store.tensor_span(&tensor.name), None);
            }
        }
    }
    assert_eq!(dense + 3 * gguf.expert_layers().len(), gguf.gguf().tensors.len());
}

#[test]
fn a_store_of_the_bundled_model_holds_its_bytes() {
    let folder = TempDir::new().unwrap();
    let target = folder.path().join("nano");
    let mut steps = Vec::new();
    let report = ingest(Path::new(NANO), &target, &mut |step| steps.push(step)).unwrap();

    let source_bytes = fs::metadata(NANO).unwrap().len();
    assert_eq!(report.source_bytes, source_bytes);
    assert_eq!(report.source_sha256, Sha256Digest::of(&fs::read(NANO).unwrap()));
    assert_eq!(report.record_count, 6 * 16);
    assert_eq!(report.left_behind, [] as [PathBuf; 0]);
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
    assert_eq!(store.source_sha256(), Some(report.source_sha256));
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
    let refused = ingest_checked(&small.gguf, &target, Some(wrong), &mut quiet).unwrap_err();
    assert!(matches!(&refused, StoreError::SourceDigest { found, .. } if *found == right), "{refused}");
    assert_eq!(entries(small.folder.path()), ["small", "small.gguf"]);
    ingest_checked(&small.gguf, &target, Some(right), &mut quiet).unwrap();
    Source::open(&target).unwrap();
}

#[test]
fn a_panic_of_the_caller_leaves_nothing() {
    let small = small();
    let target = small.folder.path().join("store");
    let result = std::panic::catch_unwind(|| ingest(&small.gguf, &target, &mut |_| panic!("of the caller")));
    result.unwrap_err();
    assert_eq!(entries(small.folder.path()), ["small", "small.gguf"]);
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
        })
        .unwrap_err();
        assert!(matches!(refused, StoreError::TargetExists { .. }), "{refused}");
    }
    assert_eq!(entries(&at("late")), [] as [&str; 0]);
    assert_eq!(fs::read(at("file")).unwrap(), b"mine");
    assert_eq!(fs::read(at("late-file")).unwrap(), b"mine");
    assert_eq!(entries(small.folder.path()).len(), before.len() + 2);
    Source::open(&small.store).unwrap();
}

#[test]
fn names_that_no_store_may_have() {
    let small = small();
    let long = "x".repeat(201);
    for name in ["..", "a\nb", "a\u{7}", "store.partial-17", long.as_str()] {
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
            assert!(matches!(refused, StoreError::Busy { .. }), "{refused}");
        }
    })
    .unwrap();
    Source::open(&target).unwrap();
}

#[test]
fn a_store_truncated_or_grown_anywhere_is_refused() {
    let small = small();
    let source = Source::open(&small.store).unwrap();
    for name in ["dense.bin", "experts.bin", "header.bin", MANIFEST_NAME] {
        let path = small.store.join(name);
        let whole = fs::read(&path).unwrap();
        let len = whole.len() as u64;
        let mut borders = vec![0, len];
        match name {
            "experts.bin" => borders.extend((0..6).map(|index| index * source.record().stride_bytes())),
            "dense.bin" => borders.extend((0..len).step_by(4096)),
            _ => borders.extend((0..len).step_by(29)),
        }
        for border in borders {
            for cut in [border.saturating_sub(1), border, border + 1] {
                if cut == len || (name == MANIFEST_NAME && cut >= len - 1) {
                    // Whole; a manifest may end without its line feed, and with one NUL more it is no JSON.
                    continue;
                }
                OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
                let refused = Source::open(&small.store).unwrap_err();
                assert!(refused.is_data_damage(), "{name} at {cut}: {refused}");
                if name.ends_with(".bin") {
                    let said = if cut < len { "store truncated" } else { "does not belong" };
                    assert!(refused.to_string().contains(said), "{name} at {cut}: {refused}");
                }
            }
        }
        fs::write(&path, &whole).unwrap();
        Source::open(&small.store).unwrap();
        fs::remove_file(&path).unwrap();
        let refused = Source::open(&small.store).unwrap_err();
        match name {
            MANIFEST_NAME => assert!(matches!(refused, StoreError::NotAStore { .. }), "{refused}"),
            _ => assert!(matches!(refused, StoreError::FileMissing { .. }), "{refused}"),
        }
        fs::create_dir(&path).unwrap();
        Source::open(&small.store).unwrap_err();
        fs::remove_dir(&path).unwrap();
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn a_flipped_bit_of_manifest_or_header_is_refused_or_means_the_same() {
    let small = small();
    let view = |source: &Source| {
        let spans: Vec<_> =
            source.gguf().tensors.iter().map(|tensor| source.tensor_span(&tensor.name)).collect();
        let pieces: Vec<_> = source.expert_keys().map(|key| source.expert_pieces(key)).collect();
        let files = source.files().to_vec();
        (source.identity(), source.source_sha256(), source.file_name().to_owned(), files, spans, pieces)
    };
    let wanted = view(&Source::open(&small.store).unwrap());
    for name in [MANIFEST_NAME, "header.bin"] {
        let path = small.store.join(name);
        let bytes = fs::read(&path).unwrap();
        // In place: to write the whole file each time would make some file systems sync it each time.
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let mut accepted = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            // The lowest, which turns a digit into another; the one of upper and lower case; the one of ASCII.
            for bit in [0, 5, 7] {
                file.write_all_at(&[byte ^ (1 << bit)], at as u64).unwrap();
                if let Ok(source) = Source::open(&small.store) {
                    assert_eq!(view(&source), wanted, "bit {bit} of byte {at} of {name}");
                    accepted += 1;
                }
            }
            file.write_all_at(&[byte], at as u64).unwrap();
        }
        if name == "header.bin" {
            assert_eq!(accepted, 0, "all of the header is under the digest");
        }
    }
    Source::open(&small.store).unwrap();
}

/// `text` with its digest made to fit, as somebody would do who changes numbers on purpose.
fn with_digest(text: &str) -> String {
    let start = text.find("\"digest\": \"").unwrap() + "\"digest\": \"".len();
    let end = start + text[start..].find('"').unwrap();
    let rest = format!("{}{}", &text[..start], &text[end..]);
    let mut is_string = false;
    let compact: String = rest
        .chars()
        .filter(|&char| {
            is_string ^= char == '"';
            is_string || !char.is_whitespace()
        })
        .collect();
    format!("{}{}{}", &text[..start], Sha256Digest::of(compact.as_bytes()), &text[end..])
}

#[test]
fn every_number_of_the_manifest_is_checked_even_under_a_fitting_digest() {
    let small = small();
    let path = small.store.join(MANIFEST_NAME);
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(with_digest(&text), text, "this test makes digests as the store does");

    let mut numbers = 0;
    let body = text.find("\"source\"").unwrap();
    for (at, _) in text.match_indices(|char: char| char.is_ascii_digit()) {
        let line_start = text[..at].rfind('\n').unwrap_or(0);
        let before = &text[line_start..at];
        if at < body
            || before.contains(": \"")
            || before.ends_with("sha")
            || text.as_bytes()[at - 1].is_ascii_digit()
        {
            continue;
        }
        let end = at + text[at..].find(|char: char| !char.is_ascii_digit()).unwrap();
        for number in ["0", "1", "4095", "18446744073709551615", "9223372036854775807"] {
            if text[at..end] == *number {
                continue;
            }
            fs::write(&path, with_digest(&format!("{}{number}{}", &text[..at], &text[end..]))).unwrap();
            let result = Source::open(&small.store);
            // The source's length is known from nowhere else; what holds the tensors is believed, and changes the
            // identity.
            if before.contains("size_bytes") && number == "9223372036854775807" {
                assert_ne!(result.unwrap().identity(), Source::open(&small.gguf).unwrap().identity());
            } else {
                result.expect_err(&format!("{} -> {number}", &text[line_start..end]));
            }
        }
        numbers += 1;
    }
    assert_eq!(numbers, 1 + 1 + 1 + 2 * 4 + 8, "each number of the manifest was tried");

    for (from, to, said) in [
        ("\"dense.bin\"", "\"../small/dense.bin\"", "dense.file"),
        ("\"experts.bin\"", "\"/etc/passwd\"", "experts.file"),
        ("\"header.bin\"", "\"./header.bin\"", "header.file"),
        ("\"small.gguf\"", "\"a/small.gguf\"", "source.file_name"),
        ("\"small.gguf\"", "\"..\"", "source.file_name"),
        ("\"blk.0.attn_q.weight\"", "\"blk.9.attn_q.weight\"", "dense.tensors"),
    ] {
        fs::write(&path, with_digest(&text.replacen(from, to, 1))).unwrap();
        let refused = Source::open(&small.store).unwrap_err();
        assert!(refused.to_string().contains(said), "{to}: {refused}");
    }
}

#[test]
fn other_versions_formats_and_fields_are_refused_with_the_way_out() {
    let small = small();
    let path = small.store.join(MANIFEST_NAME);
    let text = fs::read_to_string(&path).unwrap();
    let refused = |text: &str| {
        fs::write(&path, with_digest(text)).unwrap();
        Source::open(&small.store).unwrap_err()
    };
    for version in [0u64, 2, u64::from(u32::MAX) + 2] {
        let newer =
            text.replacen("\"version\": 1", &format!("\"checksums\": [],\n  \"version\": {version}"), 1);
        let error = refused(&newer);
        assert!(matches!(error, StoreError::ManifestVersion { found, .. } if found == version), "{error}");
        assert!(error.to_string().contains("ingest the model again"), "{error}");
    }
    let error = refused(&text.replacen("flint-rt store", "another store", 1));
    assert!(matches!(error, StoreError::ManifestFormat { .. }), "{error}");
    for (from, to) in [
        ("\"version\": 1", "\"version\": 1, \"extra\": 0"),
        ("\"expert_count\"", "\"extra\": 0, \"expert_count\""),
        ("\"version\": 1", "\"version\": 1, \"version\": 1"),
        ("\"version\": 1", "\"version\": 1.0"),
        ("\"expert_count\": 3", "\"expert_count\": -3"),
        ("\"expert_count\": 3", "\"expert_count\": \"3\""),
    ] {
        let error = refused(&text.replacen(from, to, 1));
        assert!(matches!(error, StoreError::ManifestSyntax { .. }), "{to}: {error}");
    }
    for bytes in [&b""[..], b"[]", b"null", b"{}", &[b'['; 100_000]] {
        fs::write(&path, bytes).unwrap();
        let error = Source::open(&small.store).unwrap_err();
        assert!(matches!(error, StoreError::ManifestSyntax { .. }), "{error}");
    }
    // A hole: nothing is read of it.
    File::create(&path).unwrap().set_len((256 << 20) + 1).unwrap();
    let error = Source::open(&small.store).unwrap_err();
    assert!(matches!(error, StoreError::ManifestTooLarge { .. }), "{error}");
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

/// Not a test of its own: an ingest in a process of its own, as the environment says.
#[test]
#[ignore = "started by other tests"]
fn child_ingests() {
    let Some(source) = std::env::var_os("FLINT_RT_TEST_SOURCE") else { return };
    let target = PathBuf::from(std::env::var_os("FLINT_RT_TEST_TARGET").unwrap());
    let stop_at: Option<u32> =
        std::env::var("FLINT_RT_TEST_STOP_AT").ok().map(|number| number.parse().unwrap());
    let fills = std::env::var_os("FLINT_RT_TEST_FILL").is_some();
    let mut calls = 0;
    let result = ingest(Path::new(&source), &target, &mut |_| {
        if fills && calls == 0 {
            let ballast = vec![1; 1 << 16];
            let file = File::create(target.with_file_name("ballast")).unwrap();
            (0u64..).find(|index| file.write_all_at(&ballast, index << 16).is_err());
        }
        if stop_at == Some(calls) {
            fs::write(target.with_file_name("reached"), "").unwrap();
            std::thread::sleep(Duration::from_secs(120));
        }
        calls += 1;
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
fn an_ingest_killed_at_any_point_leaves_no_store_but_the_whole_one() {
    let source = Path::new(NANO);
    // Each call of the progress function is a point: three of copying, four files to sync, published.
    for point in 0..8u32 {
        let folder = TempDir::new().unwrap();
        let target = folder.path().join("store");
        let mut process =
            child(&[], source, &target).env("FLINT_RT_TEST_STOP_AT", point.to_string()).spawn().unwrap();
        let started = Instant::now();
        while !folder.path().join("reached").exists() {
            assert!(started.elapsed() < Duration::from_secs(60), "point {point} was not reached");
            std::thread::sleep(Duration::from_millis(5));
        }
        process.kill().unwrap();
        process.wait().unwrap();
        let working = folder.path().join(format!("store.partial-{}", process.id()));
        if point == 7 {
            assert!(!working.exists(), "published");
        } else {
            assert!(!target.exists(), "killed at point {point}, but there is a store");
            let refused = Source::open(&working).unwrap_err();
            assert!(matches!(refused, StoreError::Unfinished { .. }), "{refused}");
            let report = ingest(source, &target, &mut quiet).unwrap();
            assert_eq!(report.left_behind, [working]);
        }
        assert_same_model(&Source::open(source).unwrap(), &Source::open(&target).unwrap());
    }
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
    assert!(answer.contains("left: []"), "{answer}");
    let Some(answer) = on_tmpfs("size=16m", folder.path(), false) else { return };
    assert!(answer.contains("made in 8 calls"), "{answer}");
}

#[test]
fn a_folder_that_may_not_be_written_is_named() {
    let folder = TempDir::new().unwrap();
    let Some(answer) = on_tmpfs("ro", folder.path(), false) else { return };
    assert!(answer.contains("cannot make the folder") && answer.contains("left: []"), "{answer}");
}
