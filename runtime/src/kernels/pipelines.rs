//! Every pipeline of a model, made once and up front, with the tile sizes of [`Tuning`].
//!
//! One at a time on purpose: Mesa 22.3.6's lavapipe compiles on first use and has been seen to crash when shapes for
//! prompts and for single tokens were compiled side by side. Made before the first token, every pipeline exists before
//! any runs.

use flint_shaders::Kernel;
use flint_shaders::kernels as k;

use super::fused::FusedPipelines;
use super::many::{Many, ManyConstants, ManyForm};
use super::{Rows, Tuning};
use crate::gpu::{Gpu, GpuError, Pipeline};

/// Tokens of a tile of the kernels for a few rows.
pub const FEW_COLUMNS: [u32; 3] = [2, 4, 8];

/// The tile that serves `count` rows: the smallest that holds them all, or the largest, several times.
pub fn few_columns(count: u32) -> u32 {
    match count {
        0 | 1 => 1,
        _ => FEW_COLUMNS.into_iter().find(|&columns| columns >= count).unwrap_or(FEW_COLUMNS[2]),
    }
}

/// A matrix product's pipelines, by how many rows it serves at once.
///
/// `one` and `few` have the same workgroup, so a lane sums the same words in the same order: a token's bits are the same alone and
/// beside others. `many` sums in another order, but for registers where `one` has one subgroup.
#[derive(Clone)]
pub(super) struct Product {
    one: Pipeline,
    few: [Pipeline; 3],
    many: ManyPipelines,
    rows_one: u32,
    rows_few: u32,
}

/// The pipelines of many rows: one a size of tile, from large to small, with the matrix rows and the tokens of each.
#[derive(Clone)]
struct ManyPipelines {
    pipelines: Vec<Pipeline>,
    tiles: Vec<(u32, u32)>,
    groups_least: u32,
}

impl ManyPipelines {
    fn at(&self, index: usize) -> (&Pipeline, u32, u32) {
        let (rows, tokens) = self.tiles[index];
        (&self.pipelines[index], rows, tokens)
    }
}

impl Product {
    /// The pipeline for `rows` of a matrix with `row_count` rows, with the matrix rows and the tokens of its workgroups.
    pub(super) fn pick(&self, rows: Rows, row_count: u32) -> (&Pipeline, u32, u32) {
        match rows {
            Rows::Many(count) => {
                self.many.at(Many::pick(&self.many.tiles, self.many.groups_least, row_count, count))
            }
            Rows::Few(count) => self.pick_few(count),
        }
    }

    /// The pipeline for tiles of at most as many pairs as `pairs` says, with the matrix rows and the pairs of its workgroups.
    ///
    /// # Panics
    /// When no tile is so wide.
    pub(super) fn pick_pairs(&self, pairs: Rows) -> (&Pipeline, u32, u32) {
        match pairs {
            Rows::Many(count) => {
                let index = self.many.tiles.iter().rposition(|&(_, width)| width >= count);
                self.many
                    .at(index.unwrap_or_else(|| panic!("a tile of {count} pairs: {:?}", self.many.tiles)))
            }
            Rows::Few(count) => self.pick_few(count),
        }
    }

    fn pick_few(&self, count: u32) -> (&Pipeline, u32, u32) {
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

/// The kernels of one product: the one that serves any number of rows, and its forms for many.
struct Forms {
    registers: &'static Kernel,
    tiles: &'static Kernel,
    matrix: &'static Kernel,
    /// Whether its columns are pairs of an expert.
    is_of_experts: bool,
}

const MATMUL: Forms =
    Forms { registers: &k::MATMUL, tiles: &k::MATMUL_TILES, matrix: &k::MATMUL_MATRIX, is_of_experts: false };
const GATE_UP: Forms = Forms {
    registers: &k::GATE_UP,
    tiles: &k::GATE_UP_TILES,
    matrix: &k::GATE_UP_MATRIX,
    is_of_experts: false,
};
const EXPERT_GATE_UP: Forms = Forms {
    registers: &k::EXPERT_GATE_UP,
    tiles: &k::EXPERT_GATE_UP_TILES,
    matrix: &k::EXPERT_GATE_UP_MATRIX,
    is_of_experts: true,
};
const EXPERT_DOWN: Forms = Forms {
    registers: &k::EXPERT_DOWN,
    tiles: &k::EXPERT_DOWN_TILES,
    matrix: &k::EXPERT_DOWN_MATRIX,
    is_of_experts: true,
};

impl Forms {
    /// The pipelines of many rows in the form that `tuning` names, for the tiles that the device can take; `parts` matrices side by
    /// side, `constants` behind those of the form.
    fn many(
        &self,
        gpu: &Gpu,
        tuning: &Tuning,
        parts: u32,
        constants: &[u32],
    ) -> Result<ManyPipelines, GpuError> {
        let (info, many) = (gpu.info(), &tuning.many);
        let missing = |what: &str| GpuError::FeatureMissing {
            device: info.title(),
            features: vec![format!("{what} for products of prompts as {}", many.form)],
        };
        let tiles = if self.is_of_experts { &many.experts } else { &many.dense };
        let (kernel, made): (_, Vec<ManyConstants>) = match many.form {
            ManyForm::Registers => {
                let (rows, tokens) = (tuning.rows_many.div_ceil(parts), tuning.tokens_many);
                let values = vec![rows, tokens];
                (self.registers, vec![ManyConstants { workgroup: info.subgroup_size, rows, tokens, values }])
            }
            ManyForm::Tiles => {
                (self.tiles, tiles.iter().filter_map(|tile| tile.by_lanes(info, parts)).collect())
            }
            ManyForm::CooperativeMatrix => {
                let shape = info.matrix.ok_or_else(|| missing("cooperative matrices"))?;
                (self.matrix, tiles.iter().filter_map(|tile| tile.by_matrices(info, shape, parts)).collect())
            }
        };
        // The narrowest tile takes the least, and every step's last tokens.
        if made.last().is_none_or(|last| many.form != ManyForm::Registers && last.tokens != tiles[2].tokens) {
            return Err(missing("shared memory or lanes"));
        }
        let pipelines = made
            .iter()
            .map(|of| {
                let values = [&[of.workgroup, info.subgroup_size], of.values.as_slice(), constants].concat();
                gpu.pipeline(kernel, info.subgroup_size, &values)
            })
            .collect::<Result<_, _>>()?;
        let tiles = made.iter().map(|of| (of.rows, of.tokens)).collect();
        Ok(ManyPipelines { pipelines, tiles, groups_least: many.groups_least })
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

/// The pipelines.
#[derive(Clone)]
pub struct Pipelines {
    pub(super) tuning: Tuning,
    pub(super) shape: KernelShape,
    pub(super) workgroup: u32,
    pub(super) embed: Pipeline,
    pub(super) rms_norm: Pipeline,
    pub(super) matmul: Product,
    pub(super) matmul_add: Product,
    pub(super) gate_up: Product,
    pub(super) rope: Pipeline,
    pub(super) attention: Pipeline,
    pub(super) attention_merge: Pipeline,
    pub(super) attention_rows: Pipeline,
    /// Rows of a workgroup of the line above.
    pub(super) attention_block: u32,
    pub(super) router: Pipeline,
    pub(super) route: Pipeline,
    pub(super) group_pairs: Pipeline,
    pub(super) resolve_groups: Pipeline,
    pub(super) expert_gate_up: Product,
    pub(super) expert_down: Product,
    pub(super) combine: Pipeline,
    pub(super) argmax: Pipeline,
    pub(super) fused: Option<FusedPipelines>,
}

/// Sides of the cooperative matrices of attention, and the longest head for which its blocks fit shared memory.
const MATRIX_SIDE: u32 = 16;
const MATRIX_HEAD_MAX: u32 = 128;

/// The attention of many rows in the form that suits the device, and the rows of its workgroups.
fn attention_form(gpu: &Gpu, shape: KernelShape, tuning: Tuning) -> Result<(Pipeline, u32), GpuError> {
    let KernelShape { head_dim, group, .. } = shape;
    let lanes = gpu.info().subgroup_size;
    let has_matrix = gpu.info().matrix.is_some_and(|of| [of.m, of.n, of.k] == [MATRIX_SIDE; 3]);
    if has_matrix
        && tuning.attention_matrix > 0
        && head_dim <= MATRIX_HEAD_MAX
        && head_dim.is_multiple_of(MATRIX_SIDE)
    {
        let subgroups = tuning.attention_matrix;
        assert!(subgroups <= 4, "attention: {subgroups} subgroups, of which shared memory holds 4");
        let values = [lanes * subgroups, lanes, head_dim, group];
        return Ok((gpu.pipeline(&k::ATTENTION_ROWS_MATRIX, lanes, &values)?, subgroups * MATRIX_SIDE));
    }
    let row_lanes = tuning.attention_lanes.min(lanes);
    assert!(row_lanes.is_power_of_two(), "attention: {row_lanes} lanes share a row");
    let values = [lanes, lanes, head_dim, group, row_lanes, tuning.attention_rows];
    Ok((gpu.pipeline(&k::ATTENTION_ROWS, lanes, &values)?, lanes / row_lanes * tuning.attention_rows))
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
        // `parts` matrices are multiplied side by side; `workgroup` is that of one and a few rows.
        let product = |forms: &Forms, workgroup: u32, parts: u32, constants: &[u32]| {
            let kernel = forms.registers;
            let [rows_one, rows_few] = [tuning.rows_one, tuning.rows_few].map(|rows| rows.div_ceil(parts));
            let tile = |lanes: u32, rows: u32, columns: u32| {
                make(kernel, lanes, &[&[rows, columns], constants].concat())
            };
            let [two, four, eight] = FEW_COLUMNS.map(|columns| tile(workgroup, rows_few, columns));
            Ok::<_, GpuError>(Product {
                one: tile(workgroup, rows_one, 1)?,
                few: [two?, four?, eight?],
                many: forms.many(gpu, &tuning, parts, constants)?,
                rows_one,
                rows_few,
            })
        };
        let (attention_rows, attention_block) = attention_form(gpu, shape, tuning)?;
        Ok(Self {
            tuning,
            shape,
            workgroup: lanes,
            embed: make(&k::EMBED, norm, &[])?,
            rms_norm: make(&k::RMS_NORM, norm, &[])?,
            matmul: product(&MATMUL, wide, 1, &[0])?,
            matmul_add: product(&MATMUL, wide, 1, &[1])?,
            gate_up: product(&GATE_UP, wide, 2, &[])?,
            rope: make(&k::ROPE, lanes, &[])?,
            attention: make(&k::ATTENTION, lanes, &[shape.head_dim, shape.group])?,
            attention_merge: make(&k::ATTENTION_MERGE, lanes, &[])?,
            attention_rows,
            attention_block,
            router: make(&k::ROUTER, wide, &[tuning.rows_one])?,
            route: make(&k::ROUTE, lanes, &[shape.experts_used, shape.expert_count.div_ceil(lanes)])?,
            group_pairs: make(&k::GROUP_PAIRS, lanes, &[shape.experts_used])?,
            resolve_groups: make(&k::RESOLVE_GROUPS, lanes, &[])?,
            expert_gate_up: product(&EXPERT_GATE_UP, wide, 2, &[])?,
            expert_down: product(&EXPERT_DOWN, lanes, 1, &[])?,
            combine: make(&k::COMBINE, lanes, &[])?,
            argmax: make(&k::ARGMAX, lanes, &[])?,
            fused: FusedPipelines::new(gpu, shape, &tuning)?,
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
