//! Whatever the bytes: no panic, and what is accepted keeps the reader's promises.

use std::sync::LazyLock;

use flint_rt::gguf::{Gguf, Parsed};
use flint_rt::model::hparams::FlintConfig;
use proptest::prelude::*;

use crate::support::{parse, writer_of};
use crate::tiny_gguf::{GgufWriter, tiny_flint};

/// A valid file's header, the offsets of its fields, and the file's length.
static TINY: LazyLock<(Vec<u8>, Vec<usize>, u64)> = LazyLock::new(|| {
    let writer = tiny_flint(7);
    let (bytes, borders) = writer.bytes_and_borders();
    let gguf = parse(&bytes).unwrap();
    (gguf.header_bytes().to_vec(), borders, bytes.len() as u64)
});

/// Checks everything that a [`Gguf`] promises, and that the model's numbers can be asked for.
fn check(header: &[u8], file_len_bytes: u64) {
    let Ok(Parsed::Complete(gguf)) = Gguf::parse(header, file_len_bytes) else { return };
    let mut spans = Vec::new();
    for tensor in gguf.tensors.iter() {
        assert!(tensor.len_bytes > 0, "{tensor:?}");
        assert!(tensor.offset_bytes >= gguf.data_start && tensor.end_bytes() <= file_len_bytes, "{tensor:?}");
        assert!((tensor.offset_bytes - gguf.data_start).is_multiple_of(gguf.alignment.into()), "{tensor:?}");
        assert_eq!(gguf.tensors.get(&tensor.name), Some(tensor), "a tensor is found by its name");
        spans.push((tensor.offset_bytes, tensor.end_bytes()));
    }
    spans.sort_unstable();
    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors overlap");
    for (key, value) in gguf.metadata.iter() {
        // Not compared with assert_eq: numbers that are not numbers do not equal themselves.
        assert!(std::ptr::eq(gguf.metadata.get(key).unwrap(), value), "{key} is found by its name");
    }
    assert_eq!(gguf.header_bytes(), &header[..gguf.header_bytes().len()], "the header is kept verbatim");
    // Written again it is the same, up to the padding, which may hold anything.
    let (written, borders) = writer_of(&gguf).bytes_and_borders();
    let fields_end = borders.iter().copied().filter(|&border| border < written.len()).max().unwrap_or(0);
    assert_eq!(written[..fields_end], gguf.header_bytes()[..fields_end], "parse and write are inverse");
    match FlintConfig::from_gguf(&gguf) {
        Ok(config) => assert_eq!(config.layers.len(), config.layer_count as usize, "one entry a layer"),
        Err(error) => assert!(!error.to_string().is_empty(), "an error says something"),
    }
}

/// A value for a 32- or 64-bit field that is likely to be at some edge.
fn edge() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..70,
        any::<u64>(),
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u32..64).prop_map(|bit| (1u64 << bit).wrapping_sub(1)),
        (0u64..64).prop_map(|below| u64::MAX - below),
        Just(65_536u64),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        check(&bytes, bytes.len() as u64);
        check(&bytes, u64::MAX);
    }

    #[test]
    fn arbitrary_bytes_behind_a_right_start(
        tensors in 0u64..4,
        keys in 0u64..4,
        small in proptest::collection::vec(0u8..13, 0..256),
        file_len in edge(),
    ) {
        let mut writer = GgufWriter::new();
        writer.tensor_count = Some(tensors);
        writer.key_count = Some(keys);
        writer.alignment = 1;
        let mut bytes = writer.bytes();
        bytes.extend(small);
        check(&bytes, bytes.len() as u64);
        check(&bytes, file_len.max(bytes.len() as u64));
    }

    #[test]
    fn fields_with_other_numbers(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), edge(), any::<bool>()), 1..4),
    ) {
        let (header, borders, file_len) = &*TINY;
        let mut header = header.clone();
        for (place, value, is_wide) in changes {
            let at = borders[place.index(borders.len())];
            let width = if is_wide { 8 } else { 4 };
            let Some(field) = header.get_mut(at..at + width) else { continue };
            field.copy_from_slice(&value.to_le_bytes()[..width]);
        }
        check(&header, *file_len);
    }

    #[test]
    fn bytes_flipped_taken_out_and_doubled(
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<proptest::sample::Index>(),
        cut_len in 0usize..16,
        is_doubled in any::<bool>(),
    ) {
        let (header, _, file_len) = &*TINY;
        let mut header = header.clone();
        for (place, byte) in flips {
            let at = place.index(header.len());
            header[at] ^= byte;
        }
        let at = cut.index(header.len() - cut_len);
        let piece: Vec<u8> = header[at..at + cut_len].to_vec();
        let replacement = if is_doubled { piece.repeat(2) } else { Vec::new() };
        header.splice(at..at + cut_len, replacement);
        check(&header, *file_len);
    }
}
