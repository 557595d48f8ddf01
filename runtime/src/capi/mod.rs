//! Station `capi`: the same for C, as `runtime/include/flint_rt.h` says it.
//!
//! - Owns: the table of objects that callers made; the texts of their last faults.
//! - In: calls from C, from any thread. Out: a status each, and answers in memory of the caller.
//! - Invariants: no panic and no abort of ours leaves; no pointer behind a handle is followed; what one call lends is named in
//!   the header, with how long. Functions hold no logic beyond taking arguments apart: the stations above have it. Only
//!   `memory` follows pointers; `pool` takes memory over from the caller.
//!
//! The functions are written for C: from Rust the stations above are the better interface.

mod generate;
mod guard;
mod handles;
mod library;
mod lock;
mod memory;
mod model;
mod pool;
mod sampler;
mod session;
mod status;
mod store;
mod text;
pub mod types;

pub use handles::Handle;
pub use status::Status;

/// The version of the library.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The ABI: `FLINT_RT_ABI_VERSION` of the header. Raised when a program that was built before may no longer work; functions and
/// members at the end of structs may come without that.
pub const ABI_VERSION: u32 = 0;
