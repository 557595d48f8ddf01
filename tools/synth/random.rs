//! Random bits by their number: any of them can be had without those before it, so any thread may make any part of a
//! file, and the file is the same.
//!
//! In: a seed and a name, then counters. Out: bits. Pure; only whole-number and IEEE arithmetic, so equal on every machine.
//!
//! Source: SplitMix64 (Steele, Lea, Flood 2014), whose n-th output is a mix of its key and n.

/// The odd number by which SplitMix64 steps: 2^64 over the golden ratio.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Deviation of the sum of four uniform 16-bit numbers, `65536 * sqrt(4 / 12)`, and their mean.
const SUM_DEVIATION: f32 = 37_837.227;
const SUM_MEAN: f32 = 131_070.0;

/// The stream of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stream(u64);

impl Stream {
    /// The stream that `seed` has for `name`.
    pub(super) fn new(seed: u64, name: &str) -> Self {
        // FNV-1a: names differ in a few letters, and the mix behind spreads the difference.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self(mix(mix(seed.wrapping_add(STEP)) ^ hash))
    }

    /// The 64 bits with number `index`.
    #[inline]
    pub(super) fn bits(self, index: u64) -> u64 {
        mix(self.0.wrapping_add(index.wrapping_mul(STEP)))
    }

    /// The number with number `index`, of mean 0 and deviation 1, near enough normal: a sum of four uniform ones, so within 3.47.
    #[inline]
    pub(super) fn normal(self, index: u64) -> f32 {
        let bits = self.bits(index);
        let part = |shift: u32| (bits >> shift) & 0xffff;
        let sum = part(0) + part(16) + part(32) + part(48);
        // Exact: the sum has 18 bits.
        (sum as f32 - SUM_MEAN) / SUM_DEVIATION
    }
}

/// The finaliser of SplitMix64.
#[inline]
fn mix(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_seeds_have_streams_of_their_own() {
        let first = Stream::new(1, "a");
        assert_eq!(first, Stream::new(1, "a"), "the same again");
        assert_ne!(first, Stream::new(2, "a"), "another seed");
        assert_ne!(first, Stream::new(1, "b"), "another name");
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let stream = Stream::new(7, "x");
        let count = 100_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for value in (0..count).map(|index| f64::from(stream.normal(index))) {
            sum += value;
            squares += value * value;
        }
        let count = count as f64;
        assert!((sum / count).abs() < 0.02, "mean {}", sum / count);
        assert!((squares / count - 1.0).abs() < 0.02, "variance {}", squares / count);
    }
}
