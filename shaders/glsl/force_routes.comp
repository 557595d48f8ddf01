#version 460
#extension GL_GOOGLE_include_directive : require
// force_routes: router logits rewritten so that the picks are those of a recorded trace
//
// Source   a measurement's wish, not the model's: `route` takes the largest logits, ties to the lower index, so pick j of the
//          trace gets 1 - j/64 and every other expert at most -1. Picks are best first.
// Shapes   logits f32 [token_count, expert_count]; forced u32 [token_count, layer_count, EXPERTS_USED], of which layer
//          moe_layer is this one; a first pick of NO_SLOT leaves the token's logits as they are.
// Grid     one workgroup of one subgroup a token.
// Needs    EXPERTS_USED <= 64, the picks of a token distinct and below expert_count; of the device, any lane count.
// Exact    bit for bit. A NaN stays one, so that `route` still shows the fault.
#include "common.glsl"

layout(constant_id = 2) const uint EXPERTS_USED = 6;

layout(push_constant, scalar) uniform Push { ForceRoutesPush push; };
layout(set = 0, binding = 1, std430) buffer Logits { float logits[]; };
layout(set = 0, binding = 2, std430) readonly buffer Forced { uint forced[]; };

void main() {
    uint token = gl_WorkGroupID.x;
    if (is_stopped() || token >= token_count()) { return; }
    uint first = (token * push.layer_count + push.moe_layer) * EXPERTS_USED;
    if (forced[first] == NO_SLOT) { return; }
    for (uint expert = gl_LocalInvocationIndex; expert < push.expert_count; expert += WORKGROUP) {
        float logit = logits[token * push.expert_count + expert];
        // By its bits: a driver may assume that arithmetic never meets a NaN.
        if ((floatBitsToUint(logit) & 0x7fffffffu) > 0x7f800000u) { continue; }
        float value = logit < -1.0 ? logit : -1.0;
        [[unroll]] for (uint j = 0u; j < EXPERTS_USED; j++) {
            if (forced[first + j] == expert) { value = 1.0 - float(j) * 0.015625; }
        }
        logits[token * push.expert_count + expert] = value;
    }
}
