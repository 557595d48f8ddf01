//! A reply taken apart while it is generated: thought and content, told apart by the ids of `<think>` and `</think>`.
//!
//! In: generated ids, without the stop token. Out: events with text in whole characters.
//!
//! The delimiters themselves are not shown. A `</think>` outside a thought is swallowed, for what came before it has
//! been shown as content already; a `<think>` after content begins another thought.

use super::prompt::{Marker, Prompt};
use crate::base::ids::TokenId;
use crate::text::{Detokenizer, TextError, Tokenizer};

/// Text of a reply, never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyEvent {
    /// Of the thought.
    Reasoning(String),
    /// Of the reply itself.
    Content(String),
}

/// Splits one reply.
#[derive(Debug, Clone)]
pub struct ReplySplitter {
    detokenizer: Detokenizer,
    think_open: TokenId,
    think_close: TokenId,
    is_thinking: bool,
    reasoning_tokens: u32,
}

impl ReplySplitter {
    /// A splitter for the reply to `prompt`, which begins within a thought when the prompt opened one.
    ///
    /// # Errors
    /// When the vocabulary has no thought delimiters.
    pub fn new(tokenizer: &Tokenizer, prompt: &Prompt) -> Result<Self, TextError> {
        Self::starting(tokenizer, prompt.opens_thought())
    }

    /// A splitter for a reply to a prompt that was made otherwise: `is_thinking` says whether it begins within a thought.
    ///
    /// # Errors
    /// When the vocabulary has no thought delimiters.
    pub fn starting(tokenizer: &Tokenizer, is_thinking: bool) -> Result<Self, TextError> {
        Ok(Self {
            detokenizer: Detokenizer::new(tokenizer),
            think_open: Marker::ThinkOpen.id(tokenizer)?,
            think_close: Marker::ThinkClose.id(tokenizer)?,
            is_thinking,
            reasoning_tokens: 0,
        })
    }

    /// Takes the next id, and gives the text that it completes. A delimiter gives the rest of the text before it, if a
    /// character was begun there.
    pub fn push(&mut self, id: TokenId) -> Option<ReplyEvent> {
        let is_delimiter = id == self.think_open || id == self.think_close;
        if self.is_thinking || id == self.think_open {
            self.reasoning_tokens = self.reasoning_tokens.saturating_add(1);
        }
        if !is_delimiter {
            let text = self.detokenizer.push(id);
            return self.event(text);
        }
        let event = self.finish();
        self.is_thinking = id == self.think_open;
        event
    }

    /// Ends the reply: a character that was begun becomes one U+FFFD.
    pub fn finish(&mut self) -> Option<ReplyEvent> {
        let text = self.detokenizer.finish();
        self.event(text)
    }

    /// Whether the reply is within a thought.
    pub fn is_thinking(&self) -> bool {
        self.is_thinking
    }

    /// Generated ids of thoughts so far, with their delimiters.
    pub fn reasoning_tokens(&self) -> u32 {
        self.reasoning_tokens
    }

    fn event(&self, text: String) -> Option<ReplyEvent> {
        match (text.is_empty(), self.is_thinking) {
            (true, _) => None,
            (false, true) => Some(ReplyEvent::Reasoning(text)),
            (false, false) => Some(ReplyEvent::Content(text)),
        }
    }
}
