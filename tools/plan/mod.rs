//! `flint-rt plan`: what this machine would do with a model, before anything of it is loaded or even fetched.
//!
//! - In: a model's header, the devices, the host's memory, and if asked for a measurement of drive and device.
//! - Out: the memory table, tokens a second to expect with the limit that binds, the flags to get there.
//! - Invariants: reads no weights. What is an estimate is called one. Refuses only what cannot run; what runs with
//!   shorter chunks or a shorter conversation is planned with them, and they are said.

mod drive;
mod first_token;
mod header;
pub(crate) mod rehearse;
mod report;

use std::io::{self, Write};

use flint_rt::base::host_memory::{Bound, HostRoom};
use flint_rt::engine::drive_cost::DriveCost;
use flint_rt::engine::expectation::{DeviceCost, Expectation, StepCost, TokenCost, chunk_read_bytes};
use flint_rt::engine::hit_curve::{Hits, Routes};
use flint_rt::engine::rehearsal::Rehearsal;
use flint_rt::engine::survey::{Room, fit, open_gpu, plan_memory};
use flint_rt::engine::{EngineError, EngineOptions, HostMemory, MemoryPlan};
use flint_rt::gpu::{DeviceInfo, DeviceKind, Gpu, list_devices};
use flint_rt::model::hparams::FlintConfig;

use crate::args::PlanArgs;
use crate::disk_profile::Target;
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::Reply;
use crate::model::Found;
use crate::open;
use crate::terminal::escaped;
use drive::Measured;
use first_token::FirstToken;
use header::Header;

/// What a drive is taken for that nobody measured, in bytes a second: a middling NVMe drive.
pub(crate) const ASSUMED_DRIVE_RATE: f64 = 3e9;

/// What is known of the host.
struct Host {
    memory_bytes: Option<u64>,
    /// Bytes that may be had, and what bounds them.
    available: Option<(u64, Bound)>,
    cores: usize,
}

/// What is known of the drive.
enum Drive {
    Assumed(f64),
    Measured(Box<Measured>),
}

/// The speeds of one use.
struct Use {
    /// As it is expected.
    expected: Expectation,
    /// Where the routes are spread widest, and where they repeat most.
    range: Option<(Expectation, Expectation)>,
}

/// Everything that is reported.
struct Report {
    header: Header,
    config: FlintConfig,
    host: Host,
    devices: Vec<DeviceInfo>,
    device: DeviceInfo,
    drive: Drive,
    plan: MemoryPlan,
    /// What had to be lowered for it to fit.
    options: EngineOptions,
    is_lowered: bool,
    device_cost: DeviceCost,
    rehearsal: Option<Rehearsal>,
    step_cost: StepCost,
    cold: Use,
    typical: Use,
    resident: Use,
    /// From no use that finds its expert to all, in steps of 5 %.
    curve: Vec<Expectation>,
    /// Seconds in which the drive gives what a cold chunk of a prompt reads, and its bytes.
    chunk: (f64, f64),
    first_token: FirstToken,
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Outcome {
    let header = header::read(args)?;
    let config = FlintConfig::from_gguf(&header.gguf)
        .map_err(|error| Failure::from(EngineError::from(error)).about(header.shown.clone()))?;
    let devices = list_devices(false)?;
    let found = Found::named(header.path.clone().unwrap_or_default());
    let sessions = Some(args.conversations.parallel);
    let options = EngineOptions { sessions, ..open::options(&args.engine, &found, None) };
    let gpu = open_gpu(&options)?;
    let (options, plan, is_lowered) = plan_of(options, &header, &config, &gpu)?;
    let drive = drive_of(args, &header, &config)?;
    let rehearsal = rehearse(args, &header, &config, &options, plan.context_len / 2)?;
    let report = Report::new(header, config, devices, &gpu, drive, rehearsal, (options, plan, is_lowered));
    let mut stdout = io::stdout().lock();
    if args.json {
        writeln!(stdout, "{:#}", report.as_json())?;
    } else {
        write!(stdout, "{}", escaped(&report.text()))?;
    }
    drop(stdout);
    open::check_validation_of(&gpu)
}

/// The plan as asked for, or the nearest that fits.
fn plan_of(
    options: EngineOptions,
    header: &Header,
    config: &FlintConfig,
    gpu: &Gpu,
) -> Outcome<(EngineOptions, MemoryPlan, bool)> {
    let (room, kind) = (Room::of(gpu), header.source_kind());
    match plan_memory(&options, &header.gguf, kind, config, &room) {
        Ok(plan) => Ok((options, plan, false)),
        Err(error @ EngineError::MemoryTooSmall(_)) => match fit(&options, &header.gguf, kind, config, &room)
        {
            Some((options, plan)) => Ok((options, plan, true)),
            None => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

fn drive_of(args: &PlanArgs, header: &Header, config: &FlintConfig) -> Outcome<Drive> {
    if let (None, Some(rate)) = (&args.measure, args.drive_rate) {
        return Ok(Drive::Assumed(rate * 1e9));
    }
    let _asked = Reply::begin();
    let of_model = || header.source.as_ref().map(|source| Target::model(source, header.shown.clone()));
    let Some(place) = &args.measure else {
        let saved = of_model().transpose()?.map(|target| drive::saved(&target)).transpose()?.flatten();
        return Ok(match saved {
            Some(saved) => Drive::Measured(Box::new(saved)),
            None => Drive::Assumed(ASSUMED_DRIVE_RATE),
        });
    };
    let target = if let Some(path) = place {
        drive::at(path, config.record_bytes(), config.experts_used)?
    } else if let Some(target) = of_model() {
        target?
    } else {
        return Err(Failure::new(
            Exit::Usage,
            format!("{}: not on a drive yet: say where it would lie with --measure=FOLDER", header.shown),
        ));
    };
    let measured = drive::measure(&target, args.engine.run.read_path, args.seconds)?;
    Ok(Drive::Measured(Box::new(measured)))
}

/// What the device takes, if it is to be measured.
fn rehearse(
    args: &PlanArgs,
    header: &Header,
    config: &FlintConfig,
    options: &EngineOptions,
    position: u32,
) -> Outcome<Option<Rehearsal>> {
    if args.measure.is_none() {
        return Ok(None);
    }
    // What is not here yet will be ingested, and a store's records are checked.
    let is_checked = header.kind != "gguf" && !options.skip_checks;
    let _asked = Reply::begin();
    rehearse::measure(config, options, position, is_checked).map(Some)
}

impl Host {
    fn look() -> Self {
        let room = HostRoom::look();
        Self {
            memory_bytes: room.total_bytes,
            available: room.free(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl Report {
    fn new(
        header: Header,
        config: FlintConfig,
        devices: Vec<DeviceInfo>,
        gpu: &Gpu,
        drive: Drive,
        rehearsal: Option<Rehearsal>,
        (options, plan, is_lowered): (EngineOptions, MemoryPlan, bool),
    ) -> Self {
        let host = Host::look();
        let device = gpu.info().clone();
        let device_cost = DeviceCost::estimate(device.kind, host.cores);
        // Half a conversation: what an average token of a full one has behind it.
        let token = TokenCost::new(&config, plan.resident_bytes, plan.context_len / 2);
        let drive_cost = match &drive {
            Drive::Assumed(rate) => DriveCost::assumed(*rate, config.record_bytes()),
            Drive::Measured(found) => found.cost(config.record_bytes()),
        };
        let estimate = StepCost::estimate(&token, &device_cost);
        let step_cost = rehearsal.as_ref().map_or(estimate, |found| {
            let rehearsed = TokenCost::new(&config, plan.resident_bytes, found.position);
            found.step_cost(&token, &rehearsed, &estimate)
        });
        let expect = |hits| Expectation::new(&token, &step_cost, &drive_cost, hits);
        let pool = |routes| {
            let hits = Hits::of(plan.pool_slots, plan.host.slots, plan.expert_total, routes);
            Expectation::with_host(&token, &step_cost, &drive_cost, hits)
        };
        let chunk_bytes = chunk_read_bytes(&config, plan.prefill_chunk);
        Self {
            cold: Use { expected: expect(0.0), range: None },
            typical: Use {
                expected: pool(Routes::Mixed),
                range: Some((pool(Routes::Widest), pool(Routes::Narrowest))),
            },
            resident: Use { expected: expect(1.0), range: None },
            curve: (0..=20).map(|step| expect(f64::from(step) / 20.0)).collect(),
            chunk: (chunk_bytes / drive_cost.steady_rate(), chunk_bytes),
            first_token: FirstToken::new(&config, &plan),
            header,
            config,
            host,
            devices,
            device,
            drive,
            plan,
            options,
            is_lowered,
            device_cost,
            rehearsal,
            step_cost,
        }
    }

    /// Device bytes with which every expert would have its slot.
    fn all_resident_bytes(&self) -> u64 {
        let plan = &self.plan;
        plan.resident_bytes + plan.kv_bytes + plan.scratch_bytes + plan.experts_bytes
    }

    /// Whether the pool is as large as the device's kernels can bind, with memory left over.
    fn is_bound_by_bindings(&self) -> bool {
        let plan = &self.plan;
        let used = plan.resident_bytes + plan.kv_bytes + plan.scratch_bytes + plan.pool_bytes;
        self.options.pool_slots.is_none()
            && plan.pool_slots < plan.expert_total
            && plan.budget_bytes.saturating_sub(used) >= self.config.record_bytes()
    }

    /// Whether the device's memory is the host's.
    fn is_shared_memory(&self) -> bool {
        matches!(self.device.kind, DeviceKind::Integrated | DeviceKind::Software)
    }

    /// What to say on the command line for this plan.
    fn flags(&self) -> Vec<String> {
        let model = self.header.store.as_ref().unwrap_or(&self.header.shown);
        let mut flags = vec!["--model".to_owned(), model.clone()];
        let mut flag = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                flags.extend([name.to_owned(), value]);
            }
        };
        let asked = self.options.device.clone();
        let several = self.devices.iter().filter(|device| device.missing.is_empty()).count() > 1;
        flag("--device", asked.or_else(|| several.then(|| self.device.index.to_string())));
        flag("--ctx-size", self.options.context_len.map(|value| value.to_string()));
        flag("--prefill-chunk", self.options.prefill_chunk.map(|value| value.to_string()));
        flag("--gpu-memory", self.options.gpu_memory_bytes.map(|value| value.to_string()));
        flag("--pool-slots", self.options.pool_slots.map(|value| value.to_string()));
        let host_memory = match self.options.host_memory {
            HostMemory::Auto => None,
            HostMemory::Bytes(bytes) => Some(bytes),
        };
        flag("--host-memory", host_memory.map(|value| value.to_string()));
        flag("--memory", self.options.memory_bytes.map(|value| value.to_string()));
        flags
    }
}
