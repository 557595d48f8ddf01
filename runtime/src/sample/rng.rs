//! Seeded random numbers, the same in every release.
//!
//! xoshiro256** 1.0 (Blackman and Vigna 2018, arXiv:1805.01407), its state filled by SplitMix64 (Steele, Lea and Flood
//! 2014) as its authors advise. Not for secrets.

use crate::base::split_mix::SplitMix;

/// A generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`; every seed is good, 0 included.
    pub fn new(seed: u64) -> Self {
        let mut filler = SplitMix(seed);
        Self { state: std::array::from_fn(|_| filler.next_u64()) }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let value = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        value
    }

    /// A number from 0 to just below 1, a multiple of 2^-53.
    pub fn next_unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers for the state 1, 2, 3, 4 and the seed 1234567, as published with other implementations.
    #[test]
    fn known_answers() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let expected = [
            11520,
            0,
            1509978240,
            1215971899390074240,
            1216172134540287360,
            607988272756665600,
            16172922978634559625,
            8476171486693032832,
            10595114339597558777,
            2904607092377533576,
        ];
        assert_eq!(expected.map(|_| rng.next_u64()), expected);
        let mut state = SplitMix(1234567);
        let expected = [
            6457827717110365317,
            3203168211198807973,
            9817491932198370423,
            4593380528125082431,
            16408922859458223821,
        ];
        assert_eq!(expected.map(|_| state.next_u64()), expected);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&rng.next_unit())), "outside the unit interval");
    }
}
