//! Speculation: several tokens of one conversation in a step, where the conversation repeats itself.
//!
//! - Owns: for each session an index of what it holds ([`drafts`]), and what the last step computed ahead of its end ([`feed`]); for the
//!   engine a controller ([`control`]) and counters.
//! - In: the next token. Out: what it gives, as [`crate::engine::Engine::feed_token`] gives it, with one step for several tokens where
//!   drafts of them were right.
//! - Invariants: never a token that would not have been chosen. A row with a draft has the bits that it would have alone, as it is summed
//!   as it would be alone and sees the keys that it would see; and it counts only when the caller's own choice is that draft. A session
//!   holds what was chosen: rows of wrong drafts lie behind its end, where nothing looks before they are overwritten, and within what a
//!   ring ([`crate::model::kv_cache`]) has beyond its window.

pub mod control;

pub mod drafts;

pub mod feed;

pub use control::{DRAFTS_MAX, SpeculateMode};
pub use feed::SpeculateStats;
