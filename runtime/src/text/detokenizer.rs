//! Token ids to text as they come, in whole characters.
//!
//! In: one id after the other. Out: the text that is certain by then. The texts joined, with what
//! [`Detokenizer::finish`] gives, equal [`Tokenizer::decode`](super::Tokenizer::decode) of all ids.
//!
//! A token's bytes may end inside a character. The beginning of a character (at most three bytes) is held back until it
//! is complete, until a byte shows that it never will be, or until the end; only then does it become U+FFFD, once.

use super::tokenizer::Tokenizer;
use crate::base::ids::TokenId;

/// A streaming decoder of one reply.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    /// The beginning of a character, at most three bytes between calls.
    held: Vec<u8>,
}

impl Detokenizer {
    /// A decoder at the beginning of a text.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self { tokenizer: tokenizer.clone(), held: Vec::with_capacity(256) }
    }

    /// Takes the next token, and gives the characters that it completes; often none. An id outside the vocabulary adds
    /// nothing.
    pub fn push(&mut self, id: TokenId) -> String {
        let mut text = String::new();
        self.push_to(id, &mut text);
        text
    }

    /// As [`Self::push`], behind what `text` holds: whoever uses a text again takes no memory a token.
    pub fn push_to(&mut self, id: TokenId, text: &mut String) {
        let Some(bytes) = self.tokenizer.token_bytes(id) else { return };
        self.held.extend_from_slice(bytes);
        let held = complete_characters(&self.held, text);
        let given = self.held.len() - held;
        self.held.drain(..given);
    }

    /// Ends the text: a character that was begun becomes one U+FFFD. The decoder can then begin another text.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }

    /// Whether the beginning of a character is held back.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }
}

/// Adds the text of `bytes` with each invalid part as U+FFFD, and gives how many bytes at the end begin a character that more
/// bytes may complete.
fn complete_characters(bytes: &[u8], text: &mut String) -> usize {
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        let invalid = chunk.invalid();
        if chunks.peek().is_none() && is_character_beginning(invalid) {
            return invalid.len();
        }
        if !invalid.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    0
}

/// Whether `bytes` could become a character if more came.
fn is_character_beginning(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_held_and_faults_are_not() {
        let complete = |bytes: &[u8]| {
            let mut text = String::new();
            let held = complete_characters(bytes, &mut text);
            (text, held)
        };
        assert_eq!(complete("aé".as_bytes()), ("aé".to_owned(), 0));
        assert_eq!(complete(b"a\xf0\x9f\x98"), ("a".to_owned(), 3));
        assert_eq!(complete(b"\xff\xc3"), ("\u{fffd}".to_owned(), 1));
        assert_eq!(complete(b"\xf0\x9fa"), ("\u{fffd}a".to_owned(), 0));
        assert_eq!(complete(b"\xed\xa0"), ("\u{fffd}\u{fffd}".to_owned(), 0));
    }
}
