//! Makes a store of a GGUF file.
//!
//! - Owns: the pass over the source. In: a GGUF, the target's path. Out: a store, or nothing.
//! - Invariants: the source is read once, in order, and its SHA-256 taken in the same pass. Memory stays below
//!   [`CHUNK_BYTES`] and the header, whatever the model's size. The store is published only when the whole source was
//!   read unchanged and everything is synced.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::base::ids::Span;
use crate::base::volume::free_bytes;
use crate::gguf::Gguf;
use crate::store::digest::Sha256Digest;
use crate::store::error::{StoreError, io_error};
use crate::store::layout::{Layout, Move};
use crate::store::local::plain_name;
use crate::store::manifest::{MANIFEST_NAME, Manifest, SourceRecord};
use crate::store::output::{Output, Writer};
use crate::store::placement::Placement;
use crate::store::publish::{WorkingFolder, other_working_folders};
use crate::store::sums::Sums;

/// Bytes of a read of the source: large enough for any drive's full rate, small enough to report progress.
const CHUNK_BYTES: usize = 8 << 20;

/// Room on the drive for the manifest, folders and the file system's own tables.
const SPARE_BYTES: u64 = 1 << 20;

/// What an ingest is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngestPhase {
    /// Reading the source and writing the store's files; bytes are those of the source.
    Copy,
    /// Waiting for the drive to have everything; bytes are those of the store.
    Sync,
}

/// How far an ingest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngestProgress {
    /// What it is doing.
    pub phase: IngestPhase,
    /// How much of it is done.
    pub done_bytes: u64,
    /// How much there is.
    pub total_bytes: u64,
}

/// What an ingest made.
#[derive(Debug, Clone)]
pub struct IngestReport {
    /// The store.
    pub store: PathBuf,
    /// Bytes of the source.
    pub source_bytes: u64,
    /// SHA-256 of the source.
    pub source_sha256: Sha256Digest,
    /// Bytes of the store's files.
    pub store_bytes: u64,
    /// Expert records in the store.
    pub record_count: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Working folders of other ingests of the same target, interrupted or running; nothing was done about them.
    pub left_behind: Vec<PathBuf>,
}

/// Makes the store `target_dir` of the GGUF file `source`. `progress` is told before the first byte and after each chunk.
///
/// # Errors
/// The source is no Flint, truncated or changing; the target exists or cannot be made; the drive is full or fails.
/// Then nothing stands under the target's name that was not there before, and what was written is removed.
pub fn ingest(
    source: &Path,
    target_dir: &Path,
    progress: &mut dyn FnMut(IngestProgress) -> ControlFlow<()>,
) -> Result<IngestReport, StoreError> {
    ingest_checked(source, target_dir, None, progress)
}

/// [`ingest`] of a source whose SHA-256 is known: with another one it is refused, after it was read.
///
/// # Errors
/// As [`ingest`], and [`StoreError::SourceDigest`].
pub fn ingest_checked(
    source: &Path,
    target_dir: &Path,
    wanted: Option<Sha256Digest>,
    progress: &mut dyn FnMut(IngestProgress) -> ControlFlow<()>,
) -> Result<IngestReport, StoreError> {
    let started = Instant::now();
    let gguf = Gguf::read(source)?;
    let layout = Layout::from_gguf(&gguf, Placement::single)?;
    let parent = WorkingFolder::check_target(target_dir)?;
    let store_bytes =
        gguf.header_bytes().len() as u64 + layout.dense_file_bytes + layout.experts_file_bytes(0);
    check_room(&parent, store_bytes + SPARE_BYTES)?;

    let folder = WorkingFolder::create(target_dir)?;
    let header_sha256 = Sha256Digest::of(gguf.header_bytes());
    let name = |file: &str| folder.path().join(file);
    let header = Output::create(name("header.bin"), gguf.header_bytes().len() as u64)?;
    let dense = Output::create(name("dense.bin"), layout.dense_file_bytes)?;
    let experts = Output::create(name("experts.bin"), layout.experts_file_bytes(0))?;
    let mut writer = Writer { dense, experts, left_bytes: store_bytes };
    writer.left_bytes -= header.write(gguf.header_bytes(), 0, writer.left_bytes)?;

    let mut sums = Sums::new(&layout);
    let source_sha256 = copy(source, &gguf, &layout, &mut writer, &mut sums, progress)?;
    if let Some(wanted) = wanted.filter(|&wanted| wanted != source_sha256) {
        return Err(StoreError::SourceDigest { path: source.to_owned(), found: source_sha256, wanted });
    }
    let record = SourceRecord {
        file_name: plain_name(source),
        size_bytes: gguf.file_len_bytes,
        header_bytes: gguf.header_bytes().len() as u64,
        sha256: source_sha256,
    };
    let facts = sums.facts(vec![record], header_sha256, &gguf, &layout, vec![None]);
    let manifest = Manifest::new(facts, &gguf, &layout).to_bytes();
    let description = Output::create(name(MANIFEST_NAME), manifest.len() as u64)?;
    description.write(&manifest, 0, manifest.len() as u64)?;

    let total_bytes = store_bytes + manifest.len() as u64;
    let mut done_bytes = 0;
    for output in [&writer.experts, &writer.dense, &header, &description] {
        go_on(progress(IngestProgress { phase: IngestPhase::Sync, done_bytes, total_bytes }))?;
        done_bytes += output.sync()?;
    }
    folder.publish()?;
    let _ = progress(IngestProgress { phase: IngestPhase::Sync, done_bytes, total_bytes });
    Ok(IngestReport {
        store: target_dir.to_owned(),
        source_bytes: gguf.file_len_bytes,
        source_sha256,
        store_bytes: total_bytes,
        record_count: layout.experts.record_count(),
        elapsed: started.elapsed(),
        left_behind: other_working_folders(target_dir, &parent),
    })
}

/// Reads the whole source once, hands its parts to `writer`, and gives its SHA-256.
fn copy(
    path: &Path,
    gguf: &Gguf,
    layout: &Layout,
    writer: &mut Writer,
    sums: &mut Sums,
    progress: &mut dyn FnMut(IngestProgress) -> ControlFlow<()>,
) -> Result<Sha256Digest, StoreError> {
    let mut file = File::open(path).map_err(io_error("open", path))?;
    let before = file.metadata().map_err(io_error("look up", path))?;
    let total_bytes = gguf.file_len_bytes;
    let mut report =
        |done_bytes| go_on(progress(IngestProgress { phase: IngestPhase::Copy, done_bytes, total_bytes }));
    report(0)?;

    let moves = layout.moves();
    let mut next = 0;
    let mut sha256 = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset_bytes = 0u64;
    loop {
        let got = read_chunk(&mut file, &mut chunk).map_err(io_error("read", path))?;
        if got == 0 {
            break;
        }
        let bytes = &chunk[..got];
        sha256.update(bytes);
        if !agrees_with_header(bytes, offset_bytes, gguf.header_bytes()) {
            return Err(StoreError::SourceChanged { path: path.to_owned() });
        }
        write_moves(bytes, offset_bytes, &moves, &mut next, writer, sums)?;
        offset_bytes += got as u64;
        report(offset_bytes)?;
    }
    if offset_bytes < total_bytes {
        let (path, want_bytes, got_bytes) = (path.to_owned(), total_bytes, offset_bytes);
        return Err(StoreError::SourceTruncated { path, want_bytes, got_bytes });
    }
    let after = file.metadata().map_err(io_error("look up", path))?;
    if offset_bytes > total_bytes || !is_same_state(&before, &after) {
        return Err(StoreError::SourceChanged { path: path.to_owned() });
    }
    assert_eq!(next, moves.len(), "a tensor inside the file was not met in it");
    Ok(Sha256Digest(sha256.finalize().into()))
}

/// Writes what of `moves[*next..]` lies in `bytes`, which stand at `offset_bytes` in the source; `next` becomes the first
/// that is not done.
fn write_moves(
    bytes: &[u8],
    offset_bytes: u64,
    moves: &[Move],
    next: &mut usize,
    writer: &mut Writer,
    sums: &mut Sums,
) -> Result<(), StoreError> {
    let end_bytes = offset_bytes + bytes.len() as u64;
    while let Some(step) = moves.get(*next).filter(|step| step.gguf_offset_bytes < end_bytes) {
        let step_end_bytes = step.gguf_offset_bytes + step.target.len_bytes;
        let from = step.gguf_offset_bytes.max(offset_bytes);
        let to = step_end_bytes.min(end_bytes);
        let place = |at: u64| usize::try_from(at - offset_bytes).expect("invariant: inside the chunk");
        let target = Span {
            file: step.target.file,
            offset_bytes: step.target.offset_bytes + (from - step.gguf_offset_bytes),
            len_bytes: to - from,
        };
        let bytes = &bytes[place(from)..place(to)];
        sums.add(bytes);
        writer.write(bytes, target)?;
        if step_end_bytes > end_bytes {
            break;
        }
        sums.end(*next);
        *next += 1;
    }
    Ok(())
}

fn go_on(answer: ControlFlow<()>) -> Result<(), StoreError> {
    if answer.is_break() { Err(StoreError::Stopped) } else { Ok(()) }
}

/// Fills `chunk` as far as the file goes.
fn read_chunk(file: &mut File, chunk: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < chunk.len() {
        match file.read(&mut chunk[got..]) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

/// Whether `bytes`, which stand at `offset_bytes` in the source, still are what was parsed before.
fn agrees_with_header(bytes: &[u8], offset_bytes: u64, header: &[u8]) -> bool {
    let rest = usize::try_from(offset_bytes).ok().and_then(|start| header.get(start..)).unwrap_or_default();
    let len = rest.len().min(bytes.len());
    bytes[..len] == rest[..len]
}

fn is_same_state(before: &Metadata, after: &Metadata) -> bool {
    let state = |file: &Metadata| (file.len(), file.mtime(), file.mtime_nsec());
    state(before) == state(after)
}

fn check_room(folder: &Path, needed_bytes: u64) -> Result<(), StoreError> {
    let free_bytes = free_bytes(folder).map_err(io_error("ask for the free space", folder))?;
    if free_bytes < needed_bytes {
        return Err(StoreError::NoSpace { path: folder.to_owned(), needed_bytes, free_bytes });
    }
    Ok(())
}
