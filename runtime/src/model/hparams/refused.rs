//! Keys that ask for arithmetic which this runtime does not do.
//!
//! Such a key may stand in the file with the value that changes nothing; with any other value the model is refused.
//! Keys that are unknown altogether are let through: converters add descriptions freely, and what changes a result
//! usually brings a tensor, and no unknown tensor is let through.

use super::error::ConfigError;
use crate::gguf::{Metadata, Value};

/// The values with which a key changes nothing.
enum Neutral {
    /// One of these numbers.
    Numbers(&'static [f64]),
    /// This boolean.
    Truth(bool),
    /// This text.
    Text(&'static str),
    /// None.
    Nothing,
}

use Neutral::{Nothing, Numbers, Text, Truth};

/// Keys below `flint.`; names of llama.cpp.
const KEYS: [(&str, Neutral); 32] = [
    ("attn_logit_softcapping", Numbers(&[0.0])),
    ("final_logit_softcapping", Numbers(&[0.0])),
    ("router_logit_softcapping", Numbers(&[0.0])),
    ("logit_scale", Numbers(&[1.0])),
    ("residual_scale", Numbers(&[1.0])),
    ("embedding_scale", Numbers(&[1.0])),
    ("hidden_act", Text("silu")),
    ("use_parallel_residual", Truth(false)),
    ("tensor_data_layout", Text("reference")),
    ("attention.causal", Truth(true)),
    ("attention.clamp_kqv", Numbers(&[0.0])),
    ("attention.group_norm_epsilon", Nothing),
    ("attention.key_length_mla", Nothing),
    ("attention.kv_lora_rank", Numbers(&[0.0])),
    ("attention.layer_norm_epsilon", Nothing),
    ("attention.max_alibi_bias", Numbers(&[0.0])),
    ("attention.output_scale", Numbers(&[1.0])),
    ("attention.q_lora_rank", Numbers(&[0.0])),
    ("attention.shared_kv_layers", Numbers(&[0.0])),
    ("attention.temperature_length", Numbers(&[0.0])),
    ("attention.temperature_scale", Numbers(&[0.0])),
    ("attention.value_length_mla", Nothing),
    ("expert_group_count", Numbers(&[0.0, 1.0])),
    ("expert_group_used_count", Numbers(&[0.0, 1.0])),
    ("interleave_moe_layer_step", Numbers(&[0.0, 1.0])),
    ("moe_every_n_layers", Numbers(&[0.0, 1.0])),
    ("nextn_predict_layers", Numbers(&[0.0])),
    ("rope.dimension_sections", Nothing),
    ("rope.scale_linear", Numbers(&[0.0, 1.0])),
    ("rope.scaling.factor", Numbers(&[0.0, 1.0])),
    ("rope.scaling.finetuned", Truth(false)),
    ("rope.scaling.type", Text("none")),
];

/// Refuses what this runtime does not do, whatever the other keys say.
pub(super) fn check(metadata: &Metadata) -> Result<(), ConfigError> {
    for (key, value) in metadata.iter() {
        let Some(name) = key.strip_prefix("flint.") else { continue };
        let neutral = match KEYS.iter().find(|(known, _)| *known == name) {
            Some((_, neutral)) => neutral,
            // Of these every other one scales the angles.
            None if name.starts_with("rope.scaling.") => &Nothing,
            None => continue,
        };
        if !is_neutral(value, neutral) {
            return Err(ConfigError::Key {
                key: key.to_owned(),
                found: value.to_string(),
                wanted: wanted(neutral),
            });
        }
    }
    Ok(())
}

fn is_neutral(value: &Value, neutral: &Neutral) -> bool {
    match neutral {
        Numbers(numbers) => value.as_f64().is_some_and(|found| numbers.contains(&found)),
        Truth(truth) => *value == Value::Bool(*truth),
        Text(text) => matches!(value, Value::String(found) if found == text.as_bytes()),
        Nothing => false,
    }
}

fn wanted(neutral: &Neutral) -> String {
    let effect = "this runtime does nothing else";
    match neutral {
        Numbers(numbers) => {
            let numbers: Vec<String> = numbers.iter().map(f64::to_string).collect();
            format!("{} or no such key: {effect}", numbers.join(" or "))
        }
        Truth(truth) => format!("{truth} or no such key: {effect}"),
        Text(text) => format!("{text:?} or no such key: {effect}"),
        Nothing => "no such key: this runtime does not do what it asks for".to_owned(),
    }
}
