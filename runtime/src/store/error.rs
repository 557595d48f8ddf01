//! What can go wrong between a path and a usable model on disk.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::base::region::RegionError;
use crate::base::units::display_bytes;
use crate::gguf::GgufError;
use crate::store::bytes::SourceError;
use crate::store::digest::Sha256Digest;
use crate::store::drive::Drive;

/// Why a source does not open, or a store could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The GGUF's header is not what it must be.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// An operation of the file system failed.
    #[error("{path}: cannot {action}", path = path.display())]
    Io {
        /// What was tried: "open the model".
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The GGUF holds another architecture.
    #[error("general.architecture is {found:?}, but only \"flint\" runs here")]
    Architecture {
        /// What the header says.
        found: String,
    },
    /// The GGUF holds no tensors of routed experts.
    #[error(
        "no layer has routed experts (tensors blk.N.ffn_gate_exps.weight), so this is no Flint that runs here"
    )]
    NoExperts,
    /// A layer has some of its three expert tensors, but not all.
    #[error(
        "tensor {tensor} is missing, although its layer has other tensors of experts; the file is incomplete or converted otherwise"
    )]
    ExpertTensorMissing {
        /// The missing one.
        tensor: String,
    },
    /// A tensor of experts that this runtime would have to ignore.
    #[error(
        "tensor {tensor} is not known here: experts must have ffn_gate_exps, ffn_up_exps and ffn_down_exps as \
         weights of their own; convert the model with separate expert tensors"
    )]
    ExpertTensorUnknown {
        /// Its name.
        tensor: String,
    },
    /// A tensor of experts has another shape than the first layer's gate asks for.
    #[error("tensor {tensor} has dimensions {found:?}, wanted {wanted} as in the first layer with experts")]
    ExpertTensorShape {
        /// Its name.
        tensor: String,
        /// Its dimensions, columns first.
        found: Vec<u64>,
        /// What they must be.
        wanted: String,
    },
    /// A tensor of experts has a type without kernels.
    #[error(
        "tensor {tensor} has type {found}, but experts run in Q4_1 only; take the Q4_1 file of the model"
    )]
    ExpertTensorKind {
        /// Its name.
        tensor: String,
        /// Its type.
        found: &'static str,
    },
    /// A number is larger than this runtime believes.
    #[error("{what} is {found}, the limit is {limit}")]
    Limit {
        /// Which number.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The largest allowed.
        limit: u64,
    },

    /// A folder without a manifest.
    #[error("{path} has no manifest.json, so it is no store; name a store or a GGUF file", path = path.display())]
    NotAStore {
        /// The folder.
        path: PathBuf,
    },
    /// The folder in which an ingest is, or was, working.
    #[error(
        "{path} belongs to an ingest that did not finish; run the same ingest again, it goes on where it was",
        path = path.display()
    )]
    Unfinished {
        /// The folder.
        path: PathBuf,
    },
    /// The manifest is not JSON of the known form.
    #[error("{path} is damaged or no manifest; remove the store, and ingest the model again", path = path.display())]
    ManifestSyntax {
        /// The manifest.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The manifest is of something else.
    #[error("{path} says format {found:?}, wanted {wanted:?}; it is no store of this program", path = path.display())]
    ManifestFormat {
        /// The manifest.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What a store says.
        wanted: &'static str,
    },
    /// The store was written by a version with other rules.
    #[error(
        "{path} has store version {found}, this program knows {known}; remove the store, and ingest the model again, or use the program \
         that wrote it",
        path = path.display()
    )]
    ManifestVersion {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version of this program.
        known: u32,
    },
    /// The manifest is longer than any store needs.
    #[error("{path} has {found_bytes} B, the limit of a manifest is {limit_bytes} B; remove the store, and ingest the model again", path = path.display())]
    ManifestTooLarge {
        /// The manifest.
        path: PathBuf,
        /// Its length.
        found_bytes: u64,
        /// The largest allowed.
        limit_bytes: u64,
    },
    /// The manifest does not fit its own digest: it was changed after it was written.
    #[error("{path} was changed after it was written; remove the store, and ingest the model again", path = path.display())]
    ManifestDigest {
        /// The manifest.
        path: PathBuf,
    },
    /// The manifest says one thing, the header another.
    #[error("{path}: {field} is {found}, but the header asks for {wanted}; remove the store, and ingest the model again", path = path.display())]
    ManifestField {
        /// The manifest.
        path: PathBuf,
        /// Which field, with dots.
        field: String,
        /// Its value.
        found: String,
        /// The value that follows from the header.
        wanted: String,
    },
    /// A file of the store has another length than the manifest says.
    #[error(
        "{path} has {found_bytes} B, wanted {wanted_bytes} B: {what}; `flint-rt verify STORE --repair SOURCE.gguf` mends it from its GGUF",
        path = path.display(),
        what = if found_bytes < wanted_bytes { "store truncated" } else { "the file does not belong to this store" }
    )]
    FileLength {
        /// The file.
        path: PathBuf,
        /// What the manifest says.
        wanted_bytes: u64,
        /// What it has.
        found_bytes: u64,
    },
    /// A file of the store is missing, or is no file.
    #[error("{path} is missing: the store is incomplete; `flint-rt verify STORE --repair SOURCE.gguf` mends it from its GGUF", path = path.display())]
    FileMissing {
        /// The file.
        path: PathBuf,
    },
    /// The header's bytes do not fit the digest in the manifest.
    #[error("{path} is damaged: its SHA-256 is {found}, wanted {wanted}; `flint-rt verify STORE --repair SOURCE.gguf` mends it from its GGUF", path = path.display())]
    HeaderDigest {
        /// The header file.
        path: PathBuf,
        /// What its bytes give.
        found: Sha256Digest,
        /// What the manifest says.
        wanted: Sha256Digest,
    },

    /// A part of a split GGUF is missing.
    #[error("{path} is missing: the model is split into {count} parts, which must lie side by side", path = path.display())]
    PartMissing {
        /// The missing part.
        path: PathBuf,
        /// How many there are.
        count: u32,
    },
    /// The numbers in a part's name make no sense.
    #[error("{path} is no part of a split GGUF: parts count from 00001 to at most {limit:05}", path = path.display())]
    PartNumber {
        /// The file.
        path: PathBuf,
        /// Most parts that are read.
        limit: u32,
    },
    /// A part whose name does not say so, so that the others cannot be found.
    #[error(
        "{name} is one of {count} parts of a split GGUF; name it ...-00001-of-{count:05}.gguf, as it came"
    )]
    PartName {
        /// The file.
        name: String,
        /// How many parts there are.
        count: u64,
    },
    /// A part is of another split.
    #[error("{name}: {key} is {found}, wanted {wanted}; the parts are not of one model: fetch them again")]
    PartMismatch {
        /// The part.
        name: String,
        /// Which key.
        key: &'static str,
        /// Its value.
        found: u64,
        /// What it must be.
        wanted: u64,
    },
    /// A folder for a stripe cannot be used.
    #[error("{path} cannot hold a stripe: {reason}", path = path.display())]
    StripeFolder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A drive with a part of a striped store is missing.
    #[error(
        "{folder}, which holds a part of the store {store}, is missing; mount the drive again, or remove the store and ingest the model again",
        folder = folder.display(), store = store.display()
    )]
    StripeMissing {
        /// The stripe's folder.
        folder: PathBuf,
        /// The store.
        store: PathBuf,
    },
    /// A stripe's folder holds something else.
    #[error(
        "{folder} holds no part of the store {store}, but of another one; mount the right drive there, or remove the \
         store and ingest the model again",
        folder = folder.display(), store = store.display()
    )]
    StripeForeign {
        /// The stripe's folder.
        folder: PathBuf,
        /// The store.
        store: PathBuf,
    },
    /// The store is open elsewhere, so it can be neither changed nor removed.
    #[error("{path} is in use; stop the programs that run the model, then try again", path = path.display())]
    InUse {
        /// The store.
        path: PathBuf,
    },
    /// The store is being repaired or removed.
    #[error("{path} is being repaired or removed; wait for it, then try again", path = path.display())]
    BeingChanged {
        /// The store.
        path: PathBuf,
    },
    /// What was to mend a store is another model.
    #[error(
        "{path} is not the model that the store was made of (identity {found}, wanted {wanted}); name that GGUF",
        path = path.display()
    )]
    RepairSource {
        /// The source.
        path: PathBuf,
        /// Its identity.
        found: Sha256Digest,
        /// The store's.
        wanted: Sha256Digest,
    },
    /// Host memory was refused.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// A thread was refused.
    #[error(
        "a thread could not be started: raise the process's limits of memory (ulimit -v) and of threads (ulimit -u)"
    )]
    Thread {
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The source gave no bytes.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The caller asked for the end.
    #[error("stopped; what was done is kept, and the same command goes on from there")]
    Stopped,

    /// The target's name cannot be used.
    #[error("{path} cannot be a store's name: {reason}", path = path.display())]
    TargetName {
        /// The target.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The target's folder does not exist.
    #[error("{path} is no folder, so no store can be made in it; make it first", path = path.display())]
    TargetParent {
        /// The folder.
        path: PathBuf,
    },
    /// The file system makes no folder for the target.
    #[error("{path} cannot be made: that file system takes no folders; name a folder on another drive", path = path.display())]
    TargetRefused {
        /// The folder that was to be made.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is something of the target's name.
    #[error("{path} exists already and is left as it is; remove it or choose another name", path = path.display())]
    TargetExists {
        /// The target.
        path: PathBuf,
    },
    /// Another ingest of the same target is at work.
    #[error("{path}: another ingest of this store is running ({owner}); wait for it or stop it", path = path.display())]
    Busy {
        /// The folder that it works in.
        path: PathBuf,
        /// What it wrote about itself.
        owner: String,
    },
    /// The journal of an interrupted ingest is not what was written.
    #[error("{path} is damaged, so the ingest cannot go on; remove it, and the ingest begins anew", path = path.display())]
    JournalDamaged {
        /// The working folder.
        path: PathBuf,
    },
    /// The ingest was begun with another source, or another state of it.
    #[error(
        "{path} was begun with {begun}, but the source now is {now}; remove that folder to begin anew, or name the \
         source it was begun with",
        path = path.display()
    )]
    SourceOther {
        /// The working folder.
        path: PathBuf,
        /// The source then.
        begun: String,
        /// The source now.
        now: String,
    },
    /// The ingest was begun with other stripes.
    #[error(
        "{path} was begun with other stripes or other weights; name the same ones, or remove that folder to begin anew",
        path = path.display()
    )]
    StripesOther {
        /// The working folder.
        path: PathBuf,
    },
    /// The drive does not confirm what was written.
    #[error(
        "{path}: the drive could not keep what was written; what it had not confirmed is written again when the same \
         ingest is run again",
        path = path.display()
    )]
    SyncFailed {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The drive has too little room, found before anything was written.
    #[error(
        "{path}: the store needs {}, but {} are free; make room or choose a target on another drive",
        display_bytes(*needed_bytes), display_bytes(*free_bytes), path = path.display()
    )]
    NoSpace {
        /// The folder in which the store was to be made.
        path: PathBuf,
        /// What the whole store takes.
        needed_bytes: u64,
        /// What is free.
        free_bytes: u64,
    },
    /// The drive took no more bytes: full, over a quota, or over a limit of the file's length.
    #[error(
        "{path}: writing at byte {offset_bytes} failed, with {} still to write and {} free; make room and run the \
         same ingest again: it goes on where it was",
        display_bytes(*needed_bytes), display_bytes(*free_bytes), path = path.display()
    )]
    DriveFull {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset_bytes: u64,
        /// What of the store was still to be written.
        needed_bytes: u64,
        /// What the file system says is free.
        free_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The source ended early.
    #[error("{path} ended at byte {got_bytes}, wanted {want_bytes} B: it was truncated; nothing was published", path = path.display())]
    SourceTruncated {
        /// The source.
        path: PathBuf,
        /// Its length when the ingest began.
        want_bytes: u64,
        /// Where it ended.
        got_bytes: u64,
    },
    /// The source was written to while it was read.
    #[error("{path} changed while it was read; nothing was published: try again when it is complete", path = path.display())]
    SourceChanged {
        /// The source.
        path: PathBuf,
    },
    /// The source is not the file that was asked for.
    #[error(
        "{path} has SHA-256 {found}, wanted {wanted}: it is damaged or another file; nothing was published, fetch it \
         again",
        path = path.display()
    )]
    SourceDigest {
        /// The source.
        path: PathBuf,
        /// What its bytes give.
        found: Sha256Digest,
        /// What was asked for.
        wanted: Sha256Digest,
    },
}

impl StoreError {
    /// Whether a store on the drive is damaged, so that it must be made again.
    pub fn is_data_damage(&self) -> bool {
        matches!(
            self,
            Self::ManifestSyntax { .. }
                | Self::ManifestTooLarge { .. }
                | Self::ManifestDigest { .. }
                | Self::ManifestField { .. }
                | Self::FileLength { .. }
                | Self::FileMissing { .. }
                | Self::HeaderDigest { .. }
        )
    }
}

/// Names what was tried on `path`, for `map_err`.
pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { action, path, source }
}

/// Names the folder that was to be made for a store, for `map_err`. Not found, in a folder that is there, is what a file
/// system says that makes none.
pub(super) fn folder_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| match source.kind() {
        ErrorKind::NotFound => StoreError::TargetRefused { path, source },
        _ => StoreError::Io { action: "make the folder", path, source },
    }
}

/// Tells a full drive from a broken one. `needed_bytes` are still to be written to `path`.
pub(super) fn write_error(
    drive: &dyn Drive,
    path: &Path,
    offset_bytes: u64,
    needed_bytes: u64,
    source: io::Error,
) -> StoreError {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            let folder = path.parent().unwrap_or(Path::new("."));
            // Only for the message: a file system that does not answer says nothing about why the write failed.
            let free_bytes = drive.free_bytes(folder).unwrap_or(0);
            StoreError::DriveFull { path: path.to_owned(), offset_bytes, needed_bytes, free_bytes, source }
        }
        _ => io_error("write", path)(source),
    }
}
