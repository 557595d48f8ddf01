//! The pipelines that do several stages of a next token in one, and what they share.

use flint_shaders::kernels as k;

use super::pipelines::{FEW_COLUMNS, KernelShape, few_columns};
use super::tuning::{Fusion, Tuning};
use crate::gpu::{Buffer, Gpu, GpuError, Pipeline};

/// A kernel in tiles of one row and of a few, whose rows are all summed in the same order.
#[derive(Clone)]
pub(super) struct Tiled {
    one: Pipeline,
    few: [Pipeline; 3],
    rows_one: u32,
    rows_few: u32,
}

impl Tiled {
    /// The pipeline for `count` rows, with the matrix rows and the rows of its workgroups.
    pub(super) fn pick(&self, count: u32) -> (&Pipeline, u32, u32) {
        let columns = few_columns(count);
        match FEW_COLUMNS.iter().position(|&few| few == columns) {
            None => (&self.one, self.rows_one, 1),
            Some(index) => (&self.few[index], self.rows_few, columns),
        }
    }

    /// Any of them: they share what they are bound to.
    pub(super) fn any(&self) -> &Pipeline {
        &self.one
    }
}

/// The pipelines.
#[derive(Clone)]
pub(super) struct FusedPipelines {
    /// Norms are folded into what reads them.
    pub(super) norm_matmul: Tiled,
    pub(super) ffn_gate_up: Tiled,
    pub(super) pick_experts: Pipeline,
    /// Of one token, with the experts' down matrices.
    pub(super) ffn_down: Pipeline,
    /// Of tokens whose experts' rows are given.
    pub(super) ffn_down_given: Tiled,
    pub(super) attend: Pipeline,
    pub(super) rows_pick: u32,
    pub(super) rows_down: u32,
}

impl FusedPipelines {
    /// Makes all of them; `None` where `tuning` wants none.
    ///
    /// # Errors
    /// What the driver says when it cannot make one.
    pub(super) fn new(gpu: &Gpu, shape: KernelShape, tuning: &Tuning) -> Result<Option<Self>, GpuError> {
        let norm = match tuning.fusion {
            Fusion::Nothing => return Ok(None),
            Fusion::Stages => 0,
            Fusion::StagesAndNorms => 1,
        };
        let lanes = gpu.info().subgroup_size;
        let wide = lanes * tuning.subgroups_one;
        let make = |kernel, workgroup: u32, constants: &[u32]| {
            gpu.pipeline(kernel, lanes, &[&[workgroup, lanes], constants].concat())
        };
        let tiled = |kernel, workgroup: u32, parts: u32, constants: &[u32]| {
            let [rows_one, rows_few] = [tuning.rows_one, tuning.rows_few].map(|rows| rows.div_ceil(parts));
            let tile =
                |rows: u32, columns: u32| make(kernel, workgroup, &[&[rows, columns], constants].concat());
            let [two, four, eight] = FEW_COLUMNS.map(|columns| tile(rows_few, columns));
            Ok::<_, GpuError>(Tiled {
                one: tile(rows_one, 1)?,
                few: [two?, four?, eight?],
                rows_one,
                rows_few,
            })
        };
        let per_lane = shape.expert_count.div_ceil(lanes);
        let pick = [tuning.rows_one, norm, shape.experts_used, per_lane];
        let attend = [shape.head_dim, shape.group, tuning.decode_splits];
        let used = shape.experts_used;
        Ok(Some(Self {
            norm_matmul: tiled(&k::NORM_MATMUL, wide, 1, &[norm])?,
            ffn_gate_up: tiled(&k::FFN_GATE_UP, wide, 2, &[norm])?,
            pick_experts: make(&k::PICK_EXPERTS, wide, &pick)?,
            ffn_down: make(&k::FFN_DOWN, lanes, &[tuning.rows_down, 1, 1, used])?,
            ffn_down_given: tiled(&k::FFN_DOWN, lanes, 1, &[0, used])?,
            attend: make(&k::ATTEND, lanes * tuning.subgroups_attend, &attend)?,
            rows_pick: tuning.rows_one,
            rows_down: tuning.rows_down,
        }))
    }
}

/// The norm in front of a kernel: folded into it, or done before it.
#[derive(Clone, Copy)]
pub struct FoldedNorm<'a> {
    /// f32 `[columns]`. Not looked at where norms are not folded.
    pub weight: &'a Buffer,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// Words that are zero between dispatches: who is the last to arrive is found by them.
#[derive(Clone, Copy)]
pub struct Counters<'a> {
    /// u32 `[*]`.
    pub buffer: &'a Buffer,
    /// The first that is the kernel's.
    pub first: u32,
}
