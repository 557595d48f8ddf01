//! What should be where in a store, as its manifest says.
//!
//! - Owns: nothing on the drive. In: a manifest. Out: files, and in each the pieces with their checksums and the padding
//!   between them.
//! - Invariants: pieces of a file stand in the order of their offsets and do not overlap, and every piece ends inside its
//!   file: a manifest that says otherwise is refused. Only the manifest is needed, so a store can be looked through, and
//!   mended, whatever else of it is damaged or gone.

use std::path::{Path, PathBuf};

use crate::base::ids::{ExpertKey, Span};
use crate::store::digest::Sha256Digest;
use crate::store::error::StoreError;
use crate::store::layout::record_span;
use crate::store::manifest::{ExpertsRecord, MANIFEST_NAME, Manifest};
use crate::store::record::{RECORD_ALIGN_BYTES, RECORD_BYTES_MAX, RecordLayout};
use crate::store::stripe;

/// Something with a checksum.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) name: PieceName,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    pub(super) checksum: u128,
}

/// What it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PieceName {
    Tensor(String),
    Record(ExpertKey),
}

impl Piece {
    pub(super) fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.len_bytes
    }
}

/// One file of a store.
#[derive(Debug)]
pub(super) struct MapFile {
    pub(super) path: PathBuf,
    pub(super) len_bytes: u64,
    pub(super) sha256_tree: Sha256Digest,
    /// In the order of their offsets.
    pub(super) pieces: Vec<Piece>,
}

impl MapFile {
    /// Where the padding behind piece `index` ends: where the next piece begins, or the file ends.
    pub(super) fn padding_end_bytes(&self, index: usize) -> u64 {
        self.pieces.get(index + 1).map_or(self.len_bytes, |next| next.offset_bytes)
    }
}

/// All of a store.
#[derive(Debug)]
pub(super) struct StoreMap {
    pub(super) store_id: Sha256Digest,
    pub(super) header_path: PathBuf,
    pub(super) header_bytes: u64,
    pub(super) header_sha256: Sha256Digest,
    pub(super) record: RecordLayout,
    /// The dense file, then those of experts.
    pub(super) files: Vec<MapFile>,
}

impl StoreMap {
    /// The map of the store in `folder`.
    pub(super) fn new(folder: &Path, manifest: &Manifest) -> Result<Self, StoreError> {
        let dense = &manifest.dense;
        let tensors = dense.tensors.iter().map(|tensor| Piece {
            name: PieceName::Tensor(tensor.name.clone()),
            offset_bytes: tensor.offset_bytes,
            len_bytes: tensor.len_bytes,
            checksum: tensor.xxh3.0,
        });
        let experts = &manifest.experts;
        let mut files = vec![MapFile {
            path: folder.join(&dense.file),
            len_bytes: dense.len_bytes,
            sha256_tree: dense.sha256_tree,
            pieces: tensors.collect(),
        }];
        for (index, file) in experts.files.iter().enumerate() {
            // A drive that is not mounted is said as such: what lies on it is not damaged.
            let stripe = match &file.folder {
                None => folder,
                Some(stripe) => stripe::check(Path::new(stripe), folder, manifest.store_id, index)?,
            };
            files.push(MapFile {
                path: stripe.join(&file.name),
                len_bytes: file.len_bytes,
                sha256_tree: file.sha256_tree,
                pieces: Vec::new(),
            });
        }
        let record = record_layout(experts);
        let is_sane = record.is_some_and(|record| add_records(&mut files, experts, &record))
            && files.iter().all(has_pieces_in_order);
        match record.filter(|_| is_sane) {
            Some(record) => Ok(Self {
                store_id: manifest.store_id,
                header_path: folder.join(&manifest.header.file),
                header_bytes: manifest.header.len_bytes,
                header_sha256: manifest.header.sha256,
                record,
                files,
            }),
            None => Err(StoreError::ManifestField {
                path: folder.join(MANIFEST_NAME),
                field: "dense.tensors or experts.records".to_owned(),
                found: "pieces that overlap or leave their file".to_owned(),
                wanted: "pieces one behind the other".to_owned(),
            }),
        }
    }

    /// Bytes of all files but the manifest.
    pub(super) fn total_bytes(&self) -> u64 {
        self.header_bytes + self.files.iter().map(|file| file.len_bytes).sum::<u64>()
    }
}

fn record_layout(experts: &ExpertsRecord) -> Option<RecordLayout> {
    let layout = RecordLayout {
        gate_bytes: experts.gate_bytes,
        up_bytes: experts.up_bytes,
        down_bytes: experts.down_bytes,
    };
    let parts = [layout.gate_bytes, layout.up_bytes, layout.down_bytes];
    let is_sane = parts.iter().all(|&bytes| bytes > 0 && bytes <= RECORD_BYTES_MAX / 3);
    (is_sane && layout.stride_bytes() == experts.stride_bytes).then_some(layout)
}

/// Adds the records of the table to their files; false when the table makes no sense.
fn add_records(files: &mut [MapFile], experts: &ExpertsRecord, record: &RecordLayout) -> bool {
    let count = u64::from(experts.expert_count).checked_mul(experts.layers.len() as u64);
    if count != Some(experts.records.len() as u64) {
        return false;
    }
    let keys = experts
        .layers
        .iter()
        .flat_map(|&layer| (0..experts.expert_count).map(move |expert| ExpertKey::new(layer, expert)));
    for (key, entry) in keys.zip(&experts.records) {
        if entry.place.index >= u64::MAX / 2 / record.stride_bytes() {
            return false;
        }
        let Span { file, offset_bytes, len_bytes } = record_span(entry.place, record);
        let Some(file) = files.get_mut(usize::from(file.0)) else { return false };
        let name = PieceName::Record(key);
        file.pieces.push(Piece { name, offset_bytes, len_bytes, checksum: entry.checksum });
    }
    true
}

fn has_pieces_in_order(file: &MapFile) -> bool {
    let mut at = 0;
    file.pieces.iter().all(|piece| {
        let end = piece.offset_bytes.checked_add(piece.len_bytes);
        let is_behind = piece.offset_bytes >= at && piece.offset_bytes.is_multiple_of(RECORD_ALIGN_BYTES);
        // Padding is at most a page, so that it is read with the piece before it.
        let is_near = piece.offset_bytes - at.min(piece.offset_bytes) < RECORD_ALIGN_BYTES;
        at = end.unwrap_or(u64::MAX);
        is_behind && is_near && at <= file.len_bytes
    }) && file.len_bytes - at.min(file.len_bytes) < RECORD_ALIGN_BYTES
}
