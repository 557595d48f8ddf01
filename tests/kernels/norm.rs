//! `rms_norm` against its twin.

use flint_shaders::kernels::RMS_NORM;
use flint_shaders::layout::RmsNormPush;
use flint_shaders::reference::{self, Control};

use crate::support::{Call, Random, assert_close, device, floats, words};

/// An f32 sum over a few thousand squares is right to some 1e-7; root and division add a few ulp (llvmpipe: 2e-7).
const TOLERANCE: f32 = 3e-6;

#[test]
fn rms_norm_matches_its_twin() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for (dim, row_count, source_row, target_row) in
            [(1, 1, 0, 0), (7, 3, 1, 0), (31, 2, 0, 2), (32, 1, 3, 1), (33, 5, 0, 0), (2048, 2, 1, 1)]
        {
            let mut random = Random::new(u64::from(dim));
            let control = Control { token_count: row_count, ..Control::default() };
            let push = RmsNormPush { dim, source_row, target_row, epsilon: 1e-5 };
            let source = random.values((source_row + row_count + 1) * dim);
            let weight = random.values(dim);
            let mut target = random.values((target_row + row_count + 1) * dim);
            let call = Call {
                kernel: &RMS_NORM,
                lanes,
                constants: &[],
                push: push.bytes(),
                groups: [row_count, 1, 1],
            };
            let after =
                device.run(&call, &control, &[&[words(&source)], &[words(&weight)], &[words(&target)]]);
            reference::rms_norm(&control, &push, row_count, &source, &weight, &mut target);
            assert_close(&format!("dim {dim}, {lanes:?}"), floats(&after[3][0]), &target, TOLERANCE);
        }
    }
}

#[test]
fn rms_norm_of_zeros_is_zero() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        let push = RmsNormPush { dim: 5, source_row: 0, target_row: 0, epsilon: 1e-5 };
        let call = Call { kernel: &RMS_NORM, lanes, constants: &[], push: push.bytes(), groups: [1, 1, 1] };
        let control = Control { token_count: 1, ..Control::default() };
        let after = device.run(&call, &control, &[&[&[0; 5]], &[words(&[1.0; 5])], &[&[1; 5]]]);
        assert_eq!(floats(&after[3][0]), [0.0; 5]);
    }
}
