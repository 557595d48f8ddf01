//! Tokens grouped by the expert that they picked, so that each expert's weights are read once a layer.
//!
//! Pure. A pair is a token's pick: `pair = token * experts_used + pick`. Pairs are sorted by expert, and within an expert by
//! number; a tile is a run of at most `tile_max` pairs of one expert.

use flint_shaders::layout::TILE_WORDS;

use crate::base::ids::{ExpertIndex, SlotIndex};

/// The picks of a layer, sorted by expert.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Groups {
    /// All pairs, grouped by expert in ascending order.
    pub pairs: Vec<u32>,
    /// For each expert of the layer, where its pairs end in `pairs`; its predecessor's end is where they begin.
    ends: Vec<u32>,
}

impl Groups {
    /// Sorts `picks`, `[tokens, experts_used]`, of a layer with `expert_count` experts.
    ///
    /// # Panics
    /// When a pick is not below `expert_count`.
    pub fn sort(&mut self, picks: impl Iterator<Item = u32> + Clone, expert_count: u32) {
        self.ends.clear();
        self.ends.resize(expert_count as usize, 0);
        for expert in picks.clone() {
            self.ends[expert as usize] += 1;
        }
        let mut sum = 0;
        for end in &mut self.ends {
            let count = *end;
            *end = sum;
            sum += count;
        }
        self.pairs.clear();
        self.pairs.resize(sum as usize, 0);
        // `ends` holds each expert's beginning until its pairs are placed.
        for (pair, expert) in (0..).zip(picks) {
            let at = &mut self.ends[expert as usize];
            self.pairs[*at as usize] = pair;
            *at += 1;
        }
    }

    /// The experts that were picked at all, ascending.
    pub fn experts(&self) -> Vec<ExpertIndex> {
        (0..)
            .zip(&self.ends)
            .filter(|&(expert, _)| !self.range(ExpertIndex(expert)).is_empty())
            .map(|(expert, _)| ExpertIndex(expert))
            .collect()
    }

    /// How many tokens picked `expert`.
    pub fn count(&self, expert: ExpertIndex) -> u32 {
        let range = self.range(expert);
        range.end - range.start
    }

    /// Where an expert's pairs lie in [`Self::pairs`].
    fn range(&self, expert: ExpertIndex) -> std::ops::Range<u32> {
        let index = expert.0 as usize;
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        begin..self.ends[index]
    }

    /// Appends the tiles of `expert`, which lies in `slot`, to `tiles` (`TILE_WORDS` words each).
    pub fn append_tiles(&self, expert: ExpertIndex, slot: SlotIndex, tile_max: u32, tiles: &mut Vec<u32>) {
        let range = self.range(expert);
        let mut first = range.start;
        while first < range.end {
            let count = (range.end - first).min(tile_max);
            tiles.extend_from_slice(&[slot.0, first, count]);
            first += count;
        }
    }
}

/// The most tiles that `pairs` pairs over `experts` experts can make.
pub fn tiles_max(pairs: u32, experts: u32, tile_max: u32) -> u32 {
    pairs / tile_max + experts.min(pairs)
}

/// Tiles in a list of tile words.
pub fn tile_count(tiles: &[u32]) -> u32 {
    u32::try_from(tiles.len() / TILE_WORDS as usize).expect("invariant: tiles are few")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_pair_is_in_one_tile_of_its_expert(
            picks in prop::collection::vec(0_u32..17, 0..200),
            tile_max in 1_u32..9,
        ) {
            let mut groups = Groups::default();
            groups.sort(picks.iter().copied(), 17);
            let mut seen = vec![0; picks.len()];
            let mut tile_total = 0;
            for expert in groups.experts() {
                let mut tiles = Vec::new();
                groups.append_tiles(expert, SlotIndex(expert.0 + 100), tile_max, &mut tiles);
                tile_total += tile_count(&tiles);
                for tile in tiles.chunks(3) {
                    prop_assert_eq!(tile[0], expert.0 + 100);
                    prop_assert!(tile[2] >= 1 && tile[2] <= tile_max);
                    for at in tile[1]..tile[1] + tile[2] {
                        let pair = groups.pairs[at as usize] as usize;
                        prop_assert_eq!(picks[pair], expert.0);
                        seen[pair] += 1;
                    }
                }
            }
            prop_assert!(seen.iter().all(|&count| count == 1));
            let pairs = u32::try_from(picks.len()).expect("a few");
            prop_assert!(tile_total <= tiles_max(pairs, 17, tile_max));
        }
    }
}
