#version 450
// add_strided: target[i * stride] = a[i] * SCALE + b[i] + offset, for i < count, unless stop[0] is set; and the lanes that
// a subgroup really has, to lanes[0].
//
// A test's kernel, compiled by `glslc --target-env=vulkan1.3 -O`.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint SUBGROUP = 32;
layout(constant_id = 2) const uint SCALE = 1;

layout(std430, binding = 0) readonly buffer Stop { uint stop[]; };
layout(std430, binding = 1) readonly buffer A { uint a[]; };
layout(std430, binding = 2) readonly buffer B { uint b[]; };
layout(std430, binding = 3) writeonly buffer Target { uint target[]; };
layout(std430, binding = 4) buffer Lanes { uint lanes[]; };

layout(push_constant) uniform Push {
    uint count;
    uint stride;
    uint offset;
};

void main() {
    if (stop[0] != 0) {
        return;
    }
    uint summed = subgroupAdd(1u);
    if (gl_GlobalInvocationID.x == 0) {
        lanes[0] = summed;
        lanes[1] = gl_SubgroupSize;
        lanes[2] = SUBGROUP;
    }
    uint i = gl_GlobalInvocationID.x;
    if (i < count) {
        target[i * stride] = a[i] * SCALE + b[i] + offset;
    }
}
