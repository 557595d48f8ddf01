//! The HTTP server of flint-rt: OpenAI's and Anthropic's interfaces over one engine.
//!
//! The way of a request, and the folders in its order:
//!
//! ```text
//! http      socket -> head and body, within limits -> key, Host, origin
//!    |
//! wire      JSON -> checked fields -> messages          (pure: no socket, no model, no clock)
//!    |
//! chat      messages -> the prompt's token ids          (pure)
//!    v
//! engine    bounded queue -> one thread, which drives the engine: slots in turn, a step each -> pieces of text
//!    |
//! wire      pieces -> events, or one answer             (pure)
//!    v
//! http      -> socket
//! ```
//!
//! - Owns: the sockets, the queue, the engine's thread. In: [`ServeOptions`], and a way to open an engine. Out: answers, until it is
//!   told to stop.
//! - Async code is in `http` alone. The engine's thread is an ordinary one and waits for no client.
//! - Invariants: whatever one request holds, it ends only itself; everything that can wait is bounded (`limits`).

#![forbid(unsafe_code)]

mod chat;
mod engine;
mod http;
mod limits;
mod metrics;
mod random;
mod run;
mod wire;

#[cfg(any(test, feature = "stub"))]
pub mod stub;

pub use chat::form::FormChoice;
pub use engine::backend::{Backend, Counters, Facts, Feed, Outputs};
pub use engine::prefix_store::PrefixOptions;
pub use engine::prefix_store::policy::sensible_bytes;
pub use engine::shared::Loading;
pub use http::door::Origins;
pub use http::listener::Listen;
pub use run::{Moment, ServeError, ServeOptions, run};
pub use wire::model::Reasoning;
pub use wire::params::Defaults;
