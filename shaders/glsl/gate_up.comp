#version 460
#extension GL_GOOGLE_include_directive : require
// gate_up: h[t, r] = silu(sum_k Wgate[r, k] * x[t, k]) * (sum_k Wup[r, k] * x[t, k]), both matrices in Q4_1
//
// Source   SwiGLU, Shazeer 2020, arXiv:2002.05202, eq. 6, without bias. Both rows meet in one workgroup, so the
//          activation is computed once an output, not once a row of the matrix behind it.
// Shapes   x f32 [token_count, column_count]; gate, up: Q4_1 blocks [row_count, column_count / 32, 5];
//          h f32 [token_count, row_count].
// Grid     (ceil(row_count / ROWS), ceil(token_count / TOKENS)).
// Needs    column_count a multiple of 32; of the device, any lane count.
// Exact    as matmul.
#include "common.glsl"
#include "block_q4_1.glsl"

layout(constant_id = 2) const uint ROWS = 4;
layout(constant_id = 3) const uint TOKENS = 1;

layout(push_constant, scalar) uniform Push { GateUpPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 x[]; };
layout(set = 0, binding = 2, std430) readonly buffer Gate { uint gate_words[]; };
layout(set = 0, binding = 3, std430) readonly buffer Up { uint up_words[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Target { float h[]; };

void main() {
    uint tokens = token_count();
    uint row_first = gl_WorkGroupID.x * ROWS;
    uint token_first = gl_WorkGroupID.y * TOKENS;
    if (is_stopped() || token_first >= tokens) { return; }

    uint blocks = push.column_count / 32u;
    float gates[ROWS * TOKENS];
    float ups[ROWS * TOKENS];
    [[unroll]] for (uint i = 0u; i < ROWS * TOKENS; i++) { gates[i] = 0.0; ups[i] = 0.0; }

    for (uint w = gl_LocalInvocationIndex; w < blocks * 4u; w += WORKGROUP) {
        uint block = w >> 2u;
        uint part = w & 3u;
        Slice slices[TOKENS];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            uint at = (min(token_first + t, tokens - 1u) * blocks + block) * 8u + part;
            slices[t] = make_slice(x[at], x[at + 4u]);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint at = (min(row_first + r, push.row_count - 1u) * blocks + block) * Q4_1_BLOCK_WORDS;
            vec2 gate_scale = unpackHalf2x16(gate_words[at]);
            vec2 up_scale = unpackHalf2x16(up_words[at]);
            uint gate_word = gate_words[at + 1u + part];
            uint up_word = up_words[at + 1u + part];
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                gates[r * TOKENS + t] += q4_1_dot(gate_word, gate_scale, slices[t]);
                ups[r * TOKENS + t] += q4_1_dot(up_word, up_scale, slices[t]);
            }
        }
    }

    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            float gate = workgroup_add(gates[r * TOKENS + t]);
            float up = workgroup_add(ups[r * TOKENS + t]);
            bool is_mine = gl_LocalInvocationIndex == (r * TOKENS + t) % WORKGROUP;
            if (is_mine && row_first + r < push.row_count && token_first + t < tokens) {
                h[(token_first + t) * push.row_count + row_first + r] = silu(gate) * up;
            }
        }
    }
}
