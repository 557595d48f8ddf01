//! Twin of `argmax`, a function for each of its two passes.

use super::{Control, at};
use crate::layout::{ArgmaxPush, NO_SLOT};

/// The value that a part without values reports, below or equal to every finite one.
const LOWEST: f32 = f32::MIN;

/// The bits that a part with a value that is not finite reports.
const BROKEN: u32 = 0x7FC0_0000;

/// Lowest index of the largest of `values`, given as (index, bits); the bits are [`BROKEN`] if one is not finite.
fn best(values: impl Iterator<Item = (u32, u32)>) -> (u32, u32) {
    let (mut index, mut largest, mut is_broken) = (NO_SLOT, LOWEST, false);
    for (at, bits) in values {
        let value = f32::from_bits(bits);
        is_broken |= !value.is_finite();
        if value > largest || value == largest && at < index {
            (index, largest) = (at, value);
        }
    }
    (index, if is_broken { BROKEN } else { largest.to_bits() })
}

/// First pass (FINAL = 0): for each part of each of `row_count` rows, index and bits of its largest value. source
/// `[row_count, column_count]`, partial `[row_count, parts, 2]`.
pub fn argmax_parts(
    control: &Control,
    push: &ArgmaxPush,
    row_count: u32,
    source: &[f32],
    partial: &mut [u32],
) {
    if control.is_stopped() {
        return;
    }
    let per_part = push.column_count.div_ceil(push.parts);
    for row in 0..row_count {
        for part in 0..push.parts {
            let first = (part * per_part).min(push.column_count);
            let end = (first + per_part).min(push.column_count);
            let bits = |index: u32| source[at(row * push.column_count + index)].to_bits();
            let (index, bits) = best((first..end).map(|index| (index, bits(index))));
            partial[at((row * push.parts + part) * 2)..][..2].copy_from_slice(&[index, bits]);
        }
    }
}

/// Second pass (FINAL = 1): the lowest index of the largest value of each row, or [`NO_SLOT`] when a value of the row is
/// not finite. partial as [`argmax_parts`] leaves it, result `[row_count]`.
pub fn argmax_final(
    control: &Control,
    push: &ArgmaxPush,
    row_count: u32,
    partial: &[u32],
    result: &mut [u32],
) {
    if control.is_stopped() {
        return;
    }
    for row in 0..row_count {
        let parts = &partial[at(row * push.parts * 2)..][..at(push.parts * 2)];
        let (index, bits) = best(parts.as_chunks::<2>().0.iter().map(|&[index, bits]| (index, bits)));
        result[at(row)] = if bits == BROKEN { NO_SLOT } else { index };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(source: &[f32], parts: u32) -> u32 {
        let push = ArgmaxPush { column_count: u32::try_from(source.len()).unwrap(), parts };
        let mut partial = vec![0; at(parts) * 2];
        let mut result = [0];
        argmax_parts(&Control::default(), &push, 1, source, &mut partial);
        argmax_final(&Control::default(), &push, 1, &partial, &mut result);
        result[0]
    }

    #[test]
    fn the_lowest_index_of_the_largest_wins_whatever_the_parts() {
        for parts in 1..8 {
            assert_eq!(run(&[1.0, 5.0, -2.0, 5.0, 5.0], parts), 1, "{parts} parts");
            assert_eq!(run(&[f32::MIN; 3], parts), 0, "{parts} parts");
            assert_eq!(run(&[-0.0, 0.0], parts), 0, "{parts} parts");
        }
    }

    #[test]
    fn a_value_that_is_not_finite_gives_no_token() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(run(&[1.0, broken, 2.0], 2), NO_SLOT);
        }
    }
}
