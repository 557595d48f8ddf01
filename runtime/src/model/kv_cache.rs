//! Keys and values of one sequence, in f16: all positions on full layers, a ring on sliding ones.
//!
//! A sliding layer needs the window of every query of a chunk: `window - 1` keys before the chunk's first, and the chunk. The
//! ring has that many rows; position `p` lies in row `p % rows`.

use crate::gpu::{Buffer, Gpu, GpuError, Placement};
use crate::model::hparams::FlintConfig;

/// Rows of a layer's cache, for sequences of up to `context_len` tokens that arrive in chunks of up to `chunk_len`.
pub fn ring_rows(window: Option<u32>, context_len: u32, chunk_len: u32) -> u32 {
    match window {
        Some(window) => context_len.min(window.saturating_sub(1).saturating_add(chunk_len)),
        None => context_len,
    }
}

/// Device bytes of a cache.
pub fn cache_bytes(config: &FlintConfig, context_len: u32, chunk_len: u32) -> u64 {
    let row_bytes = u64::from(config.kv_head_count) * u64::from(config.head_dim) * 2;
    config
        .layers
        .iter()
        .map(|layer| 2 * row_bytes * u64::from(ring_rows(layer.window, context_len, chunk_len)))
        .sum()
}

/// Whether a ring of `rows` rows, written from position `held_from` up to `written` (exclusive), still holds what the token at
/// `position` sees of a window of `window` keys.
fn ring_reaches(window: u32, rows: u32, held_from: u32, written: u32, position: u32) -> bool {
    let first_seen = (position + 1).saturating_sub(window);
    let first_held = written.saturating_sub(rows).max(held_from);
    first_seen == position || first_seen >= first_held
}

/// One layer's keys and values.
pub struct LayerCache {
    /// f16 `[rows, kv_head_count, head_dim]`.
    pub keys: Buffer,
    /// f16 `[rows, kv_head_count, head_dim]`.
    pub values: Buffer,
    /// Rows of both.
    pub rows: u32,
    /// The window, if the layer slides.
    pub window: Option<u32>,
    /// The first position that was ever written since the sequence began: not 0 where a sliding layer was restored.
    held_from: u32,
}

/// All layers of one sequence.
pub struct KvCache {
    /// By model layer.
    pub layers: Vec<LayerCache>,
    /// Positions that may be used.
    pub context_len: u32,
    /// Positions ever written since the sequence began, also by steps that were given up.
    written: u32,
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// When the device has too little memory.
    pub fn new(gpu: &Gpu, config: &FlintConfig, context_len: u32, chunk_len: u32) -> Result<Self, GpuError> {
        let row_bytes = u64::from(config.kv_head_count) * u64::from(config.head_dim) * 2;
        let layers = config
            .layers
            .iter()
            .map(|layer| {
                let rows = ring_rows(layer.window, context_len, chunk_len);
                let make = |name| gpu.buffer(name, u64::from(rows) * row_bytes, Placement::Device);
                Ok(LayerCache {
                    keys: make("key cache")?,
                    values: make("value cache")?,
                    rows,
                    window: layer.window,
                    held_from: 0,
                })
            })
            .collect::<Result<_, GpuError>>()?;
        Ok(Self { layers, context_len, written: 0 })
    }

    /// Notes that positions up to `end` (exclusive) are being written.
    pub fn note_written(&mut self, end: u32) {
        self.written = self.written.max(end);
    }

    /// Whether the sequence can go on from `position`, all earlier positions kept: rings may have lost what it sees.
    pub fn can_continue_at(&self, position: u32) -> bool {
        self.reaches(self.written, position)
    }

    /// Whether that will still be so when `tokens` more have been written.
    pub fn could_continue_at(&self, position: u32, tokens: u32) -> bool {
        self.reaches(self.written.saturating_add(tokens), position)
    }

    fn reaches(&self, written: u32, position: u32) -> bool {
        self.layers.iter().all(|layer| {
            layer
                .window
                .is_none_or(|window| ring_reaches(window, layer.rows, layer.held_from, written, position))
        })
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.restored(0, |_| 0);
    }

    /// Notes that it was written from outside: of a layer with this window the positions from `held_from` of it on, of the others
    /// all, up to `end` (exclusive).
    pub fn restored(&mut self, end: u32, held_from: impl Fn(u32) -> u32) {
        self.written = end;
        for layer in &mut self.layers {
            layer.held_from = layer.window.map_or(0, &held_from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_holds_the_window_of_every_query_of_a_chunk() {
        assert_eq!(ring_rows(None, 4096, 512), 4096);
        assert_eq!(ring_rows(Some(129), 4096, 512), 640);
        assert_eq!(ring_rows(Some(129), 256, 512), 256);
        // Simulated: after writing `written` positions, row p % rows holds the largest p written.
        for (window, rows) in [(5, 12), (5, 5), (1, 3)] {
            for (written, held_from) in (0_u32..40).flat_map(|written| [(written, 0), (written, written / 2)])
            {
                let mut ring = vec![None; rows as usize];
                for p in held_from..written {
                    ring[(p % rows) as usize] = Some(p);
                }
                for position in 0..=written {
                    let first = (position + 1).saturating_sub(window);
                    let holds = (first..position).all(|p| ring[(p % rows) as usize] == Some(p));
                    let says = ring_reaches(window, rows, held_from, written, position);
                    assert_eq!(
                        says, holds,
                        "window {window} rows {rows} written {held_from}..{written} at {position}"
                    );
                }
            }
        }
    }
}
