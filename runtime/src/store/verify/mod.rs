//! Whether a store still is what it was made as, and the way back where it is not.
//!
//! - Owns: nothing that lasts. In: a store's folder; to mend it, the model that it was made of. Out: a list of what is
//!   damaged, by name, file and byte.
//! - Invariants: looking never writes. Mending writes only what is damaged, only bytes that have the checksum of the
//!   manifest, and only while nobody else has the store open. The manifest, which the rest is measured by, has a digest of
//!   itself; a store whose manifest is damaged is made anew.

mod damage;
mod input;
mod map;
mod pass;
mod repair;
mod sum;
mod whole;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::base::region::HostRegion;
use crate::store::digest::Sha256Digest;
use crate::store::error::{StoreError, io_error};
use crate::store::lock::ReaderLock;
use crate::store::manifest::{MANIFEST_NAME, Manifest};
use crate::store::open::{Source, read_at_most, read_manifest};
use crate::store::verify::input::Input;
use crate::store::verify::map::StoreMap;

pub use damage::{Cause, Damage, DamagedPart};
pub use repair::{RepairReport, repair_store};
pub use sum::TensorSum;
pub use whole::sha256_of_file;

/// How to look through a store.
#[derive(Debug, Clone, Copy)]
pub struct VerifyOptions {
    /// Threads; as many as there are cores if `None`.
    pub threads: Option<usize>,
    /// Whether the files' SHA-256 are computed beside the checksums, which cover every byte already.
    pub with_sha256: bool,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { threads: None, with_sha256: true }
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Bytes looked at.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Pieces found damaged so far.
    pub damaged: usize,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct VerifyReport {
    /// What is damaged; nothing is the good news.
    pub damage: Vec<Damage>,
    /// Expert records that the store should have.
    pub record_count: u64,
    /// Dense tensors that the store should have.
    pub tensor_count: u64,
    /// Bytes of its files, without the manifest.
    pub total_bytes: u64,
    /// Whether the SHA-256 of its files were computed, too.
    pub with_sha256: bool,
    /// Files that were read through the page cache, which may hold other bytes than the drive.
    pub buffered: Vec<PathBuf>,
    /// How long it took.
    pub elapsed: Duration,
}

impl VerifyReport {
    /// Whether nothing is damaged.
    pub fn is_whole(&self) -> bool {
        self.damage.is_empty()
    }
}

/// Recomputes everything that the manifest of the store in `folder` says of its files, with all cores.
///
/// # Errors
/// There is no store, or its manifest is damaged ([`StoreError::is_data_damage`]); [`StoreError::BeingChanged`] while it is
/// being mended; [`StoreError::Stopped`] when `progress` breaks off; [`StoreError::Io`]. What is damaged otherwise is in the
/// report.
pub fn verify_store(
    folder: &Path,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
) -> Result<VerifyReport, StoreError> {
    let map = read_map(folder)?;
    let _lock = ReaderLock::share(folder)?;
    verify_map(&map, options, progress)
}

/// What the manifest of the store in `folder` says.
fn read_map(folder: &Path) -> Result<StoreMap, StoreError> {
    let path = folder.join(MANIFEST_NAME);
    let manifest = Manifest::parse(&read_manifest(folder, &path)?, &path)?;
    StoreMap::new(folder, &manifest)
}

fn verify_map(
    map: &StoreMap,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
) -> Result<VerifyReport, StoreError> {
    let started = Instant::now();
    let mut damage: Vec<Damage> = check_header(map)?.into_iter().collect();
    let found = pass::run(map, options, progress)?;
    damage.extend(found.damage);
    let count = |pieces: &[map::MapFile]| pieces.iter().map(|file| file.pieces.len() as u64).sum();
    Ok(VerifyReport {
        damage,
        tensor_count: count(&map.files[..1]),
        record_count: count(&map.files[1..]),
        total_bytes: map.total_bytes(),
        with_sha256: options.with_sha256,
        buffered: found.buffered,
        elapsed: started.elapsed(),
    })
}

fn check_header(map: &StoreMap) -> Result<Option<Damage>, StoreError> {
    let cause = match read_at_most(&map.header_path, map.header_bytes.saturating_add(1)) {
        Ok(bytes) if bytes.len() as u64 != map.header_bytes => {
            Some(Cause::Length { found_bytes: bytes.len() as u64 })
        }
        Ok(bytes) => {
            let found = Sha256Digest::of(&bytes);
            (found != map.header_sha256).then_some(Cause::Digest { found, wanted: map.header_sha256 })
        }
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Some(Cause::Missing)
        }
        Err(StoreError::Io { source, .. }) => Some(Cause::Unreadable { error: source.to_string() }),
        Err(error) => return Err(error),
    };
    Ok(cause.map(|cause| Damage {
        part: DamagedPart::Header,
        path: map.header_path.clone(),
        offset_bytes: 0,
        len_bytes: map.header_bytes,
        cause,
    }))
}

/// Whether the bytes of the dense tensor `name` have their checksum; also where there is none to compare with.
///
/// # Errors
/// [`StoreError::Io`] when they cannot be read.
///
/// # Panics
/// When the model has no such dense tensor.
pub fn is_tensor_whole(source: &Source, name: &str) -> Result<bool, StoreError> {
    /// Bytes of a read: large enough for any drive's full rate.
    const CHUNK_BYTES: usize = 8 << 20;
    let span = source.tensor_span(name).unwrap_or_else(|| panic!("the model has no dense tensor {name}"));
    let Some(wanted) = source.tensor_checksum(name) else { return Ok(true) };
    let path = &source.files()[usize::from(span.file.0)];
    let input = Input::open(path).map_err(io_error("open", path))?;
    let region = HostRegion::new(CHUNK_BYTES)?;
    let mut buffer = region.split(CHUNK_BYTES, 1).pop().expect("invariant: one was asked for");
    let mut sum = TensorSum::default();
    let mut at = 0;
    while at < span.len_bytes {
        let len = usize::try_from(span.len_bytes - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        sum.update(input.read(span.offset_bytes + at, len, &mut buffer).map_err(io_error("read", path))?);
        at += len as u64;
    }
    Ok(sum.finish(source.identity(), name) == wanted)
}
