//! How products of many rows, those of prompts, are computed: in which form, and with which sizes of tiles. Pure but for
//! [`ManyForm::from_environment`].
//!
//! In: what the device is, how many rows there are. Out: a [`Many`] and the tile to take.
//!
//! Invariant: within a form a row's bits do not depend on the tile, so the choice may follow the number of rows.

use std::ffi::OsStr;
use std::fmt;

use crate::gpu::{DeviceInfo, DeviceKind, GpuError, MatrixShape};

const VARIABLE: &str = "FLINT_RT_PROMPT_KERNELS";

/// By what means a product of many rows is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ManyForm {
    /// A few rows and tokens a subgroup, in registers, as the next tokens are: no barriers, f32, and in deterministic mode the same
    /// bits as those have.
    Registers,
    /// Tiles in shared memory, f32: a GPU without cooperative matrices.
    Tiles,
    /// The same, multiplied by cooperative matrices: weights and activations rounded to f16, sums f32.
    CooperativeMatrix,
}

impl fmt::Display for ManyForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Registers => "registers, f32",
            Self::Tiles => "tiles in shared memory, f32",
            Self::CooperativeMatrix => "cooperative matrices, f16 into f32",
        })
    }
}

impl ManyForm {
    /// Its name in the environment and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Registers => "registers",
            Self::Tiles => "tiles",
            Self::CooperativeMatrix => "matrix",
        }
    }

    /// What suits the device: a software device counts loads and pays for barriers; a GPU takes its matrix units, where it has any.
    pub fn for_device(info: &DeviceInfo) -> Self {
        match (info.kind, info.matrix) {
            (DeviceKind::Software, _) => Self::Registers,
            (_, Some(_)) => Self::CooperativeMatrix,
            (_, None) => Self::Tiles,
        }
    }

    /// What `FLINT_RT_PROMPT_KERNELS` in the environment asks for, `registers`, `tiles` or `matrix`; `None` for `auto` or nothing.
    ///
    /// # Errors
    /// [`GpuError::InvalidVariable`] when it says something else.
    pub fn from_environment() -> Result<Option<Self>, GpuError> {
        Self::named(std::env::var_os(VARIABLE).as_deref())
    }

    fn named(value: Option<&OsStr>) -> Result<Option<Self>, GpuError> {
        let Some(value) = value.filter(|value| !value.is_empty() && *value != "auto") else {
            return Ok(None);
        };
        let all = [Self::Registers, Self::Tiles, Self::CooperativeMatrix];
        match all.into_iter().find(|form| value == form.name()) {
            Some(form) => Ok(Some(form)),
            None => Err(GpuError::InvalidVariable {
                name: VARIABLE,
                value: value.to_string_lossy().into_owned(),
                wanted: "`auto`, `registers`, `tiles` or `matrix`",
            }),
        }
    }
}

/// One size of tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ManyTile {
    /// Rows of a workgroup, of all matrices together.
    pub rows: u32,
    /// Tokens, or pairs of an expert.
    pub tokens: u32,
    /// Values of the inner dimension that lie in shared memory at a time: a multiple of 32.
    pub depth: u32,
    /// Along the rows: outputs of a lane ([`ManyForm::Tiles`]), or subgroups ([`ManyForm::CooperativeMatrix`]).
    pub down: u32,
    /// The same along the tokens.
    pub across: u32,
}

const fn tile(rows: u32, tokens: u32, depth: u32, down: u32, across: u32) -> ManyTile {
    ManyTile { rows, tokens, depth, down, across }
}

/// The form, and its tiles from large to small; the form of registers has none here
/// ([`super::Tuning::rows_many`], [`super::Tuning::tokens_many`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Many {
    /// The form.
    pub form: ManyForm,
    /// Tiles of dense matrices.
    pub dense: [ManyTile; 3],
    /// Tiles of experts, each half as wide as the one before.
    pub experts: [ManyTile; 3],
    /// Workgroups that a dispatch should have before its tiles are larger: about one a processor.
    pub groups_least: u32,
}

impl Many {
    /// The tiles of `form` for a kind of device.
    ///
    /// Cooperative matrices: a subgroup with 64 x 64 outputs reads a byte of shared memory for 16 multiplications, which is where
    /// matrix units and shared memory keep pace; experts have few tokens, so all subgroups lie along their rows. A software device
    /// runs these forms only in tests: small tiles, which its compiler unrolls in reasonable time, of 32 lanes at least, so that a GPU can
    /// run the same tests.
    pub fn new(form: ManyForm, kind: DeviceKind) -> Self {
        let (dense, experts) = match (form, kind) {
            (ManyForm::Registers | ManyForm::Tiles, DeviceKind::Software) => (
                [tile(32, 32, 32, 4, 4), tile(32, 16, 32, 4, 4), tile(32, 8, 32, 2, 4)],
                [tile(32, 32, 32, 4, 4), tile(32, 16, 32, 4, 4), tile(32, 8, 32, 2, 4)],
            ),
            (ManyForm::CooperativeMatrix, DeviceKind::Software) => (
                [tile(32, 32, 32, 2, 1), tile(32, 16, 32, 2, 1), tile(16, 16, 32, 1, 1)],
                [tile(32, 32, 32, 2, 1), tile(32, 16, 32, 2, 1), tile(32, 8, 32, 2, 1)],
            ),
            (ManyForm::Registers | ManyForm::Tiles, _) => (
                [tile(64, 64, 32, 4, 4), tile(64, 32, 32, 4, 2), tile(64, 16, 32, 4, 1)],
                [tile(64, 64, 32, 4, 4), tile(64, 32, 32, 4, 2), tile(64, 16, 32, 4, 1)],
            ),
            (ManyForm::CooperativeMatrix, _) => (
                [tile(128, 128, 32, 2, 2), tile(64, 64, 64, 2, 2), tile(64, 32, 64, 2, 1)],
                [tile(128, 64, 64, 4, 1), tile(128, 32, 64, 4, 1), tile(128, 16, 64, 4, 1)],
            ),
        };
        let groups_least = if kind == DeviceKind::Software { 2 } else { 128 };
        Self { form, dense, experts, groups_least }
    }

    /// Of tiles of `(rows, tokens)`, from large to small, the one for a product of `row_count` rows and `tokens` tokens: the largest
    /// that is mostly filled and leaves enough workgroups, else the smallest that is not wider than it must be.
    pub(super) fn pick(tiles: &[(u32, u32)], groups_least: u32, row_count: u32, tokens: u32) -> usize {
        let last = tiles.len().saturating_sub(1);
        let mut picked = last;
        for (index, &(rows, width)) in tiles.iter().enumerate() {
            if index < last && tokens <= width / 2 {
                continue;
            }
            picked = index;
            if row_count.div_ceil(rows) * tokens.div_ceil(width) >= groups_least {
                break;
            }
        }
        picked
    }

    /// The width of an expert's tiles where `mean` pairs are expected of one: what holds nearly all counts around it, so that hardly
    /// any expert's weights are unpacked twice. Picks are counted things: their spread is about the root of their mean.
    pub(super) fn pairs(&self, mean: f64) -> u32 {
        let likely = mean + 2.0 * mean.sqrt();
        let widths = self.experts.iter().rev().map(|tile| tile.tokens);
        widths.clone().find(|&width| f64::from(width) >= likely).unwrap_or(self.experts[0].tokens)
    }
}

/// What a kernel's pipeline is made with: the workgroup's lanes, and the constants from ROWS on.
pub(super) struct ManyConstants {
    pub(super) workgroup: u32,
    /// Rows of each matrix.
    pub(super) rows: u32,
    pub(super) tokens: u32,
    pub(super) values: Vec<u32>,
}

impl ManyTile {
    /// For `matrices` side by side by shared memory; `None` where the tile cannot be on the device.
    pub(super) fn by_lanes(&self, info: &DeviceInfo, matrices: u32) -> Option<ManyConstants> {
        let (rows, down) = (self.rows / matrices, self.down / matrices);
        if rows == 0 || down == 0 || !rows.is_multiple_of(down) || !self.tokens.is_multiple_of(self.across) {
            return None;
        }
        let workgroup = rows / down * (self.tokens / self.across);
        // product_tiles.glsl: slab_weights and slab_sources.
        let shared = 4 * self.depth * (matrices * rows + 1 + self.tokens + 1);
        let values = vec![rows, self.tokens, self.depth, down, self.across];
        self.fits(info, workgroup, shared).then_some(ManyConstants {
            workgroup,
            rows,
            tokens: self.tokens,
            values,
        })
    }

    /// The same by cooperative matrices of `shape`.
    pub(super) fn by_matrices(
        &self,
        info: &DeviceInfo,
        shape: MatrixShape,
        matrices: u32,
    ) -> Option<ManyConstants> {
        let rows = self.rows / matrices;
        let is_whole = rows.is_multiple_of(self.down * shape.m)
            && self.tokens.is_multiple_of(self.across * shape.n)
            && rows > 0;
        let subgroups = self.down * self.across;
        let workgroup = subgroups * info.subgroup_size;
        // product_matrix.glsl: slab_weights, slab_sources and results.
        let shared = matrices * rows * (self.depth / 4 + 2) * 8
            + self.tokens * (self.depth / 8 + 1) * 16
            + subgroups * shape.m * shape.n * 4;
        let values = vec![rows, self.tokens, self.depth, self.down, shape.m, shape.n, shape.k];
        (is_whole && self.fits(info, workgroup, shared)).then_some(ManyConstants {
            workgroup,
            rows,
            tokens: self.tokens,
            values,
        })
    }

    fn fits(&self, info: &DeviceInfo, workgroup: u32, shared_bytes: u32) -> bool {
        let limits = &info.limits;
        self.depth.is_multiple_of(32)
            && shared_bytes + SHARED_REST <= limits.shared_bytes
            && workgroup <= limits.workgroup_len
            && workgroup <= limits.workgroup_subgroups.saturating_mul(info.subgroup_size)
            && workgroup.is_multiple_of(info.subgroup_size)
    }
}

/// Bytes of shared memory that the kernels' common part may take beside a tile: one sum a subgroup of a workgroup.
const SHARED_REST: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_a_form_and_what_it_cannot_mean_is_said() {
        let say = |value: &str| ManyForm::named(Some(OsStr::new(value)));
        assert_eq!(say("matrix").ok(), Some(Some(ManyForm::CooperativeMatrix)));
        assert_eq!(say("tiles").ok(), Some(Some(ManyForm::Tiles)));
        assert_eq!(say("registers").ok(), Some(Some(ManyForm::Registers)));
        assert_eq!(say("auto").ok(), Some(None));
        assert_eq!(say("").ok(), Some(None), "as if it were not set");
        assert_eq!(ManyForm::named(None).ok(), Some(None));
        let error = say("coopmat").expect_err("there is no such word").to_string();
        assert!(error.contains("FLINT_RT_PROMPT_KERNELS") && error.contains("\"coopmat\""), "{error}");
    }

    #[test]
    fn tiles_are_large_where_that_leaves_enough_workgroups() {
        let tiles = [(128, 128), (64, 64), (64, 32)];
        let pick = |row_count, tokens| Many::pick(&tiles, 128, row_count, tokens);
        assert_eq!(pick(4096, 2048), 0, "32 x 16 workgroups");
        assert_eq!(pick(512, 2048), 1, "4 x 16 would leave processors idle");
        assert_eq!(pick(2048, 512), 1);
        assert_eq!(pick(6144, 65), 1, "48 x 1 of the largest");
        assert_eq!(pick(6144, 20), 2, "a wider tile would be mostly empty");
        assert_eq!(pick(1, 1), 2);
        assert_eq!(Many::pick(&[(4, 8)], 128, 9, 9), 0, "registers have one");
    }

    #[test]
    fn an_experts_tile_holds_what_is_likely() {
        let many = Many::new(ManyForm::CooperativeMatrix, DeviceKind::Discrete);
        // 2,048, 512, 256 and 64 tokens, six of 256 experts each.
        let widths = [48.0, 12.0, 6.0, 1.5].map(|mean| many.pairs(mean));
        assert_eq!(widths, [64, 32, 16, 16]);
        assert_eq!(many.pairs(400.0), 64, "more are cut");
    }
}
