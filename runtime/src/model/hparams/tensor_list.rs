//! The tensors that the graph reads, with type and shape, and the check that the file has these and no others.

use std::collections::HashSet;

use super::config::FlintConfig;
use super::error::ConfigError;
use crate::gguf::{Gguf, Tensor, TensorKind};

/// A tensor of the graph.
struct Wanted {
    name: String,
    kind: TensorKind,
    /// Columns, rows, matrices.
    dims: Vec<u64>,
}

/// The token table, whose rows say how large the vocabulary is.
pub(super) const TOKEN_TABLE: &str = "token_embd.weight";

/// Checks every tensor of `gguf` against the numbers of `config`.
pub(super) fn check(gguf: &Gguf, config: &FlintConfig) -> Result<(), ConfigError> {
    let wanted = list(config);
    let names: HashSet<&str> = wanted.iter().map(|wanted| wanted.name.as_str()).collect();
    // Unknown ones first: that a fused matrix is there says more than that its halves are missing.
    if let Some(tensor) = gguf.tensors.iter().find(|tensor| !names.contains(tensor.name.as_str())) {
        return Err(ConfigError::UnknownTensor {
            tensor: tensor.name.clone(),
            found: describe(tensor.kind, &tensor.dims),
            reason: reason(&tensor.name, config),
        });
    }
    wanted.iter().try_for_each(|wanted| check_one(gguf.tensors.get(&wanted.name), wanted))
}

fn check_one(tensor: Option<&Tensor>, wanted: &Wanted) -> Result<(), ConfigError> {
    let form = describe(wanted.kind, &wanted.dims);
    match tensor {
        None => Err(ConfigError::MissingTensor { tensor: wanted.name.clone(), wanted: form }),
        Some(tensor) if tensor.kind != wanted.kind || tensor.dims != wanted.dims => {
            Err(ConfigError::WrongTensor {
                tensor: wanted.name.clone(),
                found: describe(tensor.kind, &tensor.dims),
                wanted: form,
            })
        }
        Some(_) => Ok(()),
    }
}

/// Type and dimensions for a message: `Q4_1 [256, 512]`.
pub(super) fn describe(kind: TensorKind, dims: &[u64]) -> String {
    format!("{} {dims:?}", kind.name())
}

fn list(config: &FlintConfig) -> Vec<Wanted> {
    use TensorKind::{F32, Q4_1};
    let embed = u64::from(config.embed_dim);
    let head = u64::from(config.head_dim);
    let query = u64::from(config.head_count) * head;
    let key = u64::from(config.kv_head_count) * head;
    let vocabulary = u64::from(config.vocabulary);
    let experts = u64::from(config.expert_count);

    let mut list = Vec::new();
    let mut add = |name: String, kind, dims: &[u64]| list.push(Wanted { name, kind, dims: dims.to_vec() });
    add(TOKEN_TABLE.to_owned(), F32, &[embed, vocabulary]);
    add("output_norm.weight".to_owned(), F32, &[embed]);
    add("output.weight".to_owned(), Q4_1, &[embed, vocabulary]);
    for (index, layer) in config.layers.iter().enumerate() {
        let mut add = |name: &str, kind, dims: &[u64]| add(format!("blk.{index}.{name}.weight"), kind, dims);
        add("attn_norm", F32, &[embed]);
        add("attn_q", Q4_1, &[embed, query]);
        add("attn_k", Q4_1, &[embed, key]);
        add("attn_v", Q4_1, &[embed, key]);
        add("attn_output", Q4_1, &[query, embed]);
        add("attn_q_norm", F32, &[head]);
        add("attn_k_norm", F32, &[head]);
        add("attn_sinks", F32, &[config.head_count.into()]);
        add("ffn_norm", F32, &[embed]);
        if layer.is_moe {
            add("ffn_gate_inp", F32, &[embed, experts]);
            swiglu(&mut add, "_exps", embed, config.expert_ffn_dim, Some(experts));
            swiglu(&mut add, "_shexp", embed, config.shared_ffn_dim, None);
        } else {
            swiglu(&mut add, "", embed, config.ffn_dim, None);
        }
    }
    list
}

/// The three matrices of a feed-forward of width `width`, or `experts` of each.
fn swiglu(
    add: &mut impl FnMut(&str, TensorKind, &[u64]),
    suffix: &str,
    embed: u64,
    width: u32,
    experts: Option<u64>,
) {
    for (role, columns, rows) in
        [("gate", embed, width.into()), ("up", embed, width.into()), ("down", width.into(), embed)]
    {
        let mut dims = vec![columns, rows];
        dims.extend(experts);
        add(&format!("ffn_{role}{suffix}"), TensorKind::Q4_1, &dims);
    }
}

/// Why the graph has no tensor `name`.
fn reason(name: &str, config: &FlintConfig) -> String {
    let known = [
        (".bias", "a bias, which this runtime would not add"),
        ("exp_probs_b", "a selection bias of the router, which this runtime would not add"),
        ("gate_up_exps", "fused gate and up matrices; convert the model with separate ones"),
        ("attn_qkv", "fused query, key and value matrices; convert the model with separate ones"),
        ("rope_freqs", "factors for the rotary frequencies, which this runtime would not apply"),
        ("rope_factors", "factors for the rotary frequencies, which this runtime would not apply"),
        ("gate_inp_shexp", "a gate on the shared expert, which this runtime would not apply"),
        ("nextn", "a head that predicts further tokens; convert the model without it"),
        ("lora", "an adapter; merge it into the model"),
    ];
    if let Some((_, reason)) = known.iter().find(|(part, _)| name.contains(part)) {
        return (*reason).to_owned();
    }
    let layer = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split('.').next())
        .and_then(|n| n.parse::<usize>().ok());
    match layer.map(|index| (index, config.layers.get(index))) {
        Some((index, None)) => {
            format!("flint.block_count is {}, so there is no layer {index}", config.layer_count)
        }
        Some((index, Some(layer))) if name.contains("ffn_") => {
            let kind = if layer.is_moe { "an expert layer" } else { "a dense layer" };
            format!(
                "layer {index} is {kind}, as flint.leading_dense_block_count is {}, and has no such part",
                config.lead_layer_count
            )
        }
        _ => "the Flint graph has no such part, so this runtime would not read it".to_owned(),
    }
}
