//! A conversation in host memory. Pure.
//!
//! Where it can be taken up: full layers have all positions, so there anywhere; sliding layers have what was copied from their rings.
//! A [`Cut`] at `position` with some `slack` has, of a layer with a window of `w`, the `w - 1 + slack` rows before `position`: enough
//! for whoever goes on behind `position`, or up to `slack` tokens earlier. A snapshot has one at its end, and may have others that
//! were copied while their rows were still there: behind the system prompt, which other conversations share, and behind each
//! prompt, since a client may leave out of its next prompt what was only thought.

use std::sync::Arc;

use crate::base::ids::TokenId;
use crate::engine::session::common_prefix;
use crate::engine::snapshot::shape::{CacheShape, CutMark};
use crate::store::Sha256Digest;

/// Cuts of a snapshot at most.
pub const CUTS_MAX: usize = 4;

/// The rows of sliding layers at one point of a conversation.
#[derive(Debug, PartialEq, Eq)]
pub struct Cut {
    pub(super) mark: CutMark,
    /// Keys, then values, of each sliding layer in turn: `[mark.position - mark.first(window), row_bytes]`.
    pub(super) planes: Vec<Vec<u8>>,
}

impl Cut {
    /// Tokens before it.
    pub fn position(&self) -> u32 {
        self.mark.position
    }

    /// The fewest tokens, and the most, that are taken up by it.
    pub fn reach(&self, shape: &CacheShape) -> std::ops::RangeInclusive<u32> {
        self.mark.from(shape)..=self.mark.position
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.planes.iter().map(|plane| plane.len() as u64).sum()
    }
}

/// A conversation: its tokens, and what a cache held of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub(super) model: Sha256Digest,
    pub(super) shape: CacheShape,
    pub(super) tokens: Vec<TokenId>,
    /// Keys, then values, of each full layer in turn: `[tokens.len(), row_bytes]`.
    pub(super) planes: Vec<Vec<u8>>,
    /// By position; the last one is at the end.
    pub(super) cuts: Vec<Arc<Cut>>,
}

impl Snapshot {
    /// Its tokens.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The model that it is of.
    pub fn model(&self) -> Sha256Digest {
        self.model
    }

    /// Its cuts, by position.
    pub fn cuts(&self) -> &[Arc<Cut>] {
        &self.cuts
    }

    /// Bytes of host memory that it takes, cuts that it shares with others included.
    pub fn bytes(&self) -> u64 {
        let planes: usize = self.planes.iter().map(Vec::len).sum();
        let cuts: u64 = self.cuts.iter().map(|cut| cut.bytes()).sum();
        planes as u64 + self.tokens.len() as u64 * 4 + cuts
    }

    /// How many tokens of the beginning of `ids` a conversation has that is restored from it: never all of them, as the last
    /// one is to be fed.
    pub fn reach(&self, ids: &[TokenId]) -> u32 {
        let marks: Vec<CutMark> = self.cuts.iter().map(|cut| cut.mark).collect();
        reach(&self.shape, &self.tokens, &marks, ids)
    }

    /// The cut from which `to` tokens are taken up.
    pub(super) fn cut_for(&self, to: u32) -> Option<usize> {
        self.cuts.iter().position(|cut| cut.reach(&self.shape).contains(&to))
    }
}

/// [`Snapshot::reach`], without the rows.
pub fn reach(shape: &CacheShape, tokens: &[TokenId], marks: &[CutMark], ids: &[TokenId]) -> u32 {
    let common = u32::try_from(common_prefix(tokens, ids)).expect("invariant: a context is a u32");
    let of = |mark: &CutMark| Some(common.min(mark.position)).filter(|kept| *kept >= mark.from(shape));
    marks.iter().filter_map(of).max().unwrap_or(0)
}

/// Which of the cuts at these positions stay where there are too many: the first, behind what conversations share, and the
/// latest. `positions` rise. True for those that stay.
pub fn kept_cuts(positions: &[u32], count_max: usize) -> Vec<bool> {
    let behind = positions.len().saturating_sub(count_max.saturating_sub(1));
    positions.iter().enumerate().map(|(index, _)| index >= behind || (index == 0 && count_max > 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_taken_up_at_its_cuts() {
        let shape = CacheShape { row_bytes: 4, windows: vec![None, Some(5)] };
        let tokens: Vec<TokenId> = (0..100).collect();
        let marks = [CutMark { position: 20, slack: 0 }, CutMark { position: 100, slack: 10 }];
        let at = |ids: &[TokenId]| reach(&shape, &tokens, &marks, ids);
        let with = |len: u32| -> Vec<TokenId> { (0..len).chain([999, 998]).collect() };
        assert_eq!(at(&with(100)), 100);
        assert_eq!(at(&with(95)), 95);
        assert_eq!(at(&with(90)), 90);
        // The rings have lost what lies before that.
        assert_eq!(at(&with(89)), 20);
        assert_eq!(at(&with(20)), 20);
        assert_eq!(at(&with(19)), 0);
        assert_eq!(at(&[]), 0);
        // All of it is there, and one is to be fed.
        assert_eq!(at(&tokens), 99);
        let near = [CutMark { position: 4, slack: 0 }];
        assert_eq!(reach(&shape, &tokens, &near, &with(2)), 2, "nothing has slid out yet");
        let plain = CacheShape { row_bytes: 4, windows: vec![None] };
        assert_eq!(reach(&plain, &tokens, &marks, &with(37)), 37);
    }

    #[test]
    fn the_first_cut_and_the_latest_stay() {
        assert_eq!(kept_cuts(&[1, 2, 3, 4, 5], 3), [true, false, false, true, true]);
        assert_eq!(kept_cuts(&[1, 2], 4), [true, true]);
        assert_eq!(kept_cuts(&[1, 2], 1), [true, false]);
        assert_eq!(kept_cuts(&[1, 2], 0), [false, false]);
        assert_eq!(kept_cuts(&[], 4), Vec::<bool>::new());
    }
}
