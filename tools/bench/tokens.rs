//! The tokens that a bench feeds: an endless row, of which each repetition takes its part.
//!
//! Random ids, as llama-bench feeds them, spread picks wider than a text does; `--text` takes those of a text.

use std::path::Path;

use flint_rt::base::ids::TokenId;
use flint_rt::base::split_mix::mix;
use flint_rt::text::{Specials, Tokenizer};

use crate::exit::{Failure, Outcome};
use crate::input::text_of_file;

/// Token after token, without an end.
pub(super) enum Tokens {
    Random { seed: u64, vocabulary: u32 },
    Text { ids: Vec<TokenId>, shown: String },
}

impl Tokens {
    /// Those of `text`, or random ones.
    pub(super) fn new(
        text: Option<&Path>,
        seed: u64,
        tokenizer: &Tokenizer,
        vocabulary: u32,
    ) -> Outcome<Self> {
        let Some(path) = text else { return Ok(Self::Random { seed, vocabulary }) };
        let ids = tokenizer.encode(&text_of_file(path)?, Specials::Plain);
        if ids.is_empty() {
            return Err(Failure::usage(format!("{}: the text has no token", path.display())));
        }
        Ok(Self::Text { ids, shown: path.display().to_string() })
    }

    /// `count` of them from `first` on.
    pub(super) fn part(&self, first: u64, count: u64) -> Vec<TokenId> {
        (first..first + count)
            .map(|index| match self {
                Self::Random { seed, vocabulary } => {
                    let id = mix(seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
                        % u64::from(*vocabulary);
                    u32::try_from(id).expect("invariant: below a u32")
                }
                Self::Text { ids, .. } => {
                    let at = index % ids.len() as u64;
                    ids[usize::try_from(at).expect("invariant: below a usize")]
                }
            })
            .collect()
    }

    /// For reports.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Random { seed, .. } => format!("random, seed {seed}"),
            Self::Text { shown, .. } => format!("text {shown}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_the_same_wherever_it_is_taken_from() {
        let random = Tokens::Random { seed: 7, vocabulary: 1000 };
        let long = random.part(10, 50);
        assert_eq!(long[5..20], random.part(15, 15));
        assert!(long.iter().all(|&id| id < 1000));
        assert_ne!(long, Tokens::Random { seed: 8, vocabulary: 1000 }.part(10, 50));
        let text = Tokens::Text { ids: vec![5, 6, 7], shown: String::new() };
        assert_eq!(text.part(2, 5), [7, 5, 6, 7, 5]);
    }

    #[test]
    fn splitmix_gives_its_published_values() {
        // The first two of seed 1234567.
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(mix(1_234_567_u64.wrapping_add(0x9e37_79b9_7f4a_7c15)), 3_203_168_211_198_807_973);
    }
}
