//! Messages to the spans of a prompt, and spans to ids.
//!
//! In: messages and the [`Thinking`] option. Out: a [`Prompt`]. Pure.

use super::message::{Message, Role, clean, take_apart};
use crate::base::ids::TokenId;
use crate::text::{Specials, TextError, Tokenizer};

/// A marker of the form: one control token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named by its spelling, in `text`")]
pub enum Marker {
    BeginOfText,
    EndOfText,
    System,
    Developer,
    User,
    Assistant,
    Observation,
    ThinkOpen,
    ThinkClose,
    ToolResponseOpen,
    ToolResponseClose,
}

impl Marker {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::BeginOfText,
        Self::EndOfText,
        Self::System,
        Self::Developer,
        Self::User,
        Self::Assistant,
        Self::Observation,
        Self::ThinkOpen,
        Self::ThinkClose,
        Self::ToolResponseOpen,
        Self::ToolResponseClose,
    ];

    /// Those that are escaped in a message's text.
    pub(super) const ESCAPED: [Self; 7] = [
        Self::BeginOfText,
        Self::EndOfText,
        Self::System,
        Self::Developer,
        Self::User,
        Self::Assistant,
        Self::Observation,
    ];

    /// How it is written.
    pub fn text(self) -> &'static str {
        match self {
            Self::BeginOfText => "<|begin_of_text|>",
            Self::EndOfText => "<|end_of_text|>",
            Self::System => "<|system|>",
            Self::Developer => "<|developer|>",
            Self::User => "<|user|>",
            Self::Assistant => "<|assistant|>",
            Self::Observation => "<|observation|>",
            Self::ThinkOpen => "<think>",
            Self::ThinkClose => "</think>",
            Self::ToolResponseOpen => "<tool_response>",
            Self::ToolResponseClose => "</tool_response>",
        }
    }

    /// Its id in a vocabulary.
    ///
    /// # Errors
    /// When the vocabulary has no such special token.
    pub fn id(self, tokenizer: &Tokenizer) -> Result<TokenId, TextError> {
        tokenizer.special_id(self.text()).ok_or(TextError::MissingMarker { marker: self.text() })
    }
}

/// Checks that a vocabulary has every marker; to be called when a model is opened, so that no prompt fails later.
///
/// # Errors
/// The first marker that it lacks.
pub fn check_markers(tokenizer: &Tokenizer) -> Result<(), TextError> {
    Marker::ALL.into_iter().try_for_each(|marker| marker.id(tokenizer).map(|_| ()))
}

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptSpan {
    /// A marker that the form adds: its control id.
    Control(Marker),
    /// Text, in which nothing is a marker. Never empty, and never beside another text span.
    Text(String),
}

/// Whether the reply begins within a thought; see the front page of [`super`] for how each is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Thinking {
    /// The model decides: the form as it was trained.
    #[default]
    Auto,
    /// The prompt opens a thought.
    On,
    /// The prompt holds an empty thought, already closed.
    Off,
}

/// A prompt in the chat form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prompt {
    /// Its parts, in order.
    pub spans: Vec<PromptSpan>,
}

impl Prompt {
    /// The prompt of a conversation. It ends in `<|assistant|>` and what `thinking` adds; or, when the last message is
    /// the assistant's, within that reply, which the model then continues and `thinking` does not change.
    pub fn new(messages: &[Message], thinking: Thinking) -> Self {
        let mut prompt = Self::default();
        for message in messages {
            prompt.add(message);
        }
        if messages.last().is_none_or(|last| last.role != Role::Assistant) {
            prompt.control(Marker::Assistant);
            match thinking {
                Thinking::Auto => {}
                Thinking::On => prompt.control(Marker::ThinkOpen),
                Thinking::Off => {
                    prompt.control(Marker::ThinkOpen);
                    prompt.control(Marker::ThinkClose);
                }
            }
        }
        prompt
    }

    /// A raw text to continue, as the model was trained on documents: `<|begin_of_text|>` and the text.
    pub fn document(text: &str) -> Self {
        let mut prompt = Self::default();
        prompt.control(Marker::BeginOfText);
        prompt.text(text);
        prompt
    }

    /// Whether the reply begins within a thought.
    pub fn opens_thought(&self) -> bool {
        self.spans.last() == Some(&PromptSpan::Control(Marker::ThinkOpen))
    }

    /// The prompt as one string, for looking; to encode it, give the spans to [`Tokenizer::encode_spans`].
    pub fn render(&self) -> String {
        self.spans
            .iter()
            .map(|span| match span {
                PromptSpan::Control(marker) => marker.text(),
                PromptSpan::Text(text) => text,
            })
            .collect()
    }

    fn add(&mut self, message: &Message) {
        let marker = match message.role {
            Role::System => Marker::System,
            Role::Developer => Marker::Developer,
            Role::User => Marker::User,
            Role::Tool => Marker::Observation,
            Role::Assistant => return self.add_reply(message),
            Role::Unknown => return,
        };
        let text = clean(message.content.as_deref().unwrap_or_default());
        self.control(marker);
        if message.role == Role::Tool {
            self.control(Marker::ToolResponseOpen);
            self.text(&text);
            self.control(Marker::ToolResponseClose);
        } else {
            self.text(&text);
        }
    }

    fn add_reply(&mut self, message: &Message) {
        let reply = take_apart(message);
        self.control(Marker::Assistant);
        if !reply.thought.is_empty() {
            self.control(Marker::ThinkOpen);
            for part in &reply.thought {
                self.text(part);
                self.control(Marker::ThinkClose);
            }
        }
        self.text(&reply.content);
    }

    fn control(&mut self, marker: Marker) {
        self.spans.push(PromptSpan::Control(marker));
    }

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.spans.last_mut() {
            Some(PromptSpan::Text(before)) => before.push_str(text),
            _ => self.spans.push(PromptSpan::Text(text.to_owned())),
        }
    }
}

impl Tokenizer {
    /// The ids of a prompt: each control span its id, each text span as plain text by itself.
    ///
    /// # Errors
    /// When the vocabulary lacks a marker; never after [`check_markers`].
    pub fn encode_spans(&self, spans: &[PromptSpan]) -> Result<Vec<TokenId>, TextError> {
        let mut ids = Vec::new();
        for span in spans {
            match span {
                PromptSpan::Control(marker) => ids.push(marker.id(self)?),
                PromptSpan::Text(text) => ids.append(&mut self.encode(text, Specials::Plain)),
            }
        }
        Ok(ids)
    }
}
