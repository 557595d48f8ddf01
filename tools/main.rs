//! The program `flint-rt`.
fn main() {}
