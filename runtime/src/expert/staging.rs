//! Host memory between disk and device: a ring of buffers, each free, being read into, or being copied from.
//!
//! - Owns: one region of host memory, cut into equal buffers, and the device buffer through which the device sees it.
//! - In: a request for a free buffer; later the same buffer, full, with the ticket of the copy that empties it.
//! - Out: exclusive [`HostBuffer`]s, and where the device finds their bytes.
//! - Invariants: a buffer that the device may still read is not handed out: its ticket has passed. A buffer is in one
//!   place at a time, because it is owned: here, in the read queue, or on the way between them.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::base::region::{HostBuffer, HostRegion};
use crate::expert::ExpertError;
use crate::gpu::{Buffer, Gpu, Placement, Ticket};

/// How the device reaches what the drive wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPath {
    /// Ordinary memory, imported into Vulkan: drive and device use the same pages.
    Import,
    /// Memory that the driver allocated and mapped: the same pages, where the kernel can pin them.
    Mapped,
    /// Ordinary memory, copied by the CPU into mapped memory: works everywhere.
    Copy,
}

impl HostPath {
    /// All of them, the best first.
    pub const ALL: [Self; 3] = [Self::Import, Self::Mapped, Self::Copy];
}

impl fmt::Display for HostPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Import => "import",
            Self::Mapped => "mapped",
            Self::Copy => "copy",
        })
    }
}

impl FromStr for HostPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|path| path.to_string() == text)
            .ok_or_else(|| format!("`{text}` is no host path: import, mapped or copy"))
    }
}

/// The ring.
pub struct Staging {
    path: HostPath,
    region: HostRegion,
    source: Buffer,
    free: Vec<HostBuffer>,
    /// Buffers that the device may still read, oldest ticket first.
    busy: VecDeque<(Ticket, HostBuffer)>,
}

impl Staging {
    /// `count` buffers of `buffer_bytes` each, reached by `path`.
    ///
    /// # Errors
    /// When memory or the driver refuses.
    pub fn new(gpu: &Gpu, path: HostPath, buffer_bytes: usize, count: usize) -> Result<Self, ExpertError> {
        let len_bytes = HostRegion::bytes_for(buffer_bytes, count);
        let (region, source) = match path {
            HostPath::Import => {
                let region = HostRegion::new(len_bytes).map_err(crate::disk::DiskError::from)?;
                let source = gpu.import(&region)?;
                (region, source)
            }
            HostPath::Mapped => gpu.mapped_region(len_bytes as u64)?,
            HostPath::Copy => {
                let region = HostRegion::new(len_bytes).map_err(crate::disk::DiskError::from)?;
                let source = gpu.buffer("staging", len_bytes as u64, Placement::Upload)?;
                (region, source)
            }
        };
        let free = region.split(buffer_bytes, count);
        Ok(Self { path, region, source, free, busy: VecDeque::with_capacity(count) })
    }

    /// The region, for the read queue to register.
    pub fn region(&self) -> &HostRegion {
        &self.region
    }

    /// How the device reaches it.
    pub fn path(&self) -> HostPath {
        self.path
    }

    /// A free buffer, if there is one now.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn take(&mut self, gpu: &Gpu) -> Result<Option<HostBuffer>, ExpertError> {
        while let Some(&(ticket, _)) = self.busy.front() {
            if !gpu.is_done(ticket)? {
                break;
            }
            let (_, buffer) = self.busy.pop_front().expect("invariant: front exists");
            self.free.push(buffer);
        }
        Ok(self.free.pop())
    }

    /// All buffers, for good; waits until the device reads none of them.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn take_all(&mut self, gpu: &Gpu) -> Result<Vec<HostBuffer>, ExpertError> {
        for (ticket, buffer) in self.busy.drain(..) {
            gpu.wait(ticket)?;
            self.free.push(buffer);
        }
        Ok(std::mem::take(&mut self.free))
    }

    /// The ticket with which the next busy buffer becomes free.
    pub fn next_free(&self) -> Option<Ticket> {
        self.busy.front().map(|&(ticket, _)| ticket)
    }

    /// Makes the bytes `range` of a full buffer visible to the device: the buffer and offset from which it copies them.
    pub fn land(&self, buffer: &HostBuffer, range: &Range<usize>) -> (&Buffer, u64) {
        let offset_bytes = (buffer.offset_bytes() + range.start) as u64;
        if self.path == HostPath::Copy {
            self.source.write(offset_bytes, &buffer.as_slice()[range.clone()]);
        }
        (&self.source, offset_bytes)
    }

    /// Takes back a buffer whose copy ends with `ticket`.
    pub fn release(&mut self, ticket: Ticket, buffer: HostBuffer) {
        self.busy.push_back((ticket, buffer));
    }

    /// Takes back a buffer that nobody reads.
    pub fn give_back(&mut self, buffer: HostBuffer) {
        self.free.push(buffer);
    }
}
