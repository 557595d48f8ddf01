//! Prints `glsl/include/layout.glsl` from the tables of `flint_shaders::layout`.
//!
//! In: [`SHARED_CONSTANTS`] and [`PUSH_BLOCKS`]. Out: GLSL text, the same for the same tables.

use std::fmt::Write;

use flint_shaders::layout::{PUSH_BLOCKS, SHARED_CONSTANTS};

/// The whole header.
pub(crate) fn print() -> String {
    let mut text = String::from(
        "// Printed by compile-shaders from src/layout.rs: change it there.\n\
         //\n\
         // A kernel takes its block by: layout(push_constant, scalar) uniform Push { MatmulPush push; };\n\
         \n\
         #ifndef LAYOUT_GLSL\n\
         #define LAYOUT_GLSL\n\
         \n\
         #extension GL_EXT_scalar_block_layout : require\n\n",
    );
    for constant in SHARED_CONSTANTS {
        let _infallible = writeln!(text, "//{}", constant.doc);
        let _infallible = writeln!(text, "const uint {} = {}u;", constant.name, constant.value);
    }
    for block in PUSH_BLOCKS {
        let _infallible = writeln!(text, "\nstruct {} {{", block.name);
        for field in block.fields {
            let _infallible = writeln!(text, "    {} {};", field.glsl_type, field.name);
        }
        text.push_str("};\n");
    }
    text.push_str("\n#endif\n");
    text
}
