//! Twins of `router` and `route`.

use super::{Control, at, rounded};
use crate::layout::{ForceRoutesPush, NO_SLOT, RoutePush, RouterPush, TILE_WORDS};

/// `y[t, r] = weight[r, :] . x[t, :]`: x `[token_count, column_count]`, weight `[row_count, column_count]`,
/// y `[token_count, row_count]`.
pub fn router(control: &Control, push: &RouterPush, x: &[f32], weight: &[f32], y: &mut [f32]) {
    if control.is_stopped() {
        return;
    }
    let (rows, columns) = (at(push.row_count), at(push.column_count));
    for token in 0..at(control.token_count) {
        let x = &x[token * columns..][..columns];
        for row in 0..rows {
            let weight = &weight[row * columns..][..columns];
            let sum: f64 = weight.iter().zip(x).map(|(&weight, &x)| f64::from(weight) * f64::from(x)).sum();
            y[token * rows + row] = rounded(sum);
        }
    }
}

/// Logits under which `route` picks what `forced` says: logits `[token_count, expert_count]`, forced
/// `[token_count, layer_count, experts_used]`, best first. Pick `j` gets `1 - j / 64`, all others at most -1; a NaN stays, and
/// so do the logits of a token whose first pick is `NO_SLOT`.
pub fn force_routes(
    control: &Control,
    push: &ForceRoutesPush,
    experts_used: u32,
    logits: &mut [f32],
    forced: &[u32],
) {
    if control.is_stopped() {
        return;
    }
    let (experts, used) = (at(push.expert_count), at(experts_used));
    for token in 0..at(control.token_count) {
        let picks = &forced[(token * at(push.layer_count) + at(push.moe_layer)) * used..][..used];
        if picks[0] == NO_SLOT {
            continue;
        }
        for (logit, expert) in logits[token * experts..][..experts].iter_mut().zip(0u32..) {
            if logit.is_nan() {
                continue;
            }
            *logit = match picks.iter().position(|&pick| pick == expert) {
                Some(place) => rounded(1.0 - place as f64 / 64.0),
                None => logit.min(-1.0),
            };
        }
    }
}

/// The `experts_used` experts with the largest sigmoid, best first, ties to the lower index, with their sigmoids.
///
/// The sigmoid is rounded to f32 before it is compared, because saturated logits tie there. With a NaN among the logits
/// the first experts stand in, each with NaN.
fn picks(logits: &[f32], experts_used: usize) -> Vec<(usize, f32)> {
    if logits.iter().any(|logit| logit.is_nan()) {
        return (0..experts_used).map(|expert| (expert, f32::NAN)).collect();
    }
    let sigmoid = |logit: f32| rounded(1.0 / (1.0 + (-f64::from(logit)).exp()));
    let mut chances: Vec<(usize, f32)> = logits.iter().copied().map(sigmoid).enumerate().collect();
    chances.sort_by(|left, right| right.1.total_cmp(&left.1).then(left.0.cmp(&right.0)));
    chances.truncate(experts_used);
    chances
}

/// Picks of every token. logits `[token_count, expert_count]`; table: slots of the experts, this layer's from
/// `table_first` on; routes `[token_count, 2, experts_used]`: experts, then weights as f32 bits; the same words go to
/// `report` from `report_first` on. With `is_resolved`, tile `j` is `{slot, j, 1}`, pair `j` is `j`, and a pick in no
/// slot sets the stop word to `layer + 1`.
#[expect(clippy::too_many_arguments, reason = "one argument a binding of the kernel")]
pub fn route(
    control: &mut Control,
    push: &RoutePush,
    experts_used: u32,
    logits: &[f32],
    table: &[u32],
    routes: &mut [u32],
    tiles: &mut [u32],
    pairs: &mut [u32],
    report: &mut [u32],
) {
    if control.is_stopped() {
        return;
    }
    let (experts, used) = (at(push.expert_count), at(experts_used));
    for token in 0..at(control.token_count) {
        let picks = picks(&logits[token * experts..][..experts], used);
        let total: f64 = picks.iter().map(|&(_, chance)| f64::from(chance)).sum();
        let first = token * 2 * used;
        for ((j, &(expert, chance)), number) in picks.iter().enumerate().zip(0u32..) {
            let weight = rounded(f64::from(chance) / total * f64::from(push.weights_scale)).to_bits();
            let pick = u32::try_from(expert).expect("invariant: an expert's index is a u32");
            routes[first + j] = pick;
            routes[first + used + j] = weight;
            report[at(push.report_first) + first + j] = pick;
            report[at(push.report_first) + first + used + j] = weight;
            if push.is_resolved != 0 {
                let slot = table[at(push.table_first) + expert];
                tiles[j * at(TILE_WORDS)..][..at(TILE_WORDS)].copy_from_slice(&[slot, number, 1]);
                pairs[j] = number;
                if slot == NO_SLOT {
                    control.stop = push.layer + 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn router_is_a_plain_product() {
        let control = Control { token_count: 1, ..Control::default() };
        let mut y = [0.0; 2];
        let push = RouterPush { row_count: 2, column_count: 3 };
        router(&control, &push, &[1.0, 2.0, 3.0], &[1.0, 0.0, -1.0, 0.5, 0.5, 0.5], &mut y);
        assert_eq!(y, [-2.0, 3.0]);
    }

    #[test]
    fn ties_go_to_the_lower_index_also_where_f32_saturates() {
        let best: Vec<usize> = picks(&[0.0, 30.0, 1.0, 40.0, 1.0], 4).iter().map(|pick| pick.0).collect();
        assert_eq!(best, [1, 3, 2, 4]);
    }

    #[test]
    fn a_nan_makes_every_weight_a_nan() {
        let stand_ins = picks(&[0.0, 0.0, f32::NAN], 2);
        assert_eq!((stand_ins[0].0, stand_ins[1].0), (0, 1));
        assert!(stand_ins.iter().all(|(_, chance)| chance.is_nan()));
    }

    #[test]
    fn forced_logits_are_picked_in_the_order_of_the_trace() {
        let control = Control { token_count: 2, ..Control::default() };
        let push = ForceRoutesPush { expert_count: 5, layer_count: 2, moe_layer: 1 };
        let mut logits = vec![90.0, 3.0, -7.0, f32::INFINITY, 0.5, 90.0, 3.0, -7.0, 0.0, f32::NAN];
        let forced = [0, 1, 2, 4, 0, 1, 2, 4];
        force_routes(&control, &push, 2, &mut logits, &forced);
        assert_eq!(logits[..5], [-1.0, -1.0, 1.0, -1.0, 1.0 - 1.0 / 64.0]);
        assert!(logits[9].is_nan(), "a fault stays visible");
        let best: Vec<usize> = picks(&logits[..5], 2).iter().map(|pick| pick.0).collect();
        assert_eq!(best, [2, 4]);

        let mut left_alone = [5.0, 4.0, 3.0, 2.0, 1.0];
        let one = Control { token_count: 1, ..Control::default() };
        force_routes(&one, &push, 2, &mut left_alone, &[0, 1, NO_SLOT, NO_SLOT]);
        assert_eq!(left_alone, [5.0, 4.0, 3.0, 2.0, 1.0]);
    }

    #[test]
    fn weights_are_shares_of_the_picked_and_a_missing_slot_stops() {
        let push = RoutePush {
            expert_count: 3,
            layer: 4,
            table_first: 1,
            report_first: 2,
            is_resolved: 1,
            weights_scale: 2.0,
        };
        let mut control = Control { token_count: 1, ..Control::default() };
        let (mut routes, mut tiles, mut pairs, mut report) = ([9; 4], [9; 6], [9; 2], [9; 6]);
        let logits = [0.0, -50.0, 0.0];
        let mut run = |control: &mut Control, table: &[u32]| {
            route(control, &push, 2, &logits, table, &mut routes, &mut tiles, &mut pairs, &mut report);
            (routes, tiles, pairs, report)
        };
        let (routes, tiles, pairs, report) = run(&mut control, &[7, 5, NO_SLOT, 6]);
        let one = 1.0f32.to_bits();
        assert_eq!(routes, [0, 2, one, one]);
        assert_eq!(tiles, [5, 0, 1, 6, 1, 1]);
        assert_eq!(pairs, [0, 1]);
        assert_eq!(report, [9, 9, 0, 2, one, one]);
        assert_eq!(control.stop, 0);
        run(&mut control, &[7, 5, 1, NO_SLOT]);
        assert_eq!(control.stop, 5);
    }
}
