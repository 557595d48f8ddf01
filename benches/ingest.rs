//! `cargo bench --bench ingest -- SOURCE.gguf FOLDER`: ingest of a GGUF against a direct-I/O copy of the same bytes on
//! the same drive, in turns in one run, with the processor's seconds of each, and the sums and copies that bound it.
//!
//! The copy is what `dd iflag=direct oflag=direct bs=8M conv=fsync` does, and a second one with four requests at a time.
//! `FLINT_RT_ROUNDS` says how many rounds (5), `FLINT_RT_CHUNK_BYTES` how much of the source is read at a time.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use flint_rt::base::region::HostRegion;
use flint_rt::store::{IngestOptions, Sha256Digest, ingest_from, open_local, piece_checksum};

const ROUNDS: usize = 5;
const PIECE_BYTES: usize = 8 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<PathBuf> =
        std::env::args_os().skip(1).filter(|word| word != "--bench").map(PathBuf::from).collect();
    let [source, folder] = arguments.as_slice() else {
        eprintln!("skipped: name a GGUF and a folder on the drive to be measured");
        return Ok(());
    };
    let len = std::fs::metadata(source)?.len();
    let number = |name, usual| std::env::var(name).map_or(Ok(usual), |text| text.parse::<usize>());
    let (rounds, chunk_bytes) = (number("FLINT_RT_ROUNDS", ROUNDS)?, number("FLINT_RT_CHUNK_BYTES", 0)?);
    println!("source {len} B; on one core: {}", bounds());
    let mut all = Vec::new();
    for round in 1..=rounds {
        let one = timed(|| copy(source, &folder.join("copy"), 1))?;
        let four = timed(|| copy(source, &folder.join("copy"), 4))?;
        let target = folder.join("store");
        let mut options = IngestOptions::default();
        if chunk_bytes > 0 {
            options.chunk_bytes = chunk_bytes;
        }
        let files = open_local(source)?;
        let ours = timed(|| ingest_from(files, &target, &options, &mut |_| ControlFlow::Continue(())))?;
        std::fs::remove_dir_all(&target)?;
        let said = |taken: Taken| {
            let rate = len as f64 / taken.seconds / 1e9;
            format!("{rate:.2} GB/s, {:.2} CPU s/GB", taken.cpu_seconds / len as f64 * 1e9)
        };
        let percent = 100.0 * one.seconds / ours.seconds;
        println!(
            "round {round}: direct copy {}; four at a time {}; ingest {} = {percent:.0} % of the copy",
            said(one),
            said(four),
            said(ours)
        );
        all.push([percent, one.seconds, ours.seconds, ours.cpu_seconds]);
    }
    let median = |index: usize| {
        let mut values: Vec<f64> = all.iter().map(|round| round[index]).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let rate = |seconds: f64| len as f64 / seconds / 1e9;
    println!(
        "medians: copy {:.2} GB/s, ingest {:.2} GB/s, {:.0} % of the copy, {:.2} CPU s/GB",
        rate(median(1)),
        rate(median(2)),
        median(0),
        median(3) / len as f64 * 1e9
    );
    Ok(())
}

/// What something took.
#[derive(Clone, Copy)]
struct Taken {
    seconds: f64,
    cpu_seconds: f64,
}

fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<Taken, E> {
    let (started, cpu) = (Instant::now(), cpu_seconds());
    work()?;
    Ok(Taken { seconds: started.elapsed().as_secs_f64(), cpu_seconds: cpu_seconds() - cpu })
}

/// Seconds of all threads of this process so far, the ended ones too, to a hundredth.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program stands before, in parentheses; Linux counts these two in hundredths on every machine.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// The rates of what an ingest does with each byte, by the processor's time.
fn bounds() -> String {
    let bytes: Vec<u8> = (0..64u32 << 20).map(|at| at.to_le_bytes()[at as usize % 4]).collect();
    let mut target = vec![0; bytes.len()];
    let mut rate = |work: &mut dyn FnMut(&mut [u8])| {
        let rounds = 8;
        let cpu = cpu_seconds();
        (0..rounds).for_each(|_| work(std::hint::black_box(&mut target)));
        f64::from(rounds) * bytes.len() as f64 / (cpu_seconds() - cpu).max(0.01) / 1e9
    };
    let sha256 = rate(&mut |_| {
        std::hint::black_box(Sha256Digest::of(&bytes));
    });
    let xxh3 = rate(&mut |_| {
        std::hint::black_box(piece_checksum(&bytes));
    });
    let memory = rate(&mut |target| target.copy_from_slice(&bytes));
    format!("SHA-256 {sha256:.2} GB/s, XXH3 {xxh3:.1} GB/s, a copy of memory {memory:.1} GB/s")
}

/// A copy past the page cache, with the drive's confirmation.
fn copy(source: &Path, target: &Path, threads: usize) -> io::Result<()> {
    let open = |options: &mut OpenOptions, path| options.custom_flags(libc::O_DIRECT).open(path);
    let len = std::fs::metadata(source)?.len();
    let from = open(OpenOptions::new().read(true), source)?;
    let to = open(OpenOptions::new().write(true).create(true).truncate(true), target)?;
    let region = HostRegion::new(PIECE_BYTES * threads).map_err(io::Error::other)?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0u64..)
            .zip(region.split(PIECE_BYTES, threads))
            .map(|(first, mut buffer)| {
                let (from, to) = (&from, &to);
                scope.spawn(move || {
                    let step = (PIECE_BYTES * threads) as u64;
                    let mut at = first * PIECE_BYTES as u64;
                    while at < len {
                        let got = read_full(from, buffer.as_mut_slice(), at)?;
                        // The end of the file is rounded up: a direct write cannot do otherwise.
                        let whole = got.next_multiple_of(4096);
                        to.write_all_at(&buffer.as_slice()[..whole], at)?;
                        at += step;
                    }
                    io::Result::Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a copy does not panic"))
    })?;
    to.set_len(len)?;
    to.sync_all()?;
    File::open(target.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    std::fs::remove_file(target)
}

fn read_full(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], at + got as u64)? {
            0 => break,
            count => got += count,
        }
        if got % 4096 != 0 {
            break;
        }
    }
    Ok(got)
}
