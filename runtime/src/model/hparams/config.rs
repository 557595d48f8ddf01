//! From keys to [`FlintConfig`].

use super::error::ConfigError;
use super::keys::Keys;
use super::{refused, tensor_list};
use crate::base::ids::TokenId;
use crate::base::limits::{CONTEXT_MAX, EXPERTS_MAX, EXPERTS_USED_MAX, HEADS_MAX, LAYERS_MAX};
use crate::gguf::Gguf;
use crate::store::RecordLayout;

/// Values of a Q4_1 block, and its bytes.
pub(super) const BLOCK_LEN: u32 = 32;
const BLOCK_BYTES: u64 = 20;

/// The numbers of a Flint model.
#[derive(Debug, Clone, PartialEq)]
pub struct FlintConfig {
    /// `general.name`, or the architecture's where there is none.
    pub name: String,
    /// Layers, lead layers included.
    pub layer_count: u32,
    /// Layers at the start that have one dense feed-forward instead of experts.
    pub lead_layer_count: u32,
    /// Width of the residual stream.
    pub embed_dim: u32,
    /// Query heads.
    pub head_count: u32,
    /// Key and value heads; divides `head_count`.
    pub kv_head_count: u32,
    /// Width of a head: a multiple of 4, at most 256.
    pub head_dim: u32,
    /// Width of the lead layers' feed-forward; 0 where there is no lead layer.
    pub ffn_dim: u32,
    /// Routed experts of a layer.
    pub expert_count: u32,
    /// Routed experts that a token uses; at most `expert_count`.
    pub experts_used: u32,
    /// Width of a routed expert.
    pub expert_ffn_dim: u32,
    /// Width of the shared expert.
    pub shared_ffn_dim: u32,
    /// Tokens: rows of the token table and of the output head.
    pub vocabulary: u32,
    /// Positions that the model was trained for.
    pub context_len: u32,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Added to the mean square in every norm.
    pub norm_epsilon: f32,
    /// Factor on the routed experts' weights. A file's 0 means none, and is 1 here.
    pub expert_weights_scale: f32,
    /// Keys that a query of a sliding layer sees, its own included: the file's number, unchanged. 0 where no layer
    /// slides.
    pub window: u32,
    /// What is different from layer to layer, `layer_count` entries.
    pub layers: Vec<LayerKind>,
    /// The token that begins a text, if the file names one.
    pub bos: Option<TokenId>,
    /// The token that ends a text, if the file names one.
    pub eos: Option<TokenId>,
}

/// What is different from layer to layer. The three are independent of one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerKind {
    /// Keys that a query sees, its own included; `None`: all.
    pub window: Option<u32>,
    /// Whether queries and keys are rotated by position.
    pub rope: bool,
    /// Whether it has routed experts and a shared one; else one dense feed-forward.
    pub is_moe: bool,
}

impl FlintConfig {
    /// Takes the model's numbers from `gguf`, and checks all of it: keys, tensors, and one against the other.
    ///
    /// # Errors
    /// [`ConfigError`], at the first thing that this runtime cannot run exactly as its maker meant it.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ConfigError> {
        let keys = Keys(&gguf.metadata);
        keys.check_file()?;
        refused::check(&gguf.metadata)?;

        let layer_count = keys.count("block_count", 1..=LAYERS_MAX)?;
        let lead_layer_count = keys.count("leading_dense_block_count", 0..=layer_count - 1)?;
        let embed_dim = keys.width("embedding_length")?;
        let head_count = keys.count("attention.head_count", 1..=HEADS_MAX)?;
        let kv_head_count = keys.kv_head_count(head_count)?;
        let head_dim = keys.head_dim(embed_dim, head_count)?;
        let ffn_dim = if lead_layer_count == 0 { 0 } else { keys.width("feed_forward_length")? };
        let expert_count = keys.count("expert_count", 1..=EXPERTS_MAX)?;
        let experts_used = keys.count("expert_used_count", 1..=expert_count.min(EXPERTS_USED_MAX))?;
        keys.check_router()?;
        let context_len = keys.count("context_length", 1..=CONTEXT_MAX)?;
        let rope_base = keys.positive("rope.freq_base")?;
        keys.check_rope_twin(rope_base)?;
        let (window, layers) = keys.layers(layer_count, lead_layer_count, context_len)?;
        let vocabulary = keys.vocabulary(gguf)?;
        let config = Self {
            name: keys.name(),
            layer_count,
            lead_layer_count,
            embed_dim,
            head_count,
            kv_head_count,
            head_dim,
            ffn_dim,
            expert_count,
            experts_used,
            expert_ffn_dim: keys.width("expert_feed_forward_length")?,
            shared_ffn_dim: keys.width("expert_shared_feed_forward_length")?,
            vocabulary,
            context_len,
            rope_base,
            norm_epsilon: keys.norm_epsilon()?,
            expert_weights_scale: keys.expert_weights_scale()?,
            window,
            layers,
            bos: keys.token("tokenizer.ggml.bos_token_id", vocabulary)?,
            eos: keys.token("tokenizer.ggml.eos_token_id", vocabulary)?,
        };
        tensor_list::check(gguf, &config)?;
        Ok(config)
    }

    /// Layers with routed experts.
    pub fn moe_layer_count(&self) -> u32 {
        self.layer_count - self.lead_layer_count
    }

    /// Bytes of a Q4_1 matrix.
    ///
    /// # Panics
    /// When `columns` is no multiple of 32.
    pub fn matrix_bytes(rows: u32, columns: u32) -> u64 {
        assert!(columns.is_multiple_of(BLOCK_LEN), "columns are whole blocks in every config");
        u64::from(rows) * u64::from(columns / BLOCK_LEN) * BLOCK_BYTES
    }

    /// Bytes of a routed expert's gate matrix.
    pub fn gate_bytes(&self) -> u64 {
        Self::matrix_bytes(self.expert_ffn_dim, self.embed_dim)
    }

    /// Bytes of a routed expert's up matrix.
    pub fn up_bytes(&self) -> u64 {
        self.gate_bytes()
    }

    /// Bytes of a routed expert's down matrix.
    pub fn down_bytes(&self) -> u64 {
        Self::matrix_bytes(self.embed_dim, self.expert_ffn_dim)
    }

    /// The sizes within a routed expert's record.
    pub fn record_layout(&self) -> RecordLayout {
        RecordLayout {
            gate_bytes: self.gate_bytes(),
            up_bytes: self.up_bytes(),
            down_bytes: self.down_bytes(),
        }
    }

    /// Bytes of a routed expert: gate, up, down.
    pub fn record_bytes(&self) -> u64 {
        self.record_layout().record_bytes()
    }
}
