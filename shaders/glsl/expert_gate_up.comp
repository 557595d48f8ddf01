#version 460
#extension GL_GOOGLE_include_directive : require
// expert_gate_up: h[pair, r] = silu(gate_e[r, :] . x[token, :]) * (up_e[r, :] . x[token, :]), e the tile's expert
//
// Source   gate_up for routed experts; pair = token * experts_used + pick.
// Shapes   x f32 [token_count, column_count]; h f32 [token_count * experts_used, row_count]; tiles, pairs, pool:
//          expert_pool.glsl.
// Grid     (ceil(row_count / ROWS), 1, tiles).
// Needs    column_count a multiple of 32; of the device, any lane count and a dynamic uniform index into buffers.
// Exact    as matmul; a pair's row does not depend on the tile in which it is computed.
#include "common.glsl"
#include "block_q4_1.glsl"

layout(constant_id = 2) const uint ROWS = 4;
layout(constant_id = 3) const uint TOKENS = 1;

#include "expert_pool.glsl"

layout(push_constant, scalar) uniform Push { ExpertGateUpPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 x[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Target { float h[]; };

void main() {
    if (is_stopped()) { return; }
    Tile tile = read_tile(push.tile_first + gl_WorkGroupID.z, push.slot_words, push.slots_per_buffer);
    uint row_first = gl_WorkGroupID.x * ROWS;
    uint blocks = push.column_count / 32u;
    uint gate_at = tile.slot_word + push.gate_word;
    uint up_at = tile.slot_word + push.up_word;

    uint tile_pairs[TOKENS];
    float gates[ROWS * TOKENS];
    float ups[ROWS * TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) { tile_pairs[t] = pairs[tile.first + min(t, tile.count - 1u)]; }
    [[unroll]] for (uint i = 0u; i < ROWS * TOKENS; i++) { gates[i] = 0.0; ups[i] = 0.0; }

    for (uint w = gl_LocalInvocationIndex; w < blocks * 4u; w += WORKGROUP) {
        uint block = w >> 2u;
        uint part = w & 3u;
        Slice slices[TOKENS];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            uint at = (tile_pairs[t] / push.experts_used * blocks + block) * 8u + part;
            slices[t] = make_slice(x[at], x[at + 4u]);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint at = (min(row_first + r, push.row_count - 1u) * blocks + block) * Q4_1_BLOCK_WORDS;
            vec2 gate_scale = unpackHalf2x16(pool[tile.pool_index].words[gate_at + at]);
            vec2 up_scale = unpackHalf2x16(pool[tile.pool_index].words[up_at + at]);
            uint gate_word = pool[tile.pool_index].words[gate_at + at + 1u + part];
            uint up_word = pool[tile.pool_index].words[up_at + at + 1u + part];
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
            if (is_mine && row_first + r < push.row_count && t < tile.count) {
                h[tile_pairs[t] * push.row_count + row_first + r] = silu(gate) * up;
            }
        }
    }
}
