//! GLSL to SPIR-V through the `shaderc` crate.
//!
//! In: a kernel's source text. Out: the words of its module, or the compiler's messages.
//!
//! The module keeps the names that `flint_shaders::reflect` compares with the tables, and nothing else of the debug
//! information: no source text, no lines, no path of the machine that compiled it, so that bytes are equal everywhere.

use std::collections::HashSet;
use std::path::Path;

use flint_shaders::spirv::{HEADER_WORDS, Instruction, SpirvError, instructions};
use shaderc::{
    CompileOptions, Compiler, EnvVersion, OptimizationLevel, ResolvedInclude, ShaderKind, SpirvVersion,
    TargetEnv,
};

use crate::sources;

const OP_SOURCE_CONTINUED: u32 = 2;
const OP_SOURCE: u32 = 3;
const OP_SOURCE_EXTENSION: u32 = 4;
const OP_NAME: u32 = 5;
const OP_STRING: u32 = 7;
const OP_LINE: u32 = 8;
const OP_TYPE_STRUCT: u32 = 30;
const OP_DECORATE: u32 = 71;
const OP_NO_LINE: u32 = 317;
const OP_MODULE_PROCESSED: u32 = 330;

/// Compiles kernels, one after another.
pub(crate) struct Shaderc<'a> {
    compiler: Compiler,
    options: CompileOptions<'a>,
}

impl<'a> Shaderc<'a> {
    /// Vulkan 1.3, SPIR-V 1.6, optimised for speed; includes come from `glsl/include`.
    pub(crate) fn new(glsl: &'a Path) -> Result<Self, String> {
        let compiler = Compiler::new().map_err(|error| error.to_string())?;
        let mut options = CompileOptions::new().map_err(|error| error.to_string())?;
        options.set_target_env(TargetEnv::Vulkan, EnvVersion::Vulkan1_3 as u32);
        options.set_target_spirv(SpirvVersion::V1_6);
        options.set_optimization_level(OptimizationLevel::Performance);
        options.set_warnings_as_errors();
        // Without this the optimiser drops every name, and nobody could compare them with the tables.
        options.set_generate_debug_info();
        options.set_include_callback(move |name, _, _, _| {
            let content =
                sources::read(&sources::include_path(glsl, name)).map_err(|error| error.to_string())?;
            Ok(ResolvedInclude { resolved_name: format!("include/{name}"), content })
        });
        Ok(Self { compiler, options })
    }

    /// The module of one kernel as little-endian bytes.
    pub(crate) fn compile(&self, kernel: &str, text: &str) -> Result<Vec<u8>, String> {
        let file = format!("{kernel}.comp");
        let module = self
            .compiler
            .compile_into_spirv(text, ShaderKind::Compute, &file, "main", Some(&self.options))
            .map_err(|error| error.to_string())?;
        let words = strip(module.as_binary()).map_err(|error| format!("{file}: {error}"))?;
        Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }
}

/// Drops the debug information except the names of structs, their members and whatever has a decoration.
fn strip(words: &[u32]) -> Result<Vec<u32>, SpirvError> {
    let list = instructions(words)?;
    let is_declared = |at: &&Instruction<'_>| matches!(at.opcode, OP_TYPE_STRUCT | OP_DECORATE);
    let declared: HashSet<u32> = list.iter().filter(is_declared).map(|at| at.words[1]).collect();
    let mut kept = words[..HEADER_WORDS].to_vec();
    for at in &list {
        let is_kept = match at.opcode {
            OP_SOURCE_CONTINUED | OP_SOURCE | OP_SOURCE_EXTENSION | OP_STRING | OP_LINE | OP_NO_LINE
            | OP_MODULE_PROCESSED => false,
            OP_NAME => declared.contains(&at.words[1]),
            _ => true,
        };
        if is_kept {
            kept.extend_from_slice(at.words);
        }
    }
    Ok(kept)
}
