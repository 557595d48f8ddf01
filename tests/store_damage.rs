//! A damaged store is refused when it is opened, or found by its sums: 100 %.

#![allow(clippy::unwrap_used, clippy::missing_assert_message, reason = "a test may fail where it stands")]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use flint_rt::base::ids::FileIndex;
use flint_rt::store::{
    MANIFEST_NAME, Sha256Digest, Source, StoreError, record_checksum, tensor_checksum, tree_digest,
};

#[path = "support/small_model.rs"]
mod small_model;

use small_model::{bytes_of, record_of, small};

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
        // 200 more of any kind.
        borders.extend((1..=200u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (len + 1)));
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
        let sums: Vec<_> = source.expert_keys().map(|key| source.record_checksum(key)).collect();
        let digests = [0, 1].map(|file| source.file_digest(FileIndex(file)));
        (
            sums,
            digests,
            source.identity(),
            source.source_sha256(),
            source.file_name().to_owned(),
            files,
            spans,
            pieces,
        )
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
        // Within quotes are names, digests and records; those have a test of their own.
        if at < body || before.contains('"') && !before.ends_with(": ") {
            continue;
        }
        if text.as_bytes()[at - 1].is_ascii_digit() {
            continue;
        }
        let end = at + text[at..].find(|char: char| !char.is_ascii_digit()).unwrap();
        for number in ["0", "1", "4095", "18446744073709551615", "9223372036854775807"] {
            if text[at..end] == *number {
                continue;
            }
            fs::write(&path, with_digest(&format!("{}{number}{}", &text[..at], &text[end..]))).unwrap();
            Source::open(&small.store).expect_err(&format!("{} -> {number}", &text[line_start..end]));
        }
        numbers += 1;
    }
    // The source's, the header's, the dense file's; two of each tensor; two layers and five sizes; the experts file's.
    assert_eq!(numbers, 2 + 1 + 1 + 2 * 4 + 2 + 5 + 1, "each number of the manifest was tried");

    for (from, to, said) in [
        ("\"dense.bin\"", "\"../small/dense.bin\"", "dense.file"),
        ("\"experts.bin\"", "\"/etc/passwd\"", "experts.files"),
        ("\"folder\": null", "\"folder\": \"relative\"", "experts.files.folder"),
        ("\"folder\": null", "\"folder\": \"/a/../b\"", "experts.files.folder"),
        ("\"folder\": null", "\"folder\": \"/does/not/exist\"", "is missing"),
        ("\"0:1:", "\"0:2:", "experts.records"),
        ("\"0:1:", "\"1:1:", "experts.records"),
        ("\"store_id\": \"", "\"store_id\": \"00", "damaged"),
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
    for version in [0u64, 1, 3, u64::from(u32::MAX) + 2] {
        let newer =
            text.replacen("\"version\": 2", &format!("\"checksums\": [],\n  \"version\": {version}"), 1);
        let error = refused(&newer);
        assert!(matches!(error, StoreError::ManifestVersion { found, .. } if found == version), "{error}");
        assert!(error.to_string().contains("remove the store, and ingest the model again"), "{error}");
    }
    let error = refused(&text.replacen("flint-rt store", "another store", 1));
    assert!(matches!(error, StoreError::ManifestFormat { .. }), "{error}");
    for (from, to) in [
        ("\"version\": 2", "\"version\": 2, \"extra\": 0"),
        ("\"expert_count\"", "\"extra\": 0, \"expert_count\""),
        ("\"version\": 2", "\"version\": 2, \"version\": 2"),
        ("\"version\": 2", "\"version\": 2.0"),
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

/// A store as the first version wrote it: a person who has one is told what to do.
#[test]
fn a_store_of_the_first_version_is_refused_with_the_way_out() {
    let small = small();
    let first = r#"{
  "format": "flint-rt store",
  "version": 1,
  "source": { "file_name": "small.gguf", "size_bytes": 100000, "sha256": "00" },
  "header": { "file": "header.bin", "len_bytes": 1000, "sha256": "00" },
  "dense": { "file": "dense.bin", "len_bytes": 4096, "tensors": [] },
  "experts": { "file": "experts.bin", "len_bytes": 4096, "layers": [1], "expert_count": 1, "gate_bytes": 1,
    "up_bytes": 1, "down_bytes": 1, "stride_bytes": 4096 },
  "digest": "00"
}"#;
    fs::write(small.store.join(MANIFEST_NAME), first).unwrap();
    let refused = Source::open(&small.store).unwrap_err();
    assert!(matches!(refused, StoreError::ManifestVersion { found: 1, known: 2, .. }), "{refused}");
    assert!(refused.to_string().contains("remove the store, and ingest the model again"), "{refused}");
}

/// As far as it is the store's: a flipped bit of any tensor or record is another sum, and another leaf.
#[test]
fn a_flipped_bit_of_the_content_is_found_by_its_sums() {
    let small = small();
    let source = Source::open(&small.store).unwrap();
    let layout = source.record();
    let mut flips = 0u64;
    for key in source.expert_keys() {
        let record = record_of(&source, key);
        let wanted = source.record_checksum(key).unwrap();
        for number in 0..500u64 {
            let mut flipped = record.clone();
            let bit = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (8 * record.len() as u64);
            flipped[usize::try_from(bit / 8).unwrap()] ^= 1 << (bit % 8);
            assert_ne!(
                record_checksum(source.identity(), key, &layout, &flipped),
                wanted,
                "bit {bit} of {key}"
            );
            flips += 1;
        }
    }
    assert_eq!(flips, 3000, "flips injected, all found");
    for tensor in source.gguf().tensors.iter() {
        let Some(span) = source.tensor_span(&tensor.name) else { continue };
        let mut bytes = bytes_of(&source, span);
        let wanted = source.tensor_checksum(&tensor.name);
        assert_eq!(Some(tensor_checksum(source.identity(), &tensor.name, &bytes)), wanted);
        *bytes.last_mut().unwrap() ^= 1;
        assert_ne!(Some(tensor_checksum(source.identity(), &tensor.name, &bytes)), wanted);
    }
    for file in [0, 1].map(FileIndex) {
        let pieces = source.digested_pieces(file);
        let leaf = |span| Sha256Digest::of(&bytes_of(&source, span));
        let mut leaves: Vec<_> = pieces.iter().map(|&span| leaf(span)).collect();
        leaves.swap(0, 1);
        assert_ne!(Some(tree_digest(leaves)), source.file_digest(file), "two pieces swapped");
    }
}

/// A record is only right in its own place.
#[test]
fn swapped_records_and_those_of_another_store_have_other_sums() {
    let small = small();
    let source = Source::open(&small.store).unwrap();
    let layout = source.record();
    let keys: Vec<_> = source.expert_keys().collect();
    let records: Vec<_> = keys.iter().map(|&key| record_of(&source, key)).collect();
    for (at, &key) in keys.iter().enumerate() {
        for (from, record) in records.iter().enumerate() {
            let sum = record_checksum(source.identity(), key, &layout, record);
            assert_eq!(
                Some(sum) == source.record_checksum(key),
                at == from,
                "record {from} in place of {at}"
            );
        }
        let stale = record_checksum(Sha256Digest([1; 32]), key, &layout, &records[at]);
        assert_ne!(Some(stale), source.record_checksum(key), "a record of another store");
    }
}
