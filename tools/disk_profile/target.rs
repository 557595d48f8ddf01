//! What is read: the files behind the paths that were named, and the records in them.
//!
//! - Owns: open files, read-only. In: paths of stores, GGUFs, files, folders, block devices. Out: a [`Target`].
//! - Invariants: of a model exactly the spans that decode reads; of anything else blocks of the record's length at multiples of
//!   4 KiB. Files without records are left out.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flint_rt::base::ids::{FileIndex, Span};
use flint_rt::base::units::display_bytes;
use flint_rt::disk::{DriveIdentity, SourceFile};
use flint_rt::engine::EngineError;
use flint_rt::model::hparams::FlintConfig;
use flint_rt::store::{MANIFEST_NAME, Source};

use super::made::Made;
use super::space::Space;
use crate::exit::{Exit, Failure, Outcome};
use crate::folders;

/// Bytes of a record of the full Flint, and experts that a layer of it uses: what files that are no model are read by.
const FLINT_RECORD_BYTES: u64 = 1_966_080;
const FLINT_EXPERTS_USED: u32 = 6;

/// Where records of plain files begin: at multiples of this, as in a store.
const RECORD_ALIGN_BYTES: u64 = 4096;

/// Files of a folder that are read together.
const FOLDER_FILES_MAX: usize = 64;

/// One open file.
pub(crate) struct TargetFile {
    pub(crate) file: Arc<SourceFile>,
    pub(crate) is_device: bool,
    pub(crate) drive: DriveIdentity,
    /// Which of the paths that were named.
    path_index: usize,
}

/// What is read.
pub(crate) struct Target {
    /// As they were named.
    pub(crate) paths: Vec<String>,
    pub(crate) files: Vec<TargetFile>,
    pub(crate) records: Space,
    pub(crate) record_bytes: u64,
    /// `model`, `flag` or `default`.
    pub(crate) record_from: &'static str,
    /// Records that a layer asks for at once when none is there.
    pub(crate) experts_used: u32,
    pub(crate) is_made: bool,
    _made: Option<Made>,
}

/// Files found, and the records in them where they are a model's.
#[derive(Default)]
struct Found {
    files: Vec<TargetFile>,
    records: Vec<Vec<Span>>,
    model: Option<(u64, u32)>,
}

impl Target {
    /// Opens what was named; with `make_bytes` a file is made in the one folder that was named.
    pub(crate) fn open(paths: &[PathBuf], record: Option<u64>, make_bytes: Option<u64>) -> Outcome<Self> {
        let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let made = match make_bytes {
            None => None,
            Some(_) if paths.len() != 1 || !paths[0].is_dir() => {
                return Err(Failure::usage("--make-file makes a file in a folder: name one folder"));
            }
            Some(len_bytes) => {
                let least = 2 * record.unwrap_or(FLINT_RECORD_BYTES);
                if len_bytes < least {
                    return Err(Failure::usage(format!(
                        "--make-file: {} hold no two records: give {} or more",
                        display_bytes(len_bytes),
                        display_bytes(least)
                    )));
                }
                Some(Made::new(&paths[0], len_bytes)?)
            }
        };
        let mut found = Found::default();
        match &made {
            Some(made) => found.plain(made.path(), 0)?,
            None => {
                for (index, path) in paths.iter().enumerate() {
                    found.path(path, index).map_err(|failure| failure.about(shown[index].clone()))?;
                }
            }
        }
        Self::new(shown, found, record, made)
    }

    /// The records of an open model.
    pub(crate) fn model(source: &Source, shown: String) -> Outcome<Self> {
        let mut found = Found::default();
        found.model(source, 0)?;
        Self::new(vec![shown], found, None, None)
    }

    fn new(paths: Vec<String>, found: Found, record: Option<u64>, made: Option<Made>) -> Outcome<Self> {
        let Found { files, records, model } = found;
        let is_mixed = model.is_some() && files.iter().any(|file| !of_records(&records, file, &files));
        if is_mixed {
            return Err(Failure::usage(
                "a model and other files together have no common record: name one kind",
            ));
        }
        let lengths =
            || files.iter().enumerate().map(|(index, file)| (index_of(index), file.file.len_bytes()));
        let (record_bytes, record_from, space) = match (record, model) {
            (Some(bytes), _) => (bytes, "flag", Space::blocks(bytes, RECORD_ALIGN_BYTES, lengths())),
            (None, Some((bytes, _))) => (bytes, "model", Space::Records(records)),
            (None, None) => {
                let bytes = FLINT_RECORD_BYTES;
                (bytes, "default", Space::blocks(bytes, RECORD_ALIGN_BYTES, lengths()))
            }
        };
        if space.len() < 2 {
            return Err(Failure::usage(format!(
                "{}: too short to measure: no two records of {} in it; name a longer file, or give `flint-rt disk-profile` \
                 smaller records with --record",
                paths.join(", "),
                display_bytes(record_bytes)
            )));
        }
        let experts_used = model.map_or(FLINT_EXPERTS_USED, |(_, used)| used);
        let is_made = made.is_some();
        Ok(Self {
            paths,
            files,
            records: space,
            record_bytes,
            record_from,
            experts_used,
            is_made,
            _made: made,
        })
    }

    /// All files, for a queue.
    pub(crate) fn sources(&self) -> Vec<Arc<SourceFile>> {
        self.files.iter().map(|file| Arc::clone(&file.file)).collect()
    }

    /// All files again, through the page cache only.
    pub(crate) fn buffered(&self) -> Outcome<Vec<Arc<SourceFile>>> {
        let again = |file: &TargetFile| {
            let path = file.file.path();
            let opened = if file.is_device {
                SourceFile::open_block_device(path, false)
            } else {
                SourceFile::open_buffered(path)
            };
            Ok(Arc::new(opened.map_err(EngineError::from)?))
        };
        self.files.iter().map(again).collect()
    }

    /// Blocks of this length in all files.
    pub(crate) fn blocks(&self, block_bytes: u64) -> Space {
        let lengths =
            self.files.iter().enumerate().map(|(index, file)| (index_of(index), file.file.len_bytes()));
        Space::blocks(block_bytes, 1, lengths)
    }

    /// Whether every file is read past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.files.iter().all(|file| file.file.direct().is_direct())
    }

    /// Each drive once.
    pub(crate) fn drives(&self) -> Vec<DriveIdentity> {
        let mut drives: Vec<DriveIdentity> = Vec::new();
        for file in &self.files {
            if !drives.contains(&file.drive) {
                drives.push(file.drive.clone());
            }
        }
        drives
    }

    /// What can be read alone, where there is more than one: each drive, else each path. Names, and which files.
    pub(crate) fn parts(&self) -> Vec<(String, Vec<FileIndex>)> {
        let drives = self.drives();
        let files_where = |is_wanted: &dyn Fn(&TargetFile) -> bool| -> Vec<FileIndex> {
            let wanted = self.files.iter().enumerate().filter(|(_, file)| is_wanted(file));
            wanted.map(|(index, _)| index_of(index)).collect()
        };
        let parts: Vec<_> = if drives.len() > 1 {
            let of = |drive: &DriveIdentity| (drive.to_string(), files_where(&|file| file.drive == *drive));
            drives.iter().map(of).collect()
        } else {
            let of = |(index, path): (usize, &String)| {
                (path.clone(), files_where(&|file| file.path_index == index))
            };
            self.paths.iter().enumerate().map(of).collect()
        };
        if parts.len() > 1 { parts } else { Vec::new() }
    }
}

/// Whether a record lies in this file.
fn of_records(records: &[Vec<Span>], file: &TargetFile, files: &[TargetFile]) -> bool {
    let index = files.iter().position(|other| std::ptr::eq(other, file)).map(index_of);
    records.iter().flatten().any(|span| Some(span.file) == index)
}

fn index_of(index: usize) -> FileIndex {
    FileIndex(u16::try_from(index).unwrap_or(u16::MAX))
}

impl Found {
    fn path(&mut self, path: &Path, path_index: usize) -> Outcome {
        let path = &in_store_folder(path);
        let metadata = fs::metadata(path)
            .map_err(|error| Failure::because(Exit::Usage, path.display().to_string(), &error))?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            if path.join(MANIFEST_NAME).is_file() {
                return self.model(&Source::open(path)?, path_index);
            }
            return self.folder(path, path_index);
        }
        if kind.is_block_device() {
            let file = SourceFile::open_block_device(path, true).map_err(EngineError::from)?;
            return self.add(file, true, path_index);
        }
        if !kind.is_file() {
            return Err(Failure::usage(
                "no file, folder or block device: nothing can be read at random in it",
            ));
        }
        match is_gguf(path).then(|| Source::open(path)) {
            Some(Ok(source)) if FlintConfig::from_gguf(source.gguf()).is_ok() => {
                self.model(&source, path_index)
            }
            // Whatever it is, its bytes lie on the drive like others.
            _ => self.plain(path, path_index),
        }
    }

    fn plain(&mut self, path: &Path, path_index: usize) -> Outcome {
        self.add(SourceFile::open(path).map_err(EngineError::from)?, false, path_index)
    }

    fn add(&mut self, file: SourceFile, is_device: bool, path_index: usize) -> Outcome {
        if self.files.len() >= usize::from(u16::MAX) {
            return Err(Failure::usage("more files than one queue can hold"));
        }
        let drive = DriveIdentity::of(file.path());
        self.files.push(TargetFile { file: Arc::new(file), is_device, drive, path_index });
        Ok(())
    }

    /// The largest files of a folder.
    fn folder(&mut self, path: &Path, path_index: usize) -> Outcome {
        let failed = |error| Failure::because(Exit::Usage, path.display().to_string(), &error);
        let mut files: Vec<(u64, PathBuf)> = fs::read_dir(path)
            .map_err(failed)?
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let metadata = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
                (metadata.len() >= RECORD_ALIGN_BYTES).then_some((metadata.len(), path))
            })
            .collect();
        files.sort_by(|a, b| b.cmp(a));
        files.truncate(FOLDER_FILES_MAX);
        let mut last = None;
        for (_, path) in files {
            match SourceFile::open(&path) {
                Ok(file) => self.add(file, false, path_index)?,
                Err(error) => last = Some(error),
            }
        }
        if self.files.iter().any(|file| file.path_index == path_index) {
            return Ok(());
        }
        Err(match last {
            Some(error) => EngineError::from(error).into(),
            None => Failure::usage(
                "no file in this folder to read: --make-file SIZE makes one for the while, and removes it",
            ),
        })
    }

    /// The records of a model, and the files that hold them.
    fn model(&mut self, source: &Source, path_index: usize) -> Outcome {
        let config = FlintConfig::from_gguf(source.gguf()).map_err(EngineError::from)?;
        if self.model.is_some_and(|(bytes, _)| bytes != config.record_bytes()) {
            return Err(Failure::usage("models with records of different lengths: measure them one by one"));
        }
        self.model = Some((config.record_bytes(), config.experts_used));
        let mut places: Vec<Option<FileIndex>> = vec![None; source.files().len()];
        for key in source.expert_keys() {
            let mut record = Vec::new();
            for piece in source.expert_pieces(key).iter() {
                let place = usize::from(piece.span.file.0);
                let file = match places[place] {
                    Some(file) => file,
                    None => {
                        let file = SourceFile::open(&source.files()[place]).map_err(EngineError::from)?;
                        self.add(file, false, path_index)?;
                        *places[place].insert(index_of(self.files.len() - 1))
                    }
                };
                record.push(Span { file, ..piece.span });
            }
            self.records.push(record);
        }
        Ok(())
    }
}

/// A path, or the store of that name in the folder of the stores.
fn in_store_folder(path: &Path) -> PathBuf {
    if path.components().count() == 1 && path.symlink_metadata().is_err() {
        let store = folders::store_dir().map(|dir| dir.join(path)).filter(|store| store.is_dir());
        if let Some(store) = store {
            return store;
        }
    }
    path.to_owned()
}

fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    read.is_ok() && &magic == b"GGUF"
}
