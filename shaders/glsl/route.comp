#version 460
#extension GL_GOOGLE_include_directive : require
// route: the picks of a token, their weights and, at decode, the slots in which the picked experts lie
//
// Source   p = sigmoid(logit); the EXPERTS_USED largest p, ties to the lower index; weight = p / sum of the picked p,
//          times weights_scale.
// Shapes   logits f32 [token_count, expert_count]; table u32: slot or NO_SLOT of each expert, this layer's from table_first;
//          routes u32 [token_count, 2, EXPERTS_USED]: experts best first, then weights as f32 bits; tiles, pairs:
//          expert_pool.glsl; report: what routes gets, from report_first, for the host.
// Grid     one workgroup of one subgroup a token.
// Needs    expert_count <= PER_LANE * SUBGROUP; is_resolved only with one token; of the device, any lane count.
// Exact    p in f32; weights are summed in pick order. A NaN among a token's logits gives experts 0, 1, 2, ... with NaN
//          weights, so that the fault shows in the output.
//
// With is_resolved, a pick without a slot sets the stop word to layer + 1: everything submitted behind does nothing, and
// the host, which finds the picks in the report, reads what is missing and submits again from this layer's experts.
#include "common.glsl"

layout(constant_id = 2) const uint EXPERTS_USED = 6;
layout(constant_id = 3) const uint PER_LANE = 8;

layout(push_constant, scalar) uniform Push { RoutePush push; };
layout(set = 0, binding = 1, std430) readonly buffer Logits { float logits[]; };
layout(set = 0, binding = 2, std430) readonly buffer Table { uint table[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Routes { uint routes[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Tiles { uint tiles[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Pairs { uint pairs[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Report { uint report[]; };

#include "route.glsl"

void main() {
    uint token = gl_WorkGroupID.x;
    if (is_stopped() || token >= token_count()) { return; }
    route_token(token, gl_LocalInvocationIndex);
}
