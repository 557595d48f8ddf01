//! The chat form of Flint: messages to a prompt, and a reply to reasoning and content.
//!
//! Owns: the form itself, written here rather than run from the model file's template, so that the form's own markers
//! and the callers' text stay apart. The text that [`Prompt::render`] gives equals what the template gives.
//! In: messages; generated ids. Out: spans and their ids; events of a reply; which ids end it.
//!
//! # What is text and what is a marker
//! A prompt is a list of spans: [`PromptSpan::Control`], a marker that the form adds, and [`PromptSpan::Text`], what
//! a message says. Each span is tokenised by itself, and only control spans yield control ids. So
//! `<|user|>` in an earlier reply, or `<tool_response>` in a tool's text, stays text, although the template leaves it
//! unescaped and a parse of the rendered prompt would take it for a marker. (The role markers in system, developer,
//! user and tool text are also escaped, and `<think>` and `</think>` deleted, because the model was trained on that.)
//!
//! One spelling in a message is structure, because the form defines it so: a reply may bring its thought within its
//! `content`, closed by `</think>`. What precedes the last `</think>` is the thought, and every `</think>` found there is
//! a delimiter of the form, as in the template. A `reasoning_content` has no such structure.
//!
//! # Reuse of what is computed
//! A reply whose text is given back as it was streamed (reasoning and content apart, both trimmed) renders to the
//! same spans in the next prompt, and its ids are the same as the generated ones wherever the model wrote its text in
//! the tokenizer's own way. Where it did not, or where trimming removed white space, the prompts part at that token.
//!
//! # Thinking on and off
//! The maker's template has no switch: the model opens a thought or does not. [`Thinking::On`] opens one in its place,
//! by a `<think>` at the end of the prompt. [`Thinking::Off`] is made by an empty thought that is already closed,
//! `<think></think>`, so that the reply begins where content begins. The model was not trained on either; `Auto` is
//! the form as it was trained.

mod message;
mod prompt;
mod reply;
mod stop;

pub use message::{Message, Role};
pub use prompt::{Marker, Prompt, PromptSpan, Thinking, check_markers};
pub use reply::{ReplyEvent, ReplySplitter};
pub use stop::{Stop, StopTokens};
