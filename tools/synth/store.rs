//! `flint-rt synth --store`: a store of a synthetic GGUF, without the GGUF.
//!
//! In: a layout and the flags. Out: the store that `flint-rt ingest` would make of the file, to the byte, if the file had
//! the store's name. Room, journal and signals are `ingest`'s: what an interruption leaves is gone on with.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flint_rt::store::{ByteSource, IngestOptions};
use serde_json::json;

use super::args::SynthArgs;
use super::event;
use super::layout::Layout;
use super::source::SyntheticSource;
use crate::exit::{Failure, Outcome};
use crate::{ingest, interrupt, model, stripes};

/// Makes it.
pub(super) fn make(args: &SynthArgs, named: &Path, layout: Layout, threads: usize) -> Outcome {
    let target = target(args, named)?;
    let file_name = format!("{}.gguf", target.file_name().unwrap_or_default().to_string_lossy());
    let recipe = format!("seed {}, skew {}", args.seed, args.skew);
    let source = SyntheticSource::new(layout, file_name, &recipe, threads);
    // From here on, Ctrl-C and SIGTERM stop it where it can go on later.
    let _working = interrupt::Reply::begin();
    ingest::make_folder(&target)?;
    let options =
        IngestOptions { stripes: stripes::plan(&args.stripe, &target)?, ..IngestOptions::default() };
    let files: Vec<Box<dyn ByteSource>> = vec![Box::new(source)];
    let made = ingest::with_bar(files, &target, &options, args.json);
    let report = made.map_err(|error| ingest::go_on_later(error.into()))?;
    ingest::tell(&report);
    let shown = target.display().to_string();
    if !args.json {
        writeln!(io::stdout(), "{shown}")?;
        return Ok(());
    }
    let mut done = ingest::json_of(&report);
    done["event"] = json!("done");
    done["store"] = json!(shown);
    done["preset"] = json!(args.preset.name());
    done["seed"] = json!(args.seed);
    done["skew"] = json!(args.skew);
    event(&done)
}

/// A path as it is, a name in the store folder.
fn target(args: &SynthArgs, named: &Path) -> Outcome<PathBuf> {
    if named.to_string_lossy().contains('/') {
        return Ok(named.to_owned());
    }
    if matches!(named.to_str(), Some("" | "." | "..")) {
        return Err(Failure::usage(format!("{named:?} cannot be a store's name")));
    }
    match model::store_dir(args.store_dir.as_ref()) {
        Some(dir) => Ok(dir.join(named)),
        None => Err(Failure::usage("there is no home folder: name a folder with --store-dir")),
    }
}
