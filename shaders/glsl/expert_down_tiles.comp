#version 460
#extension GL_GOOGLE_include_directive : require
// expert_down_tiles: y[pair, r] = down_e[r, :] . h[pair, :], e the tile's expert
//
// Source   expert_down for many rows, by shared memory: product_tiles.glsl.
// Shapes   h f32 [token_count * experts_used, column_count]; y f32 [token_count * experts_used, row_count]; tiles, pairs,
//          pool: expert_pool.glsl.
// Grid     (ceil(row_count / ROWS), 1, tiles).
// Needs    column_count a multiple of 32; a workgroup of ROWS / LANE_ROWS * TOKENS / LANE_TOKENS lanes; of the device, any
//          lane count.
// Exact    f32, summed in ascending order of the inner dimension: 1e-5 relative to the twin's f64. An output does not
//          depend on its neighbours in the tile, nor on the tile's size.
#include "common.glsl"

#define MATRICES 1u

#include "product_tiles.glsl"
#include "expert_down_body.glsl"
