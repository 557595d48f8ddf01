//! What can be wrong with sampling options, or with logits.

use crate::base::ids::TokenId;

/// An option outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// A number outside its range, NaN included.
    #[error("{option} is {found}, wanted {wanted}")]
    OutOfRange {
        /// The option's name.
        option: &'static str,
        /// What it is.
        found: f32,
        /// Its range in words.
        wanted: &'static str,
    },
    /// A bias for a token that does not exist.
    #[error("logit_bias names token {id}, but the vocabulary has {vocabulary} tokens")]
    BiasId {
        /// The id.
        id: TokenId,
        /// Tokens of the vocabulary.
        vocabulary: u32,
    },
    /// A bias that is no number of logits.
    #[error(
        "logit_bias of token {id} is {found}, wanted a finite number, or minus infinity to forbid the token"
    )]
    Bias {
        /// The id.
        id: TokenId,
        /// The bias.
        found: f32,
    },
}

/// Why no token came out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The model computed something that is no number.
    #[error("the logit of token {id} is {found}: the computation or the weights are damaged")]
    NotFinite {
        /// The token.
        id: TokenId,
        /// Its logit.
        found: f32,
    },
    /// A row of another length than the vocabulary.
    #[error("{found} logits for a vocabulary of {wanted} tokens")]
    WrongLength {
        /// Logits given.
        found: usize,
        /// Tokens of the vocabulary.
        wanted: u32,
    },
    /// Every token is forbidden.
    #[error("logit_bias forbids every token")]
    NothingAllowed,
    /// An id outside the row of logits.
    #[error("token {id} is outside a row of {vocabulary} logits")]
    UnknownId {
        /// The id.
        id: TokenId,
        /// Logits of the row.
        vocabulary: usize,
    },
}
