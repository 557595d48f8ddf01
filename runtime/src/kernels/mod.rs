//! One typed wrapper a kernel: what the model calls.
//!
//! Owns the pipelines ([`Pipelines`], made up front, one at a time) and, in each wrapper, the descriptor set that binds a
//! kernel to its buffers. In: device buffers with stated shapes. Out: dispatches on a [`crate::gpu::Recorder`].
//!
//! A wrapper is made once, when a model is loaded or a conversation opened; to record it is a grid, a push-constant
//! struct and a dispatch. Every wrapper has `new`, which checks that each buffer holds its shape, and `record`.
//!
//! Invariants:
//! - nothing here reads or writes bytes of a buffer on the host, or decides which expert is where;
//! - a wrapper never dispatches past what `new` checked: token counts are asserted against [`Binder::tokens_max`].

pub mod attend;

pub mod attention;

pub mod attention_rows;

pub mod combine;

pub mod embed;

pub mod expert;

pub mod ffn;

pub mod fused;

pub mod group;

pub mod linear;

pub mod many;

pub mod norm;

pub mod norm_matmul;

pub mod pick;

pub mod pipelines;

pub mod router;

pub mod sampling;

pub mod tuning;

pub mod work;

pub use attend::Attend;
pub use attention::{Attention, AttentionShape, Rope};
pub use attention_rows::AttentionRows;
pub use combine::Combine;
pub use embed::Embed;
pub use expert::{ExpertDown, ExpertGateUp, ExpertPool, TileBuffers};
pub use ffn::{FfnDown, FfnDownBuffers, FfnGateUp, RoutedExperts};
pub use fused::{Counters, FoldedNorm};
pub use group::{Group, TileKinds};
pub use linear::{GateUp, Matmul, Matrix, MatrixPiece};
pub use many::{Many, ManyForm, ManyTile};
pub use norm::RmsNorm;
pub use norm_matmul::NormMatmul;
pub use pick::PickExperts;
pub use pipelines::{KernelShape, Pipelines, few_columns};
pub use router::{ForceRoutes, Route, RoutePlace, Router};
pub use sampling::Argmax;
pub use tuning::{Fusion, Tuning};

use crate::gpu::{Buffer, Gpu};

/// What every wrapper is bound with.
#[derive(Clone, Copy)]
pub struct Binder<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// The model's pipelines.
    pub pipelines: &'a Pipelines,
    /// u32 `[8]`: stop flag, token count, position (`flint_shaders::layout`).
    pub control: &'a Buffer,
    /// The most tokens, or rows, that will be recorded: every buffer must hold as many.
    pub tokens_max: u32,
}

impl Binder<'_> {
    /// The pipelines that do several stages in one.
    fn fused(&self) -> &fused::FusedPipelines {
        self.pipelines.fused.as_ref().expect("fused kernels are bound where the tuning wants them")
    }

    /// Asserts that `buffer` holds `words` 32-bit values for each of `tokens_max` tokens: a shape that the caller stated wrongly
    /// is our fault, not the user's.
    fn assert_rows(&self, kernel: &str, what: &str, buffer: &Buffer, words: u64) {
        assert_holds(kernel, what, buffer, u64::from(self.tokens_max) * words);
    }
}

/// Rows that go through a matrix together, and the order in which each row's products are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// The next tokens of as many sequences, or next tokens and drafts of those behind them: each is summed as it would be alone.
    Few(u32),
    /// Tokens of prompts: whatever is fastest, the same for each of them.
    Many(u32),
}

impl Rows {
    /// How many there are.
    pub fn count(self) -> u32 {
        match self {
            Self::Few(count) | Self::Many(count) => count,
        }
    }
}

/// One row is the next token of a sequence, more are a prompt.
impl From<u32> for Rows {
    fn from(count: u32) -> Self {
        if count == 1 { Self::Few(1) } else { Self::Many(count) }
    }
}

/// Workgroups that cover `count` items, `per_group` each.
fn groups(count: u32, per_group: u32) -> u32 {
    count.div_ceil(per_group)
}

/// Asserts that `buffer` holds `count` 32-bit values.
fn assert_holds(kernel: &str, what: &str, buffer: &Buffer, count: u64) {
    assert!(
        buffer.len_bytes() >= count * 4,
        "{kernel}: {what} needs {count} words, its buffer has {} bytes",
        buffer.len_bytes()
    );
}
