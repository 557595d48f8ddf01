#version 460
#extension GL_GOOGLE_include_directive : require
// combine: x[t, i] = ((sum_j weight[t, j] * y[t, j, i]) + shared_out[t, i]) + x[t, i]
//
// Source   the picks are summed in the router's order, never in the order in which their weights arrived from disk.
// Shapes   routes u32 [token_count, 2, experts_used] (route.comp); y f32 [token_count, experts_used, embed_dim];
//          shared_out, x f32 [token_count, embed_dim].
// Grid     (ceil(embed_dim / WORKGROUP), token_count).
// Needs    nothing of embed_dim; of the device, any lane count.
// Exact    f32, pick order.
#include "common.glsl"

layout(push_constant, scalar) uniform Push { CombinePush push; };
layout(set = 0, binding = 1, std430) readonly buffer Routes { uint routes[]; };
layout(set = 0, binding = 2, std430) readonly buffer Rows { float y[]; };
layout(set = 0, binding = 3, std430) readonly buffer Shared { float shared_out[]; };
layout(set = 0, binding = 4, std430) buffer Target { float x[]; };

void main() {
    uint token = gl_WorkGroupID.y;
    uint i = gl_WorkGroupID.x * WORKGROUP + gl_LocalInvocationIndex;
    if (is_stopped() || token >= token_count() || i >= push.embed_dim) { return; }
    float sum = 0.0;
    for (uint j = 0u; j < push.experts_used; j++) {
        float weight = uintBitsToFloat(routes[(token * 2u + 1u) * push.experts_used + j]);
        sum += weight * y[(token * push.experts_used + j) * push.embed_dim + i];
    }
    uint at = token * push.embed_dim + i;
    x[at] = (sum + shared_out[at]) + x[at];
}
