//! Twin of `argmax`.

use super::{Control, at};
use crate::layout::{ArgmaxPush, NO_SLOT};

/// The lowest index of the largest value of each row, or [`NO_SLOT`] when a value of the row is not finite. source
/// `[row_count, column_count]`, result `[row_count]`.
pub fn argmax(control: &Control, push: &ArgmaxPush, row_count: u32, source: &[f32], result: &mut [u32]) {
    if control.is_stopped() {
        return;
    }
    let columns = at(push.column_count);
    for row in 0..at(row_count) {
        let values = &source[row * columns..][..columns];
        let mut best = (NO_SLOT, f32::MIN);
        for (index, &value) in (0..).zip(values) {
            if value > best.1 || best.0 == NO_SLOT {
                best = (index, value);
            }
        }
        result[row] = if values.iter().all(|value| value.is_finite()) { best.0 } else { NO_SLOT };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(source: &[f32]) -> u32 {
        let push = ArgmaxPush { column_count: u32::try_from(source.len()).unwrap(), ..ArgmaxPush::default() };
        let mut result = [7];
        argmax(&Control::default(), &push, 1, source, &mut result);
        result[0]
    }

    #[test]
    fn the_lowest_index_of_the_largest_wins() {
        assert_eq!(run(&[1.0, 5.0, -2.0, 5.0, 5.0]), 1);
        assert_eq!(run(&[f32::MIN; 3]), 0);
        assert_eq!(run(&[-0.0, 0.0]), 0);
    }

    #[test]
    fn a_value_that_is_not_finite_gives_no_token() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(run(&[1.0, broken, 2.0]), NO_SLOT);
        }
    }
}
