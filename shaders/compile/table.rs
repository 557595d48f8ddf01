//! `spirv/table.json`: which source each SPIR-V file was made from, and by what.
//!
//! In and out: the file's text. One [`Row`] a kernel, in order of name.

use std::io;
use std::path::Path;

use serde_json::{Value, json};

use crate::sources;

/// Where one SPIR-V file comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The kernel.
    pub(crate) kernel: String,
    /// Digest of its source, as `sources.rs` makes it.
    pub(crate) source_sha256: String,
    /// Digest of its SPIR-V file.
    pub(crate) spirv_sha256: String,
    /// Compiler, version and target.
    pub(crate) compiler: String,
}

/// Reads the table.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Row>> {
    let damaged = |what: &str| io::Error::other(format!("{}: {what}: run compile-shaders", path.display()));
    let table: Value =
        serde_json::from_str(&sources::read(path)?).map_err(|error| damaged(&error.to_string()))?;
    let rows = table.as_array().ok_or_else(|| damaged("not an array"))?;
    rows.iter()
        .map(|row| {
            let text = |key: &str| {
                row[key].as_str().map(str::to_owned).ok_or_else(|| damaged(&format!("a row without `{key}`")))
            };
            Ok(Row {
                kernel: text("kernel")?,
                source_sha256: text("source_sha256")?,
                spirv_sha256: text("spirv_sha256")?,
                compiler: text("compiler")?,
            })
        })
        .collect()
}

/// The table's text.
#[allow(dead_code, reason = "the tests of the crate only read the table")]
pub(crate) fn print(rows: &[Row]) -> String {
    let mut rows = rows.to_vec();
    rows.sort_by(|left, right| left.kernel.cmp(&right.kernel));
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "kernel": row.kernel,
                "source_sha256": row.source_sha256,
                "spirv_sha256": row.spirv_sha256,
                "compiler": row.compiler,
            })
        })
        .collect();
    format!("{:#}\n", Value::Array(rows))
}
