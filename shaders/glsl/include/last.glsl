// Which workgroup is the last of several to arrive: it goes on with what all of them wrote.
//
// Nobody waits for anybody, so nothing is assumed of when workgroups run. Counting is an atomic with acquire and release at
// device scope, between two barriers that extend both to all lanes: what any lane of any of the workgroups wrote to
// coherent memory before is visible to every lane of the last one behind. The last one sets the counter back to zero, so
// that it is zero whenever no dispatch is under way.
//
// The kernel that includes this defines COUNTERS, the binding of the counters.

#extension GL_KHR_memory_scope_semantics : require

layout(set = 0, binding = COUNTERS, std430) coherent buffer Counters { uint counters[]; };

shared uint arrived_before;

bool is_last(uint counter, uint count) {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease);
    if (gl_LocalInvocationIndex == 0u) {
        arrived_before =
            atomicAdd(counters[counter], 1u, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        if (arrived_before == count - 1u) { counters[counter] = 0u; }
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease);
    return arrived_before == count - 1u;
}
