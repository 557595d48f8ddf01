//! Finds the routed experts in a GGUF's tensor table.
//!
//! - Owns: the table of an [`ExpertTable`]. In: a header. Out: which layers have experts, how many, how large their
//!   records are, and where their matrices lie in the GGUF.
//! - Invariants: every layer with experts has gate, up and down as tensors of their own, in Q4_1, of the same shapes
//!   as every other layer; a tensor of experts that is none of these is refused by its name.

use std::collections::BTreeMap;

use crate::base::ids::{ExpertKey, LayerIndex};
use crate::base::limits::{EXPERTS_MAX, LAYERS_MAX};
use crate::gguf::{Gguf, Tensor, TensorKind};
use crate::store::error::StoreError;
use crate::store::record::{RECORD_BYTES_MAX, RecordLayout};

/// The matrices of an expert, in the order of its record.
const MATRICES: [&str; 3] = ["gate", "up", "down"];

/// The experts of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExpertTable {
    pub(super) record: RecordLayout,
    pub(super) expert_count: u32,
    /// The layers that have experts, ascending.
    pub(super) layers: Vec<LayerIndex>,
    /// For each of them, where the gate, up and down tensors begin in the GGUF.
    tensor_offsets_bytes: Vec<[u64; 3]>,
}

impl ExpertTable {
    /// The experts of `gguf`.
    pub(super) fn from_gguf(gguf: &Gguf) -> Result<Self, StoreError> {
        let layers = find(gguf)?;
        let mut shapes: Option<Shapes> = None;
        let mut tensor_offsets_bytes = Vec::with_capacity(layers.len());
        for (&layer, tensors) in &layers {
            let mut offsets = [0; 3];
            for (matrix, tensor) in tensors.iter().enumerate() {
                let Some(tensor) = tensor else {
                    return Err(StoreError::ExpertTensorMissing {
                        tensor: tensor_name(layer, MATRICES[matrix]),
                    });
                };
                // The first layer's gate decides; all else has to agree with it.
                let shapes = match &shapes {
                    Some(shapes) => shapes,
                    None => shapes.insert(Shapes::of_gate(tensor)?),
                };
                shapes.check(tensor, matrix)?;
                offsets[matrix] = tensor.offset_bytes;
            }
            tensor_offsets_bytes.push(offsets);
        }
        let Some(shapes) = shapes else { return Err(StoreError::NoExperts) };
        Ok(Self {
            record: shapes.record()?,
            expert_count: shapes.expert_count,
            layers: layers.into_keys().map(LayerIndex).collect(),
            tensor_offsets_bytes,
        })
    }

    /// The number of records.
    pub(super) fn record_count(&self) -> u64 {
        self.layers.len() as u64 * u64::from(self.expert_count)
    }

    /// All experts, in the order of their records.
    pub(super) fn keys(&self) -> impl Iterator<Item = ExpertKey> + '_ {
        self.layers
            .iter()
            .flat_map(|layer| (0..self.expert_count).map(|expert| ExpertKey::new(layer.0, expert)))
    }

    /// The record's number in a store: by layer, then by expert.
    pub(super) fn index(&self, key: ExpertKey) -> Option<u64> {
        let rank = self.layers.binary_search(&key.layer).ok()?;
        let expert = key.expert.0;
        (expert < self.expert_count).then(|| rank as u64 * u64::from(self.expert_count) + u64::from(expert))
    }

    /// Where the gate, up and down matrices of an expert begin in the GGUF.
    pub(super) fn gguf_offsets_bytes(&self, key: ExpertKey) -> Option<[u64; 3]> {
        let rank = self.layers.binary_search(&key.layer).ok()?;
        let expert = key.expert.0;
        let [gate, up, down] = self.tensor_offsets_bytes[rank];
        let RecordLayout { gate_bytes, up_bytes, down_bytes } = self.record;
        let nth = u64::from(expert);
        (expert < self.expert_count)
            .then(|| [gate + nth * gate_bytes, up + nth * up_bytes, down + nth * down_bytes])
    }
}

/// Whether `name` is that of a tensor of routed experts.
pub fn is_expert_tensor(name: &str) -> bool {
    name.contains("_exps.") || name.ends_with("_exps")
}

fn tensor_name(layer: u32, matrix: &str) -> String {
    format!("blk.{layer}.ffn_{matrix}_exps.weight")
}

/// The expert tensors of each layer that has any.
fn find(gguf: &Gguf) -> Result<BTreeMap<u32, [Option<&Tensor>; 3]>, StoreError> {
    let mut layers: BTreeMap<u32, [Option<&Tensor>; 3]> = BTreeMap::new();
    for tensor in gguf.tensors.iter().filter(|tensor| is_expert_tensor(&tensor.name)) {
        let unknown = || StoreError::ExpertTensorUnknown { tensor: tensor.name.clone() };
        let layer = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let layer: u32 = layer.and_then(|(layer, _)| layer.parse().ok()).ok_or_else(unknown)?;
        // Compared whole, so that `blk.02.` or `.bias` is not taken for what it is not.
        let matrix = MATRICES.iter().position(|matrix| tensor.name == tensor_name(layer, matrix));
        let matrix = matrix.ok_or_else(unknown)?;
        if layer >= LAYERS_MAX {
            return Err(StoreError::Limit {
                what: "the number of a layer with experts",
                found: layer.into(),
                limit: u64::from(LAYERS_MAX) - 1,
            });
        }
        layers.entry(layer).or_default()[matrix] = Some(tensor);
    }
    Ok(layers)
}

/// What the expert tensors of every layer must look like.
struct Shapes {
    embed_dim: u64,
    expert_ffn_dim: u64,
    expert_count: u32,
}

impl Shapes {
    fn of_gate(tensor: &Tensor) -> Result<Self, StoreError> {
        let &[embed_dim, expert_ffn_dim, expert_count] = tensor.dims.as_slice() else {
            return Err(StoreError::ExpertTensorShape {
                tensor: tensor.name.clone(),
                found: tensor.dims.clone(),
                wanted: "[embed_dim, expert_ffn_dim, expert_count]".to_owned(),
            });
        };
        let limit =
            StoreError::Limit { what: "the expert count", found: expert_count, limit: EXPERTS_MAX.into() };
        let expert_count = u32::try_from(expert_count).ok().filter(|&count| count <= EXPERTS_MAX);
        Ok(Self { embed_dim, expert_ffn_dim, expert_count: expert_count.ok_or(limit)? })
    }

    fn check(&self, tensor: &Tensor, matrix: usize) -> Result<(), StoreError> {
        if tensor.kind != TensorKind::Q4_1 {
            return Err(StoreError::ExpertTensorKind {
                tensor: tensor.name.clone(),
                found: tensor.kind.name(),
            });
        }
        let experts = u64::from(self.expert_count);
        let wanted = match MATRICES[matrix] {
            "down" => [self.expert_ffn_dim, self.embed_dim, experts],
            _ => [self.embed_dim, self.expert_ffn_dim, experts],
        };
        if tensor.dims != wanted {
            return Err(StoreError::ExpertTensorShape {
                tensor: tensor.name.clone(),
                found: tensor.dims.clone(),
                wanted: format!("{wanted:?}"),
            });
        }
        let matrix_bytes = self.matrix_bytes();
        assert_eq!(
            tensor.len_bytes,
            matrix_bytes * experts,
            "{} was sized otherwise by its header",
            tensor.name
        );
        Ok(())
    }

    /// Bytes of one matrix of one expert. It is the same for all three: they hold equally many blocks.
    fn matrix_bytes(&self) -> u64 {
        let blocks = self.embed_dim / TensorKind::Q4_1.block_len() * self.expert_ffn_dim;
        blocks * TensorKind::Q4_1.block_bytes()
    }

    fn record(&self) -> Result<RecordLayout, StoreError> {
        let bytes = self.matrix_bytes();
        if bytes > RECORD_BYTES_MAX / 3 {
            return Err(StoreError::Limit {
                what: "the bytes of an expert's matrix",
                found: bytes,
                limit: RECORD_BYTES_MAX / 3,
            });
        }
        Ok(RecordLayout { gate_bytes: bytes, up_bytes: bytes, down_bytes: bytes })
    }
}
