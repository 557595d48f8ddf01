//! Every pipeline of a model, made once and up front, and the tile sizes that suit the device.
//!
//! One at a time on purpose: Mesa 22.3.6's lavapipe compiles on first use and has been seen to crash when shapes for
//! prompts and for single tokens were compiled side by side. Made before the first token, every pipeline exists before
//! any runs.

use flint_shaders::kernels as k;

use crate::gpu::{DeviceKind, Gpu, GpuError, Pipeline};

/// Tile sizes, chosen by the kind of device.
///
/// A software device counts loads, not latency: many rows share the activations that a lane has loaded. A GPU at one
/// token is bound by latency: few rows and more lanes a row (2048 x 2048 on an NVIDIA H200: 1 subgroup 8.9 us, 4
/// subgroups 6.5 us).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Rows of a mat-vec workgroup.
    pub rows_one: u32,
    /// Rows of a workgroup that serves several tokens.
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
                rows_many: 4,
                tokens_many: 8,
                subgroups_one: 1,
                subgroups_norm: 1,
                decode_splits: 2,
            },
            _ => Self {
                rows_one: 2,
                rows_many: 4,
                tokens_many: 8,
                subgroups_one: 4,
                subgroups_norm: 4,
                decode_splits: 16,
            },
        }
    }
}

/// What of a model's shape is compiled into its kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelShape {
    /// Values of one attention head.
    pub head_dim: u32,
    /// Query heads that share one KV head.
    pub group: u32,
    /// Experts of a layer.
    pub expert_count: u32,
    /// Experts picked a token.
    pub experts_used: u32,
}

/// The pipelines; `_one` serves a single token, `_many` a tile of tokens.
#[derive(Clone)]
pub struct Pipelines {
    pub(super) tuning: Tuning,
    pub(super) shape: KernelShape,
    pub(super) workgroup: u32,
    pub(super) embed: Pipeline,
    pub(super) rms_norm: Pipeline,
    pub(super) matmul_one: Pipeline,
    pub(super) matmul_one_add: Pipeline,
    pub(super) matmul_many: Pipeline,
    pub(super) matmul_many_add: Pipeline,
    pub(super) gate_up_one: Pipeline,
    pub(super) gate_up_many: Pipeline,
    pub(super) rope: Pipeline,
    pub(super) attention: Pipeline,
    pub(super) attention_merge: Pipeline,
    pub(super) router: Pipeline,
    pub(super) route: Pipeline,
    pub(super) expert_gate_up_one: Pipeline,
    pub(super) expert_gate_up_many: Pipeline,
    pub(super) expert_down_one: Pipeline,
    pub(super) expert_down_many: Pipeline,
    pub(super) combine: Pipeline,
    pub(super) argmax_parts: Pipeline,
    pub(super) argmax_final: Pipeline,
}

impl Pipelines {
    /// Makes all pipelines for `shape`, with `tuning`.
    ///
    /// # Errors
    /// What the driver says when it cannot make one.
    pub fn new(gpu: &Gpu, shape: KernelShape, tuning: Tuning) -> Result<Self, GpuError> {
        let lanes = gpu.info().subgroup_size;
        let wide = lanes * tuning.subgroups_one;
        let norm = lanes * tuning.subgroups_norm;
        let make = |kernel, workgroup: u32, constants: &[u32]| {
            let mut values = vec![workgroup, lanes];
            values.extend_from_slice(constants);
            gpu.pipeline(kernel, lanes, &values)
        };
        let (one, many, tokens) = (tuning.rows_one, tuning.rows_many, tuning.tokens_many);
        Ok(Self {
            tuning,
            shape,
            workgroup: lanes,
            embed: make(&k::EMBED, norm, &[])?,
            rms_norm: make(&k::RMS_NORM, norm, &[])?,
            matmul_one: make(&k::MATMUL, wide, &[one, 1, 0])?,
            matmul_one_add: make(&k::MATMUL, wide, &[one, 1, 1])?,
            matmul_many: make(&k::MATMUL, lanes, &[many, tokens, 0])?,
            matmul_many_add: make(&k::MATMUL, lanes, &[many, tokens, 1])?,
            gate_up_one: make(&k::GATE_UP, wide, &[one.div_ceil(2), 1])?,
            gate_up_many: make(&k::GATE_UP, lanes, &[many / 2, tokens])?,
            rope: make(&k::ROPE, lanes, &[])?,
            attention: make(&k::ATTENTION, lanes, &[shape.head_dim, shape.group])?,
            attention_merge: make(&k::ATTENTION_MERGE, lanes, &[])?,
            router: make(&k::ROUTER, wide, &[one])?,
            route: make(&k::ROUTE, lanes, &[shape.experts_used, shape.expert_count.div_ceil(lanes)])?,
            expert_gate_up_one: make(&k::EXPERT_GATE_UP, wide, &[one.div_ceil(2), 1])?,
            expert_gate_up_many: make(&k::EXPERT_GATE_UP, lanes, &[many / 2, tokens])?,
            expert_down_one: make(&k::EXPERT_DOWN, lanes, &[one, 1])?,
            expert_down_many: make(&k::EXPERT_DOWN, lanes, &[many, tokens])?,
            combine: make(&k::COMBINE, lanes, &[])?,
            argmax_parts: make(&k::ARGMAX, lanes, &[0])?,
            argmax_final: make(&k::ARGMAX, lanes, &[1])?,
        })
    }

    /// The pipeline of `force_routes`, for a model that is opened with routes.
    ///
    /// # Errors
    /// What the driver says when it cannot make it.
    pub(super) fn force_routes(&self, gpu: &Gpu) -> Result<Pipeline, GpuError> {
        gpu.pipeline(
            &k::FORCE_ROUTES,
            self.workgroup,
            &[self.workgroup, self.workgroup, self.shape.experts_used],
        )
    }

    /// The tile sizes in use.
    pub fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// The model's shape that they were made for.
    pub fn shape(&self) -> KernelShape {
        self.shape
    }
}
