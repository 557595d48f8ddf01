//! How much room a store takes, from the header of its source alone.

use crate::gguf::Gguf;
use crate::store::error::StoreError;
use crate::store::layout::Layout;
use crate::store::placement::Placement;

/// Bytes of a store's files, before it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoomNeeded {
    /// In the store's own folder, the manifest left out.
    pub own_bytes: u64,
    /// In each stripe, in their order; none where there are none.
    pub stripe_bytes: Vec<u64>,
}

/// The room for a store of `gguf`, with its experts spread over stripes of these weights, or in its own folder where there
/// are none.
///
/// # Errors
/// The header is none of which a store can be made.
pub fn room_needed(gguf: &Gguf, stripe_weights: &[f64]) -> Result<RoomNeeded, StoreError> {
    let weights = if stripe_weights.is_empty() { &[1.0] } else { stripe_weights };
    let layout = Layout::from_gguf(gguf, |count| Placement::weighted(count, weights))?;
    let experts: Vec<u64> = (0..weights.len()).map(|file| layout.experts_file_bytes(file)).collect();
    let dense_bytes = gguf.header_bytes().len() as u64 + layout.dense_file_bytes;
    Ok(match stripe_weights {
        [] => RoomNeeded { own_bytes: dense_bytes + experts[0], stripe_bytes: Vec::new() },
        _ => RoomNeeded { own_bytes: dense_bytes, stripe_bytes: experts },
    })
}
