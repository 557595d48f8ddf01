//! The store's description of itself: `manifest.json`.
//!
//! - Owns: the form of version 2. In: a layout, or bytes from the drive. Out: bytes, or a [`Manifest`] that is what
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
use crate::store::placement::{Checksum, Placement, RecordEntry};

/// The manifest's file in the store's folder.
pub const MANIFEST_NAME: &str = "manifest.json";

/// Largest file that Linux can hold; nothing longer is believed, so that sums of lengths cannot overflow.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

const FORMAT: &str = "flint-rt store";
const VERSION: u32 = 2;
pub(super) const HEADER_NAME: &str = "header.bin";
pub(super) const DENSE_NAME: &str = "dense.bin";

/// Files of experts that a store may have: far more drives than machines have.
pub(super) const STRIPES_MAX: usize = 64;

/// All of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    format: String,
    version: u32,
    /// [`crate::store::Source::identity`] of the source.
    pub(super) store_id: Sha256Digest,
    /// The GGUF's files: one, or all parts of a split one.
    pub(super) source: Vec<SourceRecord>,
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
    /// Bytes of its header, which stands in the header's file behind those of the parts before it.
    pub(super) header_bytes: u64,
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
    /// [`crate::store::tree_digest`] over the tensors.
    pub(super) sha256_tree: Sha256Digest,
    pub(super) tensors: Vec<TensorRecord>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TensorRecord {
    pub(super) name: String,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    pub(super) xxh3: Checksum,
}

/// The expert records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpertsRecord {
    /// The layers that have experts, in the order of their records.
    pub(super) layers: Vec<u32>,
    pub(super) expert_count: u32,
    pub(super) gate_bytes: u64,
    pub(super) up_bytes: u64,
    pub(super) down_bytes: u64,
    pub(super) stride_bytes: u64,
    pub(super) files: Vec<ExpertsFile>,
    /// Where each record stands, and its checksum: by layer, then by expert.
    pub(super) records: Vec<RecordEntry>,
}

/// One file of expert records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpertsFile {
    /// The stripe's folder, absolute; the store's own where there is none.
    pub(super) folder: Option<String>,
    pub(super) name: String,
    pub(super) len_bytes: u64,
    /// [`crate::store::tree_digest`] over the matrices.
    pub(super) sha256_tree: Sha256Digest,
}

/// What of a manifest does not follow from the header.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Facts {
    pub(super) source: Vec<SourceRecord>,
    pub(super) header_sha256: Sha256Digest,
    pub(super) dense_sha256_tree: Sha256Digest,
    /// Of each dense tensor, in the order of the layout.
    pub(super) tensor_checksums: Vec<u128>,
    /// Folder and digest of each experts file.
    pub(super) stripes: Vec<(Option<String>, Sha256Digest)>,
    /// Of each record, in the order of the table.
    pub(super) record_checksums: Vec<u128>,
}

/// What every version of the manifest has.
#[derive(Deserialize)]
struct Envelope {
    format: String,
    version: u64,
}

impl Manifest {
    /// The manifest of the store that `layout` describes.
    ///
    /// # Panics
    /// When `facts` has not one checksum for each tensor and record of the layout, or one stripe for each file.
    pub(super) fn new(facts: Facts, gguf: &Gguf, layout: &Layout) -> Self {
        let (experts, placement) = (&layout.experts, &layout.placement);
        assert_eq!(facts.tensor_checksums.len(), layout.dense.len(), "a checksum for each dense tensor");
        assert_eq!(facts.record_checksums.len(), placement.places.len(), "a checksum for each record");
        assert_eq!(facts.stripes.len(), placement.counts.len(), "a folder for each experts file");
        let tensors =
            layout.dense.iter().zip(facts.tensor_checksums).map(|(tensor, checksum)| TensorRecord {
                name: tensor.name.clone(),
                offset_bytes: tensor.store_offset_bytes,
                len_bytes: tensor.len_bytes,
                xxh3: Checksum(checksum),
            });
        let record = experts.record;
        let count = facts.stripes.len();
        let files = facts.stripes.into_iter().enumerate().map(|(file, (folder, sha256_tree))| ExpertsFile {
            folder,
            name: experts_file_name(file, count),
            len_bytes: layout.experts_file_bytes(file),
            sha256_tree,
        });
        let records = placement
            .places
            .iter()
            .zip(facts.record_checksums)
            .map(|(&place, checksum)| RecordEntry { place, checksum });
        let mut manifest = Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            store_id: store_id(
                facts.source.iter().map(|part| (part.header_bytes, part.size_bytes)),
                gguf.header_bytes(),
            ),
            header: HeaderRecord {
                file: HEADER_NAME.to_owned(),
                len_bytes: gguf.header_bytes().len() as u64,
                sha256: facts.header_sha256,
            },
            source: facts.source,
            dense: DenseRecord {
                file: DENSE_NAME.to_owned(),
                len_bytes: layout.dense_file_bytes,
                sha256_tree: facts.dense_sha256_tree,
                tensors: tensors.collect(),
            },
            experts: ExpertsRecord {
                layers: experts.layers.iter().map(|&LayerIndex(layer)| layer).collect(),
                expert_count: experts.expert_count,
                gate_bytes: record.gate_bytes,
                up_bytes: record.up_bytes,
                down_bytes: record.down_bytes,
                stride_bytes: record.stride_bytes(),
                files: files.collect(),
                records: records.collect(),
            },
            digest: String::new(),
        };
        manifest.digest = manifest.digest_of_the_rest().to_string();
        manifest
    }

    /// Where the records stand, as far as the manifest makes sense.
    pub(super) fn placement(&self) -> Option<Placement> {
        let files = self.experts.records.iter().map(|record| record.place.file);
        Placement::of_files(files, self.experts.files.len())
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
        let counts = [
            ("dense.tensors", self.dense.tensors.len(), layout.dense.len()),
            ("experts.records", self.experts.records.len(), layout.placement.places.len()),
        ];
        for (field, found, wanted) in counts {
            if found != wanted {
                return Err(StoreError::ManifestField {
                    path: path.to_owned(),
                    field: field.to_owned(),
                    found: format!("a list of {found}"),
                    wanted: format!("a list of {wanted}"),
                });
            }
        }
        let facts = Facts {
            source: self.source.clone(),
            header_sha256: self.header.sha256,
            dense_sha256_tree: self.dense.sha256_tree,
            tensor_checksums: self.dense.tensors.iter().map(|tensor| tensor.xxh3.0).collect(),
            stripes: self.experts.files.iter().map(|file| (file.folder.clone(), file.sha256_tree)).collect(),
            record_checksums: self.experts.records.iter().map(|record| record.checksum).collect(),
        };
        let wanted = Self::new(facts, gguf, layout);
        if *self == wanted {
            return Ok(());
        }
        // The digest differs whenever anything does, and says least.
        let value = |manifest: &Self| {
            let rest = Self { digest: String::new(), ..manifest.clone() };
            serde_json::to_value(rest).expect("invariant: plain fields always serialize")
        };
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
        for (field, found, wanted) in
            [("header.file", &self.header.file, HEADER_NAME), ("dense.file", &self.dense.file, DENSE_NAME)]
        {
            if found != wanted {
                return Err(refuse(field, found, wanted));
            }
        }
        let count = self.experts.files.len();
        if !(1..=STRIPES_MAX).contains(&count) {
            let (limit, found) = (STRIPES_MAX as u64, count as u64);
            return Err(StoreError::Limit {
                what: "the number of experts files of the manifest",
                found,
                limit,
            });
        }
        for (file, record) in self.experts.files.iter().enumerate() {
            let wanted = experts_file_name(file, count);
            if record.name != wanted {
                return Err(refuse("experts.files.name", &record.name, &wanted));
            }
            if let Some(folder) = record.folder.as_ref().filter(|folder| !is_absolute_folder(folder)) {
                return Err(refuse("experts.files.folder", folder, "an absolute folder without .."));
            }
        }
        if self.source.is_empty() {
            return Err(refuse("source", "", "at least one file"));
        }
        let (mut size_bytes, mut header_bytes) = (0u64, 0u64);
        for part in &self.source {
            if !is_plain_name(&part.file_name) {
                return Err(refuse("source.file_name", &part.file_name, "a file's name without a folder"));
            }
            size_bytes = size_bytes.saturating_add(part.size_bytes);
            header_bytes = header_bytes.saturating_add(part.header_bytes);
        }
        if size_bytes > FILE_BYTES_MAX {
            let what = "source.size_bytes of the manifest";
            return Err(StoreError::Limit { what, found: size_bytes, limit: FILE_BYTES_MAX });
        }
        if header_bytes != self.header.len_bytes {
            return Err(StoreError::ManifestField {
                path: path.to_owned(),
                field: "header.len_bytes".to_owned(),
                found: self.header.len_bytes.to_string(),
                wanted: format!("{header_bytes}, the sum of source.header_bytes"),
            });
        }
        Ok(())
    }

    fn digest_of_the_rest(&self) -> Sha256Digest {
        let rest = Self { digest: String::new(), ..self.clone() };
        Sha256Digest::of(&serde_json::to_vec(&rest).expect("invariant: plain fields always serialize"))
    }
}

/// Names a model: SHA-256 over, for each file of its GGUF, the header's SHA-256 and the file's length (`u64`).
/// `parts` has the length of each header and of each file, `headers` the headers, one behind the other.
///
/// # Panics
/// When the lengths do not cut `headers` exactly.
pub(super) fn store_id(parts: impl Iterator<Item = (u64, u64)>, mut headers: &[u8]) -> Sha256Digest {
    let mut bytes = Vec::new();
    for (header_bytes, len_bytes) in parts {
        let len = usize::try_from(header_bytes).expect("invariant: a header is below 1 GiB");
        let (header, rest) = headers.split_at(len);
        bytes.extend(Sha256Digest::of(header).0);
        bytes.extend(len_bytes.to_le_bytes());
        headers = rest;
    }
    assert!(headers.is_empty(), "{} bytes of headers belong to no file", headers.len());
    Sha256Digest::of(&bytes)
}

/// The name of experts file `file` of `count`.
pub(super) fn experts_file_name(file: usize, count: usize) -> String {
    if count == 1 { "experts.bin".to_owned() } else { format!("experts-{file}.bin") }
}

fn is_absolute_folder(folder: &str) -> bool {
    let path = Path::new(folder);
    path.is_absolute()
        && !folder.contains(char::is_control)
        && !path.components().any(|part| part == std::path::Component::ParentDir)
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
