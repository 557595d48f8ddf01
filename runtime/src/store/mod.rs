//! Our file on the drive, and the GGUF in place: one table (layer, expert) -> spans for both.
//!
//! - Owns: the layout of a store's bytes (drawn in `STORE.md`) and its manifest.
//! - In: a GGUF file, or a store that [`ingest()`] made of one.
//! - Out: a [`Source`]: files, the span of every dense tensor, the one to three spans of every expert record.
//! - Invariants: a store is immutable and complete: it appears under its name by a rename, after every byte of it was
//!   synced. What [`Source::open`] accepted has every number checked against the header and the files' real lengths.
//!   A store names its files relative to its own folder, so it can be moved. No file is read while serving: that is
//!   the disk station's work.

mod digest;
mod error;
mod experts;
mod ingest;
mod layout;
mod manifest;
mod open;
mod output;
mod publish;
mod record;

pub use digest::Sha256Digest;
pub use error::StoreError;
pub use experts::is_expert_tensor;
pub use ingest::{IngestPhase, IngestProgress, IngestReport, ingest, ingest_checked};
pub use manifest::MANIFEST_NAME;
pub use open::{Source, SourceKind};
pub use record::{ExpertPiece, ExpertPieces, RECORD_ALIGN_BYTES, RecordLayout};
