//! The engine's side: a queue, one thread, slots.
//!
//! - Owns: the one thread that drives the engine, and all that waits for it.
//! - In: [`job::Generation`]s, checked. Out: [`job::Event`]s, over a channel for each.
//! - Invariants: everything between the two sides is bounded; neither waits for the other with a lock held.

pub(crate) mod backend;
pub(crate) mod board;
pub(crate) mod constraint;
pub(crate) mod grammar;
pub(crate) mod job;
pub(crate) mod log;
pub(crate) mod prefix_store;
pub(crate) mod queue;
pub(crate) mod reply;
pub(crate) mod schema;
pub(crate) mod shared;
pub(crate) mod stop_strings;
pub(crate) mod turn;
pub(crate) mod worker;
