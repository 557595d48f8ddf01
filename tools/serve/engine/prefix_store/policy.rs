//! What is decided about kept conversations. Pure.

use flint_rt::base::ids::TokenId;
use flint_rt::engine::session::common_prefix;

/// Tokens from which on a conversation is worth to be kept. Fewer are fed in a step.
pub(super) const TOKENS_MIN: u32 = 16;

/// Tokens by which what is kept has to be better than what a slot holds, to be brought back for it.
pub(super) const GAIN_MIN: u32 = 16;

/// How far a cut behind a prompt reaches back: templates end a prompt with an opening that the next one may leave out, as that of a
/// thought.
pub(super) const PROMPT_SLACK: u32 = 16;

/// The least share of a prompt, in percent, that a slot has to save it, to be taken for that. Chats share the template's first
/// tokens with each other, which is worth nothing; a system prompt is.
const SIMILARITY_PERCENT_MIN: u64 = 10;

/// A slot that is free.
#[derive(Debug, Clone, Copy)]
pub(super) struct FreeSlot<'a> {
    /// What its cache holds.
    pub(super) tokens: &'a [TokenId],
    /// How many of the prompt's tokens it can go on from, by itself or by a cut of its own.
    pub(super) reach: u32,
    /// Larger where it was used later; 0 where never.
    pub(super) used: u64,
}

/// Where a prompt goes, and whether what is kept is brought back for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The slot's index.
    pub(super) slot: usize,
    /// Whether the kept one is better than the slot.
    pub(super) takes_kept: bool,
}

/// Chooses among `slots`; none of none. `kept_reach` is how many tokens of the prompt the best kept conversation has.
///
/// A prompt goes where most of its beginning lies. Where that is a kept conversation, it is brought back into the slot that holds
/// as much of the prompt, if only its rings have lost it, else into the one that was not used for longest.
pub(super) fn place(slots: &[Option<FreeSlot<'_>>], kept_reach: u32, prompt: &[TokenId]) -> Option<Place> {
    let free = || slots.iter().enumerate().filter_map(|(index, slot)| Some((index, (*slot)?)));
    let prompt_len = prompt.len() as u64;
    let alike = free()
        .filter(|(_, slot)| {
            slot.reach > 0 && u64::from(slot.reach) * 100 >= prompt_len * SIMILARITY_PERCENT_MIN
        })
        .max_by_key(|(index, slot)| (slot.reach, slot.used, *index));
    let oldest = || free().min_by_key(|(_, slot)| slot.used);
    let (slot, found) = alike.or_else(oldest)?;
    if kept_reach < found.reach.saturating_add(GAIN_MIN) {
        return Some(Place { slot, takes_kept: false });
    }
    let same = free().find(|(_, slot)| common_prefix(slot.tokens, prompt) >= kept_reach as usize);
    let (slot, _) = same.or_else(oldest)?;
    Some(Place { slot, takes_kept: true })
}

/// Whether what a slot holds is to be kept before a prompt of which it keeps `reach` tokens takes it: not where the same conversation
/// goes on, or nothing is lost that would be missed. `prompt_tokens` are those of its last prompt.
pub(super) fn is_displaced(held_tokens: u32, prompt_tokens: u32, reach: u32) -> bool {
    let is_same = reach.saturating_add(PROMPT_SLACK) >= prompt_tokens;
    held_tokens >= TOKENS_MIN && held_tokens - reach.min(held_tokens) >= TOKENS_MIN && !is_same
}

/// Something that may be thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) bytes: u64,
    /// Larger where it was used later.
    pub(super) used: u64,
    /// Whether somebody works with it.
    pub(super) is_held: bool,
}

/// The indices of those that leave, longest unused first, so that `new_bytes` fit a limit with the others; none where they cannot.
pub(super) fn victims(kept: &[Kept], new_bytes: u64, bytes_max: u64) -> Option<Vec<usize>> {
    let mut bytes: u64 = kept.iter().map(|one| one.bytes).sum::<u64>().saturating_add(new_bytes);
    let mut order: Vec<usize> = (0..kept.len()).filter(|index| !kept[*index].is_held).collect();
    order.sort_by_key(|index| kept[*index].used);
    let mut leave = Vec::new();
    for index in order {
        if bytes <= bytes_max {
            break;
        }
        bytes -= kept[index].bytes;
        leave.push(index);
    }
    (bytes <= bytes_max).then_some(leave)
}

/// A point of a prompt at which a cut is wanted, and how far back it is to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) position: u32,
    pub(super) slack: u32,
}

/// Where cuts of a conversation with this prompt are wanted: behind the first turn's opening, as what lies before it (system prompt
/// and tools) is shared; where it parts from what was seen before (`parting`); and behind the prompt.
pub(super) fn wanted_cuts(prompt: &[TokenId], turn: Option<TokenId>, parting: u32) -> Vec<Wanted> {
    let position = |index: usize| u32::try_from(index).expect("invariant: a context is a u32");
    let opening = turn.and_then(|turn| prompt.iter().position(|id| *id == turn));
    let shared = opening.map_or(0, |index| position(index + 1));
    let mut wanted = vec![
        Wanted { position: shared, slack: 0 },
        Wanted { position: parting, slack: 0 },
        Wanted { position: position(prompt.len()), slack: PROMPT_SLACK },
    ];
    wanted.retain(|cut| cut.position >= TOKENS_MIN + cut.slack);
    wanted.sort_by_key(|cut| cut.position);
    wanted.dedup_by_key(|cut| cut.position);
    wanted
}

/// Bytes for kept conversations where nobody says how many: an eighth of what host memory is available, or a sixteenth of a limit
/// on device and host together where that is less, and at most 4 GiB.
pub fn sensible_bytes(available_bytes: Option<u64>, limit_bytes: Option<u64>) -> u64 {
    const MOST: u64 = 4 << 30;
    let of_host = available_bytes.map_or(0, |bytes| bytes / 8);
    of_host.min(limit_bytes.map_or(u64::MAX, |bytes| bytes / 16)).min(MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(tokens: &[TokenId], reach: u32, used: u64) -> Option<FreeSlot<'_>> {
        Some(FreeSlot { tokens, reach, used })
    }

    fn prompt() -> Vec<TokenId> {
        (0..100).collect()
    }

    fn slot_only(slot: usize) -> Option<Place> {
        Some(Place { slot, takes_kept: false })
    }

    #[test]
    fn a_prompt_goes_where_its_beginning_lies() {
        let prompt = prompt();
        let (half, other) = (&prompt[..50], [7, 8, 9]);
        assert_eq!(
            place(&[slot(&other, 0, 1), slot(half, 50, 9), slot(&[], 0, 0)], 0, &prompt),
            slot_only(1)
        );
        assert_eq!(place(&[slot(&prompt, 99, 1), slot(half, 50, 9)], 0, &prompt), slot_only(0));
        // Of equally good ones the later used.
        assert_eq!(place(&[slot(half, 50, 1), slot(half, 50, 9)], 0, &prompt), slot_only(1));
        // Rings that have lost it are worth nothing.
        assert_eq!(place(&[slot(&prompt, 0, 5), slot(half, 50, 9)], 0, &prompt), slot_only(1));
    }

    #[test]
    fn a_strange_prompt_takes_the_oldest() {
        let prompt = prompt();
        let little = &prompt[..9];
        assert_eq!(
            place(&[slot(little, 9, 5), slot(&[1], 0, 2), slot(&[2], 0, 3)], 0, &prompt),
            slot_only(1)
        );
        assert_eq!(place(&[slot(little, 9, 5), slot(&[], 0, 0)], 0, &prompt), slot_only(1));
        assert_eq!(place(&[None, slot(little, 9, 5)], 0, &prompt), slot_only(1));
        // One that is not to use what is there.
        assert_eq!(place(&[slot(&prompt, 0, 5), slot(&prompt, 0, 2)], 0, &[]), slot_only(1));
        assert_eq!(place(&[None, None], 50, &prompt), None);
        assert_eq!(place(&[], 0, &prompt), None);
    }

    #[test]
    fn what_is_kept_is_brought_back_where_it_is_better() {
        let prompt = prompt();
        let half = &prompt[..50];
        let slots = [slot(half, 50, 9), slot(&[3], 0, 4)];
        assert_eq!(place(&slots, 65, &prompt), slot_only(0), "not worth it");
        assert_eq!(place(&slots, 66, &prompt), Some(Place { slot: 1, takes_kept: true }));
        // The slot that has it, too, but for its rings, need not be filled anew.
        let lost = [slot(&prompt[..80], 0, 9), slot(&[3], 0, 4)];
        assert_eq!(place(&lost, 66, &prompt), Some(Place { slot: 0, takes_kept: true }));
        assert_eq!(place(&[None, slots[0]], 90, &prompt), Some(Place { slot: 1, takes_kept: true }));
    }

    #[test]
    fn what_another_conversation_displaces_is_kept() {
        assert!(is_displaced(100, 60, 0));
        assert!(is_displaced(100, 60, 40), "a system prompt that both have");
        assert!(!is_displaced(100, 60, 60), "its next turn");
        assert!(!is_displaced(100, 60, 50), "the same, with another opening of the reply");
        assert!(!is_displaced(10, 10, 0), "too little");
        assert!(!is_displaced(0, 0, 0));
        assert!(!is_displaced(100, 120, 90), "too little is lost");
    }

    #[test]
    fn the_longest_unused_leave_first_and_held_ones_stay() {
        let kept = |bytes, used, is_held| Kept { bytes, used, is_held };
        let all = [kept(10, 3, false), kept(20, 1, false), kept(30, 2, false)];
        assert_eq!(victims(&all, 0, 60), Some(vec![]));
        assert_eq!(victims(&all, 1, 60), Some(vec![1]));
        assert_eq!(victims(&all, 21, 60), Some(vec![1, 2]));
        assert_eq!(victims(&all, 60, 60), Some(vec![1, 2, 0]));
        assert_eq!(victims(&all, 61, 60), None, "nobody leaves for what does not fit");
        let held = [kept(10, 3, false), kept(20, 1, true), kept(30, 2, false)];
        assert_eq!(victims(&held, 20, 60), Some(vec![2]));
        assert_eq!(victims(&held, 41, 60), None);
        assert_eq!(victims(&[], u64::MAX, u64::MAX), Some(vec![]));
    }

    #[test]
    fn cuts_are_wanted_where_conversations_part() {
        let mut prompt: Vec<TokenId> = (100..200).collect();
        prompt[30] = 5;
        prompt[60] = 5;
        let at = |position, slack| Wanted { position, slack };
        assert_eq!(wanted_cuts(&prompt, Some(5), 0), [at(31, 0), at(100, PROMPT_SLACK)]);
        assert_eq!(wanted_cuts(&prompt, Some(5), 70), [at(31, 0), at(70, 0), at(100, PROMPT_SLACK)]);
        assert_eq!(wanted_cuts(&prompt, Some(4), 31), [at(31, 0), at(100, PROMPT_SLACK)]);
        assert_eq!(wanted_cuts(&prompt[..20], None, 3), []);
    }

    #[test]
    fn the_size_is_a_share_of_what_there_is() {
        assert_eq!(sensible_bytes(None, None), 0);
        assert_eq!(sensible_bytes(Some(16 << 30), None), 2 << 30);
        assert_eq!(sensible_bytes(Some(16 << 30), Some(8 << 30)), 512 << 20);
        assert_eq!(sensible_bytes(Some(512 << 30), None), 4 << 30);
    }
}
