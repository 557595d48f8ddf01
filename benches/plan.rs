//! `cargo bench --bench plan`: what the host thinks for a layer of a token, on recorded routes: which picks are in slots, who
//! leaves for the others. The limit is a bare look at a flat table of slots for the same picks, without any policy.

#[path = "support/paired.rs"]
mod paired;

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use flint_rt::base::ids::{ExpertIndex, ExpertKey, LayerIndex};
use flint_rt::expert::plan::Wave;
use flint_rt::expert::pool::Pool;
use flint_rt::expert::{ExpertSpace, Policy, RouteTrace};
use paired::{Bench, Limit, Work, repeat};

/// Share of all experts that the pool holds: some hits, some loads in most layers.
const SHARE: f64 = 0.5;

/// Steps of the policies that forget: the product's.
const STEPS: u32 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bench = Bench::new(800);
    let recorded = recorded()?;
    // The full Flint's shape.
    let full = recorded.expand(47, 256, 6, 1)?;
    for (name, trace) in [("12 layers of 56", &recorded), ("47 layers of 256", &full)] {
        let work = Work::Things(u64::from(trace.layer_count), "layer");
        for policy in Policy::all(STEPS) {
            let mut planner = Planner::new(trace, policy);
            // Every expert that comes at all has come: the pool is full.
            planner.tokens(u64::from(trace.token_count().min(2000)));
            let mut bare = Bare::new(trace);
            let run = |iterations| bare.tokens(iterations);
            let limit = Limit { name: "look at a flat table", work, run };
            bench.case("plan", &format!("{name}, {policy}"), work, limit, |iterations| {
                planner.tokens(iterations)
            });
        }
    }
    bench.finish();
    Ok(())
}

/// The recorded traces, one after the other in turns.
fn recorded() -> Result<RouteTrace, Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/routes");
    let load = |text: &str| RouteTrace::load(&folder.join(format!("flint-mini-{text}.json")));
    let traces = [load("code")?, load("prose")?, load("chat")?];
    Ok(RouteTrace::in_turn(&traces.iter().collect::<Vec<_>>())?)
}

/// The product's pool, replaying a trace as the engine does, every load done at once.
struct Planner<'a> {
    trace: &'a RouteTrace,
    pool: Pool,
    experts: Vec<ExpertIndex>,
    wave: Wave,
    token: u32,
}

impl<'a> Planner<'a> {
    fn new(trace: &'a RouteTrace, policy: Policy) -> Self {
        let space = ExpertSpace {
            layer_first: trace.expert_layer_first,
            layer_count: trace.layer_count,
            expert_count: trace.expert_count,
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a 32-bit count"
        )]
        let slots = (f64::from(space.total()) * SHARE) as u32;
        let used = trace.experts_used as usize;
        Self {
            trace,
            pool: Pool::new(slots, policy, space),
            experts: Vec::with_capacity(used),
            wave: Wave::with_capacity(used),
            token: 0,
        }
    }

    fn tokens(&mut self, count: u64) -> Duration {
        repeat(count, || {
            self.pool.begin_step();
            for layer in 0..self.trace.layer_count {
                let picks = self.trace.picks_of(self.token, layer).iter();
                self.experts.clear();
                self.experts.extend(picks.map(|pick| ExpertIndex(u32::from(*pick))));
                let layer = LayerIndex(self.trace.expert_layer_first + layer);
                while !self.experts.is_empty() {
                    self.pool.plan_wave_into(layer, &mut self.experts, &mut self.wave);
                    self.wave.loads.iter().for_each(|load| self.pool.loaded(load.slot));
                }
                black_box(&self.wave);
            }
            self.token = (self.token + 1) % self.trace.token_count();
        })
    }
}

/// A flat table of slots, looked at.
struct Bare<'a> {
    trace: &'a RouteTrace,
    space: ExpertSpace,
    table: Vec<u32>,
    token: u32,
}

impl<'a> Bare<'a> {
    fn new(trace: &'a RouteTrace) -> Self {
        let space = ExpertSpace {
            layer_first: trace.expert_layer_first,
            layer_count: trace.layer_count,
            expert_count: trace.expert_count,
        };
        Self { trace, space, table: (0..space.total()).collect(), token: 0 }
    }

    fn tokens(&mut self, count: u64) -> Duration {
        repeat(count, || {
            for layer in 0..self.trace.layer_count {
                for pick in self.trace.picks_of(self.token, layer) {
                    let layer = LayerIndex(self.trace.expert_layer_first + layer);
                    let key = ExpertKey { layer, expert: ExpertIndex(u32::from(*pick)) };
                    black_box(self.table[self.space.index(key) as usize]);
                }
            }
            self.token = (self.token + 1) % self.trace.token_count();
        })
    }
}
