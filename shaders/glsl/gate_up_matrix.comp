#version 460
#extension GL_GOOGLE_include_directive : require
// gate_up_matrix: h[t, r] = silu(sum_k Wgate[r, k] * x[t, k]) * (sum_k Wup[r, k] * x[t, k]), both matrices in Q4_1
//
// Source   gate_up for many rows, by cooperative matrices: product_matrix.glsl.
// Shapes   x f32 [token_count, column_count]; gate, up: Q4_1 blocks [row_count, column_count / 32, 5]; h f32 [token_count,
//          row_count].
// Grid     (ceil(row_count / ROWS), ceil(token_count / TOKENS)).
// Needs    column_count a multiple of 32; tiles that are whole matrices (product_matrix.glsl); of the device,
//          VK_KHR_cooperative_matrix with f16 into f32, f16 arithmetic, the Vulkan memory model.
// Exact    weights and activations rounded to f16, summed in f32: 2e-3 relative to the largest output of the twin's f64. An
//          output does not depend on its neighbours in the tile, nor on the tile's size.
#include "common.glsl"

#define MATRICES 2u

#include "product_matrix.glsl"
#include "gate_up_body.glsl"
