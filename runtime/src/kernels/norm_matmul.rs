//! Products of a few rows with up to three Q4_1 matrices, with the norm in front of them folded in.

use flint_shaders::layout::{MATRICES, NormMatmulPush};

use super::fused::{FoldedNorm, Tiled};
use super::linear::{Matrix, MatrixPiece};
use super::{Binder, assert_holds, groups};
use crate::gpu::{Bindings, Buffer, GpuError, Recorder};

struct Piece {
    bindings: Bindings,
    push: NormMatmulPush,
}

/// `y_m = W_m rms_norm(x)` for the next tokens of a few sequences; where norms are not folded, of an `x` that is normed already.
pub struct NormMatmul {
    tiled: Tiled,
    pieces: Vec<Piece>,
    /// Rows of `x`, of which a part may be taken.
    x_rows: u32,
    tokens_max: u32,
}

impl NormMatmul {
    /// One matrix, cut into pieces or not: `x` f32 `[*, columns]`, `y` f32 `[*, rows]`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    ///
    /// # Panics
    /// When the kernels were made without fused ones.
    pub fn new(
        on: &Binder<'_>,
        x: &Buffer,
        norm: FoldedNorm<'_>,
        matrix: &Matrix,
        y: &Buffer,
    ) -> Result<Self, GpuError> {
        let pieces: Vec<_> = matrix
            .pieces
            .iter()
            .map(|piece| {
                let push = NormMatmulPush {
                    first_rows: piece.row_count,
                    y_stride: matrix.row_count,
                    y_column: piece.row_first,
                    ..NormMatmulPush::default()
                };
                ([piece; MATRICES as usize], [y; MATRICES as usize], push)
            })
            .collect();
        on.assert_rows("norm_matmul", "y", y, u64::from(matrix.row_count));
        Self::bind(on, x, norm, matrix.column_count, &pieces)
    }

    /// Three matrices of as many columns in one dispatch.
    ///
    /// # Errors
    /// [`GpuError::OverLimit`] when a matrix had to be cut into pieces. When the driver has no descriptors left.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn new_three(
        on: &Binder<'_>,
        x: &Buffer,
        norm: FoldedNorm<'_>,
        matrices: [&Matrix; MATRICES as usize],
        y: [&Buffer; MATRICES as usize],
    ) -> Result<Self, GpuError> {
        for (matrix, y) in matrices.iter().zip(y) {
            assert_eq!(matrix.column_count, matrices[0].column_count, "norm_matmul: columns differ");
            on.assert_rows("norm_matmul", "y", y, u64::from(matrix.row_count));
            matrix.check_whole(on, "query, key and value matrix of a layer")?;
        }
        let [first_rows, second_rows, third_rows] = matrices.map(|matrix| matrix.row_count);
        let push = NormMatmulPush {
            first_rows,
            second_rows,
            third_rows,
            y_stride: first_rows,
            ..NormMatmulPush::default()
        };
        let pieces = matrices.map(|matrix| &matrix.pieces[0]);
        Self::bind(on, x, norm, matrices[0].column_count, &[(pieces, y, push)])
    }

    fn bind(
        on: &Binder<'_>,
        x: &Buffer,
        norm: FoldedNorm<'_>,
        column_count: u32,
        pieces: &[([&MatrixPiece; MATRICES as usize], [&Buffer; MATRICES as usize], NormMatmulPush)],
    ) -> Result<Self, GpuError> {
        let Binder { gpu, control, tokens_max, .. } = *on;
        let tiled = on.fused().norm_matmul.clone();
        assert_holds("norm_matmul", "norm", norm.weight, u64::from(column_count));
        let pieces = pieces
            .iter()
            .map(|&(weights, y, push)| {
                let buffers: [&[_]; 5] = [
                    &[control.view()],
                    &[x.view()],
                    &[norm.weight.view()],
                    &weights.map(|piece| piece.blocks.view()),
                    &y.map(Buffer::view),
                ];
                let push = NormMatmulPush { column_count, epsilon: norm.epsilon, ..push };
                Ok(Piece { bindings: gpu.bind(tiled.any(), &buffers)?, push })
            })
            .collect::<Result<_, GpuError>>()?;
        let x_rows = u32::try_from(x.len_bytes() / (u64::from(column_count) * 4))
            .expect("invariant: a buffer is below 16 TiB");
        Ok(Self { tiled, pieces, x_rows, tokens_max })
    }

    /// Records it for the step's tokens, `count` of them.
    pub fn record(&self, recorder: &mut Recorder, count: u32) {
        self.record_with(recorder, count, 0, 0);
    }

    /// Records it for `count` rows of `x` from `x_row` on, whatever the step's token count is.
    pub fn record_rows(&self, recorder: &mut Recorder, x_row: u32, count: u32) {
        self.record_with(recorder, count, x_row, count);
    }

    fn record_with(&self, recorder: &mut Recorder, count: u32, x_row: u32, token_count_max: u32) {
        assert!(
            count <= self.tokens_max && x_row + count <= self.x_rows,
            "norm_matmul: {count} rows of {} from row {x_row} on, of {}",
            self.tokens_max,
            self.x_rows
        );
        let (pipeline, rows, columns) = self.tiled.pick(count);
        for Piece { bindings, push } in &self.pieces {
            let push = NormMatmulPush { x_row, token_count_max, ..*push };
            let row_groups =
                [push.first_rows, push.second_rows, push.third_rows].map(|count| groups(count, rows));
            let grid = [row_groups.iter().sum(), groups(count, columns), 1];
            recorder.dispatch(pipeline, bindings, push.bytes(), grid);
        }
    }
}
