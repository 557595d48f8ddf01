// Where a product of one dense matrix reads and writes (product.glsl).

layout(push_constant, scalar) uniform Push { MatmulPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 x[]; };
layout(set = 0, binding = 2, std430) readonly buffer Weight { uint words[]; };
layout(set = 0, binding = 3, std430) buffer Target { float y[]; };

uint weight_word(uint matrix, uint at) { return words[at]; }

uint source_at(uint column) {
    return (push.x_row + gl_WorkGroupID.y * TOKENS + column) * (push.column_count / 4u);
}

vec4 source(uint at) { return x[at]; }

void put(uint column, uint row, float value) {
    uint at = (push.y_row + gl_WorkGroupID.y * TOKENS + column) * push.y_stride + push.y_column + row;
    y[at] = ADD != 0u ? y[at] + value : value;
}

void main() {
    uint tokens = push.token_count_max == 0u ? token_count() : push.token_count_max;
    uint token_first = gl_WorkGroupID.y * TOKENS;
    if (is_stopped() || token_first >= tokens) { return; }
    product(gl_WorkGroupID.x * ROWS, push.row_count, push.column_count / 32u, tokens - token_first);
}
