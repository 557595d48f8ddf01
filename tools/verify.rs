//! `flint-rt verify`: whether a model on the drive still is what it was, and the way back.
//!
//! A store is measured by its manifest. A GGUF has no checksums of its own: its SHA-256 is compared with the one that is
//! given, or with the one that was taken before, which is remembered.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use flint_rt::base::units::{display_bytes, display_rate};
use flint_rt::store::{
    Damage, DamagedPart, Remembered, RepairReport, Sha256Digest, Source, SourceKind, StoreError,
    VerifyOptions, VerifyProgress, VerifyReport, repair_store, sha256_of_file, verify_store,
};
use serde_json::{Value, json};

use crate::args::{ModelArgs, VerifyArgs};
use crate::digest;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt;
use crate::model::{self, Found};
use crate::source;
use crate::terminal::{Bar, escaped_line, note};

/// Lines of damage for people; `--json` has all.
const SHOWN_MAX: usize = 50;

/// How often `--json` says how far it is.
const EVENT_PAUSE: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs) -> Outcome {
    let named = ModelArgs { model: Some(args.model.clone()), store_dir: args.store_dir.clone() };
    let path = model::find(&named, None)?.path;
    let outcome = if path.is_dir() { verify_a_store(args, &path) } else { verify_a_gguf(args, &path) };
    if let (true, Err(Failure::Told { text, .. })) = (args.json, &outcome) {
        print_event(&json!({ "event": "error", "text": text }))?;
    }
    outcome.map_err(|failure| failure.about(path.display().to_string()))
}

fn verify_a_store(args: &VerifyArgs, path: &Path) -> Outcome {
    if args.sha256.is_some() {
        return Err(Failure::usage("--sha256 is for a GGUF; a store is compared with its manifest"));
    }
    let options = VerifyOptions { threads: None, with_sha256: !args.quick };
    let mut watch = Watch::new(args.json, "verifying");
    let (report, repaired) = match &args.repair {
        None => (told(verify_store(path, &options, &mut |progress| watch.see(progress)))?, None),
        Some(source) => {
            let repaired = repair_store(path, source, &options, &mut |progress| watch.see(progress));
            let repaired = told(repaired)?;
            (repaired.after.clone(), Some(repaired))
        }
    };
    watch.end();
    if args.json {
        print_event(&store_json(path, &report, repaired.as_ref()))?;
    } else {
        tell_store(path, &report, repaired.as_ref())?;
    }
    if report.is_whole() {
        return Ok(());
    }
    let damaged = counted(report.damage.len(), "place");
    let text = match &args.repair {
        None => format!(
            "{damaged} damaged; `flint-rt verify {} --repair SOURCE.gguf` mends it from the GGUF",
            path.display()
        ),
        Some(_) => {
            format!(
                "{damaged} still damaged; remove the store and ingest the model again, on another drive if it fails again"
            )
        }
    };
    Err(Failure::new(Exit::Failed, text))
}

fn tell_store(path: &Path, report: &VerifyReport, repaired: Option<&RepairReport>) -> Outcome {
    let mut stdout = io::stdout().lock();
    if let Some(repaired) = repaired {
        for damage in repaired.before.damage.iter().take(SHOWN_MAX) {
            writeln!(stdout, "was damaged: {}", escaped_line(&damage.to_string()))?;
        }
        for name in &repaired.unusable {
            writeln!(stdout, "damaged in the source, too: {}", escaped_line(name))?;
        }
        if !repaired.before.is_whole() {
            writeln!(stdout, "rewrote {}", display_bytes(repaired.written_bytes))?;
        }
    }
    for damage in report.damage.iter().take(SHOWN_MAX) {
        writeln!(stdout, "damaged: {}", escaped_line(&damage.to_string()))?;
    }
    let unshown = report.damage.len().saturating_sub(SHOWN_MAX);
    if unshown > 0 {
        writeln!(stdout, "and {unshown} more; --json lists all")?;
    }
    if report.is_whole() {
        writeln!(stdout, "{}: whole", escaped_line(&path.display().to_string()))?;
    }
    stdout.flush()?;
    drop(stdout);
    for path in &report.buffered {
        note(&format!(
            "{}: read through the page cache, which may hold other bytes than the drive",
            path.display()
        ));
    }
    note(&format!(
        "{}, {}, {} in {:.1} s ({}){}",
        counted(usize::try_from(report.record_count).unwrap_or(usize::MAX), "expert"),
        counted(usize::try_from(report.tensor_count).unwrap_or(usize::MAX), "dense tensor"),
        display_bytes(report.total_bytes),
        report.elapsed.as_secs_f64(),
        display_rate(report.total_bytes, report.elapsed.as_secs_f64()),
        if report.with_sha256 { "" } else { ", without SHA-256" },
    ));
    Ok(())
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn store_json(path: &Path, report: &VerifyReport, repaired: Option<&RepairReport>) -> Value {
    let mut event = json!({
        "event": "done",
        "kind": "store",
        "path": path.display().to_string(),
        "whole": report.is_whole(),
        "damage": report.damage.iter().map(damage_json).collect::<Vec<_>>(),
        "records": report.record_count,
        "tensors": report.tensor_count,
        "bytes": report.total_bytes,
        "sha256_checked": report.with_sha256,
        "buffered": report.buffered.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
        "seconds": report.elapsed.as_secs_f64(),
    });
    if let Some(repaired) = repaired {
        event["repair"] = json!({
            "damage": repaired.before.damage.iter().map(damage_json).collect::<Vec<_>>(),
            "written_bytes": repaired.written_bytes,
            "unusable": repaired.unusable,
        });
    }
    event
}

fn damage_json(damage: &Damage) -> Value {
    let mut value = json!({
        "part": match &damage.part {
            DamagedPart::Header => "header",
            DamagedPart::Tensor(_) => "tensor",
            DamagedPart::Record(_) => "record",
            DamagedPart::Padding => "padding",
            _ => "file",
        },
        "file": damage.path.display().to_string(),
        "offset_bytes": damage.offset_bytes,
        "len_bytes": damage.len_bytes,
        "cause": damage.cause.to_string(),
    });
    match &damage.part {
        DamagedPart::Tensor(name) => value["tensor"] = json!(name),
        DamagedPart::Record(key) => {
            value["layer"] = json!(key.layer.0);
            value["expert"] = json!(key.expert.0);
        }
        _ => {}
    }
    value
}

fn verify_a_gguf(args: &VerifyArgs, path: &Path) -> Outcome {
    if args.repair.is_some() {
        return Err(Failure::usage("--repair is for a store; fetch a damaged GGUF again"));
    }
    if args.quick {
        return Err(Failure::usage("--quick is for a store; a GGUF has nothing but its SHA-256"));
    }
    // What is no model is no use, whatever its digest.
    let source = Source::open(path)?;
    let files = source.files();
    if files.len() > 1 && args.sha256.is_some() {
        return Err(Failure::usage("--sha256 is of one file; this model is split into several"));
    }
    let mut results = Vec::new();
    for file in files {
        let mut watch = Watch::new(args.json, "verifying");
        let started = Instant::now();
        let summed = sum(file, args.sha256, &mut |progress| watch.see(progress))?;
        watch.end();
        let seconds = started.elapsed().as_secs_f64();
        if !args.json {
            let mut stdout = io::stdout().lock();
            writeln!(stdout, "{}  {}", summed.sha256, escaped_line(&file.display().to_string()))?;
            stdout.flush()?;
            drop(stdout);
            note(&format!("{}: {}", file.display(), summed.verdict.text()));
            note(&format!(
                "{} in {seconds:.1} s ({})",
                display_bytes(summed.len_bytes),
                display_rate(summed.len_bytes, seconds)
            ));
        }
        results.push((file.clone(), summed, seconds));
    }
    let is_whole = results.iter().all(|(_, summed, _)| summed.verdict.is_right());
    if args.json {
        print_event(&json!({
            "event": "done",
            "kind": "gguf",
            "path": path.display().to_string(),
            "whole": is_whole,
            "files": results.iter().map(gguf_json).collect::<Vec<_>>(),
        }))?;
    }
    match results.iter().find(|(_, summed, _)| !summed.verdict.is_right()) {
        None => Ok(()),
        Some((file, summed, _)) => {
            Err(Failure::new(Exit::Failed, format!("{}: {}", file.display(), summed.verdict.text())))
        }
    }
}

fn gguf_json((file, summed, seconds): &(PathBuf, Summed, f64)) -> Value {
    json!({
        "file": file.display().to_string(),
        "sha256": summed.sha256.to_string(),
        "bytes": summed.len_bytes,
        "verdict": summed.verdict.text(),
        "right": summed.verdict.is_right(),
        "seconds": seconds,
    })
}

/// What a GGUF's bytes gave.
struct Summed {
    sha256: Sha256Digest,
    len_bytes: u64,
    verdict: Verdict,
}

/// What that says.
enum Verdict {
    /// As it was asked for.
    AsGiven,
    /// As the hub's file of this name and length is known to be.
    AsPinned,
    /// As it was before.
    AsBefore,
    /// There is nothing to compare with; whether there will be the next time.
    First { is_remembered: bool },
    /// Not what was asked for.
    NotAsGiven(Sha256Digest),
    /// Not what it was, though nobody wrote to the file.
    Rotten(Sha256Digest),
    /// Not what it was; somebody wrote to the file.
    Changed(Sha256Digest),
}

impl Verdict {
    fn is_right(&self) -> bool {
        matches!(self, Self::AsGiven | Self::AsPinned | Self::AsBefore | Self::First { .. })
    }

    fn text(&self) -> String {
        match self {
            Self::AsGiven => "as given".to_owned(),
            Self::AsPinned => "as the hub's file of this name is known to be".to_owned(),
            Self::AsBefore => "as it was before".to_owned(),
            Self::First { is_remembered: true } => {
                "nothing to compare it with; it is remembered for the next time".to_owned()
            }
            Self::First { is_remembered: false } => "nothing to compare it with".to_owned(),
            Self::NotAsGiven(wanted) => {
                format!("damaged or another file: the SHA-256 should be {wanted}; fetch it again")
            }
            Self::Rotten(was) => {
                format!(
                    "damaged: nobody wrote to it, but its SHA-256 was {was}; fetch it again, and check the drive"
                )
            }
            Self::Changed(was) => format!(
                "changed since its SHA-256 was taken, which was {was}; fetch it again, or if you replaced it, give the new one \
                 with `flint-rt verify --sha256`"
            ),
        }
    }
}

fn known(file: &Path) -> Outcome<Option<Remembered>> {
    match digest::notes() {
        Some(notes) => Ok(notes.look_up(file)?),
        None => Ok(None),
    }
}

/// The SHA-256 of the hub's file of this name and length, where it is known to this program.
fn pinned(file: &Path, len_bytes: u64) -> Option<Sha256Digest> {
    let pin = source::pin_of(file.file_name()?.to_str()?, len_bytes)?;
    Some(pin.sha256.parse().expect("invariant: the pin is a digest"))
}

/// What a digest says, beside the one that was `given`, the `pinned` one, and what is `known` from before, in this order.
fn judge(
    found: Sha256Digest,
    given: Option<Sha256Digest>,
    pinned: Option<Sha256Digest>,
    known: Option<Remembered>,
) -> Verdict {
    match (given, pinned, known) {
        (Some(given), ..) if given == found => Verdict::AsGiven,
        (Some(wanted), ..) => Verdict::NotAsGiven(wanted),
        (None, Some(pinned), _) if pinned == found => Verdict::AsPinned,
        (None, Some(wanted), _) => Verdict::NotAsGiven(wanted),
        (None, None, None) => Verdict::First { is_remembered: true },
        (None, None, Some(known)) if known.sha256 == found => Verdict::AsBefore,
        (None, None, Some(known)) if known.is_unchanged => Verdict::Rotten(known.sha256),
        (None, None, Some(known)) => Verdict::Changed(known.sha256),
    }
}

/// Takes the SHA-256 of a file and compares it; what is right is remembered.
fn sum(
    file: &Path,
    given: Option<Sha256Digest>,
    progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
) -> Outcome<Summed> {
    let known = known(file)?;
    let read_from = SystemTime::now();
    let (sha256, stamp) = told(sha256_of_file(file, progress))?;
    let mut verdict = judge(sha256, given, pinned(file, stamp.len_bytes()), known);
    if verdict.is_right() {
        // Not to remember costs time the next time, and nothing else.
        let kept = digest::notes().map(|notes| notes.remember(&stamp, sha256, read_from));
        if let Some(Err(error)) = &kept {
            note(&format!("its SHA-256 is not remembered: {error}"));
        }
        if let Verdict::First { is_remembered } = &mut verdict {
            *is_remembered = matches!(kept, Some(Ok(_)));
        }
    }
    Ok(Summed { sha256, len_bytes: stamp.len_bytes(), verdict })
}

/// Before a model is used: takes the SHA-256 of a GGUF in place, unless that was done and the file has not changed since.
/// A store needs no such look: its records are checked as they are read.
pub(crate) fn check_source(found: &Found) -> Outcome {
    let source = Source::open(&found.path)?;
    if source.kind() == SourceKind::Store {
        return Ok(());
    }
    for file in source.files() {
        if let Some(known) = known(file)?.filter(|known| known.is_unchanged) {
            let len_bytes = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
            // What was given once is right by what it was given as; the pinned file is right as nothing else.
            if pinned(file, len_bytes).is_none_or(|pinned| pinned == known.sha256) {
                continue;
            }
        }
        let mut watch = Watch::new(false, "checking");
        let summed = sum(file, None, &mut |progress| watch.see(progress))?;
        watch.end();
        let text = format!("{}: {}", file.display(), summed.verdict.text());
        if !summed.verdict.is_right() {
            return Err(Failure::new(Exit::Model, text));
        }
        note(&format!("{text}: {}", summed.sha256));
    }
    Ok(())
}

/// Ctrl-C is no error to report.
fn told<T>(result: Result<T, StoreError>) -> Outcome<T> {
    result.map_err(|error| match error {
        StoreError::Stopped => Failure::Interrupted,
        StoreError::RepairSource { .. } => Failure::because(Exit::Usage, "--repair", &error),
        other => other.into(),
    })
}

/// Shows how far it is, and hears Ctrl-C.
struct Watch {
    bar: Bar,
    is_json: bool,
    told_at: Instant,
    _asking: interrupt::Reply,
}

impl Watch {
    fn new(is_json: bool, what: &'static str) -> Self {
        let asking = interrupt::Reply::begin();
        Self { bar: Bar::bytes(what), is_json, told_at: Instant::now(), _asking: asking }
    }

    fn see(&mut self, progress: VerifyProgress) -> ControlFlow<()> {
        self.bar.set(progress.done_bytes, progress.total_bytes);
        if self.is_json && self.told_at.elapsed() >= EVENT_PAUSE {
            self.told_at = Instant::now();
            let event = json!({
                "event": "progress",
                "done_bytes": progress.done_bytes,
                "total_bytes": progress.total_bytes,
                "damaged": progress.damaged,
            });
            // Whoever read the events went away: the end will tell.
            if print_event(&event).is_err() {
                self.is_json = false;
            }
        }
        if interrupt::is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn end(self) {
        self.bar.clear();
    }
}

fn print_event(event: &Value) -> Outcome {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{event}")?;
    Ok(stdout.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_judged_by_the_best_that_is_known() {
        let [found, other] = [1, 2].map(|byte| Sha256Digest([byte; 32]));
        let known = |sha256, is_unchanged| Some(Remembered { sha256, is_unchanged });
        let is_right = |given, pinned, known| judge(found, given, pinned, known).is_right();
        assert!(is_right(Some(found), Some(other), known(other, true)), "what was given counts first");
        assert!(!is_right(Some(other), Some(found), known(found, true)), "also against it");
        assert!(
            matches!(judge(found, None, Some(found), known(other, true)), Verdict::AsPinned),
            "then the pin"
        );
        assert!(!is_right(None, Some(other), known(found, true)), "also against what was remembered");
        assert!(matches!(judge(found, None, None, None), Verdict::First { .. }), "nothing known");
        assert!(matches!(judge(found, None, None, known(found, false)), Verdict::AsBefore), "touched");
        assert!(matches!(judge(found, None, None, known(other, true)), Verdict::Rotten(_)), "not touched");
        assert!(matches!(judge(found, None, None, known(other, false)), Verdict::Changed(_)), "changed");
    }
}
