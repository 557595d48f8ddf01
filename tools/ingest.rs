//! `flint-rt ingest`: a GGUF in, a store out.
//!
//! What this runtime could not run is refused before anything is written.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use flint_rt::base::units::{display_bytes, display_rate};
use flint_rt::engine::open::read_tokenizer;
use flint_rt::model::hparams::FlintConfig;
use flint_rt::store::{
    self, IngestOptions, IngestPhase, IngestProgress, IngestReport, Source, SourceKind, StoreError,
};
use serde_json::json;

use crate::args::IngestArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt;
use crate::model;
use crate::terminal::{Bar, note};

/// Runs the command.
pub(crate) fn run(args: &IngestArgs) -> Outcome {
    check(&args.source)?;
    let target = target(args)?;
    // Asked for twice, it is there: the second time costs a look.
    let (is_new, report) = match existing(&args.source, &target)? {
        Some(source) => {
            (false, json!({ "source_sha256": source.source_sha256().map(|digest| digest.to_string()) }))
        }
        None => (true, json_of(&make(&args.source, &target)?)),
    };
    let shown = target.display().to_string();
    if !is_new {
        note(&format!("{shown} is a store of this file already"));
    }
    let mut stdout = io::stdout().lock();
    if args.json {
        let mut document = report;
        document["store"] = json!(shown);
        document["made"] = json!(is_new);
        writeln!(stdout, "{document}")?;
    } else {
        writeln!(stdout, "{shown}")?;
    }
    Ok(())
}

/// Refuses what this runtime cannot run.
fn check(source: &Path) -> Outcome {
    let read = || -> Outcome {
        let gguf = store::read_header(&mut store::open_local(source)?)?;
        FlintConfig::from_gguf(&gguf)?;
        read_tokenizer(&gguf)?;
        Ok(())
    };
    read().map_err(|failure| failure.about(source.display().to_string()))
}

fn target(args: &IngestArgs) -> Outcome<PathBuf> {
    let Some(dir) = model::store_dir(args.store_dir.as_ref()) else {
        return Err(Failure::usage("there is no home folder: name a folder with --store-dir"));
    };
    let name = match &args.name {
        Some(name) => name.clone(),
        None => args.source.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    };
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(Failure::usage(format!(
            "{name:?} cannot be a store's name: it is one name, without a slash"
        )));
    }
    Ok(dir.join(name))
}

/// The store of this very file under `target`, if there is one.
fn existing(source: &Path, target: &Path) -> Outcome<Option<Source>> {
    if !target.exists() {
        return Ok(None);
    }
    let Ok(there) = Source::open(target) else { return Ok(None) };
    let given = Source::open(source)?;
    Ok(Some(there).filter(|there| there.kind() == SourceKind::Store && there.identity() == given.identity()))
}

/// Makes the store and the folder that holds it, with a bar and a note at the end.
pub(crate) fn make(source: &Path, target: &Path) -> Outcome<IngestReport> {
    if let Some(dir) = target.parent() {
        let failed = |error| Failure::because(Exit::Failed, dir.display().to_string(), &error);
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    let report = make_quietly(source, target, &IngestOptions::default())
        .map_err(|error| Failure::from(error).about(source.display().to_string()))?;
    note(&format!(
        "{} experts, {} in {:.1} s ({}), SHA-256 {}",
        report.record_count,
        display_bytes(report.store_bytes),
        report.elapsed.as_secs_f64(),
        display_rate(report.source_bytes, report.elapsed.as_secs_f64()),
        digests(&report)
    ));
    Ok(report)
}

/// Makes the store, with a bar.
pub(crate) fn make_quietly(
    source: &Path,
    target: &Path,
    options: &IngestOptions,
) -> Result<IngestReport, StoreError> {
    // The first Ctrl-C stops it where it can go on later, the second ends the program; it can go on then, too.
    let _working = interrupt::Reply::begin();
    let bar = Bar::bytes("ingesting");
    store::ingest_from(store::open_local(source)?, target, options, &mut |progress: IngestProgress| {
        bar.message(match progress.phase {
            IngestPhase::Copy => "ingesting",
            IngestPhase::Sync => "syncing",
        });
        bar.set(progress.done_bytes, progress.total_bytes);
        if interrupt::is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// The SHA-256 of the source's file, or of all its files.
fn digests(report: &IngestReport) -> String {
    report.source_sha256.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn json_of(report: &IngestReport) -> serde_json::Value {
    json!({
        "source_bytes": report.source_bytes,
        "source_sha256": digests(report),
        "store_bytes": report.store_bytes,
        "records": report.record_count,
        "seconds": report.elapsed.as_secs_f64(),
    })
}
