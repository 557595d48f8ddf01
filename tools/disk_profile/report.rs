//! The profile on standard output: a table for people, Markdown to paste, CSV and JSON for programs.
//!
//! In: a [`DriveProfile`], what was read. Out: text. A row names the job of fio that measures the same, if there is one.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flint_rt::base::ids::FileIndex;
use flint_rt::base::units::display_bytes;
use flint_rt::disk::profile::{DriveProfile, FindingLevel, Pattern, Percentiles, ProfileRow};
use serde_json::{Value, json};

use super::args::Output;
use super::fio;
use super::target::Target;
use crate::exit::Outcome;
use crate::terminal::escaped;

/// Seconds of the jobs of fio that are named.
const FIO_SECONDS: u32 = 10;

/// Samples of a long run that the table shows.
const SAMPLES_SHOWN: usize = 12;

/// Prints it.
pub(super) fn print(
    profile: &DriveProfile,
    target: &Target,
    output: Output,
    saved: Option<&Path>,
) -> Outcome {
    let files: Vec<PathBuf> = target.files.iter().map(|file| file.file.path().to_owned()).collect();
    let parts = target.parts();
    let job = |row: &ProfileRow| {
        let part = parts.iter().find(|(name, _)| Some(name) == row.part.as_ref());
        let of_part = |(_, indexes): &(String, Vec<FileIndex>)| -> Vec<PathBuf> {
            indexes.iter().map(|index| files[usize::from(index.0)].clone()).collect()
        };
        let its_files = part.map_or_else(|| files.clone(), of_part);
        fio::job(row, &its_files, profile.is_direct, FIO_SECONDS)
    };
    let mut stdout = io::stdout().lock();
    match output {
        Output::Json => writeln!(stdout, "{:#}", as_json(profile, &job, saved)),
        Output::Csv => write!(stdout, "{}", csv(profile, &job)),
        Output::Text => write!(stdout, "{}", escaped(&text(profile, files.len(), &job, saved))),
        Output::Md => write!(stdout, "{}", escaped(&markdown(profile, &job))),
    }?;
    Ok(stdout.flush()?)
}

fn as_json(
    profile: &DriveProfile,
    job: &dyn Fn(&ProfileRow) -> Option<String>,
    saved: Option<&Path>,
) -> Value {
    let mut document = json!(profile);
    if let Some(rows) = document["rows"].as_array_mut() {
        for (shown, row) in rows.iter_mut().zip(&profile.rows) {
            shown["fio"] = job(row).into();
        }
    }
    document["steady_gb_s"] = json!(profile.steady_rate(u32::MAX) / 1e9);
    document["saved"] = json!(saved.map(|path| path.display().to_string()));
    document
}

/// The heads of columns, and a row's cells.
const COLUMNS: [&str; 11] = [
    "engine", "pattern", "block", "depth", "GB/s", "IOPS", "p50 us", "p90 us", "p99 us", "p99.9 us",
    "CPU s/GB",
];

fn cells(row: &ProfileRow) -> [String; 11] {
    let Percentiles { p50, p90, p99, p99_9, .. } = row.latency_us;
    let block = if row.is_record { "record".to_owned() } else { short(row.block_bytes) };
    let pattern = match row.pattern {
        Pattern::Random => "random",
        Pattern::Sequential => "sequential",
    };
    [
        row.engine.name().to_owned(),
        pattern.to_owned(),
        block,
        row.depth.to_string(),
        format!("{:.2}", row.gb_s),
        format!("{:.0}", row.iops),
        format!("{p50:.0}"),
        format!("{p90:.0}"),
        format!("{p99:.0}"),
        format!("{p99_9:.0}"),
        row.cpu_s_per_gb.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.3}")),
    ]
}

/// A block's length without decimals where there are none.
fn short(bytes: u64) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// Which rows stand together, and under which head.
fn groups(profile: &DriveProfile) -> Vec<(String, Vec<&ProfileRow>)> {
    let engine = profile.engine();
    let is_depth = |row: &ProfileRow| {
        row.is_record
            && row.engine == engine
            && row.pattern == Pattern::Random
            && row.part.is_none()
            && !row.with_uploads
    };
    let is_block = |row: &ProfileRow| !row.is_record && row.engine == engine && row.part.is_none();
    let take = |is_in: &dyn Fn(&ProfileRow) -> bool| {
        profile.rows.iter().filter(|row| is_in(row)).collect::<Vec<_>>()
    };
    let mut groups = vec![
        (format!("records in random order, by {}, the product's path", engine.name()), take(&is_depth)),
        (
            "other ways to read the same records".to_owned(),
            take(&|row| !is_depth(row) && row.is_record && row.part.is_none() && !row.with_uploads),
        ),
        ("blocks in random order".to_owned(), take(&|row| is_block(row) && row.pattern == Pattern::Random)),
        (
            "blocks one after the other".to_owned(),
            take(&|row| is_block(row) && row.pattern == Pattern::Sequential),
        ),
        ("blocks by other engines".to_owned(), take(&|row| !row.is_record && row.engine != engine)),
        ("records while a device copies".to_owned(), take(&|row| row.with_uploads)),
    ];
    for row in &profile.rows {
        if let Some(part) = &row.part {
            groups.push((format!("records of {part} alone"), vec![row]));
        }
    }
    groups.retain(|(_, rows)| !rows.is_empty());
    groups
}

fn text(
    profile: &DriveProfile,
    files: usize,
    job: &dyn Fn(&ProfileRow) -> Option<String>,
    saved: Option<&Path>,
) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", profile.paths.join(", "));
    for drive in &profile.drives {
        let _ = writeln!(text, "  drive    {drive}");
    }
    let source = match profile.record_from.as_str() {
        "model" => "the model's",
        "flag" => "as --record or --block says",
        _ => "the full Flint's; --record takes others",
    };
    let _ = writeln!(
        text,
        "  reads    records of {} B ({source}), {} each, over {} in {}",
        profile.record_bytes,
        counted(profile.reads_a_record as usize, "read"),
        display_bytes(profile.spread_bytes),
        counted(files, "file"),
    );
    let _ = writeln!(text, "  path     {}", profile.read_path);
    for (head, rows) in groups(profile) {
        let _ = writeln!(text, "{head}");
        text.push_str(&aligned(&rows));
    }
    if !profile.bursts.is_empty() {
        text.push_str("bursts of records, as a layer waits for them\n");
        let _ = writeln!(
            text,
            "  {:>7}  {:>9}  {:>9}  {:>9}  {:>6}",
            "records", "mean us", "p50 us", "p99 us", "GB/s"
        );
        for burst in &profile.bursts {
            let _ = writeln!(
                text,
                "  {:>7}  {:>9.0}  {:>9.0}  {:>9.0}  {:>6.2}",
                burst.records,
                1e6 * burst.seconds,
                burst.latency_us.p50,
                burst.latency_us.p99,
                burst.gb_s
            );
        }
    }
    if let Some(uploads) = &profile.uploads {
        let _ = writeln!(
            text,
            "copies to {} ({}): {:.2} GB/s alone, {:.2} while records are read; records {:.2} GB/s alone, {:.2} while it copies",
            uploads.device,
            uploads.host_path,
            uploads.alone_gb_s,
            uploads.with_reads_gb_s,
            uploads.reads_alone_gb_s,
            uploads.reads_with_gb_s
        );
    }
    text.push_str(&sustained(profile));
    for line in finding_lines(profile) {
        let _ = writeln!(text, "{line}");
    }
    if let Some((best, job)) = best(profile).and_then(|best| Some((best, job(best)?))) {
        let _ = writeln!(
            text,
            "the same by fio, for the best row ({} at depth {}):\n  {}",
            best.engine.name(),
            best.depth,
            job
        );
    }
    if let Some(saved) = saved {
        let _ = writeln!(text, "saved as {}", saved.display());
    }
    text
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The best row of records by the product's path; of a single measurement that one.
fn best(profile: &DriveProfile) -> Option<&ProfileRow> {
    let of_product = profile.record_rows().max_by(|a, b| a.gb_s.total_cmp(&b.gb_s));
    of_product.or_else(|| profile.rows.first())
}

fn aligned(rows: &[&ProfileRow]) -> String {
    let cells: Vec<[String; 11]> = rows.iter().map(|row| cells(row)).collect();
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|column| {
            cells.iter().map(|row| row[column].len()).chain([COLUMNS[column].len()]).max().unwrap_or(0)
        })
        .collect();
    let line = |words: &dyn Fn(usize) -> String| {
        let words: Vec<String> = widths
            .iter()
            .enumerate()
            .map(|(column, &width)| {
                if column < 2 {
                    format!("{:<width$}", words(column))
                } else {
                    format!("{:>width$}", words(column))
                }
            })
            .collect();
        format!("  {}\n", words.join("  ").trim_end())
    };
    let mut text = line(&|column| COLUMNS[column].to_owned());
    for row in &cells {
        text.push_str(&line(&|column| row[column].clone()));
    }
    text
}

/// A long run, some of its samples, with a bar each.
fn sustained(profile: &DriveProfile) -> String {
    let samples = &profile.sustained;
    let Some(last) = samples.last() else { return String::new() };
    let top = samples.iter().map(|sample| sample.gb_s).fold(0.0, f64::max);
    let low = samples.iter().map(|sample| sample.gb_s).fold(f64::INFINITY, f64::min);
    let mut text = format!("over {:.0} s: {low:.2} to {top:.2} GB/s\n", last.at_s);
    let step = samples.len().div_ceil(SAMPLES_SHOWN);
    for sample in samples.iter().step_by(step) {
        let heat = sample.temperature_c.map_or_else(String::new, |degrees| format!(", {degrees:.0} C"));
        let share = (sample.gb_s / top.max(1e-9) * 40.0).round().clamp(0.0, 40.0);
        let bar: String = (1..=40).take_while(|&mark| f64::from(mark) <= share).map(|_| '#').collect();
        let _ = writeln!(
            text,
            "  {:>5.0} s  {:>6.2} GB/s  {bar:<40}  p99 {:.0} us{heat}",
            sample.at_s, sample.gb_s, sample.p99_us
        );
    }
    text
}

fn finding_lines(profile: &DriveProfile) -> Vec<String> {
    let word = |level| match level {
        FindingLevel::Warning => "warning",
        FindingLevel::Note => "note",
        FindingLevel::Unknown => "unknown",
    };
    profile.findings.iter().map(|finding| format!("{}: {}", word(finding.level), finding.text)).collect()
}

fn markdown(profile: &DriveProfile, job: &dyn Fn(&ProfileRow) -> Option<String>) -> String {
    let mut text = String::new();
    let drives: Vec<String> = profile.drives.iter().map(ToString::to_string).collect();
    let _ = writeln!(
        text,
        "flint-rt {} disk-profile: {}; records of {} B over {}; {}\n",
        profile.program_version,
        drives.join("; "),
        profile.record_bytes,
        display_bytes(profile.spread_bytes),
        profile.read_path
    );
    let _ = writeln!(text, "| {} |", COLUMNS.join(" | "));
    let _ = writeln!(text, "|{}", " --- |".repeat(COLUMNS.len()));
    for (_, rows) in groups(profile) {
        for row in rows {
            let _ = writeln!(text, "| {} |", cells(row).join(" | "));
        }
    }
    if !profile.bursts.is_empty() {
        text.push_str(
            "\n| burst of records | mean us | p50 us | p99 us | GB/s |\n| --- | --- | --- | --- | --- |\n",
        );
        for burst in &profile.bursts {
            let (mean, of) = (1e6 * burst.seconds, &burst.latency_us);
            let _ = writeln!(
                text,
                "| {} | {mean:.0} | {:.0} | {:.0} | {:.2} |",
                burst.records, of.p50, of.p99, burst.gb_s
            );
        }
    }
    text.push('\n');
    for line in finding_lines(profile) {
        let _ = writeln!(text, "- {line}");
    }
    if let Some(job) = best(profile).and_then(job) {
        let _ = writeln!(text, "\nThe best row by fio: `{job}`");
    }
    text
}

fn csv(profile: &DriveProfile, job: &dyn Fn(&ProfileRow) -> Option<String>) -> String {
    let mut text = "engine,pattern,is_record,block_bytes,depth,part,with_uploads,seconds,reads,bytes,gb_s,iops,mean_us,p50_us,p90_us,\
                    p99_us,p99.9_us,max_us,cpu_s_per_gb,fio\n"
        .to_owned();
    let quoted = |word: &str| format!("\"{}\"", word.replace('"', "\"\""));
    for row in &profile.rows {
        let pattern = if row.pattern == Pattern::Random { "random" } else { "sequential" };
        let l = &row.latency_us;
        let _ = writeln!(
            text,
            "{},{pattern},{},{},{},{},{},{:.6},{},{},{:.6},{:.3},{},{},{},{},{},{},{},{}",
            row.engine.name(),
            row.is_record,
            row.block_bytes,
            row.depth,
            quoted(row.part.as_deref().unwrap_or_default()),
            row.with_uploads,
            row.seconds,
            row.reads,
            row.bytes,
            row.gb_s,
            row.iops,
            l.mean,
            l.p50,
            l.p90,
            l.p99,
            l.p99_9,
            l.max,
            row.cpu_s_per_gb.map_or_else(String::new, |seconds| format!("{seconds:.6}")),
            job(row).map_or_else(String::new, |job| quoted(&job))
        );
    }
    text
}
