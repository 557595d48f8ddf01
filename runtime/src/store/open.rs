//! Opens a store, or a GGUF in place, behind one face.
//!
//! - Owns: a [`Source`]'s tables. In: a path. Out: spans.
//! - Invariants: every span of an opened source lies inside a file whose length was looked up when it was opened.
//!   Nothing but manifest and header is read.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::base::ids::{ExpertKey, FileIndex, LayerIndex, Span};
use crate::base::limits::MANIFEST_BYTES_MAX;
use crate::gguf::{Gguf, GgufError};
use crate::store::digest::Sha256Digest;
use crate::store::error::{StoreError, io_error};
use crate::store::layout::{DENSE_FILE, FIRST_EXPERTS_FILE, Layout};
use crate::store::lock::ReaderLock;
use crate::store::manifest::{MANIFEST_NAME, Manifest, store_id};
use crate::store::parts::{self, Joined, Part};
use crate::store::placement::Placement;
use crate::store::publish::is_working_folder;
use crate::store::record::{ExpertPiece, ExpertPieces, RecordLayout};
use crate::store::stripe;

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
    layout: Layout,
    identity: Sha256Digest,
    origin: Vec<SourcePart>,
    /// When each file of a GGUF in place was changed last, in seconds and nanoseconds of the epoch.
    changed: Vec<(i64, i64)>,
    /// The files of a GGUF in place; none of a store.
    parts: Vec<Part>,
    manifest: Option<Manifest>,
    /// Of a store: the checksum of each dense tensor.
    tensor_checksums: HashMap<String, u128>,
    /// Of a store: keeps writers out.
    _lock: Option<ReaderLock>,
}

/// A file of the GGUF that a source is, or was made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePart {
    /// Its name, without a folder.
    pub file_name: String,
    /// Its length.
    pub len_bytes: u64,
    /// Its SHA-256, where it was taken: of a store.
    pub sha256: Option<Sha256Digest>,
}

impl Source {
    /// Opens the store (a folder) or the GGUF (a file, or any part of a split one, whose parts lie side by side) at
    /// `path`. While a store is open, nobody can change or remove it who asks for a [`crate::store::WriterLock`].
    ///
    /// # Errors
    /// There is neither; the store is unfinished, damaged, being changed or of another version, or a drive with a part
    /// of it is missing; the GGUF's header is refused; the model is no Flint with separate Q4_1 expert tensors.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let metadata = fs::metadata(path).map_err(io_error("open the model", path))?;
        if metadata.is_dir() { Self::open_store(path) } else { Self::open_gguf(path) }
    }

    fn open_gguf(path: &Path) -> Result<Self, StoreError> {
        let files = parts::paths(path)?;
        let Joined { gguf, parts } = parts::read(&files)?;
        let layout = Layout::from_gguf(&gguf, Placement::single)?;
        let dense = layout.dense.iter().map(|tensor| {
            let span = parts::locate(&parts, tensor.gguf_offset_bytes, tensor.len_bytes);
            (tensor.name.clone(), span)
        });
        let dense = dense.collect();
        let origin: Vec<_> = parts
            .iter()
            .zip(&files)
            .map(|(part, path)| SourcePart {
                file_name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                len_bytes: part.len_bytes,
                sha256: None,
            })
            .collect();
        let changed = |path: &PathBuf| {
            let metadata = fs::metadata(path).map_err(io_error("open the model", path))?;
            Ok((metadata.mtime(), metadata.mtime_nsec()))
        };
        let changed = files.iter().map(changed).collect::<Result<_, StoreError>>()?;
        let lens = parts.iter().map(|part| (part.header_bytes, part.len_bytes));
        Ok(Self {
            kind: SourceKind::Gguf,
            identity: store_id(lens, gguf.header_bytes()),
            files,
            dense,
            layout,
            origin,
            changed,
            parts,
            manifest: None,
            tensor_checksums: HashMap::new(),
            _lock: None,
            gguf,
        })
    }

    fn open_store(folder: &Path) -> Result<Self, StoreError> {
        // By its real name: a link to it, or `.` within it, is no other folder.
        let real = fs::canonicalize(folder).map_err(io_error("look up", folder))?;
        if is_working_folder(&real) {
            return Err(StoreError::Unfinished { path: folder.to_owned() });
        }
        let manifest_path = folder.join(MANIFEST_NAME);
        let manifest = Manifest::parse(&read_manifest(folder, &manifest_path)?, &manifest_path)?;
        let lock = ReaderLock::share(folder)?;

        let header_path = folder.join(&manifest.header.file);
        check_file(&header_path, manifest.header.len_bytes)?;
        let gguf = read_header(&header_path, &manifest)?;
        let misplaced = || StoreError::ManifestField {
            path: manifest_path.clone(),
            field: "experts.records".to_owned(),
            found: "a record in a file beyond the list".to_owned(),
            wanted: "files of experts.files".to_owned(),
        };
        let placement = manifest.placement().ok_or_else(misplaced)?;
        let layout = Layout::from_gguf(&gguf, |_| placement)?;
        if layout.placement.places.len() as u64 == layout.experts.record_count() {
            manifest.check(&gguf, &layout, &manifest_path)?;
        } else {
            return Err(StoreError::ManifestField {
                path: manifest_path,
                field: "experts.records".to_owned(),
                found: format!("a list of {}", layout.placement.places.len()),
                wanted: format!("a list of {}", layout.experts.record_count()),
            });
        }

        let mut files = vec![folder.join(&manifest.dense.file)];
        check_file(&files[DENSE_FILE.0 as usize], manifest.dense.len_bytes)?;
        for (index, experts) in manifest.experts.files.iter().enumerate() {
            let stripe = match &experts.folder {
                None => folder,
                Some(stripe) => stripe::check(Path::new(stripe), folder, manifest.store_id, index)?,
            };
            let path = stripe.join(&experts.name);
            check_file(&path, experts.len_bytes)?;
            files.push(path);
        }
        let dense = layout.dense.iter().map(|tensor| {
            let (offset_bytes, len_bytes) = (tensor.store_offset_bytes, tensor.len_bytes);
            (tensor.name.clone(), Span { file: DENSE_FILE, offset_bytes, len_bytes })
        });
        let dense = dense.collect();
        let names = layout.dense.iter().map(|tensor| tensor.name.clone());
        let tensor_checksums = names.zip(manifest.dense.tensors.iter().map(|tensor| tensor.xxh3.0)).collect();
        let origin = manifest.source.iter().map(|part| SourcePart {
            file_name: part.file_name.clone(),
            len_bytes: part.size_bytes,
            sha256: Some(part.sha256),
        });
        Ok(Self {
            kind: SourceKind::Store,
            files,
            dense,
            layout,
            identity: manifest.store_id,
            origin: origin.collect(),
            changed: Vec::new(),
            parts: Vec::new(),
            tensor_checksums,
            manifest: Some(manifest),
            _lock: Some(lock),
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
        let record = self.layout.experts.record;
        match self.kind {
            SourceKind::Store => {
                let index = self.layout.experts.index(key);
                let index = index.unwrap_or_else(|| panic!("the model has no {key}"));
                ExpertPieces::of_record(self.layout.record_span(index), &record)
            }
            SourceKind::Gguf => {
                let offsets = self.layout.experts.gguf_offsets_bytes(key);
                let [gate, up, down] = offsets.unwrap_or_else(|| panic!("the model has no {key}"));
                let piece = |offset_bytes, len_bytes, record_offset_bytes| ExpertPiece {
                    span: parts::locate(&self.parts, offset_bytes, len_bytes),
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

    /// The checksum of an expert's record, as a store's manifest says it; see [`crate::store::record_checksum`].
    /// `None` of a GGUF in place, and of an expert that the model has not.
    pub fn record_checksum(&self, key: ExpertKey) -> Option<u128> {
        let records = &self.manifest.as_ref()?.experts.records;
        let index = usize::try_from(self.layout.experts.index(key)?).ok()?;
        Some(records[index].checksum)
    }

    /// The checksum of a dense tensor, as a store's manifest says it; see [`crate::store::tensor_checksum`]. `None` of
    /// a GGUF in place, and of a tensor that is not dense.
    pub fn tensor_checksum(&self, name: &str) -> Option<u128> {
        self.tensor_checksums.get(name).copied()
    }

    /// The digest of one of [`Self::files`], as a store's manifest says it: [`crate::store::tree_digest`] over the
    /// SHA-256 of each of [`Self::digested_pieces`]. `None` of a GGUF in place.
    pub fn file_digest(&self, file: FileIndex) -> Option<Sha256Digest> {
        let manifest = self.manifest.as_ref()?;
        match usize::from(file.0).checked_sub(usize::from(FIRST_EXPERTS_FILE)) {
            None => Some(manifest.dense.sha256_tree),
            Some(index) => manifest.experts.files.get(index).map(|file| file.sha256_tree),
        }
    }

    /// The pieces of one of a store's files whose SHA-256 are the leaves of its digest, in the order of the file: each
    /// dense tensor, each matrix of each expert. Empty of a GGUF in place.
    pub fn digested_pieces(&self, file: FileIndex) -> Vec<Span> {
        if self.kind == SourceKind::Gguf {
            return Vec::new();
        }
        let moves = self.layout.moves();
        let mut spans: Vec<_> =
            moves.into_iter().map(|step| step.target).filter(|span| span.file == file).collect();
        spans.sort_unstable_by_key(|span| span.offset_bytes);
        spans
    }

    /// Names and lengths of the GGUF's files, and of a store their SHA-256: one, or all parts of a split GGUF.
    pub fn origin(&self) -> &[SourcePart] {
        &self.origin
    }

    /// The sizes within an expert record.
    pub fn record(&self) -> RecordLayout {
        self.layout.experts.record
    }

    /// Experts of each layer that has any.
    pub fn expert_count(&self) -> u32 {
        self.layout.experts.expert_count
    }

    /// The layers that have experts, ascending.
    pub fn expert_layers(&self) -> &[LayerIndex] {
        &self.layout.experts.layers
    }

    /// Every expert of the model, by layer, then by number: the order of records in a store.
    pub fn expert_keys(&self) -> impl Iterator<Item = ExpertKey> + '_ {
        self.layout.experts.keys()
    }

    /// Names the model by its headers' bytes and the lengths of the GGUF's files: equal for a GGUF and every store made
    /// of it, wherever they lie. It is the store's id, which its checksums cover.
    pub fn identity(&self) -> Sha256Digest {
        self.identity
    }

    /// Names the model with its weights, which [`Self::identity`] does not cover: by the digests of the GGUF's files as a store knows
    /// them, and of a GGUF in place, whose bytes nobody has read, by when its files were changed. So what was computed with other
    /// weights behind an equal header is told apart; a copy of a GGUF has another name, too.
    pub fn weights_identity(&self) -> Sha256Digest {
        let mut bytes = self.identity.0.to_vec();
        for part in &self.origin {
            bytes.extend(part.sha256.map_or([0; 32], |digest| digest.0));
        }
        for (seconds, nanoseconds) in &self.changed {
            bytes.extend(seconds.to_le_bytes());
            bytes.extend(nanoseconds.to_le_bytes());
        }
        Sha256Digest::of(&bytes)
    }

    /// The GGUF's file name, without its folder; of a store, the name that the GGUF had when it was ingested. Of a
    /// split GGUF its first part's.
    pub fn file_name(&self) -> &str {
        &self.origin[0].file_name
    }

    /// SHA-256 of the whole GGUF, as a store's manifest says it; not known of a GGUF in place, nor of a split one:
    /// [`Self::origin`] has those of the parts.
    pub fn source_sha256(&self) -> Option<Sha256Digest> {
        match self.origin.as_slice() {
            [whole] => whole.sha256,
            _ => None,
        }
    }
}

pub(super) fn read_manifest(folder: &Path, path: &Path) -> Result<Vec<u8>, StoreError> {
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
pub(super) fn read_at_most(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
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

/// The store's copy of the GGUF's headers, checked against its digest and parsed.
fn read_header(path: &Path, manifest: &Manifest) -> Result<Gguf, StoreError> {
    let bytes = read_at_most(path, manifest.header.len_bytes)?;
    let (found, wanted) = (Sha256Digest::of(&bytes), manifest.header.sha256);
    if found != wanted {
        return Err(StoreError::HeaderDigest { path: path.to_owned(), found, wanted });
    }
    let in_file = |source| GgufError::InFile { path: path.to_owned(), cause: Box::new(source) };
    let mut rest = bytes.as_slice();
    let mut headers = Vec::new();
    for part in &manifest.source {
        let len = usize::try_from(part.header_bytes).unwrap_or(usize::MAX).min(rest.len());
        let (header, behind) = rest.split_at(len);
        let parsed = Gguf::parse(header, part.size_bytes).and_then(|parsed| parsed.complete(len as u64));
        let gguf = parsed.map_err(in_file)?;
        let (found, wanted) = (part.header_bytes, gguf.header_bytes().len() as u64);
        if found != wanted {
            return Err(StoreError::ManifestField {
                path: path.with_file_name(MANIFEST_NAME),
                field: "source.header_bytes".to_owned(),
                found: found.to_string(),
                wanted: wanted.to_string(),
            });
        }
        headers.push((part.file_name.clone(), gguf));
        rest = behind;
    }
    Ok(parts::join(headers)?.gguf)
}
