// What the forms of a product of many rows share. A workgroup computes ROWS rows of each of MATRICES matrices for up to TOKENS
// columns (tokens, or pairs of an expert), DEPTH values of the inner dimension at a time, through shared memory. A form
// (product_matrix.glsl, product_tiles.glsl) says how a slab is multiplied; a kernel's body (*_body.glsl) says where weights and
// activations come from and where results go:
//
// - weight_word(m, at): word `at` of matrix m, Q4_1 blocks row after row;
// - source_at(column): where the activations of a column begin, in vec4;
// - source(at): four of them;
// - put(column, row, value): takes a result; value is silu(gate) * up where there are two matrices.
//
// Order: an output is summed over ascending slabs, so neither the tile's size nor who shares it changes a bit.

layout(constant_id = 2) const uint ROWS = 64;
layout(constant_id = 3) const uint TOKENS = 64;
layout(constant_id = 4) const uint DEPTH = 32;

uint weight_word(uint matrix, uint at);
uint source_at(uint column);
vec4 source(uint at);
void put(uint column, uint row, float value);

const uint SLAB_BLOCKS = DEPTH / 32u;

// A slab's words of nibbles, four a block: how many a lane takes.
const uint WORDS_A_SLAB = MATRICES * ROWS * SLAB_BLOCKS * 4u;
const uint WORDS_A_LANE = (WORDS_A_SLAB + WORKGROUP - 1u) / WORKGROUP;

// A slab's activations in chunks of eight, the chunks of a column side by side: how many a lane takes.
const uint CHUNKS_A_COLUMN = DEPTH / 8u;
const uint CHUNKS_A_SLAB = TOKENS * CHUNKS_A_COLUMN;
const uint CHUNKS_A_LANE = (CHUNKS_A_SLAB + WORKGROUP - 1u) / WORKGROUP;

// What a lane has read ahead of a slab while the one before is multiplied, and where it reads.
uint held_scales[WORDS_A_LANE];
uint held_words[WORDS_A_LANE];
vec4 held_low[CHUNKS_A_LANE];
vec4 held_high[CHUNKS_A_LANE];
uint block_at[WORDS_A_LANE];
uint chunk_at[CHUNKS_A_LANE];

uint word_of(uint i) { return i * WORKGROUP + gl_LocalInvocationIndex; }

// Rows past the last and columns past the last repeat them: what they give is not put anywhere.
void find_sources(uint row_first, uint row_count, uint blocks, uint count) {
    [[unroll]] for (uint i = 0u; i < WORDS_A_LANE; i++) {
        uint row = row_first + word_of(i) / (SLAB_BLOCKS * 4u) % ROWS;
        uint block = (word_of(i) >> 2u) % SLAB_BLOCKS;
        block_at[i] = (min(row, row_count - 1u) * blocks + block) * Q4_1_BLOCK_WORDS;
    }
    [[unroll]] for (uint i = 0u; i < CHUNKS_A_LANE; i++) {
        uint column = min(word_of(i) / CHUNKS_A_COLUMN, count - 1u);
        chunk_at[i] = source_at(column) + word_of(i) % CHUNKS_A_COLUMN * 2u;
    }
}

// Past the last block both sides are zero.
void read_slab(uint slab, uint blocks, uint columns) {
    uint block_first = slab * SLAB_BLOCKS;
    [[unroll]] for (uint i = 0u; i < WORDS_A_LANE; i++) {
        uint w = word_of(i);
        uint at = block_at[i] + block_first * Q4_1_BLOCK_WORDS;
        bool is_there = w < WORDS_A_SLAB && block_first + (w >> 2u) % SLAB_BLOCKS < blocks;
        uint matrix = w / (SLAB_BLOCKS * 4u * ROWS);
        held_scales[i] = is_there ? weight_word(matrix, at) : 0u;
        held_words[i] = is_there ? weight_word(matrix, at + 1u + (w & 3u)) : 0u;
    }
    [[unroll]] for (uint i = 0u; i < CHUNKS_A_LANE; i++) {
        uint c = word_of(i);
        uint at = chunk_at[i] + block_first * 8u;
        bool is_there = c / CHUNKS_A_COLUMN < columns && block_first + c % CHUNKS_A_COLUMN / 4u < blocks;
        held_low[i] = is_there ? source(at) : vec4(0.0);
        held_high[i] = is_there ? source(at + 1u) : vec4(0.0);
    }
}
