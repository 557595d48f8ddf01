#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
// attention_rows: softmax with a sink over the visible keys, for a block of (token, query head) rows of one KV head
//
// Source   attention.comp and attention_merge.comp without splits. A row is token * GROUP + query head of the KV head: a block
//          takes ROWS * SUBGROUP / LANES of them, which share each key and value that is loaded. LANES neighbouring lanes hold
//          a row's values, four by four in turn, for ROWS rows.
// Shapes   q f32 [token_count, head_count, HEAD_DIM]; caches u32 [ring_rows, kv_head_count, HEAD_DIM / 2], two f16 a word;
//          sinks f32 [head_count]; target f32 [token_count, head_count, HEAD_DIM]. Tokens from token_first on.
// Grid     (kv_head_count, blocks of rows); one subgroup a workgroup.
// Needs    HEAD_DIM a multiple of 4; head_count = GROUP * kv_head_count; LANES a power of two up to SUBGROUP; of the device,
//          any lane count.
// Exact    f32. Keys in ascending order, BATCH at a time from multiples of BATCH on: what a row does not see of a batch changes
//          none of its bits, so they do not depend on who shares its block. 1e-5 relative to the twin's f64.
#include "common.glsl"

layout(constant_id = 2) const uint HEAD_DIM = 128;
layout(constant_id = 3) const uint GROUP = 8;
layout(constant_id = 4) const uint LANES = 4;
layout(constant_id = 5) const uint ROWS = 2;

layout(push_constant, scalar) uniform Push { AttentionRowsPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Queries { vec4 q[]; };
layout(set = 0, binding = 2, std430) readonly buffer KeyCache { uvec2 k_cache[]; };
layout(set = 0, binding = 3, std430) readonly buffer ValueCache { uvec2 v_cache[]; };
layout(set = 0, binding = 4, std430) readonly buffer Sinks { float sinks[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Target { vec4 target[]; };

// Four values each.
const uint QUADS = HEAD_DIM / 4;
const uint PER_LANE = (QUADS + LANES - 1) / LANES;
const uint LANE_ROWS = SUBGROUP / LANES;
const uint BATCH = 4;
const float LOWEST = -3.4e38;

vec4 unpack(uvec2 words) { return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y)); }

// Sum over the lanes of a row: each of them gets the same bits.
float row_add(float value) {
    [[unroll]] for (uint distance = 1u; distance < LANES; distance *= 2u) {
        value += subgroupShuffleXor(value, distance);
    }
    return value;
}

void main() {
    uint row_first = gl_WorkGroupID.y * ROWS * LANE_ROWS;
    uint token_first = push.token_first + row_first / GROUP;
    if (is_stopped() || token_first >= token_count()) { return; }
    uint token_last = min(push.token_first + (row_first + ROWS * LANE_ROWS - 1u) / GROUP, token_count() - 1u);
    uint kv_head = gl_WorkGroupID.x;
    uint part = gl_LocalInvocationIndex % LANES;
    uint lane_row = gl_LocalInvocationIndex / LANES;

    vec4 queries[ROWS * PER_LANE];
    vec4 sums[ROWS * PER_LANE];
    float maxima[ROWS];
    float totals[ROWS];
    // The keys [starts, ends) that a row sees; none where there is no such row.
    uint starts[ROWS];
    uint ends[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        uint row = row_first + r * LANE_ROWS + lane_row;
        uint token = push.token_first + row / GROUP;
        bool is_row = token <= token_last;
        uint at = (min(token, token_last) * push.head_count + kv_head * GROUP + row % GROUP) * QUADS;
        [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
            uint quad = part + i * LANES;
            queries[r * PER_LANE + i] = quad < QUADS ? q[at + quad] : vec4(0.0);
            sums[r * PER_LANE + i] = vec4(0.0);
        }
        maxima[r] = LOWEST;
        totals[r] = 0.0;
        uint end = control[CONTROL_POSITION] + token + 1u;
        ends[r] = is_row ? end : 0u;
        starts[r] = is_row ? end - (push.window > 0u ? min(end, push.window) : end) : 0u;
    }

    // What any row of the block sees.
    uint first_end = control[CONTROL_POSITION] + token_first + 1u;
    uint begin = first_end - (push.window > 0u ? min(first_end, push.window) : first_end);
    uint end = control[CONTROL_POSITION] + token_last + 1u;
    for (uint key = begin - begin % BATCH; key < end; key += BATCH) {
        float scores[ROWS * BATCH];
        [[unroll]] for (uint b = 0u; b < BATCH; b++) {
            // Rows of the cache that no row of the block sees may hold anything.
            uint at = (clamp(key + b, begin, end - 1u) % push.ring_rows * push.kv_head_count + kv_head) * QUADS;
            vec4 keys[PER_LANE];
            [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
                uint quad = part + i * LANES;
                keys[i] = quad < QUADS ? unpack(k_cache[at + quad]) : vec4(0.0);
            }
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                float product = 0.0;
                [[unroll]] for (uint i = 0u; i < PER_LANE; i++) { product += dot(queries[r * PER_LANE + i], keys[i]); }
                float score = row_add(product) * push.scale;
                scores[r * BATCH + b] = key + b >= starts[r] && key + b < ends[r] ? score : LOWEST;
            }
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            float maximum = maxima[r];
            [[unroll]] for (uint b = 0u; b < BATCH; b++) { maximum = max(maximum, scores[r * BATCH + b]); }
            // Exactly 1 where nothing changed, whatever the driver's exp(0) is.
            float correction = maximum == maxima[r] ? 1.0 : exp(maxima[r] - maximum);
            float total = totals[r] * correction;
            [[unroll]] for (uint b = 0u; b < BATCH; b++) {
                bool is_seen = key + b >= starts[r] && key + b < ends[r];
                float weight = is_seen ? exp(scores[r * BATCH + b] - maximum) : 0.0;
                scores[r * BATCH + b] = weight;
                total += weight;
            }
            totals[r] = total;
            maxima[r] = maximum;
            [[unroll]] for (uint i = 0u; i < PER_LANE; i++) { sums[r * PER_LANE + i] *= correction; }
        }
        [[unroll]] for (uint b = 0u; b < BATCH; b++) {
            uint at = (clamp(key + b, begin, end - 1u) % push.ring_rows * push.kv_head_count + kv_head) * QUADS;
            [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
                uint quad = part + i * LANES;
                vec4 value = quad < QUADS ? unpack(v_cache[at + quad]) : vec4(0.0);
                [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                    sums[r * PER_LANE + i] += scores[r * BATCH + b] * value;
                }
            }
        }
    }

    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        uint row = row_first + r * LANE_ROWS + lane_row;
        uint token = push.token_first + row / GROUP;
        if (token <= token_last) {
            uint head = kv_head * GROUP + row % GROUP;
            float maximum = max(maxima[r], sinks[head]);
            float scale = exp(maxima[r] - maximum);
            float total = totals[r] * scale + exp(sinks[head] - maximum);
            [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
                uint quad = part + i * LANES;
                if (quad < QUADS) {
                    target[(token * push.head_count + head) * QUADS + quad] = sums[r * PER_LANE + i] * scale / total;
                }
            }
        }
    }
}
