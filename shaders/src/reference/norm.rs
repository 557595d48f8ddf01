//! Twin of `rms_norm`.

use super::{Control, at, rounded};
use crate::layout::RmsNormPush;

/// `1 / sqrt(mean(values^2) + epsilon)`.
pub(super) fn inverse_rms(values: &[f32], epsilon: f32) -> f64 {
    let squares: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
    let count = u32::try_from(values.len()).expect("invariant: a row's length is a u32");
    (squares / f64::from(count) + f64::from(epsilon)).sqrt().recip()
}

/// `target[t, i] = source[t, i] * weight[i] / rms(source[t, :])` for `row_count` rows (the grid's x): source and target
/// `[*, dim]` from rows `source_row` and `target_row` on, weight `[dim]`.
pub fn rms_norm(
    control: &Control,
    push: &RmsNormPush,
    row_count: u32,
    source: &[f32],
    weight: &[f32],
    target: &mut [f32],
) {
    if control.is_stopped() {
        return;
    }
    let dim = at(push.dim);
    for row in 0..at(row_count) {
        let from = &source[(at(push.source_row) + row) * dim..][..dim];
        let to = &mut target[(at(push.target_row) + row) * dim..][..dim];
        let scale = inverse_rms(from, push.epsilon);
        for ((to, &from), &weight) in to.iter_mut().zip(from).zip(weight) {
            *to = rounded(f64::from(from) * scale * f64::from(weight));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_by_the_root_of_the_mean_square() {
        let push = RmsNormPush { dim: 2, source_row: 1, target_row: 0, epsilon: 0.0 };
        let mut target = [0.0; 4];
        // mean square of (1, 7) is 25
        rms_norm(&Control::default(), &push, 1, &[9.0, 9.0, 1.0, 7.0], &[1.0, 10.0], &mut target);
        assert_eq!(target, [0.2, 14.0, 0.0, 0.0]);
    }

    #[test]
    fn epsilon_stands_under_the_root() {
        let push = RmsNormPush { dim: 1, source_row: 0, target_row: 0, epsilon: 3.0 };
        let mut target = [0.0];
        rms_norm(&Control::default(), &push, 1, &[1.0], &[1.0], &mut target);
        assert_eq!(target, [0.5]);
    }
}
