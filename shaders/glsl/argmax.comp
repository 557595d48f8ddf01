#version 460
#extension GL_GOOGLE_include_directive : require
// argmax: the lowest index of the largest value of a row; NO_SLOT when a value is not finite
//
// Source   greedy decoding; a NaN must fail the request, not pick a token.
// Shapes   source f32 [rows, column_count]; partial u32 [rows, parts, 2]: index, value as f32 bits; result u32 [rows];
//          counters u32, one a row from counter_first on.
// Grid     (parts, rows): each workgroup finds the largest of its part, the last of a row that of the parts.
// Needs    counters that are zero, as it leaves them; of the device, any lane count, one subgroup a workgroup.
// Exact    comparisons only.
#include "common.glsl"

layout(push_constant, scalar) uniform Push { ArgmaxPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { float source[]; };
layout(set = 0, binding = 2, std430) coherent buffer Partial { uint partial[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Result { uint result[]; };

#define COUNTERS 4
#include "last.glsl"

float best;
uint best_index;
uint is_broken;

void clear() {
    best = -3.4028235e38;
    best_index = NO_SLOT;
    is_broken = 0u;
}

void take(uint index, uint bits) {
    // By its bits: a driver may assume that arithmetic never meets a NaN.
    if ((bits & 0x7f800000u) == 0x7f800000u) { is_broken = 1u; }
    float value = uintBitsToFloat(bits);
    if (value > best || (value == best && index < best_index)) {
        best = value;
        best_index = index;
    }
}

void join() {
    is_broken = subgroupMax(is_broken);
    float largest = subgroupMax(best);
    best_index = subgroupMin(best == largest ? best_index : NO_SLOT);
    best = largest;
}

void main() {
    if (is_stopped()) { return; }
    uint row = gl_WorkGroupID.y;
    uint parts_at = row * push.parts;
    uint per_part = (push.column_count + push.parts - 1u) / push.parts;
    uint first = gl_WorkGroupID.x * per_part;
    uint end = min(first + per_part, push.column_count);
    clear();
    for (uint i = first + gl_LocalInvocationIndex; i < end; i += WORKGROUP) {
        take(i, floatBitsToUint(source[row * push.column_count + i]));
    }
    join();
    if (gl_LocalInvocationIndex == 0u) {
        uint at = (parts_at + gl_WorkGroupID.x) * 2u;
        partial[at] = best_index;
        partial[at + 1u] = is_broken != 0u ? 0x7fc00000u : floatBitsToUint(best);
    }
    if (!is_last(push.counter_first + row, push.parts)) { return; }
    clear();
    for (uint i = gl_LocalInvocationIndex; i < push.parts; i += WORKGROUP) {
        take(partial[(parts_at + i) * 2u], partial[(parts_at + i) * 2u + 1u]);
    }
    join();
    if (gl_LocalInvocationIndex == 0u) { result[row] = is_broken != 0u ? NO_SLOT : best_index; }
}
