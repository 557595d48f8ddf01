//! The table over pool shares, caches and prefetchers.
//!
//! - Owns: nothing. In: routes and what to vary. Out: one [`Row`] a combination, for machines (serde) and as Markdown.

use std::fmt::Write as _;

use serde::Serialize;

use crate::engine::simulate::curves::slots_of;
use crate::engine::simulate::{CacheKind, GuessSource, Outcome, Prefetch, Rule, Setup, TimeCost, run};
use crate::expert::{Policy, RouteTrace};

/// What is varied; every combination is run.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Shares of all experts that the pool holds.
    pub shares: Vec<f64>,
    /// Caches.
    pub caches: Vec<CacheKind>,
    /// Prefetchers; without a cost only the first is run.
    pub prefetches: Vec<Prefetch>,
    /// What time costs, if tokens a second are wanted.
    pub cost: Option<TimeCost>,
}

impl Sweep {
    /// The product's policies with some half-lives, the bound, and what was tried beside them.
    pub fn caches_to_compare() -> Vec<CacheKind> {
        let pools = [8, 16, 32, 64, 128, 256].into_iter().map(|steps| Policy::HalfLife { steps });
        let others = Policy::all(64).into_iter().filter(|policy| !matches!(policy, Policy::HalfLife { .. }));
        let tried = [
            CacheKind::LeastStale,
            CacheKind::FairHalfLife { steps: 64 },
            CacheKind::BypassHalfLife { steps: 64 },
            CacheKind::ResidentHalfLife { steps: 64 },
            CacheKind::Belady,
        ];
        others.chain(pools).map(CacheKind::Pool).chain(tried).collect()
    }

    /// No prefetch, guesses of the next router by how many are read, and the token before.
    pub fn prefetches_to_compare() -> Vec<Prefetch> {
        let of = |source, fan_out| Prefetch { source, fan_out, ..Prefetch::default() };
        let (next, previous) =
            (|fan_out| of(GuessSource::NextRouter, fan_out), of(GuessSource::PreviousToken, 6));
        let two_ahead = |fan_out, fan_out_two_ahead| Prefetch {
            fan_out_two_ahead,
            ..of(GuessSource::NextRouter, fan_out)
        };
        let into_slots = |prefetch| Prefetch { takes_slot: true, ..prefetch };
        let judged = |prefetch| Prefetch { is_judged: true, ..prefetch };
        vec![
            Prefetch::default(),
            next(1),
            next(2),
            next(3),
            next(4),
            next(6),
            judged(next(6)),
            two_ahead(3, 1),
            two_ahead(3, 2),
            two_ahead(6, 3),
            into_slots(next(6)),
            previous,
            judged(previous),
            into_slots(previous),
        ]
    }
}

/// One combination and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The routes.
    pub routes: String,
    /// What was done to them after recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expansion: Option<String>,
    /// Share of all experts that the pool holds.
    pub pool_share: f64,
    /// The same in slots.
    pub pool_slots: u32,
    /// The cache.
    pub policy: String,
    /// The prefetcher.
    pub prefetch: String,
    /// Share of uses that found their expert in a slot.
    pub hit_rate: f64,
    /// Records read a token, useless guesses included.
    pub reads_per_token: f64,
    /// Records read on a guess.
    pub prefetch_issued: u64,
    /// Of those, records that were used.
    pub prefetch_used: u64,
    /// Of those, records that were not.
    pub prefetch_wasted: u64,
    /// Tokens a second, if time was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Milliseconds a token in which the device waits for the drive, if time was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall_ms_per_token: Option<f64>,
}

/// Runs every combination over `trace`, which is called `name`; `progress` hears how many of how many are done.
///
/// # Panics
/// As [`run`] does.
pub fn sweep(
    trace: &RouteTrace,
    name: &str,
    sweep: &Sweep,
    progress: &mut dyn FnMut(usize, usize),
) -> Vec<Row> {
    let prefetches = if sweep.cost.is_some() { &sweep.prefetches[..] } else { &sweep.prefetches[..1] };
    let total = sweep.shares.len() * sweep.caches.len() * prefetches.len();
    let mut rows = Vec::with_capacity(total);
    for &share in &sweep.shares {
        for &cache in &sweep.caches {
            for &prefetch in prefetches {
                progress(rows.len(), total);
                let slots = slots_of(trace, share);
                let cost = sweep.cost.clone();
                let outcome = run(trace, &Setup { cache, slots, rule: Rule::Waves, prefetch, cost });
                rows.push(row(
                    trace,
                    name,
                    (share, slots),
                    (cache, prefetch),
                    &outcome,
                    sweep.cost.is_some(),
                ));
            }
        }
    }
    progress(total, total);
    rows
}

fn row(
    trace: &RouteTrace,
    name: &str,
    (pool_share, pool_slots): (f64, u32),
    (cache, prefetch): (CacheKind, Prefetch),
    outcome: &Outcome,
    has_time: bool,
) -> Row {
    Row {
        routes: name.to_owned(),
        expansion: trace.expansion.clone(),
        pool_share,
        pool_slots,
        policy: cache.to_string(),
        prefetch: prefetch.to_string(),
        hit_rate: outcome.hit_rate(),
        reads_per_token: outcome.reads_a_token(),
        prefetch_issued: outcome.guesses_read,
        prefetch_used: outcome.guesses_used,
        prefetch_wasted: outcome.guesses_read - outcome.guesses_used,
        tokens_per_second: has_time.then(|| outcome.tokens_a_second()),
        stall_ms_per_token: has_time.then(|| outcome.stall_seconds * 1e3 / outcome.tokens.max(1) as f64),
    }
}

/// The rows as one Markdown table: a line for each policy and prefetcher, a column for each pool share, in it the hit rate and,
/// if time was asked for, tokens a second and the share of guessed reads that were wasted.
pub fn markdown(rows: &[Row]) -> String {
    let mut shares: Vec<f64> = rows.iter().map(|row| row.pool_share).collect();
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    let mut lines: Vec<(&str, &str, &str)> = Vec::new();
    for row in rows {
        let line = (&*row.routes, &*row.policy, &*row.prefetch);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let mut text = String::from("| routes | policy | prefetch |");
    for share in &shares {
        let _ = write!(text, " {:.0} % |", share * 100.0);
    }
    text += "\n| --- | --- | --- |";
    text += &" --- |".repeat(shares.len());
    for (routes, policy, prefetch) in lines {
        let _ = write!(text, "\n| {routes} | {policy} | {prefetch} |");
        for &share in &shares {
            let found = rows.iter().find(|row| {
                (&*row.routes, &*row.policy, &*row.prefetch) == (routes, policy, prefetch)
                    && row.pool_share == share
            });
            text += &found.map_or_else(|| " |".to_owned(), cell);
        }
    }
    text + "\n"
}

fn cell(row: &Row) -> String {
    let mut text = format!(" {:.3}", row.hit_rate);
    if let Some(rate) = row.tokens_per_second {
        let _ = write!(text, ", {rate:.2} tok/s");
    }
    if row.prefetch_issued > 0 {
        let _ =
            write!(text, ", {:.0} % wasted", 100.0 * row.prefetch_wasted as f64 / row.prefetch_issued as f64);
    }
    text + " |"
}
