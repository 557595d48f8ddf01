//! Text to token ids.
//!
//! In: text, and whether markers in it are meant. Out: ids. The tokenizer is immutable, `Send` and `Sync`, and a clone
//! of it is a handle to the same tables. It holds no cache: merging a word costs less than a lock would.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};

use super::error::TextError;
use super::merge::Merger;
use super::splits::Splits;
use super::vocabulary::Vocabulary;
use crate::base::ids::TokenId;

/// Whether the spelling of a special token in a text means the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// It does: for raw prompts, whose writer decides what they are. The longest at the leftmost place wins.
    Parse,
    /// It does not: for everything that somebody else wrote.
    Plain,
}

/// The tokenizer of one model.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    tables: Arc<Tables>,
}

#[derive(Debug)]
struct Tables {
    vocabulary: Vocabulary,
    splits: Splits,
    /// The search for special tokens and, by pattern, their ids; none when there are none.
    specials: Option<(AhoCorasick, Vec<TokenId>)>,
}

impl Tokenizer {
    /// Builds the searches over a vocabulary.
    ///
    /// # Errors
    /// When the special tokens are too many for a search.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, TextError> {
        let (ids, texts): (Vec<TokenId>, Vec<&[u8]>) = vocabulary.specials().unzip();
        let specials = if ids.is_empty() {
            None
        } else {
            let search = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
            let search = search.map_err(|source| TextError::SpecialSearch { count: texts.len(), source })?;
            Some((search, ids))
        };
        let tables = Tables { splits: Splits::new()?, specials, vocabulary };
        Ok(Self { tables: Arc::new(tables) })
    }

    /// The ids of `text`; nothing is added before or after.
    ///
    /// # Panics
    /// When one piece without a border has 4 GiB or more.
    pub fn encode(&self, text: &str, specials: Specials) -> Vec<TokenId> {
        let mut target = Vec::with_capacity(text.len() / 3);
        let mut merger = Merger::default();
        let mut at = 0;
        if let (Specials::Parse, Some((search, ids))) = (specials, &self.tables.specials) {
            for found in search.find_iter(text) {
                self.encode_plain(&text[at..found.start()], &mut merger, &mut target);
                target.push(ids[found.pattern().as_usize()]);
                at = found.end();
            }
        }
        self.encode_plain(&text[at..], &mut merger, &mut target);
        target
    }

    /// Appends the ids of `text`, in which nothing is special.
    fn encode_plain(&self, text: &str, merger: &mut Merger, target: &mut Vec<TokenId>) {
        let vocabulary = &self.tables.vocabulary;
        let byte_ids = vocabulary.byte_ids();
        self.tables.splits.for_each_piece(text, |piece| {
            let symbols = piece.bytes().map(|byte| byte_ids[usize::from(byte)]);
            merger.merge(vocabulary.merges(), symbols, target);
        });
    }

    /// The pre-tokenizer's pieces of `text`, in which nothing is special. For tests and for looking.
    pub fn pieces<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut pieces = Vec::new();
        self.tables.splits.for_each_piece(text, |piece| pieces.push(piece));
        pieces
    }

    /// The text of `ids`: special tokens as they are written, other tokens by their bytes, and each part of those that
    /// is not UTF-8 as one U+FFFD. An id outside the vocabulary adds nothing; see [`Self::check_ids`].
    pub fn decode(&self, ids: &[TokenId]) -> String {
        let bytes: Vec<u8> = ids.iter().filter_map(|id| self.token_bytes(*id)).flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Checks ids that a caller brought.
    ///
    /// # Errors
    /// The first id outside the vocabulary.
    pub fn check_ids(&self, ids: &[TokenId]) -> Result<(), TextError> {
        let vocabulary = self.tables.vocabulary.token_count();
        match ids.iter().find(|id| **id >= vocabulary) {
            Some(id) => Err(TextError::UnknownId { id: *id, vocabulary }),
            None => Ok(()),
        }
    }

    /// The bytes that `id` stands for, which need not be whole characters; `None` outside the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> Option<&[u8]> {
        self.tables.vocabulary.token_bytes(id)
    }

    /// The id of the token that the model's file writes as `text`: the marker itself for special tokens, byte alphabet
    /// for others.
    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.tables.vocabulary.token_id(text)
    }

    /// The id of `text` when it is a special token.
    pub fn special_id(&self, text: &str) -> Option<TokenId> {
        self.token_id(text).filter(|id| self.vocabulary().kind(*id).is_some_and(|kind| kind.is_special()))
    }

    /// The tables' vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.tables.vocabulary
    }
}
