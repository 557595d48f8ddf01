//! Carries spans of files into device memory: reads into the staging ring, copies out of it, as many of both at once as the
//! ring and the read queue allow.
//!
//! - Owns: the read queue and the staging ring.
//! - In: moves, each a span of a file and a place in a device buffer.
//! - Out: a [`Ticket`] after which all of them have arrived.
//! - Invariants: a read is never in flight without its buffer being owned by the queue; after an error every buffer is back
//!   in the ring, so the next call starts clean. Bytes whose checksum is known are compared with it where the drive put them,
//!   before a copy of them is recorded.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::base::ids::Span;
use crate::base::region::HostBuffer;
use crate::disk::{
    self, Completion, DiskError, Read, ReadCounters, ReadPath, ReadPathReport, ReadQueue, SourceFile,
};
use crate::expert::check::{Check, CheckStats, Checker, Verdict};
use crate::expert::{ExpertError, HostPath, Staging};
use crate::gpu::{Buffer, Commands, Gpu, Placement, Recorder, Ticket};
use crate::store::Source;

/// Landed bytes after which a copy is submitted while further reads are under way: a submission costs 14 to 50 us, about
/// what a drive of 7 GB/s takes for 200 KB; at a megabyte it is a tenth of the time of the reads behind it.
const COPY_BATCH_BYTES: u64 = 1 << 20;

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

/// A move between its read and its copy.
struct UnderWay {
    item: Move,
    /// Whether the read was begun again after its bytes were found wrong.
    is_second_read: bool,
    /// Its bytes, while they wait for those before them: a tensor's parts are checked in their order.
    waiting: Option<(HostBuffer, Range<usize>)>,
}

struct Landed {
    range: Range<usize>,
    buffer: HostBuffer,
    target: Buffer,
    target_offset_bytes: u64,
}

/// The state of one call of [`Transport::run`].
#[derive(Default)]
struct Run {
    /// By tag, from `tag_first` on; `None` where the bytes have landed.
    under_way: VecDeque<Option<UnderWay>>,
    tag_first: u64,
    landed: Vec<Landed>,
    landed_bytes: u64,
}

impl Run {
    fn slot(&mut self, tag: u64) -> &mut Option<UnderWay> {
        let index = usize::try_from(tag - self.tag_first).expect("invariant: few are under way");
        &mut self.under_way[index]
    }

    /// Takes what has arrived and been found right.
    fn land(&mut self, item: Move, buffer: HostBuffer, range: Range<usize>) {
        self.landed_bytes += range.len() as u64;
        let Move { target, target_offset_bytes, .. } = item;
        self.landed.push(Landed { range, buffer, target, target_offset_bytes });
    }
}

/// Disk to device.
pub struct Transport {
    gpu: Gpu,
    queue: Box<dyn ReadQueue>,
    staging: Staging,
    span_bytes_max: u32,
    report: TransportReport,
    completions: Vec<Completion>,
    checker: Checker,
    /// Submitted copies, kept until the device has run them.
    retired: VecDeque<(Ticket, Commands)>,
}

impl Transport {
    /// Opens the read queue over `files` and the ring, choosing the first host path whose probe succeeds.
    ///
    /// # Errors
    /// When a path that was asked for does not work, or none does.
    pub fn open(
        gpu: &Gpu,
        files: &[Arc<SourceFile>],
        options: &TransportOptions,
    ) -> Result<Self, ExpertError> {
        let candidates = match &options.host_path {
            Some(path) => std::slice::from_ref(path),
            None => &HostPath::ALL[..],
        };
        let mut passed_over = Vec::new();
        for &path in candidates {
            match Self::open_by(gpu, files, options, path) {
                Ok(mut transport) => {
                    transport.report.passed_over = passed_over;
                    return Ok(transport);
                }
                Err(error) if options.host_path.is_some() => {
                    return Err(ExpertError::HostPath { path, reason: error.to_string() });
                }
                // A device that is lost, or a damaged file, is not a reason to try another path.
                Err(ExpertError::Gpu(error)) if error.is_device_lost() => return Err(error.into()),
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
    ) -> Result<Self, ExpertError> {
        let buffer_bytes = disk::buffer_bytes_for(files, options.span_bytes_max);
        let mut staging = Staging::new(gpu, path, buffer_bytes, options.buffer_count)?;
        // Some drivers map memory that the kernel cannot pin: reads into it would quietly go through the page cache.
        if let Some(mut buffer) = staging.take(gpu)? {
            let probed = files[0].probe_into(&mut buffer);
            staging.give_back(buffer);
            probed?;
        }
        let regions = [staging.region().clone()];
        let (queue, read) = disk::open_queue(files.to_vec(), &regions, options.read_path, options.depth)?;
        let mut transport = Self {
            gpu: gpu.clone(),
            queue,
            staging,
            span_bytes_max: options.span_bytes_max,
            report: TransportReport { read, host_path: path, passed_over: Vec::new() },
            completions: Vec::new(),
            checker: Checker::default(),
            retired: VecDeque::new(),
        };
        transport.probe(&files[0])?;
        Ok(transport)
    }

    /// Reads the first bytes of a file the way everything will be read, and compares what the device got.
    fn probe(&mut self, file: &SourceFile) -> Result<(), ExpertError> {
        let len_bytes = file.len_bytes().min(4096) & !3;
        let mut wanted = vec![0_u8; usize::try_from(len_bytes).expect("invariant: at most 4096")];
        file.read_exact_at(0, &mut wanted)?;
        let target = self.gpu.buffer("probe", len_bytes.max(4), Placement::Readback)?;
        let span = Span { file: crate::base::ids::FileIndex(0), offset_bytes: 0, len_bytes };
        let moves = [Move { span, target: target.clone(), target_offset_bytes: 0, check: None }];
        let ticket = self.run(&mut moves.into_iter(), &mut |_| {})?;
        self.gpu.wait(ticket)?;
        let mut got = vec![0_u8; wanted.len()];
        target.read(0, &mut got);
        if got == wanted {
            return Ok(());
        }
        Err(ExpertError::ProbeMismatch { path: file.path().to_owned(), host_path: self.staging.path() })
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

    /// From now on compares what moves bring with the checksums of `source`, of whose files this transport reads. A GGUF in
    /// place has none.
    pub fn check_against(&mut self, source: Arc<Source>) {
        self.checker = Checker::new(source);
    }

    /// What was checked since the transport was opened.
    pub fn check_stats(&self) -> CheckStats {
        self.checker.stats()
    }

    /// Puts `wrap` around the read queue, to have tests damage what it gives.
    #[cfg(feature = "simulation")]
    pub fn wrap_queue(self, wrap: impl FnOnce(Box<dyn ReadQueue>) -> Box<dyn ReadQueue>) -> Self {
        Self { queue: wrap(self.queue), ..self }
    }

    /// Carries out all moves; `finish` records what must follow the last copy, in the same submission.
    ///
    /// Returns when the last copy is submitted: the ticket tells when it is done.
    ///
    /// # Errors
    /// The first that a read or the device reports, or [`ExpertError::Damaged`]. What was not read or is not what it should
    /// be is not copied, `finish` is not called, and targets of finished reads may have been written.
    pub fn run(
        &mut self,
        moves: &mut dyn Iterator<Item = Move>,
        finish: &mut dyn FnMut(&mut Recorder),
    ) -> Result<Ticket, ExpertError> {
        let mut run = Run::default();
        let mut next = moves.next();
        loop {
            // As many reads as buffers and depth allow.
            while let Some(item) = next.take() {
                assert!(
                    item.span.len_bytes <= u64::from(self.span_bytes_max),
                    "a move is longer than the ring's buffers"
                );
                if self.queue.in_flight() == self.queue.depth() {
                    next = Some(item);
                    break;
                }
                let Some(buffer) = self.staging.take(&self.gpu)? else {
                    next = Some(item);
                    break;
                };
                let tag = run.tag_first + run.under_way.len() as u64;
                self.begin_read(&item, tag, buffer);
                run.under_way.push_back(Some(UnderWay { item, is_second_read: false, waiting: None }));
                next = moves.next();
            }

            let is_last = next.is_none() && self.queue.in_flight() == 0;
            if is_last {
                return self.submit(&mut run.landed, finish);
            }
            if run.landed_bytes >= COPY_BATCH_BYTES || (self.queue.in_flight() == 0 && !run.landed.is_empty())
            {
                self.submit(&mut run.landed, &mut |_| {})?;
                run.landed_bytes = 0;
                continue;
            }
            if self.queue.in_flight() == 0 {
                self.staging.wait_for_one(&self.gpu)?;
                continue;
            }
            if let Err(error) = self.receive(&mut run) {
                self.drain(&mut run);
                return Err(error);
            }
        }
    }

    fn begin_read(&mut self, item: &Move, tag: u64, buffer: HostBuffer) {
        let read = Read {
            file: item.span.file,
            offset_bytes: item.span.offset_bytes,
            len_bytes: u32::try_from(item.span.len_bytes)
                .expect("invariant: no move is longer than a buffer"),
            buffer,
            tag,
        };
        let pushed = self.queue.push(read);
        assert!(pushed.is_ok(), "a queue below its depth takes a read");
    }

    /// Waits for reads to end, and takes what they brought.
    fn receive(&mut self, run: &mut Run) -> Result<(), ExpertError> {
        let mut completions = std::mem::take(&mut self.completions);
        let mut failure = self.queue.poll(true, &mut completions).err().map(ExpertError::from);
        for completion in completions.drain(..) {
            let arrived = match completion.result {
                // After a failure only the buffers count.
                Ok(range) if failure.is_none() => self.arrive(run, completion.tag, completion.buffer, range),
                Ok(_) => {
                    self.staging.give_back(completion.buffer);
                    Ok(())
                }
                Err(error) => {
                    self.staging.give_back(completion.buffer);
                    Err(error.into())
                }
            };
            if let Err(error) = arrived {
                failure.get_or_insert(error);
            }
        }
        self.completions = completions;
        match failure {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Takes the bytes of one read: checks them, and has them read again once where they are wrong.
    fn arrive(
        &mut self,
        run: &mut Run,
        tag: u64,
        buffer: HostBuffer,
        range: Range<usize>,
    ) -> Result<(), ExpertError> {
        let slot = run.slot(tag);
        let under_way = slot.as_mut().expect("invariant: a read completes once");
        if under_way.item.check.as_ref().is_some_and(Check::is_in_order) {
            under_way.waiting = Some((buffer, range));
        } else {
            let UnderWay { item, is_second_read, .. } = slot.take().expect("invariant: looked at above");
            let verdict = self.checker.check(item.check.as_ref(), &buffer.as_slice()[range.clone()]);
            if verdict == Verdict::Wrong && !is_second_read {
                // The drive, or the way from it, may have been wrong this once.
                self.checker.note_second_read();
                self.begin_read(&item, tag, buffer);
                *run.slot(tag) = Some(UnderWay { item, is_second_read: true, waiting: None });
            } else if verdict == Verdict::Wrong {
                self.staging.give_back(buffer);
                return Err(self.checker.damaged(&item));
            } else {
                run.land(item, buffer, range);
            }
        }
        self.settle(run)
    }

    /// Takes from the front what has landed or waits there.
    fn settle(&mut self, run: &mut Run) -> Result<(), ExpertError> {
        while let Some(front) = run.under_way.front_mut() {
            if let Some(under_way) = front {
                let Some((buffer, range)) = under_way.waiting.take() else { break };
                let item = front.take().expect("invariant: looked at above").item;
                let verdict = self.checker.check(item.check.as_ref(), &buffer.as_slice()[range.clone()]);
                if verdict == Verdict::Wrong {
                    self.staging.give_back(buffer);
                    return Err(self.checker.damaged(&item));
                }
                run.land(item, buffer, range);
            }
            run.under_way.pop_front();
            run.tag_first += 1;
        }
        Ok(())
    }

    /// Records and submits the copies of what has landed.
    fn submit(
        &mut self,
        landed: &mut Vec<Landed>,
        finish: &mut dyn FnMut(&mut Recorder),
    ) -> Result<Ticket, ExpertError> {
        let mut recorder = self.gpu.recorder()?;
        for item in landed.iter() {
            let (source, offset_bytes) = self.staging.land(&item.buffer, &item.range);
            recorder.copy(
                source,
                offset_bytes,
                &item.target,
                item.target_offset_bytes,
                item.range.len() as u64,
            );
        }
        finish(&mut recorder);
        let commands = recorder.finish()?;
        let ticket = self.gpu.submit(&[&commands])?;
        for item in landed.drain(..) {
            self.staging.release(ticket, item.buffer);
        }
        self.retired.push_back((ticket, commands));
        while let Some((oldest, _)) = self.retired.front() {
            if !self.gpu.is_done(*oldest)? {
                break;
            }
            self.retired.pop_front();
        }
        Ok(ticket)
    }

    /// After an error: waits for every read in flight and puts all buffers back.
    fn drain(&mut self, run: &mut Run) {
        self.checker.forget();
        for item in run.landed.drain(..) {
            self.staging.give_back(item.buffer);
        }
        for (buffer, _) in run.under_way.drain(..).flatten().filter_map(|under_way| under_way.waiting) {
            self.staging.give_back(buffer);
        }
        let mut completions = Vec::new();
        while self.queue.in_flight() > 0 {
            // The first error is the one to report; a queue that cannot even be polled keeps its buffers.
            let polled: Result<(), DiskError> = self.queue.poll(true, &mut completions);
            for completion in completions.drain(..) {
                self.staging.give_back(completion.buffer);
            }
            if polled.is_err() {
                return;
            }
        }
    }
}
