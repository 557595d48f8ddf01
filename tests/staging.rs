//! Host memory between drive and device, in parts: what a part brings reaches the device on every host path, and a part that is
//! given up takes nothing else with it.
//!
//! Runs on whatever device there is; says `skipped: no Vulkan device` where there is none.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the support file serves other tests, too")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flint_rt::base::limits::STAGING_PART_BYTES;
use flint_rt::base::region::HostBuffer;
use flint_rt::disk::{SourceFile, open_queue};
use flint_rt::expert::{HostPath, Staging};
use flint_rt::gpu::{Buffer, Gpu};

#[path = "support/gpu.rs"]
mod support;

use support::{close, open, readback};

const BUFFER_BYTES: usize = 1 << 20;

/// Bytes that tell buffers apart.
fn fill(buffers: &mut [HostBuffer], first: u8) {
    for (value, buffer) in (first..).zip(buffers) {
        buffer.as_mut_slice().fill(value);
    }
}

/// Copies a word out of each buffer by the device.
fn seen_by_device(gpu: &Gpu, staging: &Staging, target: &Buffer, buffers: &[HostBuffer]) -> Vec<u8> {
    let mut recorder = gpu.recorder().unwrap();
    for (at, buffer) in (0..).zip(buffers) {
        let (source, offset_bytes) = staging.land(buffer, &(4096..4100));
        recorder.copy(source, offset_bytes, target, 4 * at, 4);
    }
    let commands = recorder.finish().unwrap();
    gpu.wait(gpu.submit(&[&commands]).unwrap()).unwrap();
    let mut bytes = vec![0; 4 * buffers.len()];
    target.read(0, &mut bytes);
    bytes.into_iter().step_by(4).collect()
}

fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// One test, so that the process's memory is this test's.
#[test]
fn parts_come_and_go_on_every_host_path() {
    let Some(gpu) = open() else { return };
    let target = readback(&gpu, "seen", 64);
    for path in HostPath::ALL {
        let mut staging = match Staging::new(&gpu, path, BUFFER_BYTES, 5) {
            Ok(staging) => staging,
            Err(error) => {
                println!("seen: {path} is not to be had: {error}");
                continue;
            }
        };
        let mut ring = staging.take_all(&gpu).unwrap();
        assert_eq!((ring.len(), staging.regions().len()), (5, 1));
        fill(&mut ring, 1);
        let before = resident_bytes();

        // Whole parts, in which the three pieces of a record lie together, and then what is left.
        let (_, mut one) = staging.grow(&gpu, usize::MAX).unwrap();
        assert_eq!(one.len(), STAGING_PART_BYTES / BUFFER_BYTES / 3 * 3);
        let (region, mut two) = staging.grow(&gpu, 6).unwrap();
        assert_eq!((two.len(), staging.regions().len()), (6, 3));
        drop(region);
        fill(&mut one, 10);
        fill(&mut two, 100);
        let grown = resident_bytes();
        assert!(grown > before + (50 << 20), "{path}: {before} B, then {grown} B");
        assert_eq!(seen_by_device(&gpu, &staging, &target, &ring), [1, 2, 3, 4, 5], "{path}");
        assert_eq!(seen_by_device(&gpu, &staging, &target, &two), [100, 101, 102, 103, 104, 105], "{path}");
        assert_eq!(seen_by_device(&gpu, &staging, &target, &one[60..]), [70, 71, 72], "{path}");

        // The memory of a part goes back at once, whichever part it is.
        drop(staging.shrink(one));
        let shrunk = resident_bytes();
        assert!(shrunk + (50 << 20) < grown, "{path}: {grown} B, then {shrunk} B");
        assert_eq!(seen_by_device(&gpu, &staging, &target, &ring), [1, 2, 3, 4, 5], "{path}");
        assert_eq!(seen_by_device(&gpu, &staging, &target, &two), [100, 101, 102, 103, 104, 105], "{path}");

        // Half a part, or buffers of two, are nobody's to give up.
        let kept = two.pop().unwrap();
        let half = catch_unwind(AssertUnwindSafe(|| staging.shrink(two)));
        assert!(half.is_err(), "{path}: five of six buffers are no part");
        drop(kept);
    }
    close(gpu);
}

/// What a part costs: `cargo test --test staging what_a_part_costs -- --ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn what_a_part_costs() {
    const ROUNDS: u32 = 20;
    let Some(gpu) = open() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), vec![1; 1 << 20]).unwrap();
    let files = vec![Arc::new(SourceFile::open(file.path()).unwrap())];
    for path in HostPath::ALL {
        let mut staging = Staging::new(&gpu, path, BUFFER_BYTES, 3).unwrap();
        let (mut queue, report) = open_queue(files.clone(), &staging.regions(), None, 4).unwrap();
        let (mut taking, mut giving) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let (region, mut buffers) = staging.grow(&gpu, usize::MAX).unwrap();
            queue.add_region(&region).unwrap();
            // Where nothing is registered, the first use takes the pages.
            fill(&mut buffers, 0);
            taking += began.elapsed();
            let began = Instant::now();
            drop(region);
            let region = staging.shrink(buffers);
            queue.remove_region(&region).unwrap();
            drop(region);
            giving += began.elapsed();
        }
        println!(
            "seen: {path}, {}: a part of {} MiB is taken and filled in {:?}, given back in {:?}",
            report.path,
            STAGING_PART_BYTES >> 20,
            taking / ROUNDS,
            giving / ROUNDS
        );
    }
}
