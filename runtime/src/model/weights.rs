//! The resident weights: what stays on the device from load to close.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::base::ids::Span;
use crate::expert::{Check, Move, Transport};
use crate::gpu::{Buffer, Gpu, Placement};
use crate::kernels::{Matrix, MatrixPiece};
use crate::model::ModelError;
use crate::model::hparams::FlintConfig;
use crate::store::Source;

/// A feed-forward network: dense, or the shared expert beside the routed ones.
pub struct FeedForward {
    /// `[ffn_dim, embed_dim]`.
    pub gate: Matrix,
    /// `[ffn_dim, embed_dim]`.
    pub up: Matrix,
    /// `[embed_dim, ffn_dim]`.
    pub down: Matrix,
}

/// One layer.
pub struct LayerWeights {
    /// f32 `[embed_dim]`.
    pub attn_norm: Buffer,
    /// `[head_count * head_dim, embed_dim]`.
    pub q: Matrix,
    /// `[kv_head_count * head_dim, embed_dim]`.
    pub k: Matrix,
    /// `[kv_head_count * head_dim, embed_dim]`.
    pub v: Matrix,
    /// `[embed_dim, head_count * head_dim]`.
    pub o: Matrix,
    /// f32 `[head_dim]`.
    pub q_norm: Buffer,
    /// f32 `[head_dim]`.
    pub k_norm: Buffer,
    /// f32 `[head_count]`.
    pub sinks: Buffer,
    /// f32 `[embed_dim]`.
    pub ffn_norm: Buffer,
    /// The dense network, or the shared expert.
    pub ffn: FeedForward,
    /// f32 `[expert_count, embed_dim]`; none on a dense layer.
    pub router: Option<Buffer>,
}

/// All of them.
pub struct Weights {
    /// By model layer.
    pub layers: Vec<LayerWeights>,
    /// f32 `[embed_dim]`.
    pub output_norm: Buffer,
    /// `[vocabulary, embed_dim]`.
    pub output: Matrix,
    /// Device bytes that they take.
    pub resident_bytes: u64,
}

/// Makes the buffers, and notes what must be read into each.
struct Loader<'a> {
    gpu: &'a Gpu,
    source: &'a Source,
    span_bytes_max: u64,
    rows_max: u64,
    moves: Vec<Move>,
    bytes: u64,
}

impl Loader<'_> {
    fn span(&self, name: &str) -> Span {
        // `FlintConfig::from_gguf` refused a file in which a tensor is missing or has another shape.
        self.source.tensor_span(name).unwrap_or_else(|| panic!("invariant: {name} was checked"))
    }

    /// A device buffer that will hold `span` of the tensor `name`; the spans of a tensor are asked for in their order.
    fn read(&mut self, name: &str, span: Span) -> Result<Buffer, ModelError> {
        let buffer = self.gpu.buffer(name, span.len_bytes, Placement::Device)?;
        let tensor: Arc<str> = name.into();
        let whole = self.span(name);
        let tensor_end_bytes = whole.offset_bytes + whole.len_bytes;
        let mut at = 0;
        while at < span.len_bytes {
            let len_bytes = (span.len_bytes - at).min(self.span_bytes_max);
            let part = Span { offset_bytes: span.offset_bytes + at, len_bytes, ..span };
            at += len_bytes;
            let is_last = part.offset_bytes + len_bytes == tensor_end_bytes;
            self.moves.push(Move {
                span: part,
                target: buffer.clone(),
                target_offset_bytes: at - len_bytes,
                check: Some(Check::TensorPart { name: tensor.clone(), is_last }),
            });
        }
        self.bytes += span.len_bytes;
        Ok(buffer)
    }

    fn vector(&mut self, name: &str) -> Result<Buffer, ModelError> {
        self.read(name, self.span(name))
    }

    /// A matrix, in pieces of whole rows that fit a binding and a grid.
    fn matrix(&mut self, name: &str, row_count: u32, column_count: u32) -> Result<Matrix, ModelError> {
        let span = self.span(name);
        let row_bytes = FlintConfig::matrix_bytes(1, column_count);
        assert_eq!(
            span.len_bytes,
            row_bytes * u64::from(row_count),
            "{name}: shape was checked when the file was opened"
        );
        let range = self.gpu.info().limits.largest_binding();
        let rows_a_piece = (range / row_bytes).min(self.rows_max).max(1);
        let mut pieces = Vec::new();
        let mut row_first = 0_u64;
        while row_first < u64::from(row_count) {
            let rows = rows_a_piece.min(u64::from(row_count) - row_first);
            let part = Span {
                offset_bytes: span.offset_bytes + row_first * row_bytes,
                len_bytes: rows * row_bytes,
                ..span
            };
            let small = |value: u64| u32::try_from(value).expect("invariant: rows are a u32");
            pieces.push(MatrixPiece {
                blocks: self.read(name, part)?,
                row_first: small(row_first),
                row_count: small(rows),
            });
            row_first += rows;
        }
        Ok(Matrix { pieces, row_count, column_count })
    }
}

impl Weights {
    /// Reads them through `transport`; `progress` gets bytes read and bytes in all, and may end it.
    ///
    /// # Errors
    /// When the device has too little memory, or a read fails; [`ModelError::Stopped`] when `progress` ends it.
    pub fn load(
        gpu: &Gpu,
        source: &Source,
        config: &FlintConfig,
        transport: &mut Transport,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self, ModelError> {
        let mut loader = Loader {
            gpu,
            source,
            span_bytes_max: u64::from(transport.span_bytes_max()),
            // A grid has at least 65,535 workgroups along x, and a workgroup at least one row.
            rows_max: 65_535,
            moves: Vec::new(),
            bytes: 0,
        };
        let layers = (0..config.layer_count)
            .map(|layer| load_layer(&mut loader, config, layer))
            .collect::<Result<_, ModelError>>()?;
        let output_norm = loader.vector("output_norm.weight")?;
        let output = loader.matrix("output.weight", config.vocabulary, config.embed_dim)?;

        let (moves, total) = (loader.moves, loader.bytes);
        let (mut done, mut is_stopped) = (0, false);
        let mut moves = moves.into_iter().map_while(|item| {
            done += item.span.len_bytes;
            is_stopped = progress(done, total).is_break();
            (!is_stopped).then_some(item)
        });
        let ticket = transport.run(&mut moves, &mut |_| {}, &mut |_| {})?;
        gpu.wait(ticket)?;
        if is_stopped {
            return Err(ModelError::Stopped);
        }
        Ok(Self { layers, output_norm, output, resident_bytes: total })
    }
}

fn load_layer(loader: &mut Loader<'_>, config: &FlintConfig, layer: u32) -> Result<LayerWeights, ModelError> {
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    let embed = config.embed_dim;
    let (q_dim, kv_dim) = (config.head_count * config.head_dim, config.kv_head_count * config.head_dim);
    let is_moe = layer >= config.lead_layer_count;
    let (suffix, ffn_dim) = if is_moe { ("_shexp", config.shared_ffn_dim) } else { ("", config.ffn_dim) };
    Ok(LayerWeights {
        attn_norm: loader.vector(&name("attn_norm"))?,
        q: loader.matrix(&name("attn_q"), q_dim, embed)?,
        k: loader.matrix(&name("attn_k"), kv_dim, embed)?,
        v: loader.matrix(&name("attn_v"), kv_dim, embed)?,
        o: loader.matrix(&name("attn_output"), embed, q_dim)?,
        q_norm: loader.vector(&name("attn_q_norm"))?,
        k_norm: loader.vector(&name("attn_k_norm"))?,
        sinks: loader.vector(&name("attn_sinks"))?,
        ffn_norm: loader.vector(&name("ffn_norm"))?,
        ffn: FeedForward {
            gate: loader.matrix(&name(&format!("ffn_gate{suffix}")), ffn_dim, embed)?,
            up: loader.matrix(&name(&format!("ffn_up{suffix}")), ffn_dim, embed)?,
            down: loader.matrix(&name(&format!("ffn_down{suffix}")), embed, ffn_dim)?,
        },
        router: if is_moe { Some(loader.vector(&name("ffn_gate_inp"))?) } else { None },
    })
}
