//! What may be wrong with a store, in plain data.

use std::fmt;
use std::path::PathBuf;

use crate::base::ids::ExpertKey;
use crate::store::digest::Sha256Digest;

/// Something of a store that is not what its manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// What.
    pub part: DamagedPart,
    /// In which file.
    pub path: PathBuf,
    /// Where in it.
    pub offset_bytes: u64,
    /// How long it should be.
    pub len_bytes: u64,
    /// How it is wrong.
    pub cause: Cause,
}

/// What is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DamagedPart {
    /// The copy of the GGUF's header.
    Header,
    /// A dense tensor.
    Tensor(String),
    /// An expert's record.
    Record(ExpertKey),
    /// Bytes between two of these, which nothing reads.
    Padding,
    /// A file as a whole.
    File,
}

impl DamagedPart {
    /// Whether it is bytes that the model computes with.
    pub(super) fn is_piece(&self) -> bool {
        matches!(self, Self::Tensor(_) | Self::Record(_))
    }
}

/// How it is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// It is not there: no file, or the file ends before it does.
    Missing,
    /// The file has another length; what it lacks is named on its own.
    Length {
        /// What it has.
        found_bytes: u64,
    },
    /// The drive does not give it.
    Unreadable {
        /// What the system said.
        error: String,
    },
    /// Its bytes are others.
    Checksum {
        /// What they give.
        found: u128,
        /// What the manifest says.
        wanted: u128,
    },
    /// Its bytes are others, found by the digest alone.
    Digest {
        /// What they give.
        found: Sha256Digest,
        /// What the manifest says.
        wanted: Sha256Digest,
    },
    /// There are bytes where there should be zeros.
    NotZero,
}

impl fmt::Display for DamagedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => write!(f, "header"),
            Self::Tensor(name) => write!(f, "tensor {name}"),
            Self::Record(key) => write!(f, "{key}"),
            Self::Padding => write!(f, "padding"),
            Self::File => write!(f, "file"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => write!(f, "missing"),
            Self::Length { found_bytes } => write!(f, "has {found_bytes} B instead"),
            Self::Unreadable { error } => write!(f, "cannot be read ({error})"),
            Self::Checksum { .. } => write!(f, "another checksum"),
            Self::Digest { found, .. } => write!(f, "another SHA-256 ({found})"),
            Self::NotZero => write!(f, "not zero"),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, path, offset_bytes, len_bytes, cause } = self;
        write!(f, "{}: {part}, {len_bytes} B at byte {offset_bytes}: {cause}", path.display())
    }
}
