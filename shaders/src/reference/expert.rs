//! Twins of the routed experts' products: `expert_gate_up` and `expert_down`.

use super::linear::q4_1_row_dot;
use super::{Control, at, rounded, silu};
use crate::layout::{ExpertDownPush, ExpertGateUpPush, TILE_WORDS};

/// Calls `run` for every tile of the grid with the words of its slot and its pairs.
fn each_tile<'a>(
    tiles: &[u32],
    tile_first: u32,
    tile_count: u32,
    pool: &[&'a [u32]],
    (slot_words, slots_per_buffer): (u32, u32),
    pairs: &[u32],
    mut run: impl FnMut(&'a [u32], &[u32]),
) {
    for tile in tile_first..tile_first + tile_count {
        let tile = &tiles[at(tile * TILE_WORDS)..][..at(TILE_WORDS)];
        let words = pool[at(tile[0] / slots_per_buffer)];
        let slot = &words[at(tile[0] % slots_per_buffer) * at(slot_words)..][..at(slot_words)];
        run(slot, &pairs[at(tile[1])..][..at(tile[2])]);
    }
}

/// `h[pair, r] = silu(gate[r, :] . x[pair / experts_used, :]) * (up[r, :] . x[pair / experts_used, :])` for the pairs of
/// `tile_count` tiles (the grid's z): x `[token_count, column_count]`, tiles `[*, 3]` (slot, first pair, count), h
/// `[token_count * experts_used, row_count]`, pool: buffers of `slots_per_buffer` slots.
#[expect(clippy::too_many_arguments, reason = "one argument a binding of the kernel")]
pub fn expert_gate_up(
    control: &Control,
    push: &ExpertGateUpPush,
    tile_count: u32,
    x: &[f32],
    tiles: &[u32],
    pairs: &[u32],
    h: &mut [f32],
    pool: &[&[u32]],
) {
    if control.is_stopped() {
        return;
    }
    let (rows, columns) = (at(push.row_count), at(push.column_count));
    let shape = (push.slot_words, push.slots_per_buffer);
    each_tile(tiles, push.tile_first, tile_count, pool, shape, pairs, |slot, pairs| {
        for &pair in pairs {
            let x = &x[at(pair / push.experts_used) * columns..][..columns];
            for row in 0..rows {
                let gate = q4_1_row_dot(&slot[at(push.gate_word)..], row, x);
                let up = q4_1_row_dot(&slot[at(push.up_word)..], row, x);
                h[at(pair) * rows + row] = rounded(silu(gate) * up);
            }
        }
    });
}

/// `y[pair, r] = down[r, :] . h[pair, :]` for the pairs of `tile_count` tiles: h `[token_count * experts_used,
/// column_count]`, y `[token_count * experts_used, row_count]`, tiles and pool as in [`expert_gate_up`].
#[expect(clippy::too_many_arguments, reason = "one argument a binding of the kernel")]
pub fn expert_down(
    control: &Control,
    push: &ExpertDownPush,
    tile_count: u32,
    h: &[f32],
    tiles: &[u32],
    pairs: &[u32],
    y: &mut [f32],
    pool: &[&[u32]],
) {
    if control.is_stopped() {
        return;
    }
    let (rows, columns) = (at(push.row_count), at(push.column_count));
    let shape = (push.slot_words, push.slots_per_buffer);
    each_tile(tiles, push.tile_first, tile_count, pool, shape, pairs, |slot, pairs| {
        for &pair in pairs {
            let h = &h[at(pair) * columns..][..columns];
            for row in 0..rows {
                y[at(pair) * rows + row] = rounded(q4_1_row_dot(&slot[at(push.down_word)..], row, h));
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::quantise;

    /// Slots of 10 words: one row of 32 for gate (or down), one for up, all with one value each.
    fn slot(gate: f32, up: f32) -> Vec<u32> {
        quantise(&[[gate; 32], [up; 32]].concat())
    }

    #[test]
    fn a_tile_finds_its_slot_its_pairs_and_their_tokens() {
        let push = ExpertGateUpPush {
            row_count: 1,
            column_count: 32,
            experts_used: 2,
            tile_first: 1,
            slot_words: 10,
            slots_per_buffer: 2,
            gate_word: 0,
            up_word: 5,
        };
        let buffers = [[slot(0.0, 0.0), slot(0.0, 0.0)].concat(), [slot(0.0, 0.0), slot(4.0, 0.5)].concat()];
        let pool: Vec<&[u32]> = buffers.iter().map(Vec::as_slice).collect();
        let x = [[1.0; 32], [2.0; 32]].concat();
        let mut h = [-1.0; 4];
        // Tile 1: slot 3 (buffer 1), pairs 3 and 0: tokens 1 and 0.
        expert_gate_up(&Control::default(), &push, 1, &x, &[0, 0, 0, 3, 1, 2], &[9, 3, 0], &mut h, &pool);
        assert_eq!(h, [128.0 * 16.0, -1.0, -1.0, 256.0 * 32.0]);
    }

    #[test]
    fn down_takes_a_pair_row_and_writes_a_pair_row() {
        let push = ExpertDownPush {
            row_count: 2,
            column_count: 32,
            tile_first: 0,
            slot_words: 10,
            slots_per_buffer: 1,
            down_word: 0,
        };
        let buffers = [slot(9.0, 9.0), slot(1.0, 0.5)];
        let pool: Vec<&[u32]> = buffers.iter().map(Vec::as_slice).collect();
        let h = [[1.0; 32], [3.0; 32]].concat();
        let mut y = [-1.0; 4];
        expert_down(&Control::default(), &push, 1, &h, &[1, 0, 1], &[1], &mut y, &pool);
        assert_eq!(y, [-1.0, -1.0, 96.0, 48.0]);
    }
}
