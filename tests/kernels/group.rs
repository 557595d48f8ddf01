//! `group_pairs` and `resolve_groups` against their twins: whole numbers, so every word.

use flint_shaders::kernels::{GROUP_PAIRS, RESOLVE_GROUPS};
use flint_shaders::layout::{
    GRID_WORDS, GROUP_WORDS, GroupPairsPush, KIND_GRIDS, NO_SLOT, ResolveGroupsPush, TILE_WORDS,
};
use flint_shaders::reference::{self, Control};

use crate::support::{Call, Device, Lanes, Random, device};

/// A layer's picks, each token's all different.
struct Picks {
    expert_count: u32,
    experts_used: u32,
    tokens: u32,
    routes: Vec<u32>,
}

impl Picks {
    fn new(expert_count: u32, experts_used: u32, tokens: u32) -> Self {
        let mut random = Random::new(u64::from(expert_count * 1000 + tokens));
        let mut routes = Vec::new();
        for _ in 0..tokens {
            routes.extend_from_slice(&random.order(expert_count)[..experts_used as usize]);
            // Weights, which are none of a grouping's business.
            routes.extend((0..experts_used).map(|_| random.below(expert_count)));
        }
        Self { expert_count, experts_used, tokens, routes }
    }

    fn pair_count(&self) -> u32 {
        self.tokens * self.experts_used
    }

    /// Sorts them on the device, compares with the twin, and gives the groups.
    fn grouped(&self, device: &Device, lanes: Lanes) -> Vec<u32> {
        let control = Control { token_count: self.tokens, ..Control::default() };
        let push = GroupPairsPush { pair_count: self.pair_count() };
        let mut pairs = vec![99u32; self.pair_count() as usize + 3];
        let mut groups = vec![99u32; (self.expert_count * GROUP_WORDS) as usize];
        let call = Call {
            kernel: &GROUP_PAIRS,
            lanes,
            constants: &[self.experts_used],
            push: push.bytes(),
            groups: [self.expert_count, 1, 1],
        };
        let after = device.run(&call, &control, &[&[&self.routes], &[&pairs], &[&groups]]);
        reference::group_pairs(&control, &push, self.experts_used, &self.routes, &mut pairs, &mut groups);
        let what = format!("{} tokens, {} experts, {lanes:?}", self.tokens, self.expert_count);
        assert_eq!((&after[2][0], &after[3][0]), (&pairs, &groups), "{what}");
        groups
    }
}

/// Makes tiles on the device, compares with the twin, and gives the stop word.
fn tile(device: &Device, lanes: Lanes, push: &ResolveGroupsPush, groups: &[u32], table: &[u32]) -> u32 {
    let pairs: u32 = groups.chunks_exact(GROUP_WORDS as usize).map(|group| group[1]).sum();
    let tiles_of_a_kind = push.kind_stride.max(pairs);
    let mut tiles =
        vec![99u32; (((push.kinds - 1) * push.kind_stride + tiles_of_a_kind) * TILE_WORDS) as usize + 3];
    let mut grids = vec![5u32; ((push.kinds + 1) * KIND_GRIDS * GRID_WORDS) as usize];
    let mut control = Control { token_count: 1, ..Control::default() };
    let call = Call { kernel: &RESOLVE_GROUPS, lanes, constants: &[], push: push.bytes(), groups: [1, 1, 1] };
    let after = device.run(&call, &control, &[&[groups], &[table], &[&tiles], &[&grids]]);
    reference::resolve_groups(&mut control, push, groups, table, &mut tiles, &mut grids);
    let what = format!("{push:?}, {lanes:?}");
    assert_eq!((&after[3][0], &after[4][0]), (&tiles, &grids), "{what}");
    assert_eq!(after[0][0], control.words(), "{what}");
    control.stop
}

#[test]
fn picks_are_grouped_and_tiled_as_by_their_twins() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        for (expert_count, experts_used, tokens) in
            [(1, 1, 1), (5, 5, 7), (16, 4, 33), (7, 6, 9), (67, 6, 8), (256, 6, 50), (257, 2, 130)]
        {
            let groups = Picks::new(expert_count, experts_used, tokens).grouped(device, lanes);
            let table: Vec<u32> = (0..expert_count + 4).map(|expert| expert * 3).collect();
            for (tile_max, kinds) in [(1, 1), (8, 1), (12, 1), (2, 2), (4, 3), (8, 4)] {
                let push = ResolveGroupsPush {
                    expert_count,
                    layer: 3,
                    table_first: 4,
                    tile_max,
                    kinds,
                    kind_stride: tokens * experts_used,
                };
                assert_eq!(tile(device, lanes, &push, &groups, &table), 0);
            }
        }
    }
}

#[test]
fn an_expert_that_was_picked_and_has_no_slot_stops_the_step() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        let groups = Picks::new(67, 3, 9).grouped(device, lanes);
        let push = ResolveGroupsPush {
            expert_count: 67,
            layer: 12,
            table_first: 5,
            tile_max: 8,
            kinds: 1,
            kind_stride: 0,
        };
        for missing in [0, 1, 30, 64, 66] {
            let mut table: Vec<u32> = (0..72).collect();
            table[5 + missing] = NO_SLOT;
            let is_picked = groups[missing * GROUP_WORDS as usize + 1] > 0;
            let stop = tile(device, lanes, &push, &groups, &table);
            assert_eq!(stop, if is_picked { 13 } else { 0 }, "expert {missing}");
        }
        let picked = groups.chunks_exact(GROUP_WORDS as usize).filter(|group| group[1] > 0).count();
        assert!((1..67).contains(&picked), "{picked} of 67 experts are picked");
    }
}
