#version 460
#extension GL_GOOGLE_include_directive : require
// rms_norm: target[t, i] = source[t, i] * weight[i] / sqrt(mean(source[t, :]^2) + epsilon)
//
// Source   Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4 (no mean, no bias); the weight is used as stored.
// Shapes   source, target f32 [rows, dim], from rows source_row and target_row on; weight f32 [dim].
// Grid     one workgroup a row.
// Needs    nothing of dim; of the device, any lane count.
// Exact    f32 sum a lane, then workgroup_add; the twin sums in f64: 1e-5 relative.
#include "common.glsl"

layout(push_constant, scalar) uniform Push { RmsNormPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { float source[]; };
layout(set = 0, binding = 2, std430) readonly buffer Weight { float weight[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Target { float target[]; };

void main() {
    if (is_stopped()) { return; }
    uint from = (push.source_row + gl_WorkGroupID.x) * push.dim;
    uint to = (push.target_row + gl_WorkGroupID.x) * push.dim;
    float squares = 0.0;
    for (uint i = gl_LocalInvocationIndex; i < push.dim; i += WORKGROUP) {
        float value = source[from + i];
        squares += value * value;
    }
    float scale = 1.0 / sqrt(workgroup_add(squares) / float(push.dim) + push.epsilon);
    for (uint i = gl_LocalInvocationIndex; i < push.dim; i += WORKGROUP) {
        target[to + i] = (source[from + i] * scale) * weight[i];
    }
}
