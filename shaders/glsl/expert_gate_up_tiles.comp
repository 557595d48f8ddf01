#version 460
#extension GL_GOOGLE_include_directive : require
// expert_gate_up_tiles: h[pair, r] = silu(gate_e[r, :] . x[token, :]) * (up_e[r, :] . x[token, :]), e the tile's expert
//
// Source   expert_gate_up for many rows, by shared memory: product_tiles.glsl.
// Shapes   x f32 [token_count, column_count]; h f32 [token_count * experts_used, row_count]; tiles, pairs, pool:
//          expert_pool.glsl.
// Grid     (ceil(row_count / ROWS), 1, tiles).
// Needs    column_count a multiple of 32; a workgroup of ROWS / LANE_ROWS * TOKENS / LANE_TOKENS lanes; of the device, any
//          lane count.
// Exact    f32, summed in ascending order of the inner dimension: 1e-5 relative to the twin's f64. An output does not
//          depend on its neighbours in the tile, nor on the tile's size.
#include "common.glsl"

#define MATRICES 2u

#include "product_tiles.glsl"
#include "expert_gate_up_body.glsl"
