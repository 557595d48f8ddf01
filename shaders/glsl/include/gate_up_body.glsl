// Where a product of two dense matrices, gate and up, reads and writes (product.glsl).

layout(push_constant, scalar) uniform Push { GateUpPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 x[]; };
layout(set = 0, binding = 2, std430) readonly buffer Gate { uint gate_words[]; };
layout(set = 0, binding = 3, std430) readonly buffer Up { uint up_words[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Target { float h[]; };

uint weight_word(uint matrix, uint at) {
    if (matrix == 0u) { return gate_words[at]; }
    return up_words[at];
}

uint source_at(uint column) { return (gl_WorkGroupID.y * TOKENS + column) * (push.column_count / 4u); }

vec4 source(uint at) { return x[at]; }

void put(uint column, uint row, float value) { h[(gl_WorkGroupID.y * TOKENS + column) * push.row_count + row] = value; }

void main() {
    uint tokens = token_count();
    uint token_first = gl_WorkGroupID.y * TOKENS;
    if (is_stopped() || token_first >= tokens) { return; }
    product(gl_WorkGroupID.x * ROWS, push.row_count, push.column_count / 32u, tokens - token_first);
}
