//! What a drive takes for expert records, measured by the reads that decode makes.
//!
//! - In: a model's files, or any file, or a folder in which a file is made for the while. Out: [`Measured`].
//! - Invariants: records are read through the runtime's own queue, in random order, none twice before all were read once.
//!   Bursts are what a layer with so many missing experts waits for; the steady rate is what a prompt sees. A file that is
//!   made is removed, also by Ctrl-C.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flint_rt::base::ids::{FileIndex, Span};
use flint_rt::base::limits::READS_IN_FLIGHT_MAX;
use flint_rt::base::region::{HostBuffer, HostRegion};
use flint_rt::base::units::{align_up, display_bytes};
use flint_rt::base::volume::free_bytes;
use flint_rt::disk::{self, Completion, Read, ReadPath, ReadQueue, SourceFile};
use flint_rt::engine::EngineError;
use flint_rt::store::Source;
use tempfile::TempDir;

use crate::exit::{Exit, Failure, Outcome};
use crate::info::{FileFacts, file_facts};
use crate::interrupt::{self, Reply};
use crate::terminal::Bar;

/// Length of a file that is made, and its records: many times what drives keep in their own memory would fill people's
/// drives.
const MADE_BYTES: u64 = 1 << 30;
const MADE_RECORDS: u64 = 2048;

/// Below this, what is read again comes from the drive's own memory as likely as not.
const SPREAD_BYTES_MIN: u64 = 512 << 20;

/// Records under way in the steady runs.
const STEADY: [u32; 3] = [8, 16, 32];

/// Where records are read.
pub(super) struct Target {
    files: Vec<Arc<SourceFile>>,
    /// Pieces of each record.
    records: Vec<Vec<Span>>,
    /// The file or folder, for reports.
    pub(super) shown: String,
    /// How its first file with records lies on the drive.
    pub(super) facts: FileFacts,
    /// Whether that file takes less room than it is long.
    has_holes: bool,
    _made: Option<TempDir>,
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Records asked for at once, or kept under way.
    pub(super) records: u32,
    /// Seconds until all of a burst have come, on average; of a steady run, seconds a record.
    pub(super) seconds: f64,
    /// Bytes a second.
    pub(super) rate: f64,
}

/// What was measured.
pub(super) struct Measured {
    pub(super) bursts: Vec<Run>,
    pub(super) steady: Vec<Run>,
    /// The read path that was chosen.
    pub(super) queue: String,
    pub(super) seconds: f64,
    pub(super) read_bytes: u64,
    /// What makes the numbers doubtful.
    pub(super) doubts: Vec<String>,
}

impl Target {
    /// The expert records of a model.
    pub(super) fn model(source: &Source, shown: String) -> Outcome<Self> {
        let records: Vec<Vec<Span>> = source
            .expert_keys()
            .map(|key| source.expert_pieces(key).iter().map(|piece| piece.span).collect())
            .collect();
        let file = records.first().and_then(|record| record.first()).map_or(0, |span| span.file.0);
        let path = &source.files()[usize::from(file)];
        let (facts, has_holes) = (file_facts(path)?, has_holes(path));
        Ok(Self { files: open(source.files())?, records, shown, facts, has_holes, _made: None })
    }

    /// Records of `record_bytes` in the file at `path`, or in one that is made in the folder `path`.
    pub(super) fn path(path: &Path, record_bytes: u64) -> Outcome<Self> {
        let shown = path.display().to_string();
        let metadata =
            fs::metadata(path).map_err(|error| Failure::because(Exit::Usage, shown.clone(), &error))?;
        if !metadata.is_dir() {
            return Self::file(path, record_bytes, shown, None);
        }
        let failed = |error| Failure::because(Exit::Failed, shown.clone(), &error);
        let dir = tempfile::Builder::new().prefix("flint-rt-measure-").tempdir_in(path).map_err(failed)?;
        let file = dir.path().join("records");
        let is_whole = make_file(&file, record_bytes).map_err(failed)?;
        check_interrupt()?;
        assert!(is_whole, "only an interrupt ends the writing early");
        Self::file(&file, record_bytes, shown, Some(dir))
    }

    fn file(path: &Path, record_bytes: u64, shown: String, made: Option<TempDir>) -> Outcome<Self> {
        let facts = file_facts(path)?;
        let stride = align_up(record_bytes, 4096);
        let count = facts.len_bytes / stride;
        if count < 2 {
            return Err(Failure::usage(format!(
                "{shown}: too short to measure: it holds no two records of {}",
                display_bytes(record_bytes)
            )));
        }
        let span = |index| Span { file: FileIndex(0), offset_bytes: index * stride, len_bytes: record_bytes };
        let records = (0..count).map(|index| vec![span(index)]).collect();
        let has_holes = has_holes(path);
        Ok(Self { files: open(&[path.to_owned()])?, records, shown, facts, has_holes, _made: made })
    }
}

fn has_holes(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.blocks() * 512 < file.len() / 2)
}

fn open(paths: &[PathBuf]) -> Outcome<Vec<Arc<SourceFile>>> {
    let files = paths.iter().map(|path| Ok(Arc::new(SourceFile::open(path)?)));
    Ok(files.collect::<Result<_, EngineError>>()?)
}

/// A file of numbers that no drive can compress.
///
/// Whether it became whole: an interrupt ends it early.
fn make_file(path: &Path, record_bytes: u64) -> io::Result<bool> {
    let _asked = Reply::begin();
    let parent = path.parent().unwrap_or(Path::new("/"));
    let stride = align_up(record_bytes, 4096);
    let len_bytes = MADE_BYTES.min(MADE_RECORDS * stride).min(free_bytes(parent)? / 4);
    if len_bytes < 16 * stride {
        return Err(io::Error::new(io::ErrorKind::StorageFull, "too little room for a file to measure by"));
    }
    let bar = Bar::bytes("writing a file");
    let mut file = File::create_new(path)?;
    let mut random = Random::new();
    let mut block = vec![0_u8; 1 << 20];
    for done in 0..len_bytes >> 20 {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        file.write_all(&block)?;
        bar.set(done << 20, len_bytes);
        if interrupt::is_requested() {
            return Ok(false);
        }
    }
    file.sync_all()?;
    Ok(true)
}

/// Ends the command where Ctrl-C asked for it, so that a file which was made is removed on the way.
fn check_interrupt() -> Outcome {
    if interrupt::is_requested() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Measures for about `seconds`, in bursts of up to `experts_used` records and in steady runs.
pub(super) fn measure(
    target: &Target,
    wanted: Option<ReadPath>,
    experts_used: u32,
    seconds: u32,
) -> Outcome<Measured> {
    let _asked = Reply::begin();
    let mut reader = Reader::new(target, wanted)?;
    let mut bursts: Vec<u32> = [1, 2, 4, 8, 16].into_iter().filter(|&count| count < experts_used).collect();
    bursts.push(experts_used);
    bursts.retain(|&count| count == 1 || count <= reader.records_max());
    let steady = STEADY.into_iter().filter(|&count| count <= reader.records_max()).collect::<Vec<_>>();
    let runs = bursts.len() + steady.len().max(1);
    let share = Duration::from_secs(seconds.into()) / u32::try_from(runs).unwrap_or(1);
    let bar = Bar::bytes("measuring");
    bar.message("measuring");
    let started = Instant::now();
    let bursts = bursts.into_iter().map(|count| reader.bursts(count, share)).collect::<Outcome<Vec<_>>>()?;
    let mut steady =
        steady.into_iter().map(|count| reader.steady(count, share)).collect::<Outcome<Vec<_>>>()?;
    if steady.is_empty() {
        steady.push(reader.steady(1, share)?);
    }
    bar.clear();
    let counters = reader.queue.counters();
    let mut doubts = Vec::new();
    let spread: u64 = target.records.iter().flatten().map(|span| span.len_bytes).sum();
    if spread < SPREAD_BYTES_MIN {
        doubts.push(format!(
            "only {} were there to read: a drive's own memory holds that, so these rates may be too high",
            display_bytes(spread)
        ));
    }
    if target.has_holes {
        doubts.push("the file has holes, which no drive is asked for: these rates are memory's".to_owned());
    }
    if let Some(why) = &target.facts.why_buffered {
        doubts.push(format!(
            "reads went through the page cache ({why}): cached pages are not the drive's rate"
        ));
    }
    Ok(Measured {
        bursts,
        steady,
        queue: reader.report.clone(),
        seconds: started.elapsed().as_secs_f64(),
        read_bytes: counters.read_bytes,
        doubts,
    })
}

/// The queue with its buffers.
struct Reader<'a> {
    target: &'a Target,
    queue: Box<dyn ReadQueue>,
    buffers: Vec<HostBuffer>,
    done: Vec<Completion>,
    report: String,
    pieces: usize,
    /// Records in random order, and the next of them.
    order: Vec<usize>,
    next: usize,
}

impl<'a> Reader<'a> {
    fn new(target: &'a Target, wanted: Option<ReadPath>) -> Outcome<Self> {
        let longest = target.records.iter().flatten().map(|span| span.len_bytes).max().unwrap_or(1);
        let longest = u32::try_from(longest).map_err(|_| Failure::usage("records of 4 GiB and more"))?;
        let buffer_bytes = disk::buffer_bytes_for(&target.files, longest);
        let count = READS_IN_FLIGHT_MAX as usize;
        let region = HostRegion::new(buffer_bytes * count)
            .map_err(|error| Failure::because(Exit::Memory, "buffers to read into", &error))?;
        let buffers = region.split(buffer_bytes, count);
        let (queue, report) = disk::open_queue(target.files.clone(), &[region], wanted, READS_IN_FLIGHT_MAX)
            .map_err(EngineError::from)?;
        let mut order: Vec<usize> = (0..target.records.len()).collect();
        let mut random = Random::new();
        for index in (1..order.len()).rev() {
            let other = random.next() % (index as u64 + 1);
            order.swap(index, usize::try_from(other).unwrap_or(0));
        }
        let pieces = target.records.iter().map(Vec::len).max().unwrap_or(1);
        let report = report.to_string();
        Ok(Self { target, queue, buffers, done: Vec::new(), report, pieces, order, next: 0 })
    }

    /// Records that may be under way at once.
    fn records_max(&self) -> u32 {
        READS_IN_FLIGHT_MAX / u32::try_from(self.pieces).unwrap_or(1).max(1)
    }

    /// Starts the reads of the next record; gives its bytes.
    fn push_record(&mut self) -> Outcome<u64> {
        let record = &self.target.records[self.order[self.next]];
        self.next = (self.next + 1) % self.order.len();
        let mut bytes = 0;
        for span in record {
            let buffer = self.buffers.pop().ok_or_else(|| Failure::new(Exit::Failed, "no buffer is left"))?;
            bytes += span.len_bytes;
            let len_bytes = u32::try_from(span.len_bytes).map_err(|_| Failure::usage("a record of 4 GiB"))?;
            let read = Read { file: span.file, offset_bytes: span.offset_bytes, len_bytes, buffer, tag: 0 };
            self.queue
                .push(read)
                .map_err(|error| Failure::because(Exit::Failed, "the read queue", &error))?;
        }
        Ok(bytes)
    }

    /// Waits for one read at least.
    fn collect(&mut self) -> Outcome {
        check_interrupt()?;
        self.queue.poll(true, &mut self.done).map_err(EngineError::from)?;
        for completion in self.done.drain(..) {
            completion.result.map_err(EngineError::from)?;
            self.buffers.push(completion.buffer);
        }
        Ok(())
    }

    /// `count` records at once, again and again; the first burst, which wakes the drive, does not count.
    fn bursts(&mut self, count: u32, time: Duration) -> Outcome<Run> {
        let started = Instant::now();
        let (mut bytes, mut bursts, mut seconds) = (0, 0_u32, 0.0);
        let mut is_first = true;
        while started.elapsed() < time || bursts == 0 {
            let burst = Instant::now();
            let mut burst_bytes = 0;
            for _ in 0..count {
                burst_bytes += self.push_record()?;
            }
            while self.queue.in_flight() > 0 {
                self.collect()?;
            }
            if !std::mem::take(&mut is_first) {
                seconds += burst.elapsed().as_secs_f64();
                bytes += burst_bytes;
                bursts += 1;
            }
        }
        Ok(Run { records: count, seconds: seconds / f64::from(bursts), rate: bytes as f64 / seconds })
    }

    /// `count` records under way all the time.
    fn steady(&mut self, count: u32, time: Duration) -> Outcome<Run> {
        let started = Instant::now();
        let (mut bytes, mut records) = (0, 0_u32);
        let in_flight_max = count as usize * self.pieces;
        while started.elapsed() < time || records < count {
            while self.queue.in_flight() + self.pieces <= in_flight_max {
                bytes += self.push_record()?;
                records += 1;
            }
            self.collect()?;
        }
        while self.queue.in_flight() > 0 {
            self.collect()?;
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(Run { records: count, seconds: seconds / f64::from(records), rate: bytes as f64 / seconds })
    }
}

/// Steele, Lea and Flood's splitmix64, begun from the clock: other records first each time.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(now.as_secs() ^ u64::from(now.subsec_nanos()) << 32)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
