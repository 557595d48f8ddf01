//! The tensors of a synthetic Flint, and what fills them.
//!
//! In: dimensions, a seed, a skew. Out: a list in the order of the file. Pure.
//!
//! Random weights must not let the residual streams of all tokens turn into one direction, for then every token picks the
//! same experts and nothing measured on the model means anything. Two things prevent it: blocks have mean zero, and what
//! attention and feed-forwards add to the stream is small beside the token's own vector ([`ADDED_GAIN`]). So each token keeps
//! its direction through all layers, activations stay within a few deviations, and picks are near enough independent from
//! token to token and from layer to layer.
//!
//! With a skew, the first column of the token table is one constant, [`Shared::constant`], the norms before attention and
//! head take it out again, and the first column of a router holds what [`super::skew`] wants added to each expert's logit,
//! over the constant. Which expert has which rank is drawn for each layer.

use flint_rt::gguf::TensorKind;

use super::fill::{Fill, FirstColumn};
use super::random::Stream;
use super::shape::Shape;
use super::skew;

/// Factor on all matrices whose results are added to the residual stream.
const ADDED_GAIN: f32 = 0.1;
/// Deviation of the logits of the tokens; above 1 so that likely ones stand out.
const HEAD_GAIN: f32 = 3.0;
/// Deviation of a norm's factors around 1.
const NORM_SPREAD: f32 = 0.1;

/// One tensor.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) kind: TensorKind,
    /// Columns first.
    pub(super) dims: Vec<u64>,
    pub(super) len_bytes: u64,
    pub(super) fill: Fill,
}

/// What is the same in all tensors.
struct Shared {
    seed: u64,
    /// The first column of the token table, where there is a skew.
    constant: Option<f32>,
    tensors: Vec<Tensor>,
}

/// All tensors of a model.
pub(super) fn list(shape: &Shape, seed: u64, exponent: f64) -> Vec<Tensor> {
    let embed = u64::from(shape.embed);
    let vocabulary = u64::from(shape.vocabulary);
    // So that it is 4 % of the vector's square and stands well above what the layers add to its column.
    let constant = (exponent != 0.0).then_some((shape.embed as f32).sqrt() / 5.0);
    let biases = skew::biases(shape.experts, shape.experts_used, exponent);
    let mut shared = Shared { seed, constant, tensors: Vec::new() };
    shared.floats("token_embd.weight", &[embed, vocabulary], 0.0, 1.0, constant.map(FirstColumn::Same));
    shared.norm("output_norm.weight", embed, Some(0.0));
    shared.matrix("output.weight", &[embed, vocabulary], HEAD_GAIN);
    for layer in 0..shape.layers {
        shared.attention(shape, layer);
        if layer < shape.lead_layers {
            shared.swiglu(layer, "", embed, shape.ffn.into(), None);
        } else {
            shared.router(shape, layer, &biases);
            shared.swiglu(layer, "_exps", embed, shape.expert_ffn.into(), Some(shape.experts.into()));
            shared.swiglu(layer, "_shexp", embed, shape.shared_ffn.into(), None);
        }
    }
    shared.tensors
}

impl Shared {
    fn attention(&mut self, shape: &Shape, layer: u32) {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (embed, head) = (u64::from(shape.embed), u64::from(shape.head_dim));
        let (query, key) = (u64::from(shape.heads) * head, u64::from(shape.kv_heads) * head);
        self.norm(&name("attn_norm"), embed, Some(0.0));
        self.matrix(&name("attn_q"), &[embed, query], 1.0);
        self.matrix(&name("attn_k"), &[embed, key], 1.0);
        self.matrix(&name("attn_v"), &[embed, key], 1.0);
        self.matrix(&name("attn_output"), &[query, embed], ADDED_GAIN);
        self.norm(&name("attn_q_norm"), head, None);
        self.norm(&name("attn_k_norm"), head, None);
        self.floats(&name("attn_sinks"), &[shape.heads.into()], 0.0, 1.0, None);
        self.norm(&name("ffn_norm"), embed, Some(1.0));
    }

    /// A feed-forward of width `width`, or `experts` of them.
    fn swiglu(&mut self, layer: u32, suffix: &str, embed: u64, width: u64, experts: Option<u64>) {
        for (role, columns, rows, gain) in
            [("gate", embed, width, 1.0), ("up", embed, width, 1.0), ("down", width, embed, ADDED_GAIN)]
        {
            let mut dims = vec![columns, rows];
            dims.extend(experts);
            self.matrix(&format!("blk.{layer}.ffn_{role}{suffix}.weight"), &dims, gain);
        }
    }

    /// A router, whose logits have deviation 1 before the biases.
    fn router(&mut self, shape: &Shape, layer: u32, biases: &[f32]) {
        let name = format!("blk.{layer}.ffn_gate_inp.weight");
        let first = self.constant.map(|constant| {
            // A random order, as the order of random numbers.
            let order = Stream::new(self.seed, &format!("{name}, ranks"));
            let mut experts: Vec<usize> = (0..shape.experts as usize).collect();
            experts.sort_by_key(|expert| order.bits(*expert as u64));
            let mut first = vec![0.0; experts.len()];
            for (expert, bias) in experts.into_iter().zip(biases) {
                first[expert] = bias / constant;
            }
            FirstColumn::Each(first)
        });
        let deviation = 1.0 / (shape.embed as f32).sqrt();
        self.floats(&name, &[shape.embed.into(), shape.experts.into()], 0.0, deviation, first);
    }

    /// Factors around 1. `constant` is the one of the first column where that is the constant.
    fn norm(&mut self, name: &str, len: u64, constant: Option<f32>) {
        let first = constant.filter(|_| self.constant.is_some()).map(FirstColumn::Same);
        self.floats(name, &[len], 1.0, NORM_SPREAD, first);
    }

    fn floats(&mut self, name: &str, dims: &[u64], mean: f32, deviation: f32, first: Option<FirstColumn>) {
        let stream = Stream::new(self.seed, name);
        let fill = Fill::Floats { stream, mean, deviation, columns: dims[0], first };
        self.push(name, TensorKind::F32, dims, fill);
    }

    /// A matrix that makes of numbers with deviation 1 numbers with deviation `gain`.
    fn matrix(&mut self, name: &str, dims: &[u64], gain: f32) {
        let fill = Fill::q4_1(Stream::new(self.seed, name), gain / (dims[0] as f32).sqrt());
        self.push(name, TensorKind::Q4_1, dims, fill);
    }

    fn push(&mut self, name: &str, kind: TensorKind, dims: &[u64], fill: Fill) {
        let blocks = dims.iter().product::<u64>() / kind.block_len();
        let len_bytes = blocks * kind.block_bytes();
        self.tensors.push(Tensor { name: name.to_owned(), kind, dims: dims.to_vec(), len_bytes, fill });
    }
}
