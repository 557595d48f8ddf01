//! The pre-tokenizer: three splits, each applied to every piece that the one before it left.
//!
//! In: text. Out: pieces, which joined give the text again. Pure.
//!
//! Each split is "isolated": its matches and the gaps between them both become pieces, and the next split sees each
//! piece alone, so that no optional prefix and no look-ahead reaches over a piece's border. In order: digits in groups
//! of up to three; runs of Chinese and Japanese script; words, punctuation and white space.
//!
//! The third expression of the model ends in `\s+(?!\S)|\s+`. A look-ahead would send the whole expression to a
//! backtracking engine, whose time and memory a hostile text decides. So the expression here ends in `\s+` alone, which
//! `fancy-regex` hands whole to the linear engine of the `regex` crate, and the look-ahead's effect is computed: white
//! space of more than one character that does not end its piece gives its last character back to what follows. A
//! property test holds this against the literal expression.

use fancy_regex::Regex;

use super::error::TextError;

/// Digits from the left in groups of up to three.
const DIGITS: &str = r"\p{N}{1,3}";

/// Runs of Han, Hiragana and Katakana.
const SCRIPTS: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";

/// Words with an optional character before and an optional English contraction after; punctuation and symbols with an
/// optional space before and newlines after; white space up to its last newline; white space.
const WORDS: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?",
    r"| ?[\p{P}\p{S}]+[\r\n]*",
    r"|\s*[\r\n]+",
    r"|\s+",
);

/// The compiled splits.
#[derive(Debug)]
pub(super) struct Splits {
    digits: Regex,
    scripts: Regex,
    words: Regex,
}

impl Splits {
    /// Compiles the expressions.
    pub(super) fn new() -> Result<Self, TextError> {
        Ok(Self { digits: compile(DIGITS)?, scripts: compile(SCRIPTS)?, words: compile(WORDS)? })
    }

    /// Calls `each` with the pieces of `text`, in order; none is empty.
    pub(super) fn for_each_piece<'t>(&self, text: &'t str, mut each: impl FnMut(&'t str)) {
        isolate(&self.digits, text, match_len, |piece| {
            isolate(&self.scripts, piece, match_len, |piece| {
                isolate(&self.words, piece, word_len, &mut each);
            });
        });
    }
}

fn compile(pattern: &'static str) -> Result<Regex, TextError> {
    Regex::new(pattern).map_err(|source| TextError::Split { pattern, source: Box::new(source) })
}

/// Calls `each` with the matches of `split` in `text` and with the gaps between them. `keep(found, rest)` says how many
/// bytes of a match to take; the search goes on right after them.
fn isolate<'t>(split: &Regex, text: &'t str, keep: fn(&str, &str) -> usize, mut each: impl FnMut(&'t str)) {
    let mut at = 0;
    while at < text.len() {
        let found = split.find_from_pos(text, at);
        let found = found.expect("invariant: delegated whole, so there is no limit that a search could hit");
        let Some(found) = found else { break };
        if found.start() > at {
            each(&text[at..found.start()]);
        }
        at = found.start() + keep(found.as_str(), &text[found.end()..]);
        each(&text[found.start()..at]);
    }
    if at < text.len() {
        each(&text[at..]);
    }
}

/// The whole match.
fn match_len(found: &str, _rest: &str) -> usize {
    found.len()
}

/// The match, less the white space that the look-ahead would have left to the next piece.
///
/// Only the last alternative ends in white space other than a newline: words end in letters or marks, punctuation in
/// itself or in newlines, and none of those classes holds white space.
fn word_len(found: &str, rest: &str) -> usize {
    let last = found.chars().next_back().filter(|last| last.is_whitespace() && !matches!(last, '\r' | '\n'));
    match last {
        Some(last) if !rest.is_empty() && last.len_utf8() < found.len() => found.len() - last.len_utf8(),
        _ => found.len(),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    static SPLITS: LazyLock<Splits> = LazyLock::new(|| Splits::new().unwrap());

    /// The third expression as the model has it.
    static LITERAL_WORDS: LazyLock<Regex> = LazyLock::new(|| {
        let pattern = WORDS.strip_suffix(r"|\s+").unwrap().to_owned() + r"|\s+(?!\S)|\s+";
        Regex::new(&pattern).unwrap()
    });

    fn pieces(split: &Regex, text: &str, keep: fn(&str, &str) -> usize) -> Vec<String> {
        let mut pieces = Vec::new();
        isolate(split, text, keep, |piece| pieces.push(piece.to_owned()));
        pieces
    }

    /// Characters of every class that the expression tells apart, and some that it does not name.
    fn texts() -> impl Strategy<Value = String> {
        let character = prop_oneof![
            6 => proptest::sample::select(" \t\n\r\u{b}\u{85}\u{a0}\u{2003}\u{2028}\u{3000}\u{feff}\u{1c}".chars().collect::<Vec<_>>()),
            4 => proptest::sample::select("aZéßÆǅʰªあ日ア\u{301}\u{20dd}'’sStTrReEvVmMlLdD".chars().collect::<Vec<_>>()),
            2 => proptest::sample::select(".,;(){}$+=<>|_-^`😀\u{200d}\u{fe0f}\u{1}\u{0}\u{e000}12٣²Ⅷ".chars().collect::<Vec<_>>()),
            1 => any::<char>(),
        ];
        proptest::collection::vec(character, 0..40).prop_map(String::from_iter)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        #[test]
        fn giving_white_space_back_equals_the_look_ahead(text in texts()) {
            prop_assert_eq!(pieces(&SPLITS.words, &text, word_len), pieces(&LITERAL_WORDS, &text, match_len));
        }

        #[test]
        fn pieces_join_to_the_text(text in texts()) {
            let mut joined = String::new();
            SPLITS.for_each_piece(&text, |piece| {
                assert!(!piece.is_empty(), "empty piece");
                joined.push_str(piece);
            });
            prop_assert_eq!(joined, text);
        }
    }

    #[test]
    fn no_expression_needs_the_backtracking_engine() {
        struct Program<'r>(&'r Regex);
        impl fmt::Display for Program<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.debug_print(f)
            }
        }
        let literal = Program(&LITERAL_WORDS).to_string();
        for split in [&SPLITS.digits, &SPLITS.scripts, &SPLITS.words] {
            let program = Program(split).to_string();
            assert!(program.starts_with("wrapped Regex"), "{program}");
        }
        assert!(!literal.starts_with("wrapped Regex"), "the look-ahead is no longer told apart: {literal}");
    }
}
