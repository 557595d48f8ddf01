//! What the next step holds. Pure.
//!
//! Every slot that has a next token gets it in every step, so prompts delay replies by the pieces that ride beside their tokens,
//! and by nothing else. Alone, prompts get whole chunks, which cost least a token; beside replies, pieces as long as
//! [`PieceLength`] finds. Prompts take turns.

use std::time::Duration;

use crate::limits::{PIECE_FACTOR, PIECE_ROWS_FIRST, PIECE_ROWS_MIN, PIECE_TIME};

/// What a busy slot waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// The step of its next token.
    Token,
    /// The steps of this many tokens of its prompt.
    Prompt(u32),
}

/// How many tokens of a slot are in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// The slot.
    pub(crate) slot: usize,
    /// Its tokens.
    pub(crate) rows: u32,
}

/// What a step can hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Tokens.
    pub(crate) rows: u32,
    /// Conversations.
    pub(crate) sequences: usize,
}

/// Whose turn it is, and how long pieces of prompts are.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The slot with which the next look for tokens begins.
    token_first: usize,
    /// The same for prompts.
    prompt_first: usize,
    /// Whether the last step had a piece of a prompt.
    had_prompt: bool,
    pub(crate) piece: PieceLength,
}

impl Turns {
    /// The next step of `slots`, each with what it waits for, by ascending slot; empty where no slot waits.
    pub(crate) fn plan(&mut self, slots: &[Option<Waits>], room: Room) -> Vec<Share> {
        let from = |first: usize| (0..slots.len()).map(move |offset| (first + offset) % slots.len());
        let waits_for_token = |&slot: &usize| slots[slot] == Some(Waits::Token);
        let prompt = |slot: usize| match slots[slot] {
            Some(Waits::Prompt(left)) => Some((slot, left)),
            _ => None,
        };
        let has_prompt = slots.iter().any(|slot| matches!(slot, Some(Waits::Prompt(_))));
        let has_token = slots.contains(&Some(Waits::Token));
        let most = room.sequences.min(room.rows as usize);
        // One place is a prompt's; where a step has only one, by turns.
        let tokens_max = match (has_prompt, has_token) {
            (true, true) if most < 2 => usize::from(self.had_prompt),
            (true, _) => most - 1,
            (false, _) => most,
        };
        let mut shares: Vec<Share> = from(self.token_first)
            .filter(waits_for_token)
            .take(tokens_max)
            .map(|slot| Share { slot, rows: 1 })
            .collect();
        if let Some(last) = shares.last() {
            self.token_first = last.slot + 1;
        }
        let beside = u32::try_from(shares.len()).unwrap_or(u32::MAX);
        let mut left = room.rows - beside;
        if beside > 0 {
            left = left.min(self.piece.rows());
        }
        self.had_prompt = false;
        for (slot, wanted) in from(self.prompt_first).filter_map(prompt) {
            let rows = piece_of(wanted, left);
            if shares.len() == most || rows == 0 || (rows == 1 && wanted > 1 && self.had_prompt) {
                break;
            }
            self.had_prompt = true;
            shares.push(Share { slot, rows });
            left -= rows;
            self.prompt_first = slot + 1;
        }
        shares.sort_by_key(|share| share.slot);
        shares
    }
}

/// How many of `wanted` tokens to take where there is room for `room`: not so that one is left over, because a single token is
/// summed in an order of its own on some devices.
fn piece_of(wanted: u32, room: u32) -> u32 {
    let rows = wanted.min(room);
    if wanted - rows == 1 && rows > 2 { rows - 1 } else { rows }
}

/// How long a piece of a prompt is that rides beside tokens: doubled while its steps are quick beside what they may take, halved
/// when they take longer.
#[derive(Debug)]
pub(crate) struct PieceLength {
    rows: u32,
    /// A step of tokens alone, averaged.
    token_step: Option<Duration>,
}

impl Default for PieceLength {
    fn default() -> Self {
        Self { rows: PIECE_ROWS_FIRST, token_step: None }
    }
}

impl PieceLength {
    /// Tokens of the next piece at most.
    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    /// A step of so many next tokens and so many tokens of prompts took so long.
    pub(crate) fn note(&mut self, tokens: u32, prompt_rows: u32, took: Duration) {
        if prompt_rows == 0 {
            self.token_step = Some(self.token_step.map_or(took, |before| (before * 3 + took) / 4));
            return;
        }
        if tokens == 0 {
            return;
        }
        let allowed = PIECE_TIME.max(self.token_step.unwrap_or_default() * PIECE_FACTOR);
        if took > allowed {
            self.rows = (self.rows / 2).max(PIECE_ROWS_MIN);
        } else if took * 2 < allowed && prompt_rows + 1 >= self.rows {
            self.rows = self.rows.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOM: Room = Room { rows: 512, sequences: 32 };

    fn share(slot: usize, rows: u32) -> Share {
        Share { slot, rows }
    }

    #[test]
    fn every_token_is_in_the_step_and_one_piece_beside() {
        let mut turns = Turns::default();
        let slots = [Some(Waits::Token), Some(Waits::Prompt(3000)), None, Some(Waits::Token)];
        let wanted = [share(0, 1), share(1, PIECE_ROWS_FIRST), share(3, 1)];
        assert_eq!(turns.plan(&slots, ROOM), wanted);
        // Alone a prompt gets the chunk.
        assert_eq!(turns.plan(&[Some(Waits::Prompt(3000)), None], ROOM), [share(0, 512)]);
        assert_eq!(turns.plan(&[None, None], ROOM), []);
        assert_eq!(turns.plan(&[], ROOM), []);
    }

    #[test]
    fn prompts_take_turns_and_short_ones_share() {
        let mut turns = Turns::default();
        let slots = [Some(Waits::Token), Some(Waits::Prompt(3000)), Some(Waits::Prompt(2000))];
        let piece = PIECE_ROWS_FIRST;
        assert_eq!(turns.plan(&slots, ROOM), [share(0, 1), share(1, piece)]);
        assert_eq!(turns.plan(&slots, ROOM), [share(0, 1), share(2, piece)]);
        assert_eq!(turns.plan(&slots, ROOM), [share(0, 1), share(1, piece)]);
        let slots = [Some(Waits::Prompt(10)), Some(Waits::Prompt(20)), Some(Waits::Prompt(9000))];
        assert_eq!(Turns::default().plan(&slots, ROOM), [share(0, 10), share(1, 20), share(2, 482)]);
    }

    #[test]
    fn no_single_token_is_left_over() {
        assert_eq!([piece_of(513, 512), piece_of(512, 512), piece_of(514, 512)], [511, 512, 512]);
        assert_eq!([piece_of(1, 512), piece_of(3, 2), piece_of(2, 1)], [1, 2, 1]);
    }

    #[test]
    fn a_piece_is_as_long_as_others_can_bear() {
        let mut piece = PieceLength::default();
        let ms = Duration::from_millis;
        for _ in 0..9 {
            piece.note(3, piece.rows(), ms(20));
        }
        assert_eq!(piece.rows(), PIECE_ROWS_FIRST << 9, "quick steps carry long pieces");
        for _ in 0..30 {
            piece.note(3, piece.rows(), ms(9000));
        }
        assert_eq!(piece.rows(), PIECE_ROWS_MIN);
        // Where tokens take long by themselves, a piece may take long, too.
        piece.note(3, 0, ms(4000));
        piece.note(3, piece.rows(), ms(7000));
        assert_eq!(piece.rows(), 2 * PIECE_ROWS_MIN);
        // A prompt's last, short piece says nothing, and neither does a prompt alone.
        piece.note(3, 1, ms(10));
        piece.note(0, 512, ms(10));
        assert_eq!(piece.rows(), 2 * PIECE_ROWS_MIN);
    }

    fn waits() -> impl Strategy<Value = Option<Waits>> {
        prop_oneof![
            Just(None),
            Just(Some(Waits::Token)),
            (1_u32..3000).prop_map(|left| Some(Waits::Prompt(left)))
        ]
    }

    proptest! {
        #[test]
        fn a_step_fits_and_nobody_is_forgotten(
            mut slots in prop::collection::vec(waits(), 1..40),
            rows in 1_u32..600,
            sequences in 1_usize..33,
        ) {
            let mut turns = Turns::default();
            let room = Room { rows, sequences };
            let mut quiet = vec![0; slots.len()];
            for _ in 0..200 {
                let shares = turns.plan(&slots, room);
                prop_assert!(shares.len() <= sequences);
                prop_assert!(shares.iter().map(|share| share.rows).sum::<u32>() <= rows);
                prop_assert!(shares.is_sorted_by(|a, b| a.slot < b.slot));
                prop_assert_eq!(shares.is_empty(), slots.iter().all(Option::is_none));
                quiet.iter_mut().for_each(|steps| *steps += 1);
                for &Share { slot, rows } in &shares {
                    prop_assert!(rows > 0);
                    quiet[slot] = 0;
                    match &mut slots[slot] {
                        Some(Waits::Prompt(left)) => {
                            prop_assert!(rows <= *left);
                            *left -= rows;
                            if *left == 0 {
                                slots[slot] = Some(Waits::Token);
                            }
                        }
                        other => prop_assert!(*other == Some(Waits::Token) && rows == 1),
                    }
                }
                let longest = 2 * slots.len() + 2;
                let is_forgotten = |(waits, steps): (&Option<Waits>, &usize)| waits.is_some() && *steps > longest;
                prop_assert!(!slots.iter().zip(&quiet).any(is_forgotten), "{:?} {:?}", slots, quiet);
            }
        }
    }
}
