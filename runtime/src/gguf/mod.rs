//! Station `gguf`: reads the header of a GGUF file, of which it believes nothing.
//!
//! Owns: nothing that lives on; a [`Gguf`] is plain data. In: a path, or bytes of the file's beginning.
//! Out: typed [`Metadata`], the [`TensorTable`] with the absolute byte range of each tensor, and the header verbatim.
//! Tensor data is never read here.
//!
//! Invariants of every [`Gguf`] that this station hands out:
//! - each tensor lies inside the file, at a multiple of the alignment, and shares no byte with another;
//! - no key and no tensor name stands twice; no dimension is zero; rows are whole blocks;
//! - no count was believed before it was compared with the bytes that are left, so memory and time stay in
//!   proportion to the header, whatever it claims.

mod error;
mod header;
mod kind;
mod metadata;
mod source;
mod tensors;
mod value;

pub use error::GgufError;
pub use header::{Gguf, Parsed};
pub use kind::TensorKind;
pub use metadata::Metadata;
pub use tensors::{Tensor, TensorTable};
pub use value::{Array, StringArray, Value};
