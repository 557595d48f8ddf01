//! `router`, `force_routes` and `route` against their twins.

use flint_shaders::kernels::{FORCE_ROUTES, ROUTE, ROUTER};
use flint_shaders::layout::{ForceRoutesPush, NO_SLOT, RoutePush, RouterPush};
use flint_shaders::reference::{self, Control};

use crate::support::{Call, Lanes, Random, assert_close, device, floats, words};

/// An f32 sum over some hundred products (llvmpipe: 4e-7).
const ROUTER_TOLERANCE: f32 = 3e-6;

/// The device's `exp`, for which Vulkan allows 3 + 2|x| ulp, and two divisions (llvmpipe: 2e-7).
const WEIGHT_TOLERANCE: f32 = 5e-6;

#[test]
fn router_matches_its_twin() {
    let Some(device) = device() else { return };
    for lanes in device.single_and_wide() {
        for rows in [1, 4] {
            for (row_count, column_count, token_count) in
                [(1, 4, 1), (3, 12, 2), (4, 32, 3), (5, 124, 1), (16, 128, 2), (257, 132, 1), (7, 2048, 2)]
            {
                let mut random = Random::new(u64::from(row_count));
                let push = RouterPush { row_count, column_count };
                let control = Control { token_count, ..Control::default() };
                let x = random.values(token_count * column_count);
                let weight = random.values(row_count * column_count);
                let mut y = random.values((token_count + 2) * row_count);
                let groups = [row_count.div_ceil(rows), token_count + 1, 1];
                let call = Call { kernel: &ROUTER, lanes, constants: &[rows], push: push.bytes(), groups };
                let after = device.run(&call, &control, &[&[words(&x)], &[words(&weight)], &[words(&y)]]);
                reference::router(&control, &push, &x, &weight, &mut y);
                let what = format!("{push:?}, {rows} rows, {lanes:?}");
                assert_close(&what, floats(&after[3][0]), &y, ROUTER_TOLERANCE);
            }
        }
    }
}

#[test]
fn force_routes_matches_its_twin_bit_for_bit() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        for (expert_count, experts_used, layer_count, moe_layer, token_count) in
            [(1, 1, 1, 0, 1), (7, 6, 3, 2, 2), (33, 6, 2, 0, 3), (56, 6, 12, 11, 1), (257, 32, 2, 1, 2)]
        {
            let mut random = Random::new(u64::from(expert_count) + 1);
            let push = ForceRoutesPush { expert_count, layer_count, moe_layer };
            let control = Control { token_count, ..Control::default() };
            let mut logits = random.values((token_count + 1) * expert_count);
            logits[expert_count as usize / 2] = f32::NAN;
            logits[expert_count as usize - 1] = 1e30;
            let mut forced = Vec::new();
            for row in 0..token_count * layer_count {
                let order = random.order(expert_count);
                forced.extend_from_slice(&order[..experts_used as usize]);
                if row == (token_count - 1) * layer_count + moe_layer && token_count > 1 {
                    let first = forced.len() - experts_used as usize;
                    forced[first] = NO_SLOT;
                }
            }
            let groups = [token_count + 1, 1, 1];
            let constants = [experts_used];
            let call =
                Call { kernel: &FORCE_ROUTES, lanes, constants: &constants, push: push.bytes(), groups };
            let after = device.run(&call, &control, &[&[words(&logits)], &[&forced]]);
            reference::force_routes(&control, &push, experts_used, &mut logits, &forced);
            let what = format!("{push:?}, {experts_used} picks, {token_count} tokens, {lanes:?}");
            assert_eq!(after[1][0], words(&logits), "{what}");
        }
    }
}

struct Route {
    lanes: Lanes,
    experts_used: u32,
    push: RoutePush,
    token_count: u32,
    logits: Vec<f32>,
    table: Vec<u32>,
}

impl Route {
    /// Runs it, compares everything with the twin and returns the stop word.
    fn check(&self) -> u32 {
        let device = device().expect("invariant: the caller has seen the device");
        let used = self.experts_used as usize;
        let route_words = self.token_count as usize * 2 * used;
        let mut routes = vec![99u32; route_words + 3];
        let mut tiles = vec![99u32; used * 3 + 2];
        let mut pairs = vec![99u32; used + 2];
        let mut report = vec![99u32; self.push.report_first as usize + route_words + 2];
        let mut control = Control { token_count: self.token_count, ..Control::default() };
        let call = Call {
            kernel: &ROUTE,
            lanes: self.lanes,
            constants: &[self.experts_used, self.push.expert_count.div_ceil(self.lanes.subgroup)],
            push: self.push.bytes(),
            groups: [self.token_count + 1, 1, 1],
        };
        let after = device.run(
            &call,
            &control,
            &[&[words(&self.logits)], &[&self.table], &[&routes], &[&tiles], &[&pairs], &[&report]],
        );
        let push = &self.push;
        reference::route(
            &mut control,
            push,
            self.experts_used,
            &self.logits,
            &self.table,
            &mut routes,
            &mut tiles,
            &mut pairs,
            &mut report,
        );
        let what = format!("{push:?}, {used} picks, {} tokens, {:?}", self.token_count, self.lanes);
        let got = &after[3][0];
        for token in 0..self.token_count as usize {
            let (ids, weights) =
                (token * 2 * used..(token * 2 + 1) * used, (token * 2 + 1) * used..(token + 1) * 2 * used);
            assert_eq!(got[ids.clone()], routes[ids], "{what}: picks of token {token}");
            let (got, want) = (floats(&got[weights.clone()]), floats(&routes[weights]));
            if want[0].is_nan() {
                assert!(
                    got.iter().chain(want).all(|weight| weight.is_nan()),
                    "{what}: weights of token {token}"
                );
            } else {
                assert_close(&what, got, want, WEIGHT_TOLERANCE);
            }
        }
        assert_eq!(got[route_words..], routes[route_words..], "{what}: past the routes");
        let first = push.report_first as usize;
        assert_eq!(
            after[6][0][first..][..route_words],
            got[..route_words],
            "{what}: the report holds the same bits"
        );
        assert_eq!(after[6][0][..first], report[..first], "{what}: before the report");
        assert_eq!(
            after[6][0][first + route_words..],
            report[first + route_words..],
            "{what}: past the report"
        );
        assert_eq!((&after[4][0], &after[5][0]), (&tiles, &pairs), "{what}: tiles and pairs");
        assert_eq!(after[0][0], control.words(), "{what}: control");
        after[0][0][0]
    }
}

/// Logits whose sigmoids differ by far more than a device's `exp` errs, in random order.
fn distinct(random: &mut Random, count: u32) -> Vec<f32> {
    let order = random.order(count);
    order
        .iter()
        .map(|&place| (f32::from(u16::try_from(place).expect("invariant: experts are few")) - 100.0) / 50.0)
        .collect()
}

#[test]
fn route_picks_what_its_twin_picks() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        for (expert_count, experts_used) in [
            (1, 1),
            (2, 1),
            (5, 5),
            (6, 6),
            (7, 6),
            (8, 1),
            (9, 6),
            (31, 6),
            (32, 8),
            (33, 6),
            (65, 6),
            (127, 6),
            (256, 6),
            (257, 6),
        ] {
            let mut random = Random::new(u64::from(expert_count));
            let token_count = 3;
            let logits = (0..token_count).flat_map(|_| distinct(&mut random, expert_count)).collect();
            let push = RoutePush {
                expert_count,
                layer: 3,
                table_first: 0,
                report_first: 11,
                is_resolved: 0,
                weights_scale: 1.0,
            };
            let table = vec![NO_SLOT; expert_count as usize];
            let stop = Route { lanes, experts_used, push, token_count, logits, table }.check();
            assert_eq!(stop, 0, "an unresolved route never stops");
        }
    }
}

#[test]
fn route_gives_ties_to_the_lower_index() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        let push = RoutePush { expert_count: 67, weights_scale: 2.5, ..RoutePush::default() };
        let mut all_equal = vec![0.5; 67];
        let table = vec![0; 67];
        let run = |logits: &[f32]| {
            let logits = logits.to_vec();
            Route { lanes, experts_used: 6, push, token_count: 1, logits, table: table.clone() }.check();
        };
        run(&all_equal);
        // Saturated: 30 and 60 are both 1.0 in f32; 90 and infinity too.
        for (index, logit) in [(66, 30.0), (40, 60.0), (8, 90.0), (9, f32::INFINITY)] {
            all_equal[index] = logit;
            run(&all_equal);
        }
        run(&[-1.0, f32::NEG_INFINITY].into_iter().cycle().take(67).collect::<Vec<_>>());
    }
}

/// A fault in the router's weights must not pass as a quiet change of experts: it shows in the output, and only there.
#[test]
fn route_carries_a_nan_on_and_keeps_its_picks_apart() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        for broken in [0, 30, 66] {
            let mut random = Random::new(5);
            let mut logits: Vec<f32> = (0..2).flat_map(|_| distinct(&mut random, 67)).collect();
            logits[67 + broken] = f32::NAN;
            let push = RoutePush { expert_count: 67, weights_scale: 1.0, ..RoutePush::default() };
            let table = vec![0; 67];
            Route { lanes, experts_used: 6, push, token_count: 2, logits, table }.check();
        }
    }
}

#[test]
fn route_finds_slots_and_stops_at_a_missing_expert() {
    let Some(device) = device() else { return };
    for lanes in device.single() {
        let mut random = Random::new(7);
        let logits = distinct(&mut random, 33);
        let mut best: Vec<u32> = (0..33).collect();
        best.sort_by(|&left, &right| logits[right as usize].total_cmp(&logits[left as usize]));
        let push = RoutePush {
            expert_count: 33,
            layer: 12,
            table_first: 5,
            report_first: 3,
            is_resolved: 1,
            weights_scale: 1.0,
        };
        let table: Vec<u32> = (0..40).map(|expert| expert * 3).collect();
        let route = Route { lanes, experts_used: 6, push, token_count: 1, logits, table };
        assert_eq!(route.check(), 0, "every pick has a slot");
        for place in [0, 3, 5, 6] {
            let mut route = Route { table: route.table.clone(), logits: route.logits.clone(), ..route };
            route.table[5 + best[place] as usize] = NO_SLOT;
            let want = if place < 6 { 13 } else { 0 };
            assert_eq!(route.check(), want, "the expert at place {place} has no slot");
        }
    }
}
