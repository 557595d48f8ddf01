//! Carries spans of files into device memory: reads into the staging ring, copies out of it, as many of both at once as the
//! ring and the read queue allow.
//!
//! - Owns: the read queue and the staging ring.
//! - In: moves, each a span of a file and a place in a device buffer.
//! - Out: a [`Ticket`] after which all of them have arrived.
//! - Invariants: a read is never in flight without its buffer being owned by the queue. After an error the reads under way
//!   are waited for and their buffers are back in the ring; where even that fails, the next call takes them back first, and
//!   no read is ever taken for another. Bytes of a move whose checksum is known are compared with it where the drive put
//!   them, before a copy of them is recorded; who takes the buffers and reads by himself also compares by himself.

mod moves;
mod probe;
#[cfg(feature = "simulation")]
mod simulated;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use self::moves::{Landed, UnderWay};
use crate::base::ids::Span;
use crate::base::region::{HostBuffer, HostRegion};
use crate::disk::{
    self, Completion, DiskError, DriveModel, ModelledQueue, Read, ReadCounters, ReadPath, ReadPathReport,
    ReadQueue, SourceFile,
};
use crate::expert::check::{Check, CheckStats, Checker};
use crate::expert::retired::Retired;
use crate::expert::staging::Part;
use crate::expert::watch::{Waits, Watch};
use crate::expert::{ExpertError, HostPath, Staging};
use crate::gpu::{Buffer, Gpu, Ticket};
use crate::store::Source;

/// Landed bytes after which a copy is submitted while further reads are under way: a submission costs 14 to 50 us, about
/// what a drive of 7 GB/s takes for 200 KB; at a megabyte it is a tenth of the time of the reads behind it.
pub(super) const COPY_BATCH_BYTES: u64 = 1 << 20;

/// One span of a file and where it goes.
pub struct Move {
    /// The bytes; at most [`Transport::span_bytes_max`].
    pub span: Span,
    /// The device buffer that takes them.
    pub target: Buffer,
    /// Where in it.
    pub target_offset_bytes: u64,
    /// What the bytes are, so that they can be checked; `None` leaves them unchecked.
    pub check: Option<Check>,
}

/// What the caller wants of a transport.
#[derive(Debug, Clone, Copy)]
pub struct TransportOptions {
    /// This read path and no other.
    pub read_path: Option<ReadPath>,
    /// This host path and no other.
    pub host_path: Option<HostPath>,
    /// The longest span of a move, in bytes.
    pub span_bytes_max: u32,
    /// Buffers of the ring.
    pub buffer_count: usize,
    /// Reads in flight.
    pub depth: u32,
}

/// What was chosen, and what was passed over and why.
#[derive(Debug, Clone)]
pub struct TransportReport {
    /// How files are read.
    pub read: ReadPathReport,
    /// How the device reaches what was read.
    pub host_path: HostPath,
    /// One line for each host path that was tried and failed.
    pub passed_over: Vec<String>,
}

/// Makes a read queue over the ring's memory.
type OpenQueue<'a> = dyn FnMut(&[HostRegion]) -> Result<(Box<dyn ReadQueue>, ReadPathReport), DiskError> + 'a;

/// Disk to device.
pub struct Transport {
    gpu: Gpu,
    queue: Box<dyn ReadQueue>,
    staging: Staging,
    span_bytes_max: u32,
    report: TransportReport,
    completions: Vec<Completion>,
    /// The moves under way, by tag from `tag_first` on; `None` once the bytes have landed.
    under_way: VecDeque<Option<UnderWay>>,
    /// Tags are never used twice, so a read that outlived an error cannot be taken for a later one.
    tag_first: u64,
    tag_next: u64,
    /// Reads that have ended and are not yet copied.
    landed: Vec<Landed>,
    landed_bytes: u64,
    checker: Checker,
    can_keep: bool,
    /// Submitted copies, kept until the device has run them.
    retired: Retired,
    watch: Watch,
    #[cfg(feature = "simulation")]
    is_simulated: bool,
}

impl Transport {
    /// Opens the read queue over `files` and the ring, choosing the first host path whose probe succeeds.
    ///
    /// # Errors
    /// When a path that was asked for does not work, or none does; what is wrong with a file is said as it is.
    pub fn open(
        gpu: &Gpu,
        files: &[Arc<SourceFile>],
        options: &TransportOptions,
    ) -> Result<Self, ExpertError> {
        Self::open_with(gpu, files, options, &mut |regions| {
            disk::open_queue(files.to_vec(), regions, options.read_path, options.depth)
        })
    }

    /// As [`Self::open`], with the times of a modelled drive: `files` are to be read through the page cache.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_modelled(
        gpu: &Gpu,
        files: &[Arc<SourceFile>],
        options: &TransportOptions,
        model: DriveModel,
    ) -> Result<Self, ExpertError> {
        Self::open_with(gpu, files, options, &mut |regions| {
            let (queue, mut report) =
                disk::open_queue(files.to_vec(), regions, options.read_path, options.depth)?;
            report.lost.push(format!("the drive's own time: this is a modelled drive of {model}"));
            Ok((Box::new(ModelledQueue::new(queue, model)), report))
        })
    }

    /// As [`Self::open`], with the read queue that `open_queue` makes over the ring's memory.
    fn open_with(
        gpu: &Gpu,
        files: &[Arc<SourceFile>],
        options: &TransportOptions,
        open_queue: &mut OpenQueue<'_>,
    ) -> Result<Self, ExpertError> {
        let candidates = match &options.host_path {
            Some(path) => std::slice::from_ref(path),
            None => &HostPath::ALL[..],
        };
        let mut passed_over = Vec::new();
        for &path in candidates {
            match Self::open_by(gpu, files, options, path, open_queue) {
                Ok(mut transport) => {
                    transport.report.passed_over = passed_over;
                    return Ok(transport);
                }
                Err(error) if !error.is_of_host_path() => return Err(error),
                Err(error) if options.host_path.is_some() => {
                    return Err(ExpertError::HostPath { path, reason: error.to_string() });
                }
                Err(error) => passed_over.push(format!("{path}: {error}")),
            }
        }
        Err(ExpertError::NoHostPath { reasons: passed_over.join("; ") })
    }

    fn open_by(
        gpu: &Gpu,
        files: &[Arc<SourceFile>],
        options: &TransportOptions,
        path: HostPath,
        open_queue: &mut OpenQueue<'_>,
    ) -> Result<Self, ExpertError> {
        let buffer_bytes = disk::buffer_bytes_for(files, options.span_bytes_max);
        let mut staging = Staging::new(gpu, path, buffer_bytes, options.buffer_count)?;
        // Some drivers map memory that the kernel cannot pin: reads into it would quietly go through the page cache.
        if let Some(mut buffer) = staging.take(gpu)? {
            let probed = files[0].probe_into(&mut buffer);
            staging.give_back(buffer);
            probed.map_err(|error| ExpertError::NotPinned { reason: error.to_string() })?;
        }
        let (queue, read) = open_queue(&staging.regions())?;
        let mut transport = Self {
            gpu: gpu.clone(),
            queue,
            staging,
            span_bytes_max: options.span_bytes_max,
            report: TransportReport { read, host_path: path, passed_over: Vec::new() },
            completions: Vec::new(),
            under_way: VecDeque::new(),
            tag_first: 0,
            tag_next: 0,
            landed: Vec::new(),
            landed_bytes: 0,
            checker: Checker::default(),
            can_keep: false,
            retired: Retired::default(),
            watch: Watch::new(),
            #[cfg(feature = "simulation")]
            is_simulated: false,
        };
        transport.probe(&files[0])?;
        transport.probe_copies(&files[0])?;
        transport.can_keep = path != HostPath::Copy && transport.probe_back()?;
        Ok(transport)
    }

    /// Whether the device can write where reads land, so that what it gives up can be kept there.
    pub fn can_keep(&self) -> bool {
        self.can_keep
    }

    /// What was chosen.
    pub fn report(&self) -> &TransportReport {
        &self.report
    }

    /// The longest span of one move.
    pub fn span_bytes_max(&self) -> u32 {
        self.span_bytes_max
    }

    /// The read queue's counters since it was opened.
    pub fn counters(&self) -> ReadCounters {
        self.queue.counters()
    }

    /// From now on `watch` takes note of reads, copies and waits.
    pub fn watch_by(&mut self, watch: Watch) {
        self.watch = watch;
    }

    /// What was waited for since [`Self::watch_by`], or since the transport was opened.
    pub fn waits(&self) -> Waits {
        self.watch.waits()
    }

    /// The device.
    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The ring, whose buffers are all taken.
    pub(super) fn staging(&self) -> &Staging {
        &self.staging
    }

    /// What takes note of reads and waits.
    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// What compares.
    pub(super) fn checker(&mut self) -> &mut Checker {
        &mut self.checker
    }

    /// Takes all buffers out of the ring, for somebody who reads into them and copies from them in an order of his own.
    ///
    /// # Errors
    /// When the device is lost, or a read of a failed call cannot be taken back.
    pub(super) fn take_buffers(&mut self) -> Result<Vec<HostBuffer>, ExpertError> {
        self.take_back()?;
        self.staging.take_all(&self.gpu)
    }

    /// Takes more host memory, which [`Staging::maker`] made: its buffers.
    pub(super) fn adopt(&mut self, part: Part) -> Vec<HostBuffer> {
        let (region, buffers) = self.staging.adopt(part);
        // What is not registered is read into all the same.
        let _ = self.queue.add_region(&region);
        buffers
    }

    /// Gives a part of host memory back to the system, all of whose buffers these are.
    pub(super) fn shrink(&mut self, buffers: Vec<HostBuffer>) {
        let region = self.staging.shrink(buffers);
        // A queue that does not let go keeps the memory, and nothing else goes wrong.
        let _ = self.queue.remove_region(&region);
    }

    /// How many more reads can be begun now.
    pub(super) fn room(&self) -> usize {
        self.queue.depth() - self.queue.in_flight()
    }

    /// Reads under way.
    pub(super) fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// Begins a read.
    ///
    /// # Panics
    /// When there is no room.
    pub(super) fn push(&mut self, read: Read) {
        let pushed = self.queue.push(read);
        assert!(pushed.is_ok(), "a queue below its depth takes a read");
    }

    /// Takes in reads that have ended; with `wait`, waits for one.
    ///
    /// # Errors
    /// As [`ReadQueue::poll`].
    pub(super) fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), DiskError> {
        if !wait {
            return self.queue.poll(false, done);
        }
        let begin = Instant::now();
        let polled = self.queue.poll(true, done);
        self.watch.waited_for_disk(begin);
        polled
    }

    /// Waits for a read to end without counting that as a wait for reads.
    ///
    /// # Errors
    /// As [`ReadQueue::poll`].
    pub(super) fn poll_quietly(&mut self, done: &mut Vec<Completion>) -> Result<(), DiskError> {
        self.queue.poll(true, done)
    }

    /// Waits for a copy.
    ///
    /// # Errors
    /// When the device is lost.
    pub(super) fn wait_copy(&mut self, ticket: Ticket) -> Result<(), ExpertError> {
        Ok(self.watch.wait_copy(&self.gpu, ticket)?)
    }

    /// From now on compares what moves bring with the checksums of `source`, of whose files this transport reads. A GGUF in
    /// place has none.
    pub fn check_against(&mut self, source: Arc<Source>) {
        self.checker = Checker::new(source);
        #[cfg(feature = "simulation")]
        if self.is_simulated {
            // Records of small models are not worth a thread; what happens beside threads is to be seen with them, too.
            self.checker.share_all();
        }
    }

    /// What was checked since then.
    pub fn check_stats(&self) -> CheckStats {
        self.checker.stats()
    }
}
