//! Files that lie about their sizes, are cut, or are honestly large: time and memory.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use flint_rt::gguf::{Array, Gguf, GgufError, Value};

use crate::support::{assert_mentions, assert_refused, parse};
use crate::tiny_gguf::{F32, GgufWriter, Item, tiny_flint};

/// Time within which a lie must be found out.
const REFUSED_WITHIN: Duration = Duration::from_millis(50);

/// Memory that a refusal may take, and that reading may take beyond twice the header.
const SLACK_BYTES: u64 = 16 << 20;

/// Refuses `bytes`, in time. The best of five counts, as the machine may be busy.
#[track_caller]
fn assert_refused_at_once(bytes: &[u8], parts: &[&str]) -> GgufError {
    let error = assert_refused(bytes, parts);
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            assert!(parse(bytes).is_err(), "refused once, so refused again");
            start.elapsed()
        })
        .min()
        .unwrap();
    assert!(best < REFUSED_WITHIN, "took {best:?}: {error}");
    error
}

/// Dimensions that wrap, or nearly do, in a two- and in a three-dimensional tensor.
#[test]
fn sizes_that_wrap_are_refused_by_tensor_and_dimension() {
    for (tensor, dims) in [("token_embd.weight", 2), ("blk.2.ffn_gate_exps.weight", 3)] {
        for dimension in 1..dims {
            for dim in [(1 << 42) + 1, 1 << 63, u64::MAX] {
                let mut writer = tiny_flint(1);
                writer.tensor(tensor).dims[dimension] = dim;
                let error = assert_refused_at_once(
                    &writer.bytes(),
                    &[tensor, &format!("dimension {dimension} of"), &dim.to_string(), "larger than the file"],
                );
                assert!(matches!(error, GgufError::TensorTooLarge { .. }), "{error:?}");
            }
            let mut writer = tiny_flint(1);
            writer.tensor(tensor).dims[dimension] = 0;
            assert_refused_at_once(&writer.bytes(), &[tensor, &format!("dimension {dimension} of"), "is 0"]);
        }
        // Two factors of 2^32 give 2^64, which is 0 in 64 bits.
        let mut writer = tiny_flint(1);
        writer.tensor(tensor).dims[0] = 1 << 32;
        writer.tensor(tensor).dims[1] = 1 << 32;
        assert_refused_at_once(&writer.bytes(), &[tensor, "dimension 0 of [4294967296, 4294967296"]);
        for offset in [u64::MAX - 31, (1 << 63) - 32, 1 << 63] {
            let mut writer = tiny_flint(1);
            writer.tensor(tensor).offset = Some(offset);
            assert_refused_at_once(&writer.bytes(), &[tensor, &offset.to_string(), "beyond the file"]);
        }
    }
}

/// A file of 43 bytes that announces an array of 2^63 elements.
fn announced_array(element_kind: u32, count: u64) -> Vec<u8> {
    let payload = [&element_kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let mut writer = GgufWriter::new();
    writer.alignment = 1;
    writer.add("key", Item::Raw(9, payload)).bytes()
}

#[test]
fn counts_are_compared_with_the_file_before_they_are_believed() {
    for kind in [0, 4, 7, 8, 12] {
        assert_refused_at_once(
            &announced_array(kind, 1 << 63),
            &["length of an array at byte 43", "9223372036854775808"],
        );
        assert_refused_at_once(&announced_array(kind, 1 << 24), &["an array at byte 51", "0 B left"]);
        assert_refused_at_once(&announced_array(kind, 1), &["an array at byte 51", "0 B left"]);
    }
    for count in [65_537, 1 << 63, u64::MAX] {
        let mut writer = tiny_flint(1);
        writer.key_count = Some(count);
        assert_refused_at_once(
            &writer.bytes(),
            &["metadata key count at byte 16", &count.to_string(), "65536"],
        );
        let mut writer = tiny_flint(1);
        writer.tensor_count = Some(count);
        assert_refused_at_once(&writer.bytes(), &["tensor count at byte 8", &count.to_string(), "65536"]);
    }
    // Within the limit, but more than the file has room for.
    let mut writer = GgufWriter::new();
    writer.key_count = Some(65_536);
    assert_refused_at_once(&writer.bytes(), &["metadata key count at byte 24", "needs 917504 B"]);
    writer.key_count = None;
    writer.tensor_count = Some(65_536);
    assert_refused_at_once(&writer.bytes(), &["tensor count at byte 16", "B left"]);
}

#[test]
fn string_lengths_are_compared_with_the_file() {
    let mut writer = GgufWriter::new();
    writer.alignment = 1;
    writer.add("key", Item::Raw(8, [&4u64.to_le_bytes()[..], b"abc"].concat()));
    assert_refused_at_once(
        &writer.bytes(),
        &["length of a string value at byte 47", "needs 4 B", "3 B left"],
    );
    for len in [(64 << 20) + 1, 1 << 63, u64::MAX] {
        let bytes = GgufWriter::new().add("key", Item::Raw(8, u64::to_le_bytes(len).to_vec())).bytes();
        assert_refused_at_once(
            &bytes,
            &["length of a string value at byte 39", &len.to_string(), "67108864"],
        );
        let mut bytes = GgufWriter::new().add("key", 1u32).bytes();
        bytes[24..32].copy_from_slice(&u64::to_le_bytes(len));
        assert_refused_at_once(&bytes, &["length of a metadata key at byte 24", "65536"]);
    }
}

#[test]
fn nested_arrays_are_refused_at_the_first_level() {
    let level = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    let bytes = GgufWriter::new().add("deep", Item::Raw(9, level.repeat(10_000))).bytes();
    assert_refused_at_once(&bytes, &["key deep", "array of arrays at byte 40"]);
}

/// Cut at, one before and one behind every field border of a whole file.
#[test]
fn cuts_at_every_border_are_found_from_the_header() {
    let (bytes, borders) = tiny_flint(1).bytes_and_borders();
    let whole = parse(&bytes).unwrap();
    assert_eq!(*borders.last().unwrap(), bytes.len());
    for &border in &borders {
        for cut in border.saturating_sub(1)..=border + 1 {
            if cut >= bytes.len() {
                continue;
            }
            let error = parse(&bytes[..cut]).expect_err("a cut file was read");
            match error {
                GgufError::Truncated { offset_bytes, left_bytes, .. } => {
                    assert!((cut as u64) < whole.data_start, "cut at {cut}: {error}");
                    assert_eq!(offset_bytes + left_bytes, cut as u64, "{error}");
                }
                GgufError::BeyondFile { .. } | GgufError::TensorTooLarge { .. } => {
                    assert!(cut as u64 >= whole.data_start, "cut at {cut}: {error}");
                }
                other => panic!("cut at {cut}: {other}"),
            }
        }
    }
    for tensor in whole.tensors.iter() {
        for cut in [tensor.offset_bytes - 1, tensor.offset_bytes, tensor.end_bytes() - 1] {
            assert!(parse(&bytes[..usize::try_from(cut).unwrap()]).is_err(), "cut at {cut} was read");
        }
    }
}

/// The limits are met by honest files, and these are read fast.
#[test]
fn arrays_of_sixteen_million_are_read_quickly() {
    const COUNT: u64 = 16 << 20;
    const WITHIN: Duration = Duration::from_secs(10);
    let head = |kind: u32| {
        let mut writer = GgufWriter::new();
        writer.alignment = 1;
        writer.add("big", Item::Raw(9, [&kind.to_le_bytes()[..], &COUNT.to_le_bytes()].concat())).bytes()
    };
    for (name, kind, element) in [
        ("f32", 6, &[0, 0, 0x80, 0x3F][..]),
        ("bool", 7, &[1]),
        ("string", 8, &[1, 0, 0, 0, 0, 0, 0, 0, b'x']),
    ] {
        let mut bytes = head(kind);
        bytes.extend(element.repeat(usize::try_from(COUNT).unwrap()));
        let start = Instant::now();
        let gguf = parse(&bytes).unwrap();
        let took = start.elapsed();
        println!("16 Mi {name}: {took:?}, {:.2} GB/s", bytes.len() as f64 / took.as_secs_f64() / 1e9);
        assert!(took < WITHIN, "16 Mi {name} took {took:?}");
        let Some(Value::Array(array)) = gguf.metadata.get("big") else { panic!("big is an array") };
        assert_eq!(array.len() as u64, COUNT);
        match array {
            Array::F32(elements) => assert!(elements.iter().all(|&element| element == 1.0), "all are 1"),
            Array::Bool(elements) => assert!(elements.iter().all(|&element| element), "all are true"),
            Array::String(strings) => assert!(strings.iter().all(|string| string == b"x"), "all are x"),
            other => panic!("no such array was written: {other:?}"),
        }
    }
    let mut bytes = head(0);
    let place = bytes.len() - 8;
    bytes[place..].copy_from_slice(&(COUNT + 1).to_le_bytes());
    bytes.extend(vec![0; usize::try_from(COUNT).unwrap() + 1]);
    assert_refused(&bytes, &["length of an array", "16777217", "16777216"]);
}

#[test]
fn many_keys_and_tensors_are_read_quickly() {
    let mut writer = GgufWriter::new();
    writer.keys = (0..65_536).map(|index| (format!("key.{index}"), Item::U8(0))).collect();
    for index in 0..65_536 {
        writer.add_tensor(&format!("tensor.{index}"), F32, &[1], vec![0; 4]);
    }
    let bytes = writer.bytes();
    let start = Instant::now();
    let gguf = parse(&bytes).unwrap();
    let took = start.elapsed();
    println!("65,536 keys and tensors: {took:?}");
    assert_eq!((gguf.metadata.len(), gguf.tensors.len()), (65_536, 65_536));
    assert!(took < Duration::from_secs(5), "took {took:?}");
}

/// What this test program takes at most while it reads a file, measured by another process of it.
struct Peak {
    bytes: u64,
    message: String,
}

fn peak_of(path: &Path) -> Peak {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "hostile::reads_in_a_process_of_its_own",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("FLINT_RT_TEST_GGUF", path)
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.split_once("peak ").map(|(_, rest)| rest)).expect(&text);
    let (bytes, message) = line.split_once(' ').expect("bytes, then the message");
    Peak { bytes: bytes.parse().unwrap(), message: message.to_owned() }
}

fn address_space_peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPeak:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
#[ignore = "the other half of the memory tests, which start it"]
fn reads_in_a_process_of_its_own() {
    let Some(path) = std::env::var_os("FLINT_RT_TEST_GGUF").map(PathBuf::from) else { return };
    // What the first printing and the first file take is not the reader's.
    println!("{:?}", Gguf::read(Path::new("/nowhere")).map(|_| ()));
    let before = address_space_peak();
    let message = match Gguf::read(&path) {
        Ok(_) => "read".to_owned(),
        Err(error) => error.to_string(),
    };
    println!("peak {} {message}", address_space_peak() - before);
}

#[test]
fn lies_take_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lie.gguf");
    let mut wide = tiny_flint(1);
    wide.tensor("token_embd.weight").dims[1] = (1 << 42) + 1;
    for (bytes, part) in [
        (announced_array(8, 1 << 24), "array"),
        (announced_array(12, 1 << 24), "array"),
        (wide.bytes(), "dimension 1"),
    ] {
        fs::write(&path, bytes).unwrap();
        let peak = peak_of(&path);
        assert_mentions(&peak.message, &[part]);
        assert!(peak.bytes <= SLACK_BYTES, "{} B for {}", peak.bytes, peak.message);
        // The same lie at the head of a large file, so that the length does not give it away.
        File::options().write(true).open(&path).unwrap().set_len(8 << 30).unwrap();
        let peak = peak_of(&path);
        assert!(peak.bytes <= 2 * (128 << 20) + SLACK_BYTES, "{} B for {}", peak.bytes, peak.message);
    }
}

#[test]
fn honest_headers_take_twice_their_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("honest.gguf");
    let mut tokens = GgufWriter::new();
    let token = [&4u64.to_le_bytes()[..], b"word"].concat();
    let count = 4u64 << 20;
    let payload = [&8u32.to_le_bytes()[..], &count.to_le_bytes(), &token.repeat(4 << 20)].concat();
    tokens.add("tokens", Item::Raw(9, payload));
    for (name, header) in [("tokens", tokens.bytes()), ("tiny", tiny_flint(1).bytes())] {
        let header_len = parse(&header).unwrap().data_start;
        let mut file = File::create(&path).unwrap();
        file.write_all(&header).unwrap();
        file.set_len(8 << 30).unwrap();
        let peak = peak_of(&path);
        assert_eq!(peak.message, "read", "{name}");
        let limit = 2 * header_len + SLACK_BYTES;
        assert!(peak.bytes <= limit, "{name}: {} B for a header of {header_len} B", peak.bytes);
        println!("{name}: {} B for a header of {header_len} B", peak.bytes);
    }
}
