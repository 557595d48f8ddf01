//! Magic, version, metadata: every type read back, every wrong one refused with its offset.

use std::fs;

use flint_rt::gguf::{Array, Gguf, GgufError, Parsed, Value};

use crate::support::{assert_mentions, assert_refused, is_incomplete, parse, parse_written, writer_of};
use crate::tiny_gguf::{GgufWriter, Item, tiny_flint};

/// One key of every type, and an array of every type, empty ones included.
fn all_types() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.set("u8", 0xFEu8).set("i8", -2i8).set("u16", 0xFFFEu16).set("i16", -2i16);
    writer.set("u32", 0xFFFF_FFFEu32).set("i32", -2i32).set("u64", u64::MAX - 1).set("i64", -2i64);
    writer.set("f32", -0.5f32).set("f64", 1e300f64).set("true", true).set("false", false);
    writer.set("string", "flint").set("string.empty", "").set("string.bom", "\u{FEFF}x");
    writer.set("string.bytes", Item::Str(vec![0xFF, 0, 0xFE]));
    writer.set("array.u8", vec![1u8, 2]).set("array.i8", vec![-1i8]).set("array.u16", vec![1u16]);
    writer.set("array.i16", vec![-1i16]).set("array.u32", vec![1u32, 2, 3]).set("array.i32", vec![-1i32, 5]);
    writer.set("array.u64", vec![u64::MAX]).set("array.i64", vec![i64::MIN]).set("array.f32", vec![0.5f32]);
    writer.set("array.f64", vec![0.25f64, -1.0]).set("array.bool", vec![true, false, true]);
    writer.set("array.string", vec!["", "\u{FEFF}", "a", "\u{FEFF}a"]);
    for kind in [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12] {
        writer.set(&format!("array.empty.{kind}"), Item::Array(kind, Vec::new()));
    }
    writer
}

#[test]
fn every_type_is_read_as_it_was_written() {
    let writer = all_types();
    let gguf = parse_written(&writer).unwrap();
    assert_eq!(gguf.metadata.len(), writer.keys.len());
    assert_eq!(writer_of(&gguf).keys, writer.keys, "keys, their order and their values");
    assert_eq!(gguf.metadata.get("i64"), Some(&Value::I64(-2)));
    assert_eq!(gguf.metadata.get("array.bool"), Some(&Value::Array(Array::Bool(vec![true, false, true]))));
    assert_eq!(gguf.metadata.get("array"), None, "a key is found by its whole name");
    assert_eq!(gguf.header_bytes(), writer.bytes(), "the header is kept verbatim");
}

#[test]
fn strings_keep_their_bytes() {
    let gguf = parse_written(&all_types()).unwrap();
    assert_eq!(gguf.metadata.str("string.bom").unwrap(), "\u{FEFF}x");
    let strings: Vec<&[u8]> = gguf.metadata.string_array("array.string").unwrap().iter().collect();
    assert_eq!(strings, [&b""[..], "\u{FEFF}".as_bytes(), b"a", "\u{FEFF}a".as_bytes()]);
    let error = gguf.metadata.str("string.bytes").unwrap_err().to_string();
    assert_mentions(&error, &["string.bytes", "\\xff\\x00\\xfe", "UTF-8"]);
}

#[test]
fn accessors_name_key_found_and_wanted() {
    let gguf = parse_written(&all_types()).unwrap();
    let keys = &gguf.metadata;
    assert_eq!(keys.u32("u8").unwrap(), 0xFE, "integers of any width do");
    assert_eq!(keys.i32_array("array.u8").unwrap(), [1, 2]);
    assert_eq!(keys.u32_opt("nowhere").unwrap(), None);
    assert!(matches!(keys.u32("nowhere"), Err(GgufError::MissingKey { .. })));
    assert_mentions(&keys.u32("nowhere").unwrap_err().to_string(), &["nowhere", "missing", "integer"]);
    assert_mentions(&keys.u32("i32").unwrap_err().to_string(), &["key i32 is i32 -2", "0 to 4294967295"]);
    assert_mentions(&keys.u32("u64").unwrap_err().to_string(), &["18446744073709551614"]);
    assert_mentions(&keys.f32("f64").unwrap_err().to_string(), &["f64", "wanted an f32"]);
    assert_mentions(&keys.bool("u8").unwrap_err().to_string(), &["u8 254", "a bool"]);
    assert_mentions(&keys.bool_array("array.u32").unwrap_err().to_string(), &["array of 3 u32", "bool"]);
    assert_mentions(&keys.string_array("string").unwrap_err().to_string(), &["string \"flint\"", "strings"]);
    assert_mentions(&keys.str("array.f32").unwrap_err().to_string(), &["array of 1 f32", "a string"]);
}

#[test]
fn versions_two_and_three_are_read() {
    let mut writer = tiny_flint(1);
    for version in [2, 3] {
        writer.version = version;
        assert_eq!(parse_written(&writer).unwrap().version, version);
    }
    for version in [0, 1, 4, u32::MAX] {
        writer.version = version;
        let error = assert_refused(&writer.bytes(), &[&format!("version {version},"), "wanted 2 or 3"]);
        assert!(matches!(error, GgufError::Version { .. }), "{error:?}");
    }
    for version in [1u32, 2, 3] {
        writer.version = version.swap_bytes();
        let error = assert_refused(&writer.bytes(), &["big-endian", &format!("version {version}")]);
        assert!(matches!(error, GgufError::BigEndian { .. }), "{error:?}");
    }
}

#[test]
fn what_is_no_gguf_is_named() {
    assert_refused(b"", &["truncated", "at byte 0", "0 B left"]);
    assert_refused(b"GG", &["truncated"]);
    assert_refused(b"GGUF", &["truncated", "the version at byte 4"]);
    assert_refused(b"x", &["not a GGUF", "\"x\""]);
    assert_refused(b"version https://git-lfs.github.com/spec/v1\n", &["not a GGUF", "git lfs pull"]);
    assert_refused(b"<!DOCTYPE html>", &["web page"]);
    assert_refused(b"PK\x03\x04....", &["PyTorch"]);
    assert_refused(b"tjgg\x03\0\0\0", &["older than GGUF"]);
    assert_refused(&[0; 64], &["not a GGUF", "\\0\\0\\0\\0"]);
}

#[test]
fn alignments_are_powers_of_two_of_the_right_type() {
    for alignment in [1u32, 2, 64, 4096, 1 << 20] {
        let mut writer = tiny_flint(1);
        writer.alignment = alignment.into();
        writer.set("general.alignment", alignment);
        let gguf = parse_written(&writer).unwrap();
        assert_eq!(gguf.alignment, alignment);
        assert!(gguf.data_start.is_multiple_of(alignment.into()), "{}", gguf.data_start);
    }
    let wrong: [Item; 8] = [
        0u32.into(),
        3u32.into(),
        (1u32 << 21).into(),
        (1u32 << 31).into(),
        32u64.into(),
        32i32.into(),
        "32".into(),
        vec![32u32].into(),
    ];
    for item in wrong {
        let bytes = tiny_flint(1).set("general.alignment", item).bytes();
        assert_refused(&bytes, &["general.alignment", "power of two from 1 to 1048576"]);
    }
}

#[test]
fn wrong_keys_are_refused() {
    let bytes = GgufWriter::new().add("twice", 1u32).add("once", 1u32).add("twice", 1u32).bytes();
    assert_refused(&bytes, &["key twice stands twice"]);
    assert_refused(&GgufWriter::new().add("", 1u32).bytes(), &["metadata key", "at byte 24", "UTF-8"]);
    let mut bytes = GgufWriter::new().add("key", 1u32).bytes();
    bytes[33] = 0xFF;
    assert_refused(&bytes, &["metadata key", "at byte 24", "k\\xffy"]);
    assert_refused(
        &GgufWriter::new().add("key", Item::Raw(7, vec![2])).bytes(),
        &["key key", "boolean 2", "byte 39"],
    );
    assert_refused(
        &GgufWriter::new().add("key", Item::Array(7, vec![0u8.into(), 9u8.into()])).bytes(),
        &["key key", "boolean 9", "byte 52"],
    );
    for kind in [13, 0x100, u32::MAX] {
        let bytes = GgufWriter::new().add("key", Item::Raw(kind, vec![0; 16])).bytes();
        assert_refused(&bytes, &["key key", &format!("value type {kind} at byte 35")]);
        let bytes = GgufWriter::new().add("key", Item::Array(kind, vec![0u8.into()])).bytes();
        assert_refused(&bytes, &["key key", &format!("value type {kind} at byte 39")]);
    }
    let nested = Item::Array(9, vec![vec![1u32].into()]);
    assert_refused(&GgufWriter::new().add("key", nested).bytes(), &["key key", "array of arrays at byte 39"]);
}

#[test]
fn a_header_may_come_in_pieces() {
    let bytes = tiny_flint(1).bytes();
    let len = bytes.len() as u64;
    let whole = parse(&bytes).unwrap();
    let data_start = usize::try_from(whole.data_start).unwrap();
    for cut in (0..data_start).step_by(37).chain([data_start - 1]) {
        let parsed = Gguf::parse(&bytes[..cut], len);
        assert!(is_incomplete(&parsed), "cut at {cut}: {parsed:?}");
        let Ok(Parsed::Incomplete { need_bytes }) = parsed else { unreachable!("checked above") };
        assert!(
            (cut as u64 + 1..=whole.data_start).contains(&need_bytes),
            "cut at {cut} asks for {need_bytes}"
        );
    }
    for cut in [data_start, data_start + 1, bytes.len()] {
        let parsed = Gguf::parse(&bytes[..cut], len).unwrap().complete(cut as u64).unwrap();
        assert_eq!(parsed, whole, "cut at {cut}");
    }
    let error = Gguf::parse(&bytes[..100], len).unwrap().complete(100).unwrap_err();
    assert_mentions(&error.to_string(), &["not complete", "100 B"]);
    let again = Gguf::parse(whole.header_bytes(), len).unwrap().complete(whole.data_start).unwrap();
    assert_eq!(again, whole, "the kept header is as good as the file");
}

#[test]
fn files_are_read_and_named_in_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let bytes = tiny_flint(1).bytes();
    fs::write(&path, &bytes).unwrap();
    assert_eq!(Gguf::read(&path).unwrap(), parse(&bytes).unwrap());

    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = Gguf::read(&path).unwrap_err();
    assert_mentions(&error.to_string(), &[path.to_str().unwrap(), "ffn_down_shexp", "beyond the file"]);
    assert!(matches!(error.cause(), GgufError::BeyondFile { .. }), "{error:?}");

    let error = Gguf::read(folder.path()).unwrap_err();
    assert!(matches!(error, GgufError::NotAFile { .. }), "{error:?}");
    let error = Gguf::read(&folder.path().join("nowhere")).unwrap_err();
    assert_mentions(&error.to_string(), &["nowhere", "cannot be opened"]);
}
