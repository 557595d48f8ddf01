//! `bench --compare A.json B.json`: which tests of B are faster or slower than in A, and whether chance explains it.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use super::args::Format;
use super::read_back::rows;
use super::result::Row;
use super::welch::p_value;
use crate::exit::{Exit, Failure, Outcome};

/// Below this p-value a difference is called one.
const SIGNIFICANT: f64 = 0.05;

/// One test in both results.
#[derive(Debug, Serialize)]
struct Difference {
    test: String,
    model_type: String,
    pool_slots: u32,
    a_ts: f64,
    b_ts: f64,
    /// By how much B is faster, as a share of A.
    change: f64,
    /// Null with fewer than two repetitions.
    p: Option<f64>,
    verdict: &'static str,
    a_hit_rate: Option<f64>,
    b_hit_rate: Option<f64>,
    /// Settings in which the two differ.
    settings: Vec<String>,
}

/// Reads both and prints the differences.
pub(super) fn run(paths: &[std::path::PathBuf], format: Format) -> Outcome {
    let [a_path, b_path] = paths else { return Err(Failure::usage("--compare takes two results")) };
    let (a, b) = (read(a_path)?, read(b_path)?);
    let (differences, alone) = pair(&a, &b);
    if differences.is_empty() {
        return Err(Failure::usage(format!(
            "{} and {} have no test in common",
            a_path.display(),
            b_path.display()
        )));
    }
    let mut out = io::stdout().lock();
    match format {
        Format::Json => {
            let text = serde_json::to_string_pretty(&differences).map_err(io::Error::from)?;
            writeln!(out, "{text}")?;
        }
        Format::Jsonl => {
            for difference in &differences {
                writeln!(out, "{}", serde_json::to_string(difference).map_err(io::Error::from)?)?;
            }
        }
        Format::Md | Format::Csv => {
            table(&mut out, &differences, format)?;
            if format == Format::Md {
                writeln!(out)?;
                writeln!(
                    out,
                    "p: Welch's t-test, two-sided; below {SIGNIFICANT} a difference is called faster or slower"
                )?;
                alone.iter().try_for_each(|line| writeln!(out, "{line}"))?;
            }
        }
    }
    Ok(())
}

fn table(out: &mut dyn Write, differences: &[Difference], format: Format) -> io::Result<()> {
    let titles =
        ["model", "pool", "test", "A t/s", "B t/s", "change", "p", "verdict", "A hit", "B hit", "settings"];
    let line = |cells: &[String]| match format {
        Format::Csv => cells
            .iter()
            .map(|cell| format!("\"{}\"", cell.replace('"', "\"\"")))
            .collect::<Vec<_>>()
            .join(","),
        _ => format!("| {} |", cells.join(" | ")),
    };
    writeln!(out, "{}", line(&titles.map(str::to_owned)))?;
    if format == Format::Md {
        writeln!(out, "{}", line(&titles.map(|_| "---".to_owned())))?;
    }
    let percent =
        |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}%", 100.0 * share));
    for one in differences {
        let cells = [
            one.model_type.clone(),
            one.pool_slots.to_string(),
            one.test.clone(),
            format!("{:.2}", one.a_ts),
            format!("{:.2}", one.b_ts),
            format!("{:+.1}%", 100.0 * one.change),
            one.p.map_or_else(|| "-".to_owned(), |p| format!("{p:.4}")),
            one.verdict.to_owned(),
            percent(one.a_hit_rate),
            percent(one.b_hit_rate),
            one.settings.join("; "),
        ];
        writeln!(out, "{}", line(&cells))?;
    }
    Ok(())
}

/// The rows of a result.
fn read(path: &Path) -> Outcome<Vec<Row>> {
    let shown = path.display().to_string();
    let text =
        fs::read_to_string(path).map_err(|error| Failure::because(Exit::Usage, shown.clone(), &error))?;
    let rows = rows(&text).map_err(|error| Failure::because(Exit::Usage, shown.clone(), &error))?;
    match rows.iter().find(|row| row.samples_ts.is_empty()) {
        Some(row) => Err(Failure::usage(format!("the row of {:?} has no samples", row.test)).about(shown)),
        None => Ok(rows),
    }
}

/// What makes two rows the same test; how they differ beside that is said.
fn key(row: &Row) -> (&str, &str, u32, u32) {
    (&row.model_type, &row.test, row.pool_slots, row.n_ubatch)
}

/// The tests that both have, and a line for each that only one has.
fn pair(a: &[Row], b: &[Row]) -> (Vec<Difference>, Vec<String>) {
    let mut is_taken = vec![false; b.len()];
    let (mut differences, mut alone) = (Vec::new(), Vec::new());
    for row in a {
        let twin = (0..b.len()).find(|&index| !is_taken[index] && key(&b[index]) == key(row));
        match twin {
            Some(index) => {
                is_taken[index] = true;
                differences.push(Difference::new(row, &b[index]));
            }
            None => alone.push(format!("only in A: {} with a pool of {}", row.test, row.pool_slots)),
        }
    }
    let only_b = b.iter().zip(&is_taken).filter(|(_, is_taken)| !**is_taken);
    alone.extend(only_b.map(|(row, _)| format!("only in B: {} with a pool of {}", row.test, row.pool_slots)));
    (differences, alone)
}

impl Difference {
    fn new(a: &Row, b: &Row) -> Self {
        let p = p_value(&a.samples_ts, &b.samples_ts);
        let verdict = match p {
            None => "too few repetitions",
            // That a test finds no difference does not show that there is none.
            Some(p) if p >= SIGNIFICANT => "not significant",
            Some(_) if b.avg_ts > a.avg_ts => "faster",
            Some(_) => "slower",
        };
        let settings = [
            ("build", a.build_commit == b.build_commit && a.build_version == b.build_version),
            ("device", a.gpu_info == b.gpu_info),
            ("processor", a.cpu_info == b.cpu_info),
            ("read path", a.read_path == b.read_path),
            ("host path", a.host_path == b.host_path),
            ("direct I/O", a.use_direct_io == b.use_direct_io),
            ("source", a.model_source == b.model_source),
            ("tokens", a.tokens == b.tokens),
            ("cache", a.cache == b.cache),
            ("routes", a.routes == b.routes),
            ("cache policy", a.policy == b.policy),
            ("checksums", a.checked == b.checked),
            ("driver", a.driver == b.driver),
            ("simulated drive", a.simulated_drive == b.simulated_drive),
            ("context", a.context_len == b.context_len),
            ("warm-up", a.warmup == b.warmup),
        ];
        let settings = settings.into_iter().filter(|(_, is_equal)| !is_equal);
        Self {
            test: a.test.clone(),
            model_type: a.model_type.clone(),
            pool_slots: a.pool_slots,
            a_ts: a.avg_ts,
            b_ts: b.avg_ts,
            change: b.avg_ts / a.avg_ts - 1.0,
            p,
            verdict,
            a_hit_rate: a.hit_rate,
            b_hit_rate: b.hit_rate,
            settings: settings.map(|(name, _)| format!("other {name}")).collect(),
        }
    }
}
