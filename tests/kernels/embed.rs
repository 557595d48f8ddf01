//! `embed` against its twin.

use flint_shaders::kernels::EMBED;
use flint_shaders::layout::EmbedPush;
use flint_shaders::reference::{self, Control};

use crate::support::{Call, Random, device, floats, words};

#[test]
fn embed_copies_rows() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for (embed_dim, token_count) in [(1, 1), (7, 3), (32, 2), (33, 5), (257, 1)] {
            let mut random = Random::new(u64::from(embed_dim));
            let control = Control { token_count, ..Control::default() };
            let push = EmbedPush { embed_dim };
            let rows = random.values(11 * embed_dim);
            let row_index: Vec<u32> = (0..token_count).map(|_| random.below(11)).collect();
            let mut x = random.values((token_count + 2) * embed_dim);
            let call = Call {
                kernel: &EMBED,
                lanes,
                constants: &[],
                push: push.bytes(),
                groups: [1, token_count + 1, 1],
            };
            let after = device.run(&call, &control, &[&[words(&rows)], &[&row_index], &[words(&x)]]);
            reference::embed(&control, &push, &rows, &row_index, &mut x);
            assert_eq!(floats(&after[3][0]), x, "dim {embed_dim}, {token_count} tokens, {lanes:?}");
        }
    }
}
