//! The device layer against a real driver, with validation and synchronization validation on and no message allowed.
//!
//! Runs on whatever device there is, a software device included; says `skipped: no Vulkan device` where there is none.

#![allow(clippy::cast_possible_truncation, reason = "test data is small")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use flint_rt::base::region::{HostBuffer, HostRegion};
use flint_rt::gpu::{
    Buffer, CacheState, Commands, CopyQueue, DeviceChoice, DeviceKind, Dispatches, Gpu, GpuError, GpuOptions,
    Placement, list_devices,
};

#[path = "support/gpu.rs"]
mod support;

use support::{
    ADD, PICK, add_pipeline, add_push, close, is_child, open, open_with, readback, run_child, upload, words,
};

fn run(gpu: &Gpu, commands: &Commands) {
    gpu.wait(gpu.submit(&[commands]).unwrap()).unwrap();
}

fn panic_text(work: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("it must panic");
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()))
        .unwrap()
}

#[test]
fn devices_are_listed_in_order_of_preference() {
    let Some(gpu) = open() else { return };
    let devices = list_devices(false).unwrap();
    assert!(devices.is_sorted_by_key(|info| info.kind));
    for (index, info) in devices.iter().enumerate() {
        assert_eq!(info.index, index);
        println!(
            "seen: {index} {} | Vulkan {} | {} | lanes {}",
            info.title(),
            info.api,
            info.kind,
            info.subgroup_size
        );
        println!("seen: {:?}, budget {}", info.limits, info.has_memory_budget);
    }
    assert_eq!(devices, list_devices(false).unwrap());
    let info = gpu.info();
    if std::env::var_os("FLINT_RT_DEVICE").is_none() && info.kind == DeviceKind::Software {
        assert!(matches!(info.choice, DeviceChoice::SoftwareOnly(_)), "{:?}", info.choice);
    }
    println!("seen: opened {} since it is {}", info.title(), info.choice);
    for heap in gpu.memory_budget() {
        println!("seen: {heap:?}");
    }
    close(gpu);
}

/// target = a * scale + b + offset at several shapes, and the lanes that were asked for.
fn check_dispatch(gpu: &Gpu) {
    let lanes = gpu.info().subgroup_size;
    for (count, stride, subgroups, scale) in [(1, 1, 1, 1), (7, 3, 1, 5), (1000, 2, 4, 3), (4099, 1, 2, 7)] {
        let a: Vec<u32> = (0..count).map(|i| i * 31 + 1).collect();
        let b: Vec<u32> = (0..count).map(|i| i ^ 0x55).collect();
        let [stop, a_buffer, b_buffer] =
            [upload(gpu, "stop", &[0]), upload(gpu, "a", &a), upload(gpu, "b", &b)];
        let len = (count * stride) as usize;
        let (target, seen) = (readback(gpu, "target", len), readback(gpu, "lanes", 3));
        let pipeline = add_pipeline(gpu, subgroups, scale);
        let views = [&stop, &a_buffer, &b_buffer, &target, &seen].map(|buffer| [buffer.view()]);
        let bindings = gpu.bind(&pipeline, &views.each_ref().map(|view| &view[..])).unwrap();
        let mut recorder = gpu.recorder().unwrap();
        recorder.fill(&target, 0, target.len_bytes(), 0xFFFF_FFFF);
        recorder.barrier();
        let groups = count.div_ceil(lanes * subgroups);
        recorder.dispatch(&pipeline, &bindings, &add_push(count, stride, 9), [groups, 1, 1]);
        run(gpu, &recorder.finish().unwrap());
        let mut wanted = vec![0xFFFF_FFFF; len];
        for i in 0..count as usize {
            wanted[i * stride as usize] = a[i] * scale + b[i] + 9;
        }
        assert_eq!(words(&target, len), wanted, "{count} {stride} {subgroups} {scale}");
        assert_eq!(words(&seen, 3), [lanes; 3], "lanes that took part, built-in, constant");
    }
}

#[test]
fn a_dispatch_computes_what_the_host_does() {
    let Some(gpu) = open() else { return };
    check_dispatch(&gpu);
    close(gpu);
}

#[test]
fn four_lanes_child() {
    if !is_child() {
        return;
    }
    let Some(gpu) = open() else { return };
    let info = gpu.info();
    println!("seen: LP_NATIVE_VECTOR_WIDTH=128 gives {} lanes on {}", info.subgroup_size, info.title());
    if info.name.contains("llvmpipe") {
        assert_eq!(info.subgroup_size, 4);
    }
    check_dispatch(&gpu);
    check_pick(&gpu);
    close(gpu);
}

#[test]
fn four_lanes_work_on_the_software_device() {
    run_child("four_lanes_child", &[("LP_NATIVE_VECTOR_WIDTH", "128")], None);
}

/// Every one of 16 buffers is reached by an index that the kernel reads.
fn check_pick(gpu: &Gpu) {
    const LEN: u32 = 100;
    let picks: Vec<u32> = (0..64).map(|i| i * 7 % 16).collect();
    let which = upload(gpu, "which", &picks);
    let pool: Vec<Buffer> = (0..16)
        .map(|p| upload(gpu, &format!("pool {p}"), &(0..LEN).map(|i| p * 1000 + i).collect::<Vec<u32>>()))
        .collect();
    let target = readback(gpu, "target", 64 * LEN as usize);
    let lanes = gpu.info().subgroup_size;
    let pipeline = gpu.pipeline(&PICK, lanes, &[lanes]).unwrap();
    let pool_views: Vec<_> = pool.iter().map(Buffer::view).collect();
    let bindings = gpu.bind(&pipeline, &[&[which.view()], &[target.view()], &pool_views]).unwrap();
    let mut recorder = gpu.recorder().unwrap();
    recorder.dispatch(&pipeline, &bindings, &LEN.to_le_bytes(), [64, 1, 1]);
    run(gpu, &recorder.finish().unwrap());
    let wanted: Vec<u32> = picks.iter().flat_map(|&p| (0..LEN).map(move |i| p * 1000 + i)).collect();
    assert_eq!(words(&target, wanted.len()), wanted, "each workgroup its own pick");
}

#[test]
fn a_uniform_index_reaches_each_buffer_of_an_array() {
    let Some(gpu) = open() else { return };
    check_pick(&gpu);
    close(gpu);
}

#[test]
fn copies_updates_and_fills_arrive() {
    let Some(gpu) = open() else { return };
    let source = upload(&gpu, "source", &(0..1024).collect::<Vec<u32>>());
    let middle = gpu.buffer("middle", 4096, Placement::Device).unwrap();
    let target = readback(&gpu, "target", 1024);
    gpu.clear(&[&middle, &target]).unwrap();
    let mut recorder = gpu.recorder().unwrap();
    recorder.copy(&source, 400, &middle, 800, 40);
    recorder.update(&middle, 0, &7u32.to_le_bytes());
    recorder.fill(&middle, 2000, 8, 0xABCD);
    recorder.copy(&source, 0, &middle, 0, 0);
    recorder.barrier();
    recorder.copy(&middle, 0, &target, 0, 4096);
    run(&gpu, &recorder.finish().unwrap());
    let mut wanted = vec![0u32; 1024];
    wanted[0] = 7;
    wanted[200..210].copy_from_slice(&(100..110).collect::<Vec<u32>>());
    wanted[500..502].fill(0xABCD);
    assert_eq!(words(&target, 1024), wanted);
    assert!(!middle.is_host_visible());
    drop((source, middle, target));
    assert_eq!(gpu.memory_used(), 0);
    close(gpu);
}

/// Commands that add 1 to each word of `target`, and those that copy it to `seen`.
fn counting(gpu: &Gpu, count: u32) -> (Buffer, Buffer, Commands, Commands) {
    let stop = upload(gpu, "stop", &[0]);
    let zeros = upload(gpu, "zeros", &vec![0; count as usize]);
    let target = gpu.buffer("target", u64::from(4 * count), Placement::Device).unwrap();
    let lanes = readback(gpu, "lanes", 3);
    let seen = readback(gpu, "seen", count as usize);
    let pipeline = add_pipeline(gpu, 1, 1);
    let views = [&stop, &target, &zeros, &target, &lanes].map(|buffer| [buffer.view()]);
    let bindings = gpu.bind(&pipeline, &views.each_ref().map(|view| &view[..])).unwrap();
    let mut recorder = gpu.recorder().unwrap();
    let groups = count.div_ceil(gpu.info().subgroup_size);
    recorder.dispatch(&pipeline, &bindings, &add_push(count, 1, 1), [groups, 1, 1]);
    let add = recorder.finish().unwrap();
    let mut recorder = gpu.recorder().unwrap();
    recorder.copy(&target, 0, &seen, 0, target.len_bytes());
    (target, seen, add, recorder.finish().unwrap())
}

#[test]
fn recordings_are_submitted_again_and_follow_each_other() {
    let Some(gpu) = open() else { return };
    let (target, seen, add, show) = counting(&gpu, 1000);
    let (target2, seen2, add2, show2) = counting(&gpu, 10);
    gpu.clear(&[&target, &target2]).unwrap();
    let mut last = None;
    for round in 1..=50 {
        let ticket = gpu.submit(&[&add, &show, &add2]).unwrap();
        assert!(last < Some(ticket), "tickets grow");
        last = Some(ticket);
        assert_eq!(add.ticket(), Some(ticket));
        gpu.wait(ticket).unwrap();
        assert!(gpu.is_done(ticket).unwrap());
        assert_eq!(words(&seen, 1000), vec![round; 1000]);
    }
    // Not waited for in between: the order of submission alone must do.
    let first = gpu.submit(&[&add]).unwrap();
    let second = gpu.submit(&[&show, &show2]).unwrap();
    gpu.wait(second).unwrap();
    assert!(gpu.is_done(first).unwrap());
    assert_eq!((words(&seen, 1000), words(&seen2, 10)), (vec![51; 1000], vec![50; 10]));
    gpu.wait(gpu.submit(&[]).unwrap()).unwrap();
    drop((target, target2, add, show, add2, show2));
    close(gpu);
}

/// Copies on a timeline of their own: kernels submitted later see them, and copies wait for the kernels that they are told of.
#[test]
fn copies_beside_kernels_keep_their_order() {
    for copy_queue in [CopyQueue::Shared, CopyQueue::Auto, CopyQueue::Split] {
        let Some(gpu) = open_with(GpuOptions { copy_queue, ..GpuOptions::default() }) else { return };
        match copy_queue {
            CopyQueue::Shared => assert!(!gpu.has_copy_queue()),
            CopyQueue::Split => assert!(gpu.has_copy_queue()),
            CopyQueue::Auto => println!("seen: a queue of copies: {}", gpu.has_copy_queue()),
        }
        const LEN: u64 = 1 << 20;
        let slot = gpu.buffer("slot", LEN, Placement::Device).unwrap();
        let reports: Vec<Buffer> =
            (0..8).map(|_| gpu.buffer("report", LEN, Placement::Readback).unwrap()).collect();
        let mut kept = Vec::new();
        let mut after = None;
        for (round, report) in (0..).zip(&reports) {
            // Overwritten while the round before may still be read from.
            let mut recorder = gpu.copy_recorder().unwrap();
            recorder.fill(&slot, 0, LEN, round);
            let fill = recorder.finish().unwrap();
            let copied = gpu.submit_copies(&fill, after).unwrap();
            let mut recorder = gpu.recorder().unwrap();
            recorder.copy(&slot, 0, report, 0, LEN);
            let read = recorder.finish().unwrap();
            let ticket = gpu.submit(&[&read]).unwrap();
            assert_eq!(gpu.last_ticket(), Some(ticket));
            after = Some(ticket);
            kept.push((copied, fill, read));
        }
        gpu.wait(after.unwrap()).unwrap();
        for (round, report) in (0..).zip(&reports) {
            assert_eq!(words(report, (LEN / 4) as usize), vec![round; (LEN / 4) as usize], "{copy_queue:?}");
        }
        for (copied, ..) in &kept {
            assert!(gpu.is_done(*copied).unwrap(), "kernels that came behind it have run");
        }
        drop(kept);
        drop((slot, reports));
        close(gpu);
    }
}

#[test]
fn a_missing_barrier_is_seen_by_the_layer() {
    let Some(gpu) = open() else { return };
    if std::env::var_os("FLINT_RT_VALIDATION").is_some_and(|value| value == "0") {
        return println!("skipped: no validation");
    }
    let buffer = gpu.buffer("twice written", 4096, Placement::Device).unwrap();
    let mut recorder = gpu.recorder().unwrap();
    recorder.fill(&buffer, 0, 4096, 1);
    recorder.fill(&buffer, 0, 4096, 2);
    let commands = recorder.finish().unwrap();
    let messages = gpu.validation_messages();
    assert!(messages.iter().any(|message| message.contains("SYNC-HAZARD-WRITE-AFTER-WRITE")), "{messages:?}");
    drop(commands);
}

#[test]
fn broken_promises_panic_with_a_reason() {
    let Some(gpu) = open() else { return };
    let (_target, seen, add, _show) = counting(&gpu, 64);
    let device_only = gpu.buffer("device only", 64, Placement::Device).unwrap();
    let text = panic_text(|| drop(gpu.submit(&[&add, &add])));
    assert!(text.contains("twice in one submission"), "{text}");
    let text = panic_text(|| seen.write(4 * 63, &[0u32; 2]));
    assert!(text.contains("8 B at byte 252 leave buffer \"seen\" of 256 B"), "{text}");
    let text = panic_text(|| drop(seen.slice(u64::MAX, 2)));
    assert!(text.contains("leave buffer"), "{text}");
    if !device_only.is_host_visible() {
        let text = panic_text(|| device_only.write(0, &[1u32]));
        assert!(text.contains("not host-visible"), "{text}");
    }
    let mut recorder = gpu.recorder().unwrap();
    let text = panic_text(|| recorder.copy(&seen, 0, &seen, 8, 16));
    assert!(text.contains("overlap"), "{text}");
    let text = panic_text(|| recorder.update(&seen, 2, &[0; 4]));
    assert!(text.contains("whole words"), "{text}");
    let text = panic_text(|| drop(gpu.bind(&add_pipeline(&gpu, 1, 1), &[&[seen.view()]])));
    assert!(text.contains("one slice of views a binding"), "{text}");
    run(&gpu, &recorder.finish().unwrap());
    run(&gpu, &add);
    drop((_target, seen, add, _show, device_only));
    close(gpu);
}

/// A file of random-looking bytes, and an open handle with `O_DIRECT` if the file system takes it.
fn direct_file(name: &str, len: usize) -> (PathBuf, Vec<u8>, Option<fs::File>) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let bytes: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    (path, bytes, file.ok())
}

/// Host writes, direct reads and device writes all meet in `buffer`'s bytes, which `region` shows.
fn check_shared(gpu: &Gpu, region: &HostRegion, buffer: &Buffer, name: &str) {
    const LEN: usize = 64 << 10;
    assert_eq!(region.base().as_ptr().addr() % 4096, 0, "page-aligned");
    assert_eq!(region.len_bytes() as u64, buffer.len_bytes(), "the same bytes");
    let mut pieces: Vec<HostBuffer> = region.split(LEN, 3);
    pieces[0].as_mut_slice().copy_from_slice(&vec![0x3C; LEN]);
    let (path, bytes, file) = direct_file(&format!("{name}.bin"), LEN);
    let read = file.map(|file| file.read_at(pieces[1].as_mut_slice(), 0));
    println!("seen: O_DIRECT into the {name} region on {}: {read:?}", gpu.info().name);
    if !matches!(read, Some(Ok(LEN))) {
        pieces[1].as_mut_slice().copy_from_slice(&bytes);
    }
    let target = gpu.buffer("target", 2 * LEN as u64, Placement::Readback).unwrap();
    let mut recorder = gpu.recorder().unwrap();
    recorder.copy(buffer, 0, &target, 0, 2 * LEN as u64);
    recorder.fill(buffer, 2 * LEN as u64, LEN as u64, 0x0102_0304);
    run(gpu, &recorder.finish().unwrap());
    let mut seen = vec![0u8; 2 * LEN];
    target.read(0, &mut seen);
    assert!(seen[..LEN].iter().all(|&byte| byte == 0x3C), "what the host wrote");
    assert_eq!(seen[LEN..], bytes, "what was read from the file");
    assert!(
        pieces[2].as_slice().chunks(4).all(|word| word == 0x0102_0304u32.to_ne_bytes()),
        "what the device wrote"
    );
    fs::remove_file(path).unwrap();
}

#[test]
fn imported_memory_is_shared() {
    let Some(gpu) = open() else { return };
    let region = HostRegion::new(1 << 20).unwrap();
    match gpu.import(&region) {
        Ok(buffer) => {
            assert!(!buffer.is_host_visible(), "the host goes through the region");
            assert_eq!(gpu.memory_used(), 0);
            check_shared(&gpu, &region, &buffer, "imported");
            // The region's last handle may go before the buffer.
            drop(region);
            gpu.clear(&[&buffer]).unwrap();
        }
        Err(error @ GpuError::ImportRefused { .. }) => println!("seen: {error}"),
        Err(error) => panic!("{error}"),
    }
    close(gpu);
}

#[test]
fn a_mapped_region_is_shared() {
    let Some(gpu) = open() else { return };
    let (region, buffer) = gpu.mapped_region((1 << 20) - 5).unwrap();
    assert_eq!(buffer.len_bytes(), 1 << 20);
    check_shared(&gpu, &region, &buffer, "mapped");
    // Either view may go first, and the device handle before both.
    drop(region);
    gpu.clear(&[&buffer]).unwrap();
    drop(buffer);
    let (region, buffer) = gpu.mapped_region(4096).unwrap();
    drop(buffer);
    let log = gpu.validation_log();
    drop(gpu);
    region.split(4096, 1)[0].as_mut_slice().fill(1);
    drop(region);
    assert_eq!(log.messages(), Vec::<String>::new());
}

#[test]
fn sizes_over_a_limit_are_refused_by_name() {
    let Some(gpu) = open() else { return };
    let error = gpu.buffer("far too long", 1 << 50, Placement::Device).unwrap_err();
    // A driver that names no such limit has no such memory either.
    assert!(matches!(error, GpuError::OverLimit { .. } | GpuError::OutOfMemory { .. }), "{error}");
    assert!(error.to_string().contains("far too long"), "{error}");
    assert!(gpu.mapped_region(1 << 50).is_err());
    let range = gpu.info().limits.storage_range;
    if range < gpu.info().limits.allocation_bytes && range < 1 << 30 {
        let long = gpu.buffer("long", range + 4096, Placement::Device).unwrap();
        let small = gpu.buffer("small", 256, Placement::Device).unwrap();
        let views = [&small, &long, &small, &small, &small].map(|buffer| [buffer.view()]);
        let bound = gpu.bind(&add_pipeline(&gpu, 1, 1), &views.each_ref().map(|view| &view[..]));
        let error = bound.err().unwrap();
        assert!(error.to_string().contains("maxStorageBufferRange"), "{error}");
    }
    close(gpu);
}

/// Takes device memory until there is none.
#[test]
fn exhaustion_child() {
    if !is_child() {
        return;
    }
    let Some(gpu) = open() else { return };
    let len = gpu.info().limits.allocation_bytes.min(gpu.info().limits.buffer_bytes).min(1 << 30);
    let mut taken = Vec::new();
    let error = loop {
        match gpu.buffer("ballast", len, Placement::Device) {
            Ok(buffer) => taken.push(buffer),
            Err(error) => break error,
        }
        assert!(taken.len() < 1000, "1 TB and no end");
    };
    println!("seen: after {} buffers: {error}", taken.len());
    let GpuError::OutOfMemory { ref what, requested_bytes, budget_bytes, used_bytes } = error else {
        panic!("{error:?}")
    };
    assert_eq!(what, "ballast");
    assert!(requested_bytes >= len && budget_bytes > 0, "{error:?}");
    assert!(used_bytes >= len * taken.len() as u64, "{error:?}");
    assert!(gpu.memory_used() >= len * taken.len() as u64);
    drop(taken);
    assert_eq!(gpu.memory_used(), 0);
    check_dispatch(&gpu);
    close(gpu);
}

#[test]
fn exhausted_memory_is_a_typed_error_and_the_device_goes_on() {
    let Some(gpu) = open() else { return };
    let is_software = gpu.info().is_software();
    close(gpu);
    // A software device takes what the process may map; a real one what its heap holds, which is not ours to take while
    // other tests run.
    if !is_software && std::env::var_os("FLINT_RT_TEST_EXHAUST").is_none() {
        return println!("skipped: FLINT_RT_TEST_EXHAUST=1 with --test-threads=1 fills the device's memory");
    }
    run_child("exhaustion_child", &[], is_software.then_some(8 << 20));
}

#[test]
fn wrong_device_names_list_what_there_is() {
    let Some(gpu) = open() else { return };
    let name = gpu.info().name.clone();
    close(gpu);
    for wrong in ["Voodoo 2", "9999", "", "-1"] {
        let options = GpuOptions { device: Some(wrong.to_owned()), ..GpuOptions::default() };
        let error = Gpu::open(&options).err().unwrap();
        assert!(matches!(error, GpuError::InvalidChoice { .. }), "{wrong:?}: {error}");
        assert!(error.to_string().contains(&name), "{error}");
    }
    let part = name.get(1..5).unwrap_or(&name).to_uppercase();
    for right in [part, "0".to_owned()] {
        let Some(gpu) = open_with(GpuOptions { device: Some(right.clone()), ..GpuOptions::default() }) else {
            return;
        };
        assert_eq!(gpu.info().choice, DeviceChoice::Asked(right));
        close(gpu);
    }
}

#[test]
fn absent_parts_child() {
    if !is_child() {
        return;
    }
    let answer = Gpu::open(&GpuOptions { validation: true, ..GpuOptions::default() }).map(drop);
    let wanted = std::env::var("FLINT_RT_TEST_WANTED").unwrap();
    let error = answer.unwrap_err();
    println!("seen: {error}");
    assert!(
        format!("{error:?}").starts_with(&wanted) && error.to_string().contains("apt install"),
        "{error:?}"
    );
}

#[test]
fn an_absent_layer_or_driver_is_named_with_its_package() {
    let Some(gpu) = open() else { return };
    close(gpu);
    let nowhere = "/nowhere-at-all";
    let layer = [("VK_LAYER_PATH", nowhere), ("FLINT_RT_TEST_WANTED", "ValidationMissing")];
    run_child("absent_parts_child", &layer, None);
    let driver =
        [("VK_ICD_FILENAMES", nowhere), ("VK_DRIVER_FILES", nowhere), ("FLINT_RT_TEST_WANTED", "NoDevice")];
    if list_devices(true).is_ok() {
        run_child("absent_parts_child", &driver, None);
    }
}

#[test]
fn a_kernel_over_the_limits_is_refused_and_the_device_goes_on() {
    let Some(gpu) = open() else { return };
    let lanes = gpu.info().subgroup_size;
    for (size, workgroup) in [(256, 256), (3, 3), (0, 64), (lanes, 1 << 20), (lanes, 0)] {
        let error = gpu.pipeline(&ADD, size, &[workgroup, size, 1]).err().unwrap();
        assert!(matches!(error, GpuError::FeatureMissing { .. }), "{size} {workgroup}: {error}");
        assert!(error.to_string().contains("add_strided"), "{error}");
    }
    check_dispatch(&gpu);
    close(gpu);
}

#[test]
fn the_clock_of_the_device_runs() {
    let Some(gpu) = open() else { return };
    let (target, _seen, add, _show) = counting(&gpu, 1000);
    gpu.clear(&[&target]).unwrap();
    let stamps = gpu.timestamps(3).unwrap();
    let mut recorder = gpu.recorder().unwrap();
    recorder.reset_stamps(&stamps, 0, stamps.count());
    recorder.stamp(&stamps, 0);
    recorder.fill(&target, 0, 4000, 1);
    recorder.stamp(&stamps, 1);
    recorder.barrier();
    recorder.fill(&target, 0, 4000, 2);
    recorder.stamp(&stamps, 2);
    let commands = recorder.finish().unwrap();
    run(&gpu, &commands);
    run(&gpu, &add);
    let spans = stamps.spans_ns().unwrap().unwrap();
    println!("seen: two fills took {spans:?} ns");
    assert_eq!(spans.len(), 2);
    assert!(spans.iter().all(|&span| (0.0..1e9).contains(&span)), "{spans:?}");
    drop((target, _seen, add, _show, stamps, commands));
    close(gpu);
}

#[test]
fn dispatches_are_timed_while_somebody_asks() {
    let Some(gpu) = open() else { return };
    let (target, seen, add, show) = counting(&gpu, 1000);
    gpu.clear(&[&target]).unwrap();
    let dispatches = Dispatches::begin(&gpu).unwrap();
    run(&gpu, &add);
    assert!(dispatches.take().unwrap().0.is_empty(), "it was recorded before");

    let (other, other_seen, timed, timed_show) = counting(&gpu, 1000);
    gpu.clear(&[&other]).unwrap();
    dispatches.take().unwrap();
    for _ in 0..3 {
        // Each is read before it is noted anew, or its ticket's end would be asked for twice.
        run(&gpu, &timed);
    }
    run(&gpu, &timed_show);
    let (spans, left_out) = dispatches.take().unwrap();
    println!("seen: {spans:?}");
    let names: Vec<&str> = spans.iter().map(|span| span.label.name).collect();
    assert_eq!(names, ["add_strided", "add_strided", "add_strided", "copy"]);
    assert!(spans.iter().all(|span| span.begins_stage && span.end_ns >= span.begin_ns));
    assert!(spans.windows(2).all(|pair| pair[0].end_ns <= pair[1].begin_ns), "one after the other");
    assert_eq!((spans[3].label.bytes, left_out), (4000, 0));

    let mut recorder = gpu.recorder().unwrap();
    for _ in 0..2 {
        recorder.fill(&target, 0, 400, 1);
        recorder.fill(&target, 400, 400, 1);
        recorder.barrier();
    }
    let fills = recorder.finish().unwrap();
    run(&gpu, &fills);
    drop(fills);
    let (spans, _) = dispatches.take().unwrap();
    let stages: Vec<bool> = spans.iter().map(|span| span.begins_stage).collect();
    assert_eq!(stages, [true, false, true, false], "read when its commands went");
    assert!(spans[0].end_ns == spans[1].begin_ns && spans[2].end_ns == spans[3].begin_ns);

    drop(dispatches);
    run(&gpu, &timed);
    drop((target, seen, add, show, other, other_seen, timed, timed_show));
    close(gpu);
}

#[test]
fn two_devices_live_in_one_process() {
    let (Some(one), Some(other)) = (open(), open()) else { return };
    check_dispatch(&one);
    std::thread::scope(|scope| {
        scope.spawn(|| check_dispatch(&one));
        scope.spawn(|| check_pick(&one));
        scope.spawn(|| check_dispatch(&other));
    });
    let foreign = upload(&one, "foreign", &[0]);
    let mut recorder = other.recorder().unwrap();
    let text = panic_text(|| recorder.fill(&foreign, 0, 4, 0));
    assert!(text.contains("another device"), "{text}");
    drop((foreign, recorder));
    close(one);
    check_dispatch(&other);
    close(other);
}

#[test]
fn drop_order_does_not_matter() {
    let Some(gpu) = open() else { return };
    let log = gpu.validation_log();
    let (target, seen, add, show) = counting(&gpu, 100);
    gpu.clear(&[&target]).unwrap();
    let recorder = gpu.recorder().unwrap();
    let pipeline = add_pipeline(&gpu, 1, 1);
    gpu.submit(&[&add, &show]).unwrap();
    // In flight, and the device's own handle goes first.
    drop(gpu);
    drop(target);
    drop(pipeline);
    drop(recorder);
    drop(show);
    assert_eq!(words(&seen, 100), vec![1; 100]);
    drop(add);
    drop(seen);
    assert_eq!(log.messages(), Vec::<String>::new());
}

#[test]
fn commands_dropped_in_flight_are_waited_for() {
    let Some(gpu) = open() else { return };
    let len = 64 << 20;
    let target = gpu.buffer("target", len, Placement::Device).unwrap();
    let seen = readback(&gpu, "seen", 1);
    for round in 0..5 {
        let mut recorder = gpu.recorder().unwrap();
        for _ in 0..3 {
            recorder.fill(&target, 0, len, round);
            recorder.barrier();
        }
        recorder.copy(&target, len - 4, &seen, 0, 4);
        let commands = recorder.finish().unwrap();
        let ticket = gpu.submit(&[&commands]).unwrap();
        drop(commands);
        assert!(gpu.is_done(ticket).unwrap(), "dropping them waits");
        assert_eq!(words(&seen, 1), [round]);
    }
    drop((target, seen));
    close(gpu);
}

fn with_cache(directory: &Path) -> Option<(CacheState, PathBuf)> {
    let gpu = open_with(GpuOptions { cache_dir: Some(directory.to_owned()), ..GpuOptions::default() })?;
    let state = gpu.pipeline_cache().clone();
    check_dispatch(&gpu);
    let path = gpu.save_pipeline_cache().unwrap().unwrap().to_owned();
    close(gpu);
    Some((state, path))
}

#[test]
fn a_damaged_pipeline_cache_is_ignored_and_rebuilt() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pipeline-cache");
    let _ = fs::remove_dir_all(&directory);
    let Some((state, path)) = with_cache(&directory) else { return };
    assert_eq!(state, CacheState::Fresh);
    let whole = fs::read(&path).unwrap();
    println!("seen: pipeline cache of {} B: {}", whole.len(), path.file_name().unwrap().display());
    assert!(matches!(with_cache(&directory), Some((CacheState::Loaded(_), _))));

    let mut corrupt = whole.clone();
    *corrupt.last_mut().unwrap() ^= 1;
    let mut foreign = whole.clone();
    foreign[48] ^= 1;
    let halves = whole[..whole.len() / 2].to_vec();
    for damaged in [corrupt, halves, foreign, Vec::new(), b"something else".to_vec(), whole[..40].to_vec()] {
        fs::write(&path, &damaged).unwrap();
        let (state, again) = with_cache(&directory).unwrap();
        assert!(matches!(state, CacheState::Ignored(_)), "{state:?}");
        assert_eq!(again, path);
        assert!(matches!(with_cache(&directory), Some((CacheState::Loaded(_), _))), "it was rebuilt");
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "no temporary file is left");
    fs::remove_dir_all(&directory).unwrap();

    // A directory that cannot be: the device works, only saving says so.
    fs::write(&directory, b"a file").unwrap();
    let gpu = open_with(GpuOptions { cache_dir: Some(directory.clone()), ..GpuOptions::default() }).unwrap();
    check_dispatch(&gpu);
    assert!(matches!(gpu.save_pipeline_cache(), Err(GpuError::CacheNotWritten { .. })));
    close(gpu);
    fs::remove_file(&directory).unwrap();
}
