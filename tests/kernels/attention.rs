//! `attention`, `attention_merge` and `attention_rows` against their twins.

use flint_shaders::Kernel;
use flint_shaders::kernels::{ATTENTION, ATTENTION_MERGE, ATTENTION_ROWS, ATTENTION_ROWS_MATRIX};
use flint_shaders::layout::{AttentionMergePush, AttentionPush, AttentionRowsPush};
use flint_shaders::reference::{self, Control, EMPTY_SPLIT_MAXIMUM};
use half::f16;

use crate::support::{Call, Device, Lanes, Random, assert_close, device, floats, words};

/// A score of some units is an f32 sum of up to 128 products, off by some 1e-7; `exp` turns that into as much relative to
/// its result, and Vulkan allows it 3 + 2|x| ulp of its own (llvmpipe: 8e-7).
const TOLERANCE: f32 = 1e-5;

struct Shape {
    head_dim: u32,
    kv_head_count: u32,
    group: u32,
}

struct Step {
    control: Control,
    window: u32,
    ring_rows: u32,
    splits: u32,
}

fn cache(random: &mut Random, words: u32) -> Vec<u32> {
    let half = |value: f32| u32::from(f16::from_f32(value).to_bits());
    (0..words).map(|_| half(random.value()) | half(random.value()) << 16).collect()
}

fn run(lanes: Lanes, shape: &Shape, step: &Step) {
    let Some(device) = device() else { return };
    let (dim, kv_heads, heads) = (shape.head_dim, shape.kv_head_count, shape.kv_head_count * shape.group);
    let mut random = Random::new(u64::from(dim * 100 + heads * 10 + step.splits));
    let tokens = step.control.token_count;
    // Queries of this size give scores of some units, so that the weights differ.
    let q: Vec<f32> = random.values(tokens * heads * dim).iter().map(|value| value * 4.0).collect();
    let k_cache = cache(&mut random, step.ring_rows * kv_heads * dim / 2);
    let v_cache = cache(&mut random, step.ring_rows * kv_heads * dim / 2);
    let sinks = random.values(heads);
    let push = AttentionPush {
        head_count: heads,
        kv_head_count: kv_heads,
        window: step.window,
        ring_rows: step.ring_rows,
        splits: step.splits,
        scale: 0.25,
    };
    let stride = (dim + 2) as usize;
    let mut partial = vec![5.0f32; (tokens + 1) as usize * heads as usize * step.splits as usize * stride];
    let call = Call {
        kernel: &ATTENTION,
        lanes,
        constants: &[dim, shape.group],
        push: push.bytes(),
        groups: [kv_heads, step.splits, tokens + 1],
    };
    let after =
        device.run(&call, &step.control, &[&[words(&q)], &[&k_cache], &[&v_cache], &[words(&partial)]]);
    reference::attention(&step.control, &push, dim, &q, &k_cache, &v_cache, &mut partial);
    let what = format!("dim {dim}, group {}, {:?}, {push:?}, {lanes:?}", shape.group, step.control);
    let got = floats(&after[4][0]);
    // Column by column: sums, maxima and totals have different sizes, and an empty split's maximum dwarfs all.
    let columns = |of: &[f32], columns: std::ops::Range<usize>| -> Vec<f32> {
        let column = of.chunks_exact(stride).flat_map(|split| split[columns.clone()].iter().copied());
        column.map(|value| if value == EMPTY_SPLIT_MAXIMUM { 0.0 } else { value }).collect()
    };
    for range in [0..dim as usize, dim as usize..stride - 1, stride - 1..stride] {
        assert_close(&what, &columns(got, range.clone()), &columns(&partial, range), TOLERANCE);
    }
    let empty = |of: &[f32]| -> Vec<bool> {
        of.chunks_exact(stride).map(|split| split[dim as usize] == EMPTY_SPLIT_MAXIMUM).collect()
    };
    assert_eq!(empty(got), empty(&partial), "{what}: empty splits");

    let push = AttentionMergePush { head_count: heads, head_dim: dim, splits: step.splits };
    let mut target = vec![5.0f32; ((tokens + 1) * heads * dim) as usize];
    let call = Call {
        kernel: &ATTENTION_MERGE,
        lanes,
        constants: &[],
        push: push.bytes(),
        groups: [heads, tokens + 1, 1],
    };
    let after = device.run(&call, &step.control, &[&[words(&partial)], &[words(&sinks)], &[words(&target)]]);
    reference::attention_merge(&step.control, &push, &partial, &sinks, &mut target);
    // The unwritten last row holds 5.0; leave it out of the scale.
    let written = (tokens * heads * dim) as usize;
    assert_close(&what, &floats(&after[3][0])[..written], &target[..written], TOLERANCE);
    assert_eq!(&floats(&after[3][0])[written..], &target[written..], "{what}: past the last token");
}

fn step(token_count: u32, position: u32, window: u32, ring_rows: u32, splits: u32) -> Step {
    Step { control: Control { stop: 0, token_count, position }, window, ring_rows, splits }
}

#[test]
fn attention_matches_its_twin_at_every_head_shape() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        for (head_dim, kv_head_count, group) in [
            (32, 1, 1),
            (32, 2, 4),
            (64, 1, 7),
            (64, 3, 2),
            (128, 1, 8),
            (128, 2, 1),
            (12, 2, 3),
            (256, 1, 2),
        ] {
            let shape = Shape { head_dim, kv_head_count, group };
            run(lanes, &shape, &step(1, 0, 0, 1, 1));
            run(lanes, &shape, &step(3, 20, 0, 23, 4));
        }
    }
}

#[test]
fn attention_sees_its_window_through_the_ring() {
    let Some(device) = device() else { return };
    let shape = Shape { head_dim: 32, kv_head_count: 2, group: 2 };
    for lanes in device.single() {
        // Around the window's edge: one key less than it, as many, one more; then far behind it.
        for position in [0, 3, 4, 5, 6, 100] {
            for splits in [1, 2, 3, 5, 9] {
                run(lanes, &shape, &step(1, position, 5, 5, splits));
                // A step of four tokens needs a ring of window + tokens - 1 rows.
                run(lanes, &shape, &step(4, position, 5, 8, splits));
                run(lanes, &shape, &step(2, position, 1, 3, splits));
            }
        }
    }
}

#[test]
fn attention_cuts_long_rows_into_any_number_of_splits() {
    let Some(device) = device() else { return };
    let shape = Shape { head_dim: 64, kv_head_count: 1, group: 4 };
    for lanes in device.single() {
        for splits in [1, 2, 7, 16, 31] {
            for keys in [1, 15, 16, 17, 211] {
                run(lanes, &shape, &step(1, keys - 1, 0, 256, splits));
            }
        }
    }
}

/// What `attention_rows` computes, and in what blocks.
struct Rows {
    shape: Shape,
    tokens: u32,
    position: u32,
    window: u32,
    ring_rows: u32,
    form: Form,
}

/// How the rows are computed.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// By so many lanes a row, for so many rows a lane.
    Lanes(u32, u32),
    /// By cooperative matrices, with so many subgroups.
    Matrix(u32),
}

impl Form {
    /// Rows of a workgroup.
    fn block(self, lanes: Lanes) -> u32 {
        match self {
            Self::Lanes(row_lanes, lane_rows) => lanes.subgroup / row_lanes * lane_rows,
            Self::Matrix(subgroups) => subgroups * 16,
        }
    }

    /// Of the largest output. By matrices, queries and weights are rounded to f16, to 11 bits: scores of some units are off by some
    /// 1e-3, and so is what they weigh (llvmpipe: 1e-3).
    fn tolerance(self) -> f32 {
        match self {
            Self::Lanes(..) => TOLERANCE,
            Self::Matrix(_) => 3e-3,
        }
    }

    /// Whether it serves heads of so many values.
    fn serves(self, head_dim: u32) -> bool {
        match self {
            Self::Lanes(..) => true,
            Self::Matrix(_) => head_dim.is_multiple_of(16) && head_dim <= 128,
        }
    }
}

/// The inputs of a run: queries, caches, sinks.
struct Inputs {
    q: Vec<f32>,
    k_cache: Vec<u32>,
    v_cache: Vec<u32>,
    sinks: Vec<f32>,
}

/// What a form runs as.
struct KernelOf {
    kernel: &'static Kernel,
    lanes: Lanes,
    constants: Vec<u32>,
}

impl Rows {
    fn heads(&self) -> u32 {
        self.shape.kv_head_count * self.shape.group
    }

    fn inputs(&self) -> Inputs {
        let (dim, heads) = (self.shape.head_dim, self.heads());
        let mut random = Random::new(u64::from(dim * 100 + heads * 10 + self.tokens));
        let cache_words = self.ring_rows * self.shape.kv_head_count * dim / 2;
        Inputs {
            q: random.values(self.tokens * heads * dim).iter().map(|value| value * 4.0).collect(),
            k_cache: cache(&mut random, cache_words),
            v_cache: cache(&mut random, cache_words),
            sinks: random.values(heads),
        }
    }

    /// What the device makes of the tokens from `first` on; the rows of the others hold 5.0.
    fn attended(&self, device: &Device, lanes: Lanes, inputs: &Inputs, first: u32) -> Vec<f32> {
        let (dim, heads) = (self.shape.head_dim, self.heads());
        let control = Control { stop: 0, token_count: self.tokens, position: self.position };
        let push = self.push(first);
        let KernelOf { kernel, lanes: workgroup, constants } = self.kernel(lanes);
        let call = Call {
            kernel,
            lanes: workgroup,
            constants: &constants,
            push: push.bytes(),
            // One block more than there are rows for.
            groups: [
                self.shape.kv_head_count,
                (self.tokens * self.shape.group).div_ceil(self.form.block(lanes)) + 1,
                1,
            ],
        };
        let target = vec![5.0f32; ((self.tokens + 1) * heads * dim) as usize];
        let Inputs { q, k_cache, v_cache, sinks } = inputs;
        let after = device.run(
            &call,
            &control,
            &[&[words(q)], &[k_cache], &[v_cache], &[words(sinks)], &[words(&target)]],
        );
        floats(&after[5][0]).to_vec()
    }

    fn kernel(&self, lanes: Lanes) -> KernelOf {
        let (dim, group) = (self.shape.head_dim, self.shape.group);
        match self.form {
            Form::Lanes(row_lanes, lane_rows) => {
                KernelOf { kernel: &ATTENTION_ROWS, lanes, constants: vec![dim, group, row_lanes, lane_rows] }
            }
            Form::Matrix(subgroups) => KernelOf {
                kernel: &ATTENTION_ROWS_MATRIX,
                lanes: Lanes { workgroup: lanes.subgroup * subgroups, subgroup: lanes.subgroup },
                constants: vec![dim, group],
            },
        }
    }

    fn push(&self, token_first: u32) -> AttentionRowsPush {
        AttentionRowsPush {
            head_count: self.heads(),
            kv_head_count: self.shape.kv_head_count,
            window: self.window,
            ring_rows: self.ring_rows,
            token_first,
            scale: 0.25,
        }
    }

    fn check(&self, device: &Device, lanes: Lanes) {
        let (dim, heads) = (self.shape.head_dim, self.heads());
        let what = format!(
            "dim {dim}, group {}, {} tokens from {} on, window {}, ring {}, {:?}, {lanes:?}",
            self.shape.group, self.tokens, self.position, self.window, self.ring_rows, self.form
        );
        let inputs = self.inputs();
        let got = self.attended(device, lanes, &inputs, 0);
        let control = Control { stop: 0, token_count: self.tokens, position: self.position };
        let mut want = vec![5.0f32; got.len()];
        let Inputs { q, k_cache, v_cache, sinks } = &inputs;
        reference::attention_rows(&control, &self.push(0), dim, q, [k_cache, v_cache], sinks, &mut want);
        let written = (self.tokens * heads * dim) as usize;
        assert_close(&what, &got[..written], &want[..written], self.form.tolerance());
        assert_eq!(&got[written..], &want[written..], "{what}: past the last token");
        // From another token on, the rows lie in other blocks, beside others.
        let first = self.tokens / 2;
        let begin = (first * heads * dim) as usize;
        let again = self.attended(device, lanes, &inputs, first);
        assert_eq!(words(&again[begin..]), words(&got[begin..]), "{what}: from token {first} on");
        assert!(again[..begin].iter().all(|&value| value == 5.0), "{what}: before token {first}");
    }
}

/// One, a few and all lanes a row; and matrices, where the device has them.
fn forms(device: &Device, lanes: Lanes) -> Vec<Form> {
    let mut forms =
        vec![Form::Lanes(1, 2), Form::Lanes(4.min(lanes.subgroup), 2), Form::Lanes(lanes.subgroup, 1)];
    if device.matrix().is_some_and(|of| [of.m, of.n, of.k] == [16; 3]) {
        forms.extend([Form::Matrix(1), Form::Matrix(4)]);
    } else {
        println!("no cooperative matrices of 16 x 16 x 16: attention_rows_matrix is left out");
    }
    forms
}

#[test]
fn rows_of_any_count_and_head_shape_match_their_twin() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        for form in forms(device, lanes) {
            for tokens in [1, 7, 8, 9, 33] {
                let shape = Shape { head_dim: 32, kv_head_count: 2, group: 4 };
                let rows = Rows { shape, tokens, position: 21, window: 0, ring_rows: 64, form };
                rows.check(device, lanes);
            }
            for (head_dim, kv_head_count, group) in
                [(32, 1, 1), (64, 1, 7), (64, 3, 2), (128, 1, 8), (12, 2, 3), (20, 1, 5), (256, 1, 6)]
            {
                if !form.serves(head_dim) {
                    continue;
                }
                let shape = Shape { head_dim, kv_head_count, group };
                let rows = Rows { shape, tokens: 5, position: 3, window: 0, ring_rows: 8, form };
                rows.check(device, lanes);
            }
        }
    }
}

#[test]
fn rows_see_their_windows_through_the_ring() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        for form in forms(device, lanes) {
            for position in [0, 3, 30, 100] {
                // Windows smaller and larger than the chunk, in rings of exactly as many rows as are needed.
                for (tokens, window) in [(1, 5), (9, 1), (9, 5), (33, 6), (7, 40)] {
                    let shape = Shape { head_dim: 32, kv_head_count: 2, group: 2 };
                    let ring_rows = window + tokens - 1;
                    Rows { shape, tokens, position, window, ring_rows, form }.check(device, lanes);
                }
            }
        }
    }
}

#[test]
fn what_no_row_of_a_block_sees_may_be_anything() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        for form in forms(device, lanes) {
            let shape = Shape { head_dim: 32, kv_head_count: 1, group: 2 };
            let rows = Rows { shape, tokens: 3, position: 9, window: 4, ring_rows: 16, form };
            let mut inputs = rows.inputs();
            let clean = rows.attended(device, lanes, &inputs, 0);
            // Positions 6 to 11 are seen.
            for row in (0..6).chain(12..16) {
                inputs.k_cache[row * 16..][..16].fill(0x7e00_7e00);
                inputs.v_cache[row * 16..][..16].fill(0x7e00_7e00);
            }
            assert_eq!(
                words(&rows.attended(device, lanes, &inputs, 0)),
                words(&clean),
                "{form:?}, {lanes:?}"
            );
        }
    }
}
