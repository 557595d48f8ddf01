#version 460
#extension GL_GOOGLE_include_directive : require
// resolve_groups: tiles for the experts of a layer that have pairs, with their slots; or a stop where one is in no slot
//
// Source   the tiles that the host makes of a wave (expert_pool.glsl), for all experts at once. There are `kinds` kinds of
//          tiles: an expert takes the smallest that holds all its pairs, or several of the largest.
// Shapes   groups u32 [expert_count, GROUP_WORDS] (group_pairs.comp); table u32: slot or NO_SLOT of each expert, this layer's
//          from table_first; tiles u32 [kinds * kind_stride, TILE_WORDS], those of kind k from k * kind_stride on, experts in
//          ascending order; grids u32 [kinds, KIND_GRIDS, GRID_WORDS], of which z becomes the kind's count of tiles.
// Grid     one workgroup of one subgroup.
// Needs    x and y of grids set, and z 0; of the device, any lane count.
// Exact    whole numbers.
//
// An expert in no slot sets the stop word to layer + 1: everything submitted behind does nothing, and the host, which finds
// the picks in the report, reads what is missing and runs this layer's experts itself.
#include "common.glsl"

layout(push_constant, scalar) uniform Push { ResolveGroupsPush push; };
layout(set = 0, binding = 1, std430) readonly buffer Groups { uint groups[]; };
layout(set = 0, binding = 2, std430) readonly buffer Table { uint table[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Tiles { uint tiles[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Grids { uint grids[]; };

uint pair_count(uint expert) { return expert < push.expert_count ? groups[expert * GROUP_WORDS + 1u] : 0u; }

void main() {
    if (is_stopped()) { return; }
    uint lane = gl_LocalInvocationIndex;

    uint missing = 0u;
    for (uint expert = lane; expert < push.expert_count; expert += SUBGROUP) {
        if (pair_count(expert) > 0u && table[push.table_first + expert] == NO_SLOT) { missing = 1u; }
    }
    if (subgroupMax(missing) != 0u) {
        if (lane == 0u) { control[CONTROL_STOP] = push.layer + 1u; }
        return;
    }

    for (uint kind = 0u; kind < push.kinds; kind++) {
        uint size = push.tile_max >> (push.kinds - 1u - kind);
        uint smaller = kind > 0u ? size / 2u : 0u;
        uint made = 0u;
        for (uint first = 0u; first < push.expert_count; first += SUBGROUP) {
            uint expert = first + lane;
            uint count = pair_count(expert);
            bool is_kind = count > smaller && (count <= size || kind + 1u == push.kinds);
            uint own = is_kind ? (count + size - 1u) / size : 0u;
            uint place = kind * push.kind_stride + made + subgroupExclusiveAdd(own);
            if (own > 0u) {
                uint begin = groups[expert * GROUP_WORDS];
                uint slot = table[push.table_first + expert];
                for (uint i = 0u; i < own; i++) {
                    uint at = (place + i) * TILE_WORDS;
                    tiles[at] = slot;
                    tiles[at + 1u] = begin + i * size;
                    tiles[at + 2u] = min(size, count - i * size);
                }
            }
            made += subgroupAdd(own);
        }
        if (lane == 0u) {
            for (uint grid = 0u; grid < KIND_GRIDS; grid++) {
                grids[(kind * KIND_GRIDS + grid) * GRID_WORDS + 2u] = made;
            }
        }
    }
}
