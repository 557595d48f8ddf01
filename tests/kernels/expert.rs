//! `expert_gate_up` and `expert_down` against their twins, over a pool of several buffers.

use flint_shaders::blocks::matrix_words;
use flint_shaders::kernels::{EXPERT_DOWN, EXPERT_GATE_UP};
use flint_shaders::layout::{ExpertDownPush, ExpertGateUpPush, POOL_BUFFERS};
use flint_shaders::reference::{self, Control};

use crate::support::{self, Call, Lanes, Random, assert_close, device, floats, words};

/// As for `matmul`.
const DOWN_TOLERANCE: f32 = 3e-6;

/// As for `gate_up`.
const GATE_UP_TOLERANCE: f32 = 1e-5;

/// Words between the matrices of a slot, and after the last: a store aligns records, a GGUF in place shifts them.
const GAP: u32 = 3;

/// One layer's routed experts: `expert_dim` x `embed_dim` gate and up, `embed_dim` x `expert_dim` down.
struct Layer {
    embed_dim: u32,
    expert_dim: u32,
    token_count: u32,
    experts_used: u32,
    slots_per_buffer: u32,
    slot_words: u32,
    matrix: u32,
    pool: Vec<Vec<u32>>,
    tiles: Vec<u32>,
    tile_first: u32,
    pairs: Vec<u32>,
}

impl Layer {
    /// Every pair once, in tiles of at most `tile_pairs`, each on a random slot of `buffer_count` buffers; two tiles
    /// that are not the kernel's stand before and one after.
    fn new(
        shape: (u32, u32),
        counts: (u32, u32),
        tile_pairs: u32,
        buffer_count: u32,
        slots_per_buffer: u32,
    ) -> Self {
        let (embed_dim, expert_dim) = shape;
        let (token_count, experts_used) = counts;
        let mut random = Random::new(u64::from(embed_dim + expert_dim * 7 + token_count * 3 + tile_pairs));
        let matrix = support::count(matrix_words(expert_dim as usize, embed_dim as usize));
        let slot_words = 3 * (matrix + GAP);
        let pool = (0..buffer_count)
            .map(|_| {
                let record = |random: &mut Random| {
                    let mut words = Vec::new();
                    for (rows, columns) in
                        [(expert_dim, embed_dim), (expert_dim, embed_dim), (embed_dim, expert_dim)]
                    {
                        words.extend(random.matrix(rows, columns));
                        words.extend([0xFFFF_FFFF; GAP as usize]);
                    }
                    words
                };
                (0..slots_per_buffer).flat_map(|_| record(&mut random)).collect()
            })
            .collect();
        let pairs = random.order(token_count * experts_used);
        let mut tiles = vec![0, 0, 1, 0, 0, 1];
        let mut first = 0;
        let pair_count = token_count * experts_used;
        while first < pair_count {
            let count = (1 + random.below(tile_pairs)).min(pair_count - first);
            // The last slot comes first: it lies in the last buffer.
            let slots = buffer_count * slots_per_buffer;
            let slot = if first == 0 { slots - 1 } else { random.below(slots) };
            tiles.extend([slot, first, count]);
            first += count;
        }
        tiles.extend([0, 0, 1]);
        Self {
            embed_dim,
            expert_dim,
            token_count,
            experts_used,
            slots_per_buffer,
            slot_words,
            matrix,
            pool,
            tiles,
            tile_first: 2,
            pairs,
        }
    }

    fn tile_count(&self) -> u32 {
        support::count(self.tiles.len() / 3) - 3
    }

    fn pool(&self) -> Vec<&[u32]> {
        self.pool.iter().map(Vec::as_slice).collect()
    }

    /// A descriptor for every place of the array: those past the last buffer repeat the first.
    fn descriptors(&self) -> Vec<&[u32]> {
        (0..POOL_BUFFERS as usize).map(|at| self.pool.get(at).unwrap_or(&self.pool[0]).as_slice()).collect()
    }

    fn gate_up_push(&self) -> ExpertGateUpPush {
        ExpertGateUpPush {
            row_count: self.expert_dim,
            column_count: self.embed_dim,
            experts_used: self.experts_used,
            tile_first: self.tile_first,
            slot_words: self.slot_words,
            slots_per_buffer: self.slots_per_buffer,
            gate_word: 0,
            up_word: self.matrix + GAP,
        }
    }

    fn down_push(&self) -> ExpertDownPush {
        ExpertDownPush {
            row_count: self.embed_dim,
            column_count: self.expert_dim,
            tile_first: self.tile_first,
            slot_words: self.slot_words,
            slots_per_buffer: self.slots_per_buffer,
            down_word: 2 * (self.matrix + GAP),
        }
    }

    fn gate_up(&self, lanes: Lanes, tile: (u32, u32), x: &[f32], h: &[f32]) -> Vec<f32> {
        let push = self.gate_up_push();
        let call = Call {
            kernel: &EXPERT_GATE_UP,
            lanes,
            constants: &[tile.0, tile.1],
            push: push.bytes(),
            groups: [push.row_count.div_ceil(tile.0), 1, self.tile_count()],
        };
        let control = Control { token_count: self.token_count, ..Control::default() };
        let pool = self.descriptors();
        let buffers: [&[&[u32]]; 5] = [&[words(x)], &[&self.tiles], &[&self.pairs], &[words(h)], &pool];
        let device = device().expect("invariant: the caller has seen the device");
        floats(&device.run(&call, &control, &buffers)[4][0]).to_vec()
    }

    fn down(&self, lanes: Lanes, tile: (u32, u32), h: &[f32], y: &[f32]) -> Vec<f32> {
        let push = self.down_push();
        let call = Call {
            kernel: &EXPERT_DOWN,
            lanes,
            constants: &[tile.0, tile.1],
            push: push.bytes(),
            groups: [push.row_count.div_ceil(tile.0), 1, self.tile_count()],
        };
        let control = Control { token_count: self.token_count, ..Control::default() };
        let pool = self.descriptors();
        let buffers: [&[&[u32]]; 5] = [&[words(h)], &[&self.tiles], &[&self.pairs], &[words(y)], &pool];
        let device = device().expect("invariant: the caller has seen the device");
        floats(&device.run(&call, &control, &buffers)[4][0]).to_vec()
    }

    fn check(&self, lanes: Lanes, tile: (u32, u32)) {
        let mut random = Random::new(u64::from(self.embed_dim * 5 + self.token_count));
        let control = Control { token_count: self.token_count, ..Control::default() };
        let pair_count = self.token_count * self.experts_used;
        let x = random.values(self.token_count * self.embed_dim);
        let mut h = random.values((pair_count + 1) * self.expert_dim);
        let got = self.gate_up(lanes, tile, &x, &h);
        let push = self.gate_up_push();
        reference::expert_gate_up(
            &control,
            &push,
            self.tile_count(),
            &x,
            &self.tiles,
            &self.pairs,
            &mut h,
            &self.pool(),
        );
        let what = format!("{push:?}, {} tokens, tile {tile:?}, {lanes:?}", self.token_count);
        assert_close(&what, &got, &h, GATE_UP_TOLERANCE);

        let mut y = random.values((pair_count + 1) * self.embed_dim);
        let got = self.down(lanes, tile, &h, &y);
        let push = self.down_push();
        reference::expert_down(
            &control,
            &push,
            self.tile_count(),
            &h,
            &self.tiles,
            &self.pairs,
            &mut y,
            &self.pool(),
        );
        let what = format!("{push:?}, {} tokens, tile {tile:?}, {lanes:?}", self.token_count);
        assert_close(&what, &got, &y, DOWN_TOLERANCE);
    }
}

#[test]
fn experts_match_their_twins() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for tile in [(1, 1), (4, 1), (2, 4), (8, 3)] {
            for (shape, counts, buffer_count, slots_per_buffer) in [
                ((32, 32), (1, 1), 1, 1),
                ((64, 96), (1, 6), 3, 2),
                ((96, 32), (5, 3), 2, 5),
                ((224, 32), (3, 2), POOL_BUFFERS, 1),
                ((256, 64), (7, 6), 5, 3),
            ] {
                Layer::new(shape, counts, tile.1, buffer_count, slots_per_buffer).check(lanes, tile);
            }
        }
    }
}

/// Waves cut an expert's pairs into tiles by what is resident: a pair's row must not change a bit by it.
#[test]
fn a_pair_does_not_depend_on_its_tile() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        let tile = (4, 4);
        let mut layer = Layer::new((64, 32), (4, 2), 4, 2, 2);
        let mut random = Random::new(3);
        let x = random.values(4 * 64);
        let h = random.values(8 * 32);
        let y = random.values(8 * 64);
        let one_slot = |cuts: &[u32]| {
            let mut tiles = vec![0; 6];
            let mut first = 0;
            for &count in cuts {
                tiles.extend([2, first, count]);
                first += count;
            }
            tiles.extend([0; 3]);
            tiles
        };
        layer.tiles = one_slot(&[4, 4]);
        let (h_whole, y_whole) = (layer.gate_up(lanes, tile, &x, &h), layer.down(lanes, tile, &h, &y));
        for cuts in [&[1, 1, 1, 1, 1, 1, 1, 1][..], &[3, 2, 3], &[1, 4, 2, 1]] {
            layer.tiles = one_slot(cuts);
            assert_eq!(layer.gate_up(lanes, tile, &x, &h), h_whole, "cut into {cuts:?}, {lanes:?}");
            assert_eq!(layer.down(lanes, tile, &h, &y), y_whole, "cut into {cuts:?}, {lanes:?}");
        }
    }
}
