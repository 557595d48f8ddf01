//! What lies in the store folder: stores, whole and damaged, and what ingests left unfinished.
//!
//! In: a folder. Out: [`Entry`]s by name. Nothing is changed, and no weight is read.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use flint_rt::model::hparams::FlintConfig;
use flint_rt::store::{MANIFEST_NAME, Sha256Digest, Source};
use serde_json::Value;

/// The ending of a folder in which an ingest works; older ones have its process number behind it.
const PARTIAL: &str = ".partial";

/// The file of an unfinished store that says how far it is.
pub(crate) const JOURNAL: &str = "journal.json";

/// The folder of a store's files in that in which an ingest works.
pub(crate) const UNFINISHED: &str = "store";

/// Whether a store can be used.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    /// Whole, by its manifest, its header and its files' lengths.
    Complete,
    /// It has a manifest, but does not open.
    Damaged(String),
    /// An ingest has not finished it.
    Unfinished {
        /// Bytes of the source that are in it for good, where its journal says so.
        done_bytes: Option<u64>,
        /// Bytes of the source.
        total_bytes: Option<u64>,
        /// Where the source is.
        source: Option<String>,
        /// Whether a process has it open now.
        is_at_work: bool,
    },
}

/// One folder.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Its name in the store folder.
    pub(crate) name: String,
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// Where it leads, if it is a link.
    pub(crate) link: Option<PathBuf>,
    /// Whether it can be used.
    pub(crate) state: State,
    /// Bytes that its files take, those in other folders included.
    pub(crate) size_bytes: u64,
    /// What it was made of.
    pub(crate) source: Option<Made>,
}

/// What a store was made of.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    /// The model's name.
    pub(crate) model: String,
    /// The GGUF's file name.
    pub(crate) file_name: String,
    /// Its length.
    pub(crate) len_bytes: u64,
    /// Its SHA-256.
    pub(crate) sha256: Option<Sha256Digest>,
    /// What header and length come to.
    pub(crate) identity: Sha256Digest,
}

/// All of `dir`, by name; none where there is no such folder.
pub(crate) fn entries(dir: &Path) -> io::Result<Vec<Entry>> {
    let found = match fs::read_dir(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut entries = Vec::new();
    for entry in found {
        let path = entry?.path();
        if path.is_dir() {
            entries.extend(look(&path));
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// What the folder `path` is; nothing where it is neither a store nor an unfinished one.
fn look(path: &Path) -> Option<Entry> {
    let name = path.file_name()?.to_string_lossy().into_owned();
    let link = fs::read_link(path).ok();
    let entry = |state, size_bytes, source| {
        Some(Entry {
            name: name.clone(),
            path: path.to_owned(),
            link: link.clone(),
            state,
            size_bytes,
            source,
        })
    };
    if is_partial(&name) {
        return entry(unfinished(path), taken_bytes(path), None);
    }
    if !path.join(MANIFEST_NAME).is_file() {
        return None;
    }
    match Source::open(path) {
        Ok(source) => {
            let elsewhere = source.files().iter().filter(|file| file.parent() != Some(path));
            let bytes = elsewhere.map(|file| fs::metadata(file).map_or(0, |file| file.len())).sum::<u64>();
            let state = match FlintConfig::from_gguf(source.gguf()) {
                Ok(_) => State::Complete,
                Err(error) => State::Damaged(error.to_string()),
            };
            entry(state, len_bytes(path) + bytes, Some(made(&source)))
        }
        Err(error) => entry(State::Damaged(error.to_string()), len_bytes(path), None),
    }
}

fn made(source: &Source) -> Made {
    let name = source.gguf().metadata.str_opt("general.name").ok().flatten();
    Made {
        model: name.unwrap_or("flint").to_owned(),
        file_name: source.file_name().to_owned(),
        len_bytes: source.gguf().file_len_bytes,
        sha256: source.source_sha256(),
        identity: source.identity(),
    }
}

/// Whether `name` is that of a folder in which an ingest works.
pub(crate) fn is_partial(name: &str) -> bool {
    match name.rsplit_once(PARTIAL) {
        Some((stem, "")) => !stem.is_empty(),
        Some((_, number)) => number
            .strip_prefix('-')
            .is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit())),
        None => false,
    }
}

/// How far an unfinished store is, as its journal says, which is what a next ingest goes by.
fn unfinished(path: &Path) -> State {
    let journal = json_of(&path.join(JOURNAL));
    let number = |value: &Value| value.as_u64();
    let stamps = journal.as_ref().and_then(|journal| journal.get("task")?.get("stamps")?.as_array());
    State::Unfinished {
        done_bytes: journal.as_ref().and_then(|journal| number(journal.get("offset_bytes")?)),
        total_bytes: stamps.and_then(|stamps| {
            stamps.iter().map(|stamp| number(stamp.get("len_bytes")?)).sum::<Option<u64>>()
        }),
        source: stamps.and_then(|stamps| Some(stamps.first()?.get("location")?.as_str()?.to_owned())),
        is_at_work: !workers(path).is_empty(),
    }
}

/// A file's JSON, if it is any.
pub(crate) fn json_of(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Other processes that have one of `files` open, as far as the kernel lets us see.
pub(crate) fn users(files: &[PathBuf]) -> Vec<String> {
    let id = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let wanted: HashSet<_> = files.iter().filter_map(|file| id(file)).collect();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        let open = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        if open.filter_map(|file| id(&file.path())).any(|file| wanted.contains(&file)) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("{} (process {pid})", name.trim()));
        }
    }
    found
}

/// Other processes that are at work in the folder `path` of an unfinished store.
pub(crate) fn workers(path: &Path) -> Vec<String> {
    users(&files(path))
}

/// Lengths of the files in a folder.
fn len_bytes(path: &Path) -> u64 {
    files(path).iter().filter_map(|file| fs::metadata(file).ok()).map(|file| file.len()).sum()
}

/// Bytes that the files in a folder take of the drive: an unfinished one has holes.
pub(crate) fn taken_bytes(path: &Path) -> u64 {
    files(path).iter().filter_map(|file| fs::metadata(file).ok()).map(|file| file.blocks() * 512).sum()
}

/// The files of a folder, and of the one that an ingest makes in its own.
fn files(path: &Path) -> Vec<PathBuf> {
    let list = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    list(path).chain(list(&path.join(UNFINISHED))).filter(|path| path.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_at_work_are_known_by_their_name() {
        for name in ["a.partial", "a.partial-17", "a.partial.partial"] {
            assert!(is_partial(name), "{name}");
        }
        for name in ["a", ".partial", "a.partial-", "a.partial-x", "a.partials", "partial"] {
            assert!(!is_partial(name), "{name}");
        }
    }
}
