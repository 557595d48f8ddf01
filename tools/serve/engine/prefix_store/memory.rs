//! Conversations in host memory, by least recent use.
//!
//! - Owns: the snapshots. In: snapshots, prompts. Out: the one that has most of a prompt.
//! - Invariants: with what others told it that they hold, never more bytes than the limit; what somebody works with stays.

use std::sync::{Arc, Weak};

use flint_rt::base::ids::TokenId;
use flint_rt::engine::Snapshot;

use super::policy::{Kept, victims};

struct Entry {
    snapshot: Arc<Snapshot>,
    used: u64,
}

/// The snapshots.
pub(super) struct Memory {
    entries: Vec<Entry>,
    /// Those that others took the place of while somebody worked with them, as who writes them does.
    leaving: Vec<Weak<Snapshot>>,
    bytes_max: u64,
    uses: u64,
}

impl Memory {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { entries: Vec::new(), leaving: Vec::new(), bytes_max, uses: 0 }
    }

    /// Whether anything can be kept.
    pub(super) fn is_on(&self) -> bool {
        self.bytes_max > 0
    }

    pub(super) fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.snapshot.bytes()).sum::<u64>() + self.leaving_bytes()
    }

    fn leaving_bytes(&self) -> u64 {
        self.leaving.iter().filter_map(Weak::upgrade).map(|snapshot| snapshot.bytes()).sum()
    }

    pub(super) fn snapshots(&self) -> impl Iterator<Item = &Arc<Snapshot>> {
        self.entries.iter().map(|entry| &entry.snapshot)
    }

    /// Makes room for `new_bytes` beside `other_bytes` that are kept elsewhere. Returns how many left for that, none where there
    /// cannot be so much: then all stay.
    pub(super) fn make_room(&mut self, new_bytes: u64, other_bytes: u64) -> Option<usize> {
        let kept: Vec<Kept> = self
            .entries
            .iter()
            .map(|entry| Kept {
                bytes: entry.snapshot.bytes(),
                used: entry.used,
                is_held: Arc::strong_count(&entry.snapshot) > 1,
            })
            .collect();
        let other_bytes = other_bytes.saturating_add(self.leaving_bytes());
        let leave = victims(&kept, new_bytes.saturating_add(other_bytes), self.bytes_max)?;
        let mut index = 0;
        self.entries.retain(|_| {
            index += 1;
            !leave.contains(&(index - 1))
        });
        Some(leave.len())
    }

    /// The one that has most of `prompt`, with how much.
    pub(super) fn find(&self, prompt: &[TokenId]) -> Option<(Arc<Snapshot>, u32)> {
        let reached = self.entries.iter().map(|entry| (entry, entry.snapshot.reach(prompt)));
        let best = reached.filter(|(_, reach)| *reach > 0).max_by_key(|(entry, reach)| (*reach, entry.used));
        best.map(|(entry, reach)| (entry.snapshot.clone(), reach))
    }

    /// Whether one holds all of `tokens`, and can be taken up behind them.
    pub(super) fn has(&self, tokens: &[TokenId]) -> bool {
        self.entries.iter().any(|entry| covers(&entry.snapshot, tokens))
    }

    /// The most tokens that one has in common with `prompt`, whether it can be taken up there or not.
    pub(super) fn common(&self, prompt: &[TokenId]) -> usize {
        let common =
            |entry: &Entry| flint_rt::engine::session::common_prefix(entry.snapshot.tokens(), prompt);
        self.entries.iter().map(common).max().unwrap_or(0)
    }

    /// Whether somebody works with one of them, as who writes it does.
    pub(super) fn is_any_held(&self) -> bool {
        self.entries.iter().any(|entry| Arc::strong_count(&entry.snapshot) > 1)
            || self.leaving.iter().any(|snapshot| snapshot.strong_count() > 0)
    }

    /// Notes a use.
    pub(super) fn touch(&mut self, snapshot: &Arc<Snapshot>) {
        self.uses += 1;
        if let Some(entry) = self.entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.snapshot, snapshot)) {
            entry.used = self.uses;
        }
    }

    /// Keeps it, in the place of those that it continues. There has to be room.
    pub(super) fn insert(&mut self, snapshot: Arc<Snapshot>) {
        self.remove(|entry| snapshot.tokens().starts_with(entry.tokens()));
        self.uses += 1;
        self.entries.push(Entry { snapshot, used: self.uses });
    }

    /// Forgets what `prompt` could go on from.
    pub(super) fn forget(&mut self, prompt: &[TokenId]) {
        self.remove(|snapshot| snapshot.reach(prompt) > 0);
    }

    fn remove(&mut self, leaves: impl Fn(&Snapshot) -> bool) {
        self.leaving.retain(|snapshot| snapshot.strong_count() > 0);
        let leaving = &mut self.leaving;
        self.entries.retain(|entry| {
            let stays = !leaves(&entry.snapshot);
            if !stays && Arc::strong_count(&entry.snapshot) > 1 {
                leaving.push(Arc::downgrade(&entry.snapshot));
            }
            stays
        });
    }
}

/// Whether `snapshot` begins with `tokens` and can be taken up behind them.
fn covers(snapshot: &Snapshot, tokens: &[TokenId]) -> bool {
    // As a prompt it would have one token more.
    let longer = [tokens, &[TokenId::MAX]].concat();
    snapshot.reach(&longer) as usize == tokens.len()
}

#[cfg(test)]
pub(super) mod tests {
    use flint_rt::engine::snapshot::{CacheShape, Saving};
    use flint_rt::store::Sha256Digest;

    use super::*;

    /// A conversation without rows: 4 bytes a token.
    pub(in super::super) fn snapshot(tokens: &[TokenId]) -> Arc<Snapshot> {
        let shape = CacheShape { row_bytes: 4, windows: Vec::new() };
        let saving = Saving::new(Sha256Digest([1; 32]), &shape, tokens, 0, &[]).expect("tokens");
        Arc::new(saving.finish())
    }

    fn insert(memory: &mut Memory, tokens: &[TokenId]) -> Option<usize> {
        let snapshot = snapshot(tokens);
        let left = memory.make_room(snapshot.bytes(), 0)?;
        memory.insert(snapshot);
        Some(left)
    }

    #[test]
    fn the_longest_unused_leaves_when_there_is_no_room() {
        let mut memory = Memory::new(40);
        assert_eq!(insert(&mut memory, &[1, 2, 3, 4]), Some(0));
        assert_eq!(insert(&mut memory, &[5, 6, 7, 8]), Some(0));
        let (found, reach) = memory.find(&[1, 2, 3, 9]).expect("kept");
        assert_eq!((found.tokens(), reach), (&[1, 2, 3, 4][..], 3));
        memory.touch(&found);
        drop(found);
        assert_eq!(insert(&mut memory, &[9, 10, 11, 12]), Some(1));
        assert!(memory.has(&[1, 2, 3, 4]) && memory.has(&[9, 10]) && !memory.has(&[5, 6, 7, 8]));
        assert_eq!(memory.bytes(), 32);
        // What somebody works with stays, and so does the rest where that would not be enough.
        let held = memory.find(&[1, 2, 3, 9]).expect("kept");
        assert_eq!(insert(&mut memory, &[20; 8]), None);
        assert_eq!(memory.bytes(), 32);
        drop(held);
        assert_eq!(insert(&mut memory, &[20; 8]), Some(2));
        assert_eq!(memory.make_room(20, 25), None, "others hold some, too");
        assert_eq!(insert(&mut memory, &[0; 11]), None, "more than all");
        assert!(Memory::new(0).make_room(1, 0).is_none());
    }

    #[test]
    fn a_conversation_that_goes_on_takes_its_own_place() {
        let mut memory = Memory::new(1000);
        insert(&mut memory, &[1, 2]);
        insert(&mut memory, &[1, 3, 4]);
        insert(&mut memory, &[1, 2, 3]);
        let tokens: Vec<_> = memory.snapshots().map(|snapshot| snapshot.tokens().to_vec()).collect();
        assert_eq!(tokens, [vec![1, 3, 4], vec![1, 2, 3]]);
        assert_eq!(memory.common(&[1, 2, 3, 4]), 3);
        assert!(memory.find(&[7]).is_none());
    }

    #[test]
    fn what_is_still_being_written_counts_until_it_is() {
        let mut memory = Memory::new(36);
        let writing = snapshot(&[1, 2, 3, 4]);
        memory.insert(writing.clone());
        assert_eq!(insert(&mut memory, &[1, 2, 3, 4, 5]), Some(0));
        assert_eq!((memory.bytes(), memory.is_any_held()), (36, true));
        // Neither may leave for it.
        assert_eq!(memory.make_room(24, 0), None);
        drop(writing);
        assert_eq!((memory.bytes(), memory.is_any_held()), (20, false));
        assert_eq!(memory.make_room(16, 0), Some(0));
    }

    #[test]
    fn what_a_prompt_could_go_on_from_is_forgotten() {
        let mut memory = Memory::new(1000);
        insert(&mut memory, &[1, 2, 3]);
        insert(&mut memory, &[7, 8]);
        memory.forget(&[1, 2, 9]);
        assert!(!memory.has(&[1, 2]) && memory.has(&[7, 8]));
    }
}
