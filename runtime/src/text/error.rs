//! What can be wrong with a vocabulary, or with ids that a caller brings.

use crate::base::ids::TokenId;

/// Why a vocabulary was refused, or why ids or a form do not fit it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A tokenizer of another kind: it would give other ids.
    #[error("{key} is {found:?}, but only {wanted:?} runs here: take Flint's own file")]
    OtherTokenizer {
        /// The key.
        key: &'static str,
        /// What it says.
        found: String,
        /// What it must say.
        wanted: &'static str,
    },
    /// The token table and the type table differ in length.
    #[error("{tokens} tokens but {kinds} token types: the model file is damaged, fetch it again")]
    LengthMismatch {
        /// Entries of the token table.
        tokens: usize,
        /// Entries of the type table.
        kinds: usize,
    },
    /// More tokens than this runtime takes.
    #[error("{found} tokens, but at most {limit} are supported")]
    TooManyTokens {
        /// Entries of the token table.
        found: usize,
        /// The limit.
        limit: u32,
    },
    /// A token without text.
    #[error("token {index} is empty: the model file is damaged, fetch it again")]
    EmptyToken {
        /// Its id.
        index: usize,
    },
    /// A token or merge that is not UTF-8.
    #[error("{what} {index} is not UTF-8: the model file is damaged, fetch it again")]
    NotUtf8 {
        /// `token` or `merge`.
        what: &'static str,
        /// Its index.
        index: usize,
    },
    /// A token type outside GGUF's 1 to 6.
    #[error("token {index} has type {kind}, wanted 1 to 6")]
    UnknownKind {
        /// The token's id.
        index: usize,
        /// The type found.
        kind: i32,
    },
    /// Two tokens with one text.
    #[error("tokens {first_index} and {index} are both {token:?}: one text must have one id")]
    DuplicateToken {
        /// The second of the two.
        index: usize,
        /// The first.
        first_index: usize,
        /// Their text.
        token: String,
    },
    /// No token for a byte: some text could not be encoded.
    #[error("no token for byte {byte:#04x} (written {character:?}): not a byte-level BPE vocabulary")]
    MissingByteToken {
        /// The byte.
        byte: u8,
        /// How the byte alphabet writes it.
        character: char,
    },
    /// The token of a byte is a control or user-defined token.
    #[error("token {index}, which stands for byte {byte:#04x}, has type {kind}, wanted 1 (normal)")]
    SpecialByteToken {
        /// The token's id.
        index: usize,
        /// The byte.
        byte: u8,
        /// The type found.
        kind: i32,
    },
    /// A merge that is not two parts with one space between.
    #[error("merge {index} is {merge:?}, wanted two parts with one space between")]
    MalformedMerge {
        /// The merge's index.
        index: usize,
        /// Its text.
        merge: String,
    },
    /// A merge whose part, or whose result, is no token.
    #[error("merge {index} names {part:?}, which is no token")]
    UnknownMergePart {
        /// The merge's index.
        index: usize,
        /// The part, or the two parts joined.
        part: String,
    },
    /// A merge through which plain text could become a special token.
    #[error(
        "merge {index} names {part:?}, a control or user-defined token, which plain text must never become"
    )]
    SpecialMergePart {
        /// The merge's index.
        index: usize,
        /// The part, or the two parts joined.
        part: String,
    },
    /// The same pair at two ranks.
    #[error("merges {first_index} and {index} are the same pair: its rank is ambiguous")]
    DuplicateMerge {
        /// The second of the two.
        index: usize,
        /// The first.
        first_index: usize,
    },
    /// A split expression did not compile: a fault of this program.
    #[error("split expression {pattern:?} does not compile: report it")]
    Split {
        /// The expression.
        pattern: &'static str,
        /// What the engine said.
        #[source]
        source: Box<fancy_regex::Error>,
    },
    /// The special tokens could not be made into a search.
    #[error("no search for {count} special tokens can be built")]
    SpecialSearch {
        /// How many special tokens there are.
        count: usize,
        /// What the search said.
        #[source]
        source: aho_corasick::BuildError,
    },
    /// The chat form's marker is no special token of this vocabulary.
    #[error("the vocabulary has no control token {marker:?}: not a Flint chat model")]
    MissingMarker {
        /// The marker's text.
        marker: &'static str,
    },
    /// An id that the vocabulary does not have.
    #[error("token id {id} is outside the vocabulary of {vocabulary} tokens")]
    UnknownId {
        /// The id.
        id: TokenId,
        /// Tokens of the vocabulary.
        vocabulary: u32,
    },
}
