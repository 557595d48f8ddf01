//! The numbers of a Flint: the right ones from right files, and for each wrong key or tensor a refusal that names it,
//! what it is and what was wanted.

use std::path::Path;

use flint_rt::gguf::Gguf;
use flint_rt::model::hparams::{ConfigError, FlintConfig, LayerKind};

use crate::support::{assert_mentions, parse_written};
use crate::tiny_gguf::{F32, GgufWriter, Item, Q4_1, TinyShape, tiny_flint, tiny_flint_of, tiny_vocabulary};

fn config_of(writer: &GgufWriter) -> Result<FlintConfig, ConfigError> {
    FlintConfig::from_gguf(&parse_written(writer).expect("the file itself is right"))
}

/// A tiny Flint with `change` made to it is refused, and the message holds all of `parts`.
#[track_caller]
fn assert_refused(change: impl FnOnce(&mut GgufWriter) -> &mut GgufWriter, parts: &[&str]) -> ConfigError {
    let mut writer = tiny_flint(1);
    change(&mut writer);
    let error = config_of(&writer).expect_err("a model that must be refused was accepted");
    assert_mentions(&error.to_string(), parts);
    error
}

/// `key` with `value` is refused by name, with what it holds and with `wanted`.
#[track_caller]
fn assert_key_refused(key: &str, value: impl Into<Item>, wanted: &str) {
    let value = value.into();
    assert_refused(|w| w.set(key, value), &[&format!("key {key} is "), wanted]);
}

/// A tiny Flint with `change` made to it is accepted.
#[track_caller]
fn accepted(change: impl FnOnce(&mut GgufWriter) -> &mut GgufWriter) -> FlintConfig {
    let mut writer = tiny_flint(1);
    change(&mut writer);
    config_of(&writer).expect("a model that must be accepted was refused")
}

#[test]
fn tiny_model_has_its_numbers() {
    let shape = TinyShape::default();
    let config = accepted(|w| w);
    let vocabulary = u32::try_from(tiny_vocabulary().tokens.len()).unwrap();
    assert_eq!(config.name, "Flint tiny (random)");
    assert_eq!((config.layer_count, config.lead_layer_count, config.moe_layer_count()), (4, 1, 3));
    assert_eq!((config.embed_dim, config.head_count, config.kv_head_count, config.head_dim), (64, 4, 2, 32));
    assert_eq!((config.ffn_dim, config.expert_ffn_dim, config.shared_ffn_dim), (96, 32, 64));
    assert_eq!((config.expert_count, config.experts_used), (8, 3));
    assert_eq!((config.vocabulary, config.context_len, config.window), (vocabulary, 512, 9));
    assert_eq!((config.rope_base, config.norm_epsilon, config.expert_weights_scale), (10000.0, 1e-6, 1.0));
    assert_eq!((config.bos, config.eos), (Some(0), Some(1)));
    let wanted: Vec<LayerKind> = (0..4)
        .map(|layer| LayerKind {
            window: shape.slides[layer].then_some(9),
            rope: shape.rotates[layer],
            is_moe: layer >= 1,
        })
        .collect();
    assert_eq!(config.layers, wanted, "window and rotation are independent");
    assert_eq!((config.gate_bytes(), config.up_bytes(), config.down_bytes()), (1280, 1280, 1280));
    assert_eq!(config.record_bytes(), 3840);
}

#[test]
fn bundled_model_has_its_numbers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/flint-nano-q4_1.gguf");
    let gguf = Gguf::read(&path).unwrap();
    assert_eq!((gguf.version, gguf.alignment, gguf.data_start), (3, 32, 100_512));
    assert_eq!((gguf.metadata.len(), gguf.tensors.len(), gguf.file_len_bytes), (41, 123, 9_637_280));
    let config = FlintConfig::from_gguf(&gguf).unwrap();
    assert_eq!(config.name, "Flint nano (test model)");
    assert_eq!((config.layer_count, config.lead_layer_count), (8, 2));
    assert_eq!(
        (config.embed_dim, config.head_count, config.kv_head_count, config.head_dim),
        (256, 4, 2, 128)
    );
    assert_eq!((config.ffn_dim, config.expert_ffn_dim, config.shared_ffn_dim), (512, 64, 128));
    assert_eq!((config.expert_count, config.experts_used, config.window), (16, 4, 129));
    assert_eq!((config.vocabulary, config.context_len), (3072, 4096));
    assert_eq!((config.rope_base, config.norm_epsilon, config.expert_weights_scale), (10000.0, 1e-6, 1.0));
    assert_eq!((config.bos, config.eos), (Some(0), Some(1)));
    assert_eq!(config.record_bytes(), 30_720);
    for (index, layer) in config.layers.iter().enumerate() {
        let is_full = index % 4 == 3;
        let wanted = LayerKind { window: (!is_full).then_some(129), rope: !is_full, is_moe: index >= 2 };
        assert_eq!(*layer, wanted, "layer {index}");
    }
    let last = gguf.tensors.iter().max_by_key(|tensor| tensor.offset_bytes).unwrap();
    assert_eq!(last.end_bytes(), gguf.file_len_bytes);
}

#[test]
fn real_shape_has_the_real_record() {
    assert_eq!(FlintConfig::matrix_bytes(512, 2048), 655_360);
    assert_eq!(2 * FlintConfig::matrix_bytes(512, 2048) + FlintConfig::matrix_bytes(2048, 512), 1_966_080);
}

#[test]
fn other_files_are_refused() {
    assert_key_refused("general.architecture", "llama", "wanted \"flint\"");
    assert_refused(|w| w.remove("general.architecture"), &["general.architecture", "missing"]);
    assert_key_refused("general.architecture", 1u32, "a string");
    assert_key_refused("general.type", "adapter", "\"model\"");
    // Whether all parts are there is asked where they are joined.
    accepted(|w| w.set("split.count", 3u16));
    assert_key_refused("general.quantization_version", 1u32, "wanted 2");
}

#[test]
fn counts_have_their_ranges() {
    let layers: [Item; 7] = [
        0u32.into(),
        513u32.into(),
        (1u32 << 31).into(),
        (-1i32).into(),
        (-1i64).into(),
        ((1u64 << 32) + 4).into(),
        vec![4u32].into(),
    ];
    for count in layers {
        assert_key_refused("flint.block_count", count, "from 1 to 512");
    }
    assert_refused(|w| w.remove("flint.block_count"), &["flint.block_count is missing", "from 1 to 512"]);
    assert_key_refused("flint.leading_dense_block_count", 4u32, "from 0 to 3");
    assert_key_refused("flint.expert_count", 0u32, "from 1 to 4096");
    assert_key_refused("flint.expert_count", 4097u32, "from 1 to 4096");
    assert_key_refused("flint.expert_used_count", 0u32, "from 1 to 8");
    assert_key_refused("flint.expert_used_count", 9u32, "from 1 to 8");
    assert_refused(
        |w| w.set("flint.expert_count", 64u32).set("flint.expert_used_count", 33u32),
        &["flint.expert_used_count is u32 33", "from 1 to 32"],
    );
    assert_key_refused("flint.attention.head_count", 0u32, "from 1 to 1024");
    assert_key_refused("flint.attention.head_count", vec![4u32; 4], "from 1 to 1024");
    assert_key_refused("flint.attention.head_count_kv", 0u32, "from 1 to 4");
    assert_key_refused("flint.attention.head_count_kv", 5u32, "from 1 to 4");
    assert_key_refused("flint.attention.head_count_kv", 3u32, "divisor of the 4");
    assert_key_refused("flint.context_length", 0u32, "from 1 to 16777216");
    assert_key_refused("flint.embedding_length", 0u32, "from 32 to");
    assert_key_refused("flint.embedding_length", 48u32, "multiple of 32");
    assert_key_refused("flint.feed_forward_length", 40u32, "multiple of 32");
    assert_key_refused("flint.expert_feed_forward_length", 0u32, "from 32 to");
    assert_key_refused("flint.expert_shared_feed_forward_length", 65u32, "multiple of 32");
    accepted(|w| w.set("flint.block_count", 4u8).set("flint.expert_count", 8i64));
}

#[test]
fn heads_are_one_width() {
    assert_key_refused("flint.attention.key_length", 0u32, "from 4 to 256");
    assert_key_refused("flint.attention.key_length", 30u32, "multiple of 4 from 4 to 256");
    assert_key_refused("flint.attention.key_length", 260u32, "from 4 to 256");
    assert_key_refused("flint.attention.key_length", 36u32, "multiple of 32 wide together");
    assert_key_refused("flint.attention.value_length", 64u32, "32, as wide as the keys");
    assert_key_refused("flint.rope.dimension_count", 16u32, "32, as wide as the keys");
    assert_key_refused("flint.attention.key_length_swa", 64u32, "32, as wide as the keys");
    // Without the key a head is the model's width over its heads: 16 here, which the tensors contradict.
    assert_refused(
        |w| {
            w.remove("flint.attention.key_length").remove("flint.attention.value_length");
            w.remove("flint.rope.dimension_count")
        },
        &["blk.0.attn_q.weight is Q4_1 [64, 128], wanted Q4_1 [64, 64]"],
    );
    accepted(|w| w.remove("flint.attention.value_length").remove("flint.rope.dimension_count"));
    let shape = TinyShape { head_dim: 16, ..TinyShape::default() };
    let mut writer = tiny_flint_of(1, &shape);
    writer.remove("flint.attention.key_length");
    assert_eq!(config_of(&writer).unwrap().head_dim, 16);
}

#[test]
fn window_is_the_files_number_unchanged() {
    for window in [1u32, 511, 512] {
        let config = accepted(|w| w.set("flint.attention.sliding_window", window));
        assert_eq!((config.window, config.layers[0].window), (window, Some(window)));
    }
    let shape = TinyShape { window: 513, context: 262_144, ..TinyShape::default() };
    assert_eq!(config_of(&tiny_flint_of(1, &shape)).unwrap().layers[2].window, Some(513));
    assert_key_refused("flint.attention.sliding_window", 0u32, "from 1 to 512");
    assert_key_refused("flint.attention.sliding_window", 513u32, "from 1 to 512");
    assert_refused(|w| w.remove("flint.attention.sliding_window"), &["sliding_window is missing"]);
    let none = accepted(|w| {
        w.set("flint.attention.sliding_window_pattern", vec![false; 4])
            .remove("flint.attention.sliding_window")
    });
    assert_eq!(none.window, 0);
    assert!(none.layers.iter().all(|layer| layer.window.is_none()), "no layer slides");
}

#[test]
fn patterns_have_one_entry_a_layer() {
    for key in ["flint.attention.sliding_window_pattern", "flint.attention.rope_pattern"] {
        for len in [1, 3, 5, 64] {
            assert_refused(
                |w| w.set(key, vec![true; len]),
                &[key, &format!("array of {len} bool"), "an array of 4 bool, one a layer"],
            );
        }
        assert_key_refused(key, 4u32, "an array of bool");
        assert_key_refused(key, vec![0i32, 1, 2, 0], "an array of bool");
        assert_key_refused(key, vec![0.0f32; 4], "an array of bool");
        assert_key_refused(key, Item::Array(7, Vec::new()), "an array of 4 bool");
        assert_refused(|w| w.remove(key), &[key, "missing"]);
    }
    let config = accepted(|w| w.set("flint.attention.rope_pattern", vec![0u32, 1, 1, 0]));
    let rotates: Vec<bool> = config.layers.iter().map(|layer| layer.rope).collect();
    assert_eq!(rotates, [false, true, true, false], "numbers 0 and 1 do as well");
    let slides: Vec<bool> = config.layers.iter().map(|layer| layer.window.is_some()).collect();
    assert_eq!(slides, TinyShape::default().slides, "one pattern does not follow the other");
}

#[test]
fn router_is_the_one_that_runs() {
    for func in [0u32, 1, 3] {
        assert_key_refused("flint.expert_gating_func", func, "from 2 to 2");
    }
    assert_refused(|w| w.remove("flint.expert_gating_func"), &["expert_gating_func is missing"]);
    assert_key_refused("flint.expert_weights_norm", false, "bool true");
    assert_refused(
        |w| w.remove("flint.expert_weights_norm"),
        &["flint.expert_weights_norm is missing", "bool true"],
    );
    assert_key_refused("flint.expert_weights_norm", 1u32, "a bool");
}

#[test]
fn weights_scale_of_zero_and_none_are_one() {
    let scale = |scale: f32| accepted(|w| w.set("flint.expert_weights_scale", scale)).expert_weights_scale;
    assert_eq!((scale(0.0), scale(-0.0), scale(1.0), scale(2.5)), (1.0, 1.0, 1.0, 2.5));
    assert_eq!(accepted(|w| w.remove("flint.expert_weights_scale")).expert_weights_scale, 1.0);
    for scale in [-1.0, f32::NAN, f32::INFINITY] {
        assert_key_refused("flint.expert_weights_scale", scale, "finite");
    }
    assert_key_refused("flint.expert_weights_scale", 1u32, "an f32");
}

#[test]
fn numbers_are_finite_and_positive() {
    for key in ["flint.rope.freq_base", "flint.attention.layer_norm_rms_epsilon"] {
        for number in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_key_refused(key, number, "a finite number above 0");
        }
        assert_refused(|w| w.remove(key), &[key, "missing"]);
    }
    assert_key_refused("flint.attention.layer_norm_rms_epsilon", 1.0f32, "below 1");
}

#[test]
fn arithmetic_that_does_not_run_is_refused() {
    let refused: [(&str, Item, Option<Item>); 17] = [
        ("attn_logit_softcapping", 50.0f32.into(), Some(0.0f32.into())),
        ("final_logit_softcapping", 30.0f32.into(), Some(0.0f32.into())),
        ("router_logit_softcapping", 30.0f32.into(), Some(0.0f32.into())),
        ("logit_scale", 0.5f32.into(), Some(1.0f32.into())),
        ("embedding_scale", 8.0f32.into(), Some(1.0f32.into())),
        ("residual_scale", 0.2f32.into(), Some(1.0f32.into())),
        ("attention.clamp_kqv", 8.0f32.into(), Some(0.0f32.into())),
        ("attention.causal", false.into(), Some(true.into())),
        ("attention.layer_norm_epsilon", 1e-5f32.into(), None),
        ("expert_group_count", 8u32.into(), Some(1u32.into())),
        ("nextn_predict_layers", 1u32.into(), Some(0u32.into())),
        ("rope.scaling.type", "yarn".into(), Some("none".into())),
        ("rope.scaling.factor", 4.0f32.into(), Some(1.0f32.into())),
        ("rope.scaling.original_context_length", 4096u32.into(), None),
        ("rope.scaling.attn_factor", 1.0f32.into(), None),
        ("rope.freq_base_swa", 500.0f32.into(), Some(10000.0f32.into())),
        ("attention.scale", 0.1f32.into(), Some((1.0 / 32f32.sqrt()).into())),
    ];
    for (name, wrong, neutral) in refused {
        let key = format!("flint.{name}");
        assert_key_refused(&key, wrong, "wanted");
        if let Some(neutral) = neutral {
            accepted(|w| w.set(&key, neutral));
        }
    }
    accepted(|w| w.set("flint.a_note", "that changes nothing").set("llama.rope.scaling.type", "yarn"));
}

#[test]
fn every_tensor_must_be_there_as_wanted() {
    let tensors: Vec<_> =
        tiny_flint(1).tensors.iter().map(|t| (t.name.clone(), t.kind, t.dims.clone())).collect();
    for (name, kind, dims) in tensors {
        let error = assert_refused(
            |w| {
                w.remove_tensor(&name);
                w
            },
            &[&name, "is missing"],
        );
        assert!(matches!(error, ConfigError::MissingTensor { .. }), "{error:?}");
        // The other type, with as many values.
        let (other, bytes) = if kind == F32 { (1, 2) } else { (F32, 4) };
        let len = usize::try_from(dims.iter().product::<u64>()).unwrap() * bytes;
        let other_name = if kind == F32 { "F16" } else { "F32" };
        assert_refused(
            |w| {
                w.tensor(&name).kind = other;
                w.tensor(&name).data = vec![0; len];
                w
            },
            &[&format!("tensor {name} is {other_name}"), "wanted"],
        );
        // One row or value less. The rows of the token table are the vocabulary, which the tokens then contradict.
        let what = if name == "token_embd.weight" { "tokenizer.ggml.tokens" } else { name.as_str() };
        assert_refused(
            |w| {
                *w.tensor(&name).dims.last_mut().unwrap() -= 1;
                w
            },
            &[what, "wanted"],
        );
        // One dimension more.
        assert_refused(
            |w| {
                w.tensor(&name).dims.push(1);
                w
            },
            &[&name, "1]", "wanted"],
        );
    }
}

#[test]
fn sinks_are_wanted_in_every_layer() {
    for layer in 0..4 {
        let name = format!("blk.{layer}.attn_sinks.weight");
        assert_refused(
            |w| {
                w.remove_tensor(&name);
                w
            },
            &[&name, "missing, wanted F32 [4]"],
        );
    }
}

#[test]
fn tensors_nobody_reads_are_refused() {
    let wrong = [
        ("blk.2.exp_probs_b.bias", "bias"),
        ("blk.2.exp_probs_b", "selection bias"),
        ("blk.0.attn_q.bias", "a bias"),
        ("blk.0.attn_sinks", "no such part"),
        ("blk.2.ffn_gate_up_exps.weight", "fused gate and up"),
        ("blk.0.attn_qkv.weight", "fused query"),
        ("rope_freqs.weight", "rotary"),
        ("blk.2.ffn_gate_inp_shexp.weight", "gate on the shared expert"),
        ("blk.1.ffn_gate.weight", "layer 1 is an expert layer"),
        ("blk.0.ffn_gate_exps.weight", "layer 0 is a dense layer"),
        ("blk.4.attn_norm.weight", "flint.block_count is 4, so there is no layer 4"),
        ("blk.0.attn_post_norm.weight", "no such part"),
        ("blk.99999999999999999999.x", "no such part"),
        ("mystery", "no such part"),
    ];
    for (name, reason) in wrong {
        let error = assert_refused(
            |w| w.add_tensor(name, F32, &[8], vec![0; 32]),
            &[&format!("tensor {name} is F32 [8]"), "wanted no such tensor", reason],
        );
        assert!(matches!(error, ConfigError::UnknownTensor { .. }), "{error:?}");
    }
    // A fused file lacks the halves as well; the message is about what it has.
    assert_refused(
        |w| {
            let mut fused = w.remove_tensor("blk.2.ffn_gate_exps.weight");
            w.remove_tensor("blk.2.ffn_up_exps.weight");
            fused.name = "blk.2.ffn_gate_up_exps.weight".to_owned();
            w.tensors.push(fused);
            w
        },
        &["blk.2.ffn_gate_up_exps.weight", "fused gate and up"],
    );
}

#[test]
fn lead_layers_and_tensors_agree() {
    assert_refused(
        |w| w.set("flint.leading_dense_block_count", 2u32),
        &["blk.1.ffn_gate_inp.weight", "layer 1 is a dense layer", "leading_dense_block_count is 2"],
    );
    assert_refused(
        |w| w.set("flint.leading_dense_block_count", 0u32),
        &["blk.0.ffn_gate.weight", "layer 0 is an expert layer"],
    );
    let shape = TinyShape { lead_layers: 0, ..TinyShape::default() };
    let mut writer = tiny_flint_of(1, &shape);
    writer.remove("flint.feed_forward_length");
    let config = config_of(&writer).expect("without lead layers their width is not needed");
    assert_eq!((config.ffn_dim, config.moe_layer_count()), (0, 4));

    assert_refused(
        |w| {
            w.set("flint.block_count", 3u32);
            w.set("flint.attention.rope_pattern", vec![true; 3]);
            w.set("flint.attention.sliding_window_pattern", vec![true; 3])
        },
        &["blk.3.attn_norm.weight", "no layer 3"],
    );
}

#[test]
fn vocabulary_is_one_number() {
    let rows = tiny_vocabulary().tokens.len();
    let fewer: Vec<String> = tiny_vocabulary().tokens[1..].to_vec();
    assert_key_refused(
        "tokenizer.ggml.tokens",
        fewer.iter().map(String::as_str).collect::<Vec<_>>(),
        &format!("{rows}, one a row of token_embd.weight"),
    );
    assert_key_refused("flint.vocab_size", 300u32, &format!("{rows}, one a row"));
    assert_key_refused("tokenizer.ggml.bos_token_id", u32::try_from(rows).unwrap(), "a token from 0 to");
    assert_key_refused("tokenizer.ggml.eos_token_id", -1i32, "a token from 0 to");
    let config = accepted(|w| w.remove("tokenizer.ggml.bos_token_id").remove("tokenizer.ggml.eos_token_id"));
    assert_eq!((config.bos, config.eos), (None, None));
    accepted(|w| w.remove("flint.vocab_size"));
    accepted(|w| w.remove("tokenizer.ggml.tokens"));
    assert_refused(
        |w| w.remove("tokenizer.ggml.tokens").remove("flint.vocab_size"),
        &["tokenizer.ggml.tokens is missing"],
    );
    // A tied head: the file has no output.weight.
    assert_refused(
        |w| {
            w.remove_tensor("output.weight");
            w
        },
        &["output.weight is missing", "Q4_1 [64,"],
    );
    assert_refused(
        |w| {
            let tensor = w.tensor("output.weight");
            *tensor.dims.last_mut().unwrap() -= 1;
            assert_eq!(tensor.kind, Q4_1);
            w
        },
        &["output.weight is Q4_1 [64, 300]", "wanted Q4_1 [64, 301]"],
    );
}

#[test]
fn tiny_models_differ_by_seed_alone() {
    assert_eq!(tiny_flint(3).bytes(), tiny_flint(3).bytes());
    assert_ne!(tiny_flint(3).bytes(), tiny_flint(4).bytes());
}
