//! Host memory between disk and device: buffers, each free, being read into, or being copied from.
//!
//! - Owns: parts, each a region of host memory that is cut into equal buffers, and the device buffer through which the device
//!   sees it.
//! - In: a request for a free buffer; later the same buffer, full, with the ticket of the copy that empties it.
//! - Out: exclusive [`HostBuffer`]s, and where the device finds their bytes.
//! - Invariants: a buffer that the device may still read is not handed out: its ticket has passed. A buffer is in one
//!   place at a time, because it is owned: here, in the read queue, or on the way between them.
//!
//! Memory grows and shrinks by whole parts. `madvise` on single buffers would be wrong on every path: of imported memory, and of
//! memory that is registered with a ring, the kernel holds the pages, so that nothing would become free, and device and drive
//! would go on with the old pages while the process sees new ones; mapped memory is the driver's. A part that is given back is
//! unregistered, unimported and unmapped, by the drop of its last owner.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::base::limits::STAGING_PART_BYTES;
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

/// Memory that comes and goes as a whole.
pub(super) struct Part {
    region: HostRegion,
    source: Buffer,
    buffer_count: usize,
}

impl Part {
    fn new(gpu: &Gpu, path: HostPath, buffer_bytes: usize, buffer_count: usize) -> Result<Self, ExpertError> {
        let len_bytes = HostRegion::bytes_for(buffer_bytes, buffer_count);
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
        Ok(Self { region, source, buffer_count })
    }
}

impl Part {
    /// Its buffers.
    pub(super) fn buffer_count(&self) -> usize {
        self.buffer_count
    }
}

/// What makes parts for one [`Staging`], on any thread.
pub(super) struct PartMaker {
    gpu: Gpu,
    path: HostPath,
    buffer_bytes: usize,
}

impl PartMaker {
    /// A part of at most `count_max` buffers.
    ///
    /// # Errors
    /// When memory or the driver refuses.
    pub(super) fn make(&self, count_max: usize) -> Result<Part, ExpertError> {
        Part::new(&self.gpu, self.path, self.buffer_bytes, count_max.min(self.part_len()))
    }

    /// Buffers of the largest part.
    pub(super) fn part_len(&self) -> usize {
        buffers_a_part(self.buffer_bytes)
    }
}

/// Pieces of a record at most, which are to lie in one part: they come and go together.
const BUFFERS_TOGETHER: usize = 3;

/// Buffers of a part.
fn buffers_a_part(buffer_bytes: usize) -> usize {
    let fitting = HostRegion::buffers_in(buffer_bytes, STAGING_PART_BYTES);
    (fitting - fitting % BUFFERS_TOGETHER).max(BUFFERS_TOGETHER)
}

/// The buffers.
pub struct Staging {
    path: HostPath,
    buffer_bytes: usize,
    /// Ascending by the ids of their regions.
    parts: Vec<Part>,
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
        let mut staging =
            Self { path, buffer_bytes, parts: Vec::new(), free: Vec::new(), busy: VecDeque::new() };
        while staging.free.len() < count {
            let left = count - staging.free.len();
            let (_, mut buffers) = staging.grow(gpu, left)?;
            staging.free.append(&mut buffers);
        }
        Ok(staging)
    }

    /// Takes one part more: at most `count_max` buffers, which are the caller's, and the region that they lie in, for the
    /// read queue ([`crate::disk::ReadQueue::add_region`]).
    ///
    /// # Errors
    /// When memory or the driver refuses; what was there before stays as it is.
    pub fn grow(
        &mut self,
        gpu: &Gpu,
        count_max: usize,
    ) -> Result<(HostRegion, Vec<HostBuffer>), ExpertError> {
        Ok(self.adopt(self.maker(gpu).make(count_max)?))
    }

    /// Makes parts that [`Self::adopt`] takes.
    pub(super) fn maker(&self, gpu: &Gpu) -> PartMaker {
        PartMaker { gpu: gpu.clone(), path: self.path, buffer_bytes: self.buffer_bytes }
    }

    /// As [`Self::grow`], with a part that is made already.
    pub(super) fn adopt(&mut self, part: Part) -> (HostRegion, Vec<HostBuffer>) {
        let region = part.region.clone();
        let buffers = region.split(self.buffer_bytes, part.buffer_count);
        let at = self.parts.partition_point(|other| other.region.id() < region.id());
        self.parts.insert(at, part);
        (region, buffers)
    }

    /// Gives a part up, whose buffers these are, all of them. Its memory goes back to the system when the region that is
    /// given here, and every command that copied from it, is dropped, and the read queue has let go of it
    /// ([`crate::disk::ReadQueue::remove_region`]).
    ///
    /// # Panics
    /// When they are not all buffers of one part.
    pub fn shrink(&mut self, buffers: Vec<HostBuffer>) -> HostRegion {
        let id = buffers.first().expect("a part has buffers").region_id();
        let at = self.part_of(id);
        let is_whole = buffers.len() == self.parts[at].buffer_count
            && buffers.iter().all(|buffer| buffer.region_id() == id);
        assert!(is_whole, "a part is given up with all of its buffers");
        self.parts.remove(at).region
    }

    fn part_of(&self, region_id: u64) -> usize {
        let found = self.parts.binary_search_by_key(&region_id, |part| part.region.id());
        found.expect("a buffer lies in a part of its staging memory")
    }

    /// The regions, for the read queue to register.
    pub fn regions(&self) -> Vec<HostRegion> {
        self.parts.iter().map(|part| part.region.clone()).collect()
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
        // The first lie last, from where they are taken: a record's pieces lie side by side, in one huge page.
        self.free
            .sort_unstable_by_key(|buffer| std::cmp::Reverse((buffer.region_id(), buffer.offset_bytes())));
        Ok(std::mem::take(&mut self.free))
    }

    /// The ticket with which the next busy buffer becomes free.
    pub fn next_free(&self) -> Option<Ticket> {
        self.busy.front().map(|&(ticket, _)| ticket)
    }

    /// Makes the bytes `range` of a full buffer visible to the device: the buffer and offset from which it copies them.
    pub fn land(&self, buffer: &HostBuffer, range: &Range<usize>) -> (&Buffer, u64) {
        let source = &self.parts[self.part_of(buffer.region_id())].source;
        let offset_bytes = (buffer.offset_bytes() + range.start) as u64;
        if self.path == HostPath::Copy {
            source.write(offset_bytes, &buffer.as_slice()[range.clone()]);
        }
        (source, offset_bytes)
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
