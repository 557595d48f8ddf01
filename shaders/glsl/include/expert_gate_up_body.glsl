// Where a product of an expert's gate and up reads and writes (product.glsl, expert_pool.glsl).

#include "expert_pool.glsl"

layout(push_constant, scalar) uniform Push { ExpertGateUpPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Source { vec4 x[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Target { float h[]; };

Tile tile;

uint weight_word(uint matrix, uint at) {
    return pool[tile.pool_index].words[tile.slot_word + (matrix == 0u ? push.gate_word : push.up_word) + at];
}

uint source_at(uint column) { return pairs[tile.first + column] / push.experts_used * (push.column_count / 4u); }

vec4 source(uint at) { return x[at]; }

void put(uint column, uint row, float value) { h[pairs[tile.first + column] * push.row_count + row] = value; }

void main() {
    if (is_stopped()) { return; }
    tile = read_tile(push.tile_first + gl_WorkGroupID.z, push.slot_words, push.slots_per_buffer);
    product(gl_WorkGroupID.x * ROWS, push.row_count, push.column_count / 32u, tile.count);
}
