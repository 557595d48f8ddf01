//! Bytes that no drive and no cache can guess, and the plainest things that can be done with them: the limits of the host.

use std::hint::black_box;

#[allow(dead_code, reason = "not every bench makes bytes")]
/// Bytes from a seed (Steele, Lea and Flood's splitmix64); a whole number of words.
pub(crate) fn random(len_bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut word = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..len_bytes / 8).flat_map(|_| word().to_le_bytes()).collect()
}

/// Reads all of it once, a word at a time: what the memory gives one thread.
#[allow(dead_code, reason = "not every bench reads")]
pub(crate) fn read(bytes: &[u8]) {
    let (words, _) = bytes.as_chunks::<8>();
    black_box(words.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word))));
}

/// Copies all of it into memory of the same length.
#[allow(dead_code, reason = "not every bench copies")]
pub(crate) fn copy(source: &[u8], target: &mut [u8]) {
    target.copy_from_slice(black_box(source));
    black_box(target);
}
