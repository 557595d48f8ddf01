//! The CPU twin of every kernel: the same name, the same push constants, the same buffers, sums in f64.
//!
//! In: slices laid out as the kernels' buffers, and the push-constant block. Out: the buffers that the kernel writes,
//! written in place; what the kernel leaves alone stays as it was.
//!
//! The twins say what a kernel means; they are the oracle of `tests/kernels` and serve nothing else. They follow the
//! grid: where a kernel's row count is the grid's, the twin takes it as an argument.
//!
//! Invariants: a sum is made in f64 and rounded to f32 once, when it is written; a set stop word leaves every buffer as
//! it was. A slice that is shorter than its shape is a panic.

mod argmax;
mod attention;
mod combine;
mod embed;
mod expert;
mod fused;
mod group;
mod linear;
mod norm;
mod rope;
mod router;

pub use argmax::argmax;
pub use attention::{EMPTY_SPLIT_MAXIMUM, attention, attention_merge, attention_rows};
pub use combine::combine;
pub use embed::embed;
pub use expert::{expert_down, expert_gate_up};
pub use fused::{PickRows, Picked, Routed, attend, ffn_down, ffn_gate_up, norm_matmul, pick_experts};
pub use group::{group_pairs, resolve_groups};
pub use linear::{gate_up, matmul};
pub use norm::rms_norm;
pub use rope::rope;
pub use router::{force_routes, route, router};

use crate::layout::{CONTROL_POSITION, CONTROL_STOP, CONTROL_TOKEN_COUNT, CONTROL_WORDS};

/// The words of the `control` buffer that have a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// 0: go; otherwise nothing runs.
    pub stop: u32,
    /// Tokens of the step.
    pub token_count: u32,
    /// Position of the step's first token.
    pub position: u32,
}

impl Control {
    /// The buffer's words.
    pub fn words(&self) -> [u32; CONTROL_WORDS as usize] {
        let mut words = [0; CONTROL_WORDS as usize];
        words[CONTROL_STOP as usize] = self.stop;
        words[CONTROL_TOKEN_COUNT as usize] = self.token_count;
        words[CONTROL_POSITION as usize] = self.position;
        words
    }

    fn is_stopped(&self) -> bool {
        self.stop != 0
    }
}

/// Index or count of a slice; every platform of ours has 64 bits.
fn at(value: u32) -> usize {
    value as usize
}

/// Rounds a finished sum to what a buffer holds.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is this function's purpose")]
fn rounded(value: f64) -> f32 {
    value as f32
}

fn silu(value: f64) -> f64 {
    value / (1.0 + (-value).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_has_its_words_in_place() {
        let control = Control { stop: 1, token_count: 2, position: 3 };
        assert_eq!(control.words(), [1, 2, 3, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn silu_at_known_points() {
        assert_eq!(silu(0.0), 0.0);
        assert!((silu(1.0) - 0.731_058_578_630_005).abs() < 1e-15, "1 / (1 + 1/e)");
    }
}
