//! From what a user names to a path of a model.
//!
//! In: `--model`, the store folder, `--source`. Out: [`Found`]. A path wins over a store's name; nothing named is the
//! bundled model.

use std::path::{Path, PathBuf};

use flint_rt::store::{MANIFEST_NAME, Source, SourceKind};

use crate::args::{ModelArgs, SourceChoice};
use crate::bundled;
use crate::exit::{Exit, Failure, Outcome};
use crate::folders;
use crate::ingest;
use crate::terminal::note;

/// A model's place.
pub(crate) struct Found {
    /// A GGUF, or a store's folder.
    pub(crate) path: PathBuf,
    /// Holds a folder that lives as long as this process, where no lasting one could be written.
    pub(crate) _temporary: Option<tempfile::TempDir>,
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
    if named.exists() {
        return Ok(named.to_owned());
    }
    let missing = |text: String| Err(Failure::new(Exit::Model, text));
    let name = named.display();
    if named.components().count() != 1 {
        return missing(format!("{name}: no such file or folder"));
    }
    match dir {
        Some(dir) if dir.join(named).is_dir() => Ok(dir.join(named)),
        Some(dir) => {
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
    let is_same = |folder: &PathBuf| {
        folder.join(MANIFEST_NAME).is_file()
            && Source::open(folder).is_ok_and(|store| store.identity() == source.identity())
    };
    let mut folders: Vec<_> =
        std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.sort();
    if let Some(folder) = folders.into_iter().find(is_same) {
        return Ok(folder);
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut target = dir.join(&stem);
    if target.exists() {
        target = dir.join(format!("{stem}-{:.8}", source.identity().to_string()));
    }
    note(&format!("making a store of {} in {}", path.display(), target.display()));
    ingest::make(path, &target)?;
    Ok(target)
}
