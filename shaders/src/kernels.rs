//! Every kernel of the product, declared once: its SPIR-V, its push-constant block, its bindings and its
//! specialization constants.
//!
//! In: `spirv/*.spv`, checked in beside the sources. Out: one `static` a kernel and [`KERNELS`].
//!
//! Invariants: set 0 only, storage buffers only, binding 0 is `control`; `constant_id` 0 is the workgroup's width and
//! 1 the subgroup's. What is declared here equals what the SPIR-V holds (`tests/spirv.rs`).

use crate::Kernel;
use crate::layout::{
    ArgmaxPush, AttendPush, AttentionMergePush, AttentionPush, AttentionRowsPush, CombinePush, EmbedPush,
    ExpertDownPush, ExpertGateUpPush, FfnDownPush, FfnGateUpPush, ForceRoutesPush, GateUpPush,
    GroupPairsPush, MATRICES, MatmulPush, NormMatmulPush, POOL_BUFFERS, PickExpertsPush, ResolveGroupsPush,
    RmsNormPush, RopePush, RoutePush, RouterPush,
};

macro_rules! kernels {
    ($($(#[$doc:meta])* $kernel:ident = $name:literal, $push:ident, $bindings:expr, [$($constant:literal),*];)*) => {
        $(
            $(#[$doc])*
            pub static $kernel: Kernel = Kernel {
                name: $name,
                spirv: include_bytes!(concat!("../spirv/", $name, ".spv")),
                push_bytes: $push::SIZE_BYTES,
                bindings: &$bindings,
                constants: &["WORKGROUP", "SUBGROUP", $($constant),*],
            };
        )*

        /// Every kernel.
        pub static KERNELS: &[&Kernel] = &[$(&$kernel),*];
    };
}

kernels! {
    /// Bindings: control, rows, row_index, x.
    EMBED = "embed", EmbedPush, [1; 4], [];
    /// Bindings: control, source, weight, target.
    RMS_NORM = "rms_norm", RmsNormPush, [1; 4], [];
    /// Bindings: control, x, words, y.
    MATMUL = "matmul", MatmulPush, [1; 4], ["ROWS", "TOKENS", "ADD"];
    /// [`MATMUL`] for many rows by cooperative matrices.
    MATMUL_MATRIX = "matmul_matrix", MatmulPush, [1; 4],
        ["ROWS", "TOKENS", "DEPTH", "ROW_PARTS", "MATRIX_M", "MATRIX_N", "MATRIX_K", "ADD"];
    /// [`MATMUL`] for many rows by shared memory.
    MATMUL_TILES = "matmul_tiles", MatmulPush, [1; 4], ["ROWS", "TOKENS", "DEPTH", "LANE_ROWS", "LANE_TOKENS", "ADD"];
    /// Bindings: control, x, gate, up, h.
    GATE_UP = "gate_up", GateUpPush, [1; 5], ["ROWS", "TOKENS"];
    /// [`GATE_UP`] for many rows by cooperative matrices.
    GATE_UP_MATRIX = "gate_up_matrix", GateUpPush, [1; 5],
        ["ROWS", "TOKENS", "DEPTH", "ROW_PARTS", "MATRIX_M", "MATRIX_N", "MATRIX_K"];
    /// [`GATE_UP`] for many rows by shared memory.
    GATE_UP_TILES = "gate_up_tiles", GateUpPush, [1; 5], ["ROWS", "TOKENS", "DEPTH", "LANE_ROWS", "LANE_TOKENS"];
    /// Bindings: control, q, k, v, q_norm, k_norm, angles, k_cache, v_cache.
    ROPE = "rope", RopePush, [1; 9], [];
    /// Bindings: control, q, k_cache, v_cache, partial.
    ATTENTION = "attention", AttentionPush, [1; 5], ["HEAD_DIM", "GROUP"];
    /// Bindings: control, partial, sinks, out.
    ATTENTION_MERGE = "attention_merge", AttentionMergePush, [1; 4], [];
    /// Bindings: control, q, k_cache, v_cache, sinks, target.
    ATTENTION_ROWS = "attention_rows", AttentionRowsPush, [1; 6], ["HEAD_DIM", "GROUP", "LANES", "ROWS"];
    /// [`ATTENTION_ROWS`] by cooperative matrices.
    ATTENTION_ROWS_MATRIX = "attention_rows_matrix", AttentionRowsPush, [1; 6], ["HEAD_DIM", "GROUP"];
    /// Bindings: control, x, weight, y.
    ROUTER = "router", RouterPush, [1; 4], ["ROWS"];
    /// Bindings: control, logits, table, routes, tiles, pairs, report.
    ROUTE = "route", RoutePush, [1; 7], ["EXPERTS_USED", "PER_LANE"];
    /// Bindings: control, logits, forced.
    FORCE_ROUTES = "force_routes", ForceRoutesPush, [1; 3], ["EXPERTS_USED"];
    /// Bindings: control, routes, pairs, groups.
    GROUP_PAIRS = "group_pairs", GroupPairsPush, [1; 4], ["EXPERTS_USED"];
    /// Bindings: control, groups, table, tiles, grids.
    RESOLVE_GROUPS = "resolve_groups", ResolveGroupsPush, [1; 5], [];
    /// Bindings: control, x, tiles, pairs, h, pool.
    EXPERT_GATE_UP = "expert_gate_up", ExpertGateUpPush, [1, 1, 1, 1, 1, POOL_BUFFERS], ["ROWS", "TOKENS"];
    /// [`EXPERT_GATE_UP`] for many pairs by cooperative matrices.
    EXPERT_GATE_UP_MATRIX = "expert_gate_up_matrix", ExpertGateUpPush, [1, 1, 1, 1, 1, POOL_BUFFERS],
        ["ROWS", "TOKENS", "DEPTH", "ROW_PARTS", "MATRIX_M", "MATRIX_N", "MATRIX_K"];
    /// [`EXPERT_GATE_UP`] for many pairs by shared memory.
    EXPERT_GATE_UP_TILES = "expert_gate_up_tiles", ExpertGateUpPush, [1, 1, 1, 1, 1, POOL_BUFFERS],
        ["ROWS", "TOKENS", "DEPTH", "LANE_ROWS", "LANE_TOKENS"];
    /// Bindings: control, h, tiles, pairs, y, pool.
    EXPERT_DOWN = "expert_down", ExpertDownPush, [1, 1, 1, 1, 1, POOL_BUFFERS], ["ROWS", "TOKENS"];
    /// [`EXPERT_DOWN`] for many pairs by cooperative matrices.
    EXPERT_DOWN_MATRIX = "expert_down_matrix", ExpertDownPush, [1, 1, 1, 1, 1, POOL_BUFFERS],
        ["ROWS", "TOKENS", "DEPTH", "ROW_PARTS", "MATRIX_M", "MATRIX_N", "MATRIX_K"];
    /// [`EXPERT_DOWN`] for many pairs by shared memory.
    EXPERT_DOWN_TILES = "expert_down_tiles", ExpertDownPush, [1, 1, 1, 1, 1, POOL_BUFFERS],
        ["ROWS", "TOKENS", "DEPTH", "LANE_ROWS", "LANE_TOKENS"];
    /// Bindings: control, routes, y, shared, x.
    COMBINE = "combine", CombinePush, [1; 5], [];
    /// Bindings: control, source, partial, result, counters.
    ARGMAX = "argmax", ArgmaxPush, [1; 5], [];
    /// Bindings: control, x, norm, weight, y.
    NORM_MATMUL = "norm_matmul", NormMatmulPush, [1, 1, 1, MATRICES, MATRICES], ["ROWS", "TOKENS", "NORM"];
    /// Bindings: control, x, tiles, pairs, h, pool with gate and up, norm, dense_h.
    FFN_GATE_UP = "ffn_gate_up", FfnGateUpPush, [1, 1, 1, 1, 1, POOL_BUFFERS + 2, 1, 1], ["ROWS", "TOKENS", "NORM"];
    /// Bindings: control, h, tiles, y, routes, pool with down, dense_h, x.
    FFN_DOWN = "ffn_down", FfnDownPush, [1, 1, 1, 1, 1, POOL_BUFFERS + 1, 1, 1],
        ["ROWS", "TOKENS", "DOWN", "EXPERTS_USED"];
    /// Bindings: control, x, norm, weight, logits, table, routes, tiles, pairs, report, counters.
    PICK_EXPERTS = "pick_experts", PickExpertsPush, [1; 11], ["ROWS", "NORM", "EXPERTS_USED", "PER_LANE"];
    /// Bindings: control, q, k, v, q_norm, k_norm, angles, k_cache, v_cache, sinks, partial, target, counters.
    ATTEND = "attend", AttendPush, [1; 13], ["HEAD_DIM", "GROUP", "SPLITS"];
}
