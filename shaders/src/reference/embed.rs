//! Twin of `embed`.

use super::{Control, at};
use crate::layout::EmbedPush;

/// `x[t, i] = rows[row_index[t], i]`: rows `[*, embed_dim]`, row_index `[token_count]`, x `[token_count, embed_dim]`.
pub fn embed(control: &Control, push: &EmbedPush, rows: &[f32], row_index: &[u32], x: &mut [f32]) {
    if control.is_stopped() {
        return;
    }
    let dim = at(push.embed_dim);
    for token in 0..at(control.token_count) {
        let from = at(row_index[token]) * dim;
        x[token * dim..][..dim].copy_from_slice(&rows[from..][..dim]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_the_rows_of_the_step_and_no_more() {
        let push = EmbedPush { embed_dim: 2 };
        let rows = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut x = [0.0; 6];
        embed(&Control { token_count: 2, ..Control::default() }, &push, &rows, &[2, 0, 1], &mut x);
        assert_eq!(x, [5.0, 6.0, 1.0, 2.0, 0.0, 0.0]);
        embed(&Control { stop: 1, token_count: 3, position: 0 }, &push, &rows, &[1, 1, 1], &mut x);
        assert_eq!(x, [5.0, 6.0, 1.0, 2.0, 0.0, 0.0], "a set stop word leaves the target alone");
    }
}
