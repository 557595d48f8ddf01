//! Makes `glsl/include/layout.glsl` and `spirv/` from the sources.

#![forbid(unsafe_code)]

mod header;

fn main() {
    print!("{}", header::print());
}
