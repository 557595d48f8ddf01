//! One measurement: blocks of one size, by one engine, so many under way.
//!
//! - In: the target, what to measure. Out: a [`ProfileRow`], or why this engine cannot be had here.
//! - Invariants: whatever goes through the page cache begins with none of the file in it, and reads no block twice. What the
//!   drive's own counters say is compared only with reads that pass the page cache.

use std::time::Duration;

use flint_rt::base::split_mix::mix;
use flint_rt::disk::profile::{Burst, Pattern, ProfileRow, ReadEngine};
use flint_rt::disk::{MappedFile, ReadPath};
use flint_rt::engine::EngineError;

use super::counters::{Counters, Traffic};
use super::mapped;
use super::reader::{Reader, Run, Until, Watch};
use super::space::{Order, Space};
use super::target::Target;
use crate::exit::{Failure, Outcome};

/// Bytes of all buffers of a measurement at most: what one registered region may have (1 GiB, io_uring_register(2)).
const BUFFERS_BYTES_MAX: u64 = 1 << 30;

/// Bursts of which there are buffers: while a layer's records are read, those of the layer before are copied to the device, and guesses
/// lie in others. Memory that is written again at once is still in a processor's cache, and drives write faster into that.
const BURSTS_BUFFERED: u32 = 3;

/// What to measure.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) engine: ReadEngine,
    pub(super) pattern: Pattern,
    pub(super) depth: u32,
    pub(super) time: Duration,
    pub(super) part: Option<String>,
    pub(super) is_record: bool,
    pub(super) with_uploads: bool,
}

/// The depth that a row has of the one that is wanted: no more blocks than there are, nor than have buffers.
pub(super) fn depth_of(space: &Space, wanted: u32) -> u32 {
    let most = space.len().min(BUFFERS_BYTES_MAX / space.block_bytes().max(1)).max(1);
    wanted.min(u32::try_from(most).unwrap_or(u32::MAX))
}

/// Measures rows of one target, and keeps what all of them have to say.
pub(super) struct Rows<'a> {
    target: &'a Target,
    devices: Vec<String>,
    seed: u64,
    /// The path that the first engine's deepest row of records took, in words.
    pub(super) read_path: Option<(u32, ReadEngine, String)>,
    /// Engines that could not be had, and why.
    pub(super) missing: Vec<(ReadEngine, String)>,
    /// What the drives' counters saw, and what we read, while only direct reads of ours went on.
    pub(super) traffic: Traffic,
}

impl<'a> Rows<'a> {
    pub(super) fn new(target: &'a Target) -> Self {
        let mut devices: Vec<String> = target
            .drives()
            .iter()
            .flat_map(|drive| drive.devices().into_iter().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        // Two file systems may lie on one drive, whose counters are to be taken once.
        devices.sort_unstable();
        devices.dedup();
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 1_u64);
        Self { target, devices, seed, read_path: None, missing: Vec::new(), traffic: Traffic::default() }
    }

    fn order(&mut self, pattern: Pattern, len: u64) -> Order {
        // Other blocks first each time, so that no row reads what the one before left in the drive's memory.
        self.seed = mix(self.seed);
        match pattern {
            Pattern::Random => Order::Random { len, seed: self.seed },
            Pattern::Sequential => Order::Sequential { len },
        }
    }

    /// One row; `None` where the engine cannot be had.
    pub(super) fn row(
        &mut self,
        space: &Space,
        wanted: &Wanted,
        watch: Option<Watch<'_>>,
    ) -> Outcome<Option<ProfileRow>> {
        if space.len() == 0 || self.missing.iter().any(|(engine, _)| *engine == wanted.engine) {
            return Ok(None);
        }
        let order = self.order(wanted.pattern, space.len());
        let depth = depth_of(space, wanted.depth);
        let is_cached = !wanted.engine.is_direct() || !self.target.is_direct();
        let blocks = if is_cached { space.len() } else { u64::MAX };
        let until = Until { time: wanted.time, blocks };
        if is_cached {
            self.forget_cached();
        }
        let before = Counters::read(&self.devices);
        let run = match wanted.engine {
            ReadEngine::Ring | ReadEngine::RingPlain | ReadEngine::Pool => {
                let files = self.target.sources();
                match Reader::new(&files, space, order, wanted.engine.path(), depth, depth)? {
                    Ok(mut reader) => {
                        let is_deeper =
                            |known: &(u32, ReadEngine, String)| known.1 == wanted.engine && known.0 < depth;
                        if wanted.is_record && self.read_path.as_ref().is_none_or(is_deeper) {
                            self.read_path = Some((depth, wanted.engine, reader.report().to_string()));
                        }
                        reader.steady(until, watch)?
                    }
                    Err(why) => {
                        self.missing.push((wanted.engine, why));
                        return Ok(None);
                    }
                }
            }
            ReadEngine::Buffered => {
                let files = self.target.buffered()?;
                match Reader::new(&files, space, order, Some(ReadPath::Pool), depth, depth)? {
                    Ok(mut reader) => reader.steady(until, watch)?,
                    Err(why) => {
                        self.missing.push((wanted.engine, why));
                        return Ok(None);
                    }
                }
            }
            ReadEngine::Mmap => match self.maps() {
                Ok(maps) => mapped::steady(&maps, space, order, depth, until)?,
                Err(error) => {
                    self.missing.push((wanted.engine, error.to_string()));
                    return Ok(None);
                }
            },
        };
        if !is_cached {
            self.traffic.add(before, Counters::read(&self.devices), run.bytes, run.seconds);
        }
        if run.count == 0 || run.seconds <= 0.0 {
            return Ok(None);
        }
        Ok(Some(row_of(space, wanted, depth, &run)))
    }

    /// One kind of burst of records.
    pub(super) fn burst(
        &mut self,
        engine: ReadEngine,
        records: u32,
        time: Duration,
    ) -> Outcome<Option<Burst>> {
        let space = &self.target.records;
        let buffered = records.saturating_mul(BURSTS_BUFFERED);
        if records > 1 && u64::from(buffered) * space.block_bytes() > BUFFERS_BYTES_MAX {
            return Ok(None);
        }
        let order = self.order(Pattern::Random, space.len());
        let path = engine.path().unwrap_or(ReadPath::Ring);
        let blocks = if self.target.is_direct() { u64::MAX } else { space.len() };
        if !self.target.is_direct() {
            self.forget_cached();
        }
        let files = self.target.sources();
        let opened = Reader::new(&files, space, order, Some(path), records, buffered)?;
        let Ok(mut reader) = opened else { return Ok(None) };
        let before = Counters::read(&self.devices);
        let run = reader.bursts(records, Until { time, blocks })?;
        if run.count == 0 {
            return Ok(None);
        }
        if self.target.is_direct() {
            // The first burst is in the counters and not in the run.
            let first = run.bytes / run.count;
            self.traffic.add(before, Counters::read(&self.devices), run.bytes + first, run.seconds);
        }
        Ok(Some(Burst {
            records,
            bursts: run.count,
            seconds: run.seconds / run.count as f64,
            gb_s: run.bytes as f64 / run.seconds / 1e9,
            latency_us: run.latency.percentiles(),
        }))
    }

    fn maps(&self) -> Result<Vec<MappedFile>, EngineError> {
        self.target.files.iter().map(|file| Ok(file.file.map()?)).collect()
    }

    /// Asks the kernel to drop the files' cached pages; those that others have mapped or written stay.
    fn forget_cached(&self) {
        for file in &self.target.files {
            file.file.drop_cached(0, file.file.len_bytes());
        }
    }
}

fn row_of(space: &Space, wanted: &Wanted, depth: u32, run: &Run) -> ProfileRow {
    let gb = run.bytes as f64 / 1e9;
    ProfileRow {
        engine: wanted.engine,
        pattern: wanted.pattern,
        is_record: wanted.is_record,
        block_bytes: space.block_bytes(),
        depth,
        part: wanted.part.clone(),
        with_uploads: wanted.with_uploads,
        seconds: run.seconds,
        reads: run.count,
        bytes: run.bytes,
        gb_s: gb / run.seconds,
        iops: run.count as f64 / run.seconds,
        latency_us: run.latency.percentiles(),
        cpu_s_per_gb: (!wanted.with_uploads).then_some(run.cpu_seconds / gb),
    }
}

/// The product's own engine: the first direct one that works here.
///
/// # Errors
/// When none does.
pub(super) fn product_engine(target: &Target) -> Outcome<ReadEngine> {
    let files = target.sources();
    let order = Order::Sequential { len: 1 };
    for (engine, path) in [
        (ReadEngine::Ring, ReadPath::Ring),
        (ReadEngine::RingPlain, ReadPath::RingPlain),
        (ReadEngine::Pool, ReadPath::Pool),
    ] {
        if Reader::new(&files, &target.records, order, Some(path), 1, 1)?.is_ok() {
            return Ok(engine);
        }
    }
    Err(Failure::usage("no way of reading works here"))
}
