//! `combine` against its twin.

use flint_shaders::kernels::COMBINE;
use flint_shaders::layout::CombinePush;
use flint_shaders::reference::{self, Control};

use crate::support::{Call, Random, assert_close, device, floats, words};

/// Some ten f32 additions.
const TOLERANCE: f32 = 1e-6;

#[test]
fn combine_matches_its_twin() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for (embed_dim, experts_used, token_count) in
            [(1, 1, 1), (7, 6, 3), (8, 2, 1), (31, 6, 2), (32, 8, 1), (33, 6, 5), (2048, 6, 1)]
        {
            let mut random = Random::new(u64::from(embed_dim));
            let push = CombinePush { embed_dim, experts_used };
            let control = Control { token_count, ..Control::default() };
            let routes: Vec<u32> = (0..token_count)
                .flat_map(|_| {
                    let ids: Vec<u32> = (0..experts_used).map(|_| random.below(256)).collect();
                    let weights = random.values(experts_used);
                    ids.into_iter().chain(weights.into_iter().map(f32::to_bits))
                })
                .collect();
            let y = random.values(token_count * experts_used * embed_dim);
            let shared_out = random.values(token_count * embed_dim);
            let mut x = random.values((token_count + 2) * embed_dim);
            let groups = [embed_dim.div_ceil(lanes.workgroup), token_count + 1, 1];
            let call = Call { kernel: &COMBINE, lanes, constants: &[], push: push.bytes(), groups };
            let buffers: [&[&[u32]]; 4] = [&[&routes], &[words(&y)], &[words(&shared_out)], &[words(&x)]];
            let after = device.run(&call, &control, &buffers);
            reference::combine(&control, &push, &routes, &y, &shared_out, &mut x);
            assert_close(&format!("{push:?}, {lanes:?}"), floats(&after[4][0]), &x, TOLERANCE);
        }
    }
}
