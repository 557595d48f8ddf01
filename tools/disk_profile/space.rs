//! What may be read, as numbered blocks, and in which order. Pure.
//!
//! - In: spans of records, or files cut into blocks of one size. Out: the spans of block `i`, and a permutation of all blocks.
//! - Invariants: in random order every block comes once before any comes again, as fio's random map does, so that nothing is
//!   read twice while the drive's own memory still has it; each round has another order.

use flint_rt::base::ids::{FileIndex, Span};
use flint_rt::base::split_mix::mix;
use flint_rt::base::units::align_up;

/// Blocks that can be read.
#[derive(Debug, Clone)]
pub(crate) enum Space {
    /// Expert records, each of one to three pieces.
    Records(Vec<Vec<Span>>),
    /// Files cut into blocks that begin `stride_bytes` apart: of each its place in the list, and how many blocks lie before its
    /// end in all.
    Blocks { block_bytes: u64, stride_bytes: u64, ends: Vec<(FileIndex, u64)> },
}

impl Space {
    /// Files of these lengths cut into whole blocks, each of which begins at a multiple of `align_bytes`.
    pub(crate) fn blocks(
        block_bytes: u64,
        align_bytes: u64,
        files: impl Iterator<Item = (FileIndex, u64)>,
    ) -> Self {
        let stride_bytes = align_up(block_bytes, align_bytes);
        let mut end = 0;
        let ends = files.map(|(file, len_bytes)| {
            end += (len_bytes + stride_bytes - block_bytes) / stride_bytes;
            (file, end)
        });
        Self::Blocks { block_bytes, stride_bytes, ends: ends.collect() }
    }

    /// How many blocks.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Records(records) => records.len() as u64,
            Self::Blocks { ends, .. } => ends.last().map_or(0, |&(_, end)| end),
        }
    }

    /// The blocks that lie in files of which `is_wanted` says so.
    pub(crate) fn only(&self, is_wanted: impl Fn(FileIndex) -> bool) -> Self {
        match self {
            Self::Records(records) => {
                let is_whole = |record: &&Vec<Span>| record.iter().all(|span| is_wanted(span.file));
                Self::Records(records.iter().filter(is_whole).cloned().collect())
            }
            Self::Blocks { block_bytes, stride_bytes, ends } => {
                let (mut before, mut end) = (0, 0);
                let mut kept = Vec::new();
                for &(file, its_end) in ends {
                    if is_wanted(file) {
                        end += its_end - before;
                        kept.push((file, end));
                    }
                    before = its_end;
                }
                Self::Blocks { block_bytes: *block_bytes, stride_bytes: *stride_bytes, ends: kept }
            }
        }
    }

    /// Bytes of a block; of records those of the longest.
    pub(crate) fn block_bytes(&self) -> u64 {
        let of = |record: &Vec<Span>| record.iter().map(|span| span.len_bytes).sum();
        match self {
            Self::Records(records) => records.iter().map(of).max().unwrap_or(0),
            Self::Blocks { block_bytes, .. } => *block_bytes,
        }
    }

    /// Bytes of the longest single read.
    pub(crate) fn read_bytes_max(&self) -> u64 {
        match self {
            Self::Records(records) => records.iter().flatten().map(|span| span.len_bytes).max().unwrap_or(0),
            Self::Blocks { block_bytes, .. } => *block_bytes,
        }
    }

    /// Reads of a block at most.
    pub(crate) fn pieces(&self) -> u32 {
        let most = match self {
            Self::Records(records) => records.iter().map(Vec::len).max().unwrap_or(1),
            Self::Blocks { .. } => 1,
        };
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Bytes of all blocks.
    pub(crate) fn total_bytes(&self) -> u64 {
        match self {
            Self::Records(records) => records.iter().flatten().map(|span| span.len_bytes).sum(),
            Self::Blocks { block_bytes, .. } => block_bytes * self.len(),
        }
    }

    /// The reads of block `index`, which is below [`Self::len`], into `spans`.
    pub(crate) fn spans(&self, index: u64, spans: &mut Vec<Span>) {
        spans.clear();
        match self {
            Self::Records(records) => {
                let record = usize::try_from(index).ok().and_then(|index| records.get(index));
                spans.extend(record.into_iter().flatten());
            }
            Self::Blocks { block_bytes, stride_bytes, ends } => {
                let at = ends.partition_point(|&(_, end)| end <= index);
                let Some(&(file, _)) = ends.get(at) else { return };
                let first = if at == 0 { 0 } else { ends[at - 1].1 };
                let offset_bytes = (index - first) * stride_bytes;
                spans.push(Span { file, offset_bytes, len_bytes: *block_bytes });
            }
        }
    }
}

/// In which order blocks come.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    /// All once in random order, then all again in another.
    Random { len: u64, seed: u64 },
    /// One after the other, then from the first again.
    Sequential { len: u64 },
}

impl Order {
    /// The block that comes as number `turn`.
    pub(crate) fn at(&self, turn: u64) -> u64 {
        match *self {
            Self::Sequential { len } => turn % len.max(1),
            Self::Random { len, seed } => {
                let len = len.max(1);
                permuted(turn % len, len, mix(seed.wrapping_add(turn / len)))
            }
        }
    }
}

/// Where `index` of `len` goes: a Feistel network of four rounds over the next power of four, walked until it falls below
/// `len` (Black and Rogaway 2002). Needs no memory, whatever the length.
fn permuted(index: u64, len: u64, seed: u64) -> u64 {
    let bits = (64 - len.saturating_sub(1).leading_zeros()).max(2);
    let half = bits.div_ceil(2);
    let mask = (1_u64 << half) - 1;
    let mut at = index;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..4 {
            let next = left ^ (mix(seed ^ (round << 56) ^ right) & mask);
            left = right;
            right = next;
        }
        at = left << half | right;
        if at < len {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_comes_once_a_round_and_rounds_differ() {
        for len in [1, 2, 3, 7, 64, 65, 1000, 12_032] {
            let order = Order::Random { len, seed: 5 };
            let mut seen: Vec<u64> = (0..len).map(|turn| order.at(turn)).collect();
            let second: Vec<u64> = (len..2 * len).map(|turn| order.at(turn)).collect();
            assert!(len < 64 || seen != second, "two rounds of {len} in one order");
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..len), "of {len} blocks some are missing");
        }
    }

    #[test]
    fn a_random_order_jumps_about_evenly() {
        let len = 10_000;
        let order = Order::Random { len, seed: 1 };
        let sum: u64 = (0..1000).map(|turn| order.at(turn).abs_diff(order.at(turn + 1))).sum();
        // Two random places lie a third of the length apart on average.
        assert!((2900..3800).contains(&(sum / 1000)), "{}", sum / 1000);
    }

    #[test]
    fn blocks_of_one_file_are_kept_in_turn() {
        let space = Space::blocks(10, 1, (0..3).map(|index| (FileIndex(index), 20)));
        let kept = space.only(|file| file.0 != 1);
        let mut spans = Vec::new();
        kept.spans(3, &mut spans);
        assert_eq!((kept.len(), spans[0].file.0, spans[0].offset_bytes), (4, 2, 10));
        let of = |file| vec![Span { file: FileIndex(file), offset_bytes: 0, len_bytes: 7 }];
        assert_eq!(Space::Records(vec![of(0), of(1), of(0)]).only(|file| file.0 == 0).len(), 2);
    }

    #[test]
    fn blocks_are_cut_from_files_in_turn_and_ends_are_left_out() {
        let space =
            Space::blocks(10, 5, [(FileIndex(0), 25), (FileIndex(2), 9), (FileIndex(3), 30)].into_iter());
        assert_eq!((space.len(), space.total_bytes(), space.pieces()), (5, 50, 1));
        let mut spans = Vec::new();
        let found: Vec<(u16, u64)> = (0..5)
            .map(|index| {
                space.spans(index, &mut spans);
                (spans[0].file.0, spans[0].offset_bytes)
            })
            .collect();
        assert_eq!(found, [(0, 0), (0, 10), (3, 0), (3, 10), (3, 20)]);
        space.spans(5, &mut spans);
        assert!(spans.is_empty());
        // Begun at every 8th byte, a file of 27 holds blocks of 10 at 0 and 16.
        assert_eq!(Space::blocks(10, 8, std::iter::once((FileIndex(0), 27))).len(), 2);
        assert_eq!(Space::blocks(10, 8, std::iter::once((FileIndex(0), 25))).len(), 1);
    }
}
