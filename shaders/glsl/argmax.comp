#version 460
#extension GL_GOOGLE_include_directive : require
// argmax: the lowest index of the largest value of a row, in two passes; NO_SLOT when a value is not finite
//
// Source   greedy decoding; a NaN must fail the request, not pick a token.
// Shapes   source f32 [rows, column_count]; partial u32 [rows, parts, 2]: index, value as f32 bits; result u32 [rows].
// Grid     FINAL = 0: (parts, rows), source to partial; FINAL = 1: (1, rows), partial to result. One subgroup each.
// Needs    nothing of column_count; of the device, any lane count.
// Exact    comparisons only.
#include "common.glsl"

layout(constant_id = 2) const uint FINAL = 0;

layout(push_constant, scalar) uniform Push { ArgmaxPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { float source[]; };
layout(set = 0, binding = 2, std430) buffer Partial { uint partial[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Result { uint result[]; };

void main() {
    if (is_stopped()) { return; }
    uint row = gl_WorkGroupID.y;
    uint length = FINAL != 0u ? push.parts : push.column_count;
    uint per_part = FINAL != 0u ? length : (length + push.parts - 1u) / push.parts;
    uint first = gl_WorkGroupID.x * per_part;
    uint end = min(first + per_part, length);

    float best = -3.4028235e38;
    uint best_index = NO_SLOT;
    uint is_broken = 0u;
    for (uint i = first + gl_LocalInvocationIndex; i < end; i += WORKGROUP) {
        uint at = FINAL != 0u ? (row * push.parts + i) * 2u : row * push.column_count + i;
        uint index = FINAL != 0u ? partial[at] : i;
        uint bits = FINAL != 0u ? partial[at + 1u] : floatBitsToUint(source[at]);
        // By its bits: a driver may assume that arithmetic never meets a NaN.
        if ((bits & 0x7f800000u) == 0x7f800000u) { is_broken = 1u; }
        float value = uintBitsToFloat(bits);
        if (value > best || (value == best && index < best_index)) {
            best = value;
            best_index = index;
        }
    }
    is_broken = subgroupMax(is_broken);
    float largest = subgroupMax(best);
    uint index = subgroupMin(best == largest ? best_index : NO_SLOT);
    if (gl_LocalInvocationIndex != 0u) { return; }
    if (FINAL != 0u) {
        result[row] = is_broken != 0u ? NO_SLOT : index;
    } else {
        uint at = (row * push.parts + gl_WorkGroupID.x) * 2u;
        partial[at] = index;
        partial[at + 1u] = is_broken != 0u ? 0x7fc00000u : floatBitsToUint(largest);
    }
}
