//! `bench --simulate TRACE...`: policies and prefetchers on recorded routes, in the simulator, without a model.

use std::io::{self, Write};
use std::path::PathBuf;

use flint_rt::base::limits::READS_IN_FLIGHT_MAX;
use flint_rt::disk::DriveModel;
use flint_rt::engine::drive_cost::DriveCost;
use flint_rt::engine::simulate::TimeCost;
use flint_rt::engine::simulate::curves::SHARES;
use flint_rt::engine::simulate::table::{Row, Sweep as Table, markdown, sweep};
use flint_rt::expert::RouteTrace;

use super::args::{BenchArgs, Format};
use super::values::PoolSize;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt;
use crate::terminal::Bar;

/// Record of the full Flint, in bytes; and of a discrete GPU the seconds of a layer, and those that a layer with a miss takes
/// beside its reads. Estimates, as in `engine::expectation`.
const RECORD_BYTES: u64 = 1_966_080;
const LAYER_SECONDS: f64 = 170e-6;
const MISS_SECONDS: f64 = 264e-6;

/// Replays each trace at the pool shares of `--sweep`; with `--simulated-drive` in time, too.
pub(super) fn run(args: &BenchArgs, paths: &[PathBuf]) -> Outcome {
    if args.output == Format::Csv {
        return Err(Failure::usage("--simulate prints md, json or jsonl"));
    }
    let plan = Table {
        shares: shares(args)?,
        caches: Table::caches_to_compare(),
        prefetches: Table::prefetches_to_compare(),
        cost: args.simulated_drive.map(cost),
    };
    let mut rows: Vec<Row> = Vec::new();
    for path in paths {
        let trace =
            RouteTrace::load(path).map_err(|error| Failure::because(Exit::Usage, "--simulate", &error))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let bar = Bar::tokens("simulating");
        bar.message(format!("simulating {name}"));
        // Share by share, so that Ctrl-C ends it between two.
        for (index, &share) in plan.shares.iter().enumerate() {
            if interrupt::is_requested() {
                return Err(Failure::Interrupted);
            }
            let one = Table { shares: vec![share], ..plan.clone() };
            rows.extend(sweep(&trace, &name, &one, &mut |done, total| {
                bar.set((index * total + done) as u64, (plan.shares.len() * total) as u64);
            }));
        }
    }
    let mut out = io::stdout().lock();
    match args.output {
        // CSV was refused above.
        Format::Md | Format::Csv => write!(out, "{}", markdown(&rows))?,
        Format::Json => {
            writeln!(out, "{}", serde_json::to_string_pretty(&rows).map_err(io::Error::from)?)?;
        }
        Format::Jsonl => {
            for row in &rows {
                writeln!(out, "{}", serde_json::to_string(row).map_err(io::Error::from)?)?;
            }
        }
    }
    Ok(())
}

fn shares(args: &BenchArgs) -> Outcome<Vec<f64>> {
    let Some(sweep) = &args.sweep else { return Ok(SHARES.to_vec()) };
    let share = |size: &PoolSize| match size {
        PoolSize::Share(share) => Ok(*share),
        PoolSize::Slots(_) => Err(Failure::usage("--simulate takes pool sizes as shares, as pool=10%,20%")),
    };
    sweep.0.iter().map(share).collect()
}

fn cost(model: DriveModel) -> TimeCost {
    TimeCost {
        drive: drive_cost(model, RECORD_BYTES),
        layer_seconds: LAYER_SECONDS,
        ends_seconds: LAYER_SECONDS,
        miss_seconds: MISS_SECONDS,
    }
}

/// A modelled drive as the expectation takes it: up to its depth, records that are asked for at once share one latency.
pub(super) fn drive_cost(model: DriveModel, record_bytes: u64) -> DriveCost {
    let burst =
        |count: u32| model.latency.as_secs_f64() + f64::from(count) * record_bytes as f64 / model.rate;
    DriveCost::measured(
        vec![(1, burst(1)), (READS_IN_FLIGHT_MAX, burst(READS_IN_FLIGHT_MAX))],
        model.rate,
        record_bytes,
    )
}
