//! The memory of a host slot, and how far what is on its way into it has come.
//!
//! - Owns: one buffer a piece. In: reads as they begin, land and are summed. Out: how much of the record is there.
//! - Invariants: a piece lands once a read, and settles once after it has landed: at once where nothing is compared, else when its
//!   sum is known. Only what has settled is anybody else's: until then a thread may be reading it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::base::ids::ExpertKey;
use crate::base::region::HostBuffer;
use crate::expert::ExpertError;
use crate::gpu::Ticket;
use crate::store::ExpertPieces;

/// Matrices of a record.
pub(super) const MATRICES: usize = 3;

/// Pieces of a record at most: its matrices.
pub(super) const PIECES_MAX: usize = MATRICES;

/// See the module's head.
pub(super) struct Place {
    /// One a piece; `None` while a read fills it.
    pub(super) buffers: [Option<Arc<HostBuffer>>; PIECES_MAX],
    /// Where in them the wanted bytes lie.
    pub(super) ranges: [Range<usize>; PIECES_MAX],
    /// The checksums of the record's matrices, as far as they are known.
    pub(super) sums: [u128; MATRICES],
    /// What is being read.
    pub(super) pieces: Option<ExpertPieces>,
    pub(super) key: Option<ExpertKey>,
    /// When the read of each piece began, and whether as a guess.
    pub(super) begun: [Option<(Instant, bool)>; PIECES_MAX],
    pub(super) next_piece: usize,
    /// Pieces whose read has not ended.
    pub(super) to_land: usize,
    /// Pieces that have not settled.
    pub(super) to_settle: usize,
    pub(super) is_second_read: bool,
    /// Whether a step waits for it.
    pub(super) is_wanted: bool,
    /// A copy out of it that was submitted before all of it had settled.
    pub(super) early_copy: Option<Ticket>,
    /// The first thing that went wrong with it.
    pub(super) failure: Option<ExpertError>,
}

impl Place {
    /// Gives it memory.
    pub(super) fn take_buffers(&mut self, pieces: usize, from: &mut Vec<HostBuffer>) {
        for buffer in &mut self.buffers[..pieces] {
            *buffer = Some(Arc::new(from.pop().expect("invariant: memory comes for whole records")));
        }
    }

    /// Takes its memory away.
    pub(super) fn give_buffers(&mut self) -> impl Iterator<Item = HostBuffer> {
        self.key = None;
        self.buffers.iter_mut().filter_map(Option::take).map(alone)
    }

    /// The memory of a piece, to be read into.
    pub(super) fn take_buffer(&mut self, piece: usize) -> HostBuffer {
        alone(self.buffers[piece].take().expect("invariant: nobody else reads into it"))
    }

    /// `pieces` of `key` are to be read into it.
    pub(super) fn prepare(&mut self, key: ExpertKey, pieces: ExpertPieces, is_wanted: bool) {
        self.pieces = Some(pieces);
        self.key = Some(key);
        self.is_second_read = false;
        self.is_wanted = is_wanted;
        self.failure = None;
        self.begin_again();
    }

    /// All pieces are to be read, once more.
    pub(super) fn begin_again(&mut self) {
        let count = self.pieces.map_or(0, |pieces| pieces.len());
        (self.next_piece, self.to_land, self.to_settle) = (0, count, count);
    }

    /// The device writes the record: there is nothing to be read or summed.
    pub(super) fn is_written_by_device(&mut self) {
        let pieces = self.pieces.expect("invariant: prepared before");
        (self.to_land, self.to_settle) = (0, 0);
        for (range, piece) in self.ranges.iter_mut().zip(pieces.iter()) {
            *range = 0..usize::try_from(piece.span.len_bytes).expect("invariant: a piece fits its buffer");
        }
    }

    /// Whether all bytes are there, right or wrong.
    pub(super) fn is_whole(&self) -> bool {
        self.to_land == 0 && self.failure.is_none()
    }

    /// What has not begun is not read. Whether nothing is under way any more.
    pub(super) fn give_up(&mut self) -> bool {
        let pieces = self.pieces.map_or(0, |pieces| pieces.len());
        let left = pieces - self.next_piece;
        self.to_land -= left;
        self.to_settle -= left;
        self.next_piece = pieces;
        self.failure.get_or_insert(ExpertError::Abandoned);
        if self.to_settle == 0 {
            self.failure = None;
            self.key = None;
        }
        self.to_settle == 0
    }
}

/// A buffer that nobody sums any more.
fn alone(buffer: Arc<HostBuffer>) -> HostBuffer {
    Arc::into_inner(buffer).expect("invariant: what has settled is read by nobody")
}

impl Default for Place {
    fn default() -> Self {
        Self {
            buffers: [const { None }; PIECES_MAX],
            ranges: [const { 0..0 }; PIECES_MAX],
            sums: [0; MATRICES],
            pieces: None,
            key: None,
            begun: [None; PIECES_MAX],
            next_piece: 0,
            to_land: 0,
            to_settle: 0,
            is_second_read: false,
            is_wanted: false,
            early_copy: None,
            failure: None,
        }
    }
}
