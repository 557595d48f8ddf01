#version 460
#extension GL_GOOGLE_include_directive : require
// expert_down: y[pair, r] = down_e[r, :] . h[pair, :], e the tile's expert
//
// Source   matmul for routed experts; each pair keeps a row of its own, so that combine can sum in the router's order.
// Shapes   h f32 [token_count * experts_used, column_count]; y f32 [token_count * experts_used, row_count]; tiles,
//          pairs, pool: expert_pool.glsl.
// Grid     (ceil(row_count / ROWS), 1, tiles).
// Needs    column_count a multiple of 32; of the device, any lane count and a dynamic uniform index into buffers.
// Exact    as matmul; a pair's row does not depend on the tile in which it is computed.
#include "common.glsl"
#include "block_q4_1.glsl"

layout(constant_id = 2) const uint ROWS = 4;
layout(constant_id = 3) const uint TOKENS = 1;

#include "expert_pool.glsl"

layout(push_constant, scalar) uniform Push { ExpertDownPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 h[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Target { float y[]; };

void main() {
    if (is_stopped()) { return; }
    Tile tile = read_tile(push.tile_first + gl_WorkGroupID.z, push.slot_words, push.slots_per_buffer);
    uint row_first = gl_WorkGroupID.x * ROWS;
    uint blocks = push.column_count / 32u;
    uint down_at = tile.slot_word + push.down_word;

    uint tile_pairs[TOKENS];
    float sums[ROWS * TOKENS];
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) { tile_pairs[t] = pairs[tile.first + min(t, tile.count - 1u)]; }
    [[unroll]] for (uint i = 0u; i < ROWS * TOKENS; i++) { sums[i] = 0.0; }

    for (uint w = gl_LocalInvocationIndex; w < blocks * 4u; w += WORKGROUP) {
        uint block = w >> 2u;
        uint part = w & 3u;
        Slice slices[TOKENS];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            uint at = (tile_pairs[t] * blocks + block) * 8u + part;
            slices[t] = make_slice(h[at], h[at + 4u]);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint at = down_at + (min(row_first + r, push.row_count - 1u) * blocks + block) * Q4_1_BLOCK_WORDS;
            vec2 scale_offset = unpackHalf2x16(pool[tile.pool_index].words[at]);
            uint word = pool[tile.pool_index].words[at + 1u + part];
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                sums[r * TOKENS + t] += q4_1_dot(word, scale_offset, slices[t]);
            }
        }
    }

    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            float sum = workgroup_add(sums[r * TOKENS + t]);
            bool is_mine = gl_LocalInvocationIndex == (r * TOKENS + t) % WORKGROUP;
            if (is_mine && row_first + r < push.row_count && t < tile.count) {
                y[tile_pairs[t] * push.row_count + row_first + r] = sum;
            }
        }
    }
}
