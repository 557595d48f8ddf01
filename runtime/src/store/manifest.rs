//! The store's description of itself: `manifest.json`.
//!
//! - Owns: the form of version 1. In: a layout, or bytes from the drive. Out: bytes, or a [`Manifest`] that is what
//!   its writer wrote.
//! - Invariants: strict. An unknown field, format or version is refused; a digest over all fields finds any change;
//!   all numbers follow from the header and are compared with it ([`Manifest::check`]). Without a manifest there is
//!   no store.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::base::ids::LayerIndex;
use crate::gguf::Gguf;
use crate::store::digest::Sha256Digest;
use crate::store::error::StoreError;
use crate::store::layout::Layout;

/// The manifest's file in the store's folder.
pub const MANIFEST_NAME: &str = "manifest.json";

/// Largest file that Linux can hold; nothing longer is believed, so that sums of lengths cannot overflow.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

const FORMAT: &str = "flint-rt store";
const VERSION: u32 = 1;
const HEADER_NAME: &str = "header.bin";
const DENSE_NAME: &str = "dense.bin";
const EXPERTS_NAME: &str = "experts.bin";

/// All of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: String,
    version: u32,
    pub(super) source: SourceRecord,
    pub(super) header: HeaderRecord,
    pub(super) dense: DenseRecord,
    pub(super) experts: ExpertsRecord,
    /// SHA-256 of this manifest as compact JSON with this field empty.
    digest: String,
}

/// Where the bytes came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SourceRecord {
    /// The GGUF's name without its folder; for people, nothing is opened by it.
    pub(super) file_name: String,
    pub(super) size_bytes: u64,
    pub(super) sha256: Sha256Digest,
}

/// The GGUF's header, verbatim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeaderRecord {
    pub(super) file: String,
    pub(super) len_bytes: u64,
    pub(super) sha256: Sha256Digest,
}

/// The tensors that every token needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DenseRecord {
    pub(super) file: String,
    pub(super) len_bytes: u64,
    tensors: Vec<TensorRecord>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorRecord {
    name: String,
    offset_bytes: u64,
    len_bytes: u64,
}

/// The expert records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpertsRecord {
    pub(super) file: String,
    pub(super) len_bytes: u64,
    /// The layers that have experts, in the order of their records.
    layers: Vec<u32>,
    expert_count: u32,
    gate_bytes: u64,
    up_bytes: u64,
    down_bytes: u64,
    stride_bytes: u64,
}

/// What every version of the manifest has.
#[derive(Deserialize)]
struct Envelope {
    format: String,
    version: u64,
}

impl Manifest {
    /// The manifest of the store that `layout` describes.
    pub(super) fn new(
        source: SourceRecord,
        header_sha256: Sha256Digest,
        gguf: &Gguf,
        layout: &Layout,
    ) -> Self {
        let tensors = layout.dense.iter().map(|tensor| TensorRecord {
            name: tensor.name.clone(),
            offset_bytes: tensor.store_offset_bytes,
            len_bytes: tensor.len_bytes,
        });
        let record = layout.experts.record;
        let mut manifest = Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            source,
            header: HeaderRecord {
                file: HEADER_NAME.to_owned(),
                len_bytes: gguf.header_bytes().len() as u64,
                sha256: header_sha256,
            },
            dense: DenseRecord {
                file: DENSE_NAME.to_owned(),
                len_bytes: layout.dense_file_bytes,
                tensors: tensors.collect(),
            },
            experts: ExpertsRecord {
                file: EXPERTS_NAME.to_owned(),
                len_bytes: layout.experts_file_bytes,
                layers: layout.experts.layers.iter().map(|&LayerIndex(layer)| layer).collect(),
                expert_count: layout.experts.expert_count,
                gate_bytes: record.gate_bytes,
                up_bytes: record.up_bytes,
                down_bytes: record.down_bytes,
                stride_bytes: record.stride_bytes(),
            },
            digest: String::new(),
        };
        manifest.digest = manifest.digest_of_the_rest().to_string();
        manifest
    }

    /// What stands in the file.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("invariant: plain fields always serialize");
        bytes.push(b'\n');
        bytes
    }

    /// Reads what [`Manifest::to_bytes`] wrote; `path` is for errors.
    pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<Self, StoreError> {
        let syntax = |source| StoreError::ManifestSyntax { path: path.to_owned(), source };
        // The envelope first: a later version may have other fields, and deserves a better word than "unknown field".
        let envelope: Envelope = serde_json::from_slice(bytes).map_err(syntax)?;
        if envelope.format != FORMAT {
            let (path, found) = (path.to_owned(), envelope.format);
            return Err(StoreError::ManifestFormat { path, found, wanted: FORMAT });
        }
        if envelope.version != u64::from(VERSION) {
            let (path, found) = (path.to_owned(), envelope.version);
            return Err(StoreError::ManifestVersion { path, found, known: VERSION });
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(syntax)?;
        if manifest.digest != manifest.digest_of_the_rest().to_string() {
            return Err(StoreError::ManifestDigest { path: path.to_owned() });
        }
        manifest.check_names_and_sizes(path)?;
        Ok(manifest)
    }

    /// Compares every number with what follows from the store's header.
    pub(super) fn check(&self, gguf: &Gguf, layout: &Layout, path: &Path) -> Result<(), StoreError> {
        let wanted = Self::new(self.source.clone(), self.header.sha256, gguf, layout);
        if *self == wanted {
            return Ok(());
        }
        let value =
            |manifest| serde_json::to_value(manifest).expect("invariant: plain fields always serialize");
        let (field, found, wanted) = first_difference(&value(self), &value(&wanted), String::new())
            .expect("invariant: unequal manifests differ in a field");
        Err(StoreError::ManifestField { path: path.to_owned(), field, found, wanted })
    }

    /// What can be said of names and sizes before the header is read by them.
    fn check_names_and_sizes(&self, path: &Path) -> Result<(), StoreError> {
        let refuse = |field: &str, found: &str, wanted: &str| StoreError::ManifestField {
            path: path.to_owned(),
            field: field.to_owned(),
            found: format!("{found:?}"),
            wanted: wanted.to_owned(),
        };
        for (field, found, wanted) in [
            ("header.file", &self.header.file, HEADER_NAME),
            ("dense.file", &self.dense.file, DENSE_NAME),
            ("experts.file", &self.experts.file, EXPERTS_NAME),
        ] {
            if found != wanted {
                return Err(refuse(field, found, wanted));
            }
        }
        let name = &self.source.file_name;
        if !is_plain_name(name) {
            return Err(refuse("source.file_name", name, "a file's name without a folder"));
        }
        if self.source.size_bytes > FILE_BYTES_MAX {
            let what = "source.size_bytes of the manifest";
            return Err(StoreError::Limit { what, found: self.source.size_bytes, limit: FILE_BYTES_MAX });
        }
        Ok(())
    }

    fn digest_of_the_rest(&self) -> Sha256Digest {
        let rest = Self { digest: String::new(), ..self.clone() };
        Sha256Digest::of(&serde_json::to_vec(&rest).expect("invariant: plain fields always serialize"))
    }
}

/// Whether `name` names a file in a folder and nothing outside of it.
pub(super) fn is_plain_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains('/') && !name.contains(char::is_control)
}

/// The first field in which two manifests differ, with both values.
fn first_difference(found: &Value, wanted: &Value, at: String) -> Option<(String, String, String)> {
    let below =
        |key: &dyn std::fmt::Display| if at.is_empty() { key.to_string() } else { format!("{at}.{key}") };
    match (found, wanted) {
        (Value::Object(a), Value::Object(b)) if a.len() == b.len() => a
            .iter()
            .find_map(|(key, found)| first_difference(found, b.get(key).unwrap_or(&Value::Null), below(key))),
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .find_map(|(index, (found, wanted))| first_difference(found, wanted, below(&index))),
        (Value::Array(a), Value::Array(b)) => {
            Some((at, format!("a list of {}", a.len()), format!("a list of {}", b.len())))
        }
        _ => (found != wanted).then(|| (at, found.to_string(), wanted.to_string())),
    }
}
