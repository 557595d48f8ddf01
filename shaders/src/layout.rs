//! Everything that host and shader must agree on, written once: the push-constant block of every kernel and the
//! constants that both sides use.
//!
//! In: nothing. Out: one `#[repr(C)]` struct a kernel, the table [`PUSH_BLOCKS`] that describes those structs, and
//! [`SHARED_CONSTANTS`]. The `compile-shaders` program prints `glsl/include/layout.glsl` from the two tables, and
//! the crate's tests compare the tables with what the checked-in SPIR-V really holds.
//!
//! Invariants: a field is a `u32` or an `f32`, so that there is no padding and the std430 and scalar layouts are the
//! same; a block is at most [`PUSH_BYTES_MAX`] bytes, checked when the crate is compiled.

use bytemuck::{Pod, Zeroable};

/// The push-constant bytes that every Vulkan device has (`maxPushConstantsSize`, Vulkan 1.3 table "Required Limits").
pub const PUSH_BYTES_MAX: u32 = 128;

/// One member of a push-constant block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The member's name, the same in Rust and GLSL.
    pub name: &'static str,
    /// Its GLSL type: `uint` or `float`.
    pub glsl_type: &'static str,
    /// Where it starts in the block, in bytes.
    pub offset_bytes: u32,
}

/// The push-constant block of one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushBlock {
    /// The kernel that reads it.
    pub kernel: &'static str,
    /// The struct's name, the same in Rust and GLSL.
    pub name: &'static str,
    /// Its members, in order.
    pub fields: &'static [Field],
    /// Its size in bytes.
    pub size_bytes: u32,
}

/// A constant that host and shaders share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedConstant {
    /// Its name, the same in Rust and GLSL.
    pub name: &'static str,
    /// What it means, printed beside it in GLSL.
    pub doc: &'static str,
    /// Its value, a GLSL `uint`.
    pub value: u32,
}

/// A Rust scalar that may stand in a push-constant block.
trait Scalar {
    /// The GLSL type of the same four bytes.
    const GLSL: &'static str;
}

impl Scalar for u32 {
    const GLSL: &'static str = "uint";
}

impl Scalar for f32 {
    const GLSL: &'static str = "float";
}

/// `usize` to `u32` in a constant; the sizes of this file are far below the limit.
#[expect(clippy::cast_possible_truncation, reason = "asserted one line above the cast")]
const fn small(value: usize) -> u32 {
    assert!(value <= u16::MAX as usize, "invariant: a push-constant block is small");
    value as u32
}

macro_rules! push_blocks {
    ($($(#[$block_doc:meta])* $block:ident of $kernel:literal {
        $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$block_doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
            pub struct $block {
                $($(#[$field_doc])* pub $field: $type,)*
            }

            impl $block {
                /// The size of the block in bytes.
                pub const SIZE_BYTES: u32 = small(size_of::<$block>());

                /// The block as the bytes that a push-constant command takes.
                pub fn bytes(&self) -> &[u8] {
                    bytemuck::bytes_of(self)
                }
            }

            const _: () = assert!($block::SIZE_BYTES <= PUSH_BYTES_MAX, "a push-constant block is too large");
        )*

        /// Every push-constant block, one a kernel.
        pub static PUSH_BLOCKS: &[PushBlock] = &[$(
            PushBlock {
                kernel: $kernel,
                name: stringify!($block),
                fields: &[$(
                    Field {
                        name: stringify!($field),
                        glsl_type: <$type as Scalar>::GLSL,
                        offset_bytes: small(std::mem::offset_of!($block, $field)),
                    },
                )*],
                size_bytes: $block::SIZE_BYTES,
            },
        )*];
    };
}

macro_rules! shared_constants {
    ($(#[doc = $doc:literal] $name:ident: $type:ty = $value:expr;)*) => {
        $(#[doc = $doc] pub const $name: $type = $value;)*

        /// Every shared constant, in the order in which the GLSL header prints them.
        pub static SHARED_CONSTANTS: &[SharedConstant] = &[$(
            SharedConstant { name: stringify!($name), doc: $doc, value: shared_value($name as u64) },
        )*];
    };
}

/// The value of a shared constant as the shader sees it.
#[expect(clippy::cast_possible_truncation, reason = "asserted one line above the cast")]
const fn shared_value(value: u64) -> u32 {
    assert!(value <= u32::MAX as u64, "invariant: a shared constant is a u32");
    value as u32
}

shared_constants! {
    /// In the slot table: this expert is in no slot.
    NO_SLOT: u32 = u32::MAX;
    /// Descriptors in the binding of the expert pool; a slot lies in buffer `slot / slots_per_buffer`.
    POOL_BUFFERS: u32 = 16;
    /// Matrices that one dispatch of `norm_matmul` takes.
    MATRICES: u32 = 3;
    /// Words of one expert tile: slot, first pair, pair count.
    TILE_WORDS: u32 = 3;
    /// Words of one expert's group: first pair, pair count.
    GROUP_WORDS: u32 = 2;
    /// Words of one dispatch's workgroup counts: x, y, z.
    GRID_WORDS: u32 = 3;
    /// Dispatches that serve the tiles of one kind: `expert_gate_up`, then `expert_down`.
    KIND_GRIDS: u32 = 2;
    /// Word of `control`: 0 lets the kernels run, anything else makes every kernel return at once.
    CONTROL_STOP: u32 = 0;
    /// Word of `control`: tokens of the step.
    CONTROL_TOKEN_COUNT: u32 = 1;
    /// Word of `control`: position of the step's first token.
    CONTROL_POSITION: u32 = 2;
    /// Words of the `control` buffer.
    CONTROL_WORDS: u32 = 8;
    /// Values of one Q4_1 block.
    Q4_1_BLOCK_VALUES: u32 = 32;
    /// 32-bit words of one Q4_1 block: scale and minimum (two f16), then four words of nibbles.
    Q4_1_BLOCK_WORDS: u32 = 5;
}

push_blocks! {
    /// Push constants of `embed`.
    EmbedPush of "embed" {
        /// Columns of a row.
        embed_dim: u32,
    }

    /// Push constants of `rms_norm`.
    RmsNormPush of "rms_norm" {
        /// Columns of a row.
        dim: u32,
        /// First row read.
        source_row: u32,
        /// First row written.
        target_row: u32,
        /// Added to the mean of squares.
        epsilon: f32,
    }

    /// Push constants of `matmul`.
    MatmulPush of "matmul" {
        /// Rows of the matrix.
        row_count: u32,
        /// Columns of the matrix, a multiple of 32.
        column_count: u32,
        /// Rows of `x` to take; 0 takes the token count of `control`.
        token_count_max: u32,
        /// First row of `x`.
        x_row: u32,
        /// First row of `y`.
        y_row: u32,
        /// Values from one row of `y` to the next.
        y_stride: u32,
        /// Column of `y` where row 0 of the matrix goes.
        y_column: u32,
    }

    /// Push constants of `gate_up`.
    GateUpPush of "gate_up" {
        /// Rows of each matrix.
        row_count: u32,
        /// Columns of each matrix, a multiple of 32.
        column_count: u32,
    }

    /// Push constants of `rope`.
    RopePush of "rope" {
        /// Query heads.
        head_count: u32,
        /// Key and value heads.
        kv_head_count: u32,
        /// Values of a head, a multiple of 4.
        head_dim: u32,
        /// 1: rotate; 0: norm only.
        is_rotated: u32,
        /// Rows of the cache ring.
        ring_rows: u32,
        /// Added to the mean of squares.
        epsilon: f32,
    }

    /// Push constants of `attention`.
    AttentionPush of "attention" {
        /// Query heads.
        head_count: u32,
        /// Key and value heads.
        kv_head_count: u32,
        /// Keys that a token sees, itself among them; 0: all.
        window: u32,
        /// Rows of the cache ring.
        ring_rows: u32,
        /// Parts into which the keys of a token are cut.
        splits: u32,
        /// Factor on a query-key product.
        scale: f32,
    }

    /// Push constants of `attention_merge`.
    AttentionMergePush of "attention_merge" {
        /// Query heads.
        head_count: u32,
        /// Values of a head.
        head_dim: u32,
        /// Parts into which the keys of a token are cut.
        splits: u32,
    }

    /// Push constants of `attention_rows`.
    AttentionRowsPush of "attention_rows" {
        /// Query heads.
        head_count: u32,
        /// Key and value heads.
        kv_head_count: u32,
        /// Keys that a token sees, itself among them; 0: all.
        window: u32,
        /// Rows of the cache ring.
        ring_rows: u32,
        /// The first token.
        token_first: u32,
        /// Factor on a query-key product.
        scale: f32,
    }

    /// Push constants of `router`.
    RouterPush of "router" {
        /// Rows of the matrix: experts.
        row_count: u32,
        /// Columns of the matrix.
        column_count: u32,
    }

    /// Push constants of `route`.
    RoutePush of "route" {
        /// Experts of the layer.
        expert_count: u32,
        /// The layer, told to the host by way of `control` when a pick is in no slot.
        layer: u32,
        /// Word of the slot table where this layer's experts start.
        table_first: u32,
        /// Word of the report where this layer's picks start.
        report_first: u32,
        /// 1: write tiles and pairs, and stop when a pick is in no slot (one token only).
        is_resolved: u32,
        /// Factor on the normalised weights.
        weights_scale: f32,
    }

    /// Push constants of `force_routes`.
    ForceRoutesPush of "force_routes" {
        /// Experts of the layer.
        expert_count: u32,
        /// Layers with experts.
        layer_count: u32,
        /// Which of them this is, from 0.
        moe_layer: u32,
    }

    /// Push constants of `group_pairs`.
    GroupPairsPush of "group_pairs" {
        /// Picks of all tokens together.
        pair_count: u32,
    }

    /// Push constants of `resolve_groups`.
    ResolveGroupsPush of "resolve_groups" {
        /// Experts of the layer.
        expert_count: u32,
        /// The layer, told to the host by way of `control` when an expert is in no slot.
        layer: u32,
        /// Word of the slot table where this layer's experts start.
        table_first: u32,
        /// Pairs of the largest tile.
        tile_max: u32,
        /// Kinds of tiles: each holds half as many pairs as the next, the last one `tile_max`.
        kinds: u32,
        /// Tiles from the first of one kind to the first of the next.
        kind_stride: u32,
    }

    /// Push constants of `expert_gate_up`.
    ExpertGateUpPush of "expert_gate_up" {
        /// Rows of each matrix.
        row_count: u32,
        /// Columns of each matrix, a multiple of 32.
        column_count: u32,
        /// Picks of a token.
        experts_used: u32,
        /// Tile of workgroup z = 0.
        tile_first: u32,
        /// Words from one slot to the next.
        slot_words: u32,
        /// Slots of one pool buffer.
        slots_per_buffer: u32,
        /// Word of a slot where the gate matrix starts.
        gate_word: u32,
        /// Word of a slot where the up matrix starts.
        up_word: u32,
    }

    /// Push constants of `expert_down`.
    ExpertDownPush of "expert_down" {
        /// Rows of the matrix.
        row_count: u32,
        /// Columns of the matrix, a multiple of 32.
        column_count: u32,
        /// Tile of workgroup z = 0.
        tile_first: u32,
        /// Words from one slot to the next.
        slot_words: u32,
        /// Slots of one pool buffer.
        slots_per_buffer: u32,
        /// Word of a slot where the down matrix starts.
        down_word: u32,
    }

    /// Push constants of `combine`.
    CombinePush of "combine" {
        /// Columns of a row.
        embed_dim: u32,
        /// Picks of a token.
        experts_used: u32,
    }

    /// Push constants of `argmax`.
    ArgmaxPush of "argmax" {
        /// Values of a row.
        column_count: u32,
        /// Parts into which a row is cut.
        parts: u32,
        /// Counter of the first row.
        counter_first: u32,
    }

    /// Push constants of `norm_matmul`.
    NormMatmulPush of "norm_matmul" {
        /// Rows of the first matrix.
        first_rows: u32,
        /// Rows of the second, or 0.
        second_rows: u32,
        /// Rows of the third, or 0.
        third_rows: u32,
        /// Columns of each matrix, a multiple of 32.
        column_count: u32,
        /// Rows of `x` to take; 0 takes the token count of `control`.
        token_count_max: u32,
        /// First row of `x`.
        x_row: u32,
        /// Values from one row of the first `y` to the next.
        y_stride: u32,
        /// Column of the first `y` where row 0 of its matrix goes.
        y_column: u32,
        /// Added to the mean of squares.
        epsilon: f32,
    }

    /// Push constants of `ffn_gate_up`.
    FfnGateUpPush of "ffn_gate_up" {
        /// Rows of an expert's matrices.
        expert_rows: u32,
        /// Rows of the dense network's matrices.
        dense_rows: u32,
        /// Columns of each matrix, a multiple of 32.
        column_count: u32,
        /// Picks of a token.
        experts_used: u32,
        /// Tile of workgroup z = 0.
        tile_first: u32,
        /// Tiles; what lies behind in z is the dense network's.
        tile_count: u32,
        /// Words from one slot to the next.
        slot_words: u32,
        /// Slots of one pool buffer.
        slots_per_buffer: u32,
        /// Word of a slot where the gate matrix starts.
        gate_word: u32,
        /// Word of a slot where the up matrix starts.
        up_word: u32,
        /// Added to the mean of squares.
        epsilon: f32,
    }

    /// Push constants of `ffn_down`.
    FfnDownPush of "ffn_down" {
        /// Rows of each matrix.
        row_count: u32,
        /// Columns of an expert's matrix, a multiple of 32.
        expert_columns: u32,
        /// Columns of the shared expert's matrix, a multiple of 32.
        dense_columns: u32,
        /// Words from one slot to the next.
        slot_words: u32,
        /// Slots of one pool buffer.
        slots_per_buffer: u32,
        /// Word of a slot where the down matrix starts.
        down_word: u32,
    }

    /// Push constants of `pick_experts`.
    PickExpertsPush of "pick_experts" {
        /// Experts of the layer.
        expert_count: u32,
        /// Columns of the router's matrix.
        column_count: u32,
        /// As in `RoutePush`.
        layer: u32,
        /// As in `RoutePush`.
        table_first: u32,
        /// As in `RoutePush`.
        report_first: u32,
        /// As in `RoutePush`.
        is_resolved: u32,
        /// As in `RoutePush`.
        weights_scale: f32,
        /// Added to the mean of squares.
        epsilon: f32,
        /// Counter of the first token.
        counter_first: u32,
    }

    /// Push constants of `attend`.
    AttendPush of "attend" {
        /// Query heads.
        head_count: u32,
        /// Key and value heads.
        kv_head_count: u32,
        /// Keys that a token sees, itself among them; 0: all.
        window: u32,
        /// Rows of the cache ring.
        ring_rows: u32,
        /// 1: rotate; 0: norm only.
        is_rotated: u32,
        /// Keys of a split, at least.
        split_keys: u32,
        /// Counter of the first token's first KV head.
        counter_first: u32,
        /// Factor on a query-key product.
        scale: f32,
        /// Added to the mean of squares.
        epsilon: f32,
    }
}

/// How the name of a form for many rows ends: the same product by other means, with the push-constant block and the twin of the
/// kernel whose name stands before the ending.
pub const FORM_ENDINGS: [&str; 2] = ["_matrix", "_tiles"];

/// The kernel that `kernel` is a form of, or itself.
pub fn base_kernel(kernel: &str) -> &str {
    FORM_ENDINGS.iter().find_map(|ending| kernel.strip_suffix(ending)).unwrap_or(kernel)
}

/// The block of one kernel; `None` for a name that is no kernel.
pub fn push_block(kernel: &str) -> Option<&'static PushBlock> {
    PUSH_BLOCKS.iter().find(|block| block.kernel == base_kernel(kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_no_padding_and_are_named_after_their_kernel() {
        for block in PUSH_BLOCKS {
            for (index, field) in block.fields.iter().enumerate() {
                assert_eq!(field.offset_bytes as usize, index * 4, "{}.{}", block.name, field.name);
            }
            assert_eq!(block.size_bytes as usize, block.fields.len() * 4, "{}", block.name);
            let name: String = block
                .kernel
                .split('_')
                .map(|word| word[..1].to_uppercase() + &word[1..])
                .chain(["Push".to_owned()])
                .collect();
            assert_eq!(block.name, name, "{}", block.kernel);
        }
    }

    #[test]
    fn a_form_has_the_block_of_its_kernel() {
        assert_eq!(push_block("expert_down_matrix").map(|block| block.name), Some("ExpertDownPush"));
        assert_eq!(push_block("gate_up_tiles").map(|block| block.kernel), Some("gate_up"));
        assert_eq!(base_kernel("router"), "router");
        assert_eq!(push_block("matmul_other"), None);
    }

    #[test]
    fn bytes_are_the_fields_in_order() {
        let push = ArgmaxPush { column_count: 0x0102_0304, parts: 5, counter_first: 6 };
        assert_eq!(push.bytes(), [4, 3, 2, 1, 5, 0, 0, 0, 6, 0, 0, 0]);
    }
}
