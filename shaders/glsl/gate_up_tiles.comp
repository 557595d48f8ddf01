#version 460
#extension GL_GOOGLE_include_directive : require
// gate_up_tiles: h[t, r] = silu(sum_k Wgate[r, k] * x[t, k]) * (sum_k Wup[r, k] * x[t, k]), both matrices in Q4_1
//
// Source   gate_up for many rows, by shared memory: product_tiles.glsl.
// Shapes   x f32 [token_count, column_count]; gate, up: Q4_1 blocks [row_count, column_count / 32, 5]; h f32 [token_count,
//          row_count].
// Grid     (ceil(row_count / ROWS), ceil(token_count / TOKENS)).
// Needs    column_count a multiple of 32; a workgroup of ROWS / LANE_ROWS * TOKENS / LANE_TOKENS lanes; of the device, any
//          lane count.
// Exact    f32, summed in ascending order of the inner dimension: 1e-5 relative to the twin's f64. An output does not
//          depend on its neighbours in the tile, nor on the tile's size.
#include "common.glsl"

#define MATRICES 2u

#include "product_tiles.glsl"
#include "gate_up_body.glsl"
