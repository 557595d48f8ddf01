//! A reply while it is made: generated ids to pieces of text, thought and content apart. Pure.
//!
//! In: ids. Out: pieces, never empty and of whole characters, each with the tokens that it completes; and whether a stop
//! string has ended the reply. Stop strings are looked for in the content, not in the thought.

use flint_rt::base::ids::TokenId;
use flint_rt::text::chat::{ReplyEvent, ReplySplitter};
use flint_rt::text::{Detokenizer, TextError, Tokenizer};

use super::stop_strings::StopStrings;

/// A generated token, and what is told of it on request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TokenInfo {
    pub(crate) id: TokenId,
    /// Its log-probability, and the best alternatives with theirs, best first.
    pub(crate) logprobs: Option<(f64, Vec<(TokenId, f64)>)>,
}

/// Which part of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Reasoning,
    Content,
}

/// Text of a reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    pub(crate) part: Part,
    pub(crate) text: String,
    pub(crate) tokens: Vec<TokenInfo>,
}

/// How ids become text.
enum Decoder {
    /// A text that goes on.
    Text(Detokenizer),
    /// An assistant's reply.
    Chat(ReplySplitter),
}

/// One reply.
pub(crate) struct Reply {
    decoder: Decoder,
    stops: StopStrings,
    /// Tokens whose text has not been given yet.
    pending: Vec<TokenInfo>,
}

/// What a reply is to look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Plain text.
    Text,
    /// A thought and what follows it; whether the prompt has opened the thought.
    Chat { is_thinking: bool },
}

impl Reply {
    /// # Errors
    /// When the vocabulary has no thought delimiters.
    pub(crate) fn new(tokenizer: &Tokenizer, shape: Shape, stops: Vec<String>) -> Result<Self, TextError> {
        let decoder = match shape {
            Shape::Text => Decoder::Text(Detokenizer::new(tokenizer)),
            Shape::Chat { is_thinking } => Decoder::Chat(ReplySplitter::starting(tokenizer, is_thinking)?),
        };
        Ok(Self { decoder, stops: StopStrings::new(stops), pending: Vec::new() })
    }

    /// Takes the next token; `give` gets the text that is certain by then.
    pub(crate) fn push(&mut self, token: TokenInfo, give: &mut impl FnMut(Piece)) {
        let id = token.id;
        self.pending.push(token);
        let event = match &mut self.decoder {
            Decoder::Text(detokenizer) => Some(ReplyEvent::Content(detokenizer.push(id))),
            Decoder::Chat(splitter) => splitter.push(id),
        };
        if let Some(event) = event {
            self.take(event, give);
        }
    }

    /// Ends the reply: what was held back is text after all. Tokens without a text of their own are returned.
    pub(crate) fn finish(&mut self, give: &mut impl FnMut(Piece)) -> Vec<TokenInfo> {
        if self.stop_string().is_none() {
            let event = match &mut self.decoder {
                Decoder::Text(detokenizer) => Some(ReplyEvent::Content(detokenizer.finish())),
                Decoder::Chat(splitter) => splitter.finish(),
            };
            if let Some(event) = event {
                self.take(event, give);
            }
            self.release(give);
        }
        std::mem::take(&mut self.pending)
    }

    /// The stop string that has ended it.
    pub(crate) fn stop_string(&self) -> Option<&str> {
        self.stops.found()
    }

    /// Whether it is within a thought.
    pub(crate) fn is_thinking(&self) -> bool {
        matches!(&self.decoder, Decoder::Chat(splitter) if splitter.is_thinking())
    }

    /// Tokens of thoughts so far.
    pub(crate) fn reasoning_tokens(&self) -> u32 {
        match &self.decoder {
            Decoder::Text(_) => 0,
            Decoder::Chat(splitter) => splitter.reasoning_tokens(),
        }
    }

    fn take(&mut self, event: ReplyEvent, give: &mut impl FnMut(Piece)) {
        match event {
            ReplyEvent::Reasoning(text) => {
                // A thought that begins shows that what was held back is no stop string.
                self.release(give);
                self.give(Part::Reasoning, text, give);
            }
            ReplyEvent::Content(text) => {
                let text = self.stops.push(&text);
                self.give(Part::Content, text, give);
            }
        }
    }

    fn release(&mut self, give: &mut impl FnMut(Piece)) {
        let text = self.stops.finish();
        self.give(Part::Content, text, give);
    }

    fn give(&mut self, part: Part, text: String, give: &mut impl FnMut(Piece)) {
        if !text.is_empty() {
            give(Piece { part, text, tokens: std::mem::take(&mut self.pending) });
        }
    }
}

#[cfg(test)]
mod tests {
    use flint_rt::text::Specials;

    use super::*;
    use crate::stub::nano_tokenizer;

    fn run(shape: Shape, stops: &[&str], text: &str) -> (Vec<(Part, String)>, usize, Option<String>) {
        let tokenizer = nano_tokenizer();
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut reply = Reply::new(&tokenizer, shape, stops).unwrap();
        let mut pieces: Vec<(Part, String)> = Vec::new();
        let mut tokens = 0;
        let mut give = |piece: Piece| {
            assert!(!piece.text.is_empty(), "an empty piece");
            tokens += piece.tokens.len();
            match pieces.last_mut() {
                Some((part, text)) if *part == piece.part => text.push_str(&piece.text),
                _ => pieces.push((piece.part, piece.text)),
            }
        };
        for id in tokenizer.encode(text, Specials::Parse) {
            reply.push(TokenInfo { id, logprobs: None }, &mut give);
            if reply.stop_string().is_some() {
                break;
            }
        }
        let tail = reply.finish(&mut give).len();
        let found = reply.stop_string().map(str::to_owned);
        (pieces, tokens + tail, found)
    }

    #[test]
    fn thought_and_content_are_told_apart() {
        let content = |text: &str| (Part::Content, text.to_owned());
        let thought = |text: &str| (Part::Reasoning, text.to_owned());
        let chat = |is_thinking| Shape::Chat { is_thinking };
        assert_eq!(run(chat(false), &[], "<think>a b</think>c d").0, [thought("a b"), content("c d")]);
        assert_eq!(run(chat(true), &[], "a b</think>c d").0, [thought("a b"), content("c d")]);
        assert_eq!(run(Shape::Text, &[], "<think>a").0, [content("<think>a")]);
    }

    #[test]
    fn stops_end_the_content_only_and_no_token_is_lost() {
        let tokenizer = nano_tokenizer();
        let text = "<think>x END y</think>some text END more";
        let (pieces, tokens, found) = run(Shape::Chat { is_thinking: false }, &["END"], text);
        assert_eq!(pieces.last().unwrap(), &(Part::Content, "some text ".to_owned()));
        assert_eq!(found.as_deref(), Some("END"));
        assert!(tokens < tokenizer.encode(text, Specials::Parse).len());
        // Held back to the end, and then given.
        let (pieces, tokens, found) = run(Shape::Text, &["ENDE"], "the END");
        assert_eq!((pieces, found), (vec![(Part::Content, "the END".to_owned())], None));
        assert_eq!(tokens, tokenizer.encode("the END", Specials::Parse).len());
    }

    #[test]
    fn characters_of_several_tokens_stay_whole() {
        let text = "日本 🦀🦀 e\u{301}";
        assert_eq!(run(Shape::Text, &["🦁"], text).0, [(Part::Content, text.to_owned())]);
    }
}
