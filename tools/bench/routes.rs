//! Traces of routes: one that a bench is driven by, and one that it leaves.

use std::fs;
use std::path::{Path, PathBuf};

use flint_rt::engine::simulate::{self, CacheKind, Prefetch, Rule, Setup};
use flint_rt::expert::Policy;
use flint_rt::expert::routes::{RouteError, RouteTrace};
use flint_rt::model::forced::ForcedPicks;
use flint_rt::model::hparams::FlintConfig;

use super::record::Recording;
use crate::exit::{Exit, Failure, Outcome};
use crate::output_file;
use crate::terminal::Bar;

/// Pools, in hundredths of all experts, at which an expanded trace is compared with the recorded one.
const SHARES_COMPARED: [u32; 3] = [10, 25, 50];

/// Picks of the model's shape, and what they are called.
pub(super) struct Driven {
    pub(super) picks: ForcedPicks,
    pub(super) label: String,
}

/// Reads the trace at `path`, expanded where it is of another shape than `config`.
pub(super) fn load(path: &Path, config: &FlintConfig, seed: u64) -> Outcome<Driven> {
    let trace = RouteTrace::load(path).map_err(|error| wrong(&error))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (layers, experts, used) = (config.moe_layer_count(), config.expert_count, config.experts_used);
    let is_as_recorded =
        (trace.layer_count, trace.expert_count, trace.experts_used) == (layers, experts, used);
    let (trace, label) = if is_as_recorded {
        let label = match &trace.expansion {
            None => format!("routes: {name}"),
            Some(how) => format!("expanded: {name} ({how})"),
        };
        (trace, label)
    } else {
        let expanded = trace.expand(layers, experts, used, seed).map_err(|error| wrong(&error))?;
        let how = expanded.expansion.as_deref().unwrap_or_default();
        let label = format!("expanded: {name} ({how}; {})", compared(&trace, &expanded));
        (expanded, label)
    };
    let guesses = trace.guesses;
    let picks = ForcedPicks::new(trace.picks, layers, experts, used)
        .and_then(|picks| match guesses {
            Some(guesses) => picks.with_guesses(guesses),
            None => Ok(picks),
        })
        .map_err(|error| Failure::because(Exit::Usage, path.display().to_string(), &error))?;
    Ok(Driven { picks, label })
}

/// How the hits of an expanded trace differ from those of the recorded one, in pools of the same shares, by the simulator.
fn compared(recorded: &RouteTrace, expanded: &RouteTrace) -> String {
    let bar = Bar::steps("comparing routes");
    let steps = SHARES_COMPARED.len() as u64;
    let differences = (0..).zip(SHARES_COMPARED).map(|(step, percent)| {
        bar.set(step, steps);
        100.0 * (hit_rate(expanded, percent) - hit_rate(recorded, percent))
    });
    let shown: Vec<String> = differences.map(|points| format!("{points:+.1}")).collect();
    let shares = SHARES_COMPARED.map(|percent| percent.to_string());
    format!("hits {} points beside the recorded at pools of {} %", shown.join(", "), shares.join(", "))
}

/// Hit rate in a pool of the default policy that begins empty and holds so many hundredths of all experts.
fn hit_rate(trace: &RouteTrace, percent: u32) -> f64 {
    let total = trace.layer_count * trace.expert_count;
    let slots = (total * percent / 100).max(trace.experts_used);
    let prefetch = Prefetch::default();
    let cache = CacheKind::Pool(Policy::default());
    let outcome = simulate::run(trace, &Setup { cache, slots, rule: Rule::Waves, prefetch, cost: None });
    outcome.hits as f64 / (outcome.hits + outcome.misses).max(1) as f64
}

/// Whether a trace can be left at `path`, asked before anything is measured for it.
pub(super) fn check(path: &Path) -> Outcome {
    files(path).iter().try_for_each(|file| output_file::check(file))
}

/// The files that a trace at `path` may consist of.
fn files(path: &Path) -> [PathBuf; 3] {
    [path.to_owned(), path.with_extension("picks.u8"), path.with_extension("picks.u16")]
}

/// Writes what was recorded to `path`. What could not be written whole is not left in parts.
pub(super) fn save(
    path: &Path,
    recording: Recording,
    config: &FlintConfig,
    model: &str,
    source: String,
) -> Outcome {
    if recording.picks.is_empty() {
        return Err(Failure::new(
            Exit::Failed,
            format!("{}: no token was timed: nothing to write", path.display()),
        ));
    }
    let trace = RouteTrace {
        model: model.to_owned(),
        model_sha256: None,
        expert_layer_first: config.lead_layer_count,
        layer_count: config.moe_layer_count(),
        expert_count: config.expert_count,
        experts_used: config.experts_used,
        picks: recording.picks,
        guesses: None,
        context_starts: recording.context_starts,
        source,
        expansion: None,
    };
    let new: Vec<PathBuf> = files(path).into_iter().filter(|file| !file.exists()).collect();
    trace.save(path).map_err(|error| {
        for file in &new {
            // Half a trace is of no use; the error that led here is the one to report.
            let _ = fs::remove_file(file);
        }
        let exit = match &error {
            RouteError::File { cause, .. } => Exit::of_io(cause),
            _ => Exit::Failed,
        };
        Failure::because(exit, "--record-routes", &error)
    })
}

/// A trace that cannot be read is a wrong argument.
fn wrong(error: &RouteError) -> Failure {
    Failure::because(Exit::Usage, "--routes", error)
}
