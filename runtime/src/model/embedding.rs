//! The token table, which stays on the host: a step reads one row a token.
//!
//! Flint's table is 1.23 GB of F32, of which a token needs 8 KiB. Rows are read through the page cache, so that those of
//! frequent tokens cost no drive time.

use std::sync::Arc;

use crate::base::ids::{Span, TokenId};
use crate::disk::SourceFile;
use crate::model::ModelError;

/// Rows f32 `[vocabulary, embed_dim]` in a file.
pub struct Embedding {
    file: Arc<SourceFile>,
    span: Span,
    row_bytes: usize,
    vocabulary: u32,
}

impl Embedding {
    /// The table that `span` of `file` holds.
    pub fn new(file: Arc<SourceFile>, span: Span, embed_dim: u32, vocabulary: u32) -> Self {
        let row_bytes = embed_dim as usize * 4;
        assert_eq!(
            span.len_bytes,
            row_bytes as u64 * u64::from(vocabulary),
            "token table: shape was checked when the file was opened"
        );
        Self { file, span, row_bytes, vocabulary }
    }

    /// Fills `rows` with the rows of `tokens`, `[tokens, embed_dim]`.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, or the read fails.
    pub fn read(&self, tokens: &[TokenId], rows: &mut Vec<f32>) -> Result<(), ModelError> {
        rows.clear();
        rows.resize(tokens.len() * self.row_bytes / 4, 0.0);
        for (row, &token) in rows.chunks_exact_mut(self.row_bytes / 4).zip(tokens) {
            if token >= self.vocabulary {
                return Err(ModelError::UnknownToken { token, vocabulary: self.vocabulary });
            }
            let offset_bytes = self.span.offset_bytes + u64::from(token) * self.row_bytes as u64;
            self.file.read_exact_at(offset_bytes, bytemuck::cast_slice_mut(row))?;
        }
        Ok(())
    }
}
