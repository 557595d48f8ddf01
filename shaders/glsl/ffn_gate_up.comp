#version 460
#extension GL_GOOGLE_include_directive : require
// ffn_gate_up: gate_up of a layer's networks in one dispatch: routed experts, then the dense one; NORM as in norm_matmul
//
// Source   expert_gate_up and gate_up: what an expert layer's stage has to do is the same for its picks and for its shared
//          expert, so the shared one's matrices stand behind the pool's buffers. A lead layer has the dense one alone.
// Shapes   x f32 [token_count, column_count]; norm f32 [column_count]; h f32 [token_count * experts_used, expert_rows];
//          dense_h f32 [token_count, dense_rows]; tiles, pairs, pool: expert_pool.glsl; pool[POOL_BUFFERS] and
//          pool[POOL_BUFFERS + 1]: gate and up of the dense network, Q4_1 blocks [dense_rows, column_count / 32, 5].
// Grid     (ceil(max(expert_rows, dense_rows) / ROWS), 1, tile_count + tiles of the dense network, TOKENS tokens each).
// Needs    column_count a multiple of 32; of the device, any lane count and a dynamic uniform index into buffers.
// Exact    as norm_matmul; a row does not depend on the tile in which it is computed.
#include "common.glsl"
#include "block_q4_1.glsl"

layout(constant_id = 2) const uint ROWS = 4;
layout(constant_id = 3) const uint TOKENS = 1;
layout(constant_id = 4) const uint NORM = 1;

const uint OUTPUTS = ROWS * TOKENS;
const uint SUMS = 2 * OUTPUTS + TOKENS;
#include "sums.glsl"

#define POOL_SIZE (POOL_BUFFERS + 2)
#include "expert_pool.glsl"

layout(push_constant, scalar) uniform Push { FfnGateUpPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 x[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Target { float h[]; };
layout(set = 0, binding = 6, std430) readonly buffer Norm { vec4 norm[]; };
layout(set = 0, binding = 7, std430) writeonly buffer DenseTarget { float dense_h[]; };

bool is_routed;
Tile tile;
uint items[TOKENS];
uint row_first;
uint row_count;

void put(uint i) {
    uint r = i / TOKENS;
    uint t = i % TOKENS;
    if (row_first + r >= row_count || t >= tile.count) { return; }
    float gate = total(i);
    float up = total(OUTPUTS + i);
    if (NORM != 0u) {
        float scale = 1.0 / sqrt(total(2u * OUTPUTS + t) / float(push.column_count) + push.epsilon);
        gate *= scale;
        up *= scale;
    }
    uint item = is_routed ? pairs[tile.first + t] : tile.first + t;
    uint at = item * row_count + row_first + r;
    if (is_routed) {
        h[at] = silu(gate) * up;
    } else {
        dense_h[at] = silu(gate) * up;
    }
}

void main() {
    if (is_stopped()) { return; }
    is_routed = gl_WorkGroupID.z < push.tile_count;
    row_count = is_routed ? push.expert_rows : push.dense_rows;
    row_first = gl_WorkGroupID.x * ROWS;
    if (row_first >= row_count) { return; }
    uint gate_pool;
    uint up_pool;
    uint gate_at = 0u;
    uint up_at = 0u;
    if (is_routed) {
        tile = read_tile(push.tile_first + gl_WorkGroupID.z, push.slot_words, push.slots_per_buffer);
        gate_pool = tile.pool_index;
        up_pool = tile.pool_index;
        gate_at = tile.slot_word + push.gate_word;
        up_at = tile.slot_word + push.up_word;
    } else {
        uint tokens = token_count();
        uint first = (gl_WorkGroupID.z - push.tile_count) * TOKENS;
        if (first >= tokens) { return; }
        tile = Tile(POOL_BUFFERS, 0u, first, min(tokens - first, TOKENS));
        gate_pool = POOL_BUFFERS;
        up_pool = POOL_BUFFERS + 1u;
    }
    uint blocks = push.column_count / 32u;
    [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
        uint item = tile.first + min(t, tile.count - 1u);
        items[t] = (is_routed ? pairs[item] / push.experts_used : item) * blocks;
    }

    clear_sums();
    for (uint w = gl_LocalInvocationIndex; w < blocks * 4u; w += WORKGROUP) {
        uint block = w >> 2u;
        uint part = w & 3u;
        vec4 norm_low;
        vec4 norm_high;
        if (NORM != 0u) {
            norm_low = norm[block * 8u + part];
            norm_high = norm[block * 8u + part + 4u];
        }
        Slice slices[TOKENS];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            uint at = (items[t] + block) * 8u + part;
            vec4 low = x[at];
            vec4 high = x[at + 4u];
            if (NORM != 0u) {
                sums[2u * OUTPUTS + t] += dot(low, low) + dot(high, high);
                low *= norm_low;
                high *= norm_high;
            }
            slices[t] = make_slice(low, high);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint at = (min(row_first + r, row_count - 1u) * blocks + block) * Q4_1_BLOCK_WORDS;
            vec2 gate_scale = unpackHalf2x16(pool[gate_pool].words[gate_at + at]);
            vec2 up_scale = unpackHalf2x16(pool[up_pool].words[up_at + at]);
            uint gate_word = pool[gate_pool].words[gate_at + at + 1u + part];
            uint up_word = pool[up_pool].words[up_at + at + 1u + part];
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                sums[r * TOKENS + t] += q4_1_dot(gate_word, gate_scale, slices[t]);
                sums[OUTPUTS + r * TOKENS + t] += q4_1_dot(up_word, up_scale, slices[t]);
            }
        }
    }
    add_and_put(NORM != 0u ? SUMS : 2u * OUTPUTS);
}
