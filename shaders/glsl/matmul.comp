#version 460
#extension GL_GOOGLE_include_directive : require
// matmul: y[y_row + t, y_column + r] (+)= sum_k W[r, k] * x[x_row + t, k], W in Q4_1
//
// Source   one shape for decode and prefill: a tile of ROWS x TOKENS outputs a workgroup, kept in registers, no shared
//          memory; with TOKENS = 1 it is the mat-vec. A weight word is read once for all tokens of the tile.
// Shapes   x f32 [*, column_count]; words: Q4_1 blocks [row_count, column_count / 32, 5]; y f32 [*, y_stride].
// Grid     (ceil(row_count / ROWS), ceil(tokens / TOKENS)).
// Needs    column_count a multiple of 32; of the device, any lane count.
// Exact    f32; a lane sums its words in ascending order, then workgroup_add: 1e-5 relative to the twin's f64. An output
//          does not depend on its neighbours in the tile.
#include "common.glsl"
#include "block_q4_1.glsl"

layout(constant_id = 2) const uint ROWS = 4;
layout(constant_id = 3) const uint TOKENS = 1;
layout(constant_id = 4) const uint ADD = 0;

layout(push_constant, scalar) uniform Push { MatmulPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 x[]; };
layout(set = 0, binding = 2, std430) readonly buffer Weight { uint words[]; };
layout(set = 0, binding = 3, std430) buffer Target { float y[]; };

void main() {
    uint tokens = push.token_count_max == 0u ? token_count() : push.token_count_max;
    uint row_first = gl_WorkGroupID.x * ROWS;
    uint token_first = gl_WorkGroupID.y * TOKENS;
    if (is_stopped() || token_first >= tokens) { return; }

    uint blocks = push.column_count / 32u;
    float sums[ROWS * TOKENS];
    [[unroll]] for (uint i = 0u; i < ROWS * TOKENS; i++) { sums[i] = 0.0; }

    for (uint w = gl_LocalInvocationIndex; w < blocks * 4u; w += WORKGROUP) {
        uint block = w >> 2u;
        uint part = w & 3u;
        Slice slices[TOKENS];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            uint row = push.x_row + min(token_first + t, tokens - 1u);
            uint at = (row * blocks + block) * 8u + part;
            slices[t] = make_slice(x[at], x[at + 4u]);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint at = (min(row_first + r, push.row_count - 1u) * blocks + block) * Q4_1_BLOCK_WORDS;
            vec2 scale_offset = unpackHalf2x16(words[at]);
            uint word = words[at + 1u + part];
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                sums[r * TOKENS + t] += q4_1_dot(word, scale_offset, slices[t]);
            }
        }
    }

    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            float sum = workgroup_add(sums[r * TOKENS + t]);
            bool is_mine = gl_LocalInvocationIndex == (r * TOKENS + t) % WORKGROUP;
            if (is_mine && row_first + r < push.row_count && token_first + t < tokens) {
                uint at = (push.y_row + token_first + t) * push.y_stride + push.y_column + row_first + r;
                y[at] = ADD != 0u ? y[at] + sum : sum;
            }
        }
    }
}
