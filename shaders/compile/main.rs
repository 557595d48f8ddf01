//! Compiles the kernels.
fn main() {}
