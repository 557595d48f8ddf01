//! `cargo bench --bench read_queue`: the read queue beside a raw loop over the same file, records of the full Flint in
//! random order, past the page cache.
//!
//! The limit is an io_uring loop with nothing around it: no progress, no retries, no bookkeeping, each buffer and the file
//! registered. For the pool of pread threads at depth 1 it is a loop of pread. The group `registration` compares two raw
//! loops: one with each buffer registered by itself, and one with all of them registered as one long piece.
//!
//! The group `pages` runs one raw loop on two sets of buffers: in small pages, and in huge ones where there are any. All else
//! compares loops on the very same buffers.
//!
//! The file is made (1 GiB of random bytes in the build's folder) and removed; `FLINT_RT_BENCH_FILE` names one that is there,
//! on the drive that is meant. What does not fit the drive's own memory, and was not just written, measures better.

#[path = "support/bytes.rs"]
mod bytes;
#[path = "support/paired.rs"]
mod paired;
#[path = "support/raw.rs"]
mod raw;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flint_rt::base::ids::FileIndex;
use flint_rt::disk::{Completion, Read, ReadPath, ReadQueue, SourceFile, open_queue};
use paired::{Bench, Limit, Work, repeat};
use raw::{Memory, RawLoop, Registered};

/// An expert record of the full Flint.
const RECORD_BYTES: u32 = 1_966_080;

/// Records read between two looks at the clock: more than the greatest depth.
const BATCH: u64 = 32;

/// Bytes of the file that is made.
const MADE_BYTES: usize = 1 << 30;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let mut bench = Bench::new(1200);
    let (_made, path) = file()?;
    let file = Arc::new(SourceFile::open(&path)?);
    println!("{}: {}\n", path.display(), file.direct());
    let work = Work::Bytes(BATCH * u64::from(RECORD_BYTES));
    for is_small in [false, true] {
        let pages = if is_small { "small pages" } else { "huge pages where there are any" };
        for depth in [1, 4, 16] {
            raw::deny_huge_pages(is_small);
            let memory = Memory::new(RECORD_BYTES as usize, depth)?;
            let half = places(&file) / 2;
            let paths = [ReadPath::Ring, ReadPath::RingPlain, ReadPath::Pool];
            for path in paths.into_iter().filter(|path| !is_small || *path == ReadPath::Ring) {
                let name = format!("{path}, depth {depth}, {pages}");
                let mut ours = match OurLoop::new(&file, path, &memory, depth) {
                    Ok(ours) => ours,
                    Err(error) => {
                        println!("read_queue/{name}: not here: {error}");
                        continue;
                    }
                };
                if path == ReadPath::Pool && depth == 1 {
                    let mut turn = half;
                    let run = |iterations| pread(&file, &memory, &mut turn, iterations);
                    let limit = Limit { name: "raw pread loop", work, run };
                    bench.case("read_queue", &name, work, limit, |iterations| ours.run(iterations));
                    continue;
                }
                let mut raw = RawLoop::new(&file, memory.clone(), half, Registered::Each)?;
                let run = |iterations| raw.run(iterations * BATCH, RECORD_BYTES);
                let limit = Limit { name: "raw io_uring loop", work, run };
                bench.case("read_queue", &name, work, limit, |iterations| ours.run(iterations));
            }
            let mut each = RawLoop::new(&file, memory.clone(), half, Registered::Each)?;
            let mut one = RawLoop::new(&file, memory.clone(), 0, Registered::Whole)?;
            let run = |iterations| one.run(iterations * BATCH, RECORD_BYTES);
            let limit = Limit { name: "as one long piece", work, run };
            let name = format!("each buffer by itself, depth {depth}, {pages}");
            bench.case("registration", &name, work, limit, |iterations| {
                each.run(iterations * BATCH, RECORD_BYTES)
            });
            if is_small {
                raw::deny_huge_pages(false);
                let huge = Memory::new(RECORD_BYTES as usize, depth)?;
                let mut huge = RawLoop::new(&file, huge, 0, Registered::Each)?;
                let run = |iterations| huge.run(iterations * BATCH, RECORD_BYTES);
                let limit = Limit { name: "huge pages where there are any", work, run };
                bench.case("pages", &format!("small, depth {depth}"), work, limit, |iterations| {
                    each.run(iterations * BATCH, RECORD_BYTES)
                });
            }
        }
    }
    bench.finish();
    Ok(())
}

/// The file to read, and what removes it.
fn file() -> Outcome<(Option<tempfile::NamedTempFile>, PathBuf)> {
    if let Some(path) = std::env::var_os("FLINT_RT_BENCH_FILE") {
        let path = PathBuf::from(path);
        let len = fs::metadata(&path)?.len();
        if len < u64::from(RECORD_BYTES) {
            return Err(
                format!("{}: {len} B, wanted a record of {RECORD_BYTES} B at least", path.display()).into()
            );
        }
        return Ok((None, path));
    }
    let mut made = tempfile::NamedTempFile::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")))?;
    eprintln!("writing {} MiB to {}", MADE_BYTES >> 20, made.path().display());
    // Repeating a few MiB is enough: no drive finds what repeats so far apart.
    let piece = bytes::random(16 << 20, 1);
    for _ in 0..MADE_BYTES / piece.len() {
        made.write_all(&piece)?;
    }
    made.as_file().sync_all()?;
    let path = made.path().to_owned();
    Ok((Some(made), path))
}

/// Records of the file.
fn places(file: &SourceFile) -> u64 {
    file.len_bytes() / u64::from(RECORD_BYTES)
}

/// Where record number `turn` begins: all come once before one comes again, far apart from one to the next.
fn offset(turn: u64, places: u64) -> u64 {
    // A prime that no file of less than a petabyte has as a factor of its records.
    const STRIDE: u64 = 1_000_000_007;
    (turn % places * STRIDE % places) * u64::from(RECORD_BYTES)
}

/// The product's queue, kept full.
struct OurLoop {
    queue: Box<dyn ReadQueue>,
    memory: Memory,
    done: Vec<Completion>,
    places: u64,
    turn: u64,
}

impl OurLoop {
    fn new(file: &Arc<SourceFile>, path: ReadPath, memory: &Memory, depth: u32) -> Outcome<Self> {
        let regions = [memory.region.clone()];
        let (queue, _) = open_queue(vec![Arc::clone(file)], &regions, Some(path), depth)?;
        Ok(Self { queue, memory: memory.clone(), done: Vec::new(), places: places(file), turn: 0 })
    }

    fn run(&mut self, iterations: u64) -> Duration {
        let mut buffers = self.memory.buffers.borrow_mut();
        repeat(1, || {
            let (mut begun, mut ended) = (0, 0);
            while ended < iterations * BATCH {
                while begun < iterations * BATCH
                    && let Some(buffer) = buffers.pop()
                {
                    self.turn += 1;
                    let offset_bytes = offset(self.turn, self.places);
                    let read = Read {
                        file: FileIndex(0),
                        offset_bytes,
                        len_bytes: RECORD_BYTES,
                        buffer,
                        tag: self.turn,
                    };
                    self.queue.push(read).expect("a buffer is free, so a place in the queue is");
                    begun += 1;
                }
                self.queue.poll(true, &mut self.done).expect("the drive reads");
                for completion in self.done.drain(..) {
                    completion.result.expect("the drive reads");
                    buffers.push(completion.buffer);
                    ended += 1;
                }
            }
        })
    }
}

fn pread(file: &SourceFile, memory: &Memory, turn: &mut u64, iterations: u64) -> Duration {
    let raw = raw::open_direct(file.path()).expect("the file is there");
    let mut buffers = memory.buffers.borrow_mut();
    repeat(iterations * BATCH, || {
        *turn += 1;
        let offset_bytes = offset(*turn, places(file));
        raw::pread(&raw, &mut buffers[0], offset_bytes).expect("the drive reads");
    })
}
