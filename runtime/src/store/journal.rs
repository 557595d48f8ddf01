//! How far an ingest is, as it stands on the drive: `journal.json` and `pieces.bin`.
//!
//! - Owns: their form. In: a state that is durable, or the bytes of an interrupted ingest. Out: the other one.
//! - Invariants: a journal is written after everything that it says was done is on the drive, and replaces the one
//!   before it at once. A digest over all of it, and one over the pieces' sums, find any change. Whatever a journal does
//!   not say was done is done again.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::Sha256;
use sha2::digest::common::hazmat::SerializableState;

use crate::store::bytes::SourceStamp;
use crate::store::digest::Sha256Digest;
use crate::store::drive::{Drive, DriveFile, Entry};
use crate::store::error::{StoreError, io_error, write_error};
use crate::store::sums::PieceSums;

pub(super) const JOURNAL_NAME: &str = "journal.json";
pub(super) const PIECES_NAME: &str = "pieces.bin";

/// Bytes of a piece's sums: XXH3, then SHA-256.
const PIECE_BYTES: usize = 48;

/// Longest journal that is read; it has a few hundred bytes for each file of the source.
const JOURNAL_BYTES_MAX: u64 = 4 << 20;

const FORMAT: &str = "flint-rt journal";

/// Also names the form of `sha256_state`, which is that of crate sha2 0.11.
const VERSION: u32 = 1;

/// What must be the same when an ingest goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Task {
    pub(super) store_id: Sha256Digest,
    /// The files of the source.
    pub(super) stamps: Vec<SourceStamp>,
    /// The folder of each experts file; none for the store's own.
    pub(super) folders: Vec<Option<PathBuf>>,
    /// The share of each experts file as it was asked for or measured, in the shortest digits that mean the same number.
    /// Not compared: what comes of it is in `placement`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) weights: Vec<String>,
    /// SHA-256 over the file of each record.
    pub(super) placement: Sha256Digest,
}

/// How far an ingest is.
#[derive(Debug, Clone)]
pub(super) struct State {
    /// Bytes of the source that are done, counted through all parts.
    pub(super) offset_bytes: u64,
    /// The SHA-256 of the part at hand, up to there.
    pub(super) sha256: Sha256,
    /// The SHA-256 of the parts before it.
    pub(super) parts_done: Vec<Sha256Digest>,
    /// The sums of the pieces that are done.
    pub(super) pieces: Vec<PieceSums>,
    /// Bytes that are done of the piece after them.
    pub(super) piece_bytes: u64,
    /// The XXH3 of those bytes; none where nothing of a piece is done, and in journals that were written without it.
    pub(super) piece_xxh3: Option<u128>,
}

impl State {
    /// Nothing is done.
    pub(super) fn start() -> Self {
        Self {
            offset_bytes: 0,
            sha256: Sha256::default(),
            parts_done: Vec::new(),
            pieces: Vec::new(),
            piece_bytes: 0,
            piece_xxh3: None,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: String,
    version: u32,
    task: Task,
    offset_bytes: u64,
    sha256_state: String,
    parts_done: Vec<Sha256Digest>,
    piece_count: u64,
    piece_bytes: u64,
    /// Sixteen bytes in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    piece_xxh3: Option<String>,
    pieces_sha256: Sha256Digest,
    /// SHA-256 of this record as compact JSON with this field empty.
    digest: String,
}

impl Record {
    /// What stands in `folder`; `None` when there is no journal.
    fn load(drive: &dyn Drive, folder: &Path) -> Result<Option<Self>, StoreError> {
        let path = folder.join(JOURNAL_NAME);
        let damaged = || StoreError::JournalDamaged { path: folder.to_owned() };
        let len = match drive.entry(&path).map_err(io_error("look up", &path))? {
            None => return Ok(None),
            Some(Entry::File(len)) if len <= JOURNAL_BYTES_MAX => len,
            Some(_) => return Err(damaged()),
        };
        let mut bytes = vec![0; usize::try_from(len).expect("invariant: below the limit")];
        drive.read_at(&path, 0, &mut bytes).map_err(io_error("read", &path))?;
        let record: Self = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
        let is_ours = record.format == FORMAT && record.version == VERSION;
        if is_ours && record.digest == record.digest_of_the_rest() {
            Ok(Some(record))
        } else {
            Err(damaged())
        }
    }

    fn digest_of_the_rest(&self) -> String {
        let rest = Self { digest: String::new(), ..self.clone() };
        let bytes = serde_json::to_vec(&rest).expect("invariant: plain fields always serialize");
        Sha256Digest::of(&bytes).to_string()
    }
}

/// The task of the interrupted ingest that worked in `folder`, if there is one and its journal is sound.
pub(super) fn begun_task(drive: &dyn Drive, folder: &Path) -> Option<Task> {
    Record::load(drive, folder).ok()?.map(|record| record.task)
}

/// The journal of an ingest at work.
#[derive(Debug)]
pub(super) struct Journal {
    folder: PathBuf,
    task: Task,
    pieces: Box<dyn DriveFile>,
    /// SHA-256 over the pieces' sums that are on the drive.
    pieces_sha256: Sha256,
    piece_count: usize,
}

impl Journal {
    /// Begins a journal in `folder`, with nothing done. `piece_count` pieces are to come.
    pub(super) fn create(
        drive: &dyn Drive,
        folder: &Path,
        task: Task,
        piece_count: usize,
    ) -> Result<Self, StoreError> {
        let path = folder.join(PIECES_NAME);
        let len_bytes = (piece_count * PIECE_BYTES) as u64;
        let pieces = drive.create_file(&path, len_bytes);
        let pieces = pieces.map_err(|source| write_error(drive, &path, 0, len_bytes, source))?;
        let mut journal = Self {
            folder: folder.to_owned(),
            task,
            pieces,
            pieces_sha256: Sha256::default(),
            piece_count: 0,
        };
        journal.save(drive, &State::start())?;
        Ok(journal)
    }

    /// Reads what an interrupted ingest left in `folder`; `None` when there is no journal. `piece_count` is the whole
    /// model's.
    pub(super) fn load(
        drive: &dyn Drive,
        folder: &Path,
        task: &Task,
        piece_count: usize,
    ) -> Result<Option<(Self, State)>, StoreError> {
        let damaged = || StoreError::JournalDamaged { path: folder.to_owned() };
        let Some(record) = Record::load(drive, folder)? else { return Ok(None) };
        check_same(&record.task, task, folder)?;
        let sha256 = from_hex(&record.sha256_state).ok_or_else(damaged)?;

        let piece_xxh3 = record.piece_xxh3.as_deref().map(|digits| u128::from_str_radix(digits, 16));
        let piece_xxh3 = piece_xxh3.transpose().map_err(|_| damaged())?;
        let path = folder.join(PIECES_NAME);
        let count = usize::try_from(record.piece_count).ok().filter(|count| *count <= piece_count);
        let mut bytes = vec![0; count.ok_or_else(damaged)? * PIECE_BYTES];
        drive.read_at(&path, 0, &mut bytes).map_err(|_| damaged())?;
        if Sha256Digest::of(&bytes) != record.pieces_sha256 {
            return Err(damaged());
        }
        let state = State {
            offset_bytes: record.offset_bytes,
            sha256,
            parts_done: record.parts_done,
            pieces: bytes.as_chunks::<PIECE_BYTES>().0.iter().map(piece_of).collect(),
            piece_bytes: record.piece_bytes,
            piece_xxh3,
        };
        let mut pieces_sha256 = Sha256::default();
        sha2::Digest::update(&mut pieces_sha256, &bytes);
        let pieces = drive.open_file(&path).map_err(io_error("open", &path))?;
        let journal = Self {
            folder: folder.to_owned(),
            task: record.task,
            pieces,
            pieces_sha256,
            piece_count: state.pieces.len(),
        };
        Ok(Some((journal, state)))
    }

    /// What stands beside the journal is not what it says.
    pub(super) fn damaged(&self) -> StoreError {
        StoreError::JournalDamaged { path: self.folder.clone() }
    }

    /// Says that `state` is reached. Everything that it means must be on the drive.
    pub(super) fn save(&mut self, drive: &dyn Drive, state: &State) -> Result<(), StoreError> {
        let path = self.folder.join(PIECES_NAME);
        let new: Vec<u8> = state.pieces[self.piece_count..].iter().flat_map(bytes_of).collect();
        let at = (self.piece_count * PIECE_BYTES) as u64;
        if !new.is_empty() {
            let written = self.pieces.write_at(&new, at);
            written.map_err(|source| write_error(drive, &path, at, new.len() as u64, source))?;
            sha2::Digest::update(&mut self.pieces_sha256, &new);
            self.piece_count = state.pieces.len();
        }
        self.pieces.sync().map_err(|source| StoreError::SyncFailed { path, source })?;
        let mut record = Record {
            format: FORMAT.to_owned(),
            version: VERSION,
            task: self.task.clone(),
            offset_bytes: state.offset_bytes,
            sha256_state: to_hex(&state.sha256),
            parts_done: state.parts_done.clone(),
            piece_count: self.piece_count as u64,
            piece_bytes: state.piece_bytes,
            piece_xxh3: state.piece_xxh3.map(|sum| format!("{sum:032x}")),
            pieces_sha256: Sha256Digest(sha2::Digest::finalize(self.pieces_sha256.clone()).into()),
            digest: String::new(),
        };
        record.digest = record.digest_of_the_rest();
        let mut bytes = serde_json::to_vec_pretty(&record).expect("invariant: plain fields always serialize");
        bytes.push(b'\n');
        write_whole(drive, &self.folder.join(JOURNAL_NAME), &bytes)
    }
}

/// Puts a file of these bytes under `path`, at once and for good: whoever looks, also after a power loss, sees the old
/// one or the new one.
pub(super) fn write_whole(drive: &dyn Drive, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let len_bytes = bytes.len() as u64;
    let failed = |source| write_error(drive, &new, 0, len_bytes, source);
    let file = drive.create_file(&new, len_bytes).map_err(failed)?;
    file.write_at(bytes, 0).map_err(failed)?;
    file.sync().map_err(|source| StoreError::SyncFailed { path: new.clone(), source })?;
    drive.rename(&new, path).map_err(io_error("rename", &new))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    drive.sync_folder(folder).map_err(io_error("sync the folder", folder))
}

fn check_same(found: &Task, wanted: &Task, folder: &Path) -> Result<(), StoreError> {
    let is_same_source = found.store_id == wanted.store_id
        && found.stamps.len() == wanted.stamps.len()
        && found.stamps.iter().zip(&wanted.stamps).all(|(found, wanted)| found.is_same(wanted));
    if !is_same_source {
        let of = |task: &Task| task.stamps.first().map(ToString::to_string).unwrap_or_default();
        return Err(StoreError::SourceOther { path: folder.to_owned(), begun: of(found), now: of(wanted) });
    }
    if (&found.folders, found.placement) != (&wanted.folders, wanted.placement) {
        return Err(StoreError::StripesOther { path: folder.to_owned() });
    }
    Ok(())
}

fn bytes_of(piece: &PieceSums) -> [u8; PIECE_BYTES] {
    let mut bytes = [0; PIECE_BYTES];
    bytes[..16].copy_from_slice(&piece.xxh3.to_le_bytes());
    bytes[16..].copy_from_slice(&piece.sha256.0);
    bytes
}

fn piece_of(bytes: &[u8; PIECE_BYTES]) -> PieceSums {
    let (xxh3, sha256) = bytes.split_at(16);
    PieceSums {
        xxh3: u128::from_le_bytes(xxh3.try_into().expect("invariant: 16 bytes")),
        sha256: Sha256Digest(sha256.try_into().expect("invariant: 32 bytes")),
    }
}

fn to_hex(state: &Sha256) -> String {
    state.serialize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Sha256> {
    let digits = text.as_bytes().as_chunks::<2>();
    let bytes: Option<Vec<u8>> =
        digits.0.iter().map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
    let bytes = bytes.filter(|_| digits.1.is_empty())?;
    Sha256::deserialize(bytes.as_slice().try_into().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use sha2::Digest;

    use super::*;

    #[test]
    fn a_hash_goes_on_where_it_was_kept() {
        for len in [0, 1, 63, 64, 65, 1000] {
            let bytes: Vec<u8> = (0..2000u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let mut first = Sha256::new();
            first.update(&bytes[..len]);
            let mut second = from_hex(&to_hex(&first)).unwrap();
            second.update(&bytes[len..]);
            assert_eq!(Sha256Digest(second.finalize().into()), Sha256Digest::of(&bytes), "cut at {len}");
        }
        assert!(from_hex("00").is_none(), "too short");
    }
}
