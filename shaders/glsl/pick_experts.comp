#version 460
#extension GL_GOOGLE_include_directive : require
// pick_experts: router and route in one: the workgroup that is the last to write a token's logits picks its experts
//
// Source   router, with NORM as in norm_matmul; route.
// Shapes   x f32 [token_count, column_count]; norm f32 [column_count]; weight f32 [expert_count, column_count]; logits f32
//          [token_count, expert_count]; counters u32, one a token from counter_first on; the others as in route.comp.
// Grid     (ceil(expert_count / ROWS), token_count).
// Needs    column_count a multiple of 4; expert_count <= PER_LANE * SUBGROUP; is_resolved only with one token; counters that
//          are zero, as it leaves them; of the device, any lane count.
// Exact    as router and route; a token does not depend on the others.
#include "common.glsl"

layout(constant_id = 2) const uint ROWS = 4;
layout(constant_id = 3) const uint NORM = 1;
layout(constant_id = 4) const uint EXPERTS_USED = 6;
layout(constant_id = 5) const uint PER_LANE = 8;

#define OUTPUTS ROWS
const uint SUMS = ROWS + 1;
#include "sums.glsl"

layout(push_constant, scalar) uniform Push { PickExpertsPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 x[]; };
layout(set = 0, binding = 2, std430) readonly buffer Norm { vec4 norm[]; };
layout(set = 0, binding = 3, std430) readonly buffer Weight { vec4 weight[]; };
layout(set = 0, binding = 4, std430) coherent buffer Logits { float logits[]; };
layout(set = 0, binding = 5, std430) readonly buffer Table { uint table[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Routes { uint routes[]; };
layout(set = 0, binding = 7, std430) writeonly buffer Tiles { uint tiles[]; };
layout(set = 0, binding = 8, std430) writeonly buffer Pairs { uint pairs[]; };
layout(set = 0, binding = 9, std430) writeonly buffer Report { uint report[]; };

#define COUNTERS 10
#include "last.glsl"
#include "route.glsl"

uint token;
uint row_first;

void put(uint i) {
    if (row_first + i >= push.expert_count) { return; }
    float sum = total(i);
    if (NORM != 0u) { sum *= 1.0 / sqrt(total(ROWS) / float(push.column_count) + push.epsilon); }
    logits[token * push.expert_count + row_first + i] = sum;
}

void main() {
    token = gl_WorkGroupID.y;
    if (is_stopped() || token >= token_count()) { return; }
    row_first = gl_WorkGroupID.x * ROWS;
    uint columns = push.column_count / 4u;
    clear_sums();
    for (uint c = gl_LocalInvocationIndex; c < columns; c += WORKGROUP) {
        vec4 value = x[token * columns + c];
        if (NORM != 0u) {
            sums[ROWS] += dot(value, value);
            value *= norm[c];
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            sums[r] += dot(weight[min(row_first + r, push.expert_count - 1u) * columns + c], value);
        }
    }
    add_and_put(NORM != 0u ? SUMS : ROWS);

    if (!is_last(push.counter_first + token, gl_NumWorkGroups.x)) { return; }
    if (gl_SubgroupID == 0u) { route_token(token, gl_SubgroupInvocationID); }
}
