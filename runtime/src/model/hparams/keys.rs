//! The keys of a Flint, one by one: each method reads one number, or one group that must agree, and refuses the rest.

use std::ops::RangeInclusive;

use super::config::{BLOCK_LEN, LayerKind};
use super::error::ConfigError;
use super::tensor_list::{self, TOKEN_TABLE};
use crate::base::ids::TokenId;
use crate::base::limits::{HEAD_DIM_MAX, VOCABULARY_MAX, WIDTH_MAX};
use crate::gguf::{Gguf, Metadata, TensorKind};

/// `expert_gating_func`: 1 is softmax, 2 is sigmoid.
const GATING_SIGMOID: u32 = 2;

/// The keys of a Flint. Names given to its methods are those below `flint.`, unless they say otherwise.
pub(super) struct Keys<'a>(pub(super) &'a Metadata);

impl Keys<'_> {
    /// The checks of what kind of file it is.
    pub(super) fn check_file(&self) -> Result<(), ConfigError> {
        let architecture = self.0.str("general.architecture")?;
        if architecture != "flint" {
            return Err(
                self.refuse("general.architecture", "\"flint\": this runtime runs no other architecture")
            );
        }
        if self.0.str_opt("general.type")?.is_some_and(|kind| kind != "model") {
            return Err(self.refuse("general.type", "\"model\""));
        }
        if self.0.u32_opt("general.quantization_version")?.is_some_and(|version| version != 2) {
            return Err(self.refuse(
                "general.quantization_version",
                "2: blocks of other versions are laid out otherwise",
            ));
        }
        Ok(())
    }

    /// The error that `key`, given in full, is not `wanted`.
    fn refuse(&self, key: &str, wanted: impl Into<String>) -> ConfigError {
        let found = self.0.get(key).map_or_else(|| "missing".to_owned(), ToString::to_string);
        ConfigError::Key { key: key.to_owned(), found, wanted: wanted.into() }
    }

    /// A whole number within `range`, of any integer type.
    pub(super) fn count(&self, name: &str, range: RangeInclusive<u32>) -> Result<u32, ConfigError> {
        let key = format!("flint.{name}");
        let number =
            self.0.get(&key).and_then(|value| value.as_u64()).and_then(|number| number.try_into().ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            self.refuse(&key, format!("a whole number from {} to {}", range.start(), range.end()))
        })
    }

    /// The width of a vector that a Q4_1 matrix takes.
    pub(super) fn width(&self, name: &str) -> Result<u32, ConfigError> {
        let width = self.count(name, BLOCK_LEN..=WIDTH_MAX)?;
        if !width.is_multiple_of(BLOCK_LEN) {
            return Err(self
                .refuse(&format!("flint.{name}"), format!("a multiple of {BLOCK_LEN}, the block of Q4_1")));
        }
        Ok(width)
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, name: &str) -> Result<f32, ConfigError> {
        let key = format!("flint.{name}");
        let number = self.0.f32(&key)?;
        if !(number.is_finite() && number > 0.0) {
            return Err(self.refuse(&key, "a finite number above 0"));
        }
        Ok(number)
    }

    pub(super) fn kv_head_count(&self, head_count: u32) -> Result<u32, ConfigError> {
        let name = "attention.head_count_kv";
        let count = self.count(name, 1..=head_count)?;
        if !head_count.is_multiple_of(count) {
            return Err(
                self.refuse(&format!("flint.{name}"), format!("a divisor of the {head_count} query heads"))
            );
        }
        Ok(count)
    }

    /// The width of a head: `attention.key_length`, else the model's width over its heads. All that could differ from
    /// it must not.
    pub(super) fn head_dim(&self, embed_dim: u32, head_count: u32) -> Result<u32, ConfigError> {
        let name = "attention.key_length";
        let key = format!("flint.{name}");
        let wanted = format!("a multiple of 4 from 4 to {HEAD_DIM_MAX}");
        let head_dim = if self.0.get(&key).is_some() {
            self.count(name, 4..=HEAD_DIM_MAX)?
        } else if embed_dim.is_multiple_of(head_count) && embed_dim / head_count <= HEAD_DIM_MAX {
            embed_dim / head_count
        } else {
            return Err(self.refuse(&key, wanted));
        };
        if !head_dim.is_multiple_of(4) {
            return Err(self.refuse(&key, wanted));
        }
        if !(u64::from(head_count) * u64::from(head_dim)).is_multiple_of(BLOCK_LEN.into()) {
            return Err(self.refuse(
                &key,
                format!("{head_count} heads that are a multiple of {BLOCK_LEN} wide together"),
            ));
        }
        for twin in [
            "attention.value_length",
            "rope.dimension_count",
            "attention.key_length_swa",
            "attention.value_length_swa",
            "rope.dimension_count_swa",
        ] {
            let twin = format!("flint.{twin}");
            if self.0.u32_opt(&twin)?.is_some_and(|dim| dim != head_dim) {
                return Err(self.refuse(&twin, format!("{head_dim}, as wide as the keys")));
            }
        }
        self.check_attention_scale(head_dim)?;
        Ok(head_dim)
    }

    /// `attention.scale` may only be what it is without the key.
    fn check_attention_scale(&self, head_dim: u32) -> Result<(), ConfigError> {
        let key = "flint.attention.scale";
        let usual = 1.0 / f64::from(head_dim).sqrt();
        match self.0.f32_opt(key)? {
            // 0 stands for "as usual".
            None | Some(0.0) => Ok(()),
            // 1e-6 is above the rounding of one 32-bit float.
            Some(scale) if (f64::from(scale) / usual - 1.0).abs() <= 1e-6 => Ok(()),
            Some(_) => Err(self.refuse(key, format!("{usual}, one over the root of the head's width"))),
        }
    }

    /// A base of its own for sliding layers may only be the same.
    pub(super) fn check_rope_twin(&self, rope_base: f32) -> Result<(), ConfigError> {
        let key = "flint.rope.freq_base_swa";
        if self.0.f32_opt(key)?.is_some_and(|base| base != rope_base) {
            return Err(self.refuse(key, format!("{rope_base}, the same for all layers")));
        }
        Ok(())
    }

    pub(super) fn check_router(&self) -> Result<(), ConfigError> {
        self.count("expert_gating_func", GATING_SIGMOID..=GATING_SIGMOID)?;
        // Readers of this key disagree about what its absence means, so it must be there.
        let key = "flint.expert_weights_norm";
        if self.0.bool_opt(key)? != Some(true) {
            return Err(self.refuse(key, "bool true, stated: weights are normalised over the picks"));
        }
        Ok(())
    }

    pub(super) fn norm_epsilon(&self) -> Result<f32, ConfigError> {
        let name = "attention.layer_norm_rms_epsilon";
        let epsilon = self.positive(name)?;
        if epsilon >= 1.0 {
            return Err(self.refuse(&format!("flint.{name}"), "a number above 0 and below 1"));
        }
        Ok(epsilon)
    }

    /// Absent and 0 both mean that nothing is scaled.
    pub(super) fn expert_weights_scale(&self) -> Result<f32, ConfigError> {
        let key = "flint.expert_weights_scale";
        match self.0.f32_opt(key)? {
            None | Some(0.0) => Ok(1.0),
            Some(scale) if scale.is_finite() && scale > 0.0 => Ok(scale),
            Some(_) => Err(self.refuse(key, "a finite number, 0 (for 1) or above")),
        }
    }

    /// The window and what each layer is.
    pub(super) fn layers(
        &self,
        layer_count: u32,
        lead_layer_count: u32,
        context_len: u32,
    ) -> Result<(u32, Vec<LayerKind>), ConfigError> {
        let slides = self.pattern("attention.sliding_window_pattern", layer_count)?;
        let rotates = self.pattern("attention.rope_pattern", layer_count)?;
        let window =
            if slides.contains(&true) { self.count("attention.sliding_window", 1..=context_len)? } else { 0 };
        let layers = (0..layer_count)
            .zip(slides.iter().zip(&rotates))
            .map(|(index, (&slides, &rope))| LayerKind {
                window: slides.then_some(window),
                rope,
                is_moe: index >= lead_layer_count,
            })
            .collect();
        Ok((window, layers))
    }

    fn pattern(&self, name: &str, layer_count: u32) -> Result<Vec<bool>, ConfigError> {
        let key = format!("flint.{name}");
        let pattern = self.0.bool_array(&key)?;
        if pattern.len() != layer_count as usize {
            return Err(self.refuse(&key, format!("an array of {layer_count} bool, one a layer")));
        }
        Ok(pattern)
    }

    /// Rows of the token table, which all other statements of the vocabulary must agree with.
    pub(super) fn vocabulary(&self, gguf: &Gguf) -> Result<u32, ConfigError> {
        let wanted = format!("F32 [flint.embedding_length, 1 to {VOCABULARY_MAX} tokens]");
        let Some(table) = gguf.tensors.get(TOKEN_TABLE) else {
            return Err(ConfigError::MissingTensor { tensor: TOKEN_TABLE.to_owned(), wanted });
        };
        let rows = match table.dims[..] {
            [_, rows] if table.kind == TensorKind::F32 => u32::try_from(rows).ok(),
            _ => None,
        };
        let Some(rows) = rows.filter(|rows| (1..=VOCABULARY_MAX).contains(rows)) else {
            let found = tensor_list::describe(table.kind, &table.dims);
            return Err(ConfigError::WrongTensor { tensor: TOKEN_TABLE.to_owned(), found, wanted });
        };
        let per_row = format!("{rows}, one a row of {TOKEN_TABLE}");
        let tokens = self.0.string_array_opt("tokenizer.ggml.tokens")?;
        let stated = self.0.u32_opt("flint.vocab_size")?;
        if tokens.is_some_and(|tokens| tokens.len() != rows as usize)
            || (tokens.is_none() && stated.is_none())
        {
            return Err(self.refuse("tokenizer.ggml.tokens", format!("strings, {per_row}")));
        }
        if stated.is_some_and(|stated| stated != rows) {
            return Err(self.refuse("flint.vocab_size", per_row));
        }
        Ok(rows)
    }

    /// The token id in `key`, given in full.
    pub(super) fn token(&self, key: &str, vocabulary: u32) -> Result<Option<TokenId>, ConfigError> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        match value.as_u64().and_then(|id| TokenId::try_from(id).ok()).filter(|&id| id < vocabulary) {
            Some(id) => Ok(Some(id)),
            None => Err(self.refuse(key, format!("a token from 0 to {}", vocabulary - 1))),
        }
    }

    pub(super) fn name(&self) -> String {
        // Only shown, so a name that is no text is no reason to refuse the model.
        self.0.str_opt("general.name").ok().flatten().unwrap_or("flint").to_owned()
    }
}
