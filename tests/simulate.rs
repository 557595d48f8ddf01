//! The simulator: the published hit rates of the recorded routes come out again, expanded routes have their recording's curve,
//! and a real run hits as often as was simulated, to the last pick.

#![allow(clippy::unwrap_used, clippy::missing_assert_message, reason = "a test may fail where it stands")]

#[path = "support/nano.rs"]
mod nano;

use std::path::Path;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::hit_curve::HIT_RATES;
use flint_rt::engine::simulate::curves::{curve, hit_rate, largest_difference};
use flint_rt::engine::simulate::{CacheKind, Prefetch, Rule, Setup, run};
use flint_rt::expert::{Policy, RouteTrace};
use flint_rt::model::Want;
use nano::{Vectors, open_nano, skip_without_device};

fn recorded(text: &str) -> RouteTrace {
    let file = format!("tests/vectors/routes/flint-mini-{text}.json");
    RouteTrace::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// Slots of 672 at 10, 20, .. 80 %.
const SLOTS: [u32; 8] = [67, 134, 202, 269, 336, 403, 470, 538];

/// Hit rates at [`SLOTS`].
type Curve = [f64; 8];

/// What was published with the recordings, by another program; uses were counted one expert at a time.
const PUBLISHED: [(&str, Curve, Curve, Curve); 3] = [
    (
        "code",
        [0.004, 0.246, 0.390, 0.493, 0.615, 0.717, 0.811, 0.894],
        [0.160, 0.288, 0.408, 0.516, 0.618, 0.712, 0.801, 0.882],
        [0.414, 0.585, 0.702, 0.786, 0.850, 0.900, 0.938, 0.966],
    ),
    (
        "prose",
        [0.005, 0.332, 0.466, 0.600, 0.710, 0.808, 0.886, 0.945],
        [0.323, 0.493, 0.622, 0.725, 0.809, 0.874, 0.924, 0.962],
        [0.466, 0.647, 0.760, 0.837, 0.893, 0.933, 0.962, 0.981],
    ),
    (
        "chat",
        [0.004, 0.274, 0.407, 0.515, 0.618, 0.711, 0.804, 0.886],
        [0.189, 0.321, 0.439, 0.545, 0.641, 0.731, 0.812, 0.887],
        [0.431, 0.599, 0.707, 0.787, 0.850, 0.898, 0.936, 0.965],
    ),
];

#[test]
fn published_hit_rates_come_out_again() {
    for (text, lru, lfu, belady) in PUBLISHED {
        let trace = recorded(text);
        for (at, slots) in SLOTS.into_iter().enumerate() {
            let got = |cache| hit_rate(&trace, cache, slots, Rule::OneByOne);
            for (cache, wanted, tolerance) in [
                // Three digits were published.
                (CacheKind::Pool(Policy::Lru), lru[at], 0.000_501),
                (CacheKind::Belady, belady[at], 0.000_501),
                // Ties between equal counts are broken in another way.
                (CacheKind::Pool(Policy::Lfu), lfu[at], 0.0015),
            ] {
                let got = got(cache);
                assert!((got - wanted).abs() <= tolerance, "{text} {cache} {slots}: {got}, wanted {wanted}");
            }
        }
    }
}

/// A pool of fewer slots than a token's picks loses all by the published count. By waves, what a layer finds is used before
/// anything of it is dropped, so a little is left; from a token's picks on the two counts agree within two points.
#[test]
fn waves_hit_more_where_a_pool_is_smaller_than_a_token() {
    let trace = recorded("code");
    let lru = CacheKind::Pool(Policy::Lru);
    let both = |slots| [Rule::Waves, Rule::OneByOne].map(|rule| hit_rate(&trace, lru, slots, rule));
    let [waves, single] = both(67);
    assert!(single < 0.01 && waves > single, "{waves} {single}");
    for slots in &SLOTS[1..] {
        let [waves, single] = both(*slots);
        assert!((waves - single).abs() < 0.02, "{slots}: {waves} {single}");
    }
}

#[test]
fn no_policy_beats_the_bound_and_the_default_beats_lru() {
    let traces = ["code", "prose", "chat"].map(recorded);
    let all = RouteTrace::in_turn(&[&traces[0], &traces[1], &traces[2]]).unwrap();
    for slots in [67, 202, 470] {
        let of = |cache| hit_rate(&all, cache, slots, Rule::Waves);
        let bound = of(CacheKind::Belady);
        for policy in Policy::all(64) {
            assert!(of(CacheKind::Pool(policy)) <= bound, "{policy} {slots}");
        }
        assert!(of(CacheKind::Pool(Policy::default())) > of(CacheKind::Pool(Policy::Lru)) + 0.005, "{slots}");
    }
}

/// What `plan` expects of a pool is what the default policy gives.
#[test]
fn the_expected_hit_rates_are_those_of_the_default_policy() {
    let traces = ["code", "prose", "chat"].map(recorded);
    let all = RouteTrace::in_turn(&[&traces[0], &traces[1], &traces[2]]).unwrap();
    let shares = HIT_RATES.map(|(share, _)| share);
    for (column, trace) in [&traces[0], &all, &traces[1]].into_iter().enumerate() {
        let got = curve(trace, CacheKind::Pool(Policy::default()), &shares);
        for ((share, wanted), got) in HIT_RATES.iter().zip(got) {
            let wanted = wanted[column];
            assert!((got - wanted).abs() < 0.000_501, "{share}, column {column}: {got}, wanted {wanted}");
        }
    }
}

#[test]
fn expanded_routes_have_the_curve_of_their_recording() {
    for text in ["code", "prose"] {
        let recorded = recorded(text);
        let expanded = recorded.expand(12, 256, 6, 1).unwrap();
        let difference = largest_difference(&recorded, &expanded);
        println!("{text}: {} tokens, largest difference {difference:.4}", expanded.token_count());
        assert!(difference < 0.02, "{text}: {difference}");
    }
}

/// Decodes a text token by token and records what it picked; gives hits and misses of the real pool, too.
fn record_real_run(slots: u32, policy: Policy) -> Option<(RouteTrace, u64, u64)> {
    let mut engine = open_nano(|options| {
        options.pool_slots = Some(slots);
        options.cache_policy = Some(policy);
    })?;
    let vectors = Vectors::read();
    let long = vectors.prompts.iter().find(|prompt| prompt.name == "long").expect("a known prompt");
    let config = engine.config();
    let mut trace = RouteTrace {
        model: "flint-nano-q4_1.gguf".to_owned(),
        model_sha256: None,
        expert_layer_first: config.lead_layer_count,
        layer_count: config.moe_layer_count(),
        expert_count: config.expert_count,
        experts_used: config.experts_used,
        picks: Vec::new(),
        guesses: None,
        context_starts: vec![0],
        source: "a prompt of the vectors".to_owned(),
        expansion: None,
    };
    let mut session = engine.session().expect("a session");
    let ids: &[TokenId] = &long.ids[..160];
    engine
        .feed_prompt(&mut session, &ids[..1], Want::Nothing, &mut flint_rt::model::prefill::NoObserver)
        .expect("fed");
    for (at, &id) in ids.iter().enumerate() {
        if at > 0 {
            engine.feed_token(&mut session, id, Want::Nothing).expect("a step");
        }
        for routes in engine.last_routes() {
            trace.picks.extend(routes.experts.iter().map(|&expert| u16::try_from(expert).unwrap()));
        }
    }
    trace.check().expect("what the engine picked is a trace");
    let stats = engine.stream_stats();
    Some((trace, stats.hits, stats.misses))
}

#[test]
fn a_real_run_hits_as_often_as_simulated_to_the_last_pick() {
    for policy in [Policy::Lru, Policy::default(), Policy::HalfLife { steps: 3 }] {
        for slots in [5, 24, 40] {
            let Some((trace, hits, misses)) = record_real_run(slots, policy) else {
                return skip_without_device();
            };
            let cache = CacheKind::Pool(policy);
            let prefetch = Prefetch::default();
            let simulated = run(&trace, &Setup { cache, slots, rule: Rule::Waves, prefetch, cost: None });
            println!("{policy}, {slots} slots: {hits} hits, {misses} misses");
            assert_eq!((simulated.hits, simulated.misses), (hits, misses), "{policy}, {slots} slots");
            assert!(misses > 96, "{policy}, {slots} slots: a small pool misses");
        }
    }
}
