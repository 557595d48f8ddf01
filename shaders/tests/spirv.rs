//! The checked-in SPIR-V belongs to the checked-in GLSL, and both to the tables in Rust. Needs no compiler.

#[path = "../compile/header.rs"]
mod header;
#[path = "../compile/sources.rs"]
mod sources;
#[path = "../compile/table.rs"]
mod table;

use std::path::PathBuf;

use flint_shaders::KERNELS;
use flint_shaders::layout::{PUSH_BLOCKS, PUSH_BYTES_MAX, base_kernel, push_block};
use flint_shaders::reflect::{LocalSize, reflect};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn header_is_what_the_tables_print() {
    let found = sources::read(&root().join("glsl/include/layout.glsl")).unwrap();
    assert_eq!(found, header::print(), "glsl/include/layout.glsl: run compile-shaders");
}

#[test]
fn every_source_belongs_to_its_spirv() {
    let rows = table::read(&root().join("spirv/table.json")).unwrap();
    let mut names: Vec<_> = KERNELS.iter().map(|kernel| kernel.name).collect();
    names.sort_unstable();
    assert_eq!(
        rows.iter().map(|row| row.kernel.as_str()).collect::<Vec<_>>(),
        names,
        "kernels of table.json"
    );
    for (kernel, row) in KERNELS
        .iter()
        .flat_map(|kernel| rows.iter().filter(|row| row.kernel == kernel.name).map(move |row| (kernel, row)))
    {
        let source = sources::source(&root().join("glsl"), kernel.name).unwrap();
        assert_eq!(source.sha256, row.source_sha256, "{}: source changed, run compile-shaders", kernel.name);
        assert_eq!(sources::sha256(kernel.spirv), row.spirv_sha256, "{}: SPIR-V changed", kernel.name);
        assert!(!row.compiler.is_empty(), "{}: no compiler named", kernel.name);
    }
}

#[test]
fn no_file_is_without_a_kernel() {
    for (folder, ending) in [("glsl", "comp"), ("spirv", "spv")] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|found| found == ending) {
                let name = path.file_stem().unwrap().to_str().unwrap();
                assert!(
                    KERNELS.iter().any(|kernel| kernel.name == name),
                    "{}: no such kernel",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn every_kernel_is_declared_as_it_is() {
    for kernel in KERNELS {
        let name = kernel.name;
        let found = reflect(kernel.spirv).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found.entry_point, "main", "{name}");
        assert_eq!(
            found.local_size,
            [LocalSize::Constant(0), LocalSize::Fixed(1), LocalSize::Fixed(1)],
            "{name}: workgroup size"
        );
        for (&id, constant) in &found.constants {
            let declared = kernel.constants.get(id as usize);
            let declared = declared.unwrap_or_else(|| panic!("{name}: constant_id {id} is not declared"));
            // glslang gives the workgroup's width no name; the optimiser drops constants that nothing uses.
            assert!(constant.is_empty() && id == 0 || constant == declared, "{name}: {id} is {constant}");
        }
        let counts: Vec<u32> = found.bindings.iter().map(|binding| binding.count).collect();
        assert_eq!(counts, kernel.bindings, "{name}: descriptors of each binding");
        for (index, binding) in (0u32..).zip(&found.bindings) {
            assert_eq!((binding.set, binding.binding), (0, index), "{name}: bindings without a gap");
        }
        let block = push_block(name).unwrap_or_else(|| panic!("{name}: no push-constant block"));
        let push = found.push.unwrap_or_else(|| panic!("{name}: the module has no push constants"));
        assert_eq!(push.name, block.name, "{name}");
        let members: Vec<_> =
            push.members.iter().map(|m| (m.name.as_str(), m.glsl_type, m.offset_bytes)).collect();
        let fields: Vec<_> = block.fields.iter().map(|f| (f.name, f.glsl_type, f.offset_bytes)).collect();
        assert_eq!(members, fields, "{name}: push constants");
        assert_eq!(push.size_bytes, kernel.push_bytes, "{name}");
        assert!(push.size_bytes <= PUSH_BYTES_MAX, "{name}: {} bytes of push constants", push.size_bytes);
    }
    let bases = KERNELS.iter().filter(|kernel| base_kernel(kernel.name) == kernel.name);
    assert_eq!(PUSH_BLOCKS.len(), bases.count(), "one push-constant block a kernel and its forms");
}
