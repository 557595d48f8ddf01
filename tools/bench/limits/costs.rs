//! What dispatches, barriers, submissions and waits cost, and what the device's memory moves.

use std::time::Instant;

use flint_rt::kernels::{Binder, KernelShape, Pipelines, RmsNorm, Tuning};
use flint_rt::model::hparams::FlintConfig;
use serde::Serialize;

use super::{Bench, median};
use crate::exit::{Failure, Outcome};
use crate::interrupt;

/// Dispatches of a recording.
const DISPATCHES: u32 = 1000;

/// Round trips of which the median counts.
const ROUND_TRIPS: usize = 200;

/// Bytes that are copied and filled: more than a device's caches hold; on a software device less.
const COPY_BYTES: u64 = 512 << 20;
const COPY_BYTES_SOFTWARE: u64 = 32 << 20;

/// Microseconds, and 1e9 bytes a second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Costs {
    /// Of one dispatch that does nothing, with a barrier between one and the next, and without.
    pub(super) dispatch_dependent_us: f64,
    pub(super) dispatch_independent_us: f64,
    /// Of the host, to record one of them and its barrier.
    pub(super) record_us: f64,
    /// Of the host, to submit one recording.
    pub(super) submit_us: f64,
    /// From a submission until the host knows of its end: asleep meanwhile, or asking all the time.
    pub(super) round_trip_wait_us: f64,
    pub(super) round_trip_spin_us: f64,
    /// Read and written.
    pub(super) copy_gb_s: f64,
    pub(super) fill_gb_s: f64,
}

impl Costs {
    /// The faster of copy and fill: what shares are of.
    pub(super) fn memory_gb_s(&self) -> f64 {
        self.copy_gb_s.max(self.fill_gb_s)
    }

    /// As a table says them.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let us = |us: f64| format!("{us:.2} us");
        let rate = |rate: f64| format!("{rate:.1} GB/s");
        vec![
            ("a dispatch that does nothing, a barrier behind each", us(self.dispatch_dependent_us)),
            ("the same without barriers", us(self.dispatch_independent_us)),
            ("recording one and its barrier", us(self.record_us)),
            ("submitting", us(self.submit_us)),
            ("submitting and waiting for the end", us(self.round_trip_wait_us)),
            ("submitting and asking until the end", us(self.round_trip_spin_us)),
            ("copy within the device, read and written", rate(self.copy_gb_s)),
            ("fill", rate(self.fill_gb_s)),
        ]
    }
}

/// What is compiled into kernels for a model's shapes.
pub(super) fn kernel_shape(config: &FlintConfig) -> KernelShape {
    KernelShape {
        head_dim: config.head_dim,
        group: config.head_count / config.kv_head_count,
        expert_count: config.expert_count,
        experts_used: config.experts_used,
    }
}

pub(super) fn measure(bench: &Bench, config: &FlintConfig, tuning: Tuning) -> Outcome<Costs> {
    let gpu = &bench.gpu;
    let pipelines = Pipelines::new(gpu, kernel_shape(config), tuning)?;
    // A stop word that is set makes every kernel return at once.
    let stopped = bench.holding("control", &[1, 1, 0, 0, 0, 0, 0, 0])?;
    let words = u64::from(config.embed_dim) * 4;
    let (source, target) = (bench.filled("x", words)?, bench.filled("normed", words)?);
    let weight = bench.filled("norm", words)?;
    let on = Binder { gpu, pipelines: &pipelines, control: &stopped, tokens_max: 1 };
    let nothing = RmsNorm::new(&on, &source, &weight, &target, config.embed_dim, config.norm_epsilon)?;

    let mut record_us = Vec::new();
    let mut dispatches = |has_barriers: bool| -> Outcome<f64> {
        let begun = Instant::now();
        let commands = bench.timed(|recorder| {
            for _ in 0..DISPATCHES {
                nothing.record(recorder, 1, 0, 0);
                if has_barriers {
                    recorder.barrier();
                }
            }
        })?;
        if has_barriers {
            record_us.push(begun.elapsed().as_secs_f64() * 1e6 / f64::from(DISPATCHES));
        }
        Ok(bench.seconds(&commands)? * 1e6 / f64::from(DISPATCHES))
    };
    let (mut dependent, mut independent) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        dependent.push(dispatches(true)?);
        independent.push(dispatches(false)?);
    }

    let mut recorder = gpu.recorder()?;
    nothing.record(&mut recorder, 1, 0, 0);
    let one = recorder.finish()?;
    let (mut submits, mut waits, mut spins) = (Vec::new(), Vec::new(), Vec::new());
    let us_since = |begun: Instant| begun.elapsed().as_secs_f64() * 1e6;
    for _ in 0..ROUND_TRIPS {
        if interrupt::is_requested() {
            return Err(Failure::Interrupted);
        }
        let begun = Instant::now();
        let ticket = gpu.submit(&[&one])?;
        submits.push(us_since(begun));
        gpu.wait(ticket)?;
        waits.push(us_since(begun));
        let begun = Instant::now();
        let ticket = gpu.submit(&[&one])?;
        while !gpu.is_done(ticket)? {
            std::hint::spin_loop();
        }
        spins.push(us_since(begun));
    }

    let bytes = if gpu.info().is_software() { COPY_BYTES_SOFTWARE } else { COPY_BYTES };
    let (from, to) = (bench.filled("copied from", bytes)?, bench.filled("copied to", bytes)?);
    let rate = |moved: u64, seconds: f64| moved as f64 / seconds / 1e9;
    let copy = bench.timed(|recorder| recorder.copy(&from, 0, &to, 0, bytes))?;
    let fill = bench.timed(|recorder| recorder.fill(&to, 0, bytes, 0))?;
    Ok(Costs {
        dispatch_dependent_us: median(dependent),
        dispatch_independent_us: median(independent),
        record_us: median(record_us),
        submit_us: median(submits),
        round_trip_wait_us: median(waits),
        round_trip_spin_us: median(spins),
        copy_gb_s: rate(2 * bytes, bench.seconds(&copy)?),
        fill_gb_s: rate(bytes, bench.seconds(&fill)?),
    })
}
