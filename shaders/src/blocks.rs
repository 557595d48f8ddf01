//! The block formats of GGUF weights that the kernels read: Q4_1.
//!
//! In: 32-bit words as they lie in the file (little-endian), or values to quantise. Out: values, or words.
//!
//! A block is 32 values of one row in 20 bytes: word 0 holds two f16, the scale `d` in the low half and the minimum `m`
//! in the high half; byte `j` of the other 16 holds value `j` in its low nibble and value `16 + j` in its high nibble.
//! `value = d * q + m`. (ggml, `block_q4_1`.)

use half::f16;

use crate::layout::{Q4_1_BLOCK_VALUES, Q4_1_BLOCK_WORDS};

/// Values of a block.
pub const BLOCK_VALUES: usize = Q4_1_BLOCK_VALUES as usize;

/// 32-bit words of a block.
pub const BLOCK_WORDS: usize = Q4_1_BLOCK_WORDS as usize;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = BLOCK_WORDS * 4;

const _: () = assert!(BLOCK_BYTES == 2 * size_of::<f16>() + BLOCK_VALUES / 2, "a Q4_1 block is 20 bytes");

/// One decoded block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Q4_1 {
    /// Scale.
    pub scale: f16,
    /// Minimum: the value of nibble 0.
    pub minimum: f16,
    /// The nibbles, 0 to 15, in order of value.
    pub nibbles: [u8; BLOCK_VALUES],
}

impl Q4_1 {
    /// Takes a block apart.
    ///
    /// # Panics
    /// When `words` are not [`BLOCK_WORDS`].
    pub fn from_words(words: &[u32]) -> Self {
        assert_eq!(words.len(), BLOCK_WORDS, "a Q4_1 block has {BLOCK_WORDS} words");
        let [scale_low, scale_high, minimum_low, minimum_high] = words[0].to_le_bytes();
        let mut nibbles = [0; BLOCK_VALUES];
        for (at, byte) in words[1..].iter().flat_map(|word| word.to_le_bytes()).enumerate() {
            nibbles[at] = byte & 15;
            nibbles[at + BLOCK_VALUES / 2] = byte >> 4;
        }
        Self {
            scale: f16::from_le_bytes([scale_low, scale_high]),
            minimum: f16::from_le_bytes([minimum_low, minimum_high]),
            nibbles,
        }
    }

    /// Puts a block together.
    pub fn to_words(&self) -> [u32; BLOCK_WORDS] {
        let mut words = [0; BLOCK_WORDS];
        words[0] = u32::from(self.scale.to_bits()) | u32::from(self.minimum.to_bits()) << 16;
        let (low, high) = self.nibbles.split_at(BLOCK_VALUES / 2);
        for (word, (low, high)) in
            words[1..].iter_mut().zip(low.as_chunks::<4>().0.iter().zip(high.as_chunks::<4>().0))
        {
            *word = u32::from_le_bytes(std::array::from_fn(|byte| (low[byte] & 15) | (high[byte] & 15) << 4));
        }
        words
    }

    /// Value `index` of the block, exact.
    pub fn value(&self, index: usize) -> f64 {
        self.scale.to_f64() * f64::from(self.nibbles[index]) + self.minimum.to_f64()
    }
}

/// Words of a matrix `[row_count, column_count]`.
///
/// # Panics
/// When `column_count` is no multiple of [`BLOCK_VALUES`].
pub fn matrix_words(row_count: usize, column_count: usize) -> usize {
    assert!(column_count.is_multiple_of(BLOCK_VALUES), "{column_count} columns are no whole Q4_1 blocks");
    row_count * (column_count / BLOCK_VALUES) * BLOCK_WORDS
}

/// Quantises values to blocks with the rounding of ggml: `d = (max - min) / 15`, `m = min`, `q` the nearest.
///
/// # Panics
/// When the length is no multiple of [`BLOCK_VALUES`].
#[expect(clippy::cast_possible_truncation, reason = "clamped to a nibble one line above the cast")]
#[expect(clippy::cast_sign_loss, reason = "no value is below the minimum of its block")]
pub fn quantise(values: &[f32]) -> Vec<u32> {
    let (blocks, rest) = values.as_chunks::<BLOCK_VALUES>();
    assert!(rest.is_empty(), "{} values are no whole Q4_1 blocks", values.len());
    let mut words = Vec::with_capacity(blocks.len() * BLOCK_WORDS);
    for block in blocks {
        let minimum = block.iter().copied().fold(f32::MAX, f32::min);
        let maximum = block.iter().copied().fold(f32::MIN, f32::max);
        let scale = (maximum - minimum) / 15.0;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let nibbles = block.map(|value| {
            let nearest = ((value - minimum) * inverse + 0.5).clamp(0.0, 15.0);
            nearest as u8
        });
        let block = Q4_1 { scale: f16::from_f32(scale), minimum: f16::from_f32(minimum), nibbles };
        words.extend(block.to_words());
    }
    words
}

/// The values of blocks.
///
/// # Panics
/// When the length is no multiple of [`BLOCK_WORDS`].
#[expect(clippy::cast_possible_truncation, reason = "an f32 is what ggml gives, too")]
pub fn dequantise(words: &[u32]) -> Vec<f32> {
    let (blocks, rest) = words.as_chunks::<BLOCK_WORDS>();
    assert!(rest.is_empty(), "{} words are no whole Q4_1 blocks", words.len());
    blocks
        .iter()
        .map(|block| Q4_1::from_words(block))
        .flat_map(|block| (0..BLOCK_VALUES).map(move |index| block.value(index) as f32))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_lie_where_ggml_puts_them() {
        // d = 1, m = 0, value i = i % 16 gives byte j = j | j << 4.
        let values: Vec<f32> = (0u8..32).map(|i| f32::from(i % 16)).collect();
        let words = quantise(&values);
        assert_eq!(words, [0x0000_3C00, 0x3322_1100, 0x7766_5544, 0xBBAA_9988, 0xFFEE_DDCC]);
        assert_eq!(dequantise(&words), values);
    }

    #[test]
    fn rounding_is_to_the_nearest_and_halves_go_up() {
        let mut values = [0.0; 32];
        values[0] = -1.0;
        values[1] = 14.0; // d = 1, m = -1
        values[2] = 0.5;
        values[3] = 0.49;
        values[20] = 13.6;
        let back = dequantise(&quantise(&values));
        assert_eq!(&back[..4], [-1.0, 14.0, 1.0, 0.0]);
        assert_eq!(back[20], 14.0);
    }

    #[test]
    fn a_flat_block_keeps_its_value() {
        assert_eq!(dequantise(&quantise(&[0.25; 32])), [0.25; 32]);
    }

    #[test]
    fn words_survive_a_round_trip() {
        let words: Vec<u32> = (0u32..5).map(|i| 0x1234_5678u32.wrapping_mul(i * 2 + 1)).collect();
        assert_eq!(Q4_1::from_words(&words).to_words().as_slice(), words);
        assert_eq!((matrix_words(3, 64), BLOCK_BYTES), (30, 20));
    }
}
