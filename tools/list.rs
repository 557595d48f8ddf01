//! `flint-rt list`: the stores, and what ingests left unfinished.

use std::io::{self, Write};

use flint_rt::base::units::display_bytes;
use serde_json::{Value, json};

use crate::args::ListArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::model;
use crate::stores::{self, Entry, State};
use crate::terminal::{escaped_line, note};

/// Runs the command.
pub(crate) fn run(args: &ListArgs) -> Outcome {
    let Some(dir) = model::store_dir(args.store_dir.as_ref()) else {
        return Err(Failure::usage("there is no home folder: name the store folder with --store-dir"));
    };
    let shown = dir.display().to_string();
    let entries =
        stores::entries(&dir).map_err(|error| Failure::because(Exit::Failed, shown.clone(), &error))?;
    let mut stdout = io::stdout().lock();
    if args.json {
        let stores: Vec<_> = entries.iter().map(as_json).collect();
        writeln!(stdout, "{}", json!({ "schema_version": 1, "store_dir": shown, "stores": stores }))?;
        return Ok(());
    }
    if entries.is_empty() {
        note(&format!("no stores in {shown}; flint-rt ingest makes one"));
    }
    let width = entries.iter().map(|entry| entry.name.chars().count()).max().unwrap_or(0);
    for entry in &entries {
        let size = display_bytes(entry.size_bytes);
        writeln!(
            stdout,
            "{:<width$}  {size:>11}  {}",
            escaped_line(&entry.name),
            escaped_line(&text(entry))
        )?;
    }
    Ok(())
}

fn text(entry: &Entry) -> String {
    let mut text = match &entry.state {
        State::Complete => "complete".to_owned(),
        State::Damaged(why) => format!("damaged: {why}"),
        State::Unfinished { done_bytes, total_bytes, source, is_at_work } => {
            let mut text = match (done_bytes, total_bytes) {
                (Some(done), Some(total)) => {
                    let share = 100.0 * *done as f64 / (*total).max(1) as f64;
                    let (done, total) = (display_bytes(*done), display_bytes(*total));
                    format!("unfinished: {done} of {total} ({share:.0} %)")
                }
                _ => "unfinished".to_owned(),
            };
            if let Some(source) = source {
                text.push_str(&format!(", from {source}"));
            }
            text.push_str(if *is_at_work {
                "; an ingest is at work"
            } else {
                "; the same ingest again goes on, flint-rt remove takes it away"
            });
            text
        }
    };
    if let Some(made) = &entry.source {
        text.push_str(&format!(", {}, of {}", made.model, made.file_name));
        if let Some(sha256) = made.sha256 {
            text.push_str(&format!(" (SHA-256 {:.12}...)", sha256.to_string()));
        }
    }
    if let Some(link) = &entry.link {
        text.push_str(&format!(", a link to {}", link.display()));
    }
    text
}

fn as_json(entry: &Entry) -> Value {
    let (state, why) = match &entry.state {
        State::Complete => ("complete", None),
        State::Damaged(why) => ("damaged", Some(why)),
        State::Unfinished { .. } => ("unfinished", None),
    };
    let progress = match &entry.state {
        State::Unfinished { done_bytes, total_bytes, source, is_at_work } => Some(json!({
            "source": source,
            "done_bytes": done_bytes,
            "total_bytes": total_bytes,
            "at_work": is_at_work,
        })),
        _ => None,
    };
    let source = entry.source.as_ref();
    json!({
        "name": entry.name,
        "path": entry.path.display().to_string(),
        "link": entry.link.as_ref().map(|link| link.display().to_string()),
        "complete": entry.state == State::Complete,
        "state": state,
        "why": why,
        "progress": progress,
        "size_bytes": entry.size_bytes,
        "model": source.map(|made| &made.model),
        "identity": source.map(|made| made.identity.to_string()),
        "source": source.map(|made| json!({
            "file_name": made.file_name,
            "size_bytes": made.len_bytes,
            "sha256": made.sha256.map(|digest| digest.to_string()),
        })),
    })
}
