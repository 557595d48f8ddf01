//! `compile-shaders [--check] [KERNEL...]`: makes `glsl/include/layout.glsl`, `spirv/*.spv` and `spirv/table.json`.
//!
//! In: `src/layout.rs` (through the crate) and `glsl/`. Out: the files; with `--check` nothing is written, and the
//! program fails when a file on disk differs from what it would write. With names, only those kernels.

#![forbid(unsafe_code)]

mod compile;
mod header;
mod sources;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use flint_shaders::KERNELS;

use compile::Shaderc;
use table::Row;

fn main() -> ExitCode {
    let mut is_check = false;
    let mut names = Vec::new();
    for argument in std::env::args().skip(1) {
        if argument == "--check" {
            is_check = true;
        } else if KERNELS.iter().any(|kernel| kernel.name == argument) {
            names.push(argument);
        } else {
            eprintln!("usage: compile-shaders [--check] [KERNEL...]; there is no kernel `{argument}`");
            return ExitCode::from(2);
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    match run(&Output { root: root.to_path_buf(), is_check }, &names) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(faults) => {
            eprintln!("{faults} fault(s)");
            ExitCode::FAILURE
        }
        Err(fault) => {
            eprintln!("{fault}");
            ExitCode::FAILURE
        }
    }
}

/// Writes files, or compares them.
struct Output {
    root: PathBuf,
    is_check: bool,
}

impl Output {
    fn put(&self, file: &str, bytes: &[u8]) -> Result<(), String> {
        let path = self.root.join(file);
        if self.is_check {
            let found = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            if found == bytes {
                return Ok(());
            }
            return Err(format!("{file} differs from what its source gives: run compile-shaders"));
        }
        fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Makes everything; how many kernels failed.
fn run(output: &Output, names: &[String]) -> Result<usize, String> {
    output.put("glsl/include/layout.glsl", header::print().as_bytes())?;
    let glsl = output.root.join("glsl");
    let compiler = compiler_version(&output.root)?;
    let shaderc = Shaderc::new(&glsl)?;
    let table_path = output.root.join("spirv/table.json");
    let mut rows = if table_path.exists() {
        table::read(&table_path).map_err(|error| error.to_string())?
    } else {
        Vec::new()
    };
    rows.retain(|row| KERNELS.iter().any(|kernel| kernel.name == row.kernel));
    let mut faults = 0;
    for kernel in
        KERNELS.iter().filter(|kernel| names.is_empty() || names.iter().any(|name| name == kernel.name))
    {
        match one(output, &shaderc, &glsl, kernel.name, &compiler) {
            Ok(row) => {
                rows.retain(|old| old.kernel != row.kernel);
                rows.push(row);
            }
            Err(fault) => {
                eprintln!("{}: {fault}", kernel.name);
                faults += 1;
            }
        }
    }
    output.put("spirv/table.json", table::print(&rows).as_bytes())?;
    Ok(faults)
}

fn one(
    output: &Output,
    shaderc: &Shaderc<'_>,
    glsl: &Path,
    kernel: &str,
    compiler: &str,
) -> Result<Row, String> {
    let source = sources::source(glsl, kernel).map_err(|error| error.to_string())?;
    let spirv = shaderc.compile(kernel, &source.text)?;
    output.put(&format!("spirv/{kernel}.spv"), &spirv)?;
    Ok(Row {
        kernel: kernel.to_owned(),
        source_sha256: source.sha256,
        spirv_sha256: sources::sha256(&spirv),
        compiler: compiler.to_owned(),
    })
}

/// The compiler as the workspace's lock file has it: the crate carries its own glslang and SPIRV-Tools.
fn compiler_version(root: &Path) -> Result<String, String> {
    let lock = sources::read(&root.join("../Cargo.lock")).map_err(|error| error.to_string())?;
    let mut lines = lock.lines().skip_while(|line| *line != "name = \"shaderc-sys\"");
    let version = lines.nth(1).and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    let version = version.ok_or("Cargo.lock has no version of shaderc-sys")?;
    Ok(format!("shaderc-sys {version}, vulkan1.3, spv1.6, performance"))
}
