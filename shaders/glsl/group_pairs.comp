#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_ballot : require
// group_pairs: the picks of all tokens, sorted by expert and within an expert by token
//
// Source   a counting sort in which every expert counts for itself: it looks at all picks twice, first for how many are of
//          lower experts and of its own, then to place its own in order. Nobody waits for another workgroup.
// Shapes   routes u32 [tokens, 2, EXPERTS_USED] (route.comp); pairs u32 [pair_count]: token * EXPERTS_USED + pick, sorted;
//          groups u32 [expert_count, GROUP_WORDS]: where an expert's pairs begin, and how many there are.
// Grid     one workgroup of one subgroup an expert.
// Needs    of the device, any lane count.
// Exact    whole numbers; the order does not depend on timing.
#include "common.glsl"

layout(constant_id = 2) const uint EXPERTS_USED = 6;

layout(push_constant, scalar) uniform Push { GroupPairsPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Routes { uint routes[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Pairs { uint pairs[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Groups { uint groups[]; };

// Picks that a lane has under way at once.
const uint AHEAD = 4;

// Of no expert.
const uint NOBODY = 0xffffffffu;

uint expert_of(uint pair) {
    if (pair >= push.pair_count) { return NOBODY; }
    return routes[pair / EXPERTS_USED * 2u * EXPERTS_USED + pair % EXPERTS_USED];
}

void main() {
    if (is_stopped()) { return; }
    uint expert = gl_WorkGroupID.x;
    uint lane = gl_LocalInvocationIndex;

    uint lower = 0u;
    uint own = 0u;
    for (uint first = 0u; first < push.pair_count; first += SUBGROUP * AHEAD) {
        [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
            uint other = expert_of(first + i * SUBGROUP + lane);
            lower += uint(other < expert);
            own += uint(other == expert);
        }
    }
    uint begin = subgroupAdd(lower);
    uint count = subgroupAdd(own);
    if (lane == 0u) {
        groups[expert * GROUP_WORDS] = begin;
        groups[expert * GROUP_WORDS + 1u] = count;
    }

    uint place = begin;
    for (uint first = 0u; first < push.pair_count && place < begin + count; first += SUBGROUP * AHEAD) {
        bool is_own[AHEAD];
        [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
            is_own[i] = expert_of(first + i * SUBGROUP + lane) == expert;
        }
        [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
            uvec4 owners = subgroupBallot(is_own[i]);
            if (is_own[i]) { pairs[place + subgroupBallotExclusiveBitCount(owners)] = first + i * SUBGROUP + lane; }
            place += subgroupBallotBitCount(owners);
        }
    }
}
