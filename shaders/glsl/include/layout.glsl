// Printed by compile-shaders from src/layout.rs: change it there.
//
// A kernel takes its block by: layout(push_constant, scalar) uniform Push { MatmulPush push; };

#ifndef LAYOUT_GLSL
#define LAYOUT_GLSL

#extension GL_EXT_scalar_block_layout : require

// In the slot table: this expert is in no slot.
const uint NO_SLOT = 4294967295u;
// Descriptors in the binding of the expert pool; a slot lies in buffer `slot / slots_per_buffer`.
const uint POOL_BUFFERS = 16u;
// Matrices that one dispatch of `norm_matmul` takes.
const uint MATRICES = 3u;
// Words of one expert tile: slot, first pair, pair count.
const uint TILE_WORDS = 3u;
// Words of one expert's group: first pair, pair count.
const uint GROUP_WORDS = 2u;
// Words of one dispatch's workgroup counts: x, y, z.
const uint GRID_WORDS = 3u;
// Dispatches that serve the tiles of one kind: `expert_gate_up`, then `expert_down`.
const uint KIND_GRIDS = 2u;
// Word of `control`: 0 lets the kernels run, anything else makes every kernel return at once.
const uint CONTROL_STOP = 0u;
// Word of `control`: tokens of the step.
const uint CONTROL_TOKEN_COUNT = 1u;
// Word of `control`: position of the step's first token.
const uint CONTROL_POSITION = 2u;
// Words of the `control` buffer.
const uint CONTROL_WORDS = 8u;
// Values of one Q4_1 block.
const uint Q4_1_BLOCK_VALUES = 32u;
// 32-bit words of one Q4_1 block: scale and minimum (two f16), then four words of nibbles.
const uint Q4_1_BLOCK_WORDS = 5u;

struct EmbedPush {
    uint embed_dim;
};

struct RmsNormPush {
    uint dim;
    uint source_row;
    uint target_row;
    float epsilon;
};

struct MatmulPush {
    uint row_count;
    uint column_count;
    uint token_count_max;
    uint x_row;
    uint y_row;
    uint y_stride;
    uint y_column;
};

struct GateUpPush {
    uint row_count;
    uint column_count;
};

struct RopePush {
    uint head_count;
    uint kv_head_count;
    uint head_dim;
    uint is_rotated;
    uint ring_rows;
    float epsilon;
};

struct AttentionPush {
    uint head_count;
    uint kv_head_count;
    uint window;
    uint ring_rows;
    uint splits;
    float scale;
};

struct AttentionMergePush {
    uint head_count;
    uint head_dim;
    uint splits;
};

struct AttentionRowsPush {
    uint head_count;
    uint kv_head_count;
    uint window;
    uint ring_rows;
    uint token_first;
    float scale;
};

struct RouterPush {
    uint row_count;
    uint column_count;
};

struct RoutePush {
    uint expert_count;
    uint layer;
    uint table_first;
    uint report_first;
    uint is_resolved;
    float weights_scale;
};

struct ForceRoutesPush {
    uint expert_count;
    uint layer_count;
    uint moe_layer;
};

struct GroupPairsPush {
    uint pair_count;
};

struct ResolveGroupsPush {
    uint expert_count;
    uint layer;
    uint table_first;
    uint tile_max;
    uint kinds;
    uint kind_stride;
};

struct ExpertGateUpPush {
    uint row_count;
    uint column_count;
    uint experts_used;
    uint tile_first;
    uint slot_words;
    uint slots_per_buffer;
    uint gate_word;
    uint up_word;
};

struct ExpertDownPush {
    uint row_count;
    uint column_count;
    uint tile_first;
    uint slot_words;
    uint slots_per_buffer;
    uint down_word;
};

struct CombinePush {
    uint embed_dim;
    uint experts_used;
};

struct ArgmaxPush {
    uint column_count;
    uint parts;
    uint counter_first;
};

struct NormMatmulPush {
    uint first_rows;
    uint second_rows;
    uint third_rows;
    uint column_count;
    uint token_count_max;
    uint x_row;
    uint y_stride;
    uint y_column;
    float epsilon;
};

struct FfnGateUpPush {
    uint expert_rows;
    uint dense_rows;
    uint column_count;
    uint experts_used;
    uint tile_first;
    uint tile_count;
    uint slot_words;
    uint slots_per_buffer;
    uint gate_word;
    uint up_word;
    float epsilon;
};

struct FfnDownPush {
    uint row_count;
    uint expert_columns;
    uint dense_columns;
    uint slot_words;
    uint slots_per_buffer;
    uint down_word;
};

struct PickExpertsPush {
    uint expert_count;
    uint column_count;
    uint layer;
    uint table_first;
    uint report_first;
    uint is_resolved;
    float weights_scale;
    float epsilon;
    uint counter_first;
};

struct AttendPush {
    uint head_count;
    uint kv_head_count;
    uint window;
    uint ring_rows;
    uint is_rotated;
    uint split_keys;
    uint counter_first;
    float scale;
    float epsilon;
};

#endif
