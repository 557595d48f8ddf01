//! Picks grouped by expert on the device, so that the experts of many rows run without a word to the host.

use flint_shaders::layout::{GROUP_WORDS, GroupPairsPush, KIND_GRIDS, ResolveGroupsPush, TILE_WORDS};

use super::{Binder, Rows, TileBuffers, assert_holds, few_columns};
use crate::base::ids::LayerIndex;
use crate::base::limits::STEP_SEQUENCES_MAX;
use crate::gpu::{Bindings, Buffer, GpuError, Pipeline, Recorder};

/// Bytes of one dispatch's workgroup counts.
const GRID_BYTES: u64 = 12;

/// Kinds of tiles at most: of 1, 2, 4 and 8 pairs.
const KINDS_MAX: u32 = 4;

/// The tiles that are made for a step: each kind holds half as many pairs as the next, and is computed by a pipeline of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileKinds {
    /// Pairs of the largest tile.
    tile_max: u32,
    count: u32,
    /// Tiles from the first of one kind to the first of the next.
    stride: u32,
    is_few: bool,
}

impl TileKinds {
    /// Of a step of `rows`, many of which have tiles of `tile_pairs`. Few rows get tiles as large as what they hold, so that an expert that one of them picked is not computed
    /// for eight; an expert's dispatch of no tiles costs less than that.
    pub fn of(rows: Rows, tile_pairs: u32, experts_used: u32) -> Self {
        match rows {
            Rows::Few(rows) => {
                let tile_max = few_columns(rows);
                let stride = rows * experts_used;
                Self { tile_max, count: tile_max.ilog2() + 1, stride, is_few: true }
            }
            Rows::Many(_) => Self { tile_max: tile_pairs, count: 1, stride: 0, is_few: false },
        }
    }

    /// Words of a list that holds the tiles of every step of few rows, when steps have up to `tokens_max` tokens.
    pub fn words_of_few(tokens_max: u32, experts_used: u32) -> u64 {
        let pairs = u64::from(tokens_max.min(STEP_SEQUENCES_MAX)) * u64::from(experts_used);
        u64::from(KINDS_MAX) * pairs * TILE_WORDS as u64
    }

    /// Each kind: how its pairs are summed, its first tile, and where the workgroup counts of its two dispatches lie, in bytes.
    pub fn each(self) -> impl Iterator<Item = (Rows, u32, [u64; KIND_GRIDS as usize])> {
        (0..self.count).map(move |kind| {
            let pairs = self.tile_max >> (self.count - 1 - kind);
            let pairs = if self.is_few { Rows::Few(pairs) } else { Rows::Many(pairs) };
            let grid = u64::from(kind) * u64::from(KIND_GRIDS);
            (pairs, kind * self.stride, [grid * GRID_BYTES, (grid + 1) * GRID_BYTES])
        })
    }
}

/// The buffers of [`Group`] beside its tiles.
pub struct GroupBuffers<'a> {
    /// u32 `[tokens, 2, experts_used]`: what [`super::Route`] gives.
    pub routes: &'a Buffer,
    /// u32 `[moe_layers, expert_count]`: slot or `NO_SLOT`.
    pub table: &'a Buffer,
    /// u32 `[expert_count, 2]`: where an expert's pairs begin, and how many there are.
    pub groups: &'a Buffer,
    /// u32 `[kinds, 2, 3]`, see [`Group::grids_words`].
    pub grids: &'a Buffer,
}

/// Pairs sorted by expert, and tiles of them with the experts' slots; where one is in none, the stop word.
pub struct Group {
    pairs: Pipeline,
    resolve: Pipeline,
    pairs_bindings: Bindings,
    resolve_bindings: Bindings,
    expert_count: u32,
    experts_used: u32,
    layers_max: u32,
    tiles_max: u64,
    tokens_max: u32,
}

impl Group {
    /// Binds it; which layer it serves is said when it is recorded.
    ///
    /// # Errors
    /// When the driver has no descriptors left.
    pub fn new(on: &Binder<'_>, buffers: &GroupBuffers<'_>, tiles: &TileBuffers) -> Result<Self, GpuError> {
        let Binder { gpu, pipelines, control, tokens_max } = *on;
        let (expert_count, experts_used) = (pipelines.shape.expert_count, pipelines.shape.experts_used);
        on.assert_rows("group_pairs", "routes", buffers.routes, 2 * u64::from(experts_used));
        on.assert_rows("group_pairs", "pairs", &tiles.pairs, u64::from(experts_used));
        let group_words = u64::from(expert_count) * u64::from(GROUP_WORDS);
        assert_holds("group_pairs", "groups", buffers.groups, group_words);
        assert_holds("resolve_groups", "grids", buffers.grids, Self::grids_words());
        let pairs_bindings = gpu.bind(
            &pipelines.group_pairs,
            &[&[control.view()], &[buffers.routes.view()], &[tiles.pairs.view()], &[buffers.groups.view()]],
        )?;
        let resolve_bindings = gpu.bind(
            &pipelines.resolve_groups,
            &[
                &[control.view()],
                &[buffers.groups.view()],
                &[buffers.table.view()],
                &[tiles.tiles.view()],
                &[buffers.grids.view()],
            ],
        )?;
        let layers = buffers.table.len_bytes() / 4 / u64::from(expert_count);
        Ok(Self {
            pairs: pipelines.group_pairs.clone(),
            resolve: pipelines.resolve_groups.clone(),
            pairs_bindings,
            resolve_bindings,
            expert_count,
            experts_used,
            layers_max: u32::try_from(layers).expect("invariant: few layers"),
            tiles_max: tiles.tiles.len_bytes() / (TILE_WORDS as u64 * 4),
            tokens_max,
        })
    }

    /// Words that hold the workgroup counts of any step's kinds of tiles.
    pub fn grids_words() -> u64 {
        u64::from(KINDS_MAX * KIND_GRIDS) * GRID_BYTES / 4
    }

    /// Records the sorting of what `tokens` tokens picked.
    pub fn record_pairs(&self, recorder: &mut Recorder, tokens: u32) {
        assert!(tokens <= self.tokens_max, "group_pairs: {tokens} tokens of {}", self.tokens_max);
        let push = GroupPairsPush { pair_count: tokens * self.experts_used };
        let grid = [self.expert_count, 1, 1];
        recorder.dispatch(&self.pairs, &self.pairs_bindings, push.bytes(), grid);
    }

    /// Records the making of tiles for model layer `layer`, whose row of the table is `moe_layer`, behind a barrier.
    pub fn record_resolve(
        &self,
        recorder: &mut Recorder,
        kinds: TileKinds,
        layer: LayerIndex,
        moe_layer: u32,
    ) {
        assert!(moe_layer < self.layers_max, "resolve_groups: layer {moe_layer} of {}", self.layers_max);
        let tiles = u64::from(kinds.count) * u64::from(kinds.stride);
        assert!(tiles <= self.tiles_max, "resolve_groups: {tiles} tiles of {}", self.tiles_max);
        let push = ResolveGroupsPush {
            expert_count: self.expert_count,
            layer: layer.0,
            table_first: moe_layer * self.expert_count,
            tile_max: kinds.tile_max,
            kinds: kinds.count,
            kind_stride: kinds.stride,
        };
        recorder.dispatch(&self.resolve, &self.resolve_bindings, push.bytes(), [1, 1, 1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_have_a_kind_a_tile_and_many_rows_one() {
        let of = |rows| TileKinds::of(rows, 12, 6).each().collect::<Vec<_>>();
        assert_eq!(of(Rows::Many(100)), [(Rows::Many(12), 0, [0, 12])]);
        assert_eq!(of(Rows::Few(2)), [(Rows::Few(1), 0, [0, 12]), (Rows::Few(2), 12, [24, 36])]);
        let wide = of(Rows::Few(32));
        assert_eq!(wide.iter().map(|&(pairs, ..)| pairs.count()).collect::<Vec<_>>(), [1, 2, 4, 8]);
        let (_, last, grids) = wide[3];
        assert!(u64::from(last + 32 * 6) * TILE_WORDS as u64 <= TileKinds::words_of_few(512, 6));
        assert!(grids[1] + GRID_BYTES <= Group::grids_words() * 4);
    }
}
