//! A store over several drives reads from all of them at once: on drives of unequal rates the split by bandwidth gives their sum, and two
//! files of one drive are no slower than one.
//!
//! The drives are modelled over real files; see `disk::modelled`.

#![allow(clippy::unwrap_used, reason = "a test may fail by a panic")]

#[path = "support/nano.rs"]
mod nano;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flint_rt::base::region::HostRegion;
use flint_rt::disk::{DriveModel, ModelledQueue, Read, ReadPath, ReadQueue, SourceFile, open_queue};
use flint_rt::store::{IngestOptions, Source, StripePlan, ingest_from, open_local};
use nano::nano_path;

const DEPTH: usize = 16;

/// Rates at which the bundled model's 3 MB of experts take tenths of a second: long beside what a thread is late by.
fn drive(rate: f64) -> DriveModel {
    DriveModel { rate, latency: Duration::from_micros(200), depth: 16 }
}

/// A store whose records are split over the folders `a` and `b` by weight; over one file where there are none.
fn store(folder: &Path, name: &str, weights: &[f64]) -> PathBuf {
    let stripe = |(weight, drive): (&f64, &str)| {
        let drive = folder.join(drive);
        std::fs::create_dir_all(&drive).unwrap();
        StripePlan { folder: Some(drive), weight: *weight }
    };
    let stripes = weights.iter().zip(["a", "b"]).map(stripe).collect();
    let options = IngestOptions { stripes, ..IngestOptions::default() };
    let target = folder.join(name);
    ingest_from(open_local(&nano_path()).unwrap(), &target, &options, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    target
}

/// Seconds in which all records are read in their order, as many at once as the queue takes; stripe `n` lies on drive `drive_of[n]`.
fn seconds(store: &Path, drives: &[DriveModel], drive_of: &[usize]) -> f64 {
    let source = Source::open(store).unwrap();
    let files: Vec<_> =
        source.files().iter().map(|path| Arc::new(SourceFile::open_buffered(path).unwrap())).collect();
    // The first file holds what is dense and is not read here.
    let drive_of_file: Vec<usize> = std::iter::once(0).chain(drive_of.iter().copied()).collect();
    let region = HostRegion::new(DEPTH * 65_536).unwrap();
    let mut buffers = region.split(65_536, DEPTH);
    let (inner, _) = open_queue(files, &[region], Some(ReadPath::Pool), 16).unwrap();
    let mut queue = ModelledQueue::of_drives(inner, drives, &drive_of_file);
    let spans: Vec<_> = source
        .expert_keys()
        .flat_map(|key| source.expert_pieces(key).to_vec())
        .map(|piece| piece.span)
        .collect();
    let begun = Instant::now();
    let mut next = spans.iter();
    let mut done = Vec::new();
    loop {
        while let Some(buffer) = buffers.pop() {
            let Some(span) = next.next() else {
                buffers.push(buffer);
                break;
            };
            let len_bytes = u32::try_from(span.len_bytes).unwrap();
            let read = Read { file: span.file, offset_bytes: span.offset_bytes, len_bytes, buffer, tag: 0 };
            assert!(queue.push(read).is_ok(), "a buffer is free, so the queue is not full");
        }
        if queue.in_flight() == 0 {
            return begun.elapsed().as_secs_f64();
        }
        queue.poll(true, &mut done).unwrap();
        for completion in done.drain(..) {
            completion.result.unwrap();
            buffers.push(completion.buffer);
        }
    }
}

/// The best of some rounds of each of `cases`, in turns: what else the machine does makes a round longer, never shorter.
fn best<const N: usize>(cases: [&dyn Fn() -> f64; N]) -> [f64; N] {
    const ROUNDS: usize = 4;
    let mut least = [f64::INFINITY; N];
    for _ in 0..ROUNDS {
        for (least, case) in least.iter_mut().zip(cases) {
            *least = least.min(case());
        }
    }
    least
}

#[test]
fn unequal_drives_give_their_sum_when_the_split_follows_their_bandwidth() {
    let folder = tempfile::tempdir().unwrap();
    let drives = [drive(24e6), drive(8e6)];
    let split = store(folder.path(), "by-bandwidth", &[3.0, 1.0]);
    let halves = store(folder.path(), "even", &[1.0, 1.0]);
    let whole = store(folder.path(), "alone", &[]);
    let [by_bandwidth, even, alone] =
        best([&|| seconds(&split, &drives, &[0, 1]), &|| seconds(&halves, &drives, &[0, 1]), &|| {
            seconds(&whole, &drives[..1], &[0])
        }]);
    println!("by bandwidth {by_bandwidth:.3} s, even {even:.3} s, on the faster drive alone {alone:.3} s");
    // 2.95 MB at 32, 16 and 24 MB/s.
    assert!(by_bandwidth < 0.92 * alone, "{by_bandwidth:.3} s on both, {alone:.3} s on the faster alone");
    assert!(by_bandwidth < 0.7 * even, "{by_bandwidth:.3} s by bandwidth, {even:.3} s by halves");
}

#[test]
fn two_files_of_one_drive_are_no_slower_than_one() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, halves) = (store(folder.path(), "one", &[]), store(folder.path(), "two", &[1.0, 1.0]));
    let drives = [drive(16e6)];
    let [one, two] = best([&|| seconds(&whole, &drives, &[0]), &|| seconds(&halves, &drives, &[0, 0])]);
    println!("one file {one:.3} s, two {two:.3} s");
    assert!(two < 1.05 * one, "{two:.3} s from two files, {one:.3} s from one");
}
