// The form of a product that uses cooperative matrices (VK_KHR_cooperative_matrix): f16 times f16 into f32, MATRIX_M x MATRIX_N x
// MATRIX_K a subgroup. ROW_PARTS subgroups lie side by side along the rows of the tile, the others along its columns.
//
// Range: f16 ends at 65,504. A weight goes in 16 times as large and an activation 16 times as small, exactly, so that products
// are what they were: scales down to 2^-18 stay normal numbers, activations hold up to 2^20. One beyond becomes an infinity, and
// with it the logits, so that the request fails and says so; nothing is clamped, since a clamp would also hide a NaN.
//
// Order within four values of the inner dimension is 0, 2, 1, 3 on both sides: so a word's nibbles need no shuffling.

#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require

layout(constant_id = 5) const uint ROW_PARTS = 2;
layout(constant_id = 6) const uint MATRIX_M = 16;
layout(constant_id = 7) const uint MATRIX_N = 16;
layout(constant_id = 8) const uint MATRIX_K = 16;

#include "product.glsl"

const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint COLUMN_PARTS = SUBGROUPS / ROW_PARTS;
const uint DOWN = ROWS / (ROW_PARTS * MATRIX_M);
const uint ACROSS = TOKENS / (COLUMN_PARTS * MATRIX_N);

// A row is 16 bytes longer than its values: eight rows then lie in different banks.
const uint WEIGHT_STRIDE = DEPTH / 4u + 2u;
const uint SOURCE_STRIDE = DEPTH / 8u + 1u;
shared uvec2 slab_weights[MATRICES * ROWS * WEIGHT_STRIDE];
shared uvec4 slab_sources[TOKENS * SOURCE_STRIDE];
shared float results[SUBGROUPS * MATRIX_M * MATRIX_N];

const float RANGE = 16.0;

// 1024 + q of two nibbles, less 1024, times the scale, plus the offset.
uint two_weights(uint nibbles, f16vec2 scale, f16vec2 offset) {
    f16vec2 q = unpackFloat2x16((nibbles & 0x000f000fu) | 0x64006400u) - float16_t(1024.0);
    return packFloat2x16(fma(q, scale, offset));
}

uint two_halves(float low, float high) { return packFloat2x16(f16vec2(vec2(low, high) * (1.0 / RANGE))); }

void write_slab() {
    [[unroll]] for (uint i = 0u; i < WORDS_A_LANE; i++) {
        uint w = word_of(i);
        vec2 scale_offset = unpackHalf2x16(held_scales[i]) * RANGE;
        f16vec2 scale = f16vec2(scale_offset.xx);
        f16vec2 offset = f16vec2(scale_offset.yy);
        uint word = held_words[i];
        uint at = w / (SLAB_BLOCKS * 4u) * WEIGHT_STRIDE + (w >> 2u) % SLAB_BLOCKS * 8u + (w & 3u);
        if (w < WORDS_A_SLAB) {
            slab_weights[at] = uvec2(two_weights(word, scale, offset), two_weights(word >> 8u, scale, offset));
            slab_weights[at + 4u] = uvec2(two_weights(word >> 4u, scale, offset), two_weights(word >> 12u, scale, offset));
        }
    }
    [[unroll]] for (uint i = 0u; i < CHUNKS_A_LANE; i++) {
        uint c = word_of(i);
        vec4 low = held_low[i];
        vec4 high = held_high[i];
        if (c < CHUNKS_A_SLAB) {
            slab_sources[c / CHUNKS_A_COLUMN * SOURCE_STRIDE + c % CHUNKS_A_COLUMN] = uvec4(
                two_halves(low.x, low.z), two_halves(low.y, low.w), two_halves(high.x, high.z), two_halves(high.y, high.w));
        }
    }
}

// Rows row_first .. row_first + ROWS of the matrices times `count` columns.
void product(uint row_first, uint row_count, uint blocks, uint count) {
    uint part_row = gl_SubgroupID % ROW_PARTS * (DOWN * MATRIX_M);
    uint part_column = gl_SubgroupID / ROW_PARTS * (ACROSS * MATRIX_N);
    // Columns that some matrix reads.
    uint columns = (min(count, TOKENS) + MATRIX_N - 1u) / MATRIX_N * MATRIX_N;
    find_sources(row_first, row_count, blocks, count);

    coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator> sums[MATRICES * DOWN * ACROSS];
    [[unroll]] for (uint i = 0u; i < MATRICES * DOWN * ACROSS; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>(0.0);
    }

    uint slabs = (blocks + SLAB_BLOCKS - 1u) / SLAB_BLOCKS;
    for (uint slab = 0u; slab <= slabs; slab++) {
        if (slab < slabs) { read_slab(slab, blocks, columns); }
        if (slab > 0u) {
            [[unroll]] for (uint k = 0u; k < DEPTH / MATRIX_K; k++) {
                coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA> weights[MATRICES * DOWN];
                [[unroll]] for (uint i = 0u; i < MATRICES * DOWN; i++) {
                    uint row = i / DOWN * ROWS + part_row + i % DOWN * MATRIX_M;
                    coopMatLoad(weights[i], slab_weights, row * WEIGHT_STRIDE + k * (MATRIX_K / 4u), WEIGHT_STRIDE,
                        gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint j = 0u; j < ACROSS; j++) {
                    uint column = part_column + j * MATRIX_N;
                    if (column < columns) {
                        coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB> sources;
                        coopMatLoad(sources, slab_sources, column * SOURCE_STRIDE + k * (MATRIX_K / 8u), SOURCE_STRIDE,
                            gl_CooperativeMatrixLayoutColumnMajor);
                        [[unroll]] for (uint i = 0u; i < MATRICES * DOWN; i++) {
                            sums[j * MATRICES * DOWN + i] = coopMatMulAdd(weights[i], sources, sums[j * MATRICES * DOWN + i]);
                        }
                    }
                }
            }
        }
        barrier();
        if (slab < slabs) { write_slab(); }
        barrier();
    }

    // Every subgroup passes every barrier, also one whose columns nobody wants: some drivers (Mesa 26.2's lavapipe) take a
    // barrier of a subgroup for one of the workgroup.
    uint results_at = gl_SubgroupID * (MATRIX_M * MATRIX_N);
    [[unroll]] for (uint j = 0u; j < ACROSS; j++) {
        uint column_first = part_column + j * MATRIX_N;
        [[unroll]] for (uint i = 0u; i < DOWN; i++) {
            uint at = j * MATRICES * DOWN + i;
            if (MATRICES == 2u) {
                for (uint e = 0u; e < sums[at].length(); e++) {
                    sums[at][e] = silu(sums[at][e]) * sums[at + (MATRICES - 1u) * DOWN][e];
                }
            }
            coopMatStore(sums[at], results, results_at, MATRIX_M, gl_CooperativeMatrixLayoutColumnMajor);
            subgroupBarrier();
            for (uint e = gl_SubgroupInvocationID; e < MATRIX_M * MATRIX_N; e += SUBGROUP) {
                uint row = row_first + part_row + i * MATRIX_M + e % MATRIX_M;
                uint column = column_first + e / MATRIX_M;
                if (row < row_count && column < min(count, TOKENS)) { put(column, row, results[results_at + e]); }
            }
            subgroupBarrier();
        }
    }
}
