#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
// attention_rows_matrix: softmax with a sink over the visible keys, for a block of (token, query head) rows of one KV head
//
// Source   Dao 2023, arXiv:2307.08691: a block of queries walks the keys block by block with a running maximum. Each subgroup
//          has SIDE rows (token * GROUP + query head of the KV head); all share the keys and values that the workgroup has
//          brought to shared memory. A row's correction reaches its sums as a matrix whose columns are equal, since which lane
//          holds which element is the driver's affair.
// Shapes   as attention_rows.
// Grid     (kv_head_count, blocks of WORKGROUP / SUBGROUP * SIDE rows).
// Needs    HEAD_DIM a multiple of SIDE; at most 4 subgroups; 32 KiB of shared memory; of the device, cooperative matrices of
//          16 x 16 x 16, f16 into f32, by subgroups, and f16 arithmetic; 4 to 64 lanes.
// Exact    queries, times scale, and weights are rounded to f16, products summed in f32: 2e-3 relative to the twin's f64. Keys in
//          ascending order, KEYS at a time from multiples of KEYS on: what a row does not see of them changes none of its bits.
#include "common.glsl"

layout(constant_id = 2) const uint HEAD_DIM = 128;
layout(constant_id = 3) const uint GROUP = 8;

layout(push_constant, scalar) uniform Push { AttentionRowsPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Queries { vec4 q[]; };
layout(set = 0, binding = 2, std430) readonly buffer KeyCache { uvec2 k_cache[]; };
layout(set = 0, binding = 3, std430) readonly buffer ValueCache { uvec2 v_cache[]; };
layout(set = 0, binding = 4, std430) readonly buffer Sinks { float sinks[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Target { float target[]; };

const uint SIDE = 16;
const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint KEYS = 32;
const uint QUADS = HEAD_DIM / 4;
const uint DEPTHS = HEAD_DIM / SIDE;
const uint KEY_TILES = KEYS / SIDE;
// Rows are padded by 16 bytes, against bank conflicts and within the alignment of matrix loads.
const uint QUAD_STRIDE = QUADS + 2;
const uint SCORE_STRIDE = KEYS + 4;
const uint WEIGHT_STRIDE = KEYS + 8;
// Lanes of a row where there are more than rows, rows of a lane where there are fewer.
const uint ROW_LANES = SUBGROUP > SIDE ? SUBGROUP / SIDE : 1;
const uint LANE_ROWS = SUBGROUP > SIDE ? 1 : SIDE / SUBGROUP;
const float LOWEST = -3.4e38;

// Keys, then values, KEYS rows each; before the first block, queries, SIDE rows a subgroup.
shared f16vec4 tiles[2 * KEYS * QUAD_STRIDE];
// Scores of each subgroup; between a block's scores and the next one's, corrections and results.
shared float scores[SUBGROUPS * SIDE * SCORE_STRIDE];
shared float16_t weights[SUBGROUPS * SIDE * WEIGHT_STRIDE];

// What is unpacked from the cache has no other values than it had there.
f16vec4 unpack(uvec2 words) { return f16vec4(unpackFloat2x16(words.x), unpackFloat2x16(words.y)); }

float row_add(float value) {
    [[unroll]] for (uint distance = 1u; distance < ROW_LANES; distance *= 2u) { value += subgroupShuffleXor(value, distance); }
    return value;
}

float row_max(float value) {
    [[unroll]] for (uint distance = 1u; distance < ROW_LANES; distance *= 2u) {
        value = max(value, subgroupShuffleXor(value, distance));
    }
    return value;
}

void main() {
    uint row_first = gl_WorkGroupID.y * SUBGROUPS * SIDE;
    uint token_first = push.token_first + row_first / GROUP;
    if (is_stopped() || token_first >= token_count()) { return; }
    uint kv_head = gl_WorkGroupID.x;
    uint lane = gl_SubgroupInvocationID;
    uint score_first = gl_SubgroupID * SIDE * SCORE_STRIDE;
    uint weight_first = gl_SubgroupID * SIDE * WEIGHT_STRIDE;
    uint part = lane % ROW_LANES;

    // The rows of this subgroup as the others see them.
    uint own_first = row_first + gl_SubgroupID * SIDE;
    uint own_token = push.token_first + own_first / GROUP;
    uint position = control[CONTROL_POSITION];

    // Queries to matrices, by way of shared memory.
    for (uint i = lane; i < SIDE * QUADS; i += SUBGROUP) {
        uint row = own_first + i / QUADS;
        uint token = push.token_first + row / GROUP;
        vec4 query = vec4(0.0);
        if (token < token_count()) {
            query = q[(token * push.head_count + kv_head * GROUP + row % GROUP) * QUADS + i % QUADS] * push.scale;
        }
        tiles[(gl_SubgroupID * SIDE + i / QUADS) * QUAD_STRIDE + i % QUADS] = f16vec4(query);
    }
    barrier();
    coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> queries[DEPTHS];
    coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sums[DEPTHS];
    [[unroll]] for (uint d = 0u; d < DEPTHS; d++) {
        coopMatLoad(queries[d], tiles, gl_SubgroupID * SIDE * QUAD_STRIDE + d * (SIDE / 4u), QUAD_STRIDE,
                    gl_CooperativeMatrixLayoutRowMajor);
        sums[d] = coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(0.0);
    }

    float maxima[LANE_ROWS];
    float totals[LANE_ROWS];
    // The keys [starts, ends) that a row sees; none where there is no such row.
    uint starts[LANE_ROWS];
    uint ends[LANE_ROWS];
    [[unroll]] for (uint r = 0u; r < LANE_ROWS; r++) {
        uint token = push.token_first + (own_first + lane / ROW_LANES + r * SUBGROUP) / GROUP;
        bool is_row = token < token_count();
        uint end = position + token + 1u;
        ends[r] = is_row ? end : 0u;
        starts[r] = is_row ? end - (push.window > 0u ? min(end, push.window) : end) : 0u;
        maxima[r] = LOWEST;
        totals[r] = 0.0;
    }

    // What any row of the workgroup sees, and what any of this subgroup.
    uint first_end = position + token_first + 1u;
    uint begin = first_end - (push.window > 0u ? min(first_end, push.window) : first_end);
    uint token_last = min(push.token_first + (row_first + SUBGROUPS * SIDE - 1u) / GROUP, token_count() - 1u);
    uint end = position + token_last + 1u;
    bool has_rows = own_token < token_count();
    uint own_first_end = position + own_token + 1u;
    uint own_begin = own_first_end - (push.window > 0u ? min(own_first_end, push.window) : own_first_end);
    uint own_end = position + min(push.token_first + (own_first + SIDE - 1u) / GROUP, token_count() - 1u) + 1u;

    for (uint key_first = begin - begin % KEYS; key_first < end; key_first += KEYS) {
        // Whoever read the tiles has done so.
        barrier();
        for (uint i = gl_LocalInvocationIndex; i < KEYS * QUADS; i += WORKGROUP) {
            uint key = key_first + i / QUADS;
            f16vec4 key_quad = f16vec4(0.0);
            f16vec4 value_quad = f16vec4(0.0);
            // Rows of the cache that no row of the block sees may hold anything.
            if (key >= begin && key < end) {
                uint at = (key % push.ring_rows * push.kv_head_count + kv_head) * QUADS + i % QUADS;
                key_quad = unpack(k_cache[at]);
                value_quad = unpack(v_cache[at]);
            }
            tiles[i / QUADS * QUAD_STRIDE + i % QUADS] = key_quad;
            tiles[(KEYS + i / QUADS) * QUAD_STRIDE + i % QUADS] = value_quad;
        }
        barrier();
        if (has_rows && key_first + KEYS > own_begin && key_first < own_end) {
            [[unroll]] for (uint j = 0u; j < KEY_TILES; j++) {
                coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> products =
                    coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(0.0);
                [[unroll]] for (uint d = 0u; d < DEPTHS; d++) {
                    coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> keys;
                    coopMatLoad(keys, tiles, j * SIDE * QUAD_STRIDE + d * (SIDE / 4u), QUAD_STRIDE,
                                gl_CooperativeMatrixLayoutColumnMajor);
                    products = coopMatMulAdd(queries[d], keys, products);
                }
                coopMatStore(products, scores, score_first + j * SIDE, SCORE_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            }
            subgroupBarrier();

            float corrections[LANE_ROWS];
            bool is_corrected = false;
            [[unroll]] for (uint r = 0u; r < LANE_ROWS; r++) {
                uint row = lane / ROW_LANES + r * SUBGROUP;
                float maximum = maxima[r];
                for (uint column = part; column < KEYS; column += ROW_LANES) {
                    uint key = key_first + column;
                    if (key >= starts[r] && key < ends[r]) {
                        maximum = max(maximum, scores[score_first + row * SCORE_STRIDE + column]);
                    }
                }
                maximum = row_max(maximum);
                float total = 0.0;
                for (uint column = part; column < KEYS; column += ROW_LANES) {
                    uint key = key_first + column;
                    bool is_seen = key >= starts[r] && key < ends[r];
                    float score = scores[score_first + row * SCORE_STRIDE + column];
                    float16_t weight = is_seen ? float16_t(exp(score - maximum)) : float16_t(0.0);
                    weights[weight_first + row * WEIGHT_STRIDE + column] = weight;
                    // As they are multiplied, so that a row's weights sum to one.
                    total += float(weight);
                }
                // Exactly 1 where nothing changed, whatever the driver's exp(0) is.
                corrections[r] = maximum == maxima[r] ? 1.0 : exp(maxima[r] - maximum);
                is_corrected = is_corrected || corrections[r] != 1.0;
                totals[r] = totals[r] * corrections[r] + row_add(total);
                maxima[r] = maximum;
            }
            subgroupBarrier();
            if (subgroupAny(is_corrected)) {
                [[unroll]] for (uint r = 0u; r < LANE_ROWS; r++) {
                    uint row = lane / ROW_LANES + r * SUBGROUP;
                    for (uint column = part; column < SIDE; column += ROW_LANES) {
                        scores[score_first + row * SCORE_STRIDE + column] = corrections[r];
                    }
                }
                subgroupBarrier();
                coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> factors;
                coopMatLoad(factors, scores, score_first, SCORE_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint d = 0u; d < DEPTHS; d++) { sums[d] = sums[d] * factors; }
            }
            [[unroll]] for (uint j = 0u; j < KEY_TILES; j++) {
                coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> shares;
                coopMatLoad(shares, weights, weight_first + j * SIDE, WEIGHT_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint d = 0u; d < DEPTHS; d++) {
                    coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> values;
                    coopMatLoad(values, tiles, (KEYS + j * SIDE) * QUAD_STRIDE + d * (SIDE / 4u), QUAD_STRIDE,
                                gl_CooperativeMatrixLayoutRowMajor);
                    sums[d] = coopMatMulAdd(shares, values, sums[d]);
                }
            }
        }
    }

    // Results to their rows, a depth at a time, by way of shared memory.
    subgroupBarrier();
    float scales[LANE_ROWS];
    [[unroll]] for (uint r = 0u; r < LANE_ROWS; r++) {
        uint row = own_first + lane / ROW_LANES + r * SUBGROUP;
        float sink = sinks[kv_head * GROUP + row % GROUP];
        float maximum = max(maxima[r], sink);
        float scale = exp(maxima[r] - maximum);
        scales[r] = scale / (totals[r] * scale + exp(sink - maximum));
    }
    [[unroll]] for (uint d = 0u; d < DEPTHS; d++) {
        coopMatStore(sums[d], scores, score_first, SCORE_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        [[unroll]] for (uint r = 0u; r < LANE_ROWS; r++) {
            uint row = lane / ROW_LANES + r * SUBGROUP;
            uint token = push.token_first + (own_first + row) / GROUP;
            if (token < token_count()) {
                uint head = kv_head * GROUP + (own_first + row) % GROUP;
                uint at = (token * push.head_count + head) * HEAD_DIM + d * SIDE;
                for (uint column = part; column < SIDE; column += ROW_LANES) {
                    target[at + column] = scores[score_first + row * SCORE_STRIDE + column] * scales[r];
                }
            }
        }
        subgroupBarrier();
    }
}
