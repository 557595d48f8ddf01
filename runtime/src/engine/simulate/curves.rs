//! Hit rates over pool sizes: the product's curve, and whether an expanded trace has its recording's.

use crate::engine::simulate::{CacheKind, Prefetch, Rule, Setup, run};
use crate::expert::{Policy, RouteTrace};

/// Shares of all experts at which curves are taken.
pub const SHARES: [f64; 8] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];

/// Slots that are `share` of all experts, at least what a token uses of a layer.
pub fn slots_of(trace: &RouteTrace, share: f64) -> u32 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u32")]
    let slots = (share * f64::from(trace.expert_total())).round() as u32;
    slots.clamp(trace.experts_used, trace.expert_total().max(trace.experts_used))
}

/// Share of uses that hit in a pool of `slots`.
pub fn hit_rate(trace: &RouteTrace, cache: CacheKind, slots: u32, rule: Rule) -> f64 {
    run(trace, &Setup { cache, slots, rule, prefetch: Prefetch::default(), cost: None }).hit_rate()
}

/// Hit rates at `shares` of all experts, by waves.
pub fn curve(trace: &RouteTrace, cache: CacheKind, shares: &[f64]) -> Vec<f64> {
    shares.iter().map(|&share| hit_rate(trace, cache, slots_of(trace, share), Rule::Waves)).collect()
}

/// The largest difference between the two curves of a pool that drops what was unused for longest: how well an expanded trace
/// stands for its recording. Shares below one and a half times what a recorded token uses are left out: such a pool keeps next
/// to nothing for the token after, and what it does keep hangs on how a token's picks are cut.
pub fn largest_difference(recorded: &RouteTrace, expanded: &RouteTrace) -> f64 {
    let edge = 1.5 * f64::from(recorded.experts_used) / f64::from(recorded.expert_count);
    let shares: Vec<f64> = SHARES.into_iter().filter(|&share| share >= edge).collect();
    let lru = CacheKind::Pool(Policy::Lru);
    let pairs = curve(recorded, lru, &shares).into_iter().zip(curve(expanded, lru, &shares));
    pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f64::max)
}
