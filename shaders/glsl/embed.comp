#version 460
#extension GL_GOOGLE_include_directive : require
// embed: x[t, i] = rows[row_index[t], i]
//
// Source   Flint's token table is F32 and unscaled; it stays on the host, which hands over the rows of a step.
// Shapes   rows f32 [row_count, embed_dim]; row_index u32 [token_count]; x f32 [token_count, embed_dim].
// Grid     (1, token_count).
// Needs    nothing of embed_dim; of the device, any lane count.
// Exact    a copy.
#include "common.glsl"

layout(push_constant, scalar) uniform Push { EmbedPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Rows { float rows[]; };
layout(set = 0, binding = 2, std430) readonly buffer RowIndex { uint row_index[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Target { float x[]; };

void main() {
    uint token = gl_WorkGroupID.y;
    if (is_stopped() || token >= token_count()) { return; }
    uint source = row_index[token] * push.embed_dim;
    for (uint i = gl_LocalInvocationIndex; i < push.embed_dim; i += WORKGROUP) {
        x[token * push.embed_dim + i] = rows[source + i];
    }
}
