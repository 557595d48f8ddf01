//! A model of a few kilobytes that has everything a store has, and what tests of stores ask of it.
//!
//! Include it with `#[path = "support/small_model.rs"] mod small_model;`.

#![allow(dead_code, unreachable_pub, reason = "every test program includes this and uses its part of it")]
#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use flint_rt::base::ids::{ExpertKey, Span};
use flint_rt::store::{IngestProgress, Source, ingest};
use tempfile::TempDir;

/// Goes on.
pub fn quiet(_: IngestProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The bytes of a span.
pub fn bytes_of(source: &Source, span: Span) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(span.len_bytes).unwrap()];
    let file = File::open(&source.files()[usize::from(span.file.0)]).unwrap();
    file.read_exact_at(&mut bytes, span.offset_bytes).unwrap();
    bytes
}

/// The bytes of an expert's record.
pub fn record_of(source: &Source, key: ExpertKey) -> Vec<u8> {
    let mut record = Vec::new();
    for piece in source.expert_pieces(key).iter() {
        assert_eq!(piece.record_offset_bytes, record.len() as u64, "pieces come in order, without gaps");
        record.extend(bytes_of(source, piece.span));
    }
    assert_eq!(record.len() as u64, source.record().record_bytes(), "a whole record");
    record
}

/// Names and bytes of all files in a folder.
pub fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    entries(folder).into_iter().map(|name| (name.clone(), fs::read(folder.join(&name)).unwrap())).collect()
}

/// The names in a folder, sorted.
pub fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Name, dimensions, type code, bytes.
pub type TensorSpec = (String, Vec<u64>, u32, usize);

/// A GGUF of string keys and tensors, at alignment 32.
pub fn gguf(keys: &[(&str, &str)], tensors: &[TensorSpec]) -> Vec<u8> {
    aligned_gguf(keys, tensors, None)
}

/// [`gguf`], with the key for this alignment.
pub fn aligned_gguf(keys: &[(&str, &str)], tensors: &[TensorSpec], said: Option<u32>) -> Vec<u8> {
    let alignment = said.unwrap_or(32);
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    let text = |file: &mut Vec<u8>, text: &str| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    };
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((keys.len() as u64 + u64::from(said.is_some())).to_le_bytes());
    for (key, value) in keys {
        text(&mut file, key);
        file.extend(8u32.to_le_bytes());
        text(&mut file, value);
    }
    if said.is_some() {
        text(&mut file, "general.alignment");
        file.extend(4u32.to_le_bytes());
        file.extend(alignment.to_le_bytes());
    }
    let mut offset = 0u64;
    for (name, dims, kind, bytes) in tensors {
        text(&mut file, name);
        file.extend(u32::try_from(dims.len()).unwrap().to_le_bytes());
        dims.iter().for_each(|dim| file.extend(dim.to_le_bytes()));
        file.extend(kind.to_le_bytes());
        file.extend(offset.to_le_bytes());
        offset += (*bytes as u64).next_multiple_of(alignment.into());
    }
    file.resize(file.len().next_multiple_of(alignment as usize), 0);
    let mut state = 1u32;
    for (_, _, _, bytes) in tensors {
        for _ in 0..bytes.next_multiple_of(alignment as usize) {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            file.push(state.to_be_bytes()[0]);
        }
    }
    file
}

/// The keys of a Flint.
pub const FLINT: [(&str, &str); 1] = [("general.architecture", "flint")];

/// The tensors of a model of four layers, two of which, not side by side, have three experts each.
pub fn small_tensors() -> Vec<TensorSpec> {
    let mut tensors = vec![("output_norm.weight".to_owned(), vec![5], 0, 20)];
    for layer in [3, 1] {
        tensors.push((format!("blk.{layer}.ffn_down_exps.weight"), vec![32, 64, 3], 3, 3 * 1280));
        tensors.push((format!("blk.{layer}.attn_q.weight"), vec![64, 7], 3, 7 * 40));
        tensors.push((format!("blk.{layer}.ffn_gate_exps.weight"), vec![64, 32, 3], 3, 3 * 1280));
        tensors.push((format!("blk.{layer}.ffn_up_exps.weight"), vec![64, 32, 3], 3, 3 * 1280));
    }
    tensors.push(("blk.0.attn_q.weight".to_owned(), vec![64, 248], 3, 248 * 40));
    tensors
}

/// A folder with the small model and a store of it.
pub struct Small {
    pub folder: TempDir,
    pub gguf: PathBuf,
    pub store: PathBuf,
}

/// Makes them.
pub fn small() -> Small {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("small.gguf");
    fs::write(&path, gguf(&FLINT, &small_tensors())).unwrap();
    let store = folder.path().join("small");
    ingest(&path, &store, &mut quiet).unwrap();
    Small { folder, gguf: path, store }
}
