//! Dense Q4_1 matrices: products with one token's vector or with a tile of tokens.

use flint_shaders::layout::{GateUpPush, MatmulPush};

use super::pipelines::Product;
use super::{Binder, Rows, groups};
use crate::gpu::{Bindings, Buffer, GpuError, Recorder};

/// Some rows of a matrix in a buffer of their own.
#[derive(Clone)]
pub struct MatrixPiece {
    /// Q4_1 blocks `[row_count, columns / 32]`.
    pub blocks: Buffer,
    /// The first row of the matrix that lies here.
    pub row_first: u32,
    /// How many rows lie here.
    pub row_count: u32,
}

/// A Q4_1 matrix in device memory, cut by rows where it is larger than a binding may be.
#[derive(Clone)]
pub struct Matrix {
    /// Its pieces, ascending by row.
    pub pieces: Vec<MatrixPiece>,
    /// Rows: outputs.
    pub row_count: u32,
    /// Columns: inputs.
    pub column_count: u32,
}

struct Piece {
    bindings: Bindings,
    row_first: u32,
    row_count: u32,
}

/// `y (+)= W x` for one or many tokens.
pub struct Matmul {
    product: Product,
    pieces: Vec<Piece>,
    push: MatmulPush,
    tokens_max: u32,
}

impl Matmul {
    /// `x` f32 `[*, columns]`, `y` f32 `[*, rows]`; with `is_added` the product is added to what `y` holds.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        x: &Buffer,
        matrix: &Matrix,
        y: &Buffer,
        is_added: bool,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        let product = if is_added { &pipelines.matmul_add } else { &pipelines.matmul };
        on.assert_rows("matmul", "x", x, u64::from(matrix.column_count));
        on.assert_rows("matmul", "y", y, u64::from(matrix.row_count));
        let pieces = matrix
            .pieces
            .iter()
            .map(|piece| {
                let buffers: [&[_]; 4] =
                    [&[control.view()], &[x.view()], &[piece.blocks.view()], &[y.view()]];
                Ok(Piece {
                    bindings: gpu.bind(product.any(), &buffers)?,
                    row_first: piece.row_first,
                    row_count: piece.row_count,
                })
            })
            .collect::<Result<_, GpuError>>()?;
        Ok(Self {
            product: product.clone(),
            pieces,
            push: MatmulPush {
                column_count: matrix.column_count,
                y_stride: matrix.row_count,
                ..MatmulPush::default()
            },
            tokens_max,
        })
    }

    /// Records it for the step's tokens, as many as `rows` says: row `t` of `x` to row `t` of `y`.
    pub fn record(&self, recorder: &mut Recorder, rows: impl Into<Rows>) {
        self.record_with(recorder, rows.into(), self.push);
    }

    /// Records it for `rows` of `x` from 0 on, whatever the step's token count is.
    pub fn record_rows(&self, recorder: &mut Recorder, rows: impl Into<Rows>) {
        let rows = rows.into();
        self.record_with(recorder, rows, MatmulPush { token_count_max: rows.count(), ..self.push });
    }

    fn record_with(&self, recorder: &mut Recorder, rows: Rows, push: MatmulPush) {
        let tokens = rows.count();
        assert!(tokens <= self.tokens_max, "matmul: {tokens} tokens of {}", self.tokens_max);
        for piece in &self.pieces {
            let (pipeline, rows, per_tile) = self.product.pick(rows, piece.row_count);
            let push = MatmulPush { row_count: piece.row_count, y_column: piece.row_first, ..push };
            let grid = [groups(piece.row_count, rows), groups(tokens, per_tile), 1];
            recorder.dispatch(pipeline, &piece.bindings, push.bytes(), grid);
        }
    }
}

/// `h = silu(Wgate x) * (Wup x)` for one or many tokens.
pub struct GateUp {
    product: Product,
    bindings: Bindings,
    push: GateUpPush,
    tokens_max: u32,
}

impl GateUp {
    /// `x` f32 `[*, columns]`, `h` f32 `[*, rows]`.
    ///
    /// # Errors
    /// [`GpuError::OverLimit`] when a matrix had to be cut into pieces: Flint's largest is 7.9 MB, and the smallest limit known
    /// 128 MiB. When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        x: &Buffer,
        gate: &Matrix,
        up: &Matrix,
        h: &Buffer,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        assert!(
            gate.row_count == up.row_count && gate.column_count == up.column_count,
            "gate and up differ in shape"
        );
        if gate.pieces.len() != 1 || up.pieces.len() != 1 {
            return Err(GpuError::OverLimit {
                what: "gate and up matrix of a feed-forward network".to_owned(),
                wanted: u64::from(gate.row_count) * u64::from(gate.column_count) / 32 * 20,
                limit_name: "maxStorageBufferRange",
                limit: gpu.info().limits.largest_binding(),
            });
        }
        on.assert_rows("gate_up", "x", x, u64::from(gate.column_count));
        on.assert_rows("gate_up", "h", h, u64::from(gate.row_count));
        let product = pipelines.gate_up.clone();
        let (gate_blocks, up_blocks) = (&gate.pieces[0].blocks, &up.pieces[0].blocks);
        let bindings = gpu.bind(
            product.any(),
            &[&[control.view()], &[x.view()], &[gate_blocks.view()], &[up_blocks.view()], &[h.view()]],
        )?;
        let push = GateUpPush { row_count: gate.row_count, column_count: gate.column_count };
        Ok(Self { product, bindings, push, tokens_max })
    }

    /// Records it for the step's tokens, as many as `rows` says.
    pub fn record(&self, recorder: &mut Recorder, rows: impl Into<Rows>) {
        let rows = rows.into();
        let tokens = rows.count();
        assert!(tokens <= self.tokens_max, "gate_up: {tokens} tokens of {}", self.tokens_max);
        let (pipeline, rows, per_tile) = self.product.pick(rows, self.push.row_count);
        let grid = [groups(self.push.row_count, rows), groups(tokens, per_tile), 1];
        recorder.dispatch(pipeline, &self.bindings, self.push.bytes(), grid);
    }
}
