//! A conversation to a prompt's token ids.
//!
//! - In: messages, as an interface brought them. Out: ids, and whether the reply begins within a thought.
//! - Invariant: no text that a caller sent becomes a control token. The built-in form keeps markers and text apart by itself; what
//!   a template mixes is told apart again by marks ([`guard`]).

pub(crate) mod form;
pub(crate) mod guard;
pub(crate) mod template;
