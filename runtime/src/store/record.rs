//! One expert's bytes in one piece: gate rows, up rows, down rows.
//!
//! - Owns: nothing. In: the sizes of the three matrices. Out: where each begins, and the stride between records.
//! - Invariants: blocks stand exactly as in the GGUF. In a store, records begin at multiples of
//!   [`RECORD_ALIGN_BYTES`], so an aligned read of one touches no other.

use std::ops::Deref;

use crate::base::ids::{ExpertKey, Span};
use crate::base::units::align_up;

/// What records and dense tensors of a store are aligned to: the largest sector that drives have, and the page.
pub const RECORD_ALIGN_BYTES: u64 = 4096;

/// The same as a length in memory.
#[allow(clippy::cast_possible_truncation, reason = "4096 fits every usize")]
pub(super) const BLOCK_BYTES: usize = RECORD_ALIGN_BYTES as usize;

/// Largest record: a read's length is a `u32`, with room for its rounding. Flint's record has 1.97 MB.
pub(super) const RECORD_BYTES_MAX: u64 = 1 << 30;

/// Records from this size on are read as their three matrices, side by side: a drive that is asked for 1.97 MB in one command gave 1.2
/// to 2.1 GB/s, in three or four 2.4 to 2.7 (two virtual machines); a smaller record is one command in any case.
const SPLIT_RECORD_BYTES_MIN: u64 = 1 << 20;

/// The sizes within an expert record; the same for every expert of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLayout {
    /// Bytes of the gate matrix, `[expert_ffn_dim, embed_dim]`; it begins at byte 0.
    pub gate_bytes: u64,
    /// Bytes of the up matrix, `[expert_ffn_dim, embed_dim]`; it follows the gate.
    pub up_bytes: u64,
    /// Bytes of the down matrix, `[embed_dim, expert_ffn_dim]`; it ends the record.
    pub down_bytes: u64,
}

impl RecordLayout {
    /// Gate, up and down of the record of `key`, without padding.
    ///
    /// # Panics
    /// When `record` has another length than the layout.
    pub fn matrices<'a>(&self, key: ExpertKey, record: &'a [u8]) -> [&'a [u8]; 3] {
        assert_eq!(record.len() as u64, self.record_bytes(), "the length of the record of {key}");
        let end = |bytes: u64| usize::try_from(bytes).expect("invariant: a record is below 1 GiB");
        let (gate, rest) = record.split_at(end(self.gate_bytes));
        let (up, down) = rest.split_at(end(self.up_bytes));
        [gate, up, down]
    }

    /// Where gate, up and down begin, and how long they are, in bytes.
    pub fn matrix_ranges(&self) -> [(u64, u64); 3] {
        [
            (0, self.gate_bytes),
            (self.up_offset_bytes(), self.up_bytes),
            (self.down_offset_bytes(), self.down_bytes),
        ]
    }

    /// Where the up matrix begins.
    pub fn up_offset_bytes(&self) -> u64 {
        self.gate_bytes
    }

    /// Where the down matrix begins.
    pub fn down_offset_bytes(&self) -> u64 {
        self.gate_bytes + self.up_bytes
    }

    /// Bytes of a record, without padding.
    pub fn record_bytes(&self) -> u64 {
        self.gate_bytes + self.up_bytes + self.down_bytes
    }

    /// Bytes from the start of a record in a store to the start of the next.
    pub fn stride_bytes(&self) -> u64 {
        align_up(self.record_bytes(), RECORD_ALIGN_BYTES)
    }
}

/// A part of a record that lies in one place on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertPiece {
    /// Where it lies.
    pub span: Span,
    /// Where in the record it belongs.
    pub record_offset_bytes: u64,
}

/// Where a whole record lies on disk: in one piece, or each matrix in one of its own. In order of the record, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertPieces {
    pieces: [ExpertPiece; 3],
    count: usize,
}

impl ExpertPieces {
    /// A record that lies in one place: in one piece, or by its matrices where it is large and they begin where direct reads may.
    pub fn of_record(span: Span, layout: &RecordLayout) -> Self {
        let matrices = layout.matrix_ranges();
        let is_aligned =
            matrices.iter().all(|&(offset_bytes, _)| offset_bytes.is_multiple_of(RECORD_ALIGN_BYTES));
        if span.len_bytes < SPLIT_RECORD_BYTES_MIN || !is_aligned {
            return Self { pieces: [ExpertPiece { span, record_offset_bytes: 0 }; 3], count: 1 };
        }
        Self::split(matrices.map(|(record_offset_bytes, len_bytes)| ExpertPiece {
            span: Span { offset_bytes: span.offset_bytes + record_offset_bytes, len_bytes, ..span },
            record_offset_bytes,
        }))
    }

    /// A record of which each matrix lies in a place of its own.
    pub(super) fn split(pieces: [ExpertPiece; 3]) -> Self {
        Self { pieces, count: 3 }
    }
}

impl Deref for ExpertPieces {
    type Target = [ExpertPiece];

    fn deref(&self) -> &[ExpertPiece] {
        &self.pieces[..self.count]
    }
}
