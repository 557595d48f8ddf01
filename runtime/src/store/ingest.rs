//! Makes a store of a GGUF.
//!
//! - Owns: the order of the work. In: the source's bytes, the target's path. Out: a store, or nothing under its name.
//! - Invariants: the store is published only when the whole source was read unchanged and everything is synced. What an
//!   interruption leaves is gone on with by the next ingest of the same target, and the store is the same to the byte.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::store::bytes::{ByteSource, SourceError};
use crate::store::digest::Sha256Digest;
use crate::store::drive::{Drive, Entry};
use crate::store::error::{StoreError, io_error, write_error};
use crate::store::headers::{join_headers, open_local};
use crate::store::journal::{Journal, State, Task, write_whole};
use crate::store::layout::{Layout, Move};
use crate::store::manifest::{
    DENSE_NAME, HEADER_NAME, MANIFEST_NAME, Manifest, SourceRecord, experts_file_name, store_id,
};
use crate::store::options::{IngestOptions, IngestPhase, IngestProgress, IngestReport};
use crate::store::output::Output;
use crate::store::parts::Joined;
use crate::store::pass::Work;
use crate::store::placement::Placement;
use crate::store::publish::{Target, WorkingFolder, entry, sync_folder};
use crate::store::real_drive::RealDrive;
use crate::store::stripes::{self, StripeFolder};
use crate::store::sums::facts;

/// Room on the drive for manifest, journal, folders and the file system's own tables.
const SPARE_BYTES: u64 = 1 << 20;

/// Makes the store `target_dir` of the GGUF file `source`, or of all parts of the split GGUF that it belongs to.
/// `progress` is told before the first byte and after each chunk, and stops the ingest by [`ControlFlow::Break`].
///
/// # Errors
/// The source is no Flint, truncated or changing; the target exists or cannot be made; another ingest of it is running;
/// the drive is full or fails. Then nothing stands under the target's name that was not there before. What was done is
/// kept beside it, and the next ingest goes on from there, except when the source itself was wrong.
pub fn ingest(
    source: &Path,
    target_dir: &Path,
    progress: &mut dyn FnMut(IngestProgress) -> ControlFlow<()>,
) -> Result<IngestReport, StoreError> {
    ingest_from(open_local(source)?, target_dir, &IngestOptions::default(), progress)
}

/// [`ingest`] of files from anywhere: one, or all parts of a split GGUF in order.
///
/// # Errors
/// As [`ingest`], and [`StoreError::SourceDigest`].
///
/// # Panics
/// When there is no source, or `options` has another number of digests than there are sources, and not none.
pub fn ingest_from(
    sources: Vec<Box<dyn ByteSource>>,
    target_dir: &Path,
    options: &IngestOptions,
    progress: &mut dyn FnMut(IngestProgress) -> ControlFlow<()>,
) -> Result<IngestReport, StoreError> {
    ingest_on(&RealDrive, sources, target_dir, options, progress)
}

/// [`ingest_from`], onto any [`Drive`].
///
/// # Errors
/// As [`ingest_from`].
///
/// # Panics
/// As [`ingest_from`].
pub fn ingest_on(
    drive: &dyn Drive,
    mut sources: Vec<Box<dyn ByteSource>>,
    target_dir: &Path,
    options: &IngestOptions,
    progress: &mut dyn FnMut(IngestProgress) -> ControlFlow<()>,
) -> Result<IngestReport, StoreError> {
    let started = Instant::now();
    let count = options.sha256.len();
    assert!(count == 0 || count == sources.len(), "{count} digests for {} files", sources.len());
    let joined = join_headers(&mut sources)?;
    let target = Target::check(drive, target_dir)?;
    let stripes = stripes::folders(drive, &target, options)?;
    let weights: Vec<f64> = match options.stripes.as_slice() {
        [] => vec![1.0],
        stripes => stripes.iter().map(|stripe| stripe.weight).collect(),
    };
    let layout = Layout::from_gguf(&joined.gguf, |count| Placement::weighted(count, &weights))?;
    let moves = layout.moves();
    let folder = WorkingFolder::take(drive, target)?;
    let mut ingest = Ingest {
        drive,
        options,
        joined: &joined,
        layout: &layout,
        moves: &moves,
        stripes: &stripes,
        folder: &folder,
    };
    let result = ingest.run(&mut sources, progress);
    if result.as_ref().is_err_and(is_worthless) {
        // The error that led here is the one to report.
        let _ = ingest.discard();
    }
    let (resumed_bytes, source_sha256, store_bytes) = result?;
    Ok(IngestReport {
        store: target_dir.to_owned(),
        source_bytes: joined.gguf.file_len_bytes,
        resumed_bytes,
        source_sha256,
        store_bytes,
        record_count: layout.experts.record_count(),
        elapsed: started.elapsed(),
    })
}

/// Whether nothing of what was done can be of use.
fn is_worthless(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::SourceChanged { .. }
            | StoreError::SourceTruncated { .. }
            | StoreError::SourceDigest { .. }
            | StoreError::Source(SourceError::Changed { .. })
            | StoreError::NoSpace { .. }
    )
}

struct Ingest<'run> {
    drive: &'run dyn Drive,
    options: &'run IngestOptions,
    joined: &'run Joined,
    layout: &'run Layout,
    moves: &'run [Move],
    stripes: &'run [StripeFolder],
    folder: &'run WorkingFolder<'run>,
}

impl Ingest<'_> {
    /// Does the work; gives the bytes that were done before, the digests of the source's files, the store's bytes.
    fn run(
        &mut self,
        sources: &mut [Box<dyn ByteSource>],
        progress: &mut dyn FnMut(IngestProgress) -> ControlFlow<()>,
    ) -> Result<(u64, Vec<Sha256Digest>, u64), StoreError> {
        let stamps: Result<Vec<_>, _> = sources.iter().map(|source| source.stamp()).collect();
        let task = Task {
            store_id: self.store_id(),
            stamps: stamps?,
            folders: self.stripes.iter().map(|stripe| stripe.path().cloned()).collect(),
            weights: self.options.stripes.iter().map(|stripe| stripe.weight.to_string()).collect(),
            placement: self.placement_digest(),
        };
        let stamps = task.stamps.clone();
        let (mut journal, mut state, outputs) = self.begin(task)?;
        let gguf = &self.joined.gguf;
        let work = Work {
            drive: self.drive,
            parts: &self.joined.parts,
            stamps: &stamps,
            headers: gguf.header_bytes(),
            moves: self.moves,
            outputs: &outputs,
            options: self.options,
        };
        if !work.accepts(&state) {
            return Err(StoreError::JournalDamaged { path: self.folder.path().to_owned() });
        }
        let resumed_bytes = state.offset_bytes;
        let mut say = |phase, done_bytes, total_bytes| {
            go_on(progress(IngestProgress { phase, done_bytes, total_bytes, resumed_bytes }))
        };
        say(IngestPhase::Copy, resumed_bytes, gguf.file_len_bytes)?;
        work.run(sources, &mut state, &mut journal, progress)?;

        let names = sources.iter().map(|source| source.name().replace(char::is_control, "\u{fffd}"));
        let records =
            names.zip(&self.joined.parts).zip(&state.parts_done).map(|((file_name, part), &sha256)| {
                let (size_bytes, header_bytes) = (part.len_bytes, part.header_bytes);
                SourceRecord { file_name, size_bytes, header_bytes, sha256 }
            });
        let folders: Vec<_> = self.stripes.iter().map(|stripe| stripe.path().cloned()).collect();
        let facts = facts(&state.pieces, records.collect(), gguf, self.layout, &folders);
        let manifest = Manifest::new(facts, gguf, self.layout).to_bytes();

        // The pass has synced its files; what is left are the manifest and the names.
        let store_bytes = self.files_bytes() + manifest.len() as u64;
        let mut say = |done_bytes| {
            let phase = IngestPhase::Sync;
            go_on(progress(IngestProgress { phase, done_bytes, total_bytes: store_bytes, resumed_bytes }))
        };
        say(store_bytes - manifest.len() as u64)?;
        write_whole(self.drive, &self.folder.store().join(MANIFEST_NAME), &manifest)?;
        for stripe in self.stripes {
            stripe.publish(self.drive)?;
        }
        self.folder.publish()?;
        // It is done; nothing is left to be stopped.
        let _ = say(store_bytes);
        Ok((resumed_bytes, state.parts_done, store_bytes))
    }

    /// Goes on with what an interrupted ingest left, or begins.
    fn begin(&self, task: Task) -> Result<(Journal, State, Vec<Output>), StoreError> {
        if self.options.restart {
            self.clear()?;
        }
        let found = Journal::load(self.drive, self.folder.path(), &task, self.moves.len())?;
        if let Some((journal, state)) = found {
            if !self.has_header()? {
                return Err(journal.damaged());
            }
            let outputs = self.planned()?.into_iter().map(|(path, len_bytes)| {
                if entry(self.drive, &path)? != Some(Entry::File(len_bytes)) {
                    return Err(journal.damaged());
                }
                let file = self.drive.open_file(&path).map_err(io_error("open", &path))?;
                Ok(Output { path, len_bytes, file })
            });
            let outputs = outputs.collect::<Result<_, StoreError>>()?;
            return Ok((journal, state, outputs));
        }
        // Without a journal, whatever is there means nothing.
        self.clear()?;
        let begun = self.create(task);
        if begun.is_err() {
            // Also room that was taken ahead; the error is the one to report.
            let _ = self.discard();
        }
        begun
    }

    fn create(&self, task: Task) -> Result<(Journal, State, Vec<Output>), StoreError> {
        self.check_room()?;
        let store = self.folder.store();
        self.drive.create_folder(&store).map_err(io_error("make the folder", &store))?;
        for stripe in self.stripes {
            stripe.create(self.drive, task.store_id)?;
        }
        let mut left_bytes = self.files_bytes();
        let mut make = |path: PathBuf, len_bytes: u64| {
            let file = self.drive.create_file(&path, len_bytes);
            let file = file.map_err(|source| write_error(self.drive, &path, 0, left_bytes, source))?;
            left_bytes -= len_bytes;
            Ok::<_, StoreError>(Output { path, len_bytes, file })
        };
        let header = self.joined.gguf.header_bytes();
        let copy = make(store.join(HEADER_NAME), header.len() as u64)?;
        let outputs: Result<Vec<_>, _> =
            self.planned()?.into_iter().map(|(path, len_bytes)| make(path, len_bytes)).collect();
        let outputs = outputs?;
        let written = copy.file.write_at(header, 0);
        written.map_err(|source| write_error(self.drive, &copy.path, 0, header.len() as u64, source))?;
        for output in outputs.iter().chain([&copy]) {
            let synced = output.file.sync();
            synced.map_err(|source| StoreError::SyncFailed { path: output.path.clone(), source })?;
        }
        for output in &outputs {
            sync_folder(self.drive, output.path.parent().unwrap_or(&store))?;
        }
        sync_folder(self.drive, self.folder.path())?;
        // From here on, what is in the folder means what the journal says.
        let journal = Journal::create(self.drive, self.folder.path(), task, self.moves.len())?;
        Ok((journal, State::start(), outputs))
    }

    /// Whether the interrupted ingest left the header's copy, which was made before its journal.
    fn has_header(&self) -> Result<bool, StoreError> {
        let path = self.folder.store().join(HEADER_NAME);
        let wanted = self.joined.gguf.header_bytes();
        if entry(self.drive, &path)? != Some(Entry::File(wanted.len() as u64)) {
            return Ok(false);
        }
        let mut found = vec![0; wanted.len()];
        self.drive.read_at(&path, 0, &mut found).map_err(io_error("read", &path))?;
        Ok(found == wanted)
    }

    /// Path and length of the files that pieces go to, in their order.
    fn planned(&self) -> Result<Vec<(PathBuf, u64)>, StoreError> {
        let store = self.folder.store();
        let mut planned = vec![(store.join(DENSE_NAME), self.layout.dense_file_bytes)];
        for (file, stripe) in self.stripes.iter().enumerate() {
            let name = experts_file_name(file, self.stripes.len());
            let folder = stripe.place(self.drive, &store)?;
            planned.push((folder.join(name), self.layout.experts_file_bytes(file)));
        }
        Ok(planned)
    }

    fn check_room(&self) -> Result<(), StoreError> {
        let mut needs = vec![(self.folder.path().to_owned(), self.joined.gguf.header_bytes().len() as u64)];
        needs[0].1 += self.layout.dense_file_bytes + SPARE_BYTES;
        for (file, stripe) in self.stripes.iter().enumerate() {
            let needed_bytes = self.layout.experts_file_bytes(file);
            match stripe.path().and_then(|path| path.parent()) {
                None => needs[0].1 += needed_bytes,
                Some(folder) => needs.push((folder.to_owned(), needed_bytes + SPARE_BYTES)),
            }
        }
        for (path, needed_bytes) in needs {
            let free_bytes =
                self.drive.free_bytes(&path).map_err(io_error("ask for the free space", &path))?;
            if free_bytes < needed_bytes {
                return Err(StoreError::NoSpace { path, needed_bytes, free_bytes });
            }
        }
        Ok(())
    }

    /// Bytes of all files but the manifest.
    fn files_bytes(&self) -> u64 {
        let experts: u64 = (0..self.stripes.len()).map(|file| self.layout.experts_file_bytes(file)).sum();
        self.joined.gguf.header_bytes().len() as u64 + self.layout.dense_file_bytes + experts
    }

    fn store_id(&self) -> Sha256Digest {
        let lens = self.joined.parts.iter().map(|part| (part.header_bytes, part.len_bytes));
        store_id(lens, self.joined.gguf.header_bytes())
    }

    fn placement_digest(&self) -> Sha256Digest {
        let files: Vec<u8> =
            self.layout.placement.places.iter().flat_map(|place| place.file.to_le_bytes()).collect();
        Sha256Digest::of(&files)
    }

    fn clear(&self) -> Result<(), StoreError> {
        self.folder.clear()?;
        self.stripes.iter().try_for_each(|stripe| stripe.clear(self.drive))
    }

    fn discard(&self) -> Result<(), StoreError> {
        self.stripes.iter().try_for_each(|stripe| stripe.clear(self.drive))?;
        self.folder.remove()
    }
}

fn go_on(answer: ControlFlow<()>) -> Result<(), StoreError> {
    if answer.is_break() { Err(StoreError::Stopped) } else { Ok(()) }
}
