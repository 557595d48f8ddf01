//! The kernels that do several stages of a next token in one, against their twins.

use flint_shaders::blocks::matrix_words;
use flint_shaders::kernels::{ATTEND, FFN_DOWN, FFN_GATE_UP, NORM_MATMUL, PICK_EXPERTS};
use flint_shaders::layout::{
    AttendPush, FfnDownPush, FfnGateUpPush, NO_SLOT, NormMatmulPush, POOL_BUFFERS, PickExpertsPush,
};
use flint_shaders::reference::{self, Control, PickRows, Picked, Routed};
use half::f16;

use crate::support::{self, Call, Lanes, Random, assert_close, device, floats, words};

/// As for `matmul`, and a factor that is an f32 sum and a root.
const PRODUCT_TOLERANCE: f32 = 4e-6;

/// As for `gate_up`.
const GATE_UP_TOLERANCE: f32 = 1e-5;

/// As for `attention`, over keys that are normed and turned in f32 here and in f64 there: the last bit of an f16 may differ.
const ATTEND_TOLERANCE: f32 = 3e-4;

/// A weight of a pick as for `route`.
const WEIGHT_TOLERANCE: f32 = 5e-6;

const EPSILON: f32 = 1e-5;

/// (ROWS, TOKENS).
const TILES: [(u32, u32); 3] = [(2, 1), (8, 1), (3, 4)];

struct NormMatmul {
    push: NormMatmulPush,
    tokens: u32,
    x: Vec<f32>,
    norm: Vec<f32>,
    matrices: [Vec<u32>; 3],
    y: [Vec<f32>; 3],
}

impl NormMatmul {
    fn new(rows: [u32; 3], column_count: u32, tokens: u32) -> Self {
        let mut random = Random::new(u64::from(rows[0] * 31 + column_count + tokens));
        let push = NormMatmulPush {
            first_rows: rows[0],
            second_rows: rows[1],
            third_rows: rows[2],
            column_count,
            token_count_max: if rows[0].is_multiple_of(2) { tokens } else { 0 },
            x_row: rows[0] % 3,
            y_stride: rows[0] + 3,
            y_column: rows[0] % 4,
            epsilon: EPSILON,
        };
        let strides = [push.y_stride, rows[1], rows[2]];
        Self {
            push,
            tokens,
            x: random.values((push.x_row + tokens) * column_count),
            norm: random.values(column_count),
            // An empty matrix is bound, too: it takes a word.
            matrices: rows.map(|rows| random.matrix(rows.max(1), column_count)),
            y: strides.map(|stride| random.values((tokens + 2) * stride.max(1))),
        }
    }

    fn control(&self) -> Control {
        let token_count = if self.push.token_count_max == 0 { self.tokens } else { 999 };
        Control { token_count, ..Control::default() }
    }

    fn run(&self, lanes: Lanes, tile: (u32, u32), is_normed: bool) -> [Vec<f32>; 3] {
        let push = &self.push;
        let rows = [push.first_rows, push.second_rows, push.third_rows];
        let call = Call {
            kernel: &NORM_MATMUL,
            lanes,
            constants: &[tile.0, tile.1, u32::from(is_normed)],
            push: push.bytes(),
            groups: [
                rows.map(|rows| rows.div_ceil(tile.0)).iter().sum(),
                self.tokens.div_ceil(tile.1) + 1,
                1,
            ],
        };
        let matrices = self.matrices.each_ref().map(Vec::as_slice);
        let y = self.y.each_ref().map(|y| words(y));
        let buffers: [&[&[u32]]; 4] = [&[words(&self.x)], &[words(&self.norm)], &matrices, &y];
        let device = device().expect("invariant: the caller has seen the device");
        let after = device.run(&call, &self.control(), &buffers);
        [0, 1, 2].map(|matrix| floats(&after[4][matrix]).to_vec())
    }
}

#[test]
fn norm_matmul_matches_its_twin() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for (tile, is_normed) in TILES.iter().flat_map(|&tile| [(tile, true), (tile, false)]) {
            for (rows, columns, tokens) in [
                ([1, 1, 1], 32, 1),
                ([3, 0, 0], 64, 3),
                ([9, 4, 5], 224, 2),
                ([16, 3, 8], 2048, 1),
                ([7, 8, 0], 416, 9),
            ] {
                let case = NormMatmul::new(rows, columns, tokens);
                let got = case.run(lanes, tile, is_normed);
                let mut want = case.y.clone();
                let [first, second, third] = &mut want;
                reference::norm_matmul(
                    &case.control(),
                    &case.push,
                    &case.x,
                    is_normed.then_some(&case.norm),
                    case.matrices.each_ref().map(Vec::as_slice),
                    [first, second, third],
                );
                let what = format!("{:?}, tile {tile:?}, norm {is_normed}, {lanes:?}", case.push);
                for (got, want) in got.iter().zip(&want) {
                    assert_close(&what, got, want, PRODUCT_TOLERANCE);
                }
            }
        }
    }
}

/// The next token of a sequence alone, and beside those of others.
#[test]
fn norm_matmul_gives_a_row_the_same_bits_in_any_tile() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        let mut case = NormMatmul::new([9, 4, 5], 256, 7);
        (case.push.token_count_max, case.push.x_row) = (7, 0);
        let strides = [case.push.y_stride, 4, 5].map(|stride| stride as usize);
        let together: Vec<_> = TILES.iter().map(|&tile| case.run(lanes, tile, true)).collect();
        for row in 0..7 {
            (case.tokens, case.push.token_count_max, case.push.x_row) = (1, 1, row);
            let alone = case.run(lanes, (8, 1), true);
            for (tile, together) in TILES.iter().zip(&together) {
                for matrix in 0..3 {
                    let (stride, rows) = (strides[matrix], [9, 4, 5][matrix]);
                    let column = if matrix == 0 { case.push.y_column as usize } else { 0 };
                    assert_eq!(
                        together[matrix][row as usize * stride + column..][..rows],
                        alone[matrix][column..][..rows],
                        "row {row}, tile {tile:?}, {lanes:?}"
                    );
                }
            }
        }
    }
}

/// A layer's experts in a pool of two buffers, and its dense network.
struct Networks {
    embed_dim: u32,
    expert_dim: u32,
    dense_dim: u32,
    experts_used: u32,
    slot_words: u32,
    matrix: u32,
    pool: Vec<Vec<u32>>,
    dense: [Vec<u32>; 3],
}

const SLOTS_PER_BUFFER: u32 = 2;

impl Networks {
    fn new(embed_dim: u32, expert_dim: u32, dense_dim: u32, experts_used: u32) -> Self {
        let mut random = Random::new(u64::from(embed_dim + 7 * expert_dim + 3 * dense_dim));
        let record = |random: &mut Random| -> Vec<u32> {
            let shapes = [(expert_dim, embed_dim), (expert_dim, embed_dim), (embed_dim, expert_dim)];
            shapes.iter().flat_map(|&(rows, columns)| random.matrix(rows, columns)).collect()
        };
        let pool =
            (0..2).map(|_| (0..SLOTS_PER_BUFFER).flat_map(|_| record(&mut random)).collect()).collect();
        let matrix = support::count(matrix_words(expert_dim as usize, embed_dim as usize));
        let shapes = [(dense_dim, embed_dim), (dense_dim, embed_dim), (embed_dim, dense_dim)];
        let dense = shapes.map(|(rows, columns)| random.matrix(rows, columns));
        Self { embed_dim, expert_dim, dense_dim, experts_used, slot_words: 3 * matrix, matrix, pool, dense }
    }

    fn pool(&self) -> Vec<&[u32]> {
        self.pool.iter().map(Vec::as_slice).collect()
    }

    /// The pool's descriptors, those past the last buffer repeating the first, and the dense matrices behind.
    fn descriptors<'a>(&'a self, dense: &[&'a [u32]]) -> Vec<&'a [u32]> {
        let buffers =
            (0..POOL_BUFFERS as usize).map(|at| self.pool.get(at).unwrap_or(&self.pool[0]).as_slice());
        buffers.chain(dense.iter().copied()).collect()
    }

    fn check_gate_up(&self, lanes: Lanes, tile: (u32, u32), is_normed: bool, tiles: &[u32], tokens: u32) {
        let mut random = Random::new(u64::from(self.embed_dim + tokens));
        let tile_count = support::count(tiles.len() / 3);
        let push = FfnGateUpPush {
            expert_rows: self.expert_dim,
            dense_rows: self.dense_dim,
            column_count: self.embed_dim,
            experts_used: self.experts_used,
            tile_first: 1.min(tile_count),
            tile_count: tile_count.saturating_sub(1),
            slot_words: self.slot_words,
            slots_per_buffer: SLOTS_PER_BUFFER,
            gate_word: 0,
            up_word: self.matrix,
            epsilon: EPSILON,
        };
        let control = Control { token_count: tokens, ..Control::default() };
        let pairs = random.order(tokens * self.experts_used);
        // An empty list is bound, too.
        let tiles = if tiles.is_empty() { &[0, 0, 1] } else { tiles };
        let (x, norm) = (random.values(tokens * self.embed_dim), random.values(self.embed_dim));
        let mut h = random.values((tokens * self.experts_used + 1) * self.expert_dim);
        let mut dense_h = random.values((tokens + 1) * self.dense_dim);
        let [gate, up, _] = self.dense.each_ref().map(Vec::as_slice);
        let groups = [
            self.expert_dim.max(self.dense_dim).div_ceil(tile.0),
            1,
            push.tile_count + tokens.div_ceil(tile.1) + 1,
        ];
        let constants = [tile.0, tile.1, u32::from(is_normed)];
        let call = Call { kernel: &FFN_GATE_UP, lanes, constants: &constants, push: push.bytes(), groups };
        let pool = self.descriptors(&[gate, up]);
        let buffers: [&[&[u32]]; 7] =
            [&[words(&x)], &[tiles], &[&pairs], &[words(&h)], &pool, &[words(&norm)], &[words(&dense_h)]];
        let device = device().expect("invariant: the caller has seen the device");
        let after = device.run(&call, &control, &buffers);
        let (pool, norm) = (self.pool(), is_normed.then_some(norm.as_slice()));
        let routed = Routed { tiles, pairs: &pairs, pool: &pool };
        reference::ffn_gate_up(&control, &push, &x, norm, routed, [gate, up], &mut h, &mut dense_h);
        let what = format!("{push:?}, {tokens} tokens, tile {tile:?}, {lanes:?}");
        assert_close(&what, floats(&after[4][0]), &h, GATE_UP_TOLERANCE);
        assert_close(&what, floats(&after[7][0]), &dense_h, GATE_UP_TOLERANCE);
    }

    /// The residual after `ffn_down`: of one token, or of several whose picks' rows are given.
    fn down(&self, lanes: Lanes, tile: (u32, u32), tokens: u32, given: Option<&[f32]>) -> [Vec<f32>; 2] {
        let used = self.experts_used;
        let mut random = Random::new(u64::from(self.embed_dim));
        let push = self.down_push();
        let control = Control { token_count: tokens, ..Control::default() };
        let tiles: Vec<u32> = (0..used).flat_map(|pick| [(pick * 3 + 1) % 4, pick, 1]).collect();
        let pairs: Vec<u32> = (0..used).collect();
        let h = random.values(used * self.expert_dim);
        let mut dense_h = random.values(self.dense_dim);
        let mut routes: Vec<u32> = (0..used).chain(words(&random.values(used)).iter().copied()).collect();
        let mut x = random.values(self.embed_dim);
        for _ in 1..tokens {
            dense_h.extend(random.values(self.dense_dim));
            routes.extend((0..used).chain(words(&random.values(used)).iter().copied()));
            x.extend(random.values(self.embed_dim));
        }
        x.extend(random.values(self.embed_dim));
        let shared = self.dense[2].as_slice();
        let empty = [0.0];
        let y = given.unwrap_or(&empty);
        let constants = [tile.0, tile.1, u32::from(given.is_none()), used];
        let call = Call {
            kernel: &FFN_DOWN,
            lanes,
            constants: &constants,
            push: push.bytes(),
            groups: [self.embed_dim.div_ceil(tile.0), tokens.div_ceil(tile.1) + 1, 1],
        };
        let pool = self.descriptors(&[shared]);
        let buffers: [&[&[u32]]; 7] =
            [&[words(&h)], &[&tiles], &[words(y)], &[&routes], &pool, &[words(&dense_h)], &[words(&x)]];
        let device = device().expect("invariant: the caller has seen the device");
        let after = device.run(&call, &control, &buffers);
        let pool = self.pool();
        let picks = match given {
            Some(y) => PickRows::Given(y),
            None => PickRows::Down(Routed { tiles: &tiles, pairs: &pairs, pool: &pool }, &h),
        };
        reference::ffn_down(&control, &push, used, picks, &routes, shared, &dense_h, &mut x);
        [floats(&after[7][0]).to_vec(), x]
    }

    fn down_push(&self) -> FfnDownPush {
        FfnDownPush {
            row_count: self.embed_dim,
            expert_columns: self.expert_dim,
            dense_columns: self.dense_dim,
            slot_words: self.slot_words,
            slots_per_buffer: SLOTS_PER_BUFFER,
            down_word: 2 * self.matrix,
        }
    }
}

#[test]
fn ffn_gate_up_matches_its_twin() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for (tile, is_normed) in TILES.iter().flat_map(|&tile| [(tile, true), (tile, false)]) {
            Networks::new(64, 32, 96, 2).check_gate_up(lanes, tile, is_normed, &[], 3);
            Networks::new(256, 96, 32, 6).check_gate_up(
                lanes,
                tile,
                is_normed,
                &[0, 0, 1, 3, 1, 1, 2, 4, 1],
                1,
            );
            let networks = Networks::new(96, 64, 64, 3);
            // Tiles of one pair, or of several.
            let tiles =
                if tile.1 < 4 { vec![1, 0, 1, 2, 5, 1, 3, 8, 1] } else { vec![1, 0, 1, 2, 1, 3, 3, 6, 4] };
            networks.check_gate_up(lanes, tile, is_normed, &tiles, 5);
        }
    }
}

#[test]
fn ffn_down_matches_its_twin() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        for rows in [1, 8] {
            for (embed, expert, dense, used) in [(96, 64, 224, 6), (224, 96, 32, 3)] {
                let networks = Networks::new(embed, expert, dense, used);
                let [got, want] = networks.down(lanes, (rows, 1), 1, None);
                assert_close(
                    &format!("{:?}, {lanes:?}", networks.down_push()),
                    &got,
                    &want,
                    PRODUCT_TOLERANCE,
                );
                for tokens in [1, 2, 5, 9] {
                    let mut random = Random::new(u64::from(tokens));
                    let y = random.values(tokens * used * embed);
                    for columns in [1, 4] {
                        let [got, want] = networks.down(lanes, (rows, columns), tokens, Some(&y));
                        let what = format!("{:?}, {tokens} tokens, {lanes:?}", networks.down_push());
                        assert_close(&what, &got, &want, PRODUCT_TOLERANCE);
                    }
                }
            }
        }
    }
}

fn pick(
    lanes: Lanes,
    rows: u32,
    is_normed: bool,
    push: PickExpertsPush,
    used: u32,
    tokens: u32,
    has_all: bool,
) {
    let device = device().expect("invariant: the caller has seen the device");
    let mut random = Random::new(u64::from(push.expert_count + push.column_count + tokens));
    let mut control = Control { token_count: tokens, ..Control::default() };
    let x = random.values(tokens * push.column_count);
    let norm = random.values(push.column_count);
    // Logits of some units, whose sigmoids differ.
    let columns = u16::try_from(push.column_count).expect("invariant: test data is small");
    let scale = 4.0 / f32::from(columns).sqrt();
    let weight: Vec<f32> =
        random.values(push.expert_count * push.column_count).iter().map(|value| value * scale).collect();
    let mut table = random.order(push.table_first + push.expert_count);
    if !has_all {
        table.fill(NO_SLOT);
    }
    let route_words = tokens * 2 * used;
    let mut logits = random.values((tokens + 1) * push.expert_count);
    let mut routes = vec![77; route_words as usize + 2];
    let mut tiles = vec![77; used as usize * 3 + 1];
    let mut pairs = vec![77; used as usize + 1];
    let mut report = vec![77; (push.report_first + route_words) as usize + 1];
    let counters = vec![0; (push.counter_first + tokens + 1) as usize];
    let constants = [rows, u32::from(is_normed), used, push.expert_count.div_ceil(lanes.subgroup)];
    let groups = [push.expert_count.div_ceil(rows), tokens + 1, 1];
    let call = Call { kernel: &PICK_EXPERTS, lanes, constants: &constants, push: push.bytes(), groups };
    let buffers: [&[&[u32]]; 10] = [
        &[words(&x)],
        &[words(&norm)],
        &[words(&weight)],
        &[words(&logits)],
        &[&table],
        &[&routes],
        &[&tiles],
        &[&pairs],
        &[&report],
        &[&counters],
    ];
    let after = device.run(&call, &control, &buffers);
    let picked = Picked {
        logits: &mut logits,
        routes: &mut routes,
        tiles: &mut tiles,
        pairs: &mut pairs,
        report: &mut report,
    };
    let norm = is_normed.then_some(norm.as_slice());
    reference::pick_experts(&mut control, &push, used, &x, norm, &weight, &table, picked);
    let what = format!("{push:?}, {used} picks, {tokens} tokens, {lanes:?}");
    assert_close(&what, floats(&after[4][0]), &logits, PRODUCT_TOLERANCE);
    // Random logits of some units lie further apart than they are off, so the picks are the same.
    let split = |words: &[u32]| -> (Vec<u32>, Vec<f32>) {
        let of = |first: u32| {
            (0..tokens).flat_map(move |token| (0..used).map(move |j| token * 2 * used + first + j))
        };
        let word = |at: u32| words[at as usize];
        (of(0).map(word).collect(), of(used).map(|at| f32::from_bits(word(at))).collect())
    };
    for (got, want) in
        [(&after[6][0], &routes), (&after[9][0][push.report_first as usize..].to_vec(), &routes)]
    {
        let ((got_picks, got_weights), (picks, weights)) = (split(got), split(want));
        assert_eq!(got_picks, picks, "{what}");
        assert_close(&what, &got_weights, &weights, WEIGHT_TOLERANCE);
    }
    assert_eq!((&after[7][0], &after[8][0]), (&tiles, &pairs), "{what}");
    assert_eq!(after[10][0], counters, "{what}: counters are zero again");
    assert_eq!(after[0][0][0], control.stop, "{what}: stop");
}

#[test]
fn pick_experts_matches_its_twins() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for (rows, is_normed) in [(1, true), (4, true), (4, false)] {
            for (expert_count, column_count, used, tokens) in
                [(1, 4, 1, 1), (56, 36, 6, 3), (129, 260, 6, 2), (136, 2048, 6, 1)]
            {
                let push = PickExpertsPush {
                    expert_count,
                    column_count,
                    layer: 3,
                    table_first: 5,
                    report_first: 4,
                    is_resolved: u32::from(tokens == 1),
                    weights_scale: 2.5,
                    epsilon: EPSILON,
                    counter_first: 2,
                };
                for has_all in [true, false] {
                    pick(lanes, rows, is_normed, push, used, tokens, has_all);
                }
            }
        }
    }
}

struct Heads {
    head_dim: u32,
    kv_head_count: u32,
    group: u32,
}

/// The next token of a sequence.
struct Next {
    position: u32,
    window: u32,
    ring_rows: u32,
    splits: u32,
    split_keys: u32,
}

fn attend(lanes: Lanes, heads: &Heads, next: &Next, is_rotated: bool) {
    let device = device().expect("invariant: the caller has seen the device");
    let &Heads { head_dim: dim, kv_head_count, group } = heads;
    let head_count = kv_head_count * group;
    let mut random = Random::new(u64::from(dim * 100 + head_count * 10 + next.position));
    let q = random.values(head_count * dim);
    let (k, v) = (random.values(kv_head_count * dim), random.values(kv_head_count * dim));
    let scaled = |values: Vec<f32>| -> Vec<f32> { values.iter().map(|value| value * 2.0).collect() };
    let (q_norm, k_norm) = (scaled(random.values(dim)), scaled(random.values(dim)));
    let turns: Vec<f32> = random.values(dim / 2).iter().map(|turn| turn * 3.0).collect();
    let angles: Vec<f32> = turns
        .chunks_exact(dim as usize / 2)
        .flat_map(|row| row.iter().map(|turn| turn.cos()).chain(row.iter().map(|turn| turn.sin())))
        .collect();
    let half = |value: f32| u32::from(f16::from_f32(value).to_bits());
    let mut cache = || -> Vec<u32> {
        let words = next.ring_rows * kv_head_count * dim / 2;
        (0..words).map(|_| half(random.value()) | half(random.value()) << 16).collect()
    };
    let (mut k_cache, mut v_cache) = (cache(), cache());
    let before = k_cache.clone();
    let sinks = random.values(head_count);
    let push = AttendPush {
        head_count,
        kv_head_count,
        window: next.window,
        ring_rows: next.ring_rows,
        is_rotated: u32::from(is_rotated),
        split_keys: next.split_keys,
        counter_first: 1,
        scale: 0.5,
        epsilon: EPSILON,
    };
    let control = Control { token_count: 1, position: next.position, ..Control::default() };
    let partial = vec![5.0f32; (head_count * next.splits * (dim + 2)) as usize];
    let mut target = vec![5.0f32; (head_count * dim) as usize];
    let counters = vec![0u32; (1 + kv_head_count) as usize];
    let constants = [dim, group, next.splits];
    let groups = [kv_head_count, next.splits, 2];
    let call = Call { kernel: &ATTEND, lanes, constants: &constants, push: push.bytes(), groups };
    let buffers: [&[&[u32]]; 12] = [
        &[words(&q)],
        &[words(&k)],
        &[words(&v)],
        &[words(&q_norm)],
        &[words(&k_norm)],
        &[words(&angles)],
        &[&k_cache],
        &[&v_cache],
        &[words(&sinks)],
        &[words(&partial)],
        &[words(&target)],
        &[&counters],
    ];
    let after = device.run(&call, &control, &buffers);
    reference::attend(
        &control,
        &push,
        dim,
        [&q, &k, &v],
        [&q_norm, &k_norm],
        &angles,
        [&mut k_cache, &mut v_cache],
        &sinks,
        &mut target,
    );
    let what = format!("dim {dim}, group {group}, {push:?}, position {}, {lanes:?}", next.position);
    assert_close(&what, floats(&after[11][0]), &target, ATTEND_TOLERANCE);
    assert_eq!(after[8][0], v_cache, "{what}: values are only rounded");
    let halves = |words: &[u32]| -> Vec<f32> {
        bytemuck::cast_slice::<u32, f16>(words).iter().map(|half| half.to_f32()).collect()
    };
    assert_close(&format!("{what}: keys"), &halves(&after[7][0]), &halves(&k_cache), 1e-3);
    let changed = after[7][0].iter().zip(&before).filter(|(after, before)| after != before).count();
    assert!(changed <= (kv_head_count * dim / 2) as usize, "{what}: {changed} words of the cache written");
    assert_eq!(after[12][0], counters, "{what}: counters are zero again");
}

#[test]
fn attend_matches_its_twins_at_every_head_shape() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for (head_dim, kv_head_count, group, is_rotated) in
            [(12, 2, 3, true), (32, 2, 4, false), (128, 1, 8, true)]
        {
            let heads = Heads { head_dim, kv_head_count, group };
            for (position, splits) in [(0, 1), (1, 3), (22, 3)] {
                let next = Next { position, window: 0, ring_rows: 23, splits, split_keys: 1 };
                attend(lanes, &heads, &next, is_rotated);
            }
        }
    }
}

#[test]
fn attend_sees_its_window_through_the_ring_in_any_number_of_splits() {
    let Some(device) = device() else { return };
    let heads = Heads { head_dim: 32, kv_head_count: 2, group: 2 };
    for lanes in device.single_and_wide() {
        for position in [0, 3, 4, 5, 6, 100] {
            for (splits, split_keys) in [(1, 1), (5, 1), (5, 3), (5, 16)] {
                for (window, ring_rows) in [(5, 5), (5, 8), (1, 3), (0, 101)] {
                    let next = Next { position, window, ring_rows, splits, split_keys };
                    attend(lanes, &heads, &next, true);
                }
            }
        }
    }
}
