//! The numbers of a Flint model, from its GGUF, each checked against what this runtime can run and against the others.
//!
//! Owns: nothing. In: a [`crate::gguf::Gguf`]. Out: a [`FlintConfig`], or a [`ConfigError`] that names the key or the
//! tensor, what it holds and what was wanted.
//!
//! Invariants of every [`FlintConfig`] handed out:
//! - every tensor that the graph needs is there with the type and the shape that the numbers call for, and no other
//!   tensor is: one that nobody reads would have changed the result in the program that wrote it;
//! - no key asks for arithmetic that this runtime does not do;
//! - matrices have columns in multiples of 32 (a Q4_1 block), heads are whole and at most 256 wide, every count is
//!   within its limit.

mod config;
mod error;
mod keys;
mod refused;
mod tensor_list;

pub use config::{FlintConfig, LayerKind};
pub use error::ConfigError;
