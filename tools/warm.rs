//! `--warm`: begins with the experts that were used most, and remembers which those are.
//!
//! In: a file of recorded routes, or the one that an earlier run left in the state folder, by the model's identity. Out: an engine whose
//! slots are filled; at the end of `generate` or `chat`, unless they were interrupted or failed, that file. Routes that were named and
//! are not of this model are refused. What else cannot be read or written costs only time, and is said.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use flint_rt::engine::Engine;
use flint_rt::engine::warm::{Expert, most_used_of};
use flint_rt::expert::RouteTrace;
use serde::{Deserialize, Serialize};

use crate::exit::{Exit, Failure, Outcome};
use crate::folders;
use crate::interrupt;
use crate::terminal::{Bar, note};

/// In place of a file: what an earlier run remembered.
const LAST_RUN: &str = "last";

/// What a run remembers.
#[derive(Serialize, Deserialize)]
struct Remembered {
    /// Which model, as `Engine::identity` names it.
    model: String,
    /// `[model layer, expert]`, the most used first.
    most_used: Vec<Expert>,
}

/// Fills the engine's slots, and host memory behind them.
pub(crate) fn fill(engine: &mut Engine, routes: &Path) -> Outcome {
    let Some(experts) = wanted(engine, routes)? else { return Ok(()) };
    let bar = Bar::steps("warming");
    let _asked = interrupt::Reply::begin();
    let filled = engine.warm(&experts, &mut |done, total| {
        bar.set(done.into(), total.into());
        if interrupt::is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.clear();
    match filled {
        Ok(count) => note(&format!("warm: {count} experts were read ahead")),
        // Who uses what cannot be read hears of it then.
        Err(error) => note(&format!("warning: warm: the rest is read when it is used: {error}")),
    }
    Ok(())
}

fn wanted(engine: &Engine, routes: &Path) -> Outcome<Option<Vec<Expert>>> {
    if routes.as_os_str() != LAST_RUN {
        let trace =
            RouteTrace::load(routes).map_err(|error| Failure::because(Exit::Usage, "--warm", &error))?;
        let config = engine.config();
        let (wanted, got) =
            ([config.moe_layer_count(), config.expert_count], [trace.layer_count, trace.expert_count]);
        if got != wanted {
            return Err(Failure::usage(format!(
                "--warm: {} has {} layers of {} experts, the model {} of {}: give routes of this model",
                routes.display(),
                got[0],
                got[1],
                wanted[0],
                wanted[1]
            )));
        }
        return Ok(Some(most_used_of(&trace)));
    }
    let Some(path) = path(engine) else { return Ok(None) };
    let Ok(text) = std::fs::read(&path) else {
        note("warm: nothing is remembered of this model yet; this run is");
        return Ok(None);
    };
    match serde_json::from_slice::<Remembered>(&text) {
        Ok(remembered) if remembered.model == engine.identity().to_string() => Ok(Some(remembered.most_used)),
        _ => {
            note(&format!("warm: {} is not of this model and is written anew", path.display()));
            Ok(None)
        }
    }
}

/// Remembers what the engine used most, for the next run.
pub(crate) fn remember(engine: &Engine) {
    let most_used = engine.most_used();
    let Some(path) = path(engine).filter(|_| !most_used.is_empty()) else { return };
    let remembered = Remembered { model: engine.identity().to_string(), most_used };
    let written =
        serde_json::to_vec(&remembered).map_err(std::io::Error::from).and_then(|text| replace(&path, &text));
    if let Err(error) = written {
        note(&format!("warning: {} was not written, so the next run begins cold: {error}", path.display()));
    }
}

/// Writes a file whole or not at all.
fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text)?;
    file.persist(path)?;
    Ok(())
}

fn path(engine: &Engine) -> Option<PathBuf> {
    Some(folders::state_dir()?.join("warm").join(format!("{}.json", engine.identity())))
}
