//! How fast a model would run, from its numbers and a drive's: an estimate, and which limit binds. Pure.
//!
//! - Owns: nothing. In: what one token takes of a device ([`StepCost`], estimated by [`TokenCost`] and [`DeviceCost`] or
//!   measured by a [`crate::engine::rehearsal::Rehearsal`]) and of a drive ([`DriveCost`]), a share of uses that find their
//!   expert in a slot. Out: an [`Expectation`].
//! - Invariants: a faster drive or a faster device never make a token slower.
//!
//! The model: decode runs until a pick is missing, waits for that layer's records, and goes on. So a token takes the
//! device's time with everything resident, and for each layer with a miss one stop of device and host, and the reads of as many
//! records at once as are missing. Each record that has come is checked and copied while the next ones are read, so what is
//! waited for is the slower of both, and the other once. What host memory has is copied while the first read is waited for.
//! Picks miss independently of one another. After a stop few layers are submitted at once, so a token has further submissions, and
//! layers behind a stop that are gone through in vain ([`Submissions`]). Where anything can miss, the next layer's router runs beside
//! each router, to guess.
//!
//! `t = kernels + guesses + bytes / memory + further * submission + vain * segment`
//! `+ layers * sum over d, h of P(d from the drive, h from the host) *`
//! `(stall + max(burst(d) + record, max(burst(1), h * record) + d * record))`, without the drive's part where d = 0

use std::fmt;

use crate::engine::drive_cost::DriveCost;
use crate::engine::hit_curve::Hits;
use crate::engine::run_ahead::Submissions;
use crate::gpu::DeviceKind;
use crate::model::hparams::FlintConfig;
use crate::model::kv_cache::ring_rows;

/// Steps of a layer's kernels that wait for the one before: seven for attention, two for the router and three for the
/// experts, or two for a dense network. Counted in `model::layer`.
const STAGES_MOE: u32 = 12;
const STAGES_DENSE: u32 = 9;

/// Inputs before the layers; norm, head and the two halves of the greedy token behind them.
const STAGES_ENDS: u32 = 6;

/// What a token asks for, whatever the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenCost {
    /// Layers with experts.
    pub moe_layers: u32,
    /// Experts that a layer uses.
    pub experts_used: u32,
    /// Bytes of a record.
    pub record_bytes: u64,
    /// Kernels that wait for one another.
    pub stages: u32,
    /// Bytes that the device reads of its memory: dense weights, picked experts, keys and values.
    pub device_bytes: u64,
    /// Those of keys and values.
    pub cache_bytes: u64,
}

impl TokenCost {
    /// The cost of the token behind `position` others; `resident_bytes` are the dense weights on the device.
    pub fn new(config: &FlintConfig, resident_bytes: u64, position: u32) -> Self {
        let (moe_layers, dense_layers) = (config.moe_layer_count(), config.lead_layer_count);
        let row_bytes = 2 * 2 * u64::from(config.kv_head_count) * u64::from(config.head_dim);
        let rows: u64 =
            config.layers.iter().map(|layer| u64::from(ring_rows(layer.window, position, 1))).sum();
        let picked_bytes = u64::from(moe_layers) * u64::from(config.experts_used) * config.record_bytes();
        Self {
            moe_layers,
            experts_used: config.experts_used,
            record_bytes: config.record_bytes(),
            stages: moe_layers * STAGES_MOE + dense_layers * STAGES_DENSE + STAGES_ENDS,
            device_bytes: resident_bytes + picked_bytes + rows * row_bytes,
            cache_bytes: rows * row_bytes,
        }
    }

    /// Experts that a token uses.
    pub fn experts(&self) -> u32 {
        self.moe_layers * self.experts_used
    }
}

/// What a device takes. The constants of [`Self::estimate`] are estimates, not measurements of the device at hand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceCost {
    /// Seconds of a kernel that waits for the one before, without the bytes that it reads.
    pub stage_seconds: f64,
    /// Bytes a second that kernels read of its memory.
    pub memory_rate: f64,
    /// Seconds that a layer takes longer when the device stops at a missing pick, without the reads and the last record's copy.
    pub round_trip_seconds: f64,
    /// Bytes a second from host memory into a slot.
    pub bus_rate: f64,
    /// Seconds of one submission more, in which nothing is missed.
    pub submission_seconds: f64,
    /// Seconds of a kernel that returns at once, as the device has stopped before it.
    pub vain_stage_seconds: f64,
}

impl DeviceCost {
    /// Typical values for a kind of device; `cores` are the host's, which matter to a software device only.
    ///
    /// | kind | from |
    /// | --- | --- |
    /// | discrete | a stage of 5 to 7 us, and what a stopped layer takes beside its reads (checks, copies, a submission cut short, waking up), as measured on an NVIDIA H200 with pools of 282 slots to half of the experts; memory of a middling card; a bus of 8 lanes of PCIe 4 |
    /// | integrated | two channels of DDR5 |
    /// | software | kernels of Mesa 22.3 on two cores: 1.9 GB/s of Q4_1, 120 us a submission, and the steps of small models whose kernels wait for one another |
    pub fn estimate(kind: DeviceKind, cores: usize) -> Self {
        let of = |stage_us: f64, memory_gb: f64, round_trip_us: f64, bus_gb: f64| Self {
            stage_seconds: stage_us * 1e-6,
            memory_rate: memory_gb * 1e9,
            round_trip_seconds: round_trip_us * 1e-6,
            bus_rate: bus_gb * 1e9,
            submission_seconds: if kind == DeviceKind::Software { 400e-6 } else { 50e-6 },
            vain_stage_seconds: if kind == DeviceKind::Software { 20e-6 } else { 1.5e-6 },
        };
        match kind {
            DeviceKind::Discrete => of(6.0, 400.0, 920.0, 12.0),
            DeviceKind::Integrated => of(8.0, 60.0, 150.0, 20.0),
            DeviceKind::Virtual | DeviceKind::Other => of(8.0, 100.0, 200.0, 8.0),
            DeviceKind::Software => of(65.0, 0.95 * cores.max(1) as f64, 450.0, 8.0),
        }
    }
}

/// What one token takes, but for the drive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepCost {
    /// Seconds of kernels with every expert in its slot, without `memory_seconds`.
    pub kernel_seconds: f64,
    /// Seconds of the bytes that kernels read of device memory. Where the rest was measured, those of keys and values alone:
    /// all others are in what was measured.
    pub memory_seconds: f64,
    /// Seconds that a layer with a miss takes, however many miss.
    pub stall_seconds: f64,
    /// Seconds that a missing record takes on its way from host memory into its slot.
    pub record_seconds: f64,
    /// Seconds of a submission in which nothing is missed, beyond the one that every token has.
    pub submission_seconds: f64,
    /// Seconds of a segment, which is a layer's kernels, that is gone through in vain.
    pub vain_seconds: f64,
    /// Seconds of a token's guesses, where anything can miss.
    pub guess_seconds: f64,
    /// Whether the device at hand was measured.
    pub is_measured: bool,
}

impl StepCost {
    /// By what is usual for a kind of device.
    pub fn estimate(token: &TokenCost, device: &DeviceCost) -> Self {
        Self {
            kernel_seconds: f64::from(token.stages) * device.stage_seconds,
            memory_seconds: token.device_bytes as f64 / device.memory_rate,
            stall_seconds: device.round_trip_seconds,
            record_seconds: token.record_bytes as f64 / device.bus_rate,
            submission_seconds: device.submission_seconds,
            vain_seconds: f64::from(STAGES_MOE) * device.vain_stage_seconds,
            // They run beside the routers: on a device that has room for both, in no time.
            guess_seconds: 0.0,
            is_measured: false,
        }
    }
}

/// What takes most of a token's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Reading records.
    Drive,
    /// Host and device waiting for each other at layers with a miss, and the copies behind the reads.
    RoundTrips,
    /// Kernels that wait for one another.
    Stages,
    /// Kernels, by a measurement that does not tell why.
    Kernels,
    /// The bytes that kernels read of device memory.
    Memory,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drive => "the drive",
            Self::RoundTrips => "round trips of host and device",
            Self::Stages => "kernels waiting for one another",
            Self::Kernels => "the device's kernels",
            Self::Memory => "the device's memory bandwidth",
        })
    }
}

/// How long a token takes, and of what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expectation {
    /// Share of uses that find their expert in a slot.
    pub hit_rate: f64,
    /// Share of uses that find it in host memory.
    pub host_hit_rate: f64,
    /// Bytes read from the drive.
    pub read_bytes: f64,
    /// Seconds of reading.
    pub drive_seconds: f64,
    /// Seconds of waiting at layers with a miss, of copies, and of what is submitted more than once on account of them.
    pub round_trip_seconds: f64,
    /// Seconds of kernels: as in [`StepCost`], guesses included.
    pub kernel_seconds: f64,
    /// Seconds of kernels' bytes: as in [`StepCost`].
    pub memory_seconds: f64,
    /// Whether the device's share was measured.
    pub is_measured: bool,
}

impl Expectation {
    /// Of one token among many, of which `hit_rate` of the uses find their expert, and the others read it.
    pub fn new(token: &TokenCost, step: &StepCost, drive: &DriveCost, hit_rate: f64) -> Self {
        Self::with_host(token, step, drive, Hits { device: hit_rate, host: 0.0 })
    }

    /// As [`Self::new`], with experts that are copied from host memory.
    pub fn with_host(token: &TokenCost, step: &StepCost, drive: &DriveCost, hits: Hits) -> Self {
        let hit = hits.device.clamp(0.0, 1.0);
        let host = hits.host.clamp(0.0, 1.0 - hit);
        let read = 1.0 - hit - host;
        let layers = f64::from(token.moe_layers);
        let (mut drive_seconds, mut other_seconds) = (0.0, 0.0);
        for from_drive in 0..=token.experts_used {
            for from_host in 0..=token.experts_used - from_drive {
                let missing = from_drive + from_host;
                if missing == 0 {
                    continue;
                }
                let ways = ways(token.experts_used, missing) * ways(missing, from_host);
                let chance = layers
                    * ways
                    * read.powf(f64::from(from_drive))
                    * host.powf(f64::from(from_host))
                    * hit.powf(f64::from(token.experts_used - missing));
                let copies = |count| f64::from(count) * step.record_seconds;
                let reads = drive.burst_seconds(from_drive);
                let first = drive.burst_seconds(from_drive.min(1));
                let behind_reads = reads + step.record_seconds;
                let behind_copies = first.max(copies(from_host)) + copies(from_drive);
                drive_seconds += chance * reads;
                other_seconds += chance * (step.stall_seconds + behind_reads.max(behind_copies) - reads);
            }
        }
        let submissions =
            Submissions::of_chance(token.moe_layers, 1.0 - hit.powf(f64::from(token.experts_used)));
        other_seconds += submissions.further * step.submission_seconds + submissions.vain * step.vain_seconds;
        Self {
            hit_rate: hit,
            host_hit_rate: host,
            read_bytes: read * f64::from(token.experts()) * token.record_bytes as f64,
            drive_seconds,
            round_trip_seconds: other_seconds,
            kernel_seconds: step.kernel_seconds + if hit < 1.0 { step.guess_seconds } else { 0.0 },
            memory_seconds: step.memory_seconds,
            is_measured: step.is_measured,
        }
    }

    /// Seconds of the token.
    pub fn seconds(&self) -> f64 {
        self.drive_seconds + self.round_trip_seconds + self.kernel_seconds + self.memory_seconds
    }

    /// Tokens a second.
    pub fn tokens_a_second(&self) -> f64 {
        1.0 / self.seconds()
    }

    /// What takes most of it.
    pub fn limit(&self) -> Limit {
        let parts = [
            (self.drive_seconds, Limit::Drive),
            (self.round_trip_seconds, Limit::RoundTrips),
            (self.kernel_seconds, if self.is_measured { Limit::Kernels } else { Limit::Stages }),
            (self.memory_seconds, Limit::Memory),
        ];
        parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("invariant: four parts").1
    }
}

/// How many ways there are to choose `chosen` of `all`.
fn ways(all: u32, chosen: u32) -> f64 {
    (0..chosen).map(|at| f64::from(all - at) / f64::from(at + 1)).product()
}

/// Bytes of records that a chunk of `tokens` of a prompt reads when nothing is resident: picks spread over all experts.
pub fn chunk_read_bytes(config: &FlintConfig, tokens: u32) -> f64 {
    let experts = f64::from(config.expert_count);
    let untouched = (1.0 - f64::from(config.experts_used) / experts).powf(f64::from(tokens));
    f64::from(config.moe_layer_count()) * experts * (1.0 - untouched) * config.record_bytes() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The full Flint at 4,096 tokens, by its published numbers.
    const FLINT: TokenCost = TokenCost {
        moe_layers: 47,
        experts_used: 6,
        record_bytes: 1_966_080,
        stages: 47 * 12 + 2 * 9 + 6,
        device_bytes: 1_810_000_000,
        cache_bytes: 120_000_000,
    };

    fn gpu() -> StepCost {
        StepCost::estimate(&FLINT, &DeviceCost::estimate(DeviceKind::Discrete, 8))
    }

    #[test]
    fn cold_is_bound_by_the_drive_and_meets_its_rate() {
        let drive = DriveCost::assumed(3.5e9, FLINT.record_bytes);
        let cold = Expectation::new(&FLINT, &gpu(), &drive, 0.0);
        assert_eq!(cold.limit(), Limit::Drive);
        assert!((cold.read_bytes - 554_434_560.0).abs() < 1.0, "{cold:?}");
        // 554 MB at 3.5 GB/s are 158 ms, and 47 first answers 5 ms.
        assert!((cold.drive_seconds - 0.1631).abs() < 0.0005, "{cold:?}");
        // The drive and a GPU of 3.2 ms alone would give 5.9 tokens a second; here the GPU takes 8 ms, and each layer stops.
        assert!((4.2..5.0).contains(&cold.tokens_a_second()), "{}", cold.tokens_a_second());
    }

    #[test]
    fn resident_does_not_know_the_drive() {
        let of = |rate| Expectation::new(&FLINT, &gpu(), &DriveCost::assumed(rate, FLINT.record_bytes), 1.0);
        assert_eq!(of(1e8), of(1e10));
        assert_eq!(of(1e8).read_bytes, 0.0);
        assert_eq!(of(1e8).round_trip_seconds, 0.0);
        assert!(matches!(of(1e8).limit(), Limit::Stages | Limit::Memory), "{:?}", of(1e8));
    }

    /// A device on which nothing takes time but a stop and the copy of a record.
    fn stalls_only(record_seconds: f64) -> StepCost {
        StepCost {
            kernel_seconds: 0.0,
            memory_seconds: 0.0,
            stall_seconds: 10.0,
            record_seconds,
            submission_seconds: 0.0,
            vain_seconds: 0.0,
            guess_seconds: 0.0,
            is_measured: true,
        }
    }

    #[test]
    fn what_is_slower_of_reads_and_copies_is_waited_for_and_the_other_once() {
        let token = TokenCost { moe_layers: 1, experts_used: 4, ..FLINT };
        let drive = DriveCost::measured(vec![(1, 2.0), (4, 5.0)], 1e9, FLINT.record_bytes);
        let seconds = |record| Expectation::new(&token, &stalls_only(record), &drive, 0.0).seconds();
        assert_eq!(seconds(0.5), 10.0 + 5.0 + 0.5);
        assert_eq!(seconds(3.0), 10.0 + 2.0 + 4.0 * 3.0);
    }

    #[test]
    fn more_hits_never_cost_time() {
        let drive = DriveCost::measured(vec![(1, 0.9e-3), (4, 2.0e-3), (6, 1.9e-3)], 5e9, FLINT.record_bytes);
        let mut last = f64::INFINITY;
        for percent in 0..=100 {
            let seconds = Expectation::new(&FLINT, &gpu(), &drive, f64::from(percent) / 100.0).seconds();
            assert!(seconds <= last, "{percent} %: {seconds} after {last}");
            last = seconds;
        }
    }

    #[test]
    fn host_memory_costs_copies_instead_of_reads() {
        let token = TokenCost { moe_layers: 1, experts_used: 4, ..FLINT };
        let drive = DriveCost::measured(vec![(1, 2.0), (4, 5.0)], 1e9, FLINT.record_bytes);
        let of = |record, device, host| {
            Expectation::with_host(&token, &stalls_only(record), &drive, Hits { device, host })
        };
        let all = of(0.5, 0.0, 1.0);
        assert_eq!((all.seconds(), all.drive_seconds, all.read_bytes), (10.0 + 4.0 * 0.5, 0.0, 0.0));
        // None in host memory is what it was without.
        assert_eq!(of(0.5, 0.3, 0.0), Expectation::new(&token, &stalls_only(0.5), &drive, 0.3));
        // Half a chance each, of one pick: read 2 s and copied, or copied.
        let one = TokenCost { experts_used: 1, ..token };
        let half = Expectation::with_host(&one, &stalls_only(0.5), &drive, Hits { device: 0.0, host: 0.5 });
        assert!((half.seconds() - (10.0 + 0.5 * 2.5 + 0.5 * 0.5)).abs() < 1e-12, "{half:?}");
        // Copies pass while the first read is waited for.
        let two = TokenCost { experts_used: 2, ..token };
        let mixed = Expectation::with_host(&two, &stalls_only(0.5), &drive, Hits { device: 0.0, host: 0.5 });
        let wanted = 10.0 + 0.25 * (2.0 * 0.5) + 0.5 * (2.0 + 0.5) + 0.25 * (drive.burst_seconds(2) + 0.5);
        assert!((mixed.seconds() - wanted).abs() < 1e-12, "{mixed:?}, wanted {wanted}");
    }

    #[test]
    fn more_in_host_memory_never_costs_time_and_more_on_the_device_neither() {
        for rate in [1e9, 3.5e9, 14e9] {
            let drive = DriveCost::assumed(rate, FLINT.record_bytes);
            let of = |device: u32, host: u32| {
                let hits = Hits { device: f64::from(device) / 20.0, host: f64::from(host) / 20.0 };
                Expectation::with_host(&FLINT, &gpu(), &drive, hits).seconds()
            };
            for device in 0..20 {
                for host in 0..20 - device {
                    assert!(of(device, host + 1) <= of(device, host) + 1e-12, "{rate}: {device}, {host}");
                    assert!(of(device + 1, host) <= of(device, host + 1) + 1e-12, "{rate}: {device}, {host}");
                }
            }
        }
    }

    /// Tokens a second of the full model on an NVIDIA H200, whose drive gave 1.8 GB/s in that run.
    #[test]
    fn the_estimate_of_a_discrete_gpu_holds_what_was_measured_on_one() {
        let drive = DriveCost::assumed(1.8e9, FLINT.record_bytes);
        for (hits, measured) in [(0.064, 2.85), (0.435, 4.11), (0.70, 6.85)] {
            let expected = Expectation::new(&FLINT, &gpu(), &drive, hits).tokens_a_second();
            assert!((expected / measured - 1.0).abs() < 0.15, "{hits}: {expected}, measured {measured}");
        }
    }
}
