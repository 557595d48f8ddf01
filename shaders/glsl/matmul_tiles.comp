#version 460
#extension GL_GOOGLE_include_directive : require
// matmul_tiles: y[y_row + t, y_column + r] (+)= sum_k W[r, k] * x[x_row + t, k], W in Q4_1
//
// Source   matmul for many rows, by shared memory: product_tiles.glsl.
// Shapes   x f32 [*, column_count]; words: Q4_1 blocks [row_count, column_count / 32, 5]; y f32 [*, y_stride].
// Grid     (ceil(row_count / ROWS), ceil(tokens / TOKENS)).
// Needs    column_count a multiple of 32; a workgroup of ROWS / LANE_ROWS * TOKENS / LANE_TOKENS lanes; of the device, any
//          lane count.
// Exact    f32, summed in ascending order of the inner dimension: 1e-5 relative to the twin's f64. An output does not
//          depend on its neighbours in the tile, nor on the tile's size.
#include "common.glsl"

#define MATRICES 1u
layout(constant_id = 7) const uint ADD = 0;

#include "product_tiles.glsl"
#include "matmul_body.glsl"
