//! A kernel's source: its `.comp` file and every file that it includes, and the digest over them.
//!
//! In: the folder `glsl/` and a kernel's name. Out: a [`Source`], or an error that names the file.
//!
//! The tests of the crate use this file too: without a compiler they tell whether a source was changed after its
//! SPIR-V was made.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use sha2::{Digest, Sha256};

/// A kernel's source.
pub(crate) struct Source {
    /// Text of the `.comp` file.
    #[allow(dead_code, reason = "only the compiler reads the text; the tests of the crate want the digest")]
    pub(crate) text: String,
    /// SHA-256 in hexadecimal over the `.comp` file and the files that it includes.
    pub(crate) sha256: String,
}

/// The file that `#include "NAME"` means: `glsl/include/NAME`.
pub(crate) fn include_path(glsl: &Path, name: &str) -> PathBuf {
    glsl.join("include").join(name)
}

/// Text of one file; the error names it.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Reads a kernel's source.
pub(crate) fn source(glsl: &Path, kernel: &str) -> io::Result<Source> {
    let text = read(&glsl.join(format!("{kernel}.comp")))?;
    let mut files = Vec::new();
    collect_includes(glsl, &text, &mut files)?;
    let mut hash = Sha256::new();
    update(&mut hash, &format!("{kernel}.comp"), &text);
    for (name, text) in &files {
        update(&mut hash, name, text);
    }
    Ok(Source { text, sha256: hex(&hash.finalize()) })
}

/// SHA-256 in hexadecimal of some bytes.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Adds every file that `text` includes, in order of first inclusion, and what those include.
fn collect_includes(glsl: &Path, text: &str, files: &mut Vec<(String, String)>) -> io::Result<()> {
    for name in text.lines().filter_map(included_name) {
        if files.iter().any(|(known, _)| known == name) {
            continue;
        }
        let text = read(&include_path(glsl, name))?;
        files.push((name.to_owned(), text.clone()));
        collect_includes(glsl, &text, files)?;
    }
    Ok(())
}

/// The file that a line includes.
fn included_name(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
    rest.trim_start().strip_prefix('"')?.split('"').next()
}

/// Name and length go in too, so that moving text from one file to another changes the digest.
fn update(hash: &mut Sha256, name: &str, text: &str) {
    hash.update(format!("{name} {}\n", text.len()));
    hash.update(text);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}
