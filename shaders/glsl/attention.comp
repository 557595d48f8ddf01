#version 460
#extension GL_GOOGLE_include_directive : require
// attention: for one token, one KV head and one split of the visible keys, the online softmax of its query heads
//
// Source   Milakov & Gimelshein 2018, arXiv:1805.02867 (running maximum), with the query heads that share a KV head (Ainslie
//          et al. 2023, arXiv:2305.13245) in one workgroup, so that keys and values are read once for all of them.
// Shapes   q f32 [token_count, head_count, HEAD_DIM]; caches u32 [ring_rows, kv_head_count, HEAD_DIM / 2], two f16 a word;
//          partial f32 [token_count, head_count, splits, HEAD_DIM + 2]: sums of exp(s - m) v, then m, then the sum of
//          exp(s - m). An empty split leaves m = -3.4e38 and zeros.
// Grid     (kv_head_count, splits, token_count); one subgroup a workgroup.
// Needs    HEAD_DIM a multiple of 4; head_count = GROUP * kv_head_count; of the device, any lane count.
// Exact    f32, keys in ascending order, BATCH at a time: 1e-5 relative to the twin's f64.
#include "common.glsl"

layout(constant_id = 2) const uint HEAD_DIM = 128;
layout(constant_id = 3) const uint GROUP = 8;

layout(push_constant, scalar) uniform Push { AttentionPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Queries { vec2 q[]; };
layout(set = 0, binding = 2, std430) readonly buffer KeyCache { uint k_cache[]; };
layout(set = 0, binding = 3, std430) readonly buffer ValueCache { uint v_cache[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Partial { float partial[]; };

const uint WORDS = HEAD_DIM / 2;
const uint PER_LANE = (WORDS + SUBGROUP - 1) / SUBGROUP;
const uint BATCH = 4;
const float LOWEST = -3.4e38;

void main() {
    uint token = gl_WorkGroupID.z;
    if (is_stopped() || token >= token_count()) { return; }
    uint kv_head = gl_WorkGroupID.x;
    uint lane = gl_LocalInvocationIndex;

    // The keys [key, end) of this split, out of the visible ones.
    uint visible_end = control[CONTROL_POSITION] + token + 1u;
    uint visible = push.window > 0u ? min(visible_end, push.window) : visible_end;
    uint per_split = (visible + push.splits - 1u) / push.splits;
    uint key = visible_end - visible + min(gl_WorkGroupID.y * per_split, visible);
    uint end = min(key + per_split, visible_end);

    vec2 queries[GROUP * PER_LANE];
    vec2 sums[GROUP * PER_LANE];
    float maxima[GROUP];
    float totals[GROUP];
    [[unroll]] for (uint g = 0u; g < GROUP; g++) {
        uint at = (token * push.head_count + kv_head * GROUP + g) * WORDS;
        [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
            uint w = lane + i * SUBGROUP;
            queries[g * PER_LANE + i] = w < WORDS ? q[at + w] : vec2(0.0);
            sums[g * PER_LANE + i] = vec2(0.0);
        }
        maxima[g] = LOWEST;
        totals[g] = 0.0;
    }

    for (; key < end; key += BATCH) {
        float scores[GROUP * BATCH];
        [[unroll]] for (uint b = 0u; b < BATCH; b++) {
            uint at = (min(key + b, end - 1u) % push.ring_rows * push.kv_head_count + kv_head) * WORDS;
            vec2 keys[PER_LANE];
            [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
                uint w = lane + i * SUBGROUP;
                keys[i] = w < WORDS ? unpackHalf2x16(k_cache[at + w]) : vec2(0.0);
            }
            [[unroll]] for (uint g = 0u; g < GROUP; g++) {
                float product = 0.0;
                [[unroll]] for (uint i = 0u; i < PER_LANE; i++) { product += dot(queries[g * PER_LANE + i], keys[i]); }
                float score = subgroupAdd(product) * push.scale;
                scores[g * BATCH + b] = key + b < end ? score : LOWEST;
            }
        }
        [[unroll]] for (uint g = 0u; g < GROUP; g++) {
            float maximum = maxima[g];
            [[unroll]] for (uint b = 0u; b < BATCH; b++) { maximum = max(maximum, scores[g * BATCH + b]); }
            float correction = exp(maxima[g] - maximum);
            float total = totals[g] * correction;
            [[unroll]] for (uint b = 0u; b < BATCH; b++) {
                float weight = key + b < end ? exp(scores[g * BATCH + b] - maximum) : 0.0;
                scores[g * BATCH + b] = weight;
                total += weight;
            }
            totals[g] = total;
            maxima[g] = maximum;
            [[unroll]] for (uint i = 0u; i < PER_LANE; i++) { sums[g * PER_LANE + i] *= correction; }
        }
        [[unroll]] for (uint b = 0u; b < BATCH; b++) {
            uint at = (min(key + b, end - 1u) % push.ring_rows * push.kv_head_count + kv_head) * WORDS;
            [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
                uint w = lane + i * SUBGROUP;
                vec2 value = w < WORDS ? unpackHalf2x16(v_cache[at + w]) : vec2(0.0);
                [[unroll]] for (uint g = 0u; g < GROUP; g++) {
                    sums[g * PER_LANE + i] += scores[g * BATCH + b] * value;
                }
            }
        }
    }

    [[unroll]] for (uint g = 0u; g < GROUP; g++) {
        uint head = kv_head * GROUP + g;
        uint at = ((token * push.head_count + head) * push.splits + gl_WorkGroupID.y) * (HEAD_DIM + 2u);
        [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
            uint w = lane + i * SUBGROUP;
            if (w < WORDS) {
                partial[at + w * 2u] = sums[g * PER_LANE + i].x;
                partial[at + w * 2u + 1u] = sums[g * PER_LANE + i].y;
            }
        }
        if (lane == 0u) {
            partial[at + HEAD_DIM] = maxima[g];
            partial[at + HEAD_DIM + 1u] = totals[g];
        }
    }
}
