#version 460
#extension GL_GOOGLE_include_directive : require
// expert_gate_up_matrix: h[pair, r] = silu(gate_e[r, :] . x[token, :]) * (up_e[r, :] . x[token, :]), e the tile's expert
//
// Source   expert_gate_up for many rows, by cooperative matrices: product_matrix.glsl.
// Shapes   x f32 [token_count, column_count]; h f32 [token_count * experts_used, row_count]; tiles, pairs, pool:
//          expert_pool.glsl.
// Grid     (ceil(row_count / ROWS), 1, tiles).
// Needs    column_count a multiple of 32; tiles that are whole matrices (product_matrix.glsl); of the device,
//          VK_KHR_cooperative_matrix with f16 into f32, f16 arithmetic, the Vulkan memory model.
// Exact    weights and activations rounded to f16, summed in f32: 2e-3 relative to the largest output of the twin's f64. An
//          output does not depend on its neighbours in the tile, nor on the tile's size.
#include "common.glsl"

#define MATRICES 2u

#include "product_matrix.glsl"
#include "expert_gate_up_body.glsl"
