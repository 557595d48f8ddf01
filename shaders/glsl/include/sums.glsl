// Several sums over a workgroup, added in one step: lanes by subgroupAdd, then subgroups in index order, as by workgroup_add.
//
// The kernel that includes this declares before OUTPUTS, the values that a workgroup writes, and SUMS, the sums that it
// makes for them; and behind it `put`, which writes one output from the totals of its sums.

const uint SUBGROUPS = WORKGROUP / SUBGROUP;

float sums[SUMS];
shared float sums_of_subgroups[SUBGROUPS * SUMS];

void clear_sums() {
    [[unroll]] for (uint i = 0u; i < SUMS; i++) { sums[i] = 0.0; }
}

// Sum `i` over the workgroup; behind add_sums.
float total(uint i) {
    if (SUBGROUPS == 1u) { return sums[i]; }
    float sum = 0.0;
    for (uint s = 0u; s < SUBGROUPS; s++) { sum += sums_of_subgroups[s * SUMS + i]; }
    return sum;
}

void put(uint i);

// Adds the first `count` sums up and has every output written by one lane.
void add_and_put(uint count) {
    [[unroll]] for (uint i = 0u; i < SUMS; i++) {
        if (i < count) { sums[i] = subgroupAdd(sums[i]); }
    }
    if (SUBGROUPS == 1u) {
        // Constant indices keep the sums in registers.
        [[unroll]] for (uint i = 0u; i < OUTPUTS; i++) {
            if (gl_LocalInvocationIndex == i % WORKGROUP) { put(i); }
        }
    } else {
        if (subgroupElect()) {
            [[unroll]] for (uint i = 0u; i < SUMS; i++) { sums_of_subgroups[gl_SubgroupID * SUMS + i] = sums[i]; }
        }
        barrier();
        for (uint i = gl_LocalInvocationIndex; i < OUTPUTS; i += WORKGROUP) { put(i); }
    }
}
