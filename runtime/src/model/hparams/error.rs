//! Why a GGUF is not a Flint that this runtime runs.

use crate::gguf::GgufError;

/// Why a GGUF was refused as a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key is missing or of the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A key holds a value that this runtime cannot run, or that contradicts the rest of the file.
    #[error("key {key} is {found}, wanted {wanted}")]
    Key {
        /// The key.
        key: String,
        /// What it holds, or `missing`.
        found: String,
        /// What it may hold.
        wanted: String,
    },
    /// A tensor of the graph is not there.
    #[error("tensor {tensor} is missing, wanted {wanted}")]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// Its type and dimensions, columns first.
        wanted: String,
    },
    /// A tensor has another type or shape than the numbers call for.
    #[error("tensor {tensor} is {found}, wanted {wanted}")]
    WrongTensor {
        /// The tensor.
        tensor: String,
        /// Its type and dimensions, columns first.
        found: String,
        /// The type and dimensions wanted.
        wanted: String,
    },
    /// A tensor that this runtime would leave unread, and so get other results than the model's maker.
    #[error("tensor {tensor} is {found}, wanted no such tensor: {reason}")]
    UnknownTensor {
        /// The tensor.
        tensor: String,
        /// Its type and dimensions, columns first.
        found: String,
        /// What it is taken for.
        reason: String,
    },
}
