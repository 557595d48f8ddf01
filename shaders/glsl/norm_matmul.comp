#version 460
#extension GL_GOOGLE_include_directive : require
// norm_matmul: y_m[t, r] = sum_k W_m[r, k] * n[t, k] for up to three matrices; n is x, or with NORM rms_norm(x) * norm
//
// Source   matmul with the norm in front of it folded in: the scale of a row is a factor of each of its sums, so the
//          squares are summed beside them and the scale is applied at the end; a stage less, and no value of n in memory.
//          Queries, keys and values are one dispatch.
// Shapes   x f32 [*, column_count]; norm f32 [column_count]; words: Q4_1 blocks [rows of the matrix, column_count / 32, 5];
//          y f32: of the first matrix [*, y_stride] from y_column on, of the others [*, rows of the matrix].
// Grid     (the sum of ceil(rows / ROWS), ceil(tokens / TOKENS)).
// Needs    column_count a multiple of 32; of the device, any lane count and a dynamic uniform index into buffers.
// Exact    as matmul. With NORM every workgroup sums the squares of its rows, all in the same order. An output does not
//          depend on its neighbours in the tile.
#include "common.glsl"
#include "block_q4_1.glsl"

layout(constant_id = 2) const uint ROWS = 4;
layout(constant_id = 3) const uint TOKENS = 1;
layout(constant_id = 4) const uint NORM = 1;

const uint OUTPUTS = ROWS * TOKENS;
const uint SUMS = OUTPUTS + TOKENS;
#include "sums.glsl"

layout(push_constant, scalar) uniform Push { NormMatmulPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 x[]; };
layout(set = 0, binding = 2, std430) readonly buffer Norm { vec4 norm[]; };
layout(set = 0, binding = 3, std430) readonly buffer Weight { uint words[]; } weight[MATRICES];
layout(set = 0, binding = 4, std430) writeonly buffer Target { float y[]; } target[MATRICES];

uint tokens;
uint token_first;
uint row_first;
uint matrix;
uint row_count;

void put(uint i) {
    uint r = i / TOKENS;
    uint t = i % TOKENS;
    if (row_first + r >= row_count || token_first + t >= tokens) { return; }
    float sum = total(i);
    if (NORM != 0u) { sum *= 1.0 / sqrt(total(OUTPUTS + t) / float(push.column_count) + push.epsilon); }
    uint at = (token_first + t) * (matrix == 0u ? push.y_stride : row_count) + row_first + r;
    target[matrix].y[matrix == 0u ? at + push.y_column : at] = sum;
}

void main() {
    tokens = push.token_count_max == 0u ? token_count() : push.token_count_max;
    token_first = gl_WorkGroupID.y * TOKENS;
    if (is_stopped() || token_first >= tokens) { return; }

    uint group = gl_WorkGroupID.x;
    uint first_groups = (push.first_rows + ROWS - 1u) / ROWS;
    uint second_groups = first_groups + (push.second_rows + ROWS - 1u) / ROWS;
    matrix = group < first_groups ? 0u : group < second_groups ? 1u : 2u;
    row_count = matrix == 0u ? push.first_rows : matrix == 1u ? push.second_rows : push.third_rows;
    row_first = (group - (matrix == 0u ? 0u : matrix == 1u ? first_groups : second_groups)) * ROWS;

    uint blocks = push.column_count / 32u;
    clear_sums();
    for (uint w = gl_LocalInvocationIndex; w < blocks * 4u; w += WORKGROUP) {
        uint block = w >> 2u;
        uint part = w & 3u;
        vec4 norm_low;
        vec4 norm_high;
        if (NORM != 0u) {
            norm_low = norm[block * 8u + part];
            norm_high = norm[block * 8u + part + 4u];
        }
        Slice slices[TOKENS];
        [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
            uint at = ((push.x_row + min(token_first + t, tokens - 1u)) * blocks + block) * 8u + part;
            vec4 low = x[at];
            vec4 high = x[at + 4u];
            if (NORM != 0u) {
                sums[OUTPUTS + t] += dot(low, low) + dot(high, high);
                low *= norm_low;
                high *= norm_high;
            }
            slices[t] = make_slice(low, high);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint at = (min(row_first + r, row_count - 1u) * blocks + block) * Q4_1_BLOCK_WORDS;
            vec2 scale_offset = unpackHalf2x16(weight[matrix].words[at]);
            uint word = weight[matrix].words[at + 1u + part];
            [[unroll]] for (uint t = 0u; t < TOKENS; t++) {
                sums[r * TOKENS + t] += q4_1_dot(word, scale_offset, slices[t]);
            }
        }
    }
    add_and_put(NORM != 0u ? SUMS : OUTPUTS);
}
