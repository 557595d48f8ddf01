//! What an ingest is asked for, and what it says.
//!
//! - Owns: nothing; plain data. In and out: numbers, paths, digests.

use std::path::PathBuf;
use std::time::Duration;

use crate::store::digest::Sha256Digest;

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
    /// How much of the source was done by ingests before this one.
    pub resumed_bytes: u64,
}

/// What an ingest made.
#[derive(Debug, Clone)]
pub struct IngestReport {
    /// The store.
    pub store: PathBuf,
    /// Bytes of the source.
    pub source_bytes: u64,
    /// How much of them was done by ingests before this one, which were interrupted.
    pub resumed_bytes: u64,
    /// SHA-256 of each of the source's files.
    pub source_sha256: Vec<Sha256Digest>,
    /// Bytes of the store's files.
    pub store_bytes: u64,
    /// Expert records in the store.
    pub record_count: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// A place for a share of the expert records.
#[derive(Debug, Clone, PartialEq)]
pub struct StripePlan {
    /// A folder on the drive, in which a folder for the stripe is made; `None`: the store's own.
    pub folder: Option<PathBuf>,
    /// Its share in proportion to the others': the drive's bandwidth, in any unit. Above zero.
    pub weight: f64,
}

/// How a store is to be made.
#[derive(Debug, Clone)]
pub struct IngestOptions {
    /// SHA-256 that the source's files must have; empty: they are not known.
    pub sha256: Vec<Sha256Digest>,
    /// Where the expert records go; empty: into the store's folder.
    pub stripes: Vec<StripePlan>,
    /// Throws away what an interrupted ingest left, instead of going on with it.
    pub restart: bool,
    /// Bytes of a read of the source.
    pub chunk_bytes: usize,
    /// Bytes of the source after which the journal is written at the latest.
    pub checkpoint_bytes: u64,
    /// Time after which the journal is written at the latest.
    pub checkpoint_after: Duration,
}

impl Default for IngestOptions {
    fn default() -> Self {
        Self {
            sha256: Vec::new(),
            stripes: Vec::new(),
            restart: false,
            // Large enough for any drive's full rate, small enough to report progress.
            chunk_bytes: 8 << 20,
            // A checkpoint waits for the drive: some ten milliseconds, against seconds of work that it saves.
            checkpoint_bytes: 4 << 30,
            checkpoint_after: Duration::from_secs(10),
        }
    }
}
