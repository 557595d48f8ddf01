//! `cargo bench --bench ingest -- SOURCE.gguf FOLDER`: ingest of a GGUF against a direct-I/O copy of the same bytes on
//! the same drive, in turns in one run, and against SHA-256 alone.
//!
//! The copy is what `dd iflag=direct oflag=direct bs=8M conv=fsync` does, and a second one with four requests at a time.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use flint_rt::base::region::HostRegion;
use flint_rt::store::{Sha256Digest, ingest};

const ROUNDS: usize = 3;
const PIECE_BYTES: usize = 8 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<PathBuf> =
        std::env::args_os().skip(1).filter(|word| word != "--bench").map(PathBuf::from).collect();
    let [source, folder] = arguments.as_slice() else {
        eprintln!("skipped: name a GGUF and a folder on the drive to be measured");
        return Ok(());
    };
    let len = std::fs::metadata(source)?.len();
    let rate = |seconds: f64| len as f64 / seconds / 1e9;
    println!("source {} B, SHA-256 on one core {:.2} GB/s", len, sha256_rate());
    for round in 1..=ROUNDS {
        let one = rate(copy(source, &folder.join("copy"), 1)?);
        let four = rate(copy(source, &folder.join("copy"), 4)?);
        let target = folder.join("store");
        let started = Instant::now();
        ingest(source, &target, &mut |_| ControlFlow::Continue(()))?;
        let ours = rate(started.elapsed().as_secs_f64());
        std::fs::remove_dir_all(&target)?;
        println!(
            "round {round}: direct copy {one:.2} GB/s, four at a time {four:.2} GB/s, ingest {ours:.2} GB/s = {:.0} % of \
             the copy",
            100.0 * ours / one
        );
    }
    Ok(())
}

fn sha256_rate() -> f64 {
    let bytes: Vec<u8> = (0..64u32 << 20).map(|at| at.to_le_bytes()[at as usize % 4]).collect();
    let started = Instant::now();
    let rounds: u32 = 4;
    (0..rounds).for_each(|_| {
        std::hint::black_box(Sha256Digest::of(&bytes));
    });
    f64::from(rounds) * bytes.len() as f64 / started.elapsed().as_secs_f64() / 1e9
}

/// Seconds of a copy past the page cache, with the drive's confirmation.
fn copy(source: &Path, target: &Path, threads: usize) -> io::Result<f64> {
    let open = |options: &mut OpenOptions, path| options.custom_flags(libc::O_DIRECT).open(path);
    let len = std::fs::metadata(source)?.len();
    let from = open(OpenOptions::new().read(true), source)?;
    let to = open(OpenOptions::new().write(true).create(true).truncate(true), target)?;
    let region = HostRegion::new(PIECE_BYTES * threads).map_err(io::Error::other)?;
    let started = Instant::now();
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
    let seconds = started.elapsed().as_secs_f64();
    File::open(target.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    std::fs::remove_file(target)?;
    Ok(seconds)
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
