//! What can go wrong in a step.

use crate::base::ids::TokenId;
use crate::disk::DiskError;
use crate::expert::ExpertError;
use crate::gpu::GpuError;

/// What can go wrong when a model is loaded or stepped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Experts or weights could not be brought in.
    #[error(transparent)]
    Expert(#[from] ExpertError),
    /// A token's row could not be read.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// No room is left for the next token.
    #[error(
        "the context of {context_len} tokens is full: start anew, or open the model with a larger --ctx-size"
    )]
    ContextFull {
        /// Tokens that fit.
        context_len: u32,
    },
    /// A token that the vocabulary does not have.
    #[error("token {token} is not in the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The token.
        token: TokenId,
        /// Tokens that there are.
        vocabulary: u32,
    },
    /// NaN or infinity among the logits.
    #[error(
        "the logits at position {position} are not finite: the file is damaged or the driver computes wrongly; this \
         sequence was reset"
    )]
    NotFinite {
        /// The position.
        position: u32,
    },
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}
