//! SplitMix64 (Steele, Lea and Flood 2014): numbers that look random, from a seed, the same in every release. Not for secrets.
//!
//! Owns: one number. In: a seed, any. Out: 64 bits at a time. Invariant: pure.

/// The generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The first number of the generator of `value`: equal values give equal numbers, near ones give far ones.
pub fn mix(value: u64) -> u64 {
    SplitMix(value).next_u64()
}
