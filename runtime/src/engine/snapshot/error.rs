//! What can go wrong with a snapshot.

use std::path::PathBuf;

use crate::base::units::display_bytes;
use crate::store::Sha256Digest;

/// Why a conversation could not be kept, or not be brought back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// There is nothing to keep.
    #[error("the conversation holds no token, so there is nothing to keep")]
    NothingHeld,
    /// It was computed with something else: [`crate::engine::Engine::snapshot_identity`].
    #[error(
        "the snapshot was made with another model, device, version or mode ({got}, and this is {wanted}): feed the prompt again"
    )]
    OtherModel {
        /// What the open model is called.
        wanted: Sha256Digest,
        /// The snapshot's.
        got: Sha256Digest,
    },
    /// Its layers are not those of this model.
    #[error("the snapshot has caches of {got}, and this model of {wanted}: feed the prompt again")]
    OtherShape {
        /// The model's layers.
        wanted: String,
        /// The snapshot's.
        got: String,
    },
    /// It does not fit the conversation.
    #[error("the snapshot's {got} tokens do not fit a context of {wanted}: start with a larger --ctx-size")]
    TooLong {
        /// Tokens that fit.
        wanted: u32,
        /// Tokens that were to be brought back.
        got: u32,
    },
    /// It cannot be taken up there.
    #[error(
        "the snapshot of {tokens} tokens cannot be taken up at {got}: its sliding layers hold too little before that"
    )]
    NoCut {
        /// Tokens of the snapshot.
        tokens: u32,
        /// Where it was to be taken up.
        got: u32,
    },
    /// Host memory ran out.
    #[error("no {} of host memory are to be had for a snapshot", display_bytes(*.wanted_bytes))]
    NoMemory {
        /// Bytes asked for.
        wanted_bytes: u64,
    },
    /// The file is something else.
    #[error("{path}: is no snapshot of a conversation")]
    NotASnapshot {
        /// The file.
        path: PathBuf,
    },
    /// The file is of another version of the format.
    #[error("{path}: is a snapshot of version {got}, and this program reads version {wanted}")]
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// The version that is read.
        wanted: u32,
        /// The file's.
        got: u32,
    },
    /// The file is not whole.
    #[error("{path}: the snapshot has {got} bytes, and its head tells of {wanted}: remove the file")]
    OtherLength {
        /// The file.
        path: PathBuf,
        /// Bytes by its head.
        wanted: u64,
        /// Bytes that there are.
        got: u64,
    },
    /// A part is not what was written.
    #[error(
        "{path}: {what} is damaged, its checksum is {got:032x} and should be {wanted:032x}: remove the file"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which part.
        what: String,
        /// The sum that was written.
        wanted: u128,
        /// The sum that the bytes have.
        got: u128,
    },
    /// The head makes no sense, whole as it is.
    #[error("{path}: the head's {what} of {got} is out of range, at most {wanted} can be: remove the file")]
    BadHead {
        /// The file.
        path: PathBuf,
        /// Which number.
        what: &'static str,
        /// The most that it can be.
        wanted: u64,
        /// What it is.
        got: u64,
    },
    /// The drive failed.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The caller gave it up.
    #[error("writing the snapshot was given up")]
    GivenUp,
}
