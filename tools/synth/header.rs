//! The header of a synthetic GGUF, version 3.
//!
//! In: dimensions and the tensors' places. Out: all bytes before the first tensor. Pure.

use flint_rt::base::units::align_up;

use super::shape::Shape;
use super::tensors::Tensor;
use super::vocabulary::Vocabulary;

/// GGUF's numbers of the value types used here.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// What a tokenizer's entry is: ordinary text, or a control token.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Key and value pairs as they lie in the file.
#[derive(Default)]
struct Keys {
    bytes: Vec<u8>,
    count: u64,
}

impl Keys {
    fn key(&mut self, key: &str, kind: u32) {
        self.count += 1;
        put_string(&mut self.bytes, key);
        self.put(&kind.to_le_bytes());
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn u32(&mut self, key: &str, value: u32) {
        self.key(key, U32);
        self.put(&value.to_le_bytes());
    }

    fn f32(&mut self, key: &str, value: f32) {
        self.key(key, F32);
        self.put(&value.to_le_bytes());
    }

    fn bool(&mut self, key: &str, value: bool) {
        self.key(key, BOOL);
        self.put(&[u8::from(value)]);
    }

    fn string(&mut self, key: &str, value: &str) {
        self.key(key, STRING);
        put_string(&mut self.bytes, value);
    }

    fn array<T>(&mut self, key: &str, kind: u32, values: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
        self.key(key, ARRAY);
        self.put(&kind.to_le_bytes());
        self.put(&(values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| put(&mut self.bytes, value));
    }

    fn strings(&mut self, key: &str, values: &[String]) {
        self.array(key, STRING, values, |bytes, value| put_string(bytes, value));
    }
}

fn put_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

/// All bytes before the first tensor. `tensors` are given with their offsets from there.
pub(super) fn bytes(name: &str, shape: &Shape, seed: u64, tensors: &[(u64, Tensor)]) -> Vec<u8> {
    let mut keys = Keys::default();
    put_model(&mut keys, name, shape, seed);
    put_tokenizer(&mut keys, shape);

    let mut bytes = b"GGUF".to_vec();
    bytes.extend_from_slice(&3_u32.to_le_bytes());
    bytes.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&keys.count.to_le_bytes());
    bytes.extend_from_slice(&keys.bytes);
    for (offset, tensor) in tensors {
        put_string(&mut bytes, &tensor.name);
        let dims = u32::try_from(tensor.dims.len()).expect("invariant: tensors have up to three dimensions");
        bytes.extend_from_slice(&dims.to_le_bytes());
        tensor.dims.iter().for_each(|dim| bytes.extend_from_slice(&dim.to_le_bytes()));
        bytes.extend_from_slice(&tensor.kind.code().to_le_bytes());
        bytes.extend_from_slice(&offset.to_le_bytes());
    }
    let len = align_up(bytes.len() as u64, shape.alignment.into());
    bytes.resize(usize::try_from(len).expect("invariant: it is in memory"), 0);
    bytes
}

fn put_model(keys: &mut Keys, name: &str, shape: &Shape, seed: u64) {
    keys.string("general.architecture", "flint");
    keys.string("general.type", "model");
    keys.string("general.name", name);
    keys.string(
        "general.description",
        &format!(
            "Random weights of seed {seed} in the form of Flint, for measuring; it says nothing sensible."
        ),
    );
    keys.string("general.license", "cc0-1.0");
    if shape.alignment != 32 {
        keys.u32("general.alignment", shape.alignment);
    }
    keys.u32("flint.context_length", shape.context);
    keys.u32("flint.vocab_size", shape.vocabulary);
    keys.u32("flint.block_count", shape.layers);
    keys.u32("flint.leading_dense_block_count", shape.lead_layers);
    keys.u32("flint.embedding_length", shape.embed);
    keys.u32("flint.feed_forward_length", shape.ffn);
    keys.u32("flint.attention.head_count", shape.heads);
    keys.u32("flint.attention.head_count_kv", shape.kv_heads);
    keys.u32("flint.attention.key_length", shape.head_dim);
    keys.u32("flint.attention.value_length", shape.head_dim);
    keys.u32("flint.rope.dimension_count", shape.head_dim);
    keys.f32("flint.rope.freq_base", 10_000.0);
    keys.f32("flint.attention.layer_norm_rms_epsilon", 1e-6);
    keys.u32("flint.attention.sliding_window", shape.window);
    // The layers that slide are those that rotate.
    for key in ["flint.attention.sliding_window_pattern", "flint.attention.rope_pattern"] {
        keys.array(key, BOOL, &shape.slides(), |bytes, value| bytes.push(u8::from(*value)));
    }
    keys.u32("flint.expert_count", shape.experts);
    keys.u32("flint.expert_used_count", shape.experts_used);
    keys.u32("flint.expert_feed_forward_length", shape.expert_ffn);
    keys.u32("flint.expert_shared_feed_forward_length", shape.shared_ffn);
    keys.f32("flint.expert_weights_scale", 1.0);
    keys.bool("flint.expert_weights_norm", true);
    // Sigmoid.
    keys.u32("flint.expert_gating_func", 2);
    keys.u32("general.quantization_version", 2);
    // Mostly Q4_1.
    keys.u32("general.file_type", 3);
}

fn put_tokenizer(keys: &mut Keys, shape: &Shape) {
    let vocabulary = Vocabulary::new(shape.vocabulary);
    let kinds: Vec<i32> = (0..vocabulary.tokens.len())
        .map(|id| if id < vocabulary.control_count { CONTROL } else { NORMAL })
        .collect();
    keys.string("tokenizer.ggml.model", "gpt2");
    keys.string("tokenizer.ggml.pre", "flint");
    keys.strings("tokenizer.ggml.tokens", &vocabulary.tokens);
    keys.array("tokenizer.ggml.token_type", I32, &kinds, |bytes, kind| bytes.extend(kind.to_le_bytes()));
    keys.strings("tokenizer.ggml.merges", &vocabulary.merges);
    keys.u32("tokenizer.ggml.bos_token_id", 0);
    keys.u32("tokenizer.ggml.eos_token_id", 1);
    keys.bool("tokenizer.ggml.add_bos_token", false);
}
