//! Reads blocks through the runtime's own queue: a constant number under way, or bursts.
//!
//! - Owns: a read queue and its buffers, registered where that is allowed. In: a [`Space`], an [`Order`]. Out: a [`Run`].
//! - Invariants: these are the calls that the product makes, with nothing between. A run ends when its time is over and what is
//!   under way has come; both count, as fio counts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flint_rt::base::ids::Span;
use flint_rt::base::limits::READ_DEPTH_MAX;
use flint_rt::base::region::{HostBuffer, HostRegion};
use flint_rt::disk::{
    self, Completion, DiskError, Read, ReadPath, ReadPathReport, ReadQueue, SourceFile, process_cpu,
};
use flint_rt::engine::EngineError;

use super::latency::Latency;
use super::space::{Order, Space};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt;

/// What a run gave.
pub(super) struct Run {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Blocks, or bursts.
    pub(super) count: u64,
    /// Bytes that were wanted.
    pub(super) bytes: u64,
    pub(super) latency: Latency,
}

/// When a run ends.
#[derive(Clone, Copy)]
pub(super) struct Until {
    pub(super) time: Duration,
    /// Blocks at most: where cached pages would be read a second time.
    pub(super) blocks: u64,
}

/// What is told while a run goes on: blocks that ended, at this moment.
pub(super) type Watch<'a> = &'a mut dyn FnMut(Instant, u64, Duration);

/// The queue with its buffers.
pub(super) struct Reader<'a> {
    space: &'a Space,
    order: Order,
    turn: u64,
    queue: Box<dyn ReadQueue>,
    /// Free ones, the one that is free for longest first.
    buffers: VecDeque<HostBuffer>,
    /// Of each block under way when it began, and how many of its reads have not come.
    blocks: Vec<(Instant, u32)>,
    free: Vec<usize>,
    done: Vec<Completion>,
    spans: Vec<Span>,
    report: ReadPathReport,
}

impl<'a> Reader<'a> {
    /// For `depth` blocks of `space` under way, and as many buffers in turn as `buffered` blocks take; `wanted` forces a path, and the
    /// inner error says why it cannot be had.
    pub(super) fn new(
        files: &[Arc<SourceFile>],
        space: &'a Space,
        order: Order,
        wanted: Option<ReadPath>,
        depth: u32,
        buffered: u32,
    ) -> Outcome<Result<Self, String>> {
        let longest =
            u32::try_from(space.read_bytes_max()).map_err(|_| Failure::usage("reads of 4 GiB and more"))?;
        let buffer_bytes = disk::buffer_bytes_for(files, longest.max(1));
        let reads = (depth * space.pieces()).min(READ_DEPTH_MAX);
        let buffer_count = (buffered * space.pieces()).clamp(reads, READ_DEPTH_MAX) as usize;
        let region = HostRegion::new(HostRegion::bytes_for(buffer_bytes, buffer_count))
            .map_err(|error| Failure::because(Exit::Memory, "buffers to read into", &error))?;
        let mut buffers = region.split(buffer_bytes, buffer_count);
        // A page that is not there yet costs its first reader; the product's were used before.
        for buffer in &mut buffers {
            buffer.as_mut_slice().fill(1);
        }
        let (queue, report) = match disk::open_queue(files.to_vec(), &[region], wanted, reads) {
            Ok(opened) => opened,
            Err(DiskError::PathImpossible { why, .. }) => return Ok(Err(why)),
            Err(error) => return Err(EngineError::from(error).into()),
        };
        let now = Instant::now();
        Ok(Ok(Self {
            space,
            order,
            turn: 0,
            queue,
            buffers: buffers.into(),
            blocks: vec![(now, 0); depth as usize],
            free: (0..depth as usize).rev().collect(),
            done: Vec::new(),
            spans: Vec::new(),
            report,
        }))
    }

    /// Which path was opened.
    pub(super) fn report(&self) -> &ReadPathReport {
        &self.report
    }

    /// Starts the reads of the next block.
    fn push_block(&mut self) -> Outcome {
        let Some(slot) = self.free.pop() else { return Ok(()) };
        self.space.spans(self.order.at(self.turn), &mut self.spans);
        self.turn += 1;
        self.blocks[slot] = (Instant::now(), u32::try_from(self.spans.len()).unwrap_or(0));
        for index in 0..self.spans.len() {
            let span = self.spans[index];
            let buffer =
                self.buffers.pop_front().ok_or_else(|| Failure::new(Exit::Failed, "no buffer is left"))?;
            let len_bytes = u32::try_from(span.len_bytes).map_err(|_| Failure::usage("a read of 4 GiB"))?;
            let read = Read {
                file: span.file,
                offset_bytes: span.offset_bytes,
                len_bytes,
                buffer,
                tag: slot as u64,
            };
            self.queue
                .push(read)
                .map_err(|error| Failure::because(Exit::Failed, "the read queue", &error))?;
        }
        Ok(())
    }

    /// Waits for one read at least; gives blocks and bytes that have come whole.
    fn collect(
        &mut self,
        latency: &mut Latency,
        watch: &mut Option<Watch<'_>>,
    ) -> Outcome<(u64, u64, Instant)> {
        if interrupt::is_requested() {
            return Err(Failure::Interrupted);
        }
        self.queue.poll(true, &mut self.done).map_err(EngineError::from)?;
        let now = Instant::now();
        let (mut blocks, mut bytes) = (0, 0);
        for completion in self.done.drain(..) {
            bytes += completion.result.map_err(EngineError::from)?.len() as u64;
            self.buffers.push_back(completion.buffer);
            let slot = usize::try_from(completion.tag).unwrap_or(0);
            let block = &mut self.blocks[slot];
            block.1 -= 1;
            if block.1 == 0 {
                let taken = now - block.0;
                latency.add(taken);
                self.free.push(slot);
                blocks += 1;
                if let Some(watch) = watch {
                    watch(now, self.space.block_bytes(), taken);
                }
            }
        }
        Ok((blocks, bytes, now))
    }

    /// As many blocks under way as the reader was opened for, all the time.
    pub(super) fn steady(&mut self, until: Until, mut watch: Option<Watch<'_>>) -> Outcome<Run> {
        let mut latency = Latency::new();
        let cpu = process_cpu();
        let begin = Instant::now();
        let (mut count, mut bytes, mut begun, mut now) = (0, 0, 0, begin);
        loop {
            let is_over = begun > 0 && now - begin >= until.time || begun >= until.blocks;
            if !is_over {
                while !self.free.is_empty() && begun < until.blocks {
                    self.push_block()?;
                    begun += 1;
                }
            }
            if self.queue.in_flight() == 0 {
                break;
            }
            let came = self.collect(&mut latency, &mut watch)?;
            count += came.0;
            bytes += came.1;
            now = came.2;
        }
        let (seconds, cpu_seconds) = (begin.elapsed().as_secs_f64(), (process_cpu() - cpu).as_secs_f64());
        Ok(Run { seconds, cpu_seconds, count, bytes, latency })
    }

    /// `records` blocks at once, again and again, as long as there are blocks; the first burst, which wakes the drive,
    /// does not count.
    pub(super) fn bursts(&mut self, records: u32, until: Until) -> Outcome<Run> {
        let mut latency = Latency::new();
        let mut each = Latency::new();
        let begin = Instant::now();
        let (mut cpu, mut seconds, mut count, mut bytes) = (process_cpu(), 0.0, 0, 0);
        let mut is_first = true;
        while (begin.elapsed() < until.time || count == 0)
            && until.blocks.saturating_sub(self.turn) >= u64::from(records)
        {
            let burst = Instant::now();
            for _ in 0..records {
                self.push_block()?;
            }
            let mut burst_bytes = 0;
            while self.queue.in_flight() > 0 {
                burst_bytes += self.collect(&mut each, &mut None)?.1;
            }
            if std::mem::take(&mut is_first) {
                cpu = process_cpu();
                continue;
            }
            let taken = burst.elapsed();
            latency.add(taken);
            seconds += taken.as_secs_f64();
            bytes += burst_bytes;
            count += 1;
        }
        Ok(Run { seconds, cpu_seconds: (process_cpu() - cpu).as_secs_f64(), count, bytes, latency })
    }
}
