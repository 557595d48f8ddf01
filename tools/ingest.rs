//! `flint-rt ingest`: a GGUF in, from here or from a network; a store out.
//!
//! - In: a name, flags. Out: the store's path, or with `--json` events, one a line.
//! - Invariants: what this runtime could not run is refused before anything is written; so is what comes over a network
//!   with nobody to say what its SHA-256 must be, unless a flag allows that. What stops can be gone on with.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flint_rt::base::units::{display_bytes, display_rate};
use flint_rt::engine::open::read_tokenizer;
use flint_rt::gguf::Gguf;
use flint_rt::model::hparams::FlintConfig;
use flint_rt::store::{
    self, ByteSource, IngestOptions, IngestPhase, IngestProgress, IngestReport, Sha256Digest, Source,
    SourceKind, StoreError,
};
use serde_json::{Value, json};

use crate::args::{IngestArgs, NetworkArgs};
use crate::exit::{Exit, Failure, Outcome};
use crate::model;
use crate::source::{self, FetchOptions, Opened, Patience, SourceName};
use crate::terminal::{Bar, note};
use crate::{digest, dry_run, interrupt, stripes};

/// The shortest time between two events of progress.
const EVENT_EVERY: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &IngestArgs) -> Outcome {
    let outcome = ingest(args);
    if let (true, Err(Failure::Told { exit, text })) = (args.json, &outcome) {
        event(json!({ "event": "error", "exit": *exit as u8, "text": text }))?;
    }
    outcome
}

fn ingest(args: &IngestArgs) -> Outcome {
    let name = SourceName::parse(args.source.as_deref())?;
    let target = target(args, &name)?;
    // From here on, Ctrl-C asks; what waits for a server looks whether it was asked.
    let _working = interrupt::Reply::begin();
    let about = |failure: Failure| failure.about(name.to_string());
    let options = fetch_options(&args.network, if args.json { retry_event } else { note });
    let mut opened = source::open(&name, &args.sha256, options).map_err(|error| about(error.into()))?;
    let gguf = store::read_header(&mut opened.files).map_err(|error| about(error.into()))?;
    check(&gguf).map_err(about)?;
    let done = |mut document: Value, is_new: bool| {
        if !args.json {
            return Ok(writeln!(io::stdout(), "{}", target.display())?);
        }
        document["event"] = json!("done");
        document["store"] = json!(target.display().to_string());
        document["made"] = json!(is_new);
        event(document)
    };
    // Asked for twice, it is there: the second time costs a look.
    if let Some(there) = existing(&gguf, &opened, &name, &target)? {
        note(&format!("{} is a store of this file already", target.display()));
        return done(json!({ "source_sha256": in_words(&sha256_of(&there)) }), false);
    }
    if args.dry_run {
        return dry_run::tell(args, &name, &opened, &gguf, &target);
    }
    if opened.is_remote && opened.sha256.is_none() && !args.force_unverified {
        return Err(Failure::usage(format!(
            "{name}: nobody says what the SHA-256 of this file must be; give it with --sha256, or take whatever comes with \
             --force-unverified"
        )));
    }
    stripes::check(&args.stripe)?;
    make_folder(&target)?;
    let ingest_options = IngestOptions {
        sha256: opened.sha256.unwrap_or_default(),
        stripes: stripes::plan(&args.stripe, &target)?,
        ..IngestOptions::default()
    };
    let report = with_bar(opened.files, &target, &ingest_options, args.json)
        .map_err(|error| about(go_on_later(error.into())))?;
    tell(&report);
    done(json_of(&report), true)
}

/// Says what an interrupted ingest is good for, with the code of the signal that came.
pub(crate) fn go_on_later(failure: Failure) -> Failure {
    match failure {
        Failure::Told { exit: Exit::Interrupted | Exit::Terminated, text } if text.contains("goes on") => {
            Failure::new(interrupt::exit(), text)
        }
        Failure::Told { exit: Exit::Interrupted | Exit::Terminated, text } => {
            Failure::new(interrupt::exit(), format!("{text}; the same command goes on where it was"))
        }
        other => other,
    }
}

/// How a network is to be used, by the flags.
pub(crate) fn fetch_options(args: &NetworkArgs, note: fn(&str)) -> FetchOptions {
    let patience = Patience {
        tries_max: args.retries,
        first_wait: Duration::from_secs_f64(args.retry_wait),
        silence: Duration::from_secs_f64(args.stall_timeout),
    };
    FetchOptions { patience, is_stopped: interrupt::is_requested, note }
}

/// Refuses what this runtime cannot run.
fn check(gguf: &Gguf) -> Outcome {
    FlintConfig::from_gguf(gguf)?;
    read_tokenizer(gguf)?;
    Ok(())
}

fn target(args: &IngestArgs, source: &SourceName) -> Outcome<PathBuf> {
    let Some(dir) = model::store_dir(args.store_dir.as_ref()) else {
        return Err(Failure::usage("there is no home folder: name a folder with --store-dir"));
    };
    let name = args.name.clone().unwrap_or_else(|| source.stem());
    if matches!(name.as_str(), "" | "." | "..") || name.contains('/') {
        return Err(Failure::usage(format!(
            "{name:?} cannot be a store's name: it is one name, without a slash; give one with --name"
        )));
    }
    Ok(dir.join(name))
}

/// The store of this very source under `target`, if there is one: equal headers are not enough, as another training of the
/// same model has them too.
fn existing(gguf: &Gguf, opened: &Opened, name: &SourceName, target: &Path) -> Outcome<Option<Source>> {
    let Some(there) = Source::open(target).ok().filter(|there| there.kind() == SourceKind::Store) else {
        return Ok(None);
    };
    if there.gguf().header_bytes() != gguf.header_bytes()
        || there.gguf().file_len_bytes != gguf.file_len_bytes
    {
        return Ok(None);
    }
    let made_of = sha256_of(&there);
    let is_same = match (&opened.sha256, name) {
        (Some(wanted), _) => *wanted == made_of,
        // Of a split file the first part stands for all: their headers were compared.
        (None, SourceName::Local(path)) => made_of.first() == Some(&digest::of_file(path)?),
        (None, _) => true,
    };
    Ok(is_same.then_some(there))
}

/// SHA-256 of the files that the store `there` was made of.
fn sha256_of(there: &Source) -> Vec<Sha256Digest> {
    there.origin().iter().filter_map(|part| part.sha256).collect()
}

fn in_words(digests: &[Sha256Digest]) -> String {
    digests.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Makes the store of a file that is here, and the folder that holds it, with a bar and a note at the end.
pub(crate) fn make(source: &Path, target: &Path) -> Outcome<IngestReport> {
    make_folder(target)?;
    let report = make_quietly(source, target, &IngestOptions::default())
        .map_err(|error| Failure::from(error).about(source.display().to_string()))?;
    tell(&report);
    Ok(report)
}

/// Makes the store of a file that is here, with a bar.
pub(crate) fn make_quietly(
    source: &Path,
    target: &Path,
    options: &IngestOptions,
) -> Result<IngestReport, StoreError> {
    // The first Ctrl-C stops it where it can go on later, the second ends the program; it can go on then, too.
    let _working = interrupt::Reply::begin();
    with_bar(store::open_local(source)?, target, options, false)
}

/// Makes a store of `files`, with a bar, and with events of progress on standard output if `has_events`.
pub(crate) fn with_bar(
    files: Vec<Box<dyn ByteSource>>,
    target: &Path,
    options: &IngestOptions,
    has_events: bool,
) -> Result<IngestReport, StoreError> {
    let bar = Bar::bytes("ingesting");
    let mut last: Option<(IngestPhase, Instant)> = None;
    store::ingest_from(files, target, options, &mut |progress: IngestProgress| {
        bar.message(match progress.phase {
            IngestPhase::Copy => "ingesting",
            IngestPhase::Sync => "syncing",
        });
        bar.set(progress.done_bytes, progress.total_bytes);
        let is_due = last.is_none_or(|(phase, at)| phase != progress.phase || at.elapsed() >= EVENT_EVERY);
        if has_events && is_due {
            last = Some((progress.phase, Instant::now()));
            // Whoever read the events went away: the store is wanted all the same.
            let _ = event(progress_of(&progress));
        }
        if interrupt::is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// Makes the folder in which the store `target` will be.
pub(crate) fn make_folder(target: &Path) -> Outcome {
    let Some(dir) = target.parent() else { return Ok(()) };
    let failed = |error: io::Error| {
        let what = format!(
            "{}: no folder for stores can be made there; name another with --store-dir",
            dir.display()
        );
        Failure::because(Exit::of_io(&error), what, &error)
    };
    std::fs::create_dir_all(dir).map_err(failed)
}

/// Says what was done.
pub(crate) fn tell(report: &IngestReport) {
    let fetched_bytes = report.source_bytes - report.resumed_bytes;
    let resumed = match report.resumed_bytes {
        0 => String::new(),
        bytes => format!(", {} of them earlier", display_bytes(bytes)),
    };
    note(&format!(
        "{} experts, {}{resumed} in {:.1} s ({}), SHA-256 {}",
        report.record_count,
        display_bytes(report.store_bytes),
        report.elapsed.as_secs_f64(),
        display_rate(fetched_bytes, report.elapsed.as_secs_f64()),
        in_words(&report.source_sha256)
    ));
}

/// One event, in one line, at once.
fn event(document: Value) -> Outcome {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{document}")?;
    Ok(stdout.flush()?)
}

fn retry_event(text: &str) {
    // Nobody reads: nobody misses it.
    let _ = event(json!({ "event": "retry", "text": text }));
}

fn progress_of(progress: &IngestProgress) -> Value {
    json!({
        "event": "progress",
        "phase": match progress.phase {
            IngestPhase::Copy => "copy",
            IngestPhase::Sync => "sync",
        },
        "done_bytes": progress.done_bytes,
        "total_bytes": progress.total_bytes,
        "resumed_bytes": progress.resumed_bytes,
    })
}

/// What was done, for programs.
pub(crate) fn json_of(report: &IngestReport) -> Value {
    json!({
        "source_bytes": report.source_bytes,
        "resumed_bytes": report.resumed_bytes,
        "source_sha256": in_words(&report.source_sha256),
        "store_bytes": report.store_bytes,
        "records": report.record_count,
        "seconds": report.elapsed.as_secs_f64(),
    })
}
