//! The rules of `runtime/STYLE.md` that a look at the tree can check: one line a fault, with the remedy.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

use std::fmt::Write as _;
use std::fs;
use std::path::{Component, Path, PathBuf};

use flint_shaders::layout::base_kernel;

/// What each station of `runtime/src` may import beside itself.
const IMPORTS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("gguf", &["base"]),
    ("store", &["base", "gguf"]),
    ("disk", &["base"]),
    ("gpu", &["base"]),
    ("expert", &["base", "store", "disk", "gpu"]),
    ("kernels", &["base", "gpu"]),
    ("model", &["base", "gguf", "store", "disk", "gpu", "expert", "kernels"]),
    ("text", &["base"]),
    ("sample", &["base"]),
    ("engine", &["base", "gguf", "store", "disk", "gpu", "expert", "kernels", "model", "text", "sample"]),
    ("capi", &["base", "gguf", "store", "disk", "gpu", "expert", "model", "text", "sample", "engine"]),
];

/// Where `unsafe` may stand; a folder ends with a slash.
const ISLANDS: &[&str] = &[
    "runtime/src/base/region.rs",
    "runtime/src/base/volume.rs",
    "runtime/src/disk/",
    "runtime/src/gpu/",
    "runtime/src/capi/",
];

/// Where the absolute paths that the tree names begin: folders of every Linux, and two that stand for nothing.
const SYSTEM_FOLDERS: &[&str] =
    &["dev", "does", "etc", "nowhere", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Files below `folder`, as paths from the root, sorted; without the build's and those of hidden folders.
fn files_below(folder: &str) -> Vec<String> {
    fn walk(path: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                // Hidden folders are git's and the developer's own, but for one.
                if name != "target" && (!name.starts_with('.') || name == ".ci") {
                    walk(&path, found);
                }
            } else {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join(folder), &mut found);
    let mut names: Vec<String> =
        found.iter().map(|path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Lines of code with their numbers, without comments that have a line of their own or follow code.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines().map(|line| line.split("//").next().unwrap_or_default()))
}

fn is_word(text: &str, at: usize, len: usize) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    !text[..at].ends_with(is_part) && !text[at + len..].starts_with(is_part)
}

fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| is_word(text, at, word.len()))
}

#[track_caller]
fn assert_tidy(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn stations_import_backwards_only() {
    let mut faults = Vec::new();
    for file in files_below("runtime/src") {
        let Some((station, _)) = file.trim_start_matches("runtime/src/").split_once('/') else { continue };
        let Some((_, allowed)) = IMPORTS.iter().find(|(name, _)| *name == station) else {
            faults.push(format!("{file}: station {station} is not in the table of tests/tidy.rs; add it"));
            continue;
        };
        for (number, line) in code_lines(&read(&file)) {
            for (at, _) in line.match_indices("crate::") {
                let rest = &line[at + "crate::".len()..];
                let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                if rest.starts_with('{') {
                    faults.push(format!(
                        "{file}:{number}: import from one station a line, so that this test sees it"
                    ));
                } else if name != station && !allowed.contains(&name) && is_word(line, at, 5) {
                    faults.push(format!(
                        "{file}:{number}: {station} may not import {name}; move what both need down"
                    ));
                }
            }
        }
    }
    assert_tidy(&faults);
}

#[test]
fn stations_are_declared_in_the_order_of_the_data() {
    let lib = read("runtime/src/lib.rs");
    let declared: Vec<&str> = lib
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .filter(|name| IMPORTS.iter().any(|(station, _)| station == name))
        .collect();
    let wanted: Vec<&str> = IMPORTS.iter().map(|(name, _)| *name).collect();
    assert_eq!(declared, wanted, "the order in runtime/src/lib.rs is the order of the data");
}

#[test]
fn unsafe_stands_on_islands_only() {
    let mut faults = Vec::new();
    let folders = ["runtime/src", "runtime/examples", "shaders/src", "shaders/compile", "tools"];
    for file in folders.into_iter().flat_map(files_below).filter(|file| file.ends_with(".rs")) {
        let is_island = ISLANDS
            .iter()
            .any(|island| file == *island || (island.ends_with('/') && file.starts_with(island)));
        for (number, line) in code_lines(&read(&file)) {
            // Every other part of a line is within quotes, near enough.
            let mut code = line.split('"').step_by(2);
            if !is_island && code.any(|code| has_word(code, "unsafe")) {
                faults.push(format!(
                    "{file}:{number}: unsafe outside an island; build on an island's safe face"
                ));
            }
        }
    }
    assert_tidy(&faults);
}

#[test]
fn every_module_has_its_page() {
    let mut faults = Vec::new();
    for file in files_below("").into_iter().filter(|file| file.ends_with(".rs")) {
        let text = read(&file);
        if !text.starts_with("//! ") {
            faults
                .push(format!("{file}: does not begin with its //! page; say what it owns, takes and gives"));
        }
    }
    assert_tidy(&faults);
}

#[test]
fn every_shader_has_its_block() {
    let mut faults = Vec::new();
    for (name, file) in shaders() {
        let text = read(&file);
        let block: Vec<&str> = text
            .lines()
            .skip_while(|line| line.starts_with('#'))
            .take_while(|line| line.starts_with("//"))
            .collect();
        if !block.first().is_some_and(|line| line.starts_with(&format!("// {name}: "))) {
            faults.push(format!("{file}: the block begins with `// {name}: ` and what it computes"));
        }
        for word in ["Source", "Shapes", "Grid", "Needs", "Exact"] {
            if !block.iter().any(|line| line.starts_with(&format!("// {word} "))) {
                faults.push(format!("{file}: the block says nothing of {word}; add it"));
            }
        }
    }
    assert_tidy(&faults);
}

#[test]
fn every_kernel_stands_four_times() {
    let all = |folder: &str| {
        files_below(folder).iter().filter(|file| file.ends_with(".rs")).fold(
            String::new(),
            |mut text, file| {
                let _ = writeln!(text, "{}", read(file));
                text
            },
        )
    };
    let (declared, twins) = (read("shaders/src/kernels.rs"), all("shaders/src/reference"));
    let (wrappers, tests) = (all("runtime/src/kernels"), all("tests/kernels"));
    let mut faults = Vec::new();
    for (name, file) in shaders() {
        let constant = name.to_uppercase();
        if !declared.contains(&format!("{constant} = \"{name}\"")) {
            faults.push(format!("{file}: not declared in shaders/src/kernels.rs"));
        }
        // The forms of a product share its twin.
        let twin = base_kernel(&name);
        if !twins.contains(&format!("pub fn {twin}(")) && !twins.contains(&format!("pub fn {twin}_final(")) {
            faults.push(format!("{file}: no twin `pub fn {twin}` in shaders/src/reference"));
        }
        if !has_word(&wrappers, &constant) {
            faults.push(format!("{file}: no wrapper in runtime/src/kernels names {constant}"));
        }
        if !has_word(&tests, &constant) {
            faults.push(format!("{file}: no test in tests/kernels names {constant}"));
        }
    }
    assert_tidy(&faults);
}

/// Name and file of every kernel's source.
fn shaders() -> Vec<(String, String)> {
    let files = files_below("shaders/glsl").into_iter();
    let shaders: Vec<_> = files
        .filter_map(|file| {
            let name = file.strip_prefix("shaders/glsl/")?.strip_suffix(".comp")?.to_owned();
            Some((name, file))
        })
        .collect();
    assert!(!shaders.is_empty(), "shaders/glsl holds the kernels");
    shaders
}

#[test]
fn documents_name_files_that_exist() {
    let mut faults = Vec::new();
    let files = files_below("");
    for file in files.iter().filter(|file| file.ends_with(".md")) {
        let folder = root().join(file).parent().unwrap().to_owned();
        let bases = [root().to_owned(), folder.clone(), folder.join("src"), root().join("runtime/src")];
        for (number, line) in (1..).zip(read(file).lines()) {
            for quoted in line.split('`').skip(1).step_by(2).filter(|quoted| is_path(quoted)) {
                let path = quoted.trim_start_matches("./");
                // A name alone means the file of that name, wherever it is.
                let is_there = match path.contains('/') {
                    true => bases.iter().any(|base| base.join(path).exists()),
                    false => files.iter().any(|file| file.rsplit('/').next() == Some(path)),
                };
                if !is_there {
                    faults.push(format!(
                        "{file}:{number}: there is no {quoted}; correct the name or write the file"
                    ));
                }
            }
        }
    }
    assert_tidy(&faults);
}

/// Whether a document means a file of this tree by it: it has a folder or an ending that only our files have, and
/// nothing that stands for something else.
fn is_path(quoted: &str) -> bool {
    let is_plain = quoted.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte));
    let has_ending = [".rs", ".md", ".comp", ".glsl"]
        .iter()
        .any(|ending| quoted.len() > ending.len() && quoted.ends_with(ending));
    let stands_for_others = quoted.contains("NAME") || quoted.contains("name.");
    let is_relative = !quoted.starts_with('/') && quoted.bytes().any(|byte| byte.is_ascii_lowercase());
    is_plain && is_relative && !stands_for_others && (has_ending || quoted.contains('/'))
}

/// A clone must say the same everywhere, so nothing in it may lean on where it was written.
#[test]
fn nothing_names_a_path_outside_the_repository() {
    let mut faults = Vec::new();
    let endings = [".rs", ".md", ".toml", ".sh", ".py", ".comp", ".glsl"];
    let scripts = ["tools/try", "tools/check", ".ci/run"];
    for file in files_below("") {
        if !endings.iter().any(|ending| file.ends_with(ending)) && !scripts.contains(&file.as_str()) {
            continue;
        }
        let folder = Path::new(&file).parent().unwrap().to_owned();
        for (number, line) in (1..).zip(read(&file).lines()) {
            for word in line.split(|c: char| !(c.is_ascii_alphanumeric() || "._-/".contains(c))) {
                if leaves(&folder, word) {
                    faults.push(format!(
                        "{file}:{number}: {word} lies outside the repository; name what is inside"
                    ));
                }
            }
        }
    }
    assert_tidy(&faults);
}

/// Whether `word`, in a file of `folder`, is a path out of the tree.
fn leaves(folder: &Path, word: &str) -> bool {
    if let Some(absolute) = word.strip_prefix('/') {
        let Some((first, rest)) = absolute.split_once('/') else { return false };
        let is_name = first.len() > 1 && first.bytes().all(|byte| byte.is_ascii_lowercase());
        // Behind a folder's name in another string, a slash begins a path within the tree.
        let is_ours = root().join(first).exists();
        let is_path = is_name && rest.starts_with(|c: char| c.is_ascii_alphabetic());
        return is_path && !is_ours && !SYSTEM_FOLDERS.contains(&first);
    }
    if !word.starts_with("../") {
        return false;
    }
    let mut depth = folder.components().count();
    for component in Path::new(word).components() {
        match component {
            Component::ParentDir if depth == 0 => return true,
            Component::ParentDir => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}
