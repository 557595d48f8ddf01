//! `flint-rt report`, and the pictures of `flint-rt bench --report` and `--trace`.
//!
//! - In: rows of a bench, the profile of a drive, a recording of some tokens; from a run, or from the files of earlier ones.
//! - Out: one HTML file ([`page`]), or one trace file ([`trace`]).
//! - Invariants: what is shown is decided by pure functions ([`lanes`], [`pools`], [`heat_map`], [`timeline`], [`words`]); names
//!   and paths are hostile input.

mod drive;
mod figure;
mod frame;
mod heat_map;
mod lanes;
#[cfg(test)]
mod made_up;
mod page;
mod palette;
mod pass;
mod pools;
mod recorded;
mod timeline;
mod trace;
mod words;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args as ArgsOf;
use flint_rt::disk::DiskError;
use flint_rt::disk::profile::DriveProfile;
use flint_rt::engine::EngineError;

use page::{Material, page};
pub(crate) use pass::{PASS_TOKENS, record};
pub(crate) use recorded::{Recorded, add_uses, uses_since};

use crate::bench::{self, Row};
use crate::exit::{Exit, Failure, Outcome};
use crate::output_file::check;

/// Longest file that is read: a trace of some hundred tokens has tens of megabytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The flags of `flint-rt report`.
#[derive(Debug, ArgsOf)]
pub(crate) struct ReportArgs {
    /// What `flint-rt bench -o json` or `-o jsonl` printed.
    #[arg(value_name = "RESULT.json")]
    result: PathBuf,
    /// What `flint-rt disk-profile` measured of the drive.
    #[arg(long, value_name = "PROFILE.json")]
    profile: Option<PathBuf>,
    /// What `flint-rt bench --trace` wrote.
    #[arg(long, value_name = "TRACE.json")]
    timeline: Option<PathBuf>,
    /// The page to write; a file of this name is replaced.
    #[arg(short, long, value_name = "OUT.html")]
    output: PathBuf,
}

/// The flags of `flint-rt bench` that ask for pictures.
#[derive(Debug, ArgsOf)]
pub(crate) struct PictureArgs {
    /// Write one page of the results with pictures; a file of this name is replaced.
    #[arg(long, value_name = "OUT.html", conflicts_with_all = ["compare", "simulate"])]
    report: Option<PathBuf>,
    /// Write what happened when in a few tokens, in Chrome's trace event format, for Perfetto; a file of this name is replaced.
    #[arg(long, value_name = "OUT.json", conflicts_with_all = ["compare", "simulate"])]
    trace: Option<PathBuf>,
}

impl PictureArgs {
    /// Whether they can be written, asked before anything is measured for them.
    pub(crate) fn check(&self) -> Outcome {
        self.report.iter().chain(&self.trace).try_for_each(|path| check(path))
    }

    /// What a context of so many tokens is too short for; the page does without.
    pub(crate) fn check_context(&self, context: u32) -> Outcome {
        if self.trace.is_some() && context < pass::CONTEXT_MIN {
            return Err(Failure::usage(format!(
                "--trace: a context of {context} tokens is too short for a timeline: give --ctx-size {PASS_TOKENS}, or a \
                 longer test"
            )));
        }
        Ok(())
    }

    /// Whether any of them is given.
    pub(crate) fn are_wanted(&self) -> bool {
        self.report.is_some() || self.trace.is_some()
    }
}

/// What a run of the bench gathers for its pictures.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) rows: Vec<Row>,
    /// Of the first model's drive.
    pub(crate) profile: Option<DriveProfile>,
    /// Of the first model.
    pub(crate) recorded: Option<Recorded>,
}

impl Gathered {
    /// Writes what there is of what was asked for.
    pub(crate) fn write(self, args: &PictureArgs) -> Outcome {
        if let (Some(path), Some(recorded)) = (&args.trace, &self.recorded) {
            write(path, &trace::to_json(recorded).to_string())?;
        }
        let Some(path) = args.report.as_ref().filter(|_| !self.rows.is_empty()) else { return Ok(()) };
        let (profile, recorded) = (self.profile.as_ref(), self.recorded.as_ref());
        write(path, &page(&Material { rows: &self.rows, profile, recorded }))
    }
}

/// Makes a page of files.
pub(crate) fn run(args: &ReportArgs) -> Outcome {
    let about = |path: &Path, text: String| Failure::usage(text).about(path.display().to_string());
    let rows =
        bench::read_back(&read(&args.result)?).map_err(|error| about(&args.result, error.to_string()))?;
    let profile = match &args.profile {
        Some(path) => Some(read_profile(path)?),
        None => None,
    };
    let recorded = match &args.timeline {
        Some(path) => {
            let file = serde_json::from_str(&read(path)?).map_err(|error| about(path, error.to_string()))?;
            Some(trace::from_json(&file).map_err(|error| about(path, error.to_string()))?)
        }
        None => None,
    };
    let is_output = |path: &&PathBuf| {
        let whole = |path: &Path| fs::canonicalize(path).ok();
        whole(path).is_some() && whole(path) == whole(&args.output)
    };
    if std::iter::once(&args.result).chain(&args.profile).chain(&args.timeline).any(|path| is_output(&path)) {
        return Err(Failure::usage("it is what the page is made of: name another file with -o")
            .about(args.output.display().to_string()));
    }
    let material = Material { rows: &rows, profile: profile.as_ref(), recorded: recorded.as_ref() };
    write(&args.output, &page(&material))
}

fn write(path: &Path, text: &str) -> Outcome {
    check(path)?;
    let is_new = !path.exists();
    fs::write(path, text).map_err(|error| {
        if is_new {
            // Half a file is of no use; the error that led here is the one to report.
            let _ = fs::remove_file(path);
        }
        Failure::because(Exit::of_io(&error), path.display().to_string(), &error)
    })
}

fn read(path: &Path) -> Outcome<String> {
    let failed = |error| Failure::because(Exit::Usage, path.display().to_string(), &error);
    let mut text = String::new();
    fs::File::open(path)
        .map_err(failed)?
        .take(FILE_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Failure::usage(format!("{}: longer than {FILE_BYTES_MAX} B", path.display())));
    }
    Ok(text)
}

fn read_profile(path: &Path) -> Outcome<DriveProfile> {
    let profile = match DriveProfile::read(path) {
        Err(DiskError::ProfileInvalid { why, .. }) => {
            return Err(Failure::usage(format!(
                "{}: not what disk-profile prints as json: {why}",
                path.display()
            )));
        }
        read => read.map_err(EngineError::from)?,
    };
    profile.ok_or_else(|| Failure::usage(format!("{}: there is no such file", path.display())))
}
