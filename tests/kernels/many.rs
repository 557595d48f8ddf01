//! The forms of the products of many rows, by shared memory (`*_tiles`) and by cooperative matrices (`*_matrix`), against the
//! twins of the kernels that they are forms of. Where the device has no cooperative matrices the tests say so and try the other.

use std::sync::Once;

use flint_rt::gpu::MatrixShape;
use flint_shaders::Kernel;
use flint_shaders::blocks::matrix_words;
use flint_shaders::kernels::{
    EXPERT_DOWN_MATRIX, EXPERT_DOWN_TILES, EXPERT_GATE_UP_MATRIX, EXPERT_GATE_UP_TILES, GATE_UP_MATRIX,
    GATE_UP_TILES, MATMUL_MATRIX, MATMUL_TILES,
};
use flint_shaders::layout::{ExpertDownPush, ExpertGateUpPush, GateUpPush, MatmulPush, POOL_BUFFERS};
use flint_shaders::reference::{self, Control};

use crate::support::{self, Call, Device, Lanes, Random, assert_close, device, floats, words};

/// A product by one form, with one size of tile.
#[derive(Clone, Debug)]
struct Form {
    is_matrix: bool,
    lanes: Lanes,
    rows: u32,
    tokens: u32,
    /// From DEPTH on, without ADD.
    rest: Vec<u32>,
}

impl Form {
    /// Tiles by shared memory: `rows` x `tokens`, `depth` values at a time, `lane` outputs a lane.
    fn tiles(device: &Device, (rows, tokens): (u32, u32), depth: u32, lane: (u32, u32)) -> Self {
        let subgroup = device.single()[0].subgroup;
        let workgroup = rows / lane.0 * (tokens / lane.1);
        let lanes = Lanes { workgroup, subgroup };
        Self { is_matrix: false, lanes, rows, tokens, rest: vec![depth, lane.0, lane.1] }
    }

    /// Tiles by cooperative matrices: `parts` subgroups down and across, each `down` x `across` matrices.
    fn matrix(
        device: &Device,
        shape: MatrixShape,
        parts: (u32, u32),
        (down, across): (u32, u32),
        depth: u32,
    ) -> Self {
        let subgroup = device.single()[0].subgroup;
        let lanes = Lanes { workgroup: subgroup * parts.0 * parts.1, subgroup };
        let (rows, tokens) = (parts.0 * down * shape.m, parts.1 * across * shape.n);
        let rest = vec![depth, parts.0, shape.m, shape.n, shape.k];
        Self { is_matrix: true, lanes, rows, tokens, rest }
    }

    /// Of each form some sizes of tiles; of cooperative matrices none where the device has none, which is said.
    fn all(device: &Device) -> Vec<Self> {
        static SKIPPED: Once = Once::new();
        let mut forms = vec![
            Self::tiles(device, (16, 8), 32, (4, 4)),
            Self::tiles(device, (32, 64), 32, (4, 8)),
            Self::tiles(device, (8, 16), 128, (2, 2)),
        ];
        match device.matrix() {
            None => SKIPPED.call_once(|| println!("SKIPPED: the device has no cooperative matrices")),
            Some(shape) => forms.extend([
                Self::matrix(device, shape, (2, 2), (2, 1), 32),
                Self::matrix(device, shape, (2, 1), (1, 4), 64),
                Self::matrix(device, shape, (1, 2), (2, 2), 128),
            ]),
        }
        forms
    }

    fn kernel(&self, [matrix, tiles]: [&'static Kernel; 2]) -> &'static Kernel {
        if self.is_matrix { matrix } else { tiles }
    }

    fn constants(&self, add: Option<bool>) -> Vec<u32> {
        let mut constants = vec![self.rows, self.tokens];
        constants.extend(&self.rest);
        constants.extend(add.map(u32::from));
        constants
    }

    /// f32 sums a few hundred products: 1e-6. f16 rounds weights and activations by up to 2^-11 each; over the terms of a sum the
    /// errors partly cancel (llvmpipe: 5e-4 of the largest output).
    fn tolerance(&self) -> f32 {
        if self.is_matrix { 1e-3 } else { 3e-6 }
    }

    /// Two such sums multiplied, and the device's `exp`.
    fn tolerance_of_gates(&self) -> f32 {
        if self.is_matrix { 2e-3 } else { 1e-5 }
    }
}

/// (rows, columns, tokens), around the edges of tiles.
const SHAPES: [(u32, u32, u32); 9] = [
    (1, 32, 1),
    (15, 64, 16),
    (16, 96, 17),
    (17, 32, 15),
    (33, 224, 33),
    (65, 416, 64),
    (31, 2048, 7),
    (64, 64, 65),
    (129, 160, 130),
];

/// One dense product; rows of `x` and `y` before its own, columns of `y` beside its own.
struct Dense {
    push: MatmulPush,
    tokens: u32,
    x: Vec<f32>,
    matrix: Vec<u32>,
    y: Vec<f32>,
}

impl Dense {
    fn new((row_count, column_count, tokens): (u32, u32, u32), is_counted_by_push: bool) -> Self {
        let mut random = Random::new(u64::from(row_count * 31 + column_count));
        let push = MatmulPush {
            row_count,
            column_count,
            token_count_max: if is_counted_by_push { tokens } else { 0 },
            x_row: row_count % 3,
            y_row: row_count % 2,
            y_stride: row_count + 5,
            y_column: row_count % 4,
        };
        Self {
            push,
            tokens,
            x: random.values((push.x_row + tokens) * column_count),
            matrix: random.matrix(row_count, column_count),
            y: random.values((push.y_row + tokens + 1) * push.y_stride),
        }
    }

    fn control(&self) -> Control {
        let token_count = if self.push.token_count_max == 0 { self.tokens } else { 999 };
        Control { token_count, ..Control::default() }
    }

    fn run(&self, device: &Device, form: &Form, is_added: bool) -> Vec<f32> {
        let call = Call {
            kernel: form.kernel([&MATMUL_MATRIX, &MATMUL_TILES]),
            lanes: form.lanes,
            constants: &form.constants(Some(is_added)),
            push: self.push.bytes(),
            groups: [self.push.row_count.div_ceil(form.rows), self.tokens.div_ceil(form.tokens) + 1, 1],
        };
        let after =
            device.run(&call, &self.control(), &[&[words(&self.x)], &[&self.matrix], &[words(&self.y)]]);
        floats(&after[3][0]).to_vec()
    }

    fn wanted(&self, is_added: bool) -> Vec<f32> {
        let mut want = self.y.clone();
        reference::matmul(&self.control(), &self.push, is_added, &self.x, &self.matrix, &mut want);
        want
    }

    /// The values of `y` that one token gets.
    fn row<'a>(&self, y: &'a [f32], token: u32) -> &'a [f32] {
        let push = &self.push;
        let first = (push.y_row + token) * push.y_stride + push.y_column;
        &y[first as usize..][..push.row_count as usize]
    }
}

/// The largest distance, relative to the largest wanted value.
fn distance(got: &[f32], want: &[f32]) -> f32 {
    let scale = want.iter().fold(0.0_f32, |scale, value| scale.max(value.abs()));
    got.iter().zip(want).fold(0.0_f32, |worst, (got, want)| worst.max((got - want).abs())) / scale
}

#[test]
fn matmul_of_many_rows_matches_its_twin() {
    let Some(device) = device() else { return };
    for form in Form::all(device) {
        let mut worst = 0.0_f32;
        for (shape, (is_added, is_counted)) in
            SHAPES.into_iter().zip([(false, false), (true, true)].into_iter().cycle())
        {
            let product = Dense::new(shape, is_counted);
            let got = product.run(device, &form, is_added);
            let what = format!("shape {shape:?}, added {is_added}, {form:?}");
            let want = product.wanted(is_added);
            assert_close(&what, &got, &want, form.tolerance());
            worst = worst.max(distance(&got, &want));
        }
        println!("{form:?}: off by {worst:.1e} of the largest output at most");
    }
}

/// Sizes of tiles are chosen by how many rows there are: neither that choice nor who else is in a tile may change a row's bits.
#[test]
fn a_row_depends_neither_on_its_neighbours_nor_on_the_tile() {
    let Some(device) = device() else { return };
    let forms = Form::all(device);
    for is_matrix in [false, true] {
        let same: Vec<&Form> = forms.iter().filter(|form| form.is_matrix == is_matrix).collect();
        let Some(first) = same.first() else { continue };
        let together = Dense::new((33, 416, 35), false).run(device, first, false);
        for &form in &same {
            let mut product = Dense::new((33, 416, 35), false);
            assert_eq!(product.run(device, form, false), together, "{form:?} and {first:?}");
            let whole = Dense::new((33, 416, 35), false);
            for token in [0, 7, 16, 34] {
                product.tokens = 1;
                product.push.x_row = whole.push.x_row + token;
                let alone = product.run(device, form, false);
                assert_eq!(product.row(&alone, 0), whole.row(&together, token), "token {token}, {form:?}");
            }
        }
    }
}

/// What f16 holds of an activation ends at 2^16; those of a feed-forward network may be larger.
#[test]
fn large_activations_are_as_exact_as_small_ones() {
    let Some(device) = device() else { return };
    for form in Form::all(device) {
        let mut product = Dense::new((17, 96, 5), false);
        for (value, scale) in product.x.iter_mut().zip([1e6, 3e5, 1.0, 7e4].into_iter().cycle()) {
            *value *= scale;
        }
        let got = product.run(device, &form, false);
        assert_close(&format!("{form:?}"), &got, &product.wanted(false), form.tolerance());
    }
}

/// A value that f16 cannot hold, or that is none, must be seen in the logits: it may not become a number.
#[test]
fn what_is_out_of_range_or_no_number_shows() {
    let Some(device) = device() else { return };
    for form in Form::all(device) {
        for bad in [f32::NAN, f32::INFINITY, 3e6, -1e30] {
            if !form.is_matrix && bad.is_finite() {
                continue;
            }
            let mut product = Dense::new((17, 96, 5), false);
            let at = (product.push.x_row + 2) * 96 + 50;
            product.x[at as usize] = bad;
            let got = product.run(device, &form, false);
            assert!(product.row(&got, 2).iter().all(|value| !value.is_finite()), "{bad}, {form:?}: {got:?}");
            for token in [0, 1, 3, 4] {
                let is_sound = product.row(&got, token).iter().all(|value| value.is_finite());
                assert!(is_sound, "{bad} of token 2 reached token {token}, {form:?}");
            }
        }
    }
}

/// Scales below 2^-14, which f16 holds as subnormals, are not lost.
#[test]
fn subnormal_scales_count_in_every_form() {
    let Some(device) = device() else { return };
    for form in Form::all(device) {
        let mut product = Dense::new((8, 256, 2), false);
        for block in product.matrix.chunks_exact_mut(5) {
            // d = 513 * 2^-24, m = -1000 * 2^-24.
            block[0] = 0x0201 | (0x83e8 << 16);
        }
        product.y.fill(0.0);
        let got = product.run(device, &form, false);
        assert_close(&format!("{form:?}"), &got, &product.wanted(false), form.tolerance());
    }
}

#[test]
fn gate_up_of_many_rows_matches_its_twin() {
    let Some(device) = device() else { return };
    for form in Form::all(device) {
        for (row_count, column_count, token_count) in SHAPES.into_iter().step_by(2) {
            let mut random = Random::new(u64::from(row_count * 37 + column_count));
            let push = GateUpPush { row_count, column_count };
            let control = Control { token_count, ..Control::default() };
            let x = random.values(token_count * column_count);
            let gate = random.matrix(row_count, column_count);
            let up = random.matrix(row_count, column_count);
            let mut h = random.values((token_count + 2) * row_count);
            let call = Call {
                kernel: form.kernel([&GATE_UP_MATRIX, &GATE_UP_TILES]),
                lanes: form.lanes,
                constants: &form.constants(None),
                push: push.bytes(),
                groups: [row_count.div_ceil(form.rows), token_count.div_ceil(form.tokens) + 1, 1],
            };
            let after = device.run(&call, &control, &[&[words(&x)], &[&gate], &[&up], &[words(&h)]]);
            reference::gate_up(&control, &push, &x, &gate, &up, &mut h);
            let what = format!("{push:?}, {token_count} tokens, {form:?}");
            assert_close(&what, floats(&after[4][0]), &h, form.tolerance_of_gates());
        }
    }
}

/// Words between the matrices of a slot.
const GAP: u32 = 3;

/// Routed experts of `embed` columns and `ffn` rows, two slots a buffer, and tiles of the given counts.
struct Experts {
    embed: u32,
    ffn: u32,
    used: u32,
    tokens: u32,
    matrix: u32,
    pool: Vec<Vec<u32>>,
    tiles: Vec<u32>,
    pairs: Vec<u32>,
}

impl Experts {
    fn new((embed, ffn): (u32, u32), counts: &[u32]) -> Self {
        let mut random = Random::new(u64::from(embed * 3 + ffn + support::count(counts.len())));
        let matrix = support::count(matrix_words(ffn as usize, embed as usize));
        let mut record = || {
            let mut words = Vec::new();
            for (rows, columns) in [(ffn, embed), (ffn, embed), (embed, ffn)] {
                words.extend(random.matrix(rows, columns));
                words.extend([0xFFFF_FFFF; GAP as usize]);
            }
            words
        };
        let pool: Vec<Vec<u32>> = (0..3).map(|_| [record(), record()].concat()).collect();
        let used = 2;
        let tokens = counts.iter().sum::<u32>().div_ceil(used);
        let pairs = random.order(tokens * used);
        // A tile that is not the kernel's stands first.
        let mut tiles = vec![0, 0, 1];
        let mut first = 0;
        for (slot, &count) in (0..).zip(counts) {
            tiles.extend([5 - slot % 6, first, count]);
            first += count;
        }
        Self { embed, ffn, used, tokens, matrix, pool, tiles, pairs }
    }

    fn control(&self) -> Control {
        Control { token_count: self.tokens, ..Control::default() }
    }

    fn tile_count(&self) -> u32 {
        support::count(self.tiles.len() / 3) - 1
    }

    fn gate_up_push(&self) -> ExpertGateUpPush {
        ExpertGateUpPush {
            row_count: self.ffn,
            column_count: self.embed,
            experts_used: self.used,
            tile_first: 1,
            slot_words: 3 * (self.matrix + GAP),
            slots_per_buffer: 2,
            gate_word: 0,
            up_word: self.matrix + GAP,
        }
    }

    fn down_push(&self) -> ExpertDownPush {
        ExpertDownPush {
            row_count: self.embed,
            column_count: self.ffn,
            tile_first: 1,
            slot_words: 3 * (self.matrix + GAP),
            slots_per_buffer: 2,
            down_word: 2 * (self.matrix + GAP),
        }
    }

    fn run(
        &self,
        device: &Device,
        form: &Form,
        kernel: &'static Kernel,
        (push, rows): (&[u8], u32),
        x: &[f32],
        y: &[f32],
    ) -> Vec<f32> {
        let call = Call {
            kernel,
            lanes: form.lanes,
            constants: &form.constants(None),
            push,
            groups: [rows.div_ceil(form.rows), 1, self.tile_count()],
        };
        let pool: Vec<&[u32]> = (0..POOL_BUFFERS as usize)
            .map(|at| self.pool.get(at).unwrap_or(&self.pool[0]).as_slice())
            .collect();
        let buffers: [&[&[u32]]; 5] = [&[words(x)], &[&self.tiles], &[&self.pairs], &[words(y)], &pool];
        floats(&device.run(&call, &self.control(), &buffers)[4][0]).to_vec()
    }

    /// Gate and up, then down, of what is given: `h` and `y`.
    fn both(&self, device: &Device, form: &Form, x: &[f32], h: &[f32], y: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let gate_up = form.kernel([&EXPERT_GATE_UP_MATRIX, &EXPERT_GATE_UP_TILES]);
        let down = form.kernel([&EXPERT_DOWN_MATRIX, &EXPERT_DOWN_TILES]);
        (
            self.run(device, form, gate_up, (self.gate_up_push().bytes(), self.ffn), x, h),
            self.run(device, form, down, (self.down_push().bytes(), self.embed), h, y),
        )
    }
}

#[test]
fn experts_of_many_pairs_match_their_twins() {
    let Some(device) = device() else { return };
    for form in Form::all(device) {
        for shape in [(32, 32), (96, 32), (64, 160)] {
            // As many pairs as there are in the largest tile of a prompt, and what lies around whole matrices.
            let counts: Vec<u32> =
                [1, 15, 16, 17, 33, 64].into_iter().filter(|&count| count <= form.tokens).collect();
            let experts = Experts::new(shape, &counts);
            let mut random = Random::new(u64::from(shape.0));
            let pair_count = experts.tokens * experts.used;
            let x = random.values(experts.tokens * experts.embed);
            let h = random.values((pair_count + 1) * experts.ffn);
            let y = random.values((pair_count + 1) * experts.embed);
            let (got_h, got_y) = experts.both(device, &form, &x, &h, &y);
            let pool: Vec<&[u32]> = experts.pool.iter().map(Vec::as_slice).collect();
            let (mut want_h, mut want_y) = (h.clone(), y);
            let (control, tiles, tile_count) = (experts.control(), &experts.tiles, experts.tile_count());
            let push = experts.gate_up_push();
            reference::expert_gate_up(
                &control,
                &push,
                tile_count,
                &x,
                tiles,
                &experts.pairs,
                &mut want_h,
                &pool,
            );
            let push = experts.down_push();
            reference::expert_down(
                &control,
                &push,
                tile_count,
                &h,
                tiles,
                &experts.pairs,
                &mut want_y,
                &pool,
            );
            let what = format!("{shape:?}, tiles of {counts:?}, {form:?}");
            assert_close(&what, &got_h, &want_h, form.tolerance_of_gates());
            assert_close(&what, &got_y, &want_y, form.tolerance());
        }
    }
}

/// Waves cut an expert's pairs into tiles by what is resident: a pair's row must not change a bit by it.
#[test]
fn a_pair_depends_neither_on_its_tile_nor_on_the_cut() {
    let Some(device) = device() else { return };
    for form in Form::all(device) {
        let mut experts = Experts::new((96, 64), &[8]);
        let mut random = Random::new(3);
        let x = random.values(experts.tokens * 96);
        let h = random.values(8 * 64);
        let y = random.values(8 * 96);
        let whole = experts.both(device, &form, &x, &h, &y);
        for cuts in [&[1, 1, 1, 1, 1, 1, 1, 1][..], &[3, 2, 3], &[1, 6, 1]] {
            experts.tiles = vec![0, 0, 1];
            let mut first = 0;
            for &count in cuts {
                experts.tiles.extend([5, first, count]);
                first += count;
            }
            assert!(experts.both(device, &form, &x, &h, &y) == whole, "cut into {cuts:?}, {form:?}");
        }
    }
}
