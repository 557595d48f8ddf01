//! How kernels are cut up, by kind of device. Pure.
//!
//! - Owns: nothing. In: what a device says of itself. Out: a [`Tuning`], which [`super::Pipelines`] compiles in.
//! - Invariants: a tuning changes how fast a model is, and in which order sums are taken, so the last bits of what it says; never what
//!   is computed. [`Tuning::deterministic`] gives one for which a row's bits depend on nothing else.

use crate::gpu::DeviceKind;

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
}

impl Tuning {
    /// The sizes for a kind of device.
    pub fn for_device(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Software => Self {
                rows_one: 8,
                rows_few: 4,
                rows_many: 4,
                tokens_many: 8,
                subgroups_one: 1,
                subgroups_norm: 1,
                decode_splits: 2,
            },
            _ => Self {
                rows_one: 2,
                rows_few: 2,
                rows_many: 4,
                tokens_many: 8,
                subgroups_one: 4,
                subgroups_norm: 4,
                decode_splits: 16,
            },
        }
    }

    /// The same, so that a row's bits do not depend on whether it is the next token of a sequence or one of a prompt: one subgroup
    /// sums a product, and nobody's keys are split.
    pub fn deterministic(self) -> Self {
        Self { subgroups_one: 1, decode_splits: 1, ..self }
    }
}
