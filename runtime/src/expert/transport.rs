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

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::base::events::Lane;
use crate::base::ids::{FileIndex, Span};
use crate::base::region::{HostBuffer, HostRegion};
use crate::disk::{
    self, Completion, DiskError, DriveModel, ModelledQueue, Read, ReadCounters, ReadPath, ReadPathReport,
    ReadQueue, SourceFile,
};
use crate::expert::check::{Check, CheckStats, Checker, Verdict};
use crate::expert::retired::Retired;
use crate::expert::staging::Part;
use crate::expert::watch::{Waits, Watch};
use crate::expert::{ExpertError, HostPath, Staging};
use crate::gpu::{Buffer, Gpu, Placement, Recorder, Ticket};
use crate::store::Source;

/// Landed bytes after which a copy is submitted while further reads are under way: a submission costs 14 to 50 us, about
/// what a drive of 7 GB/s takes for 200 KB; at a megabyte it is a tenth of the time of the reads behind it.
pub(super) const COPY_BATCH_BYTES: u64 = 1 << 20;

/// What a probe copies, in bytes.
const PROBE_LEN: usize = 4096;
const PROBE_LEN_BYTES: u64 = PROBE_LEN as u64;

/// Bytes of which none lies where another that is equal may be taken for it: 251 is no divisor of any alignment.
fn probe_pattern() -> Vec<u8> {
    (0..251).cycle().take(PROBE_LEN).collect()
}

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

/// A move whose read has begun.
struct UnderWay {
    item: Move,
    /// Whether the read was begun again, after its bytes were found wrong.
    is_second_read: bool,
    began: Instant,
    /// Its bytes, while they wait for those before them: a tensor's parts are checked in their order.
    waiting: Option<(HostBuffer, Range<usize>)>,
}

struct Landed {
    range: Range<usize>,
    buffer: HostBuffer,
    target: Buffer,
    target_offset_bytes: u64,
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

    /// Reads the first bytes of a file the way everything will be read, and compares what the device got.
    fn probe(&mut self, file: &SourceFile) -> Result<(), ExpertError> {
        let len_bytes = file.len_bytes().min(4096) & !3;
        let mut wanted = vec![0_u8; usize::try_from(len_bytes).expect("invariant: at most 4096")];
        file.read_exact_at(0, &mut wanted)?;
        let target = self.gpu.buffer("probe", len_bytes.max(4), Placement::Readback)?;
        let span = Span { file: FileIndex(0), offset_bytes: 0, len_bytes };
        let moves = [Move { span, target: target.clone(), target_offset_bytes: 0, check: None }];
        let ticket = self.run(&mut moves.into_iter(), &mut |_| {}, &mut |_| {})?;
        self.gpu.wait(ticket)?;
        let mut got = vec![0_u8; wanted.len()];
        target.read(0, &mut got);
        if got == wanted {
            return Ok(());
        }
        Err(ExpertError::ProbeMismatch { path: file.path().to_owned(), host_path: self.staging.path() })
    }

    /// Compares what arrives by a copy of the kind that brings experts: they have a queue of their own where the device has one, on
    /// another of its engines.
    fn probe_copies(&mut self, file: &SourceFile) -> Result<(), ExpertError> {
        let Some(mut buffer) = self.staging.take(&self.gpu)? else { return Ok(()) };
        let wanted = probe_pattern();
        buffer.as_mut_slice()[..PROBE_LEN].copy_from_slice(&wanted);
        let target = self.gpu.buffer("probe", PROBE_LEN_BYTES, Placement::Readback)?;
        let (there, offset_bytes) = self.staging.land(&buffer, &(0..PROBE_LEN));
        self.run_copies(|recorder| recorder.copy(there, offset_bytes, &target, 0, PROBE_LEN_BYTES))?;
        self.staging.give_back(buffer);
        let mut got = vec![0_u8; PROBE_LEN];
        target.read(0, &mut got);
        if got == wanted {
            return Ok(());
        }
        Err(ExpertError::ProbeMismatch { path: file.path().to_owned(), host_path: self.staging.path() })
    }

    /// Whether what the device writes where reads land comes back as it was.
    fn probe_back(&mut self) -> Result<bool, ExpertError> {
        let Some(mut buffer) = self.staging.take(&self.gpu)? else { return Ok(false) };
        buffer.as_mut_slice()[..PROBE_LEN].fill(0);
        let wanted = probe_pattern();
        let from = self.gpu.buffer("probe", PROBE_LEN_BYTES, Placement::Upload)?;
        from.write(0, &wanted);
        let back = self.gpu.buffer("probe", PROBE_LEN_BYTES, Placement::Readback)?;
        let (there, offset_bytes) = self.staging.land(&buffer, &(0..PROBE_LEN));
        self.run_copies(|recorder| {
            recorder.copy(&from, 0, there, offset_bytes, PROBE_LEN_BYTES);
            recorder.barrier();
            recorder.copy(there, offset_bytes, &back, 0, PROBE_LEN_BYTES);
        })?;
        let mut got = vec![0_u8; PROBE_LEN];
        back.read(0, &mut got);
        self.staging.give_back(buffer);
        Ok(got == wanted)
    }

    /// Runs what `record` records where experts are copied, and waits for it.
    fn run_copies(&self, record: impl FnOnce(&mut Recorder)) -> Result<(), ExpertError> {
        let mut recorder = self.gpu.copy_recorder()?;
        record(&mut recorder);
        let commands = recorder.finish()?;
        Ok(self.gpu.wait(self.gpu.submit_copies(&commands, None)?)?)
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

    /// Carries out all moves. `begin` records what must stand in front of the first copy, `finish` what must follow the last,
    /// in the same submissions as these.
    ///
    /// Returns when the last copy is submitted: the ticket tells when it is done.
    ///
    /// # Errors
    /// The first that a read or the device reports, or [`ExpertError::Damaged`]. What was not read, or is not what it should
    /// be, is not copied and `finish` is not called; `begin` and some of the copies may have been submitted.
    pub fn run(
        &mut self,
        moves: &mut dyn Iterator<Item = Move>,
        begin: &mut dyn FnMut(&mut Recorder),
        finish: &mut dyn FnMut(&mut Recorder),
    ) -> Result<Ticket, ExpertError> {
        self.take_back()?;
        let outcome = self.carry(moves, begin, finish);
        if outcome.is_err() {
            // The first error is the one to report.
            let _ = self.take_back();
        }
        outcome
    }

    fn carry(
        &mut self,
        moves: &mut dyn Iterator<Item = Move>,
        begin: &mut dyn FnMut(&mut Recorder),
        finish: &mut dyn FnMut(&mut Recorder),
    ) -> Result<Ticket, ExpertError> {
        let mut begin = Some(begin);
        let mut next = moves.next();
        loop {
            while let Some(item) = next.take() {
                match self.start(item)? {
                    None => next = moves.next(),
                    Some(item) => {
                        next = Some(item);
                        break;
                    }
                }
            }
            let is_idle = self.queue.in_flight() == 0;
            if is_idle && next.is_none() {
                return self.submit(begin.take(), Some(finish));
            }
            if self.landed_bytes >= COPY_BATCH_BYTES || (is_idle && !self.landed.is_empty()) {
                self.submit(begin.take(), None)?;
            } else if is_idle {
                if let Some(ticket) = self.staging.next_free() {
                    self.watch.wait_copy(&self.gpu, ticket)?;
                }
            } else {
                self.collect()?;
            }
        }
    }

    /// Starts the read of one move, or gives it back where no buffer or no place in the queue is free.
    fn start(&mut self, item: Move) -> Result<Option<Move>, ExpertError> {
        assert!(
            item.span.len_bytes <= u64::from(self.span_bytes_max),
            "a move is longer than the ring's buffers"
        );
        if self.queue.in_flight() == self.queue.depth() {
            return Ok(Some(item));
        }
        let Some(buffer) = self.staging.take(&self.gpu)? else { return Ok(Some(item)) };
        self.push_move(&item, self.tag_next, buffer);
        self.under_way.push_back(Some(UnderWay {
            item,
            is_second_read: false,
            began: Instant::now(),
            waiting: None,
        }));
        self.tag_next += 1;
        Ok(None)
    }

    fn push_move(&mut self, item: &Move, tag: u64, buffer: HostBuffer) {
        let pushed = self.queue.push(Read {
            file: item.span.file,
            offset_bytes: item.span.offset_bytes,
            len_bytes: u32::try_from(item.span.len_bytes).expect("invariant: asserted when it started"),
            buffer,
            tag,
        });
        assert!(pushed.is_ok(), "a queue below its depth takes a read");
    }

    /// Waits for reads to end and takes in what they brought.
    fn collect(&mut self) -> Result<(), ExpertError> {
        let mut completions = std::mem::take(&mut self.completions);
        let begin = Instant::now();
        let mut failure = self.queue.poll(true, &mut completions).err().map(ExpertError::from);
        self.watch.waited_for_disk(begin);
        for Completion { tag, buffer, result } in completions.drain(..) {
            // Tags before `tag_first` are of a call that has failed: nobody waits for them.
            let index = tag.checked_sub(self.tag_first).and_then(|index| usize::try_from(index).ok());
            let index = index.filter(|&index| matches!(self.under_way.get(index), Some(Some(_))));
            match (result, index) {
                (Ok(range), Some(index)) if failure.is_none() => {
                    failure = self.arrive(index, buffer, range).err();
                }
                (Ok(_), _) => self.staging.give_back(buffer),
                (Err(error), _) => {
                    self.staging.give_back(buffer);
                    failure.get_or_insert(error.into());
                }
            }
        }
        self.completions = completions;
        match failure {
            None => self.settle(),
            Some(error) => Err(error),
        }
    }

    /// Takes the bytes of one read: checks them, and has them read again once where they are wrong.
    fn arrive(&mut self, index: usize, buffer: HostBuffer, range: Range<usize>) -> Result<(), ExpertError> {
        let slot = &mut self.under_way[index];
        let UnderWay { item, is_second_read, began, .. } = slot.take().expect("invariant: a read ends once");
        let layer = item.check.as_ref().and_then(Check::layer).map(|layer| layer.0);
        self.watch.log.add(Lane::Drive, "read", layer, range.len() as u64, began, Instant::now());
        if item.check.as_ref().is_some_and(Check::is_in_order) {
            *slot = Some(UnderWay { item, is_second_read, began, waiting: Some((buffer, range)) });
            return Ok(());
        }
        let verdict = self.checker.check(item.check.as_ref(), &buffer.as_slice()[range.clone()]);
        match (verdict, is_second_read) {
            (Verdict::Right, _) => self.land(item, buffer, range),
            (Verdict::Wrong, false) => {
                // The drive, or the way from it, may have been wrong this once.
                self.checker.note_second_read();
                self.push_move(&item, self.tag_first + index as u64, buffer);
                self.under_way[index] =
                    Some(UnderWay { item, is_second_read: true, began: Instant::now(), waiting: None });
            }
            (Verdict::Wrong, true) => {
                self.staging.give_back(buffer);
                return Err(self.damaged(&item));
            }
        }
        Ok(())
    }

    /// Takes from the front what has landed, and what waits there for its turn to be checked.
    fn settle(&mut self) -> Result<(), ExpertError> {
        while let Some(front) = self.under_way.front_mut() {
            if let Some(under_way) = front {
                let Some((buffer, range)) = under_way.waiting.take() else { break };
                let item = front.take().expect("invariant: looked at above").item;
                let verdict = self.checker.check(item.check.as_ref(), &buffer.as_slice()[range.clone()]);
                if verdict == Verdict::Wrong {
                    self.staging.give_back(buffer);
                    return Err(self.damaged(&item));
                }
                self.land(item, buffer, range);
            }
            self.under_way.pop_front();
            self.tag_first += 1;
        }
        Ok(())
    }

    fn damaged(&self, item: &Move) -> ExpertError {
        self.checker.damaged(item.check.as_ref().expect("invariant: something was compared"), item.span)
    }

    fn land(&mut self, item: Move, buffer: HostBuffer, range: Range<usize>) {
        let Move { target, target_offset_bytes, .. } = item;
        self.landed_bytes += range.len() as u64;
        self.landed.push(Landed { range, buffer, target, target_offset_bytes });
    }

    /// Records and submits the copies of what has landed.
    fn submit(
        &mut self,
        begin: Option<&mut dyn FnMut(&mut Recorder)>,
        finish: Option<&mut dyn FnMut(&mut Recorder)>,
    ) -> Result<Ticket, ExpertError> {
        let mut recorder = self.gpu.recorder()?;
        if let Some(begin) = begin {
            begin(&mut recorder);
        }
        let clock = self.watch.clock.clone();
        let mark = if self.landed_bytes > 0 {
            clock.mark(Lane::Copy, "copy", None, self.landed_bytes)
        } else {
            None
        };
        clock.begin(&mut recorder, mark);
        for item in &self.landed {
            let (source, offset_bytes) = self.staging.land(&item.buffer, &item.range);
            let len_bytes = item.range.len() as u64;
            recorder.copy(source, offset_bytes, &item.target, item.target_offset_bytes, len_bytes);
        }
        clock.end(&mut recorder, mark);
        if let Some(finish) = finish {
            recorder.barrier();
            finish(&mut recorder);
        }
        let submitted = recorder.finish().and_then(|commands| Ok((self.gpu.submit(&[&commands])?, commands)));
        clock.ended(submitted.as_ref().ok().map(|&(ticket, _)| ticket), mark);
        let (ticket, commands) = submitted?;
        for item in self.landed.drain(..) {
            self.staging.release(ticket, item.buffer);
        }
        self.landed_bytes = 0;
        self.retired.add(&self.gpu, ticket, commands)?;
        Ok(ticket)
    }

    /// Puts back whatever a failed call has left: reads still under way, buffers that were never copied.
    fn take_back(&mut self) -> Result<(), ExpertError> {
        self.landed.drain(..).for_each(|item| self.staging.give_back(item.buffer));
        self.landed_bytes = 0;
        self.checker.forget();
        let waiting = self.under_way.drain(..).flatten().filter_map(|under_way| under_way.waiting);
        waiting.for_each(|(buffer, _)| self.staging.give_back(buffer));
        self.tag_first = self.tag_next;
        while self.queue.in_flight() > 0 {
            let mut completions = Vec::new();
            let polled = self.queue.poll(true, &mut completions);
            completions.into_iter().for_each(|completion| self.staging.give_back(completion.buffer));
            polled?;
        }
        Ok(())
    }
}

#[cfg(feature = "simulation")]
impl Transport {
    /// Puts `wrap` around the read queue, to have tests damage what it gives.
    #[must_use]
    pub fn wrap_queue(self, wrap: impl FnOnce(Box<dyn ReadQueue>) -> Box<dyn ReadQueue>) -> Self {
        Self { queue: wrap(self.queue), ..self }
    }

    /// Over a simulated disk: the bytes of `files`, with the faults that `seed` decides.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_simulated(
        gpu: &Gpu,
        files: &[Arc<SourceFile>],
        options: &TransportOptions,
        seed: u64,
        faults: &disk::Faults,
    ) -> Result<Self, ExpertError> {
        let transport = Self::open_with(gpu, files, options, &mut |_| {
            let simulated = files.iter().map(|file| disk::SimulatedFile::real(file.clone())).collect();
            let queue = disk::SimulatedQueue::new(seed, simulated, *faults, options.depth);
            let report = ReadPathReport {
                path: ReadPath::Pool,
                depth: options.depth,
                threads: 0,
                registered_bytes: 0,
                has_registered_files: false,
                files: Vec::new(),
                lost: vec![format!("everything: this is a simulated disk of seed {seed}")],
            };
            Ok((Box::new(queue), report))
        })?;
        Ok(Self { is_simulated: true, ..transport })
    }
}
