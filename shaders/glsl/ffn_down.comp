#version 460
#extension GL_GOOGLE_include_directive : require
// ffn_down: x[t, r] = (sum_j weight[t, j] * Y[t, j, r] + shared_down[r, :] . dense_h[t, :]) + x[t, r]
//
// Source   expert_down, the shared expert's down matrix and combine in one. With DOWN = 1, for one token, Y[j, r] is
//          down_e[r, :] . h[pair j, :], e the expert of tile j; with DOWN = 0 Y is y, which expert_down has left.
// Shapes   h f32 [experts_used, expert_columns]; y f32 [token_count, experts_used, row_count]; routes u32 [token_count, 2,
//          experts_used] (route.comp); dense_h f32 [token_count, dense_columns]; x f32 [token_count, row_count]; tiles,
//          pool: expert_pool.glsl; pool[POOL_BUFFERS]: the shared down matrix, Q4_1 blocks [row_count, dense_columns / 32, 5].
// Grid     (ceil(row_count / ROWS), ceil(token_count / TOKENS)); one subgroup a workgroup: a row is short, and there are many.
// Needs    columns multiples of 32; DOWN only with TOKENS = 1 and one token, whose tile j holds pair j; of the device, any
//          lane count and a dynamic uniform index into buffers.
// Exact    f32; a product's lanes sum ascending words, then subgroupAdd, as expert_down with one subgroup; picks in the
//          router's order, each product and sum rounded, so that both forms give the same bits.
#include "common.glsl"
#include "block_q4_1.glsl"

layout(constant_id = 2) const uint ROWS = 4;
layout(constant_id = 3) const uint TOKENS = 1;
layout(constant_id = 4) const uint DOWN = 1;
layout(constant_id = 5) const uint EXPERTS_USED = 6;

#define POOL_SIZE (POOL_BUFFERS + 1)
#define WITHOUT_PAIRS
#include "expert_pool.glsl"

layout(push_constant, scalar) uniform Push { FfnDownPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 h[]; };
layout(set = 0, binding = 3, std430) readonly buffer Rows { float y[]; };
layout(set = 0, binding = 4, std430) readonly buffer Routes { uint routes[]; };
layout(set = 0, binding = 6, std430) readonly buffer DenseSource { vec4 dense_h[]; };
layout(set = 0, binding = 7, std430) buffer Target { float x[]; };

float rounded_product(float a, float b) {
    precise float product = a * b;
    return product;
}

void main() {
    uint tokens = token_count();
    uint token_first = gl_WorkGroupID.y * TOKENS;
    if (is_stopped() || token_first >= tokens) { return; }
    uint row_first = gl_WorkGroupID.x * ROWS;
    uint lane = gl_LocalInvocationIndex;

    float shared_sums[ROWS * TOKENS];
    [[unroll]] for (uint i = 0u; i < ROWS * TOKENS; i++) { shared_sums[i] = 0.0; }
    uint blocks = push.dense_columns / 32u;
    for (uint w = lane; w < blocks * 4u; w += WORKGROUP) {
        uint block = w >> 2u;
        uint part = w & 3u;
        Slice slices[TOKENS];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            uint at = (min(token_first + t, tokens - 1u) * blocks + block) * 8u + part;
            slices[t] = make_slice(dense_h[at], dense_h[at + 4u]);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint at = (min(row_first + r, push.row_count - 1u) * blocks + block) * Q4_1_BLOCK_WORDS;
            vec2 scale_offset = unpackHalf2x16(pool[POOL_BUFFERS].words[at]);
            uint word = pool[POOL_BUFFERS].words[at + 1u + part];
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                shared_sums[r * TOKENS + t] += q4_1_dot(word, scale_offset, slices[t]);
            }
        }
    }

    float routed[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) { routed[r] = 0.0; }
    if (DOWN != 0u) {
        blocks = push.expert_columns / 32u;
        [[unroll]] for (uint j = 0u; j < EXPERTS_USED; j++) {
            Tile tile = read_tile(j, push.slot_words, push.slots_per_buffer);
            uint down_at = tile.slot_word + push.down_word;
            float weight = uintBitsToFloat(routes[EXPERTS_USED + j]);
            float sums[ROWS];
            [[unroll]] for (uint r = 0u; r < ROWS; r++) { sums[r] = 0.0; }
            for (uint w = lane; w < blocks * 4u; w += WORKGROUP) {
                uint block = w >> 2u;
                uint part = w & 3u;
                uint h_at = (j * blocks + block) * 8u + part;
                Slice slice = make_slice(h[h_at], h[h_at + 4u]);
                [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                    uint at = down_at + (min(row_first + r, push.row_count - 1u) * blocks + block) * Q4_1_BLOCK_WORDS;
                    vec2 scale_offset = unpackHalf2x16(pool[tile.pool_index].words[at]);
                    sums[r] += q4_1_dot(pool[tile.pool_index].words[at + 1u + part], scale_offset, slice);
                }
            }
            [[unroll]] for (uint r = 0u; r < ROWS; r++) { routed[r] += rounded_product(weight, subgroupAdd(sums[r])); }
        }
    }

    [[unroll]] for (uint i = 0u; i < ROWS * TOKENS; i++) {
        float shared_sum = subgroupAdd(shared_sums[i]);
        uint row = row_first + i / TOKENS;
        uint token = token_first + i % TOKENS;
        if (lane == i % WORKGROUP && row < push.row_count && token < tokens) {
            float sum = routed[i / TOKENS];
            if (DOWN == 0u) {
                for (uint j = 0u; j < EXPERTS_USED; j++) {
                    float weight = uintBitsToFloat(routes[(token * 2u + 1u) * EXPERTS_USED + j]);
                    sum += rounded_product(weight, y[(token * EXPERTS_USED + j) * push.row_count + row]);
                }
            }
            uint at = token * push.row_count + row;
            x[at] = (sum + shared_sum) + x[at];
        }
    }
}
