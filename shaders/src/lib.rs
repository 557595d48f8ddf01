//! The compute kernels of flint-rt.

#![forbid(unsafe_code)]

/// One compute kernel as the device layer needs it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The name of its files.
    pub name: &'static str,
    /// Its SPIR-V module, little-endian words; the entry point is `main`.
    pub spirv: &'static [u8],
    /// Size of its push-constant block in bytes.
    pub push_bytes: u32,
    /// Descriptors of binding 0, 1, 2, ... of set 0; all are storage buffers.
    pub bindings: &'static [u32],
    /// Names of the specialization constants with `constant_id` 0, 1, 2, ...
    pub constants: &'static [&'static str],
}

/// Every kernel.
pub static KERNELS: &[&Kernel] = &[];
