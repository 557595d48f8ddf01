//! The compute kernels of flint-rt: GLSL in `glsl/`, the SPIR-V made from it in `spirv/`, what host and shader share
//! in [`layout`], and a CPU twin of every kernel in [`mod@reference`].
//!
//! Owns the kernels' bytes and their declared shape. In: nothing; there is no Vulkan here. Out: [`KERNELS`].
//!
//! A plain build embeds the checked-in SPIR-V and needs no C++ compiler; the program `compile-shaders` (feature
//! `compile`) makes it anew. A test fails when a source and its SPIR-V do not belong together.

#![forbid(unsafe_code)]

pub mod layout;

pub mod blocks;

pub mod kernels;

pub mod spirv;

pub mod reflect;

pub mod reference;

pub use kernels::KERNELS;

/// One compute kernel as the device layer needs it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The name of its files: `glsl/NAME.comp`, `spirv/NAME.spv`.
    pub name: &'static str,
    /// Its SPIR-V 1.6 module, little-endian words; the entry point is `main`.
    pub spirv: &'static [u8],
    /// Size of its push-constant block in bytes.
    pub push_bytes: u32,
    /// Descriptors of binding 0, 1, 2, ... of set 0; all are storage buffers.
    pub bindings: &'static [u32],
    /// Names of the specialization constants with `constant_id` 0, 1, 2, ...
    pub constants: &'static [&'static str],
}
