//! Byte-pair merging of one piece: the lowest rank first, the leftmost among equals, until no pair has a rank.
//!
//! In: the ids of a piece's bytes, and the merge table. Out: the ids of its tokens. Pure.
//!
//! Two ways with one result. A word is scanned again after each merge, which for a few symbols is the fastest. A long
//! run is kept as a linked list with one queue of positions a rank ([`Lane`]), so that n symbols take O(n log n) at
//! worst; because ranks are mostly met from left to right, the usual cost of a step is O(1), and ten megabytes of one
//! letter pass in about a second.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::pair_hash::PairHash;
use crate::base::ids::TokenId;

/// Rank of a pair that does not merge.
const NO_RANK: u32 = u32::MAX;

/// End of the linked list.
const NONE: u32 = u32::MAX;

/// Symbols up to which scanning again is faster than keeping queues.
const SCAN_LEN_MAX: usize = 32;

/// What a pair of tokens merges to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Merge {
    /// Lower merges first; below `u32::MAX`.
    pub(super) rank: u32,
    /// The token that replaces the pair.
    pub(super) result: TokenId,
}

/// The merges of a vocabulary, by pair.
#[derive(Debug)]
pub(super) struct MergeTable(HashMap<u64, Merge, PairHash>);

impl MergeTable {
    /// An empty table with room for `count` merges.
    pub(super) fn with_capacity(count: usize) -> Self {
        Self(HashMap::with_capacity_and_hasher(count, PairHash::default()))
    }

    /// Adds a merge, and gives back the one that the pair had.
    pub(super) fn insert(&mut self, (left, right): (TokenId, TokenId), merge: Merge) -> Option<Merge> {
        self.0.insert(key(left, right), merge)
    }

    fn rank(&self, left: TokenId, right: TokenId) -> u32 {
        self.0.get(&key(left, right)).map_or(NO_RANK, |merge| merge.rank)
    }

    fn result(&self, left: TokenId, right: TokenId) -> TokenId {
        self.0.get(&key(left, right)).expect("invariant: only pairs with a rank are merged").result
    }
}

/// A pair as one number.
fn key(left: TokenId, right: TokenId) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Merges pieces, and keeps its memory between them.
#[derive(Debug, Default)]
pub(super) struct Merger {
    /// Symbols, left to right; in a long run, indexed by the position of the symbol's first byte.
    symbols: Vec<TokenId>,
    /// Rank of the pair that begins at each position.
    ranks: Vec<u32>,
    run: Run,
}

impl Merger {
    /// Appends the tokens of the piece with the bytes' ids `piece` to `target`.
    ///
    /// # Panics
    /// When the piece has 2^32 - 1 symbols or more; a text of that size does not reach a tokenizer.
    pub(super) fn merge(
        &mut self,
        table: &MergeTable,
        piece: impl Iterator<Item = TokenId>,
        target: &mut Vec<TokenId>,
    ) {
        self.symbols.clear();
        self.symbols.extend(piece);
        self.ranks.clear();
        self.ranks.extend(self.symbols.windows(2).map(|pair| table.rank(pair[0], pair[1])));
        if self.symbols.len() <= SCAN_LEN_MAX {
            self.scan(table);
            target.extend_from_slice(&self.symbols);
        } else {
            self.run.merge(table, &mut self.symbols, &mut self.ranks);
            let mut position = 0;
            while position != NONE {
                target.push(self.symbols[position as usize]);
                position = self.run.next[position as usize];
            }
        }
    }

    /// Looks for the best pair again after each merge.
    fn scan(&mut self, table: &MergeTable) {
        let (symbols, ranks) = (&mut self.symbols, &mut self.ranks);
        // `min_by_key` keeps the first of equals: the leftmost.
        while let Some((position, &rank)) = ranks.iter().enumerate().min_by_key(|(_, rank)| **rank) {
            if rank == NO_RANK {
                return;
            }
            symbols[position] = table.result(symbols[position], symbols[position + 1]);
            symbols.remove(position + 1);
            ranks.remove(position);
            if position > 0 {
                ranks[position - 1] = table.rank(symbols[position - 1], symbols[position]);
            }
            if position < ranks.len() {
                ranks[position] = table.rank(symbols[position], symbols[position + 1]);
            }
        }
    }
}

/// A long run of symbols as a linked list, with its pairs queued by rank.
#[derive(Debug, Default)]
struct Run {
    next: Vec<u32>,
    previous: Vec<u32>,
    /// One queue a rank that the run has met.
    lanes: Vec<Lane>,
    lane_of_rank: HashMap<u64, usize, PairHash>,
    /// The ranks whose lane holds positions, lowest first.
    waiting: BinaryHeap<Reverse<u32>>,
}

impl Run {
    /// Merges until no pair has a rank; the first symbol stays at position 0 and `next` leads to the others.
    fn merge(&mut self, table: &MergeTable, symbols: &mut [TokenId], ranks: &mut Vec<u32>) {
        let count = u32::try_from(symbols.len()).ok().filter(|count| *count < NONE);
        let count = count.expect("invariant: a piece is shorter than 4 GiB");
        ranks.push(NO_RANK);
        self.next.clear();
        self.next.extend((1..count).chain([NONE]));
        self.previous.clear();
        self.previous.extend([NONE].into_iter().chain(0..count - 1));
        self.lanes.clear();
        self.lane_of_rank.clear();
        self.waiting.clear();
        for (position, rank) in (0..count).zip(ranks.iter()) {
            self.queue(*rank, position);
        }
        while let Some(Reverse(rank)) = self.waiting.pop() {
            let lane = self.lane_of_rank[&u64::from(rank)];
            loop {
                // A merge can bring up a pair of a lower rank, which then goes first.
                if self.waiting.peek().is_some_and(|lower| lower.0 < rank) {
                    if !self.lanes[lane].is_empty() {
                        self.waiting.push(Reverse(rank));
                    }
                    break;
                }
                let Some(position) = self.lanes[lane].pop() else { break };
                // Stale when a neighbour has taken one of the two symbols meanwhile.
                if ranks[position as usize] == rank {
                    self.join(table, symbols, ranks, position);
                }
            }
        }
    }

    /// Replaces the pair at `position` by its result, and queues the two pairs that come into being.
    fn join(&mut self, table: &MergeTable, symbols: &mut [TokenId], ranks: &mut [u32], position: u32) {
        let here = position as usize;
        let taken = self.next[here] as usize;
        symbols[here] = table.result(symbols[here], symbols[taken]);
        ranks[taken] = NO_RANK;
        let after = self.next[taken];
        self.next[here] = after;
        ranks[here] = NO_RANK;
        if after != NONE {
            self.previous[after as usize] = position;
            ranks[here] = table.rank(symbols[here], symbols[after as usize]);
            self.queue(ranks[here], position);
        }
        let before = self.previous[here];
        if before != NONE {
            ranks[before as usize] = table.rank(symbols[before as usize], symbols[here]);
            self.queue(ranks[before as usize], before);
        }
    }

    /// Puts `position` into the lane of `rank`.
    fn queue(&mut self, rank: u32, position: u32) {
        if rank == NO_RANK {
            return;
        }
        let lane = *self.lane_of_rank.entry(u64::from(rank)).or_insert_with(|| {
            self.lanes.push(Lane::default());
            self.lanes.len() - 1
        });
        if self.lanes[lane].is_empty() {
            self.waiting.push(Reverse(rank));
        }
        self.lanes[lane].push(position);
    }
}

/// The positions of one rank, given out from left to right. Positions that arrive in order, as nearly all do, are
/// appended to a plain list; only the others go through a heap.
#[derive(Debug, Default)]
struct Lane {
    in_order: Vec<u32>,
    given: usize,
    out_of_order: BinaryHeap<Reverse<u32>>,
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.given == self.in_order.len() && self.out_of_order.is_empty()
    }

    fn push(&mut self, position: u32) {
        if self.in_order.last().is_none_or(|last| *last <= position) {
            self.in_order.push(position);
        } else {
            self.out_of_order.push(Reverse(position));
        }
    }

    fn pop(&mut self) -> Option<u32> {
        let first = self.in_order.get(self.given).copied();
        match (first, self.out_of_order.peek()) {
            (Some(first), Some(Reverse(other))) if *other < first => {
                self.out_of_order.pop().map(|other| other.0)
            }
            (Some(first), _) => {
                self.given += 1;
                Some(first)
            }
            (None, _) => self.out_of_order.pop().map(|other| other.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A table over the symbols 0 to 3 in which results may merge again, at ranks below or above their own.
    fn table(pairs: &[((TokenId, TokenId), u32)]) -> MergeTable {
        let mut table = MergeTable::with_capacity(pairs.len());
        for (result, (pair, rank)) in (4..).zip(pairs) {
            table.0.entry(key(pair.0, pair.1)).or_insert(Merge { rank: *rank, result });
        }
        table
    }

    proptest! {
        /// The queues and the scan agree, whatever the order of ranks: also where a merge brings up a lower rank.
        #[test]
        fn both_ways_agree(
            pairs in proptest::collection::vec(((0u32..12, 0u32..12), 0u32..20), 0..24),
            symbols in proptest::collection::vec(0u32..4, 2..120),
        ) {
            // One pair a rank, as in a vocabulary: the rank is made unique by the pair's index.
            let pairs: Vec<_> = (0u32..).zip(pairs).map(|(i, (pair, rank))| (pair, rank * 100 + i)).collect();
            let table = table(&pairs);
            let mut scanned = Merger { symbols: symbols.clone(), ..Merger::default() };
            scanned.ranks.extend(symbols.windows(2).map(|pair| table.rank(pair[0], pair[1])));
            scanned.scan(&table);
            let mut run = Run::default();
            let mut list = symbols.clone();
            let mut ranks: Vec<u32> = symbols.windows(2).map(|pair| table.rank(pair[0], pair[1])).collect();
            run.merge(&table, &mut list, &mut ranks);
            let mut queued = Vec::new();
            let mut position = 0;
            while position != NONE {
                queued.push(list[position as usize]);
                position = run.next[position as usize];
            }
            prop_assert_eq!(scanned.symbols, queued);
        }
    }
}
