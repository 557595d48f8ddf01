//! What lies in the store folder: stores, whole and damaged, and what ingests left unfinished.
//!
//! In: a folder. Out: [`Entry`]s by name. Nothing is changed, and no weight is read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use flint_rt::model::hparams::FlintConfig;
use flint_rt::store::{MANIFEST_NAME, Sha256Digest, Source};
use serde_json::Value;

/// The ending of a folder in which an ingest works; older ones have its process number behind it.
const PARTIAL: &str = ".partial";

/// The file of an unfinished store that says how far it is.
const JOURNAL: &str = "journal.json";

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
        /// Whether an ingest is at work in it now.
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

/// How far an unfinished store is, as its journal says.
fn unfinished(path: &Path) -> State {
    let journal = fs::read(path.join(JOURNAL)).ok();
    let journal: Option<Value> = journal.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let number = |keys: &[&str]| {
        let journal = journal.as_ref()?;
        keys.iter().find_map(|key| journal.pointer(key)?.as_u64())
    };
    State::Unfinished {
        done_bytes: number(&["/done_bytes"]),
        total_bytes: number(&["/stamp/len_bytes"]),
        is_at_work: false,
    }
}

/// Lengths of the files in a folder.
fn len_bytes(path: &Path) -> u64 {
    files(path).map(|file| file.len()).sum()
}

/// Bytes that the files in a folder take of the drive: an unfinished one has holes.
fn taken_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    files(path).map(|file| file.blocks() * 512).sum()
}

fn files(path: &Path) -> impl Iterator<Item = fs::Metadata> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file)
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
