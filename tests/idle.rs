//! What an engine takes while nobody asks anything of it, and in all: processor time, and memory beyond what was asked for.
//!
//! One test a program, since it measures the process.

#[path = "support/nano.rs"]
mod nano;

use std::time::{Duration, Instant};

use flint_rt::disk::process_cpu;
use flint_rt::engine::HostMemory;
use flint_rt::model::Want;
use flint_rt::model::prefill::NoObserver;
use nano::{Vectors, nano_path, open_nano, skip_without_device};

/// Bytes of this process that lie in memory.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux says it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is there");
    let kib = line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number");
    kib * 1024
}

#[test]
fn an_idle_engine_spins_nowhere_and_keeps_to_its_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("flint-nano");
    flint_rt::store::ingest(&nano_path(), &store, &mut |_| std::ops::ControlFlow::Continue(()))
        .expect("a store");
    let before = resident_bytes();
    let Some(mut engine) = open_nano(|options| {
        options.model = store;
        options.pool_slots = Some(6);
        options.host_memory = HostMemory::Auto;
        // The layer keeps books of its own.
        options.validation = false;
        // Threads that sum are there, whatever the size of a record.
        options.simulation = Some((1, flint_rt::disk::Faults::default()));
    }) else {
        return skip_without_device();
    };
    let vectors = Vectors::read();
    let prompt = vectors.prompts.iter().find(|prompt| prompt.name == "chat_tool").expect("a known prompt");
    let mut session = engine.session().expect("a session");
    let fed = engine.feed_prompt(&mut session, &prompt.ids, Want::Greedy, &mut NoObserver).expect("fed");
    let mut token = fed.step.greedy.expect("wanted");
    for _ in 0..16 {
        token = engine.feed_token(&mut session, token, Want::Greedy).expect("a step").greedy.expect("wanted");
    }

    // Host memory that is made ahead is made meanwhile.
    std::thread::sleep(Duration::from_millis(300));
    // What spins does so every time; the looks at pressure take longer where others are busy.
    let is_idle = (0..5).any(|_| {
        let (cpu, begin) = (process_cpu(), Instant::now());
        std::thread::sleep(Duration::from_secs(1));
        let (used, elapsed) = (process_cpu() - cpu, begin.elapsed());
        println!("idle for {elapsed:?}: {used:?} of processor time");
        used < elapsed / 50
    });
    assert!(is_idle, "an idle engine takes more than a fiftieth of a processor");

    // This device's memory is the host's: what the plan gave to both, and what an engine takes beside.
    let plan = engine.plan();
    let asked = plan.resident_bytes
        + plan.kv_bytes
        + plan.scratch_bytes
        + plan.pool_bytes
        + plan.staging_bytes
        + plan.host.bytes();
    let taken = resident_bytes() - before;
    println!("taken {taken} B, of which {asked} B were planned");
    assert!(taken < asked + (300 << 20), "{taken} B taken, {asked} B planned");
}
