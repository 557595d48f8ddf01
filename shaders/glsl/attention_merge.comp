#version 460
#extension GL_GOOGLE_include_directive : require
// attention_merge: joins the splits of one head and adds the head's sink to the denominator
//
// Source   weights exp(s_j - m) / (sum_j exp(s_j - m) + exp(sink - m)), m the maximum of all scores and the sink; the sink
//          has no value, so the weights sum to less than one.
// Shapes   partial f32 [token_count, head_count, splits, head_dim + 2] (attention.comp); sinks f32 [head_count];
//          target f32 [token_count, head_count, head_dim].
// Grid     (head_count, token_count).
// Needs    nothing of head_dim; of the device, any lane count.
// Exact    f32, splits in index order.
#include "common.glsl"

layout(push_constant, scalar) uniform Push { AttentionMergePush push; };
layout(set = 0, binding = 1, std430) readonly buffer Partial { float partial[]; };
layout(set = 0, binding = 2, std430) readonly buffer Sinks { float sinks[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Target { float target[]; };

void main() {
    uint token = gl_WorkGroupID.y;
    if (is_stopped() || token >= token_count()) { return; }
    uint head = gl_WorkGroupID.x;
    uint stride = push.head_dim + 2u;
    uint from = (token * push.head_count + head) * push.splits * stride;

    float maximum = sinks[head];
    for (uint s = 0u; s < push.splits; s++) { maximum = max(maximum, partial[from + s * stride + push.head_dim]); }
    float total = 0.0;
    for (uint s = 0u; s < push.splits; s++) {
        uint at = from + s * stride + push.head_dim;
        total += partial[at + 1u] * exp(partial[at] - maximum);
    }
    total += exp(sinks[head] - maximum);

    for (uint i = gl_LocalInvocationIndex; i < push.head_dim; i += WORKGROUP) {
        float sum = 0.0;
        for (uint s = 0u; s < push.splits; s++) {
            uint at = from + s * stride;
            sum += partial[at + i] * exp(partial[at + push.head_dim] - maximum);
        }
        target[(token * push.head_count + head) * push.head_dim + i] = sum / total;
    }
}
