//! The GGUF reader and the numbers of a Flint model: what is read is right, what is wrong is refused by name, and
//! nothing that a file can say makes the reader panic, hang or take memory.

#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

#[path = "support/tiny_gguf.rs"]
mod tiny_gguf;

#[path = "gguf/support.rs"]
mod support;

#[path = "gguf/format.rs"]
mod format;

#[path = "gguf/tensors.rs"]
mod tensors;

#[path = "gguf/hostile.rs"]
mod hostile;

#[path = "gguf/properties.rs"]
mod properties;

#[path = "gguf/config.rs"]
mod config;
