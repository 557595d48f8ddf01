//! Drafts of a conversation's next tokens: what followed when its last few tokens occurred before.
//!
//! - Owns: the conversation's tokens, and for each length of a suffix a table of where such a run of tokens ended last.
//! - In: tokens, one at a time. Out: the tokens that followed the last occurrence of the longest suffix.
//! - Invariants: pure. A token costs one entry a length, a look one comparison a length, whatever the conversation holds. A table never
//!   grows; where two runs share a place the later stays, and what lies there is compared before it is believed, so a look may miss an
//!   occurrence and never invents one.
//!
//! Known as prompt look-up decoding: Saxena 2023; the suffix automaton of other makers finds every occurrence, at more memory a token.

use crate::base::ids::TokenId;

/// Tokens of the shortest suffix that is looked up.
pub const ORDER_MIN: usize = 2;

/// Tokens of the longest.
pub const ORDER_MAX: usize = 5;

/// Lengths of suffixes.
pub const ORDERS: usize = ORDER_MAX - ORDER_MIN + 1;

/// Places of a table at most: four of them take 2 MiB.
const PLACES_MAX: usize = 1 << 17;

/// Where the draft of [`DraftIndex::find`] comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Tokens of the suffix that occurred before.
    pub order: usize,
    /// The token behind that occurrence.
    first: usize,
}

/// The index of one conversation.
#[derive(Debug, Clone)]
pub struct DraftIndex {
    tokens: Vec<TokenId>,
    /// For each order where a run of tokens ended: the index of the token behind it; 0 for nowhere.
    tables: [Vec<u32>; ORDERS],
}

impl DraftIndex {
    /// An empty index, for conversations of about `context_len` tokens.
    pub fn new(context_len: u32) -> Self {
        let places = (2 * context_len as usize).next_power_of_two().min(PLACES_MAX);
        Self { tokens: Vec::new(), tables: std::array::from_fn(|_| vec![0; places]) }
    }

    /// Tokens that it holds.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Forgets all tokens behind the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
    }

    /// Adds the next token.
    pub fn push(&mut self, token: TokenId) {
        // The runs that end here are followed by something only now.
        let behind = u32::try_from(self.tokens.len()).expect("invariant: a context is a u32");
        for (order, hash) in hashes(&self.tokens) {
            let table = &mut self.tables[order - ORDER_MIN];
            let place = place(hash, table.len());
            table[place] = behind;
        }
        self.tokens.push(token);
    }

    /// The last occurrence of the longest suffix that occurred before.
    pub fn find(&self) -> Option<Found> {
        let mut best = None;
        for (order, hash) in hashes(&self.tokens) {
            let table = &self.tables[order - ORDER_MIN];
            let first = table[place(hash, table.len())] as usize;
            let suffix = &self.tokens[self.tokens.len() - order..];
            // What was forgotten leaves its entries behind.
            if first >= order && first < self.tokens.len() && self.tokens[first - order..first] == *suffix {
                best = Some(Found { order, first });
            }
        }
        best
    }

    /// The token `ahead` places behind the end, if what followed then follows now; what followed may reach the end, and goes on with
    /// itself there.
    pub fn draft(&self, found: Found, ahead: usize) -> TokenId {
        let period = self.tokens.len() - found.first;
        self.tokens[found.first + ahead % period]
    }
}

/// The hashes of the last [`ORDER_MIN`] to [`ORDER_MAX`] tokens, as many as there are.
fn hashes(tokens: &[TokenId]) -> impl Iterator<Item = (usize, u64)> {
    let last = tokens.iter().rev().take(ORDER_MAX);
    last.scan(0_u64, |hash, &token| {
        // The odd number nearest to 2^64 over the golden ratio (Knuth's multiplicative hashing).
        *hash = (hash.rotate_left(23) ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some(*hash)
    })
    .zip(1..)
    .skip(ORDER_MIN - 1)
    .map(|(hash, order)| (order, hash))
}

/// A place of a table with a power of two of them.
fn place(hash: u64, places: usize) -> usize {
    // The upper bits are those that every token has reached.
    usize::try_from(hash >> 32).expect("invariant: 32 bits") & (places - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index_of(tokens: &[TokenId]) -> DraftIndex {
        let mut index = DraftIndex::new(64);
        tokens.iter().for_each(|&token| index.push(token));
        index
    }

    fn drafts(index: &DraftIndex, count: usize) -> Option<(usize, Vec<TokenId>)> {
        let found = index.find()?;
        Some((found.order, (0..count).map(|ahead| index.draft(found, ahead)).collect()))
    }

    #[test]
    fn the_longest_suffix_says_what_comes() {
        // 1 2 3 occurred twice; behind the longer suffix 9 1 2 3 stood 7, behind the later, shorter one 8.
        let index = index_of(&[9, 1, 2, 3, 7, 5, 1, 2, 3, 8, 9, 1, 2, 3]);
        assert_eq!(drafts(&index, 4), Some((4, vec![7, 5, 1, 2])));
        // Of equally long ones the last counts.
        let index = index_of(&[1, 2, 7, 1, 2, 8, 4, 1, 2]);
        assert_eq!(drafts(&index, 3), Some((2, vec![8, 4, 1])));
    }

    #[test]
    fn what_never_occurred_gives_nothing() {
        for tokens in [&[][..], &[1], &[1, 1], &[1, 2, 3, 4, 5, 6], &[1, 2, 1]] {
            assert_eq!(index_of(tokens).find(), None, "{tokens:?}");
        }
    }

    #[test]
    fn a_loop_goes_on_with_itself() {
        assert_eq!(drafts(&index_of(&[5, 5, 5, 5]), 3), Some((3, vec![5, 5, 5])));
        assert_eq!(drafts(&index_of(&[1, 2, 3, 1, 2, 3, 1, 2]), 7), Some((5, vec![3, 1, 2, 3, 1, 2, 3])));
    }

    #[test]
    fn what_was_forgotten_is_not_found() {
        let mut index = index_of(&[1, 2, 3, 4, 5, 6, 5, 6]);
        assert!(index.find().is_some());
        index.truncate(5);
        assert_eq!((index.len(), index.find()), (5, None));
        index.push(1);
        index.push(2);
        assert_eq!(drafts(&index, 2), Some((2, vec![3, 4])));
        // Of what was forgotten an entry is left in the place of an older one.
        index.push(5);
        index.push(6);
        assert_eq!(index.find(), None);
        index.truncate(0);
        assert!(index.is_empty() && index.find().is_none());
    }

    proptest! {
        /// As a search through all tokens, but for places that are shared.
        #[test]
        fn it_finds_what_a_search_finds(
            tokens in prop::collection::vec(0_u32..4, 0..60),
            cut in 0_usize..60,
            more in prop::collection::vec(0_u32..4, 0..20),
        ) {
            let mut index = index_of(&tokens);
            index.truncate(cut);
            more.iter().for_each(|&token| index.push(token));
            let held: Vec<TokenId> = tokens.iter().copied().take(cut).chain(more).collect();
            prop_assert_eq!(&index.tokens, &held);
            let searched = (ORDER_MIN..=ORDER_MAX.min(held.len())).rev().find_map(|order| {
                let suffix = &held[held.len() - order..];
                let first = (order..held.len()).rev().find(|&first| held[first - order..first] == *suffix)?;
                Some((order, first))
            });
            match (index.find(), searched) {
                (Some(found), Some((order, _))) => {
                    prop_assert!(found.order <= order);
                    let suffix = &held[held.len() - found.order..];
                    prop_assert_eq!(&held[found.first - found.order..found.first], suffix);
                }
                (found, searched) => prop_assert!(found.is_none() || searched.is_some(), "{:?}", found),
            }
        }
    }
}
