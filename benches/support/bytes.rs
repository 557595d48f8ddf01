//! Bytes that no drive and no cache can guess, and the plainest things that can be done with them: the limits of the host.

use std::hint::black_box;

use flint_rt::base::split_mix::SplitMix;

#[allow(dead_code, reason = "not every bench makes bytes")]
/// Bytes from a seed (Steele, Lea and Flood's splitmix64); a whole number of words.
pub(crate) fn random(len_bytes: usize, seed: u64) -> Vec<u8> {
    let mut words = SplitMix(seed);
    (0..len_bytes / 8).flat_map(|_| words.next_u64().to_le_bytes()).collect()
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
