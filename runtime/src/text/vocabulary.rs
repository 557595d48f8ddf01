//! The tokens of a model and the merges that build them, checked once.
//!
//! In: three plain arrays, as a GGUF header has them. Out: a [`Vocabulary`], in which every lookup succeeds.
//!
//! Invariants: a text has one id; each of the 256 bytes has a normal token; a merge names three known tokens, none of
//! them special, and is longer than either part, so merging ends and plain text never becomes a special token.

use std::collections::HashMap;

use super::byte_alphabet;
use super::error::TextError;
use super::merge::{Merge, MergeTable};
use crate::base::ids::TokenId;
use crate::base::limits::VOCABULARY_MAX;

/// What a token is, by GGUF's `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Text in the byte alphabet (1).
    Normal,
    /// Stands for what has no token (2); byte-level vocabularies never encode to it.
    Unknown,
    /// A marker of the form, such as `<|user|>` (3). Special.
    Control,
    /// Added text that is matched whole (4). Special.
    UserDefined,
    /// A padding entry (5).
    Unused,
    /// A raw byte of other tokenizer families (6).
    Byte,
}

impl TokenKind {
    /// The kind with GGUF's number `kind`.
    fn from_gguf(kind: i32) -> Option<Self> {
        Some(match kind {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }

    /// Whether its text is matched whole before the text is split, and decoded as it is written.
    pub fn is_special(self) -> bool {
        matches!(self, Self::Control | Self::UserDefined)
    }
}

/// A checked vocabulary with its merges.
#[derive(Debug)]
pub struct Vocabulary {
    /// The bytes that each token stands for.
    bytes: Vec<Box<[u8]>>,
    kinds: Vec<TokenKind>,
    /// Text as the file has it (byte alphabet for normal tokens) to id.
    ids: HashMap<String, TokenId>,
    byte_ids: [TokenId; 256],
    merges: MergeTable,
}

impl Vocabulary {
    /// Checks a vocabulary: `tokens` in order of id, `kinds` as GGUF numbers them (1 to 6), `merges` as two parts with
    /// one space between, best first.
    ///
    /// # Errors
    /// Arrays that do not fit each other; an empty, repeated or non-UTF-8 token; an unknown kind; a byte without a
    /// normal token; a merge that is malformed, repeated, or names a token that is unknown or special.
    pub fn new(tokens: Vec<Vec<u8>>, kinds: Vec<i32>, merges: Vec<Vec<u8>>) -> Result<Self, TextError> {
        if tokens.len() != kinds.len() {
            return Err(TextError::LengthMismatch { tokens: tokens.len(), kinds: kinds.len() });
        }
        let count = u32::try_from(tokens.len()).ok().filter(|count| *count <= VOCABULARY_MAX);
        let Some(count) = count else {
            return Err(TextError::TooManyTokens { found: tokens.len(), limit: VOCABULARY_MAX });
        };
        let mut bytes = Vec::with_capacity(tokens.len());
        let mut checked_kinds = Vec::with_capacity(tokens.len());
        let mut ids = HashMap::with_capacity(tokens.len());
        for ((id, token), gguf_kind) in (0..count).zip(tokens).zip(&kinds) {
            let index = id as usize;
            let kind = TokenKind::from_gguf(*gguf_kind);
            let kind = kind.ok_or(TextError::UnknownKind { index, kind: *gguf_kind })?;
            let text = String::from_utf8(token).map_err(|_| TextError::NotUtf8 { what: "token", index })?;
            if text.is_empty() {
                return Err(TextError::EmptyToken { index });
            }
            bytes.push(meaning(&text, kind).into_boxed_slice());
            checked_kinds.push(kind);
            if let Some(first) = ids.get(&text) {
                let first: TokenId = *first;
                return Err(TextError::DuplicateToken { index, first_index: first as usize, token: text });
            }
            ids.insert(text, id);
        }
        let byte_ids = find_byte_ids(&ids, &kinds)?;
        let merges = read_merges(&ids, &checked_kinds, merges)?;
        Ok(Self { bytes, kinds: checked_kinds, ids, byte_ids, merges })
    }

    /// How many tokens there are; ids are below it.
    pub fn token_count(&self) -> u32 {
        u32::try_from(self.bytes.len()).expect("invariant: checked against VOCABULARY_MAX")
    }

    /// The bytes that `id` stands for: for special tokens, and for tokens with characters outside the byte alphabet,
    /// the text as it is written.
    pub fn token_bytes(&self, id: TokenId) -> Option<&[u8]> {
        self.bytes.get(id as usize).map(AsRef::as_ref)
    }

    /// What `id` is.
    pub fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The id of the token that the file writes as `text`.
    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.ids.get(text).copied()
    }

    /// The special tokens, in order of id, with their text.
    pub fn specials(&self) -> impl Iterator<Item = (TokenId, &[u8])> {
        (0..)
            .zip(self.bytes.iter().zip(&self.kinds))
            .filter(|(_, (_, kind))| kind.is_special())
            .map(|(id, (bytes, _))| (id, bytes.as_ref()))
    }

    /// The token of each byte.
    pub(super) fn byte_ids(&self) -> &[TokenId; 256] {
        &self.byte_ids
    }

    /// The merges by pair.
    pub(super) fn merges(&self) -> &MergeTable {
        &self.merges
    }
}

/// The bytes that a token's text stands for. Text that is not in the byte alphabet (padding entries have such) stands
/// for itself, as in Hugging Face's byte-level decoder.
fn meaning(text: &str, kind: TokenKind) -> Vec<u8> {
    let plain = if kind.is_special() { None } else { byte_alphabet::bytes_of(text) };
    plain.unwrap_or_else(|| text.as_bytes().to_vec())
}

/// Finds the token of each byte.
fn find_byte_ids(ids: &HashMap<String, TokenId>, kinds: &[i32]) -> Result<[TokenId; 256], TextError> {
    let mut found = [0; 256];
    for ((byte, character), entry) in (0u8..=255).zip(byte_alphabet::characters()).zip(found.iter_mut()) {
        let id = ids.get(character.encode_utf8(&mut [0; 4]) as &str);
        let id = *id.ok_or(TextError::MissingByteToken { byte, character })?;
        let kind = kinds[id as usize];
        if kind != 1 {
            return Err(TextError::SpecialByteToken { index: id as usize, byte, kind });
        }
        *entry = id;
    }
    Ok(found)
}

/// Looks up the parts and the result of each merge.
fn read_merges(
    ids: &HashMap<String, TokenId>,
    kinds: &[TokenKind],
    merges: Vec<Vec<u8>>,
) -> Result<MergeTable, TextError> {
    let mut table = MergeTable::with_capacity(merges.len());
    for (index, merge) in merges.into_iter().enumerate() {
        let text = String::from_utf8(merge).map_err(|_| TextError::NotUtf8 { what: "merge", index })?;
        let parts = text.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty());
        let Some((left, right)) = parts.filter(|(_, right)| !right.contains(' ')) else {
            return Err(TextError::MalformedMerge { index, merge: text });
        };
        let find = |part: &str| {
            let id =
                *ids.get(part).ok_or_else(|| TextError::UnknownMergePart { index, part: part.to_owned() })?;
            if kinds[id as usize].is_special() {
                return Err(TextError::SpecialMergePart { index, part: part.to_owned() });
            }
            Ok(id)
        };
        let pair = (find(left)?, find(right)?);
        let result = find(&[left, right].concat())?;
        let rank = u32::try_from(index).ok().filter(|rank| *rank < u32::MAX);
        let rank = rank.expect("invariant: distinct pairs of a bounded header are fewer than 2^32 - 1");
        if let Some(first) = table.insert(pair, Merge { rank, result }) {
            return Err(TextError::DuplicateMerge { index, first_index: first.rank as usize });
        }
    }
    Ok(table)
}
