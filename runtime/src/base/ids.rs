//! Ids that could be mixed up, each a type of its own.

use std::fmt;

/// A token's number in the vocabulary.
pub type TokenId = u32;

/// A layer of the model, counted from 0 with the dense lead layers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerIndex(pub u32);

/// A routed expert within its layer, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertIndex(pub u32);

/// One routed expert of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertKey {
    /// The model layer it belongs to.
    pub layer: LayerIndex,
    /// Its number in that layer.
    pub expert: ExpertIndex,
}

impl ExpertKey {
    /// The expert `expert` of model layer `layer`.
    pub fn new(layer: u32, expert: u32) -> Self {
        Self { layer: LayerIndex(layer), expert: ExpertIndex(expert) }
    }
}

impl fmt::Display for ExpertKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {} expert {}", self.layer.0, self.expert.0)
    }
}

/// A place for one expert record in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotIndex(pub u32);

/// One file of a source, in the order in which the source lists its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileIndex(pub u16);

/// Bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The file.
    pub file: FileIndex,
    /// Where the bytes begin in it.
    pub offset_bytes: u64,
    /// How many there are.
    pub len_bytes: u64,
}
