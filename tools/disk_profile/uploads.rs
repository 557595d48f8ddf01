//! Copies from host memory to a device's, as fast as they go, for as long as somebody wants them.
//!
//! - Owns: a device, two buffers, a thread while copies run. In: which device. Out: bytes a second.
//! - Invariants: copies go through the same kinds of memory as expert records do, the best that works: imported, mapped, copied.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use flint_rt::base::region::HostRegion;
use flint_rt::expert::HostPath;
use flint_rt::gpu::{Buffer, Commands, DeviceKind, Gpu, GpuError, GpuOptions, Placement};

/// Bytes of a copy: what the staging ring holds.
const COPY_BYTES: usize = 64 << 20;

/// Copies handed over and not yet done, so that the device never waits for the host.
const COPIES_AHEAD: usize = 2;

/// A device ready to copy.
pub(super) struct Uploader {
    gpu: Gpu,
    copies: Vec<Commands>,
    host_path: HostPath,
}

impl Uploader {
    /// Opens a device and records its copies.
    pub(super) fn open(device: Option<String>) -> Result<Self, GpuError> {
        let gpu = Gpu::open(&GpuOptions { device, ..GpuOptions::default() })?;
        let (source, host_path) = host_memory(&gpu)?;
        let target = gpu.buffer("copied to", COPY_BYTES as u64, Placement::Device)?;
        let record = |_| {
            let mut recorder = gpu.recorder()?;
            recorder.copy(&source, 0, &target, 0, COPY_BYTES as u64);
            recorder.barrier();
            recorder.finish()
        };
        let copies = (0..COPIES_AHEAD).map(record).collect::<Result<_, _>>()?;
        let uploader = Self { gpu, copies, host_path };
        // The first copy into a buffer may be the one that gives it its memory.
        uploader.copy_until(&AtomicBool::new(true))?;
        Ok(uploader)
    }

    /// The device's name.
    pub(super) fn title(&self) -> String {
        self.gpu.info().title()
    }

    /// Whether it is no device but this machine's own processors.
    pub(super) fn is_software(&self) -> bool {
        self.gpu.info().kind == DeviceKind::Software
    }

    /// How it reaches host memory.
    pub(super) fn host_path(&self) -> HostPath {
        self.host_path
    }

    /// Copies until `is_over`, once at least; bytes a second.
    pub(super) fn copy_until(&self, is_over: &AtomicBool) -> Result<f64, GpuError> {
        let mut tickets = vec![None; self.copies.len()];
        let mut copies = 0_u64;
        let begin = Instant::now();
        'copying: loop {
            for (copy, ticket) in self.copies.iter().zip(&mut tickets) {
                if let Some(ticket) = ticket.take() {
                    self.gpu.wait(ticket)?;
                    copies += 1;
                }
                *ticket = Some(self.gpu.submit(&[copy])?);
                if is_over.load(Ordering::Relaxed) {
                    break 'copying;
                }
            }
        }
        for ticket in tickets.into_iter().flatten() {
            self.gpu.wait(ticket)?;
            copies += 1;
        }
        Ok(copies as f64 * COPY_BYTES as f64 / begin.elapsed().as_secs_f64())
    }
}

/// Memory of the host that the device can read, filled, so that every page is there.
fn host_memory(gpu: &Gpu) -> Result<(Buffer, HostPath), GpuError> {
    let fill = |region: &HostRegion| {
        for mut buffer in region.split(region.len_bytes(), 1) {
            buffer.as_mut_slice().fill(0xa5);
        }
    };
    if let Ok(region) = HostRegion::new(COPY_BYTES) {
        fill(&region);
        if let Ok(buffer) = gpu.import(&region) {
            return Ok((buffer, HostPath::Import));
        }
    }
    if let Ok((region, buffer)) = gpu.mapped_region(COPY_BYTES as u64) {
        fill(&region);
        return Ok((buffer, HostPath::Mapped));
    }
    let buffer = gpu.buffer("copied from", COPY_BYTES as u64, Placement::Upload)?;
    buffer.write(0, &vec![0xa5_u8; COPY_BYTES]);
    Ok((buffer, HostPath::Copy))
}
