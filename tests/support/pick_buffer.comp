#version 450
// pick_buffer: target[w * length + i] = pool[which[w]].words[i], a workgroup w, i < length.
//
// The buffer is chosen by an index that is read from memory and equal in a whole workgroup: what the expert kernels do.
// A test's kernel, compiled by `glslc --target-env=vulkan1.3 -O`.

layout(local_size_x_id = 0) in;

layout(std430, binding = 0) readonly buffer Which { uint which[]; };
layout(std430, binding = 1) writeonly buffer Target { uint target[]; };
layout(std430, binding = 2) readonly buffer Pool { uint words[]; } pool[16];

layout(push_constant) uniform Push {
    uint length;
};

void main() {
    uint w = gl_WorkGroupID.x;
    uint from = which[w];
    for (uint i = gl_LocalInvocationID.x; i < length; i += gl_WorkGroupSize.x) {
        target[w * length + i] = pool[from].words[i];
    }
}
