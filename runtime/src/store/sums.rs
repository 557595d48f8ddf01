//! The sums of everything that an ingest writes, taken as the bytes come by.
//!
//! - Owns: the sums of the pieces that are done, and the state of the one at hand. In: bytes, of several pieces at once.
//! - Out: the pieces' sums, and what a manifest says of them.
//! - Invariants: pieces come in the order of [`Layout::moves`], each whole.

use std::path::PathBuf;

use twox_hash::XxHash3_128;

use crate::gguf::Gguf;
use crate::store::checksum::{join_record, join_tensor, tree_digest};
use crate::store::digest::Sha256Digest;
use crate::store::lanes::{Lane, update_all};
use crate::store::layout::{Layout, Owner};
use crate::store::manifest::{Facts, SourceRecord, store_id};

/// The sums of one piece: a dense tensor, or a matrix of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PieceSums {
    pub(super) xxh3: u128,
    pub(super) sha256: Sha256Digest,
}

/// Takes the sums of the pieces as they come.
pub(super) struct Sums {
    done: Vec<PieceSums>,
    at_hand: Piece,
}

/// A piece that is not whole yet.
struct Piece {
    xxh3: XxHash3_128,
    sha256: Lane,
}

impl Piece {
    fn new() -> Self {
        Self { xxh3: XxHash3_128::new(), sha256: Lane::default() }
    }

    fn end(self) -> PieceSums {
        PieceSums { xxh3: self.xxh3.finish_128(), sha256: self.sha256.finish() }
    }
}

impl Sums {
    pub(super) fn new() -> Self {
        Self { done: Vec::new(), at_hand: Piece::new() }
    }

    /// The next bytes: `ends` are whole with what they give, of the piece at hand, of the one after it and so on; with
    /// `rest` begins the piece after those, or goes on the one at hand if there are none.
    pub(super) fn add(&mut self, ends: &[&[u8]], rest: &[u8]) {
        let mut pieces = vec![std::mem::replace(&mut self.at_hand, Piece::new())];
        pieces.resize_with(ends.len() + 1, Piece::new);
        let parts = || ends.iter().copied().chain([rest]);
        // The slow sum first: the fast one then finds the bytes in the cache.
        update_all(pieces.iter_mut().map(|piece| &mut piece.sha256).zip(parts()));
        pieces.iter_mut().zip(parts()).for_each(|(piece, bytes)| piece.xxh3.write(bytes));
        self.at_hand = pieces.pop().expect("invariant: one more than ended");
        self.done.extend(pieces.into_iter().map(Piece::end));
    }

    /// The XXH3 of what came so far of the piece at hand.
    pub(super) fn at_hand_xxh3(&self) -> u128 {
        self.at_hand.xxh3.finish_128()
    }

    /// The pieces that ended since the last call.
    pub(super) fn take(&mut self) -> Vec<PieceSums> {
        std::mem::take(&mut self.done)
    }
}

/// What a manifest says, when every piece is done: `pieces` are in the order of [`Layout::moves`].
pub(super) fn facts(
    pieces: &[PieceSums],
    source: Vec<SourceRecord>,
    gguf: &Gguf,
    layout: &Layout,
    folders: &[Option<PathBuf>],
) -> Facts {
    let moves = layout.moves();
    assert_eq!(pieces.len(), moves.len(), "every piece has its sums");
    let lens = source.iter().map(|part| (part.header_bytes, part.size_bytes));
    let id = store_id(lens, gguf.header_bytes());

    let mut tensors = vec![0; layout.dense.len()];
    let mut records = vec![[0; 3]; layout.placement.places.len()];
    for (step, sums) in moves.iter().zip(pieces) {
        match step.owner {
            Owner::Dense(number) => {
                let tensor = &layout.dense[number];
                tensors[number] = join_tensor(id, &tensor.name, tensor.len_bytes, sums.xxh3);
            }
            Owner::Record(index, matrix) => {
                let index = usize::try_from(index).expect("invariant: the records are in memory");
                records[index][matrix] = sums.xxh3;
            }
        }
    }
    let record_bytes = layout.experts.record.record_bytes();
    let keys = layout.experts.keys();
    let record_checksums =
        keys.zip(records).map(|(key, matrices)| join_record(id, key, record_bytes, matrices));

    let mut leaves: Vec<_> = moves
        .iter()
        .zip(pieces)
        .map(|(step, sums)| (step.target.file.0, step.target.offset_bytes, sums.sha256))
        .collect();
    leaves.sort_unstable_by_key(|&(file, offset_bytes, _)| (file, offset_bytes));
    let digest = |wanted: usize| {
        let of_file = leaves.iter().filter(|leaf| usize::from(leaf.0) == wanted);
        tree_digest(of_file.map(|leaf| leaf.2))
    };
    let dense_sha256_tree = digest(0);
    let stripes = folders.iter().enumerate().map(|(file, folder)| {
        (folder.as_ref().map(|folder| folder.to_string_lossy().into_owned()), digest(file + 1))
    });
    Facts {
        source,
        header_sha256: Sha256Digest::of(gguf.header_bytes()),
        dense_sha256_tree,
        tensor_checksums: tensors,
        stripes: stripes.collect(),
        record_checksums: record_checksums.collect(),
    }
}
