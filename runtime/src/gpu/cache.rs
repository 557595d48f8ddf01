//! The pipeline cache on disk.
//!
//! Owns one `VkPipelineCache` and the name of its file. In: a directory. Out: the cache for pipeline creation; a file
//! that the next start reads.
//!
//! The file is a frame of ours (magic, sha256 of what follows) around the driver's blob. Its name holds vendor, device,
//! driver version, the driver's cache id, and a hash of the shader set, so that nothing stale is ever looked at.
//!
//! Invariants: a file that is damaged, cut short or someone else's is ignored and replaced, never an error; a file
//! appears whole, by rename; no driver sees bytes whose sha256 does not fit.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ash::vk;
use sha2::{Digest as _, Sha256};

use super::device::Device;
use super::error::GpuError;
use super::info::DeviceInfo;
use super::instance::lock;

const MAGIC: &[u8; 8] = b"FLINTPC1";
const SUM_BYTES: usize = 32;
const FRAME_BYTES: usize = MAGIC.len() + SUM_BYTES;

/// The driver's own header: length, version, vendor, device, cache id.
const HEADER_BYTES: usize = 32;

/// Largest file that is believed. A real cache is some hundred KiB.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// What came of the cache file at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheState {
    /// No directory was given.
    Off,
    /// There was no file yet.
    Fresh,
    /// The file was read: bytes of the driver's blob.
    Loaded(usize),
    /// The file was not used, and why.
    Ignored(String),
}

pub(super) struct PipelineCache {
    device: Arc<Device>,
    /// Also the lock under which pipelines are made, one at a time.
    pub(super) raw: Mutex<vk::PipelineCache>,
    path: Option<PathBuf>,
    pub(super) state: CacheState,
    /// Length of the blob when it was read or written last.
    saved_bytes: Mutex<usize>,
}

impl PipelineCache {
    pub(super) fn open(device: Arc<Device>, directory: Option<&Path>) -> Result<Self, GpuError> {
        let path = directory.map(|directory| directory.join(file_name(&device.info, &shader_set_hash())));
        let (state, blob) = match &path {
            None => (CacheState::Off, Vec::new()),
            Some(path) => load(path, &device.info),
        };
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&blob);
        // SAFETY: the initial data is empty or a blob that this driver wrote: header and sha256 fit.
        let raw = unsafe { device.raw.create_pipeline_cache(&info, None) }
            .map_err(|result| device.failed("vkCreatePipelineCache", result))?;
        let saved_bytes = Mutex::new(blob.len());
        Ok(Self { device, raw: Mutex::new(raw), path, state, saved_bytes })
    }

    /// Writes the cache if it has grown. The path of the file, if there is one.
    ///
    /// # Errors
    /// [`GpuError::CacheNotWritten`]; the driver's, when it does not give the blob.
    pub(super) fn save(&self) -> Result<Option<&Path>, GpuError> {
        let Some(path) = &self.path else { return Ok(None) };
        let raw = lock(&self.raw);
        // SAFETY: the cache is used under its lock only.
        let blob = unsafe { self.device.raw.get_pipeline_cache_data(*raw) }
            .map_err(|result| self.device.failed("vkGetPipelineCacheData", result))?;
        let mut saved_bytes = lock(&self.saved_bytes);
        if blob.len() != *saved_bytes || !path.exists() {
            write_whole(path, &frame(&blob))
                .map_err(|source| GpuError::CacheNotWritten { path: path.clone(), source })?;
            *saved_bytes = blob.len();
        }
        Ok(Some(path))
    }
}

impl Drop for PipelineCache {
    fn drop(&mut self) {
        if !self.device.is_lost() {
            // A cache that cannot be written costs only time at the next start; who wants to know calls `save` first.
            let _ = self.save();
        }
        let raw = lock(&self.raw);
        // SAFETY: no pipeline is being made: whoever could do so holds this value.
        unsafe { self.device.raw.destroy_pipeline_cache(*raw, None) };
    }
}

fn shader_set_hash() -> String {
    let mut hash = Sha256::new();
    for kernel in flint_shaders::KERNELS {
        hash.update(kernel.name.as_bytes());
        hash.update(Sha256::digest(kernel.spirv));
    }
    hex(&hash.finalize()[..8])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn file_name(info: &DeviceInfo, shaders: &str) -> String {
    let (vendor, device, driver) = (info.vendor_id, info.device_id, info.driver_version);
    format!("pipelines-{vendor:04x}-{device:04x}-{driver:08x}-{}-{shaders}.bin", hex(&info.cache_uuid))
}

fn load(path: &Path, info: &DeviceInfo) -> (CacheState, Vec<u8>) {
    let bytes = match read_bounded(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (CacheState::Fresh, Vec::new()),
        Err(error) => return (CacheState::Ignored(error.to_string()), Vec::new()),
    };
    match unframe(&bytes, info) {
        Ok(blob) => (CacheState::Loaded(blob.len()), blob.to_vec()),
        Err(reason) => (CacheState::Ignored(reason.to_owned()), Vec::new()),
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe that lies there would otherwise be waited for, without end.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn frame(blob: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FRAME_BYTES + blob.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&Sha256::digest(blob));
    bytes.extend_from_slice(blob);
    bytes
}

/// The driver's blob in a file of ours, if all fits.
fn unframe<'a>(bytes: &'a [u8], info: &DeviceInfo) -> Result<&'a [u8], &'static str> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("it is not a pipeline cache of this program")?;
    let (sum, blob) = rest.split_at_checked(SUM_BYTES).ok_or("it is cut short")?;
    if sum != Sha256::digest(blob).as_slice() {
        return Err("its sha256 does not fit: damaged or cut short");
    }
    let header = blob.get(..HEADER_BYTES).ok_or("it is cut short")?;
    let word = |index: usize| {
        let bytes = &header[4 * index..4 * index + 4];
        u32::from_le_bytes(bytes.try_into().expect("invariant: four bytes"))
    };
    let is_ours = word(0) >= 32 && word(1) == 1 && word(2) == info.vendor_id && word(3) == info.device_id;
    if !is_ours || header[16..] != info.cache_uuid {
        return Err("it belongs to another device or driver");
    }
    Ok(blob)
}

/// Writes a file that appears whole or not at all.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or_else(|| io::Error::other("the cache file has no directory"))?;
    fs::create_dir_all(directory)?;
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let result = written.and_then(|()| fs::rename(&temporary, path));
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::info::DeviceKind;
    use crate::gpu::info::tests::device;

    fn blob(info: &DeviceInfo) -> Vec<u8> {
        let mut blob = Vec::new();
        for word in [32, 1, info.vendor_id, info.device_id] {
            blob.extend_from_slice(&u32::to_le_bytes(word));
        }
        blob.extend_from_slice(&info.cache_uuid);
        blob.extend_from_slice(b"what the driver keeps");
        blob
    }

    #[test]
    fn only_a_whole_file_of_this_device_is_used() {
        let info = device(0, "a GPU", DeviceKind::Discrete, &[]);
        let blob = blob(&info);
        let file = frame(&blob);
        assert_eq!(unframe(&file, &info), Ok(blob.as_slice()));
        for len in 0..file.len() {
            assert!(unframe(&file[..len], &info).is_err(), "cut to {len} B");
        }
        for index in 0..file.len() {
            let mut damaged = file.clone();
            damaged[index] ^= 0x10;
            assert!(unframe(&damaged, &info).is_err(), "byte {index} changed");
        }
        let mut other = info.clone();
        other.cache_uuid[15] = 1;
        assert!(unframe(&file, &other).is_err());
        other = DeviceInfo { device_id: info.device_id + 1, ..info };
        assert!(unframe(&file, &other).is_err());
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "a test that could not run says so")]
    fn a_pipe_in_its_place_is_passed_over_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        if !made.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED a_pipe_in_its_place_is_passed_over_and_not_waited_for, no mkfifo");
            return;
        }
        let info = device(0, "a GPU", DeviceKind::Discrete, &[]);
        let (state, blob) = load(&path, &info);
        assert!(matches!(&state, CacheState::Ignored(reason) if reason.contains("regular")), "{state:?}");
        assert!(blob.is_empty(), "nothing was read");
    }
}
