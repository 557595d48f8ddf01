//! `flint-rt disk-profile`: what a drive gives for exactly the runtime's reads.
//!
//! - In: paths, flags. Out: a table, findings, the drive's saved profile.
//! - Invariants: reads go through the product's own queue. Nothing is written to the drive but the file of `--make-file`, which
//!   is removed, and the profile in the user's state folder.

mod args;
mod counters;
mod decode;
mod facts;
mod findings;
mod fio;
mod latency;
mod made;
mod mapped;
mod reader;
mod report;
mod rows;
mod schedule;
mod space;
mod target;
mod uploads;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flint_rt::disk::ReadPath;
use flint_rt::disk::profile::{
    Burst, DriveProfile, PROFILE_SCHEMA_VERSION, Pattern, ProfileRow, ReadEngine, Sample, Uploads,
};
use flint_rt::engine::EngineError;
use flint_rt::gpu::GpuError;

pub(crate) use args::DiskProfileArgs;
pub(crate) use decode::DecodeReads;
pub(crate) use target::Target;

use crate::exit::{Failure, Outcome};
use crate::folders;
use crate::interrupt::Reply;
use crate::terminal::{Bar, note};
use args::Engine;
use facts::Facts;
use findings::Seen;
use latency::Latency;
use rows::{Rows, Wanted, depth_of};
use schedule::{MIDDLE_DEPTH, Step};
use uploads::Uploader;

/// Share of a row's time that rows other than those of records take: they are there to compare.
const OTHER_SHARE: f64 = 0.5;

/// Seconds of a sample of a long run.
const SAMPLE_S: f64 = 1.0;

/// Runs the command.
pub(crate) fn run(args: &DiskProfileArgs) -> Outcome {
    let _asked = Reply::begin();
    // Where only blocks are read, no file need hold two records.
    let target = Target::open(&args.paths, args.record.or(args.block), args.make_file)?;
    if let Some(name) = args.device.as_ref().filter(|_| !args.no_gpu && !args.is_single()) {
        // A device that was named is wanted; that there is none such is said before the drive is measured.
        if let Err(error @ GpuError::InvalidChoice { .. }) = Uploader::open(Some(name.clone())) {
            return Err(EngineError::from(error).into());
        }
    }
    let mut session = Session::new(&target)?;
    let row_seconds = args.row_seconds.unwrap_or(match (args.is_single(), args.full) {
        (true, _) => 5.0,
        (_, true) => 0.4,
        _ => 0.6,
    });
    let row_time = Duration::from_secs_f64(row_seconds);
    if args.is_single() {
        session.single(args, row_time)?;
    } else {
        session.set(args.full, row_time)?;
        if !args.no_gpu {
            session.uploads(args.device.clone(), row_time)?;
        }
    }
    if let Some(seconds) = args.seconds {
        session.sustained(args.depth.unwrap_or(MIDDLE_DEPTH), seconds)?;
    }
    let profile = session.profile();
    let is_kept = !args.no_save && !args.is_single() && profile.is_standard();
    let saved = is_kept.then(|| save(&profile)).flatten();
    report::print(&profile, &target, args.output(), saved.as_deref())
}

/// Measures what a model's decode asks of a drive, for about `seconds`: depths and bursts, nothing
/// else. The caller asks for signals to be told (`Reply`).
pub(crate) fn measure_decode(
    target: &Target,
    wanted: Option<ReadPath>,
    seconds: u32,
) -> Outcome<DriveProfile> {
    let mut session = Session::new(target)?;
    if let Some(path) = wanted {
        session.engine = path.into();
    }
    let bursts = schedule::bursts(target.experts_used, false);
    let depths = [8, 16, 32];
    let shares = OTHER_SHARE * bursts.len() as f64 + depths.len() as f64;
    let share = Duration::from_secs(seconds.into()).div_f64(shares);
    session.expect(bursts.len() + depths.len());
    for records in bursts {
        session.burst(records, share)?;
    }
    for depth in depths {
        session.step(
            Step { engine: session.engine, pattern: Pattern::Random, block_bytes: None, depth },
            share,
        )?;
    }
    Ok(session.profile())
}

/// Where the profiles of drives are kept, if there is a place.
pub(crate) fn profiles_dir() -> Option<PathBuf> {
    folders::state_dir().map(|dir| dir.join("drives"))
}

fn save(profile: &DriveProfile) -> Option<PathBuf> {
    let dir = profiles_dir()?;
    match profile.save(&dir) {
        Ok(path) => Some(path),
        Err(error) => {
            note(&format!("note: the profile is not saved: {error}"));
            None
        }
    }
}

/// A measurement under way.
struct Session<'a> {
    target: &'a Target,
    rows: Rows<'a>,
    /// The product's own engine here.
    engine: ReadEngine,
    bar: Bar,
    done: u64,
    total: u64,
    began: Instant,
    facts: Facts,
    measured: Vec<ProfileRow>,
    bursts: Vec<Burst>,
    uploads: Option<Uploads>,
    sustained: Vec<Sample>,
    /// Seconds of that as asked for, and as it was.
    sustained_seconds: Option<(u32, f64)>,
    no_uploads: Option<String>,
    is_software_device: bool,
}

impl<'a> Session<'a> {
    fn new(target: &'a Target) -> Outcome<Self> {
        Ok(Self {
            target,
            rows: Rows::new(target),
            engine: rows::product_engine(target)?,
            bar: Bar::steps("measuring"),
            done: 0,
            total: 0,
            began: Instant::now(),
            facts: Facts::look(target),
            measured: Vec::new(),
            bursts: Vec::new(),
            uploads: None,
            sustained: Vec::new(),
            sustained_seconds: None,
            no_uploads: None,
            is_software_device: false,
        })
    }

    /// So many measurements more will come.
    fn expect(&mut self, count: usize) {
        self.total += count as u64;
        self.bar.set(self.done, self.total);
    }

    fn step_done(&mut self) {
        self.done += 1;
        self.bar.set(self.done, self.total);
    }

    /// The standard or the full set.
    fn set(&mut self, is_full: bool, time: Duration) -> Outcome {
        let steps = if is_full { schedule::full(self.engine) } else { schedule::standard(self.engine) };
        let bursts = schedule::bursts(self.target.experts_used, true);
        let parts = self.target.parts();
        self.expect(steps.len() + bursts.len() + parts.len());
        let (cached, direct): (Vec<Step>, Vec<Step>) =
            steps.into_iter().partition(|step| !step.engine.is_direct());
        for step in direct {
            self.step(step, time)?;
        }
        for records in bursts {
            self.burst(records, time)?;
        }
        for (name, files) in parts {
            let space = self.target.records.only(|file| files.contains(&file));
            let wanted = self.wanted(self.engine, Pattern::Random, MIDDLE_DEPTH, time);
            let row = self.rows.row(&space, &Wanted { part: Some(name), ..wanted }, None)?;
            self.measured.extend(row);
            self.step_done();
        }
        for step in cached {
            self.step(step, time)?;
        }
        Ok(())
    }

    /// The one row that was asked for.
    fn single(&mut self, args: &DiskProfileArgs, time: Duration) -> Outcome {
        let engine = match args.engine {
            None => self.engine,
            Some(Engine::Ring) => ReadEngine::Ring,
            Some(Engine::RingPlain) => ReadEngine::RingPlain,
            Some(Engine::Pool) => ReadEngine::Pool,
            Some(Engine::Buffered) => ReadEngine::Buffered,
            Some(Engine::Mmap) => ReadEngine::Mmap,
        };
        let pattern = if args.sequential { Pattern::Sequential } else { Pattern::Random };
        let depth = args.depth.unwrap_or(MIDDLE_DEPTH);
        self.expect(1);
        self.step(Step { engine, pattern, block_bytes: args.block, depth }, time)?;
        match self.rows.missing.first() {
            Some((engine, why)) => {
                Err(Failure::usage(format!("--engine {}: cannot be had here: {why}", engine.name())))
            }
            None => Ok(()),
        }
    }

    fn wanted(&self, engine: ReadEngine, pattern: Pattern, depth: u32, time: Duration) -> Wanted {
        Wanted { engine, pattern, depth, time, part: None, is_record: true, with_uploads: false }
    }

    fn step(&mut self, step: Step, time: Duration) -> Outcome {
        let wanted = self.wanted(step.engine, step.pattern, step.depth, time);
        if !self.is_measured(step) {
            let row = match step.block_bytes {
                None => self.rows.row(&self.target.records, &wanted, None)?,
                Some(block_bytes) => {
                    let time = if self.total > 1 { time.mul_f64(OTHER_SHARE) } else { time };
                    let wanted = Wanted { is_record: false, time, ..wanted };
                    self.rows.row(&self.target.blocks(block_bytes), &wanted, None)?
                }
            };
            self.measured.extend(row);
        }
        self.step_done();
        Ok(())
    }

    /// Whether its row is there: where little is to be read, several depths are the same one.
    fn is_measured(&self, step: Step) -> bool {
        let blocks = step.block_bytes.map(|block_bytes| self.target.blocks(block_bytes));
        let space = blocks.as_ref().unwrap_or(&self.target.records);
        let (block_bytes, depth) = (space.block_bytes(), depth_of(space, step.depth));
        self.measured.iter().any(|row| {
            (row.engine, row.pattern, row.is_record)
                == (step.engine, step.pattern, step.block_bytes.is_none())
                && (row.block_bytes, row.depth) == (block_bytes, depth)
                && row.part.is_none()
                && !row.with_uploads
        })
    }

    fn burst(&mut self, records: u32, time: Duration) -> Outcome {
        if u64::from(records) <= self.target.records.len() {
            let burst = self.rows.burst(self.engine, records, time.mul_f64(OTHER_SHARE))?;
            self.bursts.extend(burst);
        }
        self.step_done();
        Ok(())
    }

    /// Reads and copies alone and together.
    fn uploads(&mut self, device: Option<String>, time: Duration) -> Outcome {
        self.expect(3);
        let uploader = match Uploader::open(device) {
            Ok(uploader) => uploader,
            Err(error) => {
                self.no_uploads = Some(error.to_string());
                return Ok(());
            }
        };
        self.is_software_device = uploader.is_software();
        let wanted = self.wanted(self.engine, Pattern::Random, MIDDLE_DEPTH, time);
        let wanted = Wanted { with_uploads: true, ..wanted };
        let is_over = AtomicBool::new(false);
        // Copies alone, reads alone, both: one after the other, so that each compares with its neighbour.
        let no_thread =
            |error: io::Error| Failure::because(crate::exit::Exit::Failed, "a thread that copies", &error);
        let alone = thread::scope(|scope| {
            let copying = thread::Builder::new()
                .spawn_scoped(scope, || uploader.copy_until(&is_over))
                .map_err(no_thread)?;
            thread::sleep(time);
            is_over.store(true, Ordering::Relaxed);
            Ok::<_, Failure>(copying.join())
        })?;
        let lost = || Failure::new(crate::exit::Exit::Failed, "the thread that copies ended early");
        let alone = alone.map_err(|_| lost())?.map_err(EngineError::from)?;
        self.step_done();
        let reads_alone =
            self.rows.row(&self.target.records, &Wanted { with_uploads: false, ..wanted.clone() }, None)?;
        self.step_done();
        is_over.store(false, Ordering::Relaxed);
        let (both, row) = thread::scope(|scope| {
            let copying = thread::Builder::new()
                .spawn_scoped(scope, || uploader.copy_until(&is_over))
                .map_err(no_thread)?;
            let row = self.rows.row(&self.target.records, &wanted, None);
            is_over.store(true, Ordering::Relaxed);
            Ok::<_, Failure>((copying.join(), row))
        })?;
        let (both, row) = (both.map_err(|_| lost())?.map_err(EngineError::from)?, row?);
        self.step_done();
        if let (Some(reads_alone), Some(row)) = (reads_alone, row) {
            self.uploads = Some(Uploads {
                device: uploader.title(),
                host_path: uploader.host_path().to_string(),
                alone_gb_s: alone / 1e9,
                with_reads_gb_s: both / 1e9,
                reads_alone_gb_s: reads_alone.gb_s,
                reads_with_gb_s: row.gb_s,
            });
            self.measured.push(row);
        }
        Ok(())
    }

    /// A long run at one depth, a sample a second.
    fn sustained(&mut self, depth: u32, seconds: u32) -> Outcome {
        self.expect(seconds as usize);
        let devices: Vec<String> = self.facts.drives.iter().map(|drive| drive.name.clone()).collect();
        let temperature = || {
            let all = devices.iter().filter_map(|name| facts::heat(name).now_c);
            all.fold(None, |hottest: Option<f64>, now| Some(hottest.map_or(now, |hottest| hottest.max(now))))
        };
        let wanted = self.wanted(self.engine, Pattern::Random, depth, Duration::from_secs(seconds.into()));
        let mut samples: Vec<Sample> = Vec::new();
        let mut latency = Latency::new();
        let (mut begin, mut window, mut bytes) = (None, Instant::now(), 0_u64);
        let (bar, before, total) = (&self.bar, self.done, self.total);
        let mut watch = |now: Instant, block_bytes: u64, taken: Duration| {
            let begin = *begin.get_or_insert_with(|| {
                window = now;
                now
            });
            bytes += block_bytes;
            latency.add(taken);
            let length = (now - window).as_secs_f64();
            if length >= SAMPLE_S {
                samples.push(Sample {
                    at_s: (now - begin).as_secs_f64(),
                    gb_s: bytes as f64 / length / 1e9,
                    p99_us: latency.percentiles().p99,
                    temperature_c: temperature(),
                });
                (window, bytes) = (now, 0);
                latency.clear();
                bar.set((before + samples.len() as u64).min(total), total);
            }
        };
        let row = self.rows.row(&self.target.records, &wanted, Some(&mut watch))?;
        self.sustained = samples;
        self.sustained_seconds = row.as_ref().map(|row| (seconds, row.seconds));
        // The set has a row of this depth, if there was a set.
        if self.measured.is_empty() {
            self.measured.extend(row);
        }
        Ok(())
    }

    fn profile(self) -> DriveProfile {
        let target = self.target;
        let direct = self.measured.iter().filter(|row| row.engine.is_direct());
        let best_gb_s = direct.map(|row| row.gb_s).fold(0.0, f64::max);
        let mut facts = self.facts;
        for drive in &mut facts.drives {
            drive.heat = facts::heat(&drive.name);
        }
        let seen = Seen {
            best_gb_s: if target.is_direct() { best_gb_s } else { 0.0 },
            spread_bytes: target.records.total_bytes(),
            traffic: self.rows.traffic,
            sustained: self.sustained,
            sustained_seconds: self.sustained_seconds,
            missing: self.rows.missing,
            is_made: target.is_made,
            no_uploads: self.no_uploads,
            is_software_device: self.is_software_device,
        };
        let findings = findings::find(&facts, &seen);
        DriveProfile {
            schema_version: PROFILE_SCHEMA_VERSION,
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            measured_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            paths: target.paths.clone(),
            drives: target.drives(),
            record_bytes: target.record_bytes,
            record_from: target.record_from.to_owned(),
            reads_a_record: target.records.pieces(),
            read_path: self
                .rows
                .read_path
                .map_or_else(|| self.engine.name().to_owned(), |(_, _, report)| report),
            is_direct: target.is_direct(),
            spread_bytes: seen.spread_bytes,
            seconds: self.began.elapsed().as_secs_f64(),
            rows: self.measured,
            bursts: self.bursts,
            uploads: self.uploads,
            sustained: seen.sustained,
            findings,
        }
    }
}
