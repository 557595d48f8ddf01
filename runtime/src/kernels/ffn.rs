//! A layer's feed-forward networks, routed and dense ones in one dispatch, for next tokens.

use flint_shaders::layout::{FfnDownPush, FfnGateUpPush};

use super::expert::{ExpertPool, TileBuffers, tiles_max};
use super::fused::{FoldedNorm, Tiled};
use super::linear::Matrix;
use super::{Binder, assert_holds, groups};
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// The routed experts of a layer.
#[derive(Clone, Copy)]
pub struct RoutedExperts<'a> {
    /// Where their records lie.
    pub pool: &'a ExpertPool,
    /// Which of them are served.
    pub tiles: &'a TileBuffers,
    /// f32 `[tokens * experts_used, ffn_dim]`.
    pub hidden: &'a Buffer,
    /// Rows of their gate and up matrices.
    pub ffn_dim: u32,
}

/// `h = silu(gate n) * (up n)` of routed experts, of a dense network, or of both; `n` as in [`super::NormMatmul`].
pub struct FfnGateUp {
    tiled: Tiled,
    bindings: Bindings,
    push: FfnGateUpPush,
    tokens_max: u32,
    tiles_max: u32,
}

impl FfnGateUp {
    /// `x` f32 `[tokens, embed_dim]`, `dense_hidden` f32 `[tokens, rows of gate]`.
    ///
    /// # Errors
    /// [`GpuError::OverLimit`] when a matrix had to be cut into pieces. When the driver has no descriptors left.
    ///
    /// # Panics
    /// When the kernels were made without fused ones.
    pub fn new(
        on: &Binder<'_>,
        x: &Buffer,
        norm: FoldedNorm<'_>,
        routed: RoutedExperts<'_>,
        [gate, up]: [&Matrix; 2],
        dense_hidden: &Buffer,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        let experts_used = pipelines.shape.experts_used;
        assert!(
            gate.row_count == up.row_count && gate.column_count == up.column_count,
            "gate and up differ in shape"
        );
        for matrix in [gate, up] {
            matrix.check_whole(on, "gate and up matrix of a feed-forward network")?;
        }
        on.assert_rows("ffn_gate_up", "x", x, u64::from(gate.column_count));
        on.assert_rows("ffn_gate_up", "dense_h", dense_hidden, u64::from(gate.row_count));
        on.assert_rows(
            "ffn_gate_up",
            "h",
            routed.hidden,
            u64::from(experts_used) * u64::from(routed.ffn_dim),
        );
        on.assert_rows("ffn_gate_up", "pairs", &routed.tiles.pairs, u64::from(experts_used));
        assert_holds("ffn_gate_up", "norm", norm.weight, u64::from(gate.column_count));
        let tiled = on.fused().ffn_gate_up.clone();
        let mut pool = routed.pool.views();
        pool.extend([gate, up].map(|matrix| matrix.pieces[0].blocks.view()));
        let bindings = gpu.bind(
            tiled.any(),
            &[
                &[control.view()],
                &[x.view()],
                &[routed.tiles.tiles.view()],
                &[routed.tiles.pairs.view()],
                &[routed.hidden.view()],
                &pool,
                &[norm.weight.view()],
                &[dense_hidden.view()],
            ],
        )?;
        let push = FfnGateUpPush {
            expert_rows: routed.ffn_dim,
            dense_rows: gate.row_count,
            column_count: gate.column_count,
            experts_used,
            tile_first: 0,
            tile_count: 0,
            slot_words: ExpertPool::words(routed.pool.record_bytes),
            slots_per_buffer: routed.pool.slots_per_buffer,
            gate_word: 0,
            up_word: ExpertPool::words(routed.pool.gate_bytes),
            epsilon: norm.epsilon,
        };
        Ok(Self { tiled, bindings, push, tokens_max, tiles_max: tiles_max(routed.tiles) })
    }

    /// Records the picks and the dense network of one token, whose tiles are the first.
    pub fn record_one(&self, recorder: &mut Recorder) {
        self.record(recorder, 1, (0, self.push.experts_used), 1);
    }

    /// Records the dense network for the step's tokens, `count` of them.
    pub fn record_dense(&self, recorder: &mut Recorder, count: u32) {
        self.record(recorder, count, (0, 0), count);
    }

    /// Records `tiles` tiles from tile `first` on, of up to `pairs` pairs each: a power of two up to 8.
    pub fn record_routed(&self, recorder: &mut Recorder, pairs: u32, first: u32, tiles: u32) {
        self.record(recorder, pairs, (first, tiles), 0);
    }

    /// Workgroups for `tiles` tiles as those of [`Self::record_routed`].
    pub fn grid(&self, pairs: u32, tiles: u32) -> [u32; 3] {
        let (_, rows, _) = self.tiled.pick(pairs);
        [groups(self.push.expert_rows, rows), 1, tiles]
    }

    /// As [`Self::record_routed`], for as many tiles as the device has made when it comes to it: `grid` at `offset_bytes` holds what
    /// [`Self::grid`] says, with their count for z.
    pub fn record_routed_indirect(
        &self,
        recorder: &mut Recorder,
        pairs: u32,
        first: u32,
        (grid, offset_bytes): (&Buffer, u64),
    ) {
        let (pipeline, ..) = self.tiled.pick(pairs);
        let push = FfnGateUpPush { tile_first: first, tile_count: u32::MAX, ..self.push };
        recorder.dispatch_indirect(pipeline, &self.bindings, push.bytes(), grid, offset_bytes);
    }

    fn record(&self, recorder: &mut Recorder, columns: u32, (first, tiles): (u32, u32), tokens: u32) {
        assert!(tokens <= self.tokens_max, "ffn_gate_up: {tokens} tokens of {}", self.tokens_max);
        let end = first + tiles;
        assert!(end <= self.tiles_max, "ffn_gate_up: tile {end} of {}", self.tiles_max);
        let (pipeline, rows, columns) = self.tiled.pick(columns);
        let push = FfnGateUpPush { tile_first: first, tile_count: tiles, ..self.push };
        let routed_rows = if tiles == 0 { 0 } else { push.expert_rows };
        let dense_rows = if tokens == 0 { 0 } else { push.dense_rows };
        let grid = [groups(routed_rows.max(dense_rows), rows), 1, tiles + groups(tokens, columns)];
        recorder.dispatch(pipeline, &self.bindings, push.bytes(), grid);
    }
}

/// `x += sum_j w_j Y_j + down h` of an expert layer: the picks in the router's order, then the shared expert.
pub struct FfnDown {
    one: Pipeline,
    given: Tiled,
    bindings: Bindings,
    push: FfnDownPush,
    rows_one: u32,
    tokens_max: u32,
}

/// The buffers of [`FfnDown`] beside the experts'.
pub struct FfnDownBuffers<'a> {
    /// f32 `[tokens, experts_used, embed_dim]`: rows of the picks, where they are given.
    pub rows: &'a Buffer,
    /// u32 `[tokens, 2, experts_used]`.
    pub routes: &'a Buffer,
    /// f32 `[tokens, columns of the shared matrix]`.
    pub dense_hidden: &'a Buffer,
    /// f32 `[tokens, embed_dim]`: the residual stream.
    pub x: &'a Buffer,
}

impl FfnDown {
    /// Binds it; `shared` is the shared expert's down matrix.
    ///
    /// # Errors
    /// As [`FfnGateUp::new`].
    ///
    /// # Panics
    /// As there.
    pub fn new(
        on: &Binder<'_>,
        routed: RoutedExperts<'_>,
        shared: &Matrix,
        buffers: &FfnDownBuffers<'_>,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        let (used, embed) = (u64::from(pipelines.shape.experts_used), u64::from(shared.row_count));
        shared.check_whole(on, "down matrix of a shared expert")?;
        on.assert_rows("ffn_down", "y", buffers.rows, used * embed);
        on.assert_rows("ffn_down", "routes", buffers.routes, 2 * used);
        on.assert_rows("ffn_down", "dense_h", buffers.dense_hidden, u64::from(shared.column_count));
        on.assert_rows("ffn_down", "x", buffers.x, embed);
        assert_holds("ffn_down", "h", routed.hidden, used * u64::from(routed.ffn_dim));
        let fused = on.fused();
        let mut pool = routed.pool.views();
        pool.push(shared.pieces[0].blocks.view());
        let bindings = gpu.bind(
            &fused.ffn_down,
            &[
                &[control.view()],
                &[routed.hidden.view()],
                &[routed.tiles.tiles.view()],
                &[buffers.rows.view()],
                &[buffers.routes.view()],
                &pool,
                &[buffers.dense_hidden.view()],
                &[buffers.x.view()],
            ],
        )?;
        let push = FfnDownPush {
            row_count: shared.row_count,
            expert_columns: routed.ffn_dim,
            dense_columns: shared.column_count,
            slot_words: ExpertPool::words(routed.pool.record_bytes),
            slots_per_buffer: routed.pool.slots_per_buffer,
            down_word: ExpertPool::words(2 * routed.pool.gate_bytes),
        };
        let (one, given) = (fused.ffn_down.clone(), fused.ffn_down_given.clone());
        Ok(Self { one, given, bindings, push, rows_one: fused.rows_down, tokens_max })
    }

    /// Records it for one token: its picks are multiplied with their experts' down matrices, those of the first tiles.
    pub fn record_one(&self, recorder: &mut Recorder) {
        let grid = [groups(self.push.row_count, self.rows_one), 1, 1];
        recorder.dispatch(&self.one, &self.bindings, self.push.bytes(), grid);
    }

    /// Records it for `count` tokens whose picks' rows are there.
    pub fn record_given(&self, recorder: &mut Recorder, count: u32) {
        assert!(count <= self.tokens_max, "ffn_down: {count} tokens of {}", self.tokens_max);
        let (pipeline, rows, columns) = self.given.pick(count);
        let grid = [groups(self.push.row_count, rows), groups(count, columns), 1];
        recorder.dispatch(pipeline, &self.bindings, self.push.bytes(), grid);
    }
}
