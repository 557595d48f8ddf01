//! The disk station from outside: every read path gives the file's bytes, whatever the kernel allows and does.
//!
//! Seeds are printed on failure; a simulated schedule replays from its seed alone. What needs root says so and is
//! skipped in words where it is not there.

#![allow(clippy::unwrap_used, reason = "a test's helper may end the test")]
#![allow(clippy::cast_possible_truncation, clippy::missing_assert_message, reason = "plain in tests")]

#[path = "support/deny.rs"]
mod deny;

use std::collections::HashSet;
use std::env;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use deny::{Denied, become_nobody, deny, is_root, may_lock};
use flint_rt::base::ids::FileIndex;
use flint_rt::base::region::{HostBuffer, HostRegion, page_bytes};
use flint_rt::disk::{
    Completion, DiskError, Faults, Read, ReadPath, ReadPathReport, ReadQueue, SimulatedFile, SimulatedQueue,
    SourceFile, buffer_bytes_for, buffer_bytes_for_span, open_queue,
};

const PATHS: [ReadPath; 3] = [ReadPath::Ring, ReadPath::RingPlain, ReadPath::Pool];

/// Names what a child process is to do.
const CHILD: &str = "FLINT_RT_DISK_TEST_CHILD";

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Bytes that differ from place to place, none of them the 0xAA of an untouched buffer for long.
fn content(len: usize) -> Vec<u8> {
    let mut random = Random(len as u64 | 1);
    (0..len).map(|_| random.below(251) as u8).collect()
}

struct TempFile {
    path: PathBuf,
    bytes: Vec<u8>,
    _folder: tempfile::TempDir,
}

fn temp_file(len: usize) -> TempFile {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("experts.bin");
    let bytes = content(len);
    fs::write(&path, &bytes).unwrap();
    // On the drive, so that direct reads do not wait for it.
    OpenOptions::new().write(true).open(&path).unwrap().sync_all().unwrap();
    TempFile { path, bytes, _folder: folder }
}

fn open(path: &Path) -> Vec<Arc<SourceFile>> {
    vec![Arc::new(SourceFile::open(path).unwrap())]
}

/// A span of the file: sometimes one byte, sometimes the tail, mostly anything.
fn any_span(random: &mut Random, file_len: usize, len_max: usize) -> (u64, u32) {
    let file_len = file_len as u64;
    let len = match random.below(8) {
        0 => 1,
        _ => 1 + random.below(len_max as u64),
    };
    let offset = match random.below(6) {
        0 => file_len - len,
        1 => random.below(file_len - len) / 4096 * 4096,
        _ => random.below(file_len - len),
    };
    (offset, u32::try_from(len).unwrap())
}

/// Reads `count` random spans through the queue, as deep as it goes, and compares every byte.
fn read_spans(
    queue: &mut dyn ReadQueue,
    buffers: &mut Vec<HostBuffer>,
    bytes: &[u8],
    len_max: usize,
    count: usize,
    seed: u64,
) -> usize {
    let mut random = Random(seed);
    let mut spans = Vec::new();
    let mut done = Vec::new();
    let mut failures = 0;
    let mut ended = HashSet::new();
    while ended.len() < count {
        while spans.len() < count && queue.in_flight() < queue.depth() {
            let Some(mut buffer) = buffers.pop() else { break };
            buffer.as_mut_slice().fill(0xAA);
            let (offset_bytes, len_bytes) = any_span(&mut random, bytes.len(), len_max);
            let tag = spans.len() as u64;
            spans.push((offset_bytes, len_bytes));
            queue.push(Read { file: FileIndex(0), offset_bytes, len_bytes, buffer, tag }).unwrap();
        }
        queue.poll(true, &mut done).unwrap();
        assert!(!done.is_empty(), "seed {seed}: a wait that gave nothing");
        for Completion { tag, buffer, result } in done.drain(..) {
            assert!(ended.insert(tag), "seed {seed}: read {tag} ended twice");
            let (offset, len) = spans[usize::try_from(tag).unwrap()];
            match result {
                Ok(range) => {
                    let offset = usize::try_from(offset).unwrap();
                    let wanted = &bytes[offset..offset + len as usize];
                    assert!(
                        buffer.as_slice()[range] == *wanted,
                        "seed {seed}: {len} B at byte {offset} differ"
                    );
                }
                Err(DiskError::Read { errno, .. }) if errno == libc::EIO => failures += 1,
                Err(error) => panic!("seed {seed}: {error}"),
            }
            buffers.push(buffer);
        }
    }
    assert_eq!(queue.in_flight(), 0, "seed {seed}");
    failures
}

fn open_with_buffers(
    files: Vec<Arc<SourceFile>>,
    wanted: Option<ReadPath>,
    depth: u32,
    buffer_bytes: usize,
) -> (Box<dyn ReadQueue>, ReadPathReport, Vec<HostBuffer>) {
    let count = depth as usize + 2;
    let region = HostRegion::new(buffer_bytes * count).unwrap();
    let (queue, report) = open_queue(files, std::slice::from_ref(&region), wanted, depth).unwrap();
    (queue, report, region.split(buffer_bytes, count))
}

#[test]
fn every_path_reads_any_span_direct_and_buffered() {
    let file = temp_file(1_000_003);
    for wanted in PATHS {
        for is_direct in [true, false] {
            let source =
                if is_direct { SourceFile::open(&file.path) } else { SourceFile::open_buffered(&file.path) };
            let files = vec![Arc::new(source.unwrap())];
            let buffer_bytes = buffer_bytes_for(&files, 70_000);
            let (mut queue, report, mut buffers) = open_with_buffers(files, Some(wanted), 16, buffer_bytes);
            println!("{report}");
            assert_eq!(report.path, wanted);
            let failures = read_spans(queue.as_mut(), &mut buffers, &file.bytes, 70_000, 400, 7);
            assert_eq!(failures, 0);
            let counters = queue.counters();
            assert_eq!((counters.reads, counters.failed, counters.moved_to_pool), (400, 0, 0));
        }
    }
}

#[test]
fn files_in_memory_are_read_as_well() {
    let folder = Path::new("/dev/shm");
    if !folder.is_dir() {
        println!("skipped: no /dev/shm");
        return;
    }
    let folder = tempfile::tempdir_in(folder).unwrap();
    let path = folder.path().join("experts.bin");
    let bytes = content(300_001);
    fs::write(&path, &bytes).unwrap();
    for wanted in PATHS {
        let files = open(&path);
        let buffer_bytes = buffer_bytes_for(&files, 50_000);
        let (mut queue, report, mut buffers) = open_with_buffers(files, Some(wanted), 4, buffer_bytes);
        println!("{report}");
        assert_eq!(read_spans(queue.as_mut(), &mut buffers, &bytes, 50_000, 100, 11), 0);
    }
}

#[test]
fn one_byte_files_and_exact_buffers_work() {
    let file = temp_file(1);
    for wanted in PATHS {
        let files = open(&file.path);
        let buffer_bytes = buffer_bytes_for_span(&files[0], 0, 1);
        assert_eq!(buffer_bytes, page_bytes());
        let (mut queue, _, mut buffers) = open_with_buffers(files, Some(wanted), 1, buffer_bytes);
        let buffer = buffers.pop().unwrap();
        queue.push(Read { file: FileIndex(0), offset_bytes: 0, len_bytes: 1, buffer, tag: 3 }).unwrap();
        let mut done = Vec::new();
        queue.poll(true, &mut done).unwrap();
        assert_eq!(done[0].buffer.as_slice()[done[0].result.as_ref().unwrap().clone()], file.bytes[..]);
    }
}

#[test]
fn a_file_cut_after_opening_is_named_with_both_lengths() {
    for wanted in PATHS {
        for is_direct in [true, false] {
            let file = temp_file(400_000);
            let source =
                if is_direct { SourceFile::open(&file.path) } else { SourceFile::open_buffered(&file.path) };
            let files = vec![Arc::new(source.unwrap())];
            let buffer_bytes = buffer_bytes_for(&files, 100_000);
            let (mut queue, _, mut buffers) = open_with_buffers(files, Some(wanted), 4, buffer_bytes);
            OpenOptions::new().write(true).open(&file.path).unwrap().set_len(250_123).unwrap();
            let buffer = buffers.pop().unwrap();
            let read = Read { file: FileIndex(0), offset_bytes: 200_000, len_bytes: 100_000, buffer, tag: 0 };
            queue.push(read).unwrap();
            let mut done = Vec::new();
            queue.poll(true, &mut done).unwrap();
            let error = done.pop().unwrap().result.unwrap_err();
            assert!(error.is_data_damage());
            let DiskError::Truncated { path, want_bytes, got_bytes, opened_len_bytes, now_len_bytes, .. } =
                &error
            else {
                panic!("{error}");
            };
            assert_eq!(*path, file.path);
            assert_eq!((*want_bytes, *got_bytes), (100_000, 50_123), "{wanted}, direct: {is_direct}");
            assert_eq!((*opened_len_bytes, *now_len_bytes), (400_000, 250_123));
            assert!(error.to_string().contains("250123"), "{error}");
            assert_eq!(queue.counters().failed, 1);
        }
    }
}

#[test]
fn a_read_beyond_the_end_comes_back_without_touching_the_drive() {
    let file = temp_file(10_000);
    for wanted in PATHS {
        let files = open(&file.path);
        let (mut queue, _, mut buffers) = open_with_buffers(files, Some(wanted), 4, 2 * page_bytes());
        for (tag, offset_bytes) in [9_999, 10_000, u64::MAX - 1, u64::MAX].into_iter().enumerate() {
            let buffer = buffers.pop().unwrap();
            queue
                .push(Read { file: FileIndex(0), offset_bytes, len_bytes: 2, buffer, tag: tag as u64 })
                .unwrap();
        }
        assert_eq!(queue.in_flight(), 4);
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.poll(true, &mut done).unwrap();
        }
        assert_eq!(done.len(), 4);
        for Completion { tag, result, .. } in done {
            let Err(DiskError::Truncated { got_bytes, .. }) = result else {
                panic!("read {tag}: {result:?}")
            };
            assert_eq!(got_bytes, u64::from(tag == 0));
        }
        assert_eq!(queue.counters().read_bytes, 0);
    }
}

#[test]
fn ten_thousand_reads_in_bursts_through_a_ring_of_eight() {
    let file = temp_file(2_000_000);
    for wanted in [ReadPath::Ring, ReadPath::RingPlain] {
        let files = open(&file.path);
        let buffer_bytes = buffer_bytes_for(&files, 3_000);
        let (mut queue, _, mut buffers) = open_with_buffers(files, Some(wanted), 8, buffer_bytes);
        let mut random = Random(5);
        let mut seen = vec![false; 10_000];
        let mut spans = Vec::new();
        let mut done = Vec::new();
        let mut refused = 0;
        while spans.len() < seen.len() {
            // A burst of six experts in each of 47 layers, against eight places.
            for _ in 0..(6 * 47).min(seen.len() - spans.len()) {
                let (offset_bytes, len_bytes) = any_span(&mut random, file.bytes.len(), 3_000);
                let tag = spans.len() as u64;
                let buffer = buffers.pop().unwrap();
                let mut read = Read { file: FileIndex(0), offset_bytes, len_bytes, buffer, tag };
                while let Err(back) = queue.push(read) {
                    refused += 1;
                    if refused == 1 {
                        // A reaper that comes late finds everything still there.
                        thread::sleep(Duration::from_secs(1));
                    }
                    read = back.read;
                    queue.poll(true, &mut done).unwrap();
                    take(&mut done, &mut seen, &mut buffers);
                }
                spans.push((offset_bytes, len_bytes));
                assert!(queue.in_flight() <= 8);
            }
        }
        while queue.in_flight() > 0 {
            queue.poll(true, &mut done).unwrap();
            take(&mut done, &mut seen, &mut buffers);
        }
        assert!(seen.iter().all(|seen| *seen), "{wanted}: a read was lost");
        assert!(refused > 0);
        assert_eq!(queue.counters().reads, 10_000);
    }
}

fn take(done: &mut Vec<Completion>, seen: &mut [bool], buffers: &mut Vec<HostBuffer>) {
    for Completion { tag, buffer, result } in done.drain(..) {
        result.unwrap();
        let tag = usize::try_from(tag).unwrap();
        assert!(!std::mem::replace(&mut seen[tag], true), "read {tag} ended twice");
        buffers.push(buffer);
    }
}

#[test]
fn a_queue_dropped_with_reads_in_flight_waits_for_them() {
    let file = temp_file(8_000_000);
    for wanted in PATHS {
        for round in 0..20 {
            let files = open(&file.path);
            let watch = Arc::downgrade(&files[0]);
            let buffer_bytes = buffer_bytes_for(&files, 400_000);
            let (mut queue, _, mut buffers) = open_with_buffers(files, Some(wanted), 16, buffer_bytes);
            for tag in 0..16 {
                let buffer = buffers.pop().unwrap();
                let offset_bytes = (tag * 470_001 + round * 13) % 7_500_000;
                queue
                    .push(Read { file: FileIndex(0), offset_bytes, len_bytes: 400_000, buffer, tag })
                    .unwrap();
            }
            drop(queue);
            // What the queue held is free again at once: nothing still reads into it. A pool's last thread lets go of
            // the file a moment after it has said that it ended.
            let gone = (0..1000).any(|_| {
                thread::sleep(Duration::from_micros(100));
                watch.upgrade().is_none()
            });
            assert!(gone, "{wanted}: something still holds the file");
        }
    }
}

#[test]
fn a_thread_that_pushed_and_ended_costs_no_read() {
    let file = temp_file(8_000_000);
    for wanted in PATHS {
        for is_direct in [true, false] {
            let source =
                if is_direct { SourceFile::open(&file.path) } else { SourceFile::open_buffered(&file.path) };
            let source = source.unwrap();
            // Cold pages: a read through the page cache then waits on a worker of the kernel, which ends with its thread.
            source.drop_cached(0, source.len_bytes());
            let files = vec![Arc::new(source)];
            let buffer_bytes = buffer_bytes_for(&files, 400_000);
            let (mut queue, _, mut buffers) = open_with_buffers(files, Some(wanted), 16, buffer_bytes);
            let offset = |tag: u64| tag * 470_001;
            let mut queue = thread::spawn(move || {
                for tag in 0..16 {
                    let buffer = buffers.pop().unwrap();
                    let read = Read {
                        file: FileIndex(0),
                        offset_bytes: offset(tag),
                        len_bytes: 400_000,
                        buffer,
                        tag,
                    };
                    queue.push(read).unwrap();
                }
                queue
            })
            .join()
            .unwrap();
            let mut done = Vec::new();
            while queue.in_flight() > 0 {
                queue.poll(true, &mut done).unwrap();
            }
            assert_eq!(done.len(), 16);
            for Completion { tag, buffer, result } in done {
                let start = usize::try_from(offset(tag)).unwrap();
                assert!(
                    buffer.as_slice()[result.unwrap()] == file.bytes[start..start + 400_000],
                    "read {tag}"
                );
            }
            println!("{wanted}, direct: {is_direct}: {:?}", queue.counters());
        }
    }
}

#[test]
fn a_full_queue_gives_the_read_back() {
    let file = temp_file(100_000);
    for wanted in PATHS {
        let files = open(&file.path);
        let (mut queue, _, mut buffers) = open_with_buffers(files, Some(wanted), 2, 2 * page_bytes());
        for tag in 0..2 {
            let buffer = buffers.pop().unwrap();
            queue.push(Read { file: FileIndex(0), offset_bytes: 0, len_bytes: 100, buffer, tag }).unwrap();
        }
        let buffer = buffers.pop().unwrap();
        let place = buffer.offset_bytes();
        let back = queue
            .push(Read { file: FileIndex(0), offset_bytes: 9, len_bytes: 100, buffer, tag: 2 })
            .unwrap_err();
        assert_eq!((back.read.tag, back.read.offset_bytes, back.depth), (2, 9, 2));
        assert_eq!(back.read.buffer.offset_bytes(), place);
    }
}

#[test]
fn more_than_one_gibibyte_is_registered_in_pieces() {
    const GIB: usize = 1 << 30;
    let file = temp_file(200_000);
    let files = open(&file.path);
    let page = page_bytes();
    let region = HostRegion::new(GIB + 5 * page).unwrap();
    let (mut queue, report) = open_queue(files, std::slice::from_ref(&region), None, 4).unwrap();
    println!("{report}");
    if report.path != ReadPath::Ring {
        println!("skipped: {report}");
        return;
    }
    // Buffers of three pages: one lies across the border of two registered pieces, and the last in the second.
    let count = (GIB + 5 * page) / (3 * page);
    let buffers = region.split(3 * page, count);
    let mut chosen: Vec<HostBuffer> =
        buffers.into_iter().filter(|buffer| buffer.offset_bytes() + 3 * page > GIB - 6 * page).collect();
    let across = |buffer: &HostBuffer| buffer.offset_bytes() < GIB && buffer.offset_bytes() + 3 * page > GIB;
    assert!(chosen.iter().any(across));
    assert_eq!(read_spans(queue.as_mut(), &mut chosen, &file.bytes, 2 * page, 200, 3), 0);
}

/// Pushes four reads into the last buffers.
fn push_four(queue: &mut dyn ReadQueue, buffers: &mut Vec<HostBuffer>, len_bytes: u32) {
    for tag in 0..4 {
        let buffer = buffers.pop().unwrap();
        let offset_bytes = tag * 500_000 + 3;
        queue.push(Read { file: FileIndex(0), offset_bytes, len_bytes, buffer, tag }).unwrap();
    }
}

#[test]
fn regions_come_and_go_while_reads_go_on() {
    const LEN: u32 = 400_000;
    let file = temp_file(3_000_001);
    for wanted in PATHS {
        let files = open(&file.path);
        let buffer_bytes = buffer_bytes_for(&files, LEN);
        let (mut queue, report, mut first) = open_with_buffers(files, Some(wanted), 8, buffer_bytes);
        println!("{report}");
        let own = first[0].region_id();
        for round in 0..20 {
            let region = HostRegion::new(buffer_bytes * 6).unwrap();
            queue.add_region(&region).unwrap();
            let mut buffers = region.split(buffer_bytes, 6);
            let failures = read_spans(queue.as_mut(), &mut buffers, &file.bytes, LEN as usize, 12, round + 1);
            assert_eq!(failures, 0);
            // Let go of under reads, which end well all the same; and reads elsewhere are not touched.
            push_four(queue.as_mut(), &mut buffers, LEN);
            queue.remove_region(&region).unwrap();
            drop((region, buffers));
            push_four(queue.as_mut(), &mut first, LEN);
            let mut done = Vec::new();
            while queue.in_flight() > 0 {
                queue.poll(true, &mut done).unwrap();
            }
            assert_eq!(done.len(), 8);
            for Completion { tag, buffer, result } in done {
                let start = tag as usize * 500_000 + 3;
                assert!(
                    buffer.as_slice()[result.unwrap()] == file.bytes[start..start + LEN as usize],
                    "{wanted}, round {round}, read {tag}"
                );
                first.push(buffer);
            }
            // Half of them are the last of the region that went.
            first.retain(|buffer| buffer.region_id() == own);
            assert_eq!(first.len(), 10);
        }
    }
}

/// Bytes of the process's memory, pinned or not, and of what is pinned.
fn memory_of_process() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let bytes = |key: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    };
    (bytes("VmRSS:"), bytes("VmPin:"))
}

#[test]
fn a_region_that_is_let_go_gives_its_memory_back() {
    for wanted in PATHS {
        child("child_with_a_region_more", &wanted.to_string());
    }
}

#[test]
#[ignore = "runs in a process of its own, started by the test above"]
fn child_with_a_region_more() {
    const LEN: usize = 64 << 20;
    let Ok(what) = env::var(CHILD) else { return };
    let file = temp_file(300_001);
    let files = open(&file.path);
    let buffer_bytes = buffer_bytes_for(&files, 40_000);
    let (mut queue, report, mut buffers) =
        open_with_buffers(files, Some(what.parse().unwrap()), 8, buffer_bytes);
    println!("{report}");
    let (resident_before, pinned_before) = memory_of_process();
    let region = HostRegion::new(LEN).unwrap();
    queue.add_region(&region).unwrap();
    let mut more = region.split(LEN, 1);
    more[0].as_mut_slice().fill(1);
    let (resident, pinned) = memory_of_process();
    assert!(resident >= resident_before + LEN as u64, "{resident_before} B, then {resident} B");
    let is_registered = report.path == ReadPath::Ring;
    assert_eq!(pinned - pinned_before, if is_registered { LEN as u64 } else { 0 });
    queue.remove_region(&region).unwrap();
    drop((region, more));
    let (resident, pinned) = memory_of_process();
    assert!(resident < resident_before + LEN as u64 / 4, "{resident_before} B, then {resident} B");
    assert_eq!(pinned, pinned_before);
    assert_eq!(read_spans(queue.as_mut(), &mut buffers, &file.bytes, 40_000, 100, 5), 0);
}

#[test]
fn what_cannot_be_read_is_refused_at_open() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.bin");
    let error = SourceFile::open(&missing).unwrap_err();
    assert!(matches!(&error, DiskError::Open { path, .. } if *path == missing), "{error}");
    let error = SourceFile::open(folder.path()).unwrap_err();
    assert!(matches!(error, DiskError::NotAFile { .. }), "{error}");
    let file = temp_file(10);
    for depth in [0, 257, 32_769, u32::MAX] {
        let error = open_queue(open(&file.path), &[], None, depth).err().unwrap();
        assert!(matches!(error, DiskError::Depth { wanted, .. } if wanted == depth), "{error}");
    }
    let error = open_queue(open(&file.path), &[], Some(ReadPath::Ring), 4).err().unwrap();
    assert!(matches!(error, DiskError::PathImpossible { .. }), "{error}");
    assert_eq!(open_queue(open(&file.path), &[], None, 4).unwrap().1.path, ReadPath::RingPlain);
}

#[test]
fn small_reads_are_exact_and_bounded_by_the_file() {
    let file = temp_file(50_000);
    let source = SourceFile::open(&file.path).unwrap();
    let mut row = vec![0xAA; 8192];
    source.read_exact_at(12_345, &mut row).unwrap();
    assert_eq!(row, file.bytes[12_345..12_345 + 8192]);
    source.read_exact_at(50_000, &mut []).unwrap();
    for offset in [50_000 - 8191, u64::MAX - 5] {
        let error = source.read_exact_at(offset, &mut row).unwrap_err();
        assert!(matches!(error, DiskError::Truncated { .. }), "{error}");
    }
    source.drop_cached(0, 50_000);
    let region = HostRegion::new(page_bytes()).unwrap();
    let mut buffers = region.split(page_bytes(), 1);
    source.probe_into(&mut buffers[0]).unwrap();
}

#[test]
fn a_thousand_simulated_disks_give_the_files_bytes() {
    let bytes = content(60_001);
    let real = temp_file(60_001);
    assert_eq!(bytes, real.bytes);
    let real = Arc::new(SourceFile::open(&real.path).unwrap());
    let mut total = flint_rt::disk::ReadCounters::default();
    for seed in 1..=1000 {
        let align = [1, 512, 4096, 16_384][usize::try_from(seed % 4).unwrap()];
        let file = if seed % 10 == 0 {
            SimulatedFile::real(Arc::clone(&real))
        } else {
            SimulatedFile::in_memory("experts.bin", bytes.clone(), align)
        };
        let faults = Faults {
            short_permille: 300,
            interrupted_permille: 100,
            failed_permille: 60,
            refused_permille: 20,
            latency_ticks_max: 1 + u32::try_from(seed % 50).unwrap(),
            flipped_permille: 0,
        };
        let depth = 1 + u32::try_from(seed % 16).unwrap();
        let mut queue = SimulatedQueue::new(seed, vec![file], faults, depth);
        let buffer_bytes = 49_152;
        let region = HostRegion::new(buffer_bytes * depth as usize).unwrap();
        let mut buffers = region.split(buffer_bytes, depth as usize);
        let failures = read_spans(&mut queue, &mut buffers, &bytes, 16_000, 40, seed);
        let counters = queue.counters();
        assert_eq!((counters.reads, counters.failed), (40 - failures as u64, failures as u64), "seed {seed}");
        total.add(&counters);
    }
    println!("{total:?}");
    assert!(total.short_reads > 1000 && total.interruptions > 1000 && total.retries > 1000);
    assert!(total.failed > 0 && total.buffered_fallbacks > 0);
}

#[test]
fn a_simulated_schedule_replays_from_its_seed() {
    let order = |seed| {
        let file = SimulatedFile::in_memory("experts.bin", content(40_000), 512);
        let faults = Faults { short_permille: 200, latency_ticks_max: 30, ..Faults::default() };
        let mut queue = SimulatedQueue::new(seed, vec![file], faults, 16);
        let region = HostRegion::new(16 * 8192).unwrap();
        for (tag, buffer) in region.split(8192, 16).into_iter().enumerate() {
            let tag = tag as u64;
            let offset_bytes = tag * 2000;
            queue.push(Read { file: FileIndex(0), offset_bytes, len_bytes: 1500, buffer, tag }).unwrap();
        }
        let mut done = Vec::new();
        while queue.in_flight() > 0 {
            queue.poll(true, &mut done).unwrap();
        }
        done.iter().map(|completion| completion.tag).collect::<Vec<_>>()
    };
    assert_eq!(order(9), order(9));
    assert_ne!(order(9), (0..16).collect::<Vec<_>>(), "nothing was reordered");
    assert_ne!(order(9), order(10));
}

#[test]
fn a_simulated_file_that_was_cut_is_named() {
    for align in [1, 512, 4096] {
        let file = SimulatedFile::in_memory("experts.bin", content(5_000), align).opened_with(9_000);
        let mut queue = SimulatedQueue::new(1, vec![file], Faults::default(), 1);
        let region = HostRegion::new(16_384).unwrap();
        let buffer = region.split(16_384, 1).pop().unwrap();
        queue
            .push(Read { file: FileIndex(0), offset_bytes: 4_000, len_bytes: 3_000, buffer, tag: 0 })
            .unwrap();
        let mut done = Vec::new();
        queue.poll(true, &mut done).unwrap();
        let error = done.pop().unwrap().result.unwrap_err();
        let DiskError::Truncated { got_bytes, opened_len_bytes, now_len_bytes, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((got_bytes, opened_len_bytes, now_len_bytes), (1_000, 9_000, 5_000));
    }
}

// --- What the environment forbids: each in a process of its own, as neither filter nor user can be given back. ---

fn child(test: &str, what: &str) -> String {
    let Output { status, stdout, stderr } = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(CHILD, what)
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{what}: {text}");
    for line in text.lines().filter(|line| line.contains("depth")) {
        println!("{what}: {line}");
    }
    text
}

const ERRNOS: [(&str, i32); 3] = [("EPERM", libc::EPERM), ("ENOSYS", libc::ENOSYS), ("EACCES", libc::EACCES)];

const CALLS: [(&str, libc::c_long); 3] = [
    ("setup", libc::SYS_io_uring_setup),
    ("enter", libc::SYS_io_uring_enter),
    ("register", libc::SYS_io_uring_register),
];

#[test]
fn a_denied_ring_call_costs_the_ring_or_its_registrations_never_a_byte() {
    for (call, _) in CALLS {
        for (errno, _) in ERRNOS {
            let text = child("child_with_a_call_denied", &format!("{call} {errno}"));
            assert!(text.contains("kernel.io_uring_disabled") && text.contains("seccomp"), "{text}");
            assert!(text.contains(&format!("io_uring_{call}")), "{text}");
        }
    }
}

#[test]
#[ignore = "runs in a process of its own, started by the test above"]
fn child_with_a_call_denied() {
    let Ok(what) = env::var(CHILD) else { return };
    let (call, errno) = what.split_once(' ').unwrap();
    let number = CALLS.iter().find(|(name, _)| *name == call).unwrap().1;
    let errno = ERRNOS.iter().find(|(name, _)| *name == errno).unwrap().1;
    deny(&[Denied { call: number, errno }]);

    let file = temp_file(300_001);
    let files = open(&file.path);
    let buffer_bytes = buffer_bytes_for(&files, 40_000);
    let (mut queue, report, mut buffers) = open_with_buffers(files, None, 8, buffer_bytes);
    println!("{report}");
    let expected = if call == "register" { ReadPath::RingPlain } else { ReadPath::Pool };
    assert_eq!(report.path, expected);
    assert_eq!(read_spans(queue.as_mut(), &mut buffers, &file.bytes, 40_000, 100, 21), 0);
    // Forced, it is an error with the same reasons, not another path.
    let region = HostRegion::new(page_bytes()).unwrap();
    let error = open_queue(open(&file.path), &[region], Some(ReadPath::Ring), 8).err().unwrap();
    assert!(error.to_string().contains("seccomp"), "{error}");
    let plain = open_queue(open(&file.path), &[], Some(ReadPath::RingPlain), 8);
    assert_eq!(plain.is_ok(), call == "register");
}

#[test]
fn a_ring_denied_after_opening_moves_its_reads_to_threads() {
    for (errno, _) in ERRNOS {
        child("child_with_enter_denied_late", errno);
    }
}

#[test]
#[ignore = "runs in a process of its own, started by the test above"]
fn child_with_enter_denied_late() {
    let Ok(what) = env::var(CHILD) else { return };
    let errno = ERRNOS.iter().find(|(name, _)| *name == what).unwrap().1;
    let file = temp_file(3_000_001);
    let files = open(&file.path);
    let buffer_bytes = buffer_bytes_for(&files, 400_000);
    let (mut queue, report, mut buffers) = open_with_buffers(files, Some(ReadPath::Ring), 8, buffer_bytes);
    println!("{report}");
    assert_eq!(read_spans(queue.as_mut(), &mut buffers, &file.bytes, 400_000, 50, 21), 0);
    // Some reads are in the kernel when the filter comes.
    for tag in 0..4 {
        let buffer = buffers.pop().unwrap();
        let offset_bytes = tag * 500_000 + 3;
        queue.push(Read { file: FileIndex(0), offset_bytes, len_bytes: 400_000, buffer, tag }).unwrap();
    }
    deny(&[Denied { call: libc::SYS_io_uring_enter, errno }]);
    for tag in 4..8 {
        let buffer = buffers.pop().unwrap();
        let offset_bytes = tag * 300_000 + 3;
        queue.push(Read { file: FileIndex(0), offset_bytes, len_bytes: 400_000, buffer, tag }).unwrap();
    }
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.poll(true, &mut done).unwrap();
    }
    assert_eq!(done.len(), 8);
    for Completion { tag, buffer, result } in done {
        let start = usize::try_from(if tag < 4 { tag * 500_000 + 3 } else { tag * 300_000 + 3 }).unwrap();
        assert!(buffer.as_slice()[result.unwrap()] == file.bytes[start..start + 400_000], "read {tag}");
        buffers.push(buffer);
    }
    assert!(queue.counters().moved_to_pool >= 4, "{:?}", queue.counters());
    assert_eq!(read_spans(queue.as_mut(), &mut buffers, &file.bytes, 400_000, 50, 22), 0);
}

#[test]
fn little_locked_memory_costs_the_registration_then_the_ring() {
    if !is_root() {
        println!("skipped: needs root, to become another user with another limit");
        return;
    }
    let run = |limit: u64, region: usize| {
        let text = child("child_with_little_locked_memory", &format!("{limit} {region}"));
        text.lines()
            .find_map(|line| line.strip_prefix("path ").map(str::to_owned))
            .expect("the child says its path")
    };
    assert_eq!(run(0, 1 << 20), "pool");
    assert_eq!(run(64 << 10, 1 << 20), "ring-plain");
    assert_eq!(run(8 << 20, 1 << 20), "ring");
    assert_eq!(run(8 << 20, 32 << 20), "ring-plain");
    if !may_lock(libc::RLIM_INFINITY) {
        println!("skipped: no limit at all, which this root may not set");
        return;
    }
    assert_eq!(run(libc::RLIM_INFINITY, 32 << 20), "ring");
}

#[test]
#[ignore = "runs in a process of its own, started by the test above"]
fn child_with_little_locked_memory() {
    let Ok(what) = env::var(CHILD) else { return };
    let (limit, region_bytes) = what.split_once(' ').unwrap();
    let region_bytes: usize = region_bytes.parse().unwrap();
    let file = temp_file(300_001);
    let files = open(&file.path);
    become_nobody(limit.parse().unwrap());
    let region = HostRegion::new(region_bytes).unwrap();
    let (mut queue, report) = open_queue(files, std::slice::from_ref(&region), None, 8).unwrap();
    println!("{report}");
    println!("path {}", report.path);
    if report.path != ReadPath::Ring {
        assert!(report.to_string().contains("RLIMIT_MEMLOCK"), "{report}");
    }
    let mut buffers = region.split(region_bytes / 16, 16);
    assert_eq!(read_spans(queue.as_mut(), &mut buffers, &file.bytes, 40_000, 100, 5), 0);
}
