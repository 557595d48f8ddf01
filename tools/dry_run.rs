//! `flint-rt ingest --dry-run`: what an ingest would do, from the source's header alone.
//!
//! In: a source that was opened, where its store is to be. Out: sizes and free space, by folder. Nothing is written.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flint_rt::base::units::display_bytes;
use flint_rt::base::volume::free_bytes;
use flint_rt::gguf::Gguf;
use flint_rt::store::{SourceStamp, StoreError, room_needed};
use serde_json::{Value, json};

use crate::args::IngestArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::source::{Opened, SourceName};
use crate::stores;
use crate::stripes::Stripe;
use crate::terminal::escaped_line;

/// A folder that is to get files.
struct Place {
    folder: PathBuf,
    needed_bytes: u64,
    /// What an unfinished ingest has taken of that already, reserved room included.
    taken_bytes: u64,
    free_bytes: u64,
}

impl Place {
    /// Room that is still to be taken.
    fn missing_bytes(&self) -> u64 {
        self.needed_bytes.saturating_sub(self.taken_bytes)
    }

    fn in_words(&self) -> String {
        let (missing, free) = (display_bytes(self.missing_bytes()), display_bytes(self.free_bytes));
        let folder = self.folder.display();
        match self.taken_bytes {
            0 => format!("{folder}: {missing} needed, {free} free"),
            taken => format!(
                "{folder}: {missing} needed beside {} that are taken, {free} free",
                display_bytes(taken)
            ),
        }
    }
}

/// Says it; an error when there is too little room.
pub(crate) fn tell(
    args: &IngestArgs,
    name: &SourceName,
    opened: &Opened,
    gguf: &Gguf,
    target: &Path,
) -> Outcome {
    let weights: Vec<f64> = args.stripe.iter().map(|stripe| stripe.weight.unwrap_or(1.0)).collect();
    let needed = room_needed(gguf, &weights)?;
    let own = target.parent().unwrap_or(target).to_owned();
    let folders = std::iter::once(own).chain(args.stripe.iter().map(|stripe| stripe.folder.clone()));
    let needs = std::iter::once(needed.own_bytes).chain(needed.stripe_bytes);
    let working = target.with_added_extension("partial");
    let stem = target.file_name().unwrap_or_default();
    let of_stripe = |stripe: &Stripe| {
        stripe.folder.join(stem).with_added_extension("stripe").with_added_extension("partial")
    };
    let begun = std::iter::once(working.join(stores::UNFINISHED)).chain(args.stripe.iter().map(of_stripe));
    let places = folders.zip(needs).zip(begun);
    let places =
        places.map(|((folder, bytes), begun)| place(folder, bytes, &begun)).collect::<Outcome<Vec<_>>>()?;
    let workers = stores::workers(&working);
    let done_bytes = done_bytes(opened, target)?;
    let is_measured_later = args.stripe.iter().any(|stripe| stripe.weight.is_none());

    let mut stdout = io::stdout().lock();
    if args.json {
        let files = opened.files.iter().map(|file| json!({ "name": file.name(), "bytes": file.len_bytes() }));
        let document = json!({
            "event": "planned",
            "source": name.to_string(),
            "files": files.collect::<Vec<_>>(),
            "source_bytes": gguf.file_len_bytes,
            "remote": opened.is_remote,
            "sha256_known": opened.sha256.is_some(),
            "resumed_bytes": done_bytes,
            "running": workers,
            "store": target.display().to_string(),
            "places": places.iter().map(|place| json!({
                "folder": place.folder.display().to_string(),
                "needed_bytes": place.needed_bytes,
                "taken_bytes": place.taken_bytes,
                "free_bytes": place.free_bytes,
            })).collect::<Vec<_>>(),
        });
        writeln!(stdout, "{document}")?;
    } else {
        let mut line = |what: &str, value: String| writeln!(stdout, "{what:<10} {}", escaped_line(&value));
        let how = if opened.is_remote { "fetched" } else { "read" };
        line("source", format!("{name}, {} to be {how}", display_bytes(gguf.file_len_bytes)))?;
        if opened.files.len() > 1 {
            line("", format!("in {} files", opened.files.len()))?;
        }
        if !workers.is_empty() {
            line("", format!("an ingest of it is running: {}", workers.join(", ")))?;
        } else if let Some(bytes) = done_bytes {
            line("", format!("{} of them are there from an ingest that was stopped", display_bytes(bytes)))?;
        }
        let vouched = match (opened.sha256.is_some(), opened.is_remote) {
            (true, _) => "known beforehand",
            (false, true) => "nobody says it: --sha256 or --force-unverified will be needed",
            (false, false) => "taken on the way",
        };
        line("SHA-256", vouched.to_owned())?;
        line("store", target.display().to_string())?;
        for place in &places {
            line("room", place.in_words())?;
        }
        if is_measured_later {
            line("", "the shares of the stripes are measured by the ingest; here they are equal".to_owned())?;
        }
    }
    stdout.flush()?;
    drop(stdout);
    match places.iter().find(|place| place.free_bytes < place.missing_bytes()) {
        None => Ok(()),
        Some(place) => Err(Failure::new(
            Exit::Memory,
            format!("{}; make room, or name another folder with --store-dir", place.in_words()),
        )),
    }
}

/// The folder may not be there yet: then the room is that of the nearest one above it.
fn place(folder: PathBuf, needed_bytes: u64, begun: &Path) -> Outcome<Place> {
    let absolute = std::path::absolute(&folder).unwrap_or_else(|_| folder.clone());
    let there = absolute.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    let free = free_bytes(there);
    let free_bytes =
        free.map_err(|error| Failure::because(Exit::of_io(&error), there.display().to_string(), &error))?;
    Ok(Place { folder, needed_bytes, taken_bytes: stores::taken_bytes(begun), free_bytes })
}

/// How far an ingest of this target came that was stopped; an error when it was begun with another source, with which the
/// ingest would not go on.
fn done_bytes(opened: &Opened, target: &Path) -> Outcome<Option<u64>> {
    let folder = target.with_added_extension("partial");
    let Some(journal) = stores::json_of(&folder.join(stores::JOURNAL)) else { return Ok(None) };
    let begun = journal.get("task").and_then(|task| task.get("stamps")).cloned();
    let begun: Option<Vec<SourceStamp>> = begun.and_then(|stamps| serde_json::from_value(stamps).ok());
    let now: Result<Vec<_>, _> = opened.files.iter().map(|file| file.stamp()).collect();
    let now = now.map_err(StoreError::from)?;
    if let Some(begun) = begun
        && !(begun.len() == now.len() && begun.iter().zip(&now).all(|(begun, now)| begun.is_same(now)))
    {
        let in_words =
            |stamps: &[SourceStamp]| stamps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(
            StoreError::SourceOther { path: folder, begun: in_words(&begun), now: in_words(&now) }.into()
        );
    }
    Ok(journal.get("offset_bytes").and_then(Value::as_u64))
}
