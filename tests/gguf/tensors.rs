//! The tensor table: places, shapes and types, and every way in which they can be wrong.

use flint_rt::gguf::{GgufError, TensorKind};

use crate::support::{assert_refused, parse_written};
use crate::tiny_gguf::{F32, GgufWriter, Q4_1, tiny_flint};

/// Two small tensors: `a` of 32 F32 values, `b` of two Q4_1 blocks.
fn two() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.add_tensor("a", F32, &[8, 4], vec![1; 128]);
    writer.add_tensor("b", Q4_1, &[32, 2], vec![2; 40]);
    writer
}

#[test]
fn places_are_absolute() {
    let gguf = parse_written(&two()).unwrap();
    let (a, b) = (gguf.tensors.get("a").unwrap(), gguf.tensors.get("b").unwrap());
    assert_eq!((a.kind, &a.dims[..], a.len_bytes), (TensorKind::F32, &[8, 4][..], 128));
    assert_eq!((b.kind, &b.dims[..], b.len_bytes), (TensorKind::Q4_1, &[32, 2][..], 40));
    assert_eq!((a.offset_bytes, b.offset_bytes), (gguf.data_start, gguf.data_start + 128));
    assert_eq!(gguf.file_len_bytes, b.end_bytes());
    assert_eq!(gguf.tensors.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(gguf.tensors.get("c").is_none(), "there is no c");
    let bytes = two().bytes();
    let start = usize::try_from(b.offset_bytes).unwrap();
    assert_eq!(bytes[start..], [2; 40], "the data is where the table says");
}

#[test]
fn types_have_the_sizes_of_ggml() {
    // Bytes of 256 values, by ggml's table of types.
    let sizes = [
        (0, 1024),
        (1, 512),
        (2, 144),
        (3, 160),
        (6, 176),
        (7, 192),
        (8, 272),
        (10, 84),
        (11, 110),
        (12, 144),
        (13, 176),
        (14, 210),
        (16, 66),
        (17, 74),
        (18, 98),
        (19, 50),
        (20, 144),
        (21, 110),
        (22, 82),
        (23, 136),
        (24, 256),
        (25, 512),
        (26, 1024),
        (27, 2048),
        (28, 2048),
        (29, 56),
        (30, 512),
        (34, 54),
        (35, 66),
        (39, 136),
    ];
    for (code, bytes) in sizes {
        let mut writer = GgufWriter::new();
        writer.add_tensor("t", code, &[256], vec![0; bytes]);
        let gguf = parse_written(&writer).unwrap();
        let tensor = gguf.tensors.get("t").unwrap();
        assert_eq!(tensor.len_bytes, bytes as u64, "type {code}");
        assert_eq!(tensor.kind.code(), code);
    }
    for code in [4, 5, 9, 15, 31, 36, 40, 1000, u32::MAX] {
        let mut writer = GgufWriter::new();
        writer.add_tensor("t", code, &[256], vec![0; 4096]);
        assert_refused(&writer.bytes(), &["tensor t", &format!("type {code} is unknown")]);
    }
}

#[test]
fn names_stand_once() {
    let mut writer = two();
    writer.add_tensor("a", F32, &[1], vec![0; 4]);
    assert_refused(&writer.bytes(), &["tensor a stands twice"]);
    let mut writer = two();
    writer.tensor("b").name = String::new();
    assert_refused(&writer.bytes(), &["tensor name", "UTF-8"]);
}

#[test]
fn dimensions_are_one_to_four_and_none_is_zero() {
    for dims in [vec![], vec![1; 5], vec![1; 1000]] {
        let mut writer = two();
        writer.tensor("b").dims = dims.clone();
        assert_refused(&writer.bytes(), &["tensor b", &format!("{} dimensions", dims.len()), "1 to 4"]);
    }
    for (dimension, dims) in [(0, [0, 4]), (1, [8, 0])] {
        let mut writer = two();
        writer.tensor("a").dims = dims.to_vec();
        let error = assert_refused(&writer.bytes(), &["tensor a", &format!("dimension {dimension}"), "is 0"]);
        assert!(matches!(error, GgufError::ZeroDimension { .. }), "{error:?}");
    }
    let mut writer = two();
    writer.tensor("b").dims = vec![33, 1];
    assert_refused(&writer.bytes(), &["tensor b", "dimension 0 of [33, 1]", "multiple of 32", "Q4_1"]);
}

#[test]
fn tensors_lie_aligned_and_apart() {
    for offset in [1, 31, 129] {
        let mut writer = two();
        writer.tensor("b").offset = Some(offset);
        assert_refused(&writer.bytes(), &["tensor b", &format!("offset {offset}"), "general.alignment, 32"]);
    }
    for offset in [0, 32, 96] {
        let mut writer = two();
        writer.tensor("b").offset = Some(offset);
        let error = assert_refused(&writer.bytes(), &["tensors a and b overlap"]);
        assert!(matches!(error, GgufError::Overlap { .. }), "{error:?}");
    }
    let mut writer = two();
    writer.tensor("a").offset = Some(128);
    writer.tensor("b").offset = Some(0);
    writer.tensors[1].data = vec![0; 160];
    parse_written(&writer).expect("the table may have another order than the data");
}

#[test]
fn tensors_lie_inside_the_file() {
    for offset in [160, 1 << 40, 1 << 63, u64::MAX - 31] {
        let mut writer = two();
        writer.tensor("b").offset = Some(offset);
        let error = assert_refused(&writer.bytes(), &["tensor b", &offset.to_string(), "beyond the file"]);
        assert!(matches!(error, GgufError::BeyondFile { .. }), "{error:?}");
    }
    let bytes = tiny_flint(1).bytes();
    assert_refused(
        &bytes[..bytes.len() - 1],
        &["tensor blk.3.ffn_down_shexp.weight", "download the file again"],
    );
}

#[test]
fn a_file_without_tensors_needs_no_padding() {
    let mut writer = GgufWriter::new();
    writer.set("key", "value");
    writer.alignment = 1;
    let gguf = parse_written(&writer).unwrap();
    assert!(gguf.tensors.is_empty(), "none was written");
    assert_eq!(gguf.data_start, gguf.file_len_bytes);
}
