//! `rope` against its twin.

use flint_shaders::kernels::ROPE;
use flint_shaders::layout::RopePush;
use flint_shaders::reference::{self, Control};
use half::f16;

use crate::support::{Call, Lanes, Random, assert_close, device, floats, words};

/// An f32 sum over a head and a rotation: a few ulp (llvmpipe: 2e-7).
const TOLERANCE: f32 = 3e-6;

/// One ulp of an f16, relative: a key that lies between two f16 may round either way after the f32 error above.
const KEY_TOLERANCE: f32 = 1.0 / 1024.0;

fn run(lanes: Lanes, push: RopePush, control: Control, mut v: Vec<f32>) {
    let Some(device) = device() else { return };
    let (heads, kv_heads, dim) = (push.head_count, push.kv_head_count, push.head_dim);
    let mut random = Random::new(u64::from(heads * 1000 + kv_heads * 100 + dim));
    let tokens = control.token_count;
    let mut q = random.values((tokens + 1) * heads * dim);
    let k = random.values(tokens * kv_heads * dim);
    let rest = random.values(tokens * kv_heads * dim);
    v.truncate(rest.len());
    v.extend_from_slice(&rest[v.len()..]);
    let (q_norm, k_norm) = (random.values(dim), random.values(dim));
    let angles: Vec<f32> = (0..tokens)
        .flat_map(|_| {
            let turns: Vec<f32> = (0..dim / 2).map(|_| random.value() * 3.0).collect();
            let cosines: Vec<f32> = turns.iter().map(|turn| turn.cos()).collect();
            cosines.into_iter().chain(turns.into_iter().map(f32::sin))
        })
        .collect();
    let cache_words = push.ring_rows * kv_heads * dim / 2;
    let mut k_cache: Vec<u32> = (0..cache_words).map(|word| 0x3C00_3C00 ^ word).collect();
    let mut v_cache: Vec<u32> = (0..cache_words).map(|word| 0x3800_3800 ^ word).collect();

    let call = Call {
        kernel: &ROPE,
        lanes,
        constants: &[],
        push: push.bytes(),
        groups: [heads + 2 * kv_heads, tokens + 1, 1],
    };
    let after = device.run(
        &call,
        &control,
        &[
            &[words(&q)],
            &[words(&k)],
            &[words(&v)],
            &[words(&q_norm)],
            &[words(&k_norm)],
            &[words(&angles)],
            &[&k_cache],
            &[&v_cache],
        ],
    );
    reference::rope(&control, &push, &mut q, &k, &v, &q_norm, &k_norm, &angles, &mut k_cache, &mut v_cache);
    let what = format!("{push:?}, {control:?}, {lanes:?}");
    assert_close(&what, floats(&after[1][0]), &q, TOLERANCE);
    let halves = |words: &[u32]| -> Vec<f32> {
        bytemuck::cast_slice::<u32, f16>(words).iter().map(|half| half.to_f32()).collect()
    };
    for (index, (got, want)) in halves(&after[7][0]).into_iter().zip(halves(&k_cache)).enumerate() {
        let limit = KEY_TOLERANCE * want.abs() + 1e-7;
        assert!((got - want).abs() <= limit, "{what}: key value {index} is {got}, wanted {want}");
    }
    assert_eq!(after[8][0], v_cache, "{what}: values are only rounded");
}

#[test]
fn rope_matches_its_twin() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for (head_count, kv_head_count, head_dim, is_rotated) in
            [(1, 1, 4, 1), (2, 1, 12, 1), (8, 1, 32, 0), (6, 3, 64, 1), (4, 2, 128, 1), (1, 1, 256, 1)]
        {
            // One token; a step that wraps around the ring; a step that fills it exactly.
            for (token_count, position, ring_rows) in [(1, 0, 1), (5, 4, 7), (3, 1000, 3), (1, 8, 5)] {
                let push =
                    RopePush { head_count, kv_head_count, head_dim, is_rotated, ring_rows, epsilon: 1e-5 };
                run(lanes, push, Control { stop: 0, token_count, position }, Vec::new());
            }
        }
    }
}

/// Values go to f16 by round to nearest, ties to even, on every device: halfway cases, the range's two ends.
#[test]
fn values_round_to_nearest_even() {
    let Some(device) = device() else { return };
    let halfway = [2049.0, 2051.0, -2049.0, 1.000_488_3, 1.000_488_4, 1.001_464_8];
    let ends = [65504.0, 65519.9, 65520.0, 65536.0, 1e30, f32::INFINITY, f32::NEG_INFINITY];
    let small =
        [6.1e-5, 6.103_515_6e-5, 6.0e-5, 5.96e-8, 2.98e-8, 2.980_232_2e-8, 8.94e-8, 1e-30, 0.0, -0.0, -3e-8];
    for lanes in device.single() {
        let push = RopePush {
            head_count: 1,
            kv_head_count: 1,
            head_dim: 32,
            is_rotated: 0,
            ring_rows: 1,
            epsilon: 1e-5,
        };
        let values = [&halfway[..], &ends, &small].concat();
        run(lanes, push, Control { stop: 0, token_count: 1, position: 0 }, values);
    }
}
