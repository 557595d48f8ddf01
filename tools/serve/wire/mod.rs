//! The wire formats: what requests say and answers look like. Pure: no socket, no model, no clock.
//!
//! - In: JSON of a body, the model's facts. Out: checked generations, and an answer that writes what becomes of them.
//! - A file for each interface; what they share is in `fields`, `params`, `messages`, `render` and `error`.

pub(crate) mod anthropic;
pub(crate) mod calls;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod messages;
pub(crate) mod model;
pub(crate) mod native;
pub(crate) mod params;
pub(crate) mod render;
pub(crate) mod responses;
