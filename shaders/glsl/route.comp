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

const uint NAN_BITS = 0x7fc00000u;

void main() {
    uint token = gl_WorkGroupID.x;
    if (is_stopped() || token >= token_count()) { return; }
    uint lane = gl_LocalInvocationIndex;

    float chances[PER_LANE];
    uint is_broken = 0u;
    [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
        uint expert = lane + i * SUBGROUP;
        float logit = expert < push.expert_count ? logits[token * push.expert_count + expert] : 0.0;
        // By its bits: a driver may assume that arithmetic never meets a NaN.
        if ((floatBitsToUint(logit) & 0x7fffffffu) > 0x7f800000u) { is_broken = 1u; }
        chances[i] = expert < push.expert_count ? 1.0 / (1.0 + exp(-logit)) : -1.0;
    }
    is_broken = subgroupMax(is_broken);

    uint picks[EXPERTS_USED];
    float weights[EXPERTS_USED];
    float total = 0.0;
    [[unroll]] for (uint j = 0u; j < EXPERTS_USED; j++) {
        float best = -1.0;
        uint best_expert = NO_SLOT;
        [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
            // Ascending experts and a strict comparison: the lower index wins within a lane.
            if (chances[i] > best) {
                best = chances[i];
                best_expert = lane + i * SUBGROUP;
            }
        }
        float largest = subgroupMax(best);
        uint pick = subgroupMin(best == largest ? best_expert : NO_SLOT);
        [[unroll]] for (uint i = 0u; i < PER_LANE; i++) {
            if (lane + i * SUBGROUP == pick) { chances[i] = -2.0; }
        }
        picks[j] = pick;
        weights[j] = largest;
        total += largest;
    }

    if (lane != 0u) { return; }
    uint at = token * 2u * EXPERTS_USED;
    [[unroll]] for (uint j = 0u; j < EXPERTS_USED; j++) {
        // With a NaN among the logits nobody can be picked: the first experts stand in, with NaN for their weights, which
        // is found again at the output.
        uint pick = is_broken != 0u ? j : picks[j];
        uint weight = is_broken != 0u ? NAN_BITS : floatBitsToUint(weights[j] / total * push.weights_scale);
        routes[at + j] = pick;
        routes[at + EXPERTS_USED + j] = weight;
        report[push.report_first + at + j] = pick;
        report[push.report_first + at + EXPERTS_USED + j] = weight;
        if (push.is_resolved != 0u) {
            uint slot = table[push.table_first + pick];
            tiles[j * TILE_WORDS] = slot;
            tiles[j * TILE_WORDS + 1u] = j;
            tiles[j * TILE_WORDS + 2u] = 1u;
            pairs[j] = j;
            if (slot == NO_SLOT) { control[CONTROL_STOP] = push.layer + 1u; }
        }
    }
}
