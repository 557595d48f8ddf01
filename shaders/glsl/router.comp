#version 460
#extension GL_GOOGLE_include_directive : require
// router: y[t, r] = sum_k weight[r, k] * x[t, k], F32 weights
//
// Source   Flint keeps its router in F32: picks hang on small differences.
// Shapes   x f32 [token_count, column_count]; weight f32 [row_count, column_count]; y f32 [token_count, row_count].
// Grid     (ceil(row_count / ROWS), token_count).
// Needs    column_count a multiple of 4; of the device, any lane count.
// Exact    f32; a lane sums ascending columns, then workgroup_add: 1e-5 relative to the twin's f64.
#include "common.glsl"

layout(constant_id = 2) const uint ROWS = 4;

layout(push_constant, scalar) uniform Push { RouterPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 x[]; };
layout(set = 0, binding = 2, std430) readonly buffer Weight { vec4 weight[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Target { float y[]; };

void main() {
    uint token = gl_WorkGroupID.y;
    if (is_stopped() || token >= token_count()) { return; }
    uint row_first = gl_WorkGroupID.x * ROWS;
    uint columns = push.column_count / 4u;
    float sums[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; r++) { sums[r] = 0.0; }
    for (uint c = gl_LocalInvocationIndex; c < columns; c += WORKGROUP) {
        vec4 value = x[token * columns + c];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            sums[r] += dot(weight[min(row_first + r, push.row_count - 1u) * columns + c], value);
        }
    }
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        float sum = workgroup_add(sums[r]);
        if (gl_LocalInvocationIndex == r % WORKGROUP && row_first + r < push.row_count) {
            y[token * push.row_count + row_first + r] = sum;
        }
    }
}
