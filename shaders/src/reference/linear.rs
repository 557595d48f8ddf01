//! Twins of the matrix products over Q4_1 weights: `matmul` and `gate_up`.

use super::{Control, at, rounded, silu};
use crate::blocks::{BLOCK_VALUES, BLOCK_WORDS, Q4_1};
use crate::layout::{GateUpPush, MatmulPush};

/// `W[row, :] . x` for a Q4_1 matrix with as many columns as `x` has values.
pub(super) fn q4_1_row_dot(words: &[u32], row: usize, x: &[f32]) -> f64 {
    let blocks = x.len() / BLOCK_VALUES;
    let words = &words[row * blocks * BLOCK_WORDS..][..blocks * BLOCK_WORDS];
    let mut sum = 0.0;
    for (block, x) in words.as_chunks::<BLOCK_WORDS>().0.iter().zip(x.as_chunks::<BLOCK_VALUES>().0) {
        let block = Q4_1::from_words(block);
        sum += (0..BLOCK_VALUES).map(|index| block.value(index) * f64::from(x[index])).sum::<f64>();
    }
    sum
}

/// `y[y_row + t, y_column + r] (+)= W[r, :] . x[x_row + t, :]`: x `[*, column_count]`, words Q4_1
/// `[row_count, column_count]`, y `[*, y_stride]`; `is_added` is the constant ADD.
pub fn matmul(control: &Control, push: &MatmulPush, is_added: bool, x: &[f32], words: &[u32], y: &mut [f32]) {
    if control.is_stopped() {
        return;
    }
    let tokens = if push.token_count_max == 0 { control.token_count } else { push.token_count_max };
    let columns = at(push.column_count);
    for token in 0..at(tokens) {
        let x = &x[(at(push.x_row) + token) * columns..][..columns];
        let target = (at(push.y_row) + token) * at(push.y_stride) + at(push.y_column);
        for row in 0..at(push.row_count) {
            let sum = q4_1_row_dot(words, row, x);
            let value = &mut y[target + row];
            *value = if is_added { rounded(f64::from(*value) + sum) } else { rounded(sum) };
        }
    }
}

/// `h[t, r] = silu(gate[r, :] . x[t, :]) * (up[r, :] . x[t, :])`: x `[token_count, column_count]`, gate and up Q4_1
/// `[row_count, column_count]`, h `[token_count, row_count]`.
pub fn gate_up(control: &Control, push: &GateUpPush, x: &[f32], gate: &[u32], up: &[u32], h: &mut [f32]) {
    if control.is_stopped() {
        return;
    }
    let (rows, columns) = (at(push.row_count), at(push.column_count));
    for token in 0..at(control.token_count) {
        let x = &x[token * columns..][..columns];
        for row in 0..rows {
            h[token * rows + row] = rounded(silu(q4_1_row_dot(gate, row, x)) * q4_1_row_dot(up, row, x));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::quantise;

    /// Two rows of 32: the first counts 0 to 15 twice, the second is all 0.5.
    fn matrix() -> Vec<u32> {
        let mut values: Vec<f32> = (0u8..32).map(|i| f32::from(i % 16)).collect();
        values.extend([0.5; 32]);
        quantise(&values)
    }

    #[test]
    fn a_row_times_ones_is_its_sum() {
        let push = MatmulPush {
            row_count: 2,
            column_count: 32,
            token_count_max: 0,
            x_row: 1,
            y_row: 1,
            y_stride: 3,
            y_column: 1,
        };
        let control = Control { token_count: 1, ..Control::default() };
        let x = [[7.0; 32], [1.0; 32]].concat();
        let mut y = [-1.0; 6];
        matmul(&control, &push, false, &x, &matrix(), &mut y);
        assert_eq!(y, [-1.0, -1.0, -1.0, -1.0, 240.0, 16.0]);
        matmul(&control, &push, true, &x, &matrix(), &mut y);
        assert_eq!(y, [-1.0, -1.0, -1.0, -1.0, 480.0, 32.0]);
    }

    #[test]
    fn each_column_meets_its_own_weight() {
        let push = MatmulPush {
            row_count: 1,
            column_count: 32,
            token_count_max: 32,
            y_stride: 1,
            ..MatmulPush::default()
        };
        let mut x = [0.0; 32 * 32];
        (0..32).for_each(|token| x[token * 32 + token] = 1.0);
        let mut y = [0.0; 32];
        matmul(&Control::default(), &push, false, &x, &matrix(), &mut y);
        assert!((0u8..32).zip(y).all(|(i, y)| y == f32::from(i % 16)), "row 0 counts 0 to 15 twice: {y:?}");
    }

    #[test]
    fn gate_goes_through_silu_and_up_does_not() {
        let push = GateUpPush { row_count: 2, column_count: 32 };
        let control = Control { token_count: 1, ..Control::default() };
        let up = quantise(&[2.0; 64]);
        let mut h = [0.0; 2];
        gate_up(&control, &push, &[1.0; 32], &matrix(), &up, &mut h);
        // silu(240) = 240 and silu(16) = 16 / (1 + e^-16); up = 64
        assert_eq!(h, [240.0 * 64.0, rounded(64.0 * 16.0 / (1.0 + (-16.0f64).exp()))]);
    }
}
