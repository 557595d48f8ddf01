//! Which slot a prompt goes to. Pure.
//!
//! A slot is a conversation of the engine with what its cache holds. Agents send their whole conversation each turn, and
//! other requests between: so a prompt goes where most of its beginning lies already, and where nowhere much of it does, to the
//! slot that was not used for longest.

use flint_rt::base::ids::TokenId;
use flint_rt::engine::session::common_prefix;

/// A slot that is free.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Free<'a> {
    /// What its cache holds.
    pub(crate) tokens: &'a [TokenId],
    /// Larger where it was used later; 0 where never.
    pub(crate) used: u64,
}

/// The least share of a prompt, in percent, that has to lie in a slot for it to be taken for that. Chats share the template's
/// first tokens with each other, which is worth nothing; a system prompt is.
const SIMILARITY_PERCENT_MIN: usize = 10;

/// The index among `slots` of the one to take; none of none.
pub(crate) fn choose(slots: &[Option<Free<'_>>], prompt: &[TokenId]) -> Option<usize> {
    let free = || slots.iter().enumerate().filter_map(|(index, slot)| Some((index, (*slot)?)));
    let alike = free()
        .map(|(index, slot)| (common_prefix(slot.tokens, prompt), slot.used, index))
        .filter(|(common, ..)| *common > 0 && common * 100 >= prompt.len() * SIMILARITY_PERCENT_MIN)
        .max();
    let oldest = || free().min_by_key(|(_, slot)| slot.used).map(|(index, _)| index);
    alike.map(|(.., index)| index).or_else(oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(tokens: &[TokenId], used: u64) -> Option<Free<'_>> {
        Some(Free { tokens, used })
    }

    #[test]
    fn a_prompt_goes_where_its_beginning_lies() {
        let prompt: Vec<TokenId> = (0..100).collect();
        let (half, other) = (&prompt[..50], [7, 8, 9]);
        assert_eq!(choose(&[free(&other, 1), free(half, 9), free(&[], 0)], &prompt), Some(1));
        assert_eq!(choose(&[free(&prompt, 1), free(half, 9)], &prompt), Some(0));
        // Of equally good ones the later used.
        assert_eq!(choose(&[free(half, 1), free(half, 9)], &prompt), Some(1));
    }

    #[test]
    fn a_strange_prompt_takes_the_oldest() {
        let prompt: Vec<TokenId> = (0..100).collect();
        let little = &prompt[..9];
        assert_eq!(choose(&[free(little, 5), free(&[1], 2), free(&[2], 3)], &prompt), Some(1));
        assert_eq!(choose(&[free(little, 5), free(&[], 0)], &prompt), Some(1));
        assert_eq!(choose(&[None, free(little, 5)], &prompt), Some(1));
        // One that is not to use what is there.
        assert_eq!(choose(&[free(&prompt, 5), free(&prompt, 2)], &[]), Some(1));
        assert_eq!(choose(&[None, None], &prompt), None);
        assert_eq!(choose(&[], &prompt), None);
    }
}
