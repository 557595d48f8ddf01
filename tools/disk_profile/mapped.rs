//! Reads blocks by touching a mapping: what a program pays that leaves its weights to the page cache.
//!
//! - Owns: threads for the time of a run. In: mapped files, a [`Space`], an [`Order`]. Out: a [`Run`].
//! - Invariants: as many threads as blocks under way, since a fault stops its thread; each copies its block out, as others get
//!   theirs in a buffer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use flint_rt::disk::{MappedFile, process_cpu};

use super::latency::Latency;
use super::reader::{Run, Until};
use super::space::{Order, Space};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt;

/// `depth` blocks under way all the time.
pub(super) fn steady(
    maps: &[MappedFile],
    space: &Space,
    order: Order,
    depth: u32,
    until: Until,
) -> Outcome<Run> {
    let turn = AtomicU64::new(0);
    let cpu = process_cpu();
    let begin = Instant::now();
    let work = || {
        let mut latency = Latency::new();
        let mut buffer = vec![0; usize::try_from(space.read_bytes_max()).unwrap_or(0)];
        let (mut spans, mut count, mut bytes) = (Vec::new(), 0, 0);
        while begin.elapsed() < until.time && !interrupt::is_requested() {
            let turn = turn.fetch_add(1, Ordering::Relaxed);
            if turn >= until.blocks {
                break;
            }
            space.spans(order.at(turn), &mut spans);
            let start = Instant::now();
            for span in &spans {
                let len = usize::try_from(span.len_bytes).unwrap_or(0);
                maps[usize::from(span.file.0)].copy_to(span.offset_bytes, &mut buffer[..len]);
                bytes += span.len_bytes;
            }
            latency.add(start.elapsed());
            count += 1;
        }
        (latency, count, bytes)
    };
    let mut latency = Latency::new();
    let (mut count, mut bytes) = (0, 0);
    std::thread::scope(|scope| -> Outcome {
        let threads: Vec<_> = (0..depth)
            .map(|_| std::thread::Builder::new().spawn_scoped(scope, work))
            .collect::<Result<_, _>>()
            .map_err(|error| Failure::because(Exit::Failed, "a thread for touching a mapping", &error))?;
        for thread in threads {
            let part = thread
                .join()
                .map_err(|_| Failure::new(Exit::Failed, "a thread that touched a mapping ended early"))?;
            latency.merge(&part.0);
            count += part.1;
            bytes += part.2;
        }
        Ok(())
    })?;
    if interrupt::is_requested() {
        return Err(Failure::Interrupted);
    }
    let (seconds, cpu_seconds) = (begin.elapsed().as_secs_f64(), (process_cpu() - cpu).as_secs_f64());
    Ok(Run { seconds, cpu_seconds, count, bytes, latency })
}
