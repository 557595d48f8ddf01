//! Twins of the kernels that do several stages of a next token in one: each is the twins of those stages, one after another.

use super::attention::{attention, attention_merge};
use super::linear::q4_1_row_dot;
use super::norm::inverse_rms;
use super::rope::rope;
use super::router::{route, router};
use super::{Control, at, rounded, silu};
use crate::layout::{
    AttendPush, AttentionMergePush, AttentionPush, FfnDownPush, FfnGateUpPush, NormMatmulPush,
    PickExpertsPush, RopePush, RoutePush, RouterPush, TILE_WORDS,
};

/// A row after its norm, where there is one to fold in.
fn normed(x: &[f32], norm: Option<&[f32]>, epsilon: f32) -> Vec<f32> {
    let Some(norm) = norm else { return x.to_vec() };
    let scale = inverse_rms(x, epsilon);
    x.iter().zip(norm).map(|(&x, &norm)| rounded(f64::from(x) * scale * f64::from(norm))).collect()
}

/// `y_m[t, r] = W_m[r, :] . n[x_row + t, :]`: x `[*, column_count]`, `norm` `[column_count]` if it is folded in (NORM), Q4_1
/// `matrices` of `first_rows`, `second_rows`, `third_rows` rows, `y` one a matrix: the first `[*, y_stride]`, the others
/// `[*, rows]`.
pub fn norm_matmul(
    control: &Control,
    push: &NormMatmulPush,
    x: &[f32],
    norm: Option<&[f32]>,
    matrices: [&[u32]; 3],
    y: [&mut [f32]; 3],
) {
    if control.is_stopped() {
        return;
    }
    let tokens = if push.token_count_max == 0 { control.token_count } else { push.token_count_max };
    let columns = at(push.column_count);
    let rows = [push.first_rows, push.second_rows, push.third_rows].map(at);
    let places = [(at(push.y_stride), at(push.y_column)), (rows[1], 0), (rows[2], 0)];
    for (((words, y), rows), (stride, column)) in matrices.into_iter().zip(y).zip(rows).zip(places) {
        for token in 0..at(tokens) {
            let n = normed(&x[(at(push.x_row) + token) * columns..][..columns], norm, push.epsilon);
            for row in 0..rows {
                y[token * stride + column + row] = rounded(q4_1_row_dot(words, row, &n));
            }
        }
    }
}

/// The routed experts of a layer as `ffn_gate_up` and `ffn_down` see them.
#[derive(Clone, Copy, Debug)]
pub struct Routed<'a> {
    /// `[*, 3]`: slot, first pair, count.
    pub tiles: &'a [u32],
    /// `[*]`: token * experts_used + pick.
    pub pairs: &'a [u32],
    /// Buffers of `slots_per_buffer` slots of `slot_words` words.
    pub pool: &'a [&'a [u32]],
}

impl Routed<'_> {
    fn slot(&self, tile: usize, slot_words: u32, slots_per_buffer: u32) -> &[u32] {
        let slot = self.tiles[tile * at(TILE_WORDS)];
        &self.pool[at(slot / slots_per_buffer)][at(slot % slots_per_buffer) * at(slot_words)..]
            [..at(slot_words)]
    }

    fn pairs(&self, tile: usize) -> &[u32] {
        let tile = &self.tiles[tile * at(TILE_WORDS)..][..at(TILE_WORDS)];
        &self.pairs[at(tile[1])..][..at(tile[2])]
    }
}

/// `silu(gate[r, :] . n) * (up[r, :] . n)` of each pair of `tile_count` tiles, and of each token for the `dense` matrices (gate,
/// up): x `[token_count, column_count]`, `norm` as in [`norm_matmul`], h `[token_count * experts_used, expert_rows]`, dense_h
/// `[token_count, dense_rows]`.
#[expect(clippy::too_many_arguments, reason = "one argument a binding of the kernel")]
pub fn ffn_gate_up(
    control: &Control,
    push: &FfnGateUpPush,
    x: &[f32],
    norm: Option<&[f32]>,
    routed: Routed<'_>,
    dense: [&[u32]; 2],
    h: &mut [f32],
    dense_h: &mut [f32],
) {
    if control.is_stopped() {
        return;
    }
    let columns = at(push.column_count);
    let n = |token: usize| normed(&x[token * columns..][..columns], norm, push.epsilon);
    let activation = |gate: &[u32], up: &[u32], row: usize, n: &[f32]| {
        rounded(silu(q4_1_row_dot(gate, row, n)) * q4_1_row_dot(up, row, n))
    };
    let rows = at(push.expert_rows);
    for tile in at(push.tile_first)..at(push.tile_first + push.tile_count) {
        let slot = routed.slot(tile, push.slot_words, push.slots_per_buffer);
        for &pair in routed.pairs(tile) {
            let n = n(at(pair / push.experts_used));
            for row in 0..rows {
                h[at(pair) * rows + row] =
                    activation(&slot[at(push.gate_word)..], &slot[at(push.up_word)..], row, &n);
            }
        }
    }
    let rows = at(push.dense_rows);
    for token in 0..at(control.token_count) {
        let n = n(token);
        for row in 0..rows {
            dense_h[token * rows + row] = activation(dense[0], dense[1], row, &n);
        }
    }
}

/// Where the rows of a token's picks come from.
#[derive(Clone, Copy, Debug)]
pub enum PickRows<'a> {
    /// DOWN = 1: from the experts of tiles 0, 1, ... and h `[experts_used, expert_columns]`, of one token.
    Down(Routed<'a>, &'a [f32]),
    /// DOWN = 0: `[token_count, experts_used, row_count]`.
    Given(&'a [f32]),
}

/// `x[t, r] = (sum_j weight[t, j] * Y[t, j, r] + shared[r, :] . dense_h[t, :]) + x[t, r]`: routes `[token_count, 2,
/// experts_used]`, shared Q4_1 `[row_count, dense_columns]`, dense_h `[token_count, dense_columns]`, x `[token_count,
/// row_count]`.
#[expect(clippy::too_many_arguments, reason = "one argument a binding of the kernel")]
pub fn ffn_down(
    control: &Control,
    push: &FfnDownPush,
    experts_used: u32,
    picks: PickRows<'_>,
    routes: &[u32],
    shared: &[u32],
    dense_h: &[f32],
    x: &mut [f32],
) {
    if control.is_stopped() {
        return;
    }
    let (rows, used, columns) = (at(push.row_count), at(experts_used), at(push.expert_columns));
    for token in 0..at(control.token_count) {
        let weights = &routes[(token * 2 + 1) * used..][..used];
        let dense_h = &dense_h[token * at(push.dense_columns)..][..at(push.dense_columns)];
        for row in 0..rows {
            let of_pick = |pick: usize| match picks {
                PickRows::Given(y) => f64::from(y[(token * used + pick) * rows + row]),
                PickRows::Down(routed, h) => {
                    let slot = routed.slot(pick, push.slot_words, push.slots_per_buffer);
                    q4_1_row_dot(&slot[at(push.down_word)..], row, &h[pick * columns..][..columns])
                }
            };
            let routed: f64 =
                (0..used).map(|pick| f64::from(f32::from_bits(weights[pick])) * of_pick(pick)).sum();
            let value = &mut x[token * rows + row];
            *value = rounded(routed + q4_1_row_dot(shared, row, dense_h) + f64::from(*value));
        }
    }
}

/// What `pick_experts` writes.
#[derive(Debug)]
pub struct Picked<'a> {
    /// `[token_count, expert_count]`.
    pub logits: &'a mut [f32],
    /// As in [`route`].
    pub routes: &'a mut [u32],
    /// As in [`route`].
    pub tiles: &'a mut [u32],
    /// As in [`route`].
    pub pairs: &'a mut [u32],
    /// As in [`route`].
    pub report: &'a mut [u32],
}

/// [`router`] on rows after their norm (as in [`norm_matmul`]), then [`route`].
#[expect(clippy::too_many_arguments, reason = "one argument a binding of the kernel")]
pub fn pick_experts(
    control: &mut Control,
    push: &PickExpertsPush,
    experts_used: u32,
    x: &[f32],
    norm: Option<&[f32]>,
    weight: &[f32],
    table: &[u32],
    picked: Picked<'_>,
) {
    let columns = at(push.column_count);
    let rows = x.chunks_exact(columns).take(at(control.token_count));
    let n: Vec<f32> = rows.flat_map(|row| normed(row, norm, push.epsilon)).collect();
    let product = RouterPush { row_count: push.expert_count, column_count: push.column_count };
    router(control, &product, &n, weight, picked.logits);
    let choice = RoutePush {
        expert_count: push.expert_count,
        layer: push.layer,
        table_first: push.table_first,
        report_first: push.report_first,
        is_resolved: push.is_resolved,
        weights_scale: push.weights_scale,
    };
    let Picked { logits, routes, tiles, pairs, report } = picked;
    route(control, &choice, experts_used, logits, table, routes, tiles, pairs, report);
}

/// [`rope`], then [`attention`] in one split, then [`attention_merge`], for tokens of one sequence: buffers as there, `head_dim`
/// the constant HEAD_DIM. Into how many splits the kernel cuts the keys changes nothing but its rounding.
#[expect(clippy::too_many_arguments, reason = "one argument a binding of the kernel")]
pub fn attend(
    control: &Control,
    push: &AttendPush,
    head_dim: u32,
    [q, k, v]: [&[f32]; 3],
    [q_norm, k_norm]: [&[f32]; 2],
    angles: &[f32],
    [k_cache, v_cache]: [&mut [u32]; 2],
    sinks: &[f32],
    target: &mut [f32],
) {
    let &AttendPush { head_count, kv_head_count, window, ring_rows, is_rotated, scale, epsilon, .. } = push;
    let turn = RopePush { head_count, kv_head_count, head_dim, is_rotated, ring_rows, epsilon };
    let mut queries = q.to_vec();
    rope(control, &turn, &mut queries, k, v, q_norm, k_norm, angles, k_cache, v_cache);
    let rows = at(control.token_count * head_count);
    let mut partial = vec![0.0; rows * at(head_dim + 2)];
    let look = AttentionPush { head_count, kv_head_count, window, ring_rows, splits: 1, scale };
    attention(control, &look, head_dim, &queries, k_cache, v_cache, &mut partial);
    attention_merge(
        control,
        &AttentionMergePush { head_count, head_dim, splits: 1 },
        &partial,
        sinks,
        target,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::quantise;

    const GO: Control = Control { stop: 0, token_count: 1, position: 0 };

    /// One row of 32 equal values.
    fn row(value: f32) -> Vec<u32> {
        quantise(&[value; 32])
    }

    #[test]
    fn a_norm_is_folded_into_each_matrix() {
        let push = NormMatmulPush {
            first_rows: 1,
            second_rows: 1,
            column_count: 32,
            y_stride: 2,
            y_column: 1,
            ..NormMatmulPush::default()
        };
        let (one, two) = (row(1.0), row(2.0));
        let (mut first, mut second) = ([-1.0; 2], [-1.0]);
        // The root mean square of 3, 3, ... is 3; the norm doubles what is left.
        let matrices = [&one[..], &two, &[]];
        let (x, norm) = ([3.0; 32], [2.0; 32]);
        norm_matmul(&GO, &push, &x, Some(&norm), matrices, [&mut first, &mut second, &mut []]);
        assert_eq!((first, second), ([-1.0, 64.0], [128.0]));
        norm_matmul(&GO, &push, &x, None, matrices, [&mut first, &mut second, &mut []]);
        assert_eq!((first, second), ([-1.0, 96.0], [192.0]));
    }

    #[test]
    fn picks_shared_expert_and_residual_are_summed() {
        let push = FfnDownPush {
            row_count: 1,
            expert_columns: 32,
            dense_columns: 32,
            slot_words: 5,
            slots_per_buffer: 2,
            down_word: 0,
        };
        let pool = [[row(1.0), row(2.0)].concat()];
        let pool: Vec<&[u32]> = pool.iter().map(Vec::as_slice).collect();
        let routed = Routed { tiles: &[1, 0, 1, 0, 1, 1], pairs: &[0, 1], pool: &pool };
        let routes = [9, 9, 0.5f32.to_bits(), 0.25f32.to_bits()];
        let h = [[1.0; 32], [2.0; 32]].concat();
        let mut x = [1000.0];
        let shared = row(3.0);
        // 0.5 * 64 + 0.25 * 64 + 3 * 32.
        ffn_down(&GO, &push, 2, PickRows::Down(routed, &h), &routes, &shared, &[1.0; 32], &mut x);
        assert_eq!(x, [1144.0]);
        ffn_down(&GO, &push, 2, PickRows::Given(&[64.0, 64.0]), &routes, &shared, &[1.0; 32], &mut x);
        assert_eq!(x, [1288.0]);
    }

    #[test]
    fn the_dense_network_stands_beside_the_routed_ones() {
        let push = FfnGateUpPush {
            expert_rows: 1,
            dense_rows: 1,
            column_count: 32,
            experts_used: 1,
            tile_count: 1,
            slot_words: 10,
            slots_per_buffer: 1,
            up_word: 5,
            ..FfnGateUpPush::default()
        };
        let slot = [row(4.0), row(0.5)].concat();
        let routed = Routed { tiles: &[0, 0, 1], pairs: &[0], pool: &[&slot] };
        let (mut h, mut dense_h) = ([-1.0], [-1.0]);
        let (gate, up) = (row(2.0), row(1.0));
        ffn_gate_up(&GO, &push, &[1.0; 32], None, routed, [&gate, &up], &mut h, &mut dense_h);
        assert_eq!((h, dense_h), ([128.0 * 16.0], [64.0 * 32.0]));
    }

    #[test]
    fn a_first_token_sees_itself_and_the_sink() {
        let push =
            AttendPush { head_count: 1, kv_head_count: 1, ring_rows: 1, scale: 0.0, ..AttendPush::default() };
        let (mut k_cache, mut v_cache, mut target) = ([0; 2], [0; 2], [0.0; 4]);
        let (ones, angles) = ([1.0; 4], [1.0, 1.0, 0.0, 0.0]);
        attend(
            &GO,
            &push,
            4,
            [&ones, &ones, &[1.0, 2.0, 3.0, 4.0]],
            [&ones, &ones],
            &angles,
            [&mut k_cache, &mut v_cache],
            &[0.0],
            &mut target,
        );
        // Its score and the sink's are 0: half of its value.
        assert_eq!(target, [0.5, 1.0, 1.5, 2.0]);
        assert_eq!((k_cache, v_cache), ([0x3C00_3C00; 2], [0x4000_3C00, 0x4400_4200]));
    }

    #[test]
    fn the_picks_are_those_of_the_normed_row() {
        let push = PickExpertsPush {
            expert_count: 2,
            column_count: 4,
            weights_scale: 1.0,
            is_resolved: 1,
            ..PickExpertsPush::default()
        };
        let mut control = GO;
        let (mut logits, mut routes) = ([0.0; 2], [9; 2]);
        let (mut tiles, mut pairs, mut report) = ([9; 3], [9], [9; 2]);
        let weight = [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0];
        // Without its norm the first column is the larger, with it the last.
        pick_experts(
            &mut control,
            &push,
            1,
            &[2.0, 2.0, 2.0, 2.0],
            Some(&[1.0, 1.0, 1.0, 3.0]),
            &weight,
            &[5, 6],
            Picked {
                logits: &mut logits,
                routes: &mut routes,
                tiles: &mut tiles,
                pairs: &mut pairs,
                report: &mut report,
            },
        );
        assert_eq!((logits, routes), ([3.0, 1.0], [0, 1.0f32.to_bits()]));
        assert_eq!((tiles, pairs, report, control.stop), ([5, 0, 1], [0], routes, 0));
    }
}
