//! draft
mod chat;
mod engine;
mod limits;
mod metrics;
mod random;
#[cfg(any(test, feature = "stub"))]
pub mod stub;
mod wire;
pub use engine::backend::{Backend, Counters, Facts};
pub use engine::shared::Loading;
pub use wire::params::Defaults;
