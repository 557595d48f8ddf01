//! Where everything of a model goes in a store. Follows from the header alone.
//!
//! - Owns: nothing beyond its tables. In: a header. Out: a [`Layout`]: dense tensors with their places, the experts,
//!   the files' lengths.
//! - Invariants: equal headers give equal layouts, so a store's manifest can be checked against its own header.

use crate::base::ids::{FileIndex, Span};
use crate::base::units::align_up;
use crate::gguf::Gguf;
use crate::store::error::StoreError;
use crate::store::experts::{ExpertTable, is_expert_tensor};
use crate::store::placement::{Place, Placement};
use crate::store::record::{RECORD_ALIGN_BYTES, RecordLayout};

/// The file of dense tensors among the files of a store.
pub(super) const DENSE_FILE: FileIndex = FileIndex(0);

/// The first file of expert records among the files of a store; the others follow it.
pub(super) const FIRST_EXPERTS_FILE: u16 = 1;

/// A tensor that every token needs, and its places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DenseTensor {
    pub(super) name: String,
    pub(super) len_bytes: u64,
    /// Where it begins in the GGUF.
    pub(super) gguf_offset_bytes: u64,
    /// Where it begins in the store's dense file.
    pub(super) store_offset_bytes: u64,
}

/// The places of a model's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// In the order of their bytes in the GGUF, and in the store.
    pub(super) dense: Vec<DenseTensor>,
    pub(super) dense_file_bytes: u64,
    pub(super) experts: ExpertTable,
    pub(super) placement: Placement,
}

/// Bytes of the GGUF that go to one place of the store: a dense tensor, or one matrix of one expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) gguf_offset_bytes: u64,
    pub(super) target: Span,
    pub(super) owner: Owner,
}

/// Whose bytes they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// The dense tensor of this number, in the order of the layout.
    Dense(usize),
    /// Matrix 0 to 2 of the record of this number, in the order of the table.
    Record(u64, usize),
}

impl Layout {
    /// The layout of the model in `gguf`, if it is a Flint with experts. `place` spreads so many records over files.
    pub(super) fn from_gguf(gguf: &Gguf, place: impl FnOnce(u64) -> Placement) -> Result<Self, StoreError> {
        let architecture = gguf.metadata.str("general.architecture")?;
        if architecture != "flint" {
            return Err(StoreError::Architecture { found: architecture.to_owned() });
        }
        let experts = ExpertTable::from_gguf(gguf)?;
        let mut tensors: Vec<_> =
            gguf.tensors.iter().filter(|tensor| !is_expert_tensor(&tensor.name)).collect();
        tensors.sort_unstable_by_key(|tensor| tensor.offset_bytes);
        let mut end_bytes = 0;
        let dense = tensors
            .into_iter()
            .map(|tensor| {
                let store_offset_bytes = end_bytes;
                end_bytes = align_up(store_offset_bytes + tensor.len_bytes, RECORD_ALIGN_BYTES);
                DenseTensor {
                    name: tensor.name.clone(),
                    len_bytes: tensor.len_bytes,
                    gguf_offset_bytes: tensor.offset_bytes,
                    store_offset_bytes,
                }
            })
            .collect();
        let experts_file_bytes = experts
            .record
            .stride_bytes()
            .checked_mul(experts.record_count())
            .filter(|&bytes| bytes <= i64::MAX as u64);
        if experts_file_bytes.is_none() {
            return Err(StoreError::Limit {
                what: "the number of expert records",
                found: experts.record_count(),
                limit: i64::MAX as u64 / experts.record.stride_bytes(),
            });
        }
        let placement = place(experts.record_count());
        Ok(Self { dense, dense_file_bytes: end_bytes, experts, placement })
    }

    /// Bytes of experts file `file`.
    pub(super) fn experts_file_bytes(&self, file: usize) -> u64 {
        self.placement.counts[file] * self.experts.record.stride_bytes()
    }

    /// Where the record of number `index` stands.
    pub(super) fn record_span(&self, index: u64) -> Span {
        let rank = usize::try_from(index).expect("invariant: the records are in memory");
        record_span(self.placement.places[rank], &self.experts.record)
    }

    /// Everything that a store takes from the GGUF behind its header, in the order in which it stands there.
    pub(super) fn moves(&self) -> Vec<Move> {
        let dense = self.dense.iter().enumerate().map(|(number, tensor)| Move {
            owner: Owner::Dense(number),
            gguf_offset_bytes: tensor.gguf_offset_bytes,
            target: Span {
                file: DENSE_FILE,
                offset_bytes: tensor.store_offset_bytes,
                len_bytes: tensor.len_bytes,
            },
        });
        let mut moves: Vec<Move> = dense.collect();
        let record = self.experts.record;
        let parts = [
            (0, record.gate_bytes),
            (record.up_offset_bytes(), record.up_bytes),
            (record.down_offset_bytes(), record.down_bytes),
        ];
        for (index, key) in (0..).zip(self.experts.keys()) {
            let offsets = self.experts.gguf_offsets_bytes(key).expect("invariant: a key of the table");
            let Span { file, offset_bytes: start_bytes, .. } = self.record_span(index);
            for (matrix, gguf_offset_bytes) in offsets.into_iter().enumerate() {
                let (record_offset_bytes, len_bytes) = parts[matrix];
                let target = Span { file, offset_bytes: start_bytes + record_offset_bytes, len_bytes };
                moves.push(Move { gguf_offset_bytes, target, owner: Owner::Record(index, matrix) });
            }
        }
        moves.sort_unstable_by_key(|step| step.gguf_offset_bytes);
        moves
    }
}

/// Where the record at `place` stands in a store.
pub(super) fn record_span(place: Place, record: &RecordLayout) -> Span {
    Span {
        file: FileIndex(FIRST_EXPERTS_FILE + place.file),
        offset_bytes: place.index * record.stride_bytes(),
        len_bytes: record.record_bytes(),
    }
}
