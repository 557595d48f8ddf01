#version 460
#extension GL_GOOGLE_include_directive : require
// matmul_matrix: y[y_row + t, y_column + r] (+)= sum_k W[r, k] * x[x_row + t, k], W in Q4_1
//
// Source   matmul for many rows, by cooperative matrices: product_matrix.glsl.
// Shapes   x f32 [*, column_count]; words: Q4_1 blocks [row_count, column_count / 32, 5]; y f32 [*, y_stride].
// Grid     (ceil(row_count / ROWS), ceil(tokens / TOKENS)).
// Needs    column_count a multiple of 32; tiles that are whole matrices (product_matrix.glsl); of the device,
//          VK_KHR_cooperative_matrix with f16 into f32, f16 arithmetic, the Vulkan memory model.
// Exact    weights and activations rounded to f16, summed in f32: 1e-3 relative to the largest output of the twin's f64. An
//          output does not depend on its neighbours in the tile, nor on the tile's size.
#include "common.glsl"

#define MATRICES 1u
layout(constant_id = 9) const uint ADD = 0;

#include "product_matrix.glsl"
#include "matmul_body.glsl"
