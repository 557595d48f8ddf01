//! The files of a GGUF: one, or the parts of a split one, `NAME-00001-of-0000N.gguf` to `NAME-0000N-of-0000N.gguf`.
//!
//! - Owns: nothing. In: a path, or headers. Out: the paths of all parts; their headers as one, with where each begins.
//! - Invariants: all parts are there, of one split, in order. Offsets of the joined header count through all parts as
//!   if each stood behind the one before it; no tensor lies in two.

use std::path::{Path, PathBuf};

use crate::base::ids::{FileIndex, Span};
use crate::gguf::{Gguf, Value};
use crate::store::error::StoreError;

/// Most parts of a split GGUF.
const PARTS_MAX: u32 = 1000;

/// One file of a GGUF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Where its bytes begin, counted through all parts.
    pub(super) start_bytes: u64,
    pub(super) len_bytes: u64,
    pub(super) header_bytes: u64,
}

/// The headers of all files as one.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) gguf: Gguf,
    pub(super) parts: Vec<Part>,
}

/// All files of the GGUF of which `path` is one.
///
/// # Errors
/// [`StoreError::PartMissing`], [`StoreError::PartNumber`].
pub(super) fn paths(path: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some((stem, number, count)) = split_name(&name) else { return Ok(vec![path.to_owned()]) };
    if !(1..=count).contains(&number) || count > PARTS_MAX {
        return Err(StoreError::PartNumber { path: path.to_owned(), limit: PARTS_MAX });
    }
    let part = |number: u32| path.with_file_name(part_name(stem, number, count));
    let paths: Vec<_> = (1..=count).map(part).collect();
    match paths.iter().find(|path| !path.is_file()) {
        None => Ok(paths),
        Some(missing) => Err(StoreError::PartMissing { path: missing.clone(), count }),
    }
}

/// The name of part `number` of `count`.
pub fn part_name(stem: &str, number: u32, count: u32) -> String {
    format!("{stem}-{number:05}-of-{count:05}.gguf")
}

/// Stem, number and count of a part's name; `None` for the name of a whole file.
pub fn split_name(name: &str) -> Option<(&str, u32, u32)> {
    let stem = name.strip_suffix(".gguf")?;
    let (stem, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = stem.rsplit_once('-')?;
    let digits = |text: &str| {
        let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok())?
    };
    Some((stem, digits(number)?, digits(count)?)).filter(|(stem, ..)| !stem.is_empty())
}

/// Reads the headers of all parts.
pub(super) fn read(paths: &[PathBuf]) -> Result<Joined, StoreError> {
    let headers: Result<Vec<_>, StoreError> =
        paths.iter().map(|path| Ok((path.display().to_string(), Gguf::read(path)?))).collect();
    join(headers?)
}

/// Checks that these headers, each with its file's name, are one GGUF, whole and in order, and joins them.
pub(super) fn join(headers: Vec<(String, Gguf)>) -> Result<Joined, StoreError> {
    let count = headers.len() as u64;
    let tensor_count: u64 = headers.iter().map(|(_, gguf)| gguf.tensors.len() as u64).sum();
    let (mut parts, mut ggufs) = (Vec::new(), Vec::new());
    let mut start_bytes = 0;
    for (index, (name, gguf)) in (0u64..).zip(headers) {
        let said = |key| gguf.metadata.get(key).and_then(number);
        if count == 1 && said("split.count").is_some_and(|said| said > 1) {
            return Err(StoreError::PartName { name, count: said("split.count").unwrap_or_default() });
        }
        let checks = [("split.count", count), ("split.no", index), ("split.tensors.count", tensor_count)];
        for (key, wanted) in checks.into_iter().filter(|_| count > 1) {
            if let Some(found) = said(key).filter(|found| *found != wanted) {
                return Err(StoreError::PartMismatch { name, key, found, wanted });
            }
        }
        let (len_bytes, header_bytes) = (gguf.file_len_bytes, gguf.header_bytes().len() as u64);
        parts.push(Part { start_bytes, len_bytes, header_bytes });
        start_bytes += len_bytes;
        ggufs.push(gguf);
    }
    Ok(Joined { gguf: Gguf::join(ggufs)?, parts })
}

/// The span in its own file of bytes whose offset counts through all parts.
///
/// # Panics
/// When it does not lie in one part.
pub(super) fn locate(parts: &[Part], offset_bytes: u64, len_bytes: u64) -> Span {
    let file = parts.partition_point(|part| part.start_bytes <= offset_bytes) - 1;
    let part = &parts[file];
    let offset_bytes = offset_bytes - part.start_bytes;
    assert!(offset_bytes + len_bytes <= part.len_bytes, "a tensor's bytes lie in one file");
    let file = FileIndex(u16::try_from(file).expect("invariant: there are at most 1000 parts"));
    Span { file, offset_bytes, len_bytes }
}

/// An integer of any width: writers differ in what they use for the split's keys.
fn number(value: &Value) -> Option<u64> {
    match *value {
        Value::U8(value) => Some(value.into()),
        Value::U16(value) => Some(value.into()),
        Value::U32(value) => Some(value.into()),
        Value::U64(value) => Some(value),
        Value::I8(value) => value.try_into().ok(),
        Value::I16(value) => value.try_into().ok(),
        Value::I32(value) => value.try_into().ok(),
        Value::I64(value) => value.try_into().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        assert_eq!(split_name("a-b-00002-of-00003.gguf"), Some(("a-b", 2, 3)));
        assert_eq!(split_name(&part_name("x", 7, 12)), Some(("x", 7, 12)));
        for whole in
            ["a.gguf", "a-1-of-2.gguf", "-00001-of-00002.gguf", "a-00001-of-0000x.gguf", "a-00001-of-00002"]
        {
            assert_eq!(split_name(whole), None, "{whole}");
        }
    }
}
