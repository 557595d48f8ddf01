//! A drive's time put over another drive's bytes: what a model would do with a drive that is not at hand.
//!
//! In: a queue whose reads come from memory (files in the page cache), and a [`DriveModel`]. Out: as every [`ReadQueue`], each
//! completion held back until the modelled drive would have given it. The bytes are the real ones; only time is made up.
//!
//! A file may lie on a drive of its own: then each drive has its own link and its own latencies, and drives read at once.
//!
//! The model: a read's first byte comes `latency` after it was taken, latencies of up to `depth` reads pass at once, and the
//! bytes of all share one link of `rate`. Read i, taken at t, is done at
//!
//! `done(i) = max(max(t, done(i - depth)) + latency, done(i - 1)) + bytes / rate`
//!
//! Invariants: never earlier than the model; a read that was looked for when it was due and had not come is counted as late, and
//! a measurement with many late reads says nothing about the modelled drive. One that came late and that nobody looked for
//! before held nobody up, so it is none.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use super::DiskError;
use super::busy::KnownBusyTime;
use super::queue::{Completion, PushRefused, Read, ReadCounters, ReadQueue};
use crate::base::region::HostRegion;

/// The end of a wait that is not slept but spun through: a sleeping thread wakes up to this late.
const SPIN: Duration = Duration::from_micros(80);

/// A drive by its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DriveModel {
    /// Bytes a second.
    pub rate: f64,
    /// From a read to its first byte.
    pub latency: Duration,
    /// Reads whose latencies pass at the same time.
    pub depth: u32,
}

impl fmt::Display for DriveModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} GB/s, {} us, depth {}", self.rate / 1e9, self.latency.as_micros(), self.depth)
    }
}

/// When reads of a modelled drive are done. Pure.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    model: DriveModel,
    /// When the last `depth` reads are done, oldest first.
    done: VecDeque<Duration>,
}

impl Schedule {
    pub(crate) fn new(model: DriveModel) -> Self {
        assert!(model.rate > 0.0, "a drive of {} B/s never answers", model.rate);
        assert!(model.depth > 0, "a drive of depth 0 takes no read");
        Self { model, done: VecDeque::with_capacity(model.depth as usize) }
    }

    /// When a read of `len_bytes` that is taken at `now` is done; both since the beginning.
    pub(crate) fn take(&mut self, now: Duration, len_bytes: u32) -> Duration {
        let mut begun = now;
        if self.done.len() == self.model.depth as usize {
            begun = begun.max(self.done.pop_front().expect("invariant: depth is above 0"));
        }
        let link_free = self.done.back().copied().unwrap_or_default();
        let moved = Duration::from_secs_f64(f64::from(len_bytes) / self.model.rate);
        let done = (begun + self.model.latency).max(link_free) + moved;
        self.done.push_back(done);
        done
    }
}

/// A read that the real queue has.
struct Under {
    tag: u64,
    due: Instant,
    /// Somebody looked for it in vain when it was due.
    is_late: bool,
}

/// A [`ReadQueue`] with the times of a modelled drive.
pub struct ModelledQueue {
    inner: Box<dyn ReadQueue>,
    drives: Vec<Schedule>,
    /// By file, its drive; files beyond lie on the last one.
    drive_of_file: Vec<usize>,
    begun: Instant,
    /// What the real queue has not given back, by its tag from `tag_first` on.
    under_way: VecDeque<Option<Under>>,
    tag_first: u64,
    /// Given back and not yet due.
    held: Vec<(Instant, Completion)>,
    arrived: Vec<Completion>,
    late_reads: u64,
    busy: KnownBusyTime,
}

impl ModelledQueue {
    /// Over the reads of `inner`, all from one drive.
    ///
    /// # Panics
    /// When the model's rate or depth is 0.
    pub fn new(inner: Box<dyn ReadQueue>, model: DriveModel) -> Self {
        Self::of_drives(inner, &[model], &[])
    }

    /// Over the reads of `inner`, whose files lie on `drives`: the first on that of the first number, and so on; those beyond the numbers
    /// on the last drive.
    ///
    /// # Panics
    /// When there is no drive, a number names none, or a model's rate or depth is 0.
    pub fn of_drives(inner: Box<dyn ReadQueue>, drives: &[DriveModel], drive_of_file: &[usize]) -> Self {
        assert!(
            !drives.is_empty() && drive_of_file.iter().all(|&drive| drive < drives.len()),
            "no such drive"
        );
        Self {
            inner,
            drives: drives.iter().map(|&model| Schedule::new(model)).collect(),
            drive_of_file: drive_of_file.to_vec(),
            begun: Instant::now(),
            under_way: VecDeque::new(),
            tag_first: 0,
            held: Vec::new(),
            arrived: Vec::new(),
            late_reads: 0,
            busy: KnownBusyTime::default(),
        }
    }

    /// Takes what the real queue has ended.
    fn take_in(&mut self, wait: bool) -> Result<(), DiskError> {
        let looked_at = Instant::now();
        let polled = self.inner.poll(wait, &mut self.arrived);
        let now = Instant::now();
        for mut completion in self.arrived.drain(..) {
            let index = usize::try_from(completion.tag - self.tag_first).expect("invariant: few reads");
            let under = self.under_way[index].take().expect("invariant: a read ends once");
            completion.tag = under.tag;
            if under.is_late {
                self.busy.add(under.due - self.begun, now - self.begun);
            }
            self.held.push((under.due, completion));
        }
        for under in self.under_way.iter_mut().flatten() {
            if !under.is_late && under.due <= looked_at {
                under.is_late = true;
                self.late_reads += 1;
            }
        }
        while let Some(None) = self.under_way.front() {
            self.under_way.pop_front();
            self.tag_first += 1;
        }
        polled
    }

    /// When something is due that has come, or may come in time; nothing where all that is under way is late.
    fn next_due(&self) -> Option<Instant> {
        let held = self.held.iter().map(|(due, _)| *due);
        held.chain(self.under_way.iter().flatten().filter(|under| !under.is_late).map(|under| under.due))
            .min()
    }

    /// Gives what is due.
    fn release(&mut self, done: &mut Vec<Completion>) -> bool {
        let now = Instant::now();
        let mut has_some = false;
        let mut index = 0;
        while index < self.held.len() {
            if self.held[index].0 <= now {
                done.push(self.held.swap_remove(index).1);
                has_some = true;
            } else {
                index += 1;
            }
        }
        has_some
    }
}

impl ReadQueue for ModelledQueue {
    fn push(&mut self, read: Read) -> Result<(), PushRefused> {
        if self.in_flight() == self.depth() {
            let depth = self.depth();
            return Err(PushRefused { read, depth });
        }
        let (tag, len_bytes, file) = (read.tag, read.len_bytes, usize::from(read.file.0));
        let own = self.tag_first + self.under_way.len() as u64;
        self.inner
            .push(Read { tag: own, ..read })
            .map_err(|PushRefused { read, depth }| PushRefused { read: Read { tag, ..read }, depth })?;
        let now = self.begun.elapsed();
        let drive = self.drive_of_file.get(file).copied().unwrap_or(self.drives.len() - 1);
        let due = self.drives[drive].take(now, len_bytes);
        self.busy.add(now, due);
        self.under_way.push_back(Some(Under { tag, due: self.begun + due, is_late: false }));
        Ok(())
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), DiskError> {
        loop {
            self.take_in(false)?;
            if self.release(done) || !wait || self.in_flight() == 0 {
                return Ok(());
            }
            let Some(next) = self.next_due() else {
                self.take_in(true)?;
                continue;
            };
            let left = next.saturating_duration_since(Instant::now());
            if left > SPIN {
                std::thread::sleep(left - SPIN);
            }
            while Instant::now() < next {
                std::hint::spin_loop();
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn add_region(&mut self, region: &HostRegion) -> Result<(), DiskError> {
        self.inner.add_region(region)
    }

    fn remove_region(&mut self, region: &HostRegion) -> Result<(), DiskError> {
        self.inner.remove_region(region)
    }

    fn counters(&self) -> ReadCounters {
        ReadCounters {
            late_reads: self.late_reads,
            busy_ns: self.busy.ns(self.begun.elapsed()),
            ..self.inner.counters()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{ReadPath, SourceFile, open_queue};
    use super::*;
    use crate::base::ids::FileIndex;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn latencies_overlap_and_bytes_do_not() {
        // A megabyte a millisecond.
        let mut drive = Schedule::new(DriveModel { rate: 1e9, latency: MS, depth: 2 });
        assert_eq!(drive.take(Duration::ZERO, 1_000_000), 2 * MS);
        assert_eq!(drive.take(Duration::ZERO, 1_000_000), 3 * MS);
        // The third begins when the first is done.
        assert_eq!(drive.take(Duration::ZERO, 1_000_000), 4 * MS);
        // After a pause nothing is left of the past.
        assert_eq!(drive.take(100 * MS, 3_000_000), 104 * MS);
    }

    #[test]
    fn bytes_are_the_files_and_come_no_sooner_than_the_model_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let content: Vec<u8> = (0..64 * 1024_u32).map(|index| u8::try_from(index % 251).unwrap()).collect();
        std::fs::write(&path, &content).unwrap();
        let file = Arc::new(SourceFile::open_buffered(&path).unwrap());
        let region = HostRegion::new(4 * 16 * 1024).unwrap();
        let mut buffers = region.split(16 * 1024, 4);
        let (inner, _) = open_queue(vec![file], &[region], Some(ReadPath::Pool), 4).unwrap();
        // 10,000 bytes take 5 ms.
        let model = DriveModel { rate: 2e6, latency: MS, depth: 4 };
        let mut queue = ModelledQueue::new(inner, model);
        let begun = Instant::now();
        for tag in [70, 5, 9, 1] {
            let read = Read {
                file: FileIndex(0),
                offset_bytes: tag * 100,
                len_bytes: 10_000,
                buffer: buffers.pop().unwrap(),
                tag,
            };
            assert!(queue.push(read).is_ok());
        }
        let (mut done, mut order) = (Vec::new(), Vec::new());
        while queue.in_flight() > 0 {
            queue.poll(true, &mut done).unwrap();
            for Completion { tag, buffer, result } in done.drain(..) {
                order.push(tag);
                let at_least = MS + u32::try_from(order.len()).unwrap() * 5 * MS;
                assert!(begun.elapsed() >= at_least, "read {} after {:?}", order.len(), begun.elapsed());
                let start = usize::try_from(tag * 100).unwrap();
                assert_eq!(buffer.as_slice()[result.unwrap()], content[start..start + 10_000]);
            }
        }
        order.sort_unstable();
        assert_eq!(order, [1, 5, 9, 70]);
        assert_eq!(queue.counters().reads, 4);
    }

    /// Gives a read back when somebody waits for it, or when it is told to.
    struct Patient {
        reads: Vec<Read>,
        is_ready: bool,
    }

    impl ReadQueue for Patient {
        fn push(&mut self, read: Read) -> Result<(), PushRefused> {
            self.reads.push(read);
            Ok(())
        }

        fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> Result<(), DiskError> {
            if wait || self.is_ready {
                let ended = self.reads.drain(..);
                done.extend(ended.map(|Read { tag, buffer, .. }| Completion {
                    tag,
                    buffer,
                    result: Ok(0..1),
                }));
            }
            Ok(())
        }

        fn in_flight(&self) -> usize {
            self.reads.len()
        }

        fn depth(&self) -> usize {
            4
        }

        fn counters(&self) -> ReadCounters {
            ReadCounters::default()
        }
    }

    #[test]
    fn late_is_what_was_looked_for_in_vain_and_busy_time_is_the_models() {
        let model = DriveModel { rate: 1e9, latency: MS, depth: 4 };
        let region = HostRegion::new(2 * 4096).unwrap();
        let mut buffers = region.split(4096, 2);
        let mut read = |tag| {
            let buffer = buffers.pop().unwrap();
            Read { file: FileIndex(0), offset_bytes: 0, len_bytes: 1000, buffer, tag }
        };
        let mut done = Vec::new();

        let mut queue = ModelledQueue::new(Box::new(Patient { reads: Vec::new(), is_ready: false }), model);
        assert!(queue.push(read(7)).is_ok());
        queue.poll(true, &mut done).unwrap();
        assert_eq!((done.len(), queue.counters().late_reads), (1, 1), "nothing came before it was due");
        assert!(queue.counters().busy_ns > 1_001_000, "{:?}", queue.counters());

        let mut queue = ModelledQueue::new(Box::new(Patient { reads: Vec::new(), is_ready: true }), model);
        assert!(queue.push(read(8)).is_ok());
        std::thread::sleep(3 * MS);
        queue.poll(true, &mut done).unwrap();
        assert_eq!((done.len(), queue.counters().late_reads), (2, 0), "nobody was held up");
        assert_eq!(queue.counters().busy_ns, 1_001_000, "a millisecond, and 1,000 bytes at 1 GB/s");
    }

    #[test]
    fn a_depth_of_one_pays_every_latency() {
        let mut drive = Schedule::new(DriveModel { rate: 1e9, latency: 2 * MS, depth: 1 });
        let times: Vec<_> = (0..3).map(|_| drive.take(Duration::ZERO, 1_000_000)).collect();
        assert_eq!(times, [3 * MS, 6 * MS, 9 * MS]);
    }
}
