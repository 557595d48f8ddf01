//! Where the bytes of a GGUF come from: a file, or whatever a program brings (a server, a test).
//!
//! - Owns: the trait, and nothing of any source. In: an offset. Out: bytes; a [`SourceStamp`] that tells whether the
//!   source still is what it was when an interrupted ingest began.
//! - Invariants: a source has one length and one content while it is read; a source that cannot promise this says so
//!   by another stamp or by [`SourceError::Changed`].

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of one GGUF file, read front to back.
pub trait ByteSource: Send {
    /// Bytes of the whole file.
    fn len_bytes(&self) -> u64;

    /// The file's name without a folder, for people and the manifest.
    fn name(&self) -> &str;

    /// What the source is and in which state. It is asked before the first read and after the last, and kept in the
    /// journal.
    ///
    /// # Errors
    /// The source is gone or does not answer.
    fn stamp(&self) -> Result<SourceStamp, SourceError>;

    /// Fills the beginning of `target` with bytes from `offset_bytes` on; gives how many, at least 1, and 0 only at the
    /// end. Calls that follow each other are cheap. What can be tried again was tried again. `target` may reach beyond
    /// the end, and `offset_bytes` may be the end.
    ///
    /// # Errors
    /// [`SourceError`]; the ingest then ends, and can be continued later.
    fn read_from(&mut self, offset_bytes: u64, target: &mut [u8]) -> Result<usize, SourceError>;
}

/// The state of a source, as plain data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceStamp {
    /// "file", "http", or what else a program brings.
    pub kind: String,
    /// Where it is: a path or an address, without secrets.
    pub location: String,
    /// Bytes of the whole file.
    pub len_bytes: u64,
    /// What else names this state: modification time and inode, an entity tag, a revision. Empty: nothing does.
    pub state: String,
}

impl SourceStamp {
    /// Whether both stamps mean the same bytes. A source that names its state may have moved.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.kind, self.len_bytes, &self.state) == (&other.kind, other.len_bytes, &other.state)
            && (!self.state.is_empty() || self.location == other.location)
    }
}

impl fmt::Display for SourceStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} B, {})", self.location, self.len_bytes, self.state)
    }
}

/// Why a source gave no bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source could not be read, also when tried again.
    #[error("cannot read {location} at byte {offset_bytes}")]
    Read {
        /// Where the source is.
        location: String,
        /// Where in it.
        offset_bytes: u64,
        /// What was said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The source is not any more what it was.
    #[error("{location} changed while it was read ({found}, was {wanted}); try again when it is complete")]
    Changed {
        /// Where the source is.
        location: String,
        /// What it was when the reading began.
        wanted: String,
        /// What it is now.
        found: String,
    },
    /// Somebody asked for the end, while the source was waiting.
    #[error("stopped")]
    Stopped,
}
