// The form of a product for GPUs without cooperative matrices: f32 throughout, a lane sums LANE_ROWS x LANE_TOKENS outputs in
// registers, from slabs in shared memory that hold the inner dimension outermost. The lanes' rows and columns are interleaved,
// so that neighbours read neighbouring words.

layout(constant_id = 5) const uint LANE_ROWS = 4;
layout(constant_id = 6) const uint LANE_TOKENS = 4;

#include "product.glsl"

const uint LANES_DOWN = ROWS / LANE_ROWS;
const uint LANES_ACROSS = TOKENS / LANE_TOKENS;

// One word more than the rows: lanes that write one column of a slab lie in different banks.
const uint WEIGHT_STRIDE = MATRICES * ROWS + 1u;
const uint SOURCE_STRIDE = TOKENS + 1u;
shared float slab_weights[DEPTH * WEIGHT_STRIDE];
shared float slab_sources[DEPTH * SOURCE_STRIDE];

void write_slab() {
    [[unroll]] for (uint i = 0u; i < WORDS_A_LANE; i++) {
        uint w = word_of(i);
        vec2 scale_offset = unpackHalf2x16(held_scales[i]);
        uint word = held_words[i];
        uint at = ((w >> 2u) % SLAB_BLOCKS * 32u + (w & 3u) * 4u) * WEIGHT_STRIDE + w / (SLAB_BLOCKS * 4u);
        if (w < WORDS_A_SLAB) {
            [[unroll]] for (uint n = 0u; n < 4u; n++) {
                uint byte = word >> (n * 8u);
                slab_weights[at + n * WEIGHT_STRIDE] = scale_offset.x * float(byte & 15u) + scale_offset.y;
                slab_weights[at + (16u + n) * WEIGHT_STRIDE] = scale_offset.x * float((byte >> 4u) & 15u) + scale_offset.y;
            }
        }
    }
    [[unroll]] for (uint i = 0u; i < CHUNKS_A_LANE; i++) {
        uint c = word_of(i);
        uint at = c % CHUNKS_A_COLUMN * 8u * SOURCE_STRIDE + c / CHUNKS_A_COLUMN;
        if (c < CHUNKS_A_SLAB) {
            [[unroll]] for (uint n = 0u; n < 4u; n++) {
                slab_sources[at + n * SOURCE_STRIDE] = held_low[i][n];
                slab_sources[at + (4u + n) * SOURCE_STRIDE] = held_high[i][n];
            }
        }
    }
}

// Rows row_first .. row_first + ROWS of the matrices times `count` columns.
void product(uint row_first, uint row_count, uint blocks, uint count) {
    uint lane_row = gl_LocalInvocationIndex % LANES_DOWN;
    uint lane_column = gl_LocalInvocationIndex / LANES_DOWN;
    uint columns = min(count, TOKENS);
    find_sources(row_first, row_count, blocks, count);

    float sums[MATRICES * LANE_ROWS * LANE_TOKENS];
    [[unroll]] for (uint i = 0u; i < MATRICES * LANE_ROWS * LANE_TOKENS; i++) { sums[i] = 0.0; }

    uint slabs = (blocks + SLAB_BLOCKS - 1u) / SLAB_BLOCKS;
    for (uint slab = 0u; slab <= slabs; slab++) {
        if (slab < slabs) { read_slab(slab, blocks, columns); }
        if (slab > 0u) {
            for (uint k = 0u; k < DEPTH; k++) {
                float weights[MATRICES * LANE_ROWS];
                [[unroll]] for (uint i = 0u; i < MATRICES * LANE_ROWS; i++) {
                    uint row = i / LANE_ROWS * ROWS + lane_row + i % LANE_ROWS * LANES_DOWN;
                    weights[i] = slab_weights[k * WEIGHT_STRIDE + row];
                }
                [[unroll]] for (uint j = 0u; j < LANE_TOKENS; j++) {
                    float activation = slab_sources[k * SOURCE_STRIDE + lane_column + j * LANES_ACROSS];
                    [[unroll]] for (uint i = 0u; i < MATRICES * LANE_ROWS; i++) {
                        uint at = j * MATRICES * LANE_ROWS + i;
                        sums[at] = fma(weights[i], activation, sums[at]);
                    }
                }
            }
        }
        barrier();
        if (slab < slabs) { write_slab(); }
        barrier();
    }

    [[unroll]] for (uint j = 0u; j < LANE_TOKENS; j++) {
        [[unroll]] for (uint i = 0u; i < LANE_ROWS; i++) {
            uint at = j * MATRICES * LANE_ROWS + i;
            uint row = row_first + lane_row + i * LANES_DOWN;
            uint column = lane_column + j * LANES_ACROSS;
            if (row < row_count && column < columns) {
                put(column, row, MATRICES == 2u ? silu(sums[at]) * sums[at + (MATRICES - 1u) * LANE_ROWS] : sums[at]);
            }
        }
    }
}
