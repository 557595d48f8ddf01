//! Puts back what is damaged in a store, from the model that it was made of.
//!
//! - Owns: the store, alone, while it works. In: a store, a source of the same identity. Out: the exact bytes that the
//!   ingest wrote, or what could not be had.
//! - Invariants: a record is written only if its bytes have the manifest's checksum. Nothing that is right is written over,
//!   and the manifest never is, so a repair that is killed leaves a store that is damaged in fewer places or the same, and
//!   can be repaired again. The store counts as repaired when it was read again, from the drive.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::base::ids::Span;
use crate::store::checksum::record_checksum;
use crate::store::digest::Sha256Digest;
use crate::store::error::{StoreError, io_error};
use crate::store::lock::WriterLock;
use crate::store::open::Source;
use crate::store::verify::damage::{Damage, DamagedPart};
use crate::store::verify::map::{MapFile, Piece, PieceName, StoreMap};
use crate::store::verify::sum::TensorSum;
use crate::store::verify::{VerifyOptions, VerifyProgress, VerifyReport, read_map, verify_map};

/// Bytes of a copy at a time.
const CHUNK_BYTES: usize = 8 << 20;

/// What a repair did.
#[derive(Debug, Clone)]
pub struct RepairReport {
    /// What was damaged before.
    pub before: VerifyReport,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// What in the source is damaged itself, so that it could not be used.
    pub unusable: Vec<String>,
    /// What is damaged now. Equal to `before` when nothing was.
    pub after: VerifyReport,
}

/// Rewrites what is damaged in the store `folder` with the bytes of `source_path`, and looks through the store again.
///
/// # Errors
/// As [`super::verify_store`]; [`StoreError::InUse`] while somebody has the store open; [`StoreError::RepairSource`] when
/// `source_path` is another model; what [`Source::open`] says of it; [`StoreError::Io`] when a write fails: what was
/// written until then is right, the rest as before.
pub fn repair_store(
    folder: &Path,
    source_path: &Path,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
) -> Result<RepairReport, StoreError> {
    let map = read_map(folder)?;
    let _lock = WriterLock::take(folder)?;
    let source = Source::open(source_path)?;
    if source.identity() != map.store_id {
        let (found, wanted) = (source.identity(), map.store_id);
        return Err(StoreError::RepairSource { path: source_path.to_owned(), found, wanted });
    }
    let before = verify_map(&map, options, progress)?;
    if before.is_whole() {
        return Ok(RepairReport { after: before.clone(), before, written_bytes: 0, unusable: Vec::new() });
    }
    let mut repair = Repair::new(&map, &source)?;
    repair.run(&before.damage, progress)?;
    let after = verify_map(&map, options, progress)?;
    Ok(RepairReport { before, written_bytes: repair.written_bytes, unusable: repair.unusable, after })
}

struct Repair<'a> {
    map: &'a StoreMap,
    source: &'a Source,
    source_files: Vec<File>,
    buffer: Vec<u8>,
    written_bytes: u64,
    unusable: Vec<String>,
}

impl<'a> Repair<'a> {
    fn new(map: &'a StoreMap, source: &'a Source) -> Result<Self, StoreError> {
        let open = |path: &std::path::PathBuf| File::open(path).map_err(io_error("open", path));
        let source_files = source.files().iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { map, source, source_files, buffer: Vec::new(), written_bytes: 0, unusable: Vec::new() })
    }

    fn run(
        &mut self,
        damage: &[Damage],
        progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        if damage.iter().any(|damage| damage.part == DamagedPart::Header) {
            self.write_header()?;
        }
        let map = self.map;
        for file in &map.files {
            let damage: Vec<_> = damage.iter().filter(|damage| damage.path == file.path).collect();
            if damage.is_empty() {
                continue;
            }
            // A file that is gone, or has another digest though all its pieces seem right, is written whole.
            let is_whole_file = |damage: &&Damage| {
                damage.part == DamagedPart::File && !matches!(damage.cause, super::Cause::Length { .. })
            };
            let is_all = damage.iter().any(is_whole_file);
            let target = open_target(file)?;
            let is_damaged = |piece: &&Piece| {
                is_all
                    || damage
                        .iter()
                        .any(|damage| damage.part.is_piece() && damage.offset_bytes == piece.offset_bytes)
            };
            let wanted: Vec<_> = file.pieces.iter().filter(is_damaged).collect();
            let total_bytes = wanted.iter().map(|piece| piece.len_bytes).sum();
            let mut done_bytes = 0;
            for piece in wanted {
                self.write_piece(&target, file, piece)?;
                done_bytes += piece.len_bytes;
                if progress(VerifyProgress { done_bytes, total_bytes, damaged: damage.len() }).is_break() {
                    return Err(StoreError::Stopped);
                }
            }
            for damage in damage.iter().filter(|damage| damage.part == DamagedPart::Padding) {
                let zeros = vec![0; usize::try_from(damage.len_bytes).expect("invariant: below a page")];
                write_at(&target, &file.path, &zeros, damage.offset_bytes)?;
                self.written_bytes += damage.len_bytes;
            }
            target.sync_all().map_err(io_error("sync", &file.path))?;
            sync_folder_of(&file.path)?;
        }
        Ok(())
    }

    /// The header is replaced as a whole: a store whose header is half written could not be opened.
    fn write_header(&mut self) -> Result<(), StoreError> {
        let bytes = self.source.gguf().header_bytes();
        // The identity is made of the header's digest, so this fails only if the source changed under us.
        if Sha256Digest::of(bytes) != self.map.header_sha256 {
            self.unusable.push("header".to_owned());
            return Ok(());
        }
        let path = &self.map.header_path;
        let temporary = path.with_extension("bin.repair");
        let write = || -> io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, path)
        };
        write().map_err(io_error("write", path))?;
        self.written_bytes += bytes.len() as u64;
        sync_folder_of(path)
    }

    fn write_piece(&mut self, target: &File, file: &MapFile, piece: &Piece) -> Result<(), StoreError> {
        match &piece.name {
            PieceName::Record(key) => {
                let mut record = std::mem::take(&mut self.buffer);
                record.clear();
                for part in self.source.expert_pieces(*key).iter() {
                    let from = record.len();
                    let len = usize::try_from(part.span.len_bytes).expect("invariant: below 1 GiB");
                    record.resize(from + len, 0);
                    self.read(part.span, &mut record[from..])?;
                }
                let sum = record_checksum(self.map.store_id, *key, &self.map.record, &record);
                if sum == piece.checksum {
                    write_at(target, &file.path, &record, piece.offset_bytes)?;
                    self.written_bytes += record.len() as u64;
                } else {
                    self.unusable.push(key.to_string());
                }
                self.buffer = record;
            }
            PieceName::Tensor(name) => self.write_tensor(target, file, piece, name)?,
        }
        Ok(())
    }

    /// A tensor may be longer than memory: it is summed first, then copied.
    fn write_tensor(
        &mut self,
        target: &File,
        file: &MapFile,
        piece: &Piece,
        name: &str,
    ) -> Result<(), StoreError> {
        let span = self.source.tensor_span(name).filter(|span| span.len_bytes == piece.len_bytes);
        let Some(span) = span else {
            self.unusable.push(format!("tensor {name}"));
            return Ok(());
        };
        let mut chunk = std::mem::take(&mut self.buffer);
        for is_writing in [false, true] {
            let mut sum = TensorSum::default();
            let mut at = 0;
            while at < span.len_bytes {
                let len_bytes = (span.len_bytes - at).min(CHUNK_BYTES as u64);
                chunk.resize(usize::try_from(len_bytes).expect("invariant: a chunk"), 0);
                self.read(Span { offset_bytes: span.offset_bytes + at, len_bytes, ..span }, &mut chunk)?;
                if is_writing {
                    write_at(target, &file.path, &chunk, piece.offset_bytes + at)?;
                    self.written_bytes += len_bytes;
                } else {
                    sum.update(&chunk);
                }
                at += len_bytes;
            }
            if !is_writing && sum.finish(self.map.store_id, name) != piece.checksum {
                self.unusable.push(format!("tensor {name}"));
                break;
            }
        }
        self.buffer = chunk;
        Ok(())
    }

    fn read(&self, span: Span, target: &mut [u8]) -> Result<(), StoreError> {
        let file = usize::from(span.file.0);
        let read = self.source_files[file].read_exact_at(target, span.offset_bytes);
        read.map_err(io_error("read", &self.source.files()[file]))
    }
}

/// The file, in its right length. It is made where it is gone, but no folder is: a drive that is not there is not
/// replaced by a folder on another.
fn open_target(file: &MapFile) -> Result<File, StoreError> {
    let open = || -> io::Result<File> {
        let target = OpenOptions::new().write(true).create(true).truncate(false).open(&file.path)?;
        if target.metadata()?.len() != file.len_bytes {
            target.set_len(file.len_bytes)?;
        }
        Ok(target)
    };
    open().map_err(io_error("open for repair", &file.path))
}

fn write_at(target: &File, path: &Path, bytes: &[u8], offset_bytes: u64) -> Result<(), StoreError> {
    target.write_all_at(bytes, offset_bytes).map_err(io_error("write", path))
}

fn sync_folder_of(path: &Path) -> Result<(), StoreError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error("sync", folder))
}
