//! The bytes of one tensor, any part of them.
//!
//! In: what fills the tensor, and where in it a piece begins. Out: the piece. Pure: a byte depends on nothing but the fill
//! and its place, so pieces can be made in any order by any thread.

use super::random::Stream;

/// Bytes of a Q4_1 block: scale and minimum as f16, 32 nibbles.
const BLOCK_BYTES: usize = 20;
const FLOAT_BYTES: usize = 4;
/// Deviation of a nibble with all of 0 to 15 as likely: the root of (16² - 1) / 12.
const NIBBLE_DEVIATION: f32 = 4.609_772;

/// What fills a tensor.
#[derive(Debug)]
pub(super) enum Fill {
    /// Q4_1 blocks of random nibbles, with one of these scales and minima.
    Blocks {
        /// Two outputs a block.
        stream: Stream,
        /// The first four bytes of a block.
        heads: [[u8; 4]; 16],
    },
    /// Normal F32 numbers.
    Floats {
        /// One output a number.
        stream: Stream,
        mean: f32,
        deviation: f32,
        columns: u64,
        /// What stands in the first column instead.
        first: Option<FirstColumn>,
    },
}

/// The first column of a tensor.
#[derive(Debug)]
pub(super) enum FirstColumn {
    /// The same in every row.
    Same(f32),
    /// One number a row.
    Each(Vec<f32>),
}

impl FirstColumn {
    fn of(&self, row: u64) -> f32 {
        match self {
            Self::Same(value) => *value,
            Self::Each(values) => values[usize::try_from(row).expect("invariant: rows are in memory")],
        }
    }
}

impl Fill {
    /// Blocks whose values have mean 0 and deviation `deviation`.
    pub(super) fn q4_1(stream: Stream, deviation: f32) -> Self {
        let heads = std::array::from_fn(|index| {
            // From 0.8 to 1.2, mean 1.
            let scale = deviation / NIBBLE_DEVIATION * (0.8 + 0.4 * (index as f32 + 0.5) / 16.0);
            let scale = shortened(scale);
            let [scale_low, scale_high] = half_bits(scale).to_le_bytes();
            // Makes the mean of the nibbles, 7.5, zero.
            let [minimum_low, minimum_high] = half_bits(-7.5 * scale).to_le_bytes();
            [scale_low, scale_high, minimum_low, minimum_high]
        });
        Self::Blocks { stream, heads }
    }

    /// Writes the tensor's bytes from `offset_bytes` on into all of `target`.
    pub(super) fn write(&self, offset_bytes: u64, target: &mut [u8]) {
        match self {
            Self::Blocks { stream, heads } => {
                write_units::<BLOCK_BYTES>(offset_bytes, target, |first, blocks| {
                    for (index, block) in (first..).zip(blocks) {
                        let (low, high) = (stream.bits(2 * index), stream.bits(2 * index + 1));
                        // Of bits that the nibbles have already, but no nibble is known by it.
                        let head = heads[((low ^ high) >> 60) as usize];
                        block[..4].copy_from_slice(&head);
                        block[4..12].copy_from_slice(&low.to_le_bytes());
                        block[12..].copy_from_slice(&high.to_le_bytes());
                    }
                });
            }
            Self::Floats { stream, mean, deviation, columns, first: column } => {
                write_units::<FLOAT_BYTES>(offset_bytes, target, |first, numbers| {
                    for (index, number) in (first..).zip(&mut *numbers) {
                        *number = (mean + deviation * stream.normal(index)).to_le_bytes();
                    }
                    let Some(column) = column else { return };
                    let end = first + numbers.len() as u64;
                    for row in first.div_ceil(*columns)..end.div_ceil(*columns) {
                        let place =
                            usize::try_from(row * columns - first).expect("invariant: within the piece");
                        numbers[place] = column.of(row).to_le_bytes();
                    }
                });
            }
        }
    }
}

/// Cuts a piece into units of `N` bytes, of which the first and the last may be in it in part only. `make` is given the
/// number of the first unit and the units to write.
fn write_units<const N: usize>(offset_bytes: u64, target: &mut [u8], make: impl Fn(u64, &mut [[u8; N]])) {
    let len = N as u64;
    let skipped = usize::try_from(offset_bytes % len).expect("invariant: below a unit's length");
    let mut unit = offset_bytes / len;
    let mut rest = target;
    if skipped > 0 {
        let mut whole = [[0; N]];
        make(unit, &mut whole);
        let part = rest.len().min(N - skipped);
        rest[..part].copy_from_slice(&whole[0][skipped..skipped + part]);
        rest = &mut rest[part..];
        unit += 1;
    }
    let (units, tail) = rest.as_chunks_mut::<N>();
    make(unit, units);
    if !tail.is_empty() {
        let mut whole = [[0; N]];
        make(unit + units.len() as u64, &mut whole);
        tail.copy_from_slice(&whole[0][..tail.len()]);
    }
}

/// `value` cut to 7 binary digits, so that 7.5 times of it is a half-precision number, exactly.
fn shortened(value: f32) -> f32 {
    f32::from_bits(value.to_bits() & !((1 << 17) - 1))
}

/// The half-precision bits of `value`, which must be one of the normal numbers.
fn half_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let exponent = (bits >> 23) & 0xff;
    assert!((113..=142).contains(&exponent), "{value} is no normal half-precision number");
    assert!(bits & 0x1fff == 0, "{value} is no half-precision number");
    let half = ((bits >> 16) & 0x8000) | ((exponent - 112) << 10) | ((bits >> 13) & 0x3ff);
    u16::try_from(half).expect("invariant: sign, 5 and 10 bits")
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    fn fills() -> [Fill; 3] {
        let stream = Stream::new(3, "x");
        let floats = |first| Fill::Floats { stream, mean: 1.0, deviation: 0.5, columns: 7, first };
        [
            Fill::q4_1(stream, 0.02),
            floats(Some(FirstColumn::Same(9.0))),
            floats(Some(FirstColumn::Each((0..100).map(|row| row as f32).collect()))),
        ]
    }

    #[test]
    fn pieces_join_to_the_whole() {
        for fill in fills() {
            let mut whole = vec![0; 20 * 28];
            fill.write(0, &mut whole);
            for piece in [1, 3, 4, 19, 20, 21, 64, 333] {
                let mut joined = vec![0; whole.len()];
                let mut at = 0;
                for target in joined.chunks_mut(piece) {
                    fill.write(at, target);
                    at += target.len() as u64;
                }
                assert_eq!(joined, whole, "pieces of {piece} bytes of {fill:?}");
            }
        }
    }

    #[test]
    fn the_first_column_is_what_it_was_set_to() {
        for (fill, wanted) in fills()[1..].iter().zip([[9.0, 9.0, 9.0], [0.0, 1.0, 2.0]]) {
            let mut bytes = [0; 4 * 21];
            fill.write(0, &mut bytes);
            let numbers = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            assert_eq!(numbers.step_by(7).collect::<Vec<_>>(), wanted);
        }
    }

    #[test]
    fn blocks_have_mean_zero_and_the_deviation_asked_for() {
        for deviation in [1.0, 0.02, 0.0013] {
            let mut bytes = vec![0; 20 * 20_000];
            Fill::q4_1(Stream::new(1, "y"), deviation).write(0, &mut bytes);
            let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
            for block in bytes.as_chunks::<20>().0 {
                let half = |at| f16::from_le_bytes([block[at], block[at + 1]]).to_f64();
                let (scale, minimum) = (half(0), half(2));
                assert_eq!(minimum, -7.5 * scale, "exactly centred");
                for nibble in block[4..].iter().flat_map(|byte| [byte & 15, byte >> 4]) {
                    let value = f64::from(nibble) * scale + minimum;
                    sum += value;
                    squares += value * value;
                    count += 1.0;
                }
            }
            let deviation = f64::from(deviation);
            let found = (squares / count).sqrt();
            assert!((sum / count).abs() < 0.01 * deviation, "mean {}", sum / count);
            assert!((found / deviation - 1.0).abs() < 0.02, "deviation {found}, wanted {deviation}");
        }
    }
}
