//! The rotation of queries and keys by position, as cosines and sines.

/// Cosines and sines for every position, pair by pair.
///
/// Source: Su et al. 2021, arXiv:2104.09864, with the pairs of GPT-NeoX. The angle of pair `i` is
/// f32(position * f32(base^(-2i / head_dim))): the power is taken in double and rounded once, the product is rounded once,
/// cosine and sine are taken in double of that rounded angle.
#[derive(Debug, Clone)]
pub struct Angles {
    frequencies: Vec<f32>,
}

impl Angles {
    /// For heads of `head_dim` values and the base `rope_base`.
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the definition")]
    pub fn new(head_dim: u32, rope_base: f32) -> Self {
        let half = head_dim / 2;
        let frequencies =
            (0..half).map(|i| f64::from(rope_base).powf(-f64::from(i) / f64::from(half)) as f32).collect();
        Self { frequencies }
    }

    /// Appends head_dim / 2 cosines, then head_dim / 2 sines, for `position`.
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the definition")]
    #[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
    pub fn append(&self, position: u32, out: &mut Vec<f32>) {
        let angle = |frequency: &f32| f64::from(position as f32 * frequency);
        out.extend(self.frequencies.iter().map(|frequency| angle(frequency).cos() as f32));
        out.extend(self.frequencies.iter().map(|frequency| angle(frequency).sin() as f32));
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the definition")]
mod tests {
    use super::*;

    #[test]
    fn position_zero_does_not_turn() {
        let mut out = Vec::new();
        Angles::new(128, 10_000.0).append(0, &mut out);
        assert_eq!(out[..64], [1.0; 64]);
        assert_eq!(out[64..], [0.0; 64]);
    }

    #[test]
    fn the_first_pair_turns_by_its_position() {
        let mut out = Vec::new();
        Angles::new(128, 10_000.0).append(3, &mut out);
        assert_eq!(out[0], 3.0_f64.cos() as f32);
        assert_eq!(out[64], 3.0_f64.sin() as f32);
        // Pair 32 of 64: 10000^-0.5 = 0.01.
        assert_eq!(out[32], f64::from(3.0_f32 * 0.01_f32).cos() as f32);
    }
}
