//! Opens a store, or a GGUF in place, behind one face.
//!
//! - Owns: a [`Source`]'s tables. In: a path. Out: spans.
//! - Invariants: every span of an opened source lies inside a file whose length was looked up when it was opened.
//!   Nothing but manifest and header is read.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::base::ids::{ExpertKey, FileIndex, LayerIndex, Span};
use crate::base::limits::MANIFEST_BYTES_MAX;
use crate::gguf::{Gguf, GgufError};
use crate::store::digest::Sha256Digest;
use crate::store::error::{StoreError, io_error};
use crate::store::experts::ExpertTable;
use crate::store::layout::{DENSE_FILE, EXPERTS_FILE, Layout};
use crate::store::manifest::{MANIFEST_NAME, Manifest};
use crate::store::publish::is_working_folder;
use crate::store::record::{ExpertPiece, ExpertPieces, RecordLayout};

/// What a [`Source`] reads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// A folder made by `ingest`: a record is one piece.
    Store,
    /// A GGUF file where it lies: a record is three pieces.
    Gguf,
}

/// A model on disk: where every tensor and every expert lies.
#[derive(Debug)]
pub struct Source {
    kind: SourceKind,
    gguf: Gguf,
    files: Vec<PathBuf>,
    dense: HashMap<String, Span>,
    experts: ExpertTable,
    identity: Sha256Digest,
    file_name: String,
    sha256: Option<Sha256Digest>,
}

impl Source {
    /// Opens the store (a folder) or the GGUF (a file) at `path`.
    ///
    /// # Errors
    /// There is neither; the store is unfinished, damaged or of another version; the GGUF's header is refused; the
    /// model is no Flint with separate Q4_1 expert tensors.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let metadata = fs::metadata(path).map_err(io_error("open the model", path))?;
        if metadata.is_dir() { Self::open_store(path) } else { Self::open_gguf(path) }
    }

    fn open_gguf(path: &Path) -> Result<Self, StoreError> {
        let gguf = Gguf::read(path)?;
        let layout = Layout::from_gguf(&gguf)?;
        let dense = layout.dense.into_iter().map(|tensor| {
            let offset_bytes = tensor.gguf_offset_bytes;
            (tensor.name, Span { file: FileIndex(0), offset_bytes, len_bytes: tensor.len_bytes })
        });
        Ok(Self {
            kind: SourceKind::Gguf,
            files: vec![path.to_owned()],
            dense: dense.collect(),
            experts: layout.experts,
            identity: identity(Sha256Digest::of(gguf.header_bytes()), gguf.file_len_bytes),
            file_name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            sha256: None,
            gguf,
        })
    }

    fn open_store(folder: &Path) -> Result<Self, StoreError> {
        if is_working_folder(folder) {
            return Err(StoreError::Unfinished { path: folder.to_owned() });
        }
        let manifest_path = folder.join(MANIFEST_NAME);
        let manifest = Manifest::parse(&read_manifest(folder, &manifest_path)?, &manifest_path)?;

        let header_path = folder.join(&manifest.header.file);
        check_file(&header_path, manifest.header.len_bytes)?;
        let gguf = read_header(&header_path, &manifest)?;
        let layout = Layout::from_gguf(&gguf)?;
        manifest.check(&gguf, &layout, &manifest_path)?;

        let files = vec![folder.join(&manifest.dense.file), folder.join(&manifest.experts.file)];
        check_file(&files[DENSE_FILE.0 as usize], manifest.dense.len_bytes)?;
        check_file(&files[EXPERTS_FILE.0 as usize], manifest.experts.len_bytes)?;
        let dense = layout.dense.into_iter().map(|tensor| {
            let offset_bytes = tensor.store_offset_bytes;
            (tensor.name, Span { file: DENSE_FILE, offset_bytes, len_bytes: tensor.len_bytes })
        });
        Ok(Self {
            kind: SourceKind::Store,
            files,
            dense: dense.collect(),
            experts: layout.experts,
            identity: identity(manifest.header.sha256, manifest.source.size_bytes),
            file_name: manifest.source.file_name,
            sha256: Some(manifest.source.sha256),
            gguf,
        })
    }

    /// Whether this is a store or a GGUF in place.
    pub fn kind(&self) -> SourceKind {
        self.kind
    }

    /// The GGUF's header. Offsets and file length in it are those of the GGUF, also when this is a store.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// The files that spans point into, in the order of their [`FileIndex`].
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Where the dense tensor `name` lies; nothing for names that the model lacks and for those of expert tensors.
    pub fn tensor_span(&self, name: &str) -> Option<Span> {
        self.dense.get(name).copied()
    }

    /// Where the record of `key` lies, in order and without gaps.
    ///
    /// # Panics
    /// When the model has no such expert.
    pub fn expert_pieces(&self, key: ExpertKey) -> ExpertPieces {
        let record = self.experts.record;
        match self.kind {
            SourceKind::Store => {
                let index = self.experts.index(key).unwrap_or_else(|| panic!("the model has no {key}"));
                let offset_bytes = index * record.stride_bytes();
                ExpertPieces::whole(Span {
                    file: EXPERTS_FILE,
                    offset_bytes,
                    len_bytes: record.record_bytes(),
                })
            }
            SourceKind::Gguf => {
                let offsets = self.experts.gguf_offsets_bytes(key);
                let [gate, up, down] = offsets.unwrap_or_else(|| panic!("the model has no {key}"));
                let piece = |offset_bytes, len_bytes, record_offset_bytes| ExpertPiece {
                    span: Span { file: FileIndex(0), offset_bytes, len_bytes },
                    record_offset_bytes,
                };
                ExpertPieces::split([
                    piece(gate, record.gate_bytes, 0),
                    piece(up, record.up_bytes, record.up_offset_bytes()),
                    piece(down, record.down_bytes, record.down_offset_bytes()),
                ])
            }
        }
    }

    /// The sizes within an expert record.
    pub fn record(&self) -> RecordLayout {
        self.experts.record
    }

    /// Experts of each layer that has any.
    pub fn expert_count(&self) -> u32 {
        self.experts.expert_count
    }

    /// The layers that have experts, ascending.
    pub fn expert_layers(&self) -> &[LayerIndex] {
        &self.experts.layers
    }

    /// Every expert of the model, by layer, then by number: the order of records in a store.
    pub fn expert_keys(&self) -> impl Iterator<Item = ExpertKey> + '_ {
        self.experts.keys()
    }

    /// Names the model by its header's bytes and the GGUF's length: equal for a GGUF and every store made of it,
    /// wherever they lie.
    pub fn identity(&self) -> Sha256Digest {
        self.identity
    }

    /// The GGUF's file name, without its folder; of a store, the name that the GGUF had when it was ingested.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    /// SHA-256 of the whole GGUF, as a store's manifest says it; not known of a GGUF in place.
    pub fn source_sha256(&self) -> Option<Sha256Digest> {
        self.sha256
    }
}

fn identity(header: Sha256Digest, len_bytes: u64) -> Sha256Digest {
    let mut bytes = [0; 40];
    bytes[..32].copy_from_slice(&header.0);
    bytes[32..].copy_from_slice(&len_bytes.to_le_bytes());
    Sha256Digest::of(&bytes)
}

fn read_manifest(folder: &Path, path: &Path) -> Result<Vec<u8>, StoreError> {
    let found_bytes = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(_) => return Err(StoreError::NotAStore { path: folder.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::NotAStore { path: folder.to_owned() });
        }
        Err(error) => return Err(io_error("read", path)(error)),
    };
    if found_bytes > MANIFEST_BYTES_MAX {
        let limit_bytes = MANIFEST_BYTES_MAX;
        return Err(StoreError::ManifestTooLarge { path: path.to_owned(), found_bytes, limit_bytes });
    }
    read_at_most(path, MANIFEST_BYTES_MAX)
}

/// The bytes of the file at `path`, cut off behind `limit_bytes` should it have grown since it was looked at.
fn read_at_most(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io_error("open", path))?;
    file.take(limit_bytes).read_to_end(&mut bytes).map_err(io_error("read", path))?;
    Ok(bytes)
}

/// Refuses a file that is missing or has not exactly the length that the manifest says.
fn check_file(path: &Path, wanted_bytes: u64) -> Result<(), StoreError> {
    let found_bytes = match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(_) => return Err(StoreError::FileMissing { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(StoreError::FileMissing { path: path.to_owned() });
        }
        Err(error) => return Err(io_error("look up", path)(error)),
    };
    if found_bytes != wanted_bytes {
        return Err(StoreError::FileLength { path: path.to_owned(), wanted_bytes, found_bytes });
    }
    Ok(())
}

/// The store's copy of the GGUF's header, checked against its digest and parsed.
fn read_header(path: &Path, manifest: &Manifest) -> Result<Gguf, StoreError> {
    let bytes = read_at_most(path, manifest.header.len_bytes)?;
    let (found, wanted) = (Sha256Digest::of(&bytes), manifest.header.sha256);
    if found != wanted {
        return Err(StoreError::HeaderDigest { path: path.to_owned(), found, wanted });
    }
    let in_file = |source| GgufError::InFile { path: path.to_owned(), cause: Box::new(source) };
    let have_bytes = bytes.len() as u64;
    let gguf = Gguf::parse(&bytes, manifest.source.size_bytes).and_then(|parsed| parsed.complete(have_bytes));
    Ok(gguf.map_err(in_file)?)
}
