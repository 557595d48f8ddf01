// What every kernel shares: workgroup shape, the control words, the order of a reduction.
//
// WORKGROUP is a multiple of SUBGROUP, and SUBGROUP is the size that the pipeline requires of the device (4 to 64 lanes).
// Most kernels run with one subgroup a workgroup; where they run with more, `workgroup_add` takes one step through
// shared memory, which is dead code otherwise.

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_basic : require

#include "layout.glsl"

layout(constant_id = 0) const uint WORKGROUP = 32;
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(local_size_x_id = 0) in;

layout(set = 0, binding = 0, std430) buffer Control { uint control[]; };

// A layer before this one found an expert missing: what was submitted behind it does nothing.
bool is_stopped() { return control[CONTROL_STOP] != 0u; }

uint token_count() { return control[CONTROL_TOKEN_COUNT]; }

shared float subgroup_sums[WORKGROUP / SUBGROUP];

// Sum over the workgroup: lanes by subgroupAdd, then subgroups in index order. Every lane gets the same bits.
float workgroup_add(float value) {
    float sum = subgroupAdd(value);
    if (WORKGROUP > SUBGROUP) {
        barrier();
        if (subgroupElect()) { subgroup_sums[gl_SubgroupID] = sum; }
        barrier();
        sum = 0.0;
        for (uint i = 0u; i < WORKGROUP / SUBGROUP; i++) { sum += subgroup_sums[i]; }
    }
    return sum;
}

float silu(float value) { return value / (1.0 + exp(-value)); }
