//! From what a user names to a path of a model.
//!
//! In: `--model`, the store folder, `--source`. Out: [`Found`]. A path wins over a store's name; nothing named is the
//! bundled model.

use std::io;
use std::path::{Path, PathBuf};

use flint_rt::store::{MANIFEST_NAME, Sha256Digest, Source, SourceKind};

use crate::args::{ModelArgs, SourceChoice};
use crate::bundled;
use crate::digest;
use crate::exit::{Exit, Failure, Outcome};
use crate::folders;
use crate::ingest;
use crate::interrupt;
use crate::terminal::note;

/// A model's place.
pub(crate) struct Found {
    /// A GGUF, or a store's folder.
    pub(crate) path: PathBuf,
    /// Holds a folder that lives as long as this process, where no lasting one could be written.
    pub(crate) _temporary: Option<(tempfile::TempDir, interrupt::Working)>,
}

impl Found {
    fn at(path: PathBuf) -> Self {
        Self { path, _temporary: None }
    }

    /// What stands for a model that need not be on a drive.
    pub(crate) fn named(path: PathBuf) -> Self {
        Self::at(path)
    }

    /// Its name in reports.
    pub(crate) fn shown(&self) -> String {
        self.path.display().to_string()
    }
}

/// The folder of the stores, if there is one.
pub(crate) fn store_dir(named: Option<&PathBuf>) -> Option<PathBuf> {
    named.filter(|path| !path.as_os_str().is_empty()).cloned().or_else(folders::store_dir)
}

/// The model that was named, or the bundled one.
pub(crate) fn find(args: &ModelArgs, choice: Option<SourceChoice>) -> Outcome<Found> {
    let dir = store_dir(args.store_dir.as_ref());
    let Some(named) = args.model.as_ref().filter(|path| !path.as_os_str().is_empty()) else {
        return bundled::find(dir, choice);
    };
    let path = look_up(named, dir.as_deref())?;
    match choice {
        None => Ok(Found::at(path)),
        Some(choice) => as_source(path, dir, choice),
    }
}

fn look_up(named: &Path, dir: Option<&Path>) -> Outcome<PathBuf> {
    let name = named.display();
    match named.try_exists() {
        Ok(true) => return Ok(named.to_owned()),
        Ok(false) => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
        Err(error) => return Err(Failure::because(Exit::of_model_io(&error), name.to_string(), &error)),
    }
    let missing = |text: String| Err(Failure::new(Exit::Model, text));
    if named.components().count() != 1 {
        return missing(format!("{name}: no such file or folder"));
    }
    match dir {
        Some(dir) if dir.join(named).is_dir() => Ok(dir.join(named)),
        Some(dir) => {
            // A folder that may not be looked into does not mean that there is no store.
            if let Err(error) = dir.join(named).try_exists() {
                return Err(Failure::because(Exit::of_io(&error), dir.display().to_string(), &error));
            }
            missing(format!("{name}: no such file or folder, and no store of that name in {}", dir.display()))
        }
        None => missing(format!("{name}: no such file or folder")),
    }
}

fn as_source(path: PathBuf, dir: Option<PathBuf>, choice: SourceChoice) -> Outcome<Found> {
    let source =
        Source::open(&path).map_err(|error| Failure::from(error).about(path.display().to_string()))?;
    match (source.kind(), choice) {
        (SourceKind::Store, SourceChoice::Store) | (SourceKind::Gguf, SourceChoice::Gguf) => {
            Ok(Found::at(path))
        }
        (SourceKind::Store, SourceChoice::Gguf) => Err(Failure::usage(format!(
            "{}: this is a store; for --source gguf name the GGUF with --model",
            path.display()
        ))),
        (SourceKind::Gguf, SourceChoice::Store) => {
            let Some(dir) = dir else {
                return Err(Failure::usage("--source store needs a store folder: give --store-dir"));
            };
            store_of(&path, &source, &dir).map(Found::at)
        }
    }
}

/// A store of this GGUF in `dir`: the one that is there, or a new one.
fn store_of(path: &Path, source: &Source, dir: &Path) -> Outcome<PathBuf> {
    let unreadable = |path: &Path, error: &io::Error| {
        Failure::because(Exit::of_io(error), path.display().to_string(), error)
    };
    let mut folders: Vec<PathBuf> = match std::fs::read_dir(dir) {
        Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(unreadable(dir, &error)),
    };
    folders.sort();
    // Only a store of the same header and length can be of this file; whether it is, the whole file's digest says.
    let store_of = |folder: &Path| {
        let is_store = folder.join(MANIFEST_NAME).is_file();
        let store = is_store.then(|| Source::open(folder).ok()).flatten()?;
        (store.identity() == source.identity()).then(|| store.source_sha256())?
    };
    let alike: Vec<(PathBuf, Sha256Digest)> = folders
        .into_iter()
        .filter_map(|folder| {
            let sha256 = store_of(&folder)?;
            Some((folder, sha256))
        })
        .collect();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut target = dir.join(&stem);
    let is_taken = |target: &Path| target.symlink_metadata().is_ok();
    if !alike.is_empty() || is_taken(&target) {
        let wanted = digest::of_file(path).map_err(|failure| failure.about(path.display().to_string()))?;
        if let Some((folder, _)) = alike.iter().find(|(_, sha256)| *sha256 == wanted) {
            note(&format!("store: {}", folder.display()));
            return Ok(folder.clone());
        }
        for (folder, sha256) in &alike {
            note(&format!(
                "{} is no store of this file: it was made of one with SHA-256 {:.12}..., this is {:.12}...",
                folder.display(),
                sha256.to_string(),
                wanted.to_string()
            ));
        }
        if is_taken(&target) {
            target = dir.join(format!("{stem}-{:.8}", wanted.to_string()));
        }
        if is_taken(&target) {
            let (shown, path) = (target.display(), path.display());
            return Err(Failure::new(
                Exit::Failed,
                format!(
                    "{shown} is there and is no store of {path}: make one of another name with `flint-rt ingest {path} \
                     --name NAME`, and name it with --model NAME"
                ),
            ));
        }
    }
    note(&format!("making a store of {} in {}", path.display(), target.display()));
    ingest::make(path, &target)?;
    Ok(target)
}
