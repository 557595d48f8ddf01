//! Twin of `combine`.

use super::{Control, at, rounded};
use crate::layout::CombinePush;

/// `x[t, i] = ((sum_j weight[t, j] * y[t, j, i]) + shared_out[t, i]) + x[t, i]`: routes `[token_count, 2, experts_used]`
/// (weights as f32 bits in the second row), y `[token_count, experts_used, embed_dim]`, shared_out and x
/// `[token_count, embed_dim]`.
pub fn combine(
    control: &Control,
    push: &CombinePush,
    routes: &[u32],
    y: &[f32],
    shared_out: &[f32],
    x: &mut [f32],
) {
    if control.is_stopped() {
        return;
    }
    let (dim, used) = (at(push.embed_dim), at(push.experts_used));
    for token in 0..at(control.token_count) {
        let weights = &routes[(token * 2 + 1) * used..][..used];
        for index in 0..dim {
            let routed: f64 = weights
                .iter()
                .enumerate()
                .map(|(j, &bits)| {
                    f64::from(f32::from_bits(bits)) * f64::from(y[(token * used + j) * dim + index])
                })
                .sum();
            let value = &mut x[token * dim + index];
            *value = rounded(routed + f64::from(shared_out[token * dim + index]) + f64::from(*value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_routed_rows_and_adds_the_shared_one_and_the_residual() {
        let push = CombinePush { embed_dim: 2, experts_used: 2 };
        let control = Control { token_count: 1, ..Control::default() };
        let routes = [8, 3, 0.25f32.to_bits(), 0.75f32.to_bits()];
        let mut x = [1000.0, 2000.0];
        combine(&control, &push, &routes, &[4.0, 8.0, 40.0, 80.0], &[100.0, 200.0], &mut x);
        assert_eq!(x, [1131.0, 2262.0]);
    }
}
