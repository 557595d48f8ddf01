//! Routed experts: products with the records that lie in the pool's slots.

use flint_shaders::layout::{ExpertDownPush, ExpertGateUpPush, POOL_BUFFERS, TILE_WORDS};

use super::pipelines::Product;
use super::{Binder, Rows, groups};
use crate::gpu::{Bindings, Buffer, BufferView, GpuError, Recorder};

/// The pool's memory as kernels see it.
#[derive(Clone)]
pub struct ExpertPool {
    /// At most [`POOL_BUFFERS`] buffers of `slots_per_buffer` records each, the last one possibly of fewer.
    pub buffers: Vec<Buffer>,
    /// Slots in a buffer.
    pub slots_per_buffer: u32,
    /// Bytes of a record; slots follow each other without a gap.
    pub record_bytes: u64,
    /// Bytes of a record's gate part, with which it begins; the up part follows and has as many.
    pub gate_bytes: u64,
}

impl ExpertPool {
    /// One view an element of the binding; the last buffer stands in for those that do not exist.
    pub(super) fn views(&self) -> Vec<BufferView> {
        let last = self.buffers.last().expect("invariant: a pool has a buffer");
        (0..POOL_BUFFERS as usize).map(|i| self.buffers.get(i).unwrap_or(last).view()).collect()
    }

    pub(super) fn words(bytes: u64) -> u32 {
        u32::try_from(bytes / 4).expect("invariant: a record is below 16 GiB")
    }
}

/// Which experts a dispatch serves, and which pairs of each (`expert_pool.glsl`).
#[derive(Clone)]
pub struct TileBuffers {
    /// u32 `[tiles, 3]`: slot, first, count.
    pub tiles: Buffer,
    /// u32 `[pairs]`: token * experts_used + pick.
    pub pairs: Buffer,
}

/// `h[pair] = silu(gate x) * (up x)`.
pub struct ExpertGateUp {
    product: Product,
    bindings: Bindings,
    push: ExpertGateUpPush,
    tiles_max: u32,
}

impl ExpertGateUp {
    /// `x` f32 `[tokens, embed_dim]`, `h` f32 `[tokens * experts_used, expert_ffn_dim]`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        x: &Buffer,
        tiles: &TileBuffers,
        h: &Buffer,
        pool: &ExpertPool,
        expert_ffn_dim: u32,
        embed_dim: u32,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, .. } = *on;
        let used = u64::from(pipelines.shape.experts_used);
        on.assert_rows("expert_gate_up", "x", x, u64::from(embed_dim));
        on.assert_rows("expert_gate_up", "h", h, used * u64::from(expert_ffn_dim));
        on.assert_rows("expert_gate_up", "pairs", &tiles.pairs, used);
        let product = pipelines.expert_gate_up.clone();
        let bindings = gpu.bind(
            product.any(),
            &[
                &[control.view()],
                &[x.view()],
                &[tiles.tiles.view()],
                &[tiles.pairs.view()],
                &[h.view()],
                &pool.views(),
            ],
        )?;
        let push = ExpertGateUpPush {
            row_count: expert_ffn_dim,
            column_count: embed_dim,
            experts_used: pipelines.shape.experts_used,
            tile_first: 0,
            slot_words: ExpertPool::words(pool.record_bytes),
            slots_per_buffer: pool.slots_per_buffer,
            gate_word: 0,
            up_word: ExpertPool::words(pool.gate_bytes),
        };
        Ok(Self { product, bindings, push, tiles_max: tiles_max(tiles) })
    }

    /// Records it for `tiles` tiles from tile `first` on, each of at most as many pairs as `pairs` says: a power of two up to 8 of
    /// [`Rows::Few`], or what [`super::Tuning::tile_pairs`] says of [`Rows::Many`].
    pub fn record(&self, recorder: &mut Recorder, pairs: Rows, first: u32, tiles: u32) {
        assert!(
            first + tiles <= self.tiles_max,
            "expert_gate_up: tile {} of {}",
            first + tiles,
            self.tiles_max
        );
        let push = ExpertGateUpPush { tile_first: first, ..self.push };
        let (pipeline, ..) = self.product.pick_pairs(pairs);
        recorder.dispatch(pipeline, &self.bindings, push.bytes(), self.grid(pairs, tiles));
    }

    /// Workgroups for `tiles` tiles.
    pub fn grid(&self, pairs: Rows, tiles: u32) -> [u32; 3] {
        let (_, rows, _) = self.product.pick_pairs(pairs);
        [groups(self.push.row_count, rows), 1, tiles]
    }

    /// As [`Self::record`], for as many tiles as the device has made when it comes to it: `grid` at `offset_bytes` holds what
    /// [`Self::grid`] says, with their count for z.
    pub fn record_indirect(
        &self,
        recorder: &mut Recorder,
        pairs: Rows,
        first: u32,
        (grid, offset_bytes): (&Buffer, u64),
    ) {
        let push = ExpertGateUpPush { tile_first: first, ..self.push };
        let (pipeline, ..) = self.product.pick_pairs(pairs);
        recorder.dispatch_indirect(pipeline, &self.bindings, push.bytes(), grid, offset_bytes);
    }
}

/// `y[pair] = down h[pair]`.
pub struct ExpertDown {
    product: Product,
    bindings: Bindings,
    push: ExpertDownPush,
    tiles_max: u32,
}

impl ExpertDown {
    /// `h` f32 `[tokens * experts_used, expert_ffn_dim]`, `y` f32 `[tokens * experts_used, embed_dim]`.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(
        on: &Binder<'_>,
        h: &Buffer,
        tiles: &TileBuffers,
        y: &Buffer,
        pool: &ExpertPool,
        expert_ffn_dim: u32,
        embed_dim: u32,
    ) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, .. } = *on;
        let used = u64::from(pipelines.shape.experts_used);
        on.assert_rows("expert_down", "h", h, used * u64::from(expert_ffn_dim));
        on.assert_rows("expert_down", "y", y, used * u64::from(embed_dim));
        on.assert_rows("expert_down", "pairs", &tiles.pairs, used);
        let product = pipelines.expert_down.clone();
        let bindings = gpu.bind(
            product.any(),
            &[
                &[control.view()],
                &[h.view()],
                &[tiles.tiles.view()],
                &[tiles.pairs.view()],
                &[y.view()],
                &pool.views(),
            ],
        )?;
        let push = ExpertDownPush {
            row_count: embed_dim,
            column_count: expert_ffn_dim,
            tile_first: 0,
            slot_words: ExpertPool::words(pool.record_bytes),
            slots_per_buffer: pool.slots_per_buffer,
            down_word: ExpertPool::words(2 * pool.gate_bytes),
        };
        Ok(Self { product, bindings, push, tiles_max: tiles_max(tiles) })
    }

    /// As [`ExpertGateUp::record`].
    pub fn record(&self, recorder: &mut Recorder, pairs: Rows, first: u32, tiles: u32) {
        assert!(first + tiles <= self.tiles_max, "expert_down: tile {} of {}", first + tiles, self.tiles_max);
        let push = ExpertDownPush { tile_first: first, ..self.push };
        let (pipeline, ..) = self.product.pick_pairs(pairs);
        recorder.dispatch(pipeline, &self.bindings, push.bytes(), self.grid(pairs, tiles));
    }

    /// As [`ExpertGateUp::grid`].
    pub fn grid(&self, pairs: Rows, tiles: u32) -> [u32; 3] {
        let (_, rows, _) = self.product.pick_pairs(pairs);
        [groups(self.push.row_count, rows), 1, tiles]
    }

    /// As [`ExpertGateUp::record_indirect`].
    pub fn record_indirect(
        &self,
        recorder: &mut Recorder,
        pairs: Rows,
        first: u32,
        (grid, offset_bytes): (&Buffer, u64),
    ) {
        let push = ExpertDownPush { tile_first: first, ..self.push };
        let (pipeline, ..) = self.product.pick_pairs(pairs);
        recorder.dispatch_indirect(pipeline, &self.bindings, push.bytes(), grid, offset_bytes);
    }
}

pub(super) fn tiles_max(tiles: &TileBuffers) -> u32 {
    u32::try_from(tiles.tiles.len_bytes() / (TILE_WORDS as u64 * 4)).expect("invariant: tiles are few")
}
