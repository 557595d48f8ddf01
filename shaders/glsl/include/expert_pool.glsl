// Where the records of resident experts lie, and which experts a workgroup serves.
//
// The pool spreads over POOL_BUFFERS storage buffers, because a binding reaches no further than 128 MiB on the smallest
// device. A slot holds one record: gate rows, up rows, down rows, Q4_1 blocks as in the GGUF. A tile is up to TOKENS pairs
// (token * experts_used + pick) that share an expert: { slot, first index into pairs, count }. At decode the route
// kernel writes the tiles, one a pick; at prefill the host does, sorted by expert. The buffer's index comes from the
// tile, hence is the same for all lanes of a workgroup.
//
// The kernel that includes this declares TOKENS, and its push constants hold tile_first, slot_words, slots_per_buffer. It may
// define POOL_SIZE: more descriptors than the pool's, for matrices of its own behind them; and WITHOUT_PAIRS.

#ifndef POOL_SIZE
#define POOL_SIZE POOL_BUFFERS
#endif

layout(set = 0, binding = 2, std430) readonly buffer Tiles { uint tiles[]; };
#ifndef WITHOUT_PAIRS
layout(set = 0, binding = 3, std430) readonly buffer Pairs { uint pairs[]; };
#endif
layout(set = 0, binding = 5, std430) readonly buffer Pool { uint words[]; } pool[POOL_SIZE];

struct Tile {
    uint pool_index;
    uint slot_word;
    uint first;
    uint count;
};

Tile read_tile(uint tile_index, uint slot_words, uint slots_per_buffer) {
    uint at = tile_index * TILE_WORDS;
    uint slot = tiles[at];
    return Tile(slot / slots_per_buffer, (slot % slots_per_buffer) * slot_words, tiles[at + 1u], tiles[at + 2u]);
}
