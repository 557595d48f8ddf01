//! What the caller decides; plain data.

use std::path::PathBuf;

/// What the caller decides about conversations that no slot holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefixOptions {
    /// Host memory for them; 0 keeps none.
    pub memory_bytes: u64,
    /// A folder that they are written to, too, and what its files may take.
    pub disk: Option<(PathBuf, u64)>,
    /// The folder of files that slots are saved to on request.
    pub slot_files: Option<PathBuf>,
}
