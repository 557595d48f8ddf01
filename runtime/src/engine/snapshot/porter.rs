//! Copies slices of a cache between device and host.
//!
//! - Owns: a staging buffer each way, made when it is first needed. In: a [`Walk`] over rows. Out: bytes in host memory, or rows on
//!   the device.
//! - Invariants: a slice has been carried out when the call returns, so the buffers are free for the next.

use crate::engine::snapshot::walk::{Run, Walk};
use crate::gpu::{Buffer, Gpu, GpuError, Placement};
use crate::model::kv_cache::KvCache;

/// Bytes of a slice: 1 ms of a bus at 8 GB/s, so that nobody's token waits long for it, and enough that a submission's own time
/// does not count.
const SLICE_BYTES: u32 = 8 << 20;

/// The staging buffers.
pub(in crate::engine) struct Porter {
    upload: Option<Buffer>,
    readback: Option<Buffer>,
    slice_bytes: u32,
}

impl Default for Porter {
    fn default() -> Self {
        Self { upload: None, readback: None, slice_bytes: SLICE_BYTES }
    }
}

/// The one that is there, or a new one of `slice_bytes`.
fn staging<'b>(
    held: &'b mut Option<Buffer>,
    gpu: &Gpu,
    slice_bytes: u32,
    placement: Placement,
) -> Result<&'b Buffer, GpuError> {
    let made = match held.take() {
        Some(buffer) => buffer,
        None => gpu.buffer("snapshot staging", slice_bytes.into(), placement)?,
    };
    Ok(held.insert(made))
}

/// The next runs of a walk, of `rows` together at most, with where each lies in the staging buffer.
fn slice(walk: &mut Walk, cache: &KvCache, rows: u32, row_bytes: u32) -> Vec<(Run, u64)> {
    let runs = walk.next_slice(rows, |layer| cache.layers[layer].rows);
    let mut offset = 0;
    let placed = |run: Run| {
        let at = offset;
        offset += bytes_of(run.count, row_bytes);
        (run, at)
    };
    runs.into_iter().map(placed).collect()
}

fn bytes_of(rows: u32, row_bytes: u32) -> u64 {
    u64::from(rows) * u64::from(row_bytes)
}

fn rows_of(cache: &KvCache, run: Run) -> &Buffer {
    let layer = &cache.layers[run.layer];
    if run.is_values { &layer.values } else { &layer.keys }
}

impl Porter {
    /// Copies so many bytes at a time from now on, or a row where that is more.
    pub(super) fn set_slice(&mut self, slice_bytes: u32) {
        *self = Self { slice_bytes, ..Self::default() };
    }

    /// Bytes of a staging buffer, and the rows that it holds.
    fn slice_of(&self, row_bytes: u32) -> (u32, u32) {
        let bytes = self.slice_bytes.max(row_bytes);
        (bytes, bytes / row_bytes)
    }

    /// Appends the next slice of `walk` to `planes`. Runs of a plane come in the order of their rows.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn take_out(
        &mut self,
        gpu: &Gpu,
        cache: &KvCache,
        row_bytes: u32,
        walk: &mut Walk,
        planes: &mut [Vec<u8>],
    ) -> Result<(), GpuError> {
        let (slice_bytes, rows) = self.slice_of(row_bytes);
        let readback = staging(&mut self.readback, gpu, slice_bytes, Placement::Readback)?;
        let runs = slice(walk, cache, rows, row_bytes);
        let mut recorder = gpu.recorder()?;
        for &(run, offset) in &runs {
            let source_offset = bytes_of(run.row, row_bytes);
            recorder.copy(
                rows_of(cache, run),
                source_offset,
                readback,
                offset,
                bytes_of(run.count, row_bytes),
            );
        }
        let commands = recorder.finish()?;
        gpu.wait(gpu.submit(&[&commands])?)?;
        for (run, offset) in runs {
            let plane = &mut planes[run.plane];
            let (begin, len) = (plane.len(), len_of(run.count, row_bytes));
            assert_eq!(begin, len_of(run.plane_row, row_bytes), "a plane's rows come in their order");
            plane.resize(begin + len, 0);
            readback.read(offset, &mut plane[begin..]);
        }
        Ok(())
    }

    /// Writes the next slice of `walk` from what `plane` gives.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn bring_in<'p>(
        &mut self,
        gpu: &Gpu,
        cache: &KvCache,
        row_bytes: u32,
        walk: &mut Walk,
        plane: impl Fn(usize) -> &'p [u8],
    ) -> Result<(), GpuError> {
        let (slice_bytes, rows) = self.slice_of(row_bytes);
        let upload = staging(&mut self.upload, gpu, slice_bytes, Placement::Upload)?;
        let runs = slice(walk, cache, rows, row_bytes);
        let mut recorder = gpu.recorder()?;
        for &(run, offset) in &runs {
            let begin = len_of(run.plane_row, row_bytes);
            let bytes = &plane(run.plane)[begin..begin + len_of(run.count, row_bytes)];
            upload.write(offset, bytes);
            let target_offset = bytes_of(run.row, row_bytes);
            recorder.copy(upload, offset, rows_of(cache, run), target_offset, bytes.len() as u64);
        }
        let commands = recorder.finish()?;
        gpu.wait(gpu.submit(&[&commands])?)
    }
}

fn len_of(rows: u32, row_bytes: u32) -> usize {
    usize::try_from(bytes_of(rows, row_bytes))
        .expect("invariant: what lies in host memory has a usize of bytes")
}
