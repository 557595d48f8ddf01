//! Gives the shared library its name for the dynamic linker.
//!
//! The number is the ABI's, `flint_rt::capi::ABI_VERSION`: `tests/capi.rs` compares the two.

/// The ABI of `runtime/include/flint_rt.h`.
const ABI_VERSION: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libflint_rt.so.{ABI_VERSION}");
}
