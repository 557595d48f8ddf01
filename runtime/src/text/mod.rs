//! Bytes to tokens and back: the byte-level BPE tokenizer of Flint, its streaming detokenizer, and the chat form.
//!
//! Owns: the vocabulary, the merge table and the split expressions of one model; no file, no device, no clock.
//! In: the vocabulary as plain data (what the model file's header says), text, messages.
//! Out: token ids; text as complete UTF-8 characters; the spans of a chat prompt.
//!
//! Invariants:
//! - Control ids come from the form's own spans or from a caller who asked for [`Specials::Parse`], never from the
//!   text of a message: a rendered prompt is not parsed again.
//! - `decode(encode(text)) == text` for every text, with markers parsed or not.
//! - Time grows linearly with the text and stack use is constant, whatever the text (the merge of one unbroken run of
//!   n bytes takes n log n at worst).
//! - A streamed character is never split, and never shown as U+FFFD while it may still be completed.

pub mod chat;

mod byte_alphabet;
mod detokenizer;
mod error;
mod merge;
mod pair_hash;
mod splits;
mod tokenizer;
mod vocabulary;

pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use tokenizer::{Specials, Tokenizer};
pub use vocabulary::{TokenKind, Vocabulary};
