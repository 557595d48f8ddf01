#version 460
#extension GL_GOOGLE_include_directive : require
// rope: per head, q and k are normalised, rotated on layers that rotate, and k and v written to the KV cache as f16
//
// Source   per-head RMS norm (rms_norm.comp); rotation Su et al. 2021, arXiv:2104.09864, with the pairs (i, i + d/2) of
//          GPT-NeoX. v is neither normalised nor rotated.
// Shapes   q f32 [token_count, head_count, d], in place; k, v f32 [token_count, kv_head_count, d]; q_norm, k_norm f32 [d];
//          angles f32 [token_count, d]: d/2 cosines, then d/2 sines; caches u32 [ring_rows, kv_head_count, d/2], two f16 a
//          word. Position p lies in ring row p % ring_rows.
// Grid     (head_count + 2 * kv_head_count, token_count): q heads, k heads, v heads.
// Needs    head_dim a multiple of 4; of the device, any lane count.
// Exact    f32 sum a lane, then workgroup_add; f16 by round to nearest even (half.glsl): 1e-5 relative to the twin's f64.
#include "common.glsl"
#include "half.glsl"

layout(push_constant, scalar) uniform Push { RopePush push; };
layout(set = 0, binding = 1, std430) buffer Queries { vec2 q[]; };
layout(set = 0, binding = 2, std430) readonly buffer Keys { vec2 k[]; };
layout(set = 0, binding = 3, std430) readonly buffer Values { vec2 v[]; };
layout(set = 0, binding = 4, std430) readonly buffer QueryNorm { vec2 q_norm[]; };
layout(set = 0, binding = 5, std430) readonly buffer KeyNorm { vec2 k_norm[]; };
layout(set = 0, binding = 6, std430) readonly buffer Angles { vec2 angles[]; };
layout(set = 0, binding = 7, std430) writeonly buffer KeyCache { uint k_cache[]; };
layout(set = 0, binding = 8, std430) writeonly buffer ValueCache { uint v_cache[]; };

void main() {
    uint token = gl_WorkGroupID.y;
    if (is_stopped() || token >= token_count()) { return; }
    // Everything below counts in pairs of neighbours, (2j, 2j + 1): what one cache word holds.
    uint words = push.head_dim / 2u;
    uint quarter = push.head_dim / 4u;
    uint part = gl_WorkGroupID.x;
    uint ring_row = (control[CONTROL_POSITION] + token) % push.ring_rows;

    if (part >= push.head_count + push.kv_head_count) {
        uint head = part - push.head_count - push.kv_head_count;
        uint from = (token * push.kv_head_count + head) * words;
        uint to = (ring_row * push.kv_head_count + head) * words;
        for (uint j = gl_LocalInvocationIndex; j < words; j += WORKGROUP) {
            vec2 value = v[from + j];
            v_cache[to + j] = pack_half(value.x, value.y);
        }
        return;
    }

    bool is_query = part < push.head_count;
    uint head = is_query ? part : part - push.head_count;
    uint from = is_query ? (token * push.head_count + head) * words : (token * push.kv_head_count + head) * words;
    float squares = 0.0;
    for (uint j = gl_LocalInvocationIndex; j < words; j += WORKGROUP) {
        vec2 value = is_query ? q[from + j] : k[from + j];
        squares += dot(value, value);
    }
    float scale = 1.0 / sqrt(workgroup_add(squares) / float(push.head_dim) + push.epsilon);

    uint to = (ring_row * push.kv_head_count + head) * words;
    for (uint j = gl_LocalInvocationIndex; j < quarter; j += WORKGROUP) {
        uint upper = j + quarter;
        vec2 a = is_query ? (q[from + j] * scale) * q_norm[j] : (k[from + j] * scale) * k_norm[j];
        vec2 b = is_query ? (q[from + upper] * scale) * q_norm[upper] : (k[from + upper] * scale) * k_norm[upper];
        if (push.is_rotated != 0u) {
            vec2 cosines = angles[token * words + j];
            vec2 sines = angles[token * words + upper];
            vec2 turned = a * cosines - b * sines;
            b = a * sines + b * cosines;
            a = turned;
        }
        if (is_query) {
            q[from + j] = a;
            q[from + upper] = b;
        } else {
            k_cache[to + j] = pack_half(a.x, a.y);
            k_cache[to + upper] = pack_half(b.x, b.y);
        }
    }
}
