#version 460
#extension GL_GOOGLE_include_directive : require
// attend: rope, attention and attention_merge of a sequence's next token in one
//
// Source   each workgroup normalises and turns its own query heads; the one whose keys end with the token's own normalises and
//          turns that key, writes it and the value to the cache, and takes both from registers: nobody reads in this
//          dispatch what it writes to the cache. The last workgroup of a KV head joins the splits.
// Shapes   q f32 [tokens, head_count, HEAD_DIM]; k, v f32 [tokens, kv_head_count, HEAD_DIM]; q_norm, k_norm f32 [HEAD_DIM];
//          angles f32 [tokens, HEAD_DIM] and caches as in rope.comp; sinks f32 [head_count]; partial f32 [tokens, head_count,
//          SPLITS, HEAD_DIM + 2] as in attention.comp; target f32 [tokens, head_count, HEAD_DIM]; counters u32, one a token
//          and KV head from counter_first on.
// Grid     (kv_head_count, SPLITS, 1), z from the token's row on; the splits behind the last that has keys return.
// Needs    HEAD_DIM a multiple of 4; head_count = GROUP * kv_head_count; a ring that holds the window; counters that are
//          zero, as it leaves them; of the device, any lane count.
// Exact    as rope, attention and attention_merge: keys ascending, then subgroups, then splits in index order.
#include "common.glsl"
#include "half.glsl"

layout(constant_id = 2) const uint HEAD_DIM = 128;
layout(constant_id = 3) const uint GROUP = 8;
layout(constant_id = 4) const uint SPLITS = 16;

layout(push_constant, scalar) uniform Push { AttendPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Queries { vec2 q[]; };
layout(set = 0, binding = 2, std430) readonly buffer Keys { vec2 k[]; };
layout(set = 0, binding = 3, std430) readonly buffer Values { vec2 v[]; };
layout(set = 0, binding = 4, std430) readonly buffer QueryNorm { vec2 q_norm[]; };
layout(set = 0, binding = 5, std430) readonly buffer KeyNorm { vec2 k_norm[]; };
layout(set = 0, binding = 6, std430) readonly buffer Angles { vec2 angles[]; };
layout(set = 0, binding = 7, std430) buffer KeyCache { uint k_cache[]; };
layout(set = 0, binding = 8, std430) buffer ValueCache { uint v_cache[]; };
layout(set = 0, binding = 9, std430) readonly buffer Sinks { float sinks[]; };
layout(set = 0, binding = 10, std430) coherent buffer Partial { float partial[]; };
layout(set = 0, binding = 11, std430) writeonly buffer Target { float target[]; };

#define COUNTERS 12
#include "last.glsl"

const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint WORDS = HEAD_DIM / 2;
const uint PER_LANE = (WORDS + SUBGROUP - 1) / SUBGROUP;
const uint BATCH = 4;
const float LOWEST = -3.4e38;
const uint STRIDE = HEAD_DIM + 2;

// What the subgroups found, to be joined by all; with one subgroup it is not used.
shared float found[SUBGROUPS > 1 ? SUBGROUPS * GROUP * STRIDE : 1];
// exp(m - maximum) of each split of a head.
shared float factors[GROUP * SPLITS];
shared float totals[GROUP];

// Word `w` of a head after its rotation, from the word and the one that it is turned with, both after the norm.
vec2 turned(uint token, uint w, vec2 own, vec2 other) {
    uint quarter = WORDS / 2u;
    bool is_low = w < quarter;
    uint j = is_low ? w : w - quarter;
    vec2 cosines = angles[token * WORDS + j];
    vec2 sines = angles[token * WORDS + j + quarter];
    return is_low ? own * cosines - other * sines : other * sines + own * cosines;
}

uint partner(uint w) { return w < WORDS / 2u ? w + WORDS / 2u : w - WORDS / 2u; }

vec2 queries[GROUP * PER_LANE];
vec2 sums[GROUP * PER_LANE];
float maxima[GROUP];
float weights_sums[GROUP];
uint new_key[PER_LANE];
uint new_value[PER_LANE];

void load_queries(uint token, uint kv_head, uint lane) {
    [[unroll]] for (uint g = 0u; g < GROUP; g++) {
        uint at = (token * push.head_count + kv_head * GROUP + g) * WORDS;
        float squares = 0.0;
        [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
            uint w = lane + i * SUBGROUP;
            vec2 value = w < WORDS ? q[at + w] : vec2(0.0);
            squares += dot(value, value);
            queries[g * PER_LANE + i] = value;
            sums[g * PER_LANE + i] = vec2(0.0);
        }
        float scale = 1.0 / sqrt(subgroupAdd(squares) / float(HEAD_DIM) + push.epsilon);
        [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
            uint w = lane + i * SUBGROUP;
            if (w < WORDS) {
                vec2 own = (queries[g * PER_LANE + i] * scale) * q_norm[w];
                if (push.is_rotated != 0u) {
                    uint p = partner(w);
                    own = turned(token, w, own, (q[at + p] * scale) * q_norm[p]);
                }
                queries[g * PER_LANE + i] = own;
            }
        }
        maxima[g] = LOWEST;
        weights_sums[g] = 0.0;
    }
}

// The token's own key and value, rounded as the cache holds them.
void load_new(uint token, uint kv_head, uint lane) {
    uint at = (token * push.kv_head_count + kv_head) * WORDS;
    float squares = 0.0;
    [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
        uint w = lane + i * SUBGROUP;
        vec2 value = w < WORDS ? k[at + w] : vec2(0.0);
        squares += dot(value, value);
    }
    float scale = 1.0 / sqrt(subgroupAdd(squares) / float(HEAD_DIM) + push.epsilon);
    [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
        uint w = lane + i * SUBGROUP;
        if (w < WORDS) {
            vec2 own = (k[at + w] * scale) * k_norm[w];
            if (push.is_rotated != 0u) {
                uint p = partner(w);
                own = turned(token, w, own, (k[at + p] * scale) * k_norm[p]);
            }
            new_key[i] = pack_half(own.x, own.y);
            vec2 value = v[at + w];
            new_value[i] = pack_half(value.x, value.y);
        }
    }
}

// The keys [key, end) of this subgroup; `position` is that of the token's own key.
void run_keys(uint kv_head, uint lane, uint key, uint end, uint position) {
    for (; key < end; key += BATCH) {
        float scores[GROUP * BATCH];
        vec2 values[BATCH * PER_LANE];
        [[unroll]] for (uint b = 0u; b < BATCH; b++) {
            uint this_key = min(key + b, end - 1u);
            uint at = (this_key % push.ring_rows * push.kv_head_count + kv_head) * WORDS;
            vec2 keys[PER_LANE];
            [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
                uint w = lane + i * SUBGROUP;
                uint key_word = new_key[i];
                uint value_word = new_value[i];
                if (this_key < position && w < WORDS) {
                    key_word = k_cache[at + w];
                    value_word = v_cache[at + w];
                }
                keys[i] = unpackHalf2x16(key_word);
                values[b * PER_LANE + i] = unpackHalf2x16(value_word);
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
            float sum = weights_sums[g] * correction;
            [[unroll]] for (uint b = 0u; b < BATCH; b++) {
                float weight = key + b < end ? exp(scores[g * BATCH + b] - maximum) : 0.0;
                scores[g * BATCH + b] = weight;
                sum += weight;
            }
            weights_sums[g] = sum;
            maxima[g] = maximum;
            [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
                vec2 weighted = sums[g * PER_LANE + i] * correction;
                [[unroll]] for (uint b = 0u; b < BATCH; b++) {
                    weighted += scores[g * BATCH + b] * values[b * PER_LANE + i];
                }
                sums[g * PER_LANE + i] = weighted;
            }
        }
    }
}

// What this subgroup has of head g: where one subgroup is all, to `partial`.
void keep(uint g, uint to, uint lane) {
    [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
        uint w = lane + i * SUBGROUP;
        if (w < WORDS) {
            vec2 sum = sums[g * PER_LANE + i];
            if (SUBGROUPS > 1u) {
                found[to + w * 2u] = sum.x;
                found[to + w * 2u + 1u] = sum.y;
            } else {
                partial[to + w * 2u] = sum.x;
                partial[to + w * 2u + 1u] = sum.y;
            }
        }
    }
    if (lane == 0u) {
        if (SUBGROUPS > 1u) {
            found[to + HEAD_DIM] = maxima[g];
            found[to + HEAD_DIM + 1u] = weights_sums[g];
        } else {
            partial[to + HEAD_DIM] = maxima[g];
            partial[to + HEAD_DIM + 1u] = weights_sums[g];
        }
    }
}

// Element `i` of head g of this split, joined from what the subgroups found.
void join_subgroups(uint g, uint i, uint to) {
    float maximum = LOWEST;
    [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) {
        maximum = max(maximum, found[(s * GROUP + g) * STRIDE + HEAD_DIM]);
    }
    float sum = 0.0;
    [[unroll]] for (uint s = 0u; s < SUBGROUPS; s++) {
        uint at = (s * GROUP + g) * STRIDE;
        sum += found[at + (i == HEAD_DIM ? HEAD_DIM + 1u : i)] * exp(found[at + HEAD_DIM] - maximum);
    }
    partial[to + (i == HEAD_DIM ? HEAD_DIM + 1u : i)] = sum;
    if (i == HEAD_DIM) { partial[to + HEAD_DIM] = maximum; }
}

// The splits of a KV head's query heads, joined, with the sinks in the denominator.
void join_splits(uint token, uint kv_head, uint splits) {
    uint first_head = token * push.head_count + kv_head * GROUP;
    for (uint g = gl_LocalInvocationIndex; g < GROUP; g += WORKGROUP) {
        uint at = (first_head + g) * SPLITS * STRIDE + HEAD_DIM;
        float sink = sinks[kv_head * GROUP + g];
        float maximum = sink;
        for (uint s = 0u; s < splits; s++) { maximum = max(maximum, partial[at + s * STRIDE]); }
        float sum = 0.0;
        for (uint s = 0u; s < splits; s++) {
            float factor = exp(partial[at + s * STRIDE] - maximum);
            factors[g * SPLITS + s] = factor;
            sum += partial[at + s * STRIDE + 1u] * factor;
        }
        totals[g] = sum + exp(sink - maximum);
    }
    barrier();
    for (uint i = gl_LocalInvocationIndex; i < GROUP * HEAD_DIM; i += WORKGROUP) {
        uint g = i / HEAD_DIM;
        uint at = (first_head + g) * SPLITS * STRIDE + i % HEAD_DIM;
        float sum = 0.0;
        for (uint s = 0u; s < splits; s++) { sum += partial[at + s * STRIDE] * factors[g * SPLITS + s]; }
        target[first_head * HEAD_DIM + i] = sum / totals[g];
    }
}

void main() {
    uint token = gl_WorkGroupID.z;
    if (is_stopped() || token >= token_count()) { return; }
    uint kv_head = gl_WorkGroupID.x;
    uint split = gl_WorkGroupID.y;
    uint lane = gl_SubgroupInvocationID;

    // The keys [key, end) of this split, out of the visible ones; fewer splits where keys are few.
    uint position = control[CONTROL_POSITION] + token;
    uint visible = push.window > 0u ? min(position + 1u, push.window) : position + 1u;
    uint per_split = max((visible + SPLITS - 1u) / SPLITS, push.split_keys);
    uint splits = (visible + per_split - 1u) / per_split;
    if (split >= splits) { return; }
    uint key = position + 1u - visible + split * per_split;
    uint end = min(key + per_split, position + 1u);
    uint per_subgroup = (end - key + SUBGROUPS - 1u) / SUBGROUPS;
    key = min(key + gl_SubgroupID * per_subgroup, end);
    uint end_here = min(key + per_subgroup, end);

    load_queries(token, kv_head, lane);
    [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
        new_key[i] = 0u;
        new_value[i] = 0u;
    }
    if (split == splits - 1u) {
        load_new(token, kv_head, lane);
        uint to = (position % push.ring_rows * push.kv_head_count + kv_head) * WORDS;
        [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
            uint w = lane + i * SUBGROUP;
            if (gl_SubgroupID == 0u && w < WORDS) {
                k_cache[to + w] = new_key[i];
                v_cache[to + w] = new_value[i];
            }
        }
    }
    run_keys(kv_head, lane, key, end_here, position);

    uint first_head = token * push.head_count + kv_head * GROUP;
    [[unroll]] for (uint g = 0u; g < GROUP; g++) {
        uint to = SUBGROUPS > 1u ? (gl_SubgroupID * GROUP + g) * STRIDE : ((first_head + g) * SPLITS + split) * STRIDE;
        keep(g, to, lane);
    }
    if (SUBGROUPS > 1u) {
        barrier();
        for (uint i = gl_LocalInvocationIndex; i < GROUP * (HEAD_DIM + 1u); i += WORKGROUP) {
            uint g = i / (HEAD_DIM + 1u);
            join_subgroups(g, i % (HEAD_DIM + 1u), ((first_head + g) * SPLITS + split) * STRIDE);
        }
    }
    if (is_last(push.counter_first + token * push.kv_head_count + kv_head, splits)) {
        join_splits(token, kv_head, splits);
    }
}
