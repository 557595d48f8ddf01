//! Our file on the drive, and the GGUF in place: one table (layer, expert) -> spans for both.
//!
//! - Owns: the layout of a store's bytes (drawn in `STORE.md`), its manifest, and the making of it.
//! - In: the bytes of a GGUF, from a file or any [`ByteSource`]; or a store that [`ingest()`] made of one.
//! - Out: a [`Source`]: files, the span of every dense tensor, the one to three spans of every expert record, their sums.
//! - Invariants: a store is immutable and complete: it appears under its name by a rename, after every byte of it was
//!   synced. What [`Source::open`] accepted has every number checked against the header and the files' real lengths.
//!   A store names its files relative to its own folder, so it can be moved; only stripes on other drives are named by
//!   their folders. No file is read while serving: that is the disk station's work.
//!
//! The way of the bytes into a store: `headers` and `layout` say where all goes, `reader` reads, `pass` cuts and hashes,
//! `output` writes, `journal` says how far it is, `publish` gives the name.

mod bandwidth;
mod bytes;
mod checksum;
mod digest;
mod drive;
mod error;
mod experts;
mod headers;
mod ingest;
mod journal;
mod lanes;
mod layout;
mod local;
mod lock;
mod manifest;
mod open;
mod options;
mod output;
mod parts;
mod pass;
mod pin;
mod placement;
mod publish;
mod reader;
mod real_drive;
mod record;
mod room;
#[cfg(feature = "simulation")]
mod simulated;
mod stripe;
mod stripes;
mod sums;
mod threads;
mod verify;
mod write_behind;

pub use bandwidth::{Bandwidth, measure_bandwidth};
pub use bytes::{ByteSource, SourceError, SourceStamp};
pub use checksum::{join_record, join_tensor, piece_checksum, record_checksum, tensor_checksum, tree_digest};
pub use digest::Sha256Digest;
pub use drive::{Drive, DriveFile, Entry, LockAnswer};
pub use error::StoreError;
pub use experts::is_expert_tensor;
pub use headers::{open_local, read_header};
pub use ingest::{ingest, ingest_from, ingest_on};
pub use local::LocalSource;
pub use lock::WriterLock;
pub use manifest::MANIFEST_NAME;
pub use open::{Source, SourceKind, SourcePart};
pub use options::{IngestOptions, IngestPhase, IngestProgress, IngestReport, StripePlan};
pub use parts::{part_name, split_name};
pub use pin::{FileNotes, FileStamp, Remembered};
pub use real_drive::RealDrive;
pub use record::{ExpertPiece, ExpertPieces, RECORD_ALIGN_BYTES, RecordLayout};
pub use room::{RoomNeeded, room_needed};
#[cfg(feature = "simulation")]
pub use simulated::{Fault, SimulatedDrive};
pub use stripes::begun_weights;
pub use verify::{
    Cause, Damage, DamagedPart, RepairReport, TensorSum, VerifyOptions, VerifyProgress, VerifyReport,
    is_tensor_whole, repair_store, sha256_of_file, verify_store,
};
