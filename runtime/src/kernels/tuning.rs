//! How kernels are cut up, by kind of device. Pure.
//!
//! - Owns: nothing. In: what a device says of itself. Out: a [`Tuning`], which [`super::Pipelines`] compiles in.
//! - Invariants: a tuning changes how fast a model is, and in which order sums are taken, so the last bits of what it says; never what
//!   is computed. [`Tuning::deterministic`] gives one for which a row's bits depend on nothing else.

use super::many::{Many, ManyForm};
use crate::gpu::{DeviceInfo, DeviceKind};

/// Tile sizes, chosen by the kind of device.
///
/// A software device counts loads, not latency: many rows share the activations that a lane has loaded. A GPU at one
/// token is bound by latency: few rows and more lanes a row (2048 x 2048 on an NVIDIA H200: 1 subgroup 8.9 us, 4
/// subgroups 6.5 us).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Rows of a mat-vec workgroup.
    pub rows_one: u32,
    /// Rows of a workgroup that serves the tokens of a few sequences.
    pub rows_few: u32,
    /// Rows of a workgroup that serves many tokens.
    pub rows_many: u32,
    /// Tokens of such a workgroup.
    pub tokens_many: u32,
    /// Subgroups of a mat-vec workgroup, all on the same rows.
    pub subgroups_one: u32,
    /// Subgroups of a norm's workgroup.
    pub subgroups_norm: u32,
    /// Splits of the visible keys at decode.
    pub decode_splits: u32,
    /// Lanes that share a row of a prompt's attention, a power of two; at most a subgroup is taken.
    pub attention_lanes: u32,
    /// Rows of such a lane: each shares what was loaded of keys and values.
    pub attention_rows: u32,
    /// How products of many rows are computed, and with which tiles.
    pub many: Many,
    /// Subgroups of a workgroup of the attention by cooperative matrices, 1 to 4; 0 takes the other form, as does a device without
    /// matrices of 16 x 16 x 16.
    pub attention_matrix: u32,
    /// Whether next tokens go through the attention of prompts, too, so that their bits are the same.
    pub attends_next_as_prompt: bool,
}

impl Tuning {
    /// The sizes for a kind of device.
    pub fn for_device(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Software => Self {
                rows_one: 8,
                rows_few: 4,
                // Of the processors' time a prompt takes a sixth less than with 4 x 8; 8 x 16 gains 3 % more where it is full.
                rows_many: 8,
                tokens_many: 8,
                subgroups_one: 1,
                subgroups_norm: 1,
                decode_splits: 2,
                attention_lanes: 1,
                attention_rows: 1,
                attention_matrix: 0,
                many: Many::new(ManyForm::Registers, kind),
                attends_next_as_prompt: false,
            },
            _ => Self {
                rows_one: 2,
                rows_few: 2,
                rows_many: 4,
                tokens_many: 8,
                subgroups_one: 4,
                subgroups_norm: 4,
                decode_splits: 16,
                attention_lanes: 4,
                attention_rows: 2,
                attention_matrix: 0,
                many: Many::new(ManyForm::Tiles, kind),
                attends_next_as_prompt: false,
            },
        }
    }

    /// The sizes for a device, and the form of products of many rows that suits it, or `form`; where these are cooperative matrices,
    /// attention of prompts takes them, too.
    pub fn for_gpu(info: &DeviceInfo, form: Option<ManyForm>) -> Self {
        Self::for_device(info.kind).with_form(info, form.unwrap_or_else(|| ManyForm::for_device(info)))
    }

    /// The same, with products of many rows in this form, and attention of prompts in the one that goes with it.
    pub fn with_form(self, info: &DeviceInfo, form: ManyForm) -> Self {
        let attention_matrix = if form == ManyForm::CooperativeMatrix { 4 } else { 0 };
        Self { many: Many::new(form, info.kind), attention_matrix, ..self }
    }

    /// The same, so that a row's bits do not depend on whether it is the next token of a sequence or one of a prompt: one subgroup
    /// sums a product, nobody's keys are split, next tokens attend as prompts do, and products of many rows and attention do without
    /// cooperative matrices.
    pub fn deterministic(self) -> Self {
        let many = Many { form: ManyForm::Registers, ..self.many };
        Self {
            subgroups_one: 1,
            decode_splits: 1,
            many,
            attention_matrix: 0,
            attends_next_as_prompt: true,
            ..self
        }
    }

    /// Pairs of an expert's tile in a step of `tokens` tokens that are a prompt's, each with `experts_used` of `expert_count` experts.
    pub fn tile_pairs(&self, tokens: u32, experts_used: u32, expert_count: u32) -> u32 {
        match self.many.form {
            ManyForm::Registers => self.tokens_many,
            _ => self.many.pairs(f64::from(tokens * experts_used) / f64::from(expert_count)),
        }
    }

    /// The least that [`Self::tile_pairs`] gives: by it the most tiles are counted.
    pub fn tile_pairs_least(&self) -> u32 {
        self.many.experts.iter().map(|tile| tile.tokens).fold(self.tokens_many, u32::min)
    }
}
