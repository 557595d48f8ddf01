//! `matmul` and `gate_up` against their twins.

use flint_shaders::kernels::{GATE_UP, MATMUL};
use flint_shaders::layout::{GateUpPush, MatmulPush};
use flint_shaders::reference::{self, Control};

use crate::support::{Call, Lanes, Random, assert_close, device, floats, words};

/// A lane adds some hundred products in f32, then the lanes are added: a few 1e-7 of the largest sum (llvmpipe: 3e-7).
const TOLERANCE: f32 = 3e-6;

/// Products of two such sums, and the device's `exp`, for which Vulkan allows 3 + 2|x| ulp (llvmpipe: 5e-7).
const GATE_UP_TOLERANCE: f32 = 1e-5;

/// (rows, columns, tokens), around tiles of 4 and 8 rows and tokens.
const SHAPES: [(u32, u32, u32); 9] = [
    (1, 32, 1),
    (3, 64, 3),
    (4, 96, 4),
    (5, 32, 5),
    (7, 224, 1),
    (8, 256, 2),
    (9, 32, 8),
    (13, 416, 9),
    (17, 2048, 7),
];

/// (ROWS, TOKENS).
const TILES: [(u32, u32); 5] = [(1, 1), (4, 1), (8, 1), (3, 5), (4, 8)];

struct Product {
    push: MatmulPush,
    tokens: u32,
    x: Vec<f32>,
    matrix: Vec<u32>,
    y: Vec<f32>,
}

impl Product {
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

    /// The control words; a token count in the push constants overrides theirs.
    fn control(&self) -> Control {
        let token_count = if self.push.token_count_max == 0 { self.tokens } else { 999 };
        Control { token_count, ..Control::default() }
    }

    fn run(&self, lanes: Lanes, (rows, tokens): (u32, u32), is_added: bool) -> Option<Vec<f32>> {
        let call = Call {
            kernel: &MATMUL,
            lanes,
            constants: &[rows, tokens, u32::from(is_added)],
            push: self.push.bytes(),
            groups: [self.push.row_count.div_ceil(rows), self.tokens.div_ceil(tokens) + 1, 1],
        };
        let after =
            device()?.run(&call, &self.control(), &[&[words(&self.x)], &[&self.matrix], &[words(&self.y)]]);
        Some(floats(&after[3][0]).to_vec())
    }
}

#[test]
fn matmul_matches_its_twin() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for (tile, is_added) in TILES.iter().flat_map(|&tile| [(tile, false), (tile, true)]) {
            for (shape, is_counted_by_push) in SHAPES.into_iter().zip([false, true].into_iter().cycle()) {
                let product = Product::new(shape, is_counted_by_push);
                let got = product.run(lanes, tile, is_added).unwrap();
                let mut want = product.y.clone();
                reference::matmul(
                    &product.control(),
                    &product.push,
                    is_added,
                    &product.x,
                    &product.matrix,
                    &mut want,
                );
                let what = format!("shape {shape:?}, tile {tile:?}, added {is_added}, {lanes:?}");
                assert_close(&what, &got, &want, TOLERANCE);
            }
        }
    }
}

/// Small weights have scales below 2^-14, which f16 holds as subnormals: a device that flushed them to zero would lose whole
/// blocks without a word.
#[test]
fn subnormal_scales_count() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        let mut product = Product::new((8, 256, 2), false);
        for block in product.matrix.chunks_exact_mut(5) {
            // d = 513 * 2^-24, m = -1000 * 2^-24.
            block[0] = 0x0201 | (0x83e8 << 16);
        }
        let got = product.run(lanes, (4, 1), false).unwrap();
        let mut want = product.y.clone();
        let (control, push) = (product.control(), product.push);
        reference::matmul(&control, &push, false, &product.x, &product.matrix, &mut want);
        let rows: Vec<_> = want.iter().zip(&product.y).filter(|(new, old)| new != old).collect();
        assert!(rows.len() >= 16 && rows.iter().any(|(new, _)| new.abs() > 1e-4), "the twin sees the scales");
        assert_close(&format!("subnormal scales, {lanes:?}"), &got, &want, TOLERANCE);
    }
}

/// Streaming may cut a batch anywhere: what shares a tile with a token must not change its bits.
#[test]
fn a_token_does_not_depend_on_its_neighbours() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for tile in TILES {
            let mut product = Product::new((9, 256, 7), false);
            product.push = MatmulPush { x_row: 0, y_row: 0, ..product.push };
            let together = product.run(lanes, tile, false).unwrap();
            let stride = product.push.y_stride as usize;
            for token in 0..7u32 {
                product.tokens = 1;
                product.push.x_row = token;
                let alone = product.run(lanes, tile, false).unwrap();
                let first = product.push.y_column as usize;
                let row = token as usize * stride + first;
                assert_eq!(
                    alone[first..][..9],
                    together[row..][..9],
                    "token {token}, tile {tile:?}, {lanes:?}"
                );
            }
        }
    }
}

#[test]
fn gate_up_matches_its_twin() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for tile in [(1, 1), (2, 4), (4, 1), (3, 5)] {
            for shape in SHAPES {
                let (row_count, column_count, token_count) = shape;
                let mut random = Random::new(u64::from(row_count * 37 + column_count));
                let push = GateUpPush { row_count, column_count };
                let control = Control { token_count, ..Control::default() };
                let x = random.values(token_count * column_count);
                let gate = random.matrix(row_count, column_count);
                let up = random.matrix(row_count, column_count);
                let mut h = random.values((token_count + 2) * row_count);
                let call = Call {
                    kernel: &GATE_UP,
                    lanes,
                    constants: &[tile.0, tile.1],
                    push: push.bytes(),
                    groups: [row_count.div_ceil(tile.0), token_count.div_ceil(tile.1) + 1, 1],
                };
                let after = device.run(&call, &control, &[&[words(&x)], &[&gate], &[&up], &[words(&h)]]);
                reference::gate_up(&control, &push, &x, &gate, &up, &mut h);
                let what = format!("shape {shape:?}, tile {tile:?}, {lanes:?}");
                assert_close(&what, floats(&after[4][0]), &h, GATE_UP_TOLERANCE);
            }
        }
    }
}
