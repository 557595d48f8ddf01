//! `flint-rt bench --limits`: what the device allows at best, beside what single kernels of the product reach.
//!
//! - In: a device; the numbers of a model, of which nothing but the header is read. Out: tables, or one JSON object.
//! - Invariants: times are the device's, by its own clock, but for round trips, which are the host's; each is the median of several
//!   runs. Every dispatch is a product's kernel, made ready as for a model.

mod costs;
mod matrices;

use std::io::{self, Write};

use flint_rt::gpu::{Buffer, Commands, Gpu, GpuError, GpuOptions, Placement, Recorder, Timestamps};
use flint_rt::model::hparams::FlintConfig;
use flint_rt::store::Source;
use serde::Serialize;

use super::args::{BenchArgs, Format};
use crate::exit::{Failure, Outcome};
use crate::terminal::Bar;
use crate::{folders, interrupt, model, open};

/// Runs of which the median counts; on a software device, which takes long for each, fewer.
const RUNS: usize = 7;
const RUNS_SOFTWARE: usize = 3;

/// A word that is a small number in every format: two f16, one f32, nibbles and scale of a Q4_1 block.
const WORD: u32 = 0x2c00_2c00;

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Limits {
    schema_version: u32,
    gpu_info: String,
    device_kind: String,
    model_type: String,
    tuning: String,
    #[serde(flatten)]
    costs: costs::Costs,
    matrices: Vec<matrices::MatrixRow>,
}

/// A device that times what runs on it.
struct Bench {
    gpu: Gpu,
    stamps: Timestamps,
}

impl Bench {
    /// A buffer of the device's own memory, filled.
    fn filled(&self, name: &str, len_bytes: u64) -> Result<Buffer, GpuError> {
        let buffer = self.gpu.buffer(name, len_bytes.next_multiple_of(4), Placement::Device)?;
        let mut recorder = self.gpu.recorder()?;
        recorder.fill(&buffer, 0, buffer.len_bytes(), WORD);
        self.run(&recorder.finish()?)?;
        Ok(buffer)
    }

    /// A buffer of the device's own memory that holds `words`.
    fn holding(&self, name: &str, words: &[u32]) -> Result<Buffer, GpuError> {
        let len_bytes = words.len() as u64 * 4;
        let upload = self.gpu.buffer(name, len_bytes, Placement::Upload)?;
        upload.write(0, words);
        let buffer = self.gpu.buffer(name, len_bytes, Placement::Device)?;
        let mut recorder = self.gpu.recorder()?;
        recorder.copy(&upload, 0, &buffer, 0, len_bytes);
        self.run(&recorder.finish()?)?;
        Ok(buffer)
    }

    fn run(&self, commands: &Commands) -> Result<(), GpuError> {
        let ticket = self.gpu.submit(&[commands])?;
        self.gpu.wait(ticket)
    }

    /// What `record` records, between two stamps.
    fn timed(&self, record: impl FnOnce(&mut Recorder)) -> Result<Commands, GpuError> {
        let mut recorder = self.gpu.recorder()?;
        recorder.reset_stamps(&self.stamps, 0, 2);
        recorder.stamp(&self.stamps, 0);
        record(&mut recorder);
        recorder.barrier();
        recorder.stamp(&self.stamps, 1);
        recorder.finish()
    }

    /// Seconds that commands of [`Self::timed`] take, the median of several runs behind one that does not count.
    fn seconds(&self, commands: &Commands) -> Outcome<f64> {
        self.run(commands)?;
        let mut seconds = Vec::new();
        for _ in 0..if self.gpu.info().is_software() { RUNS_SOFTWARE } else { RUNS } {
            if interrupt::is_requested() {
                return Err(Failure::Interrupted);
            }
            self.run(commands)?;
            let spans = self.stamps.spans_ns()?;
            seconds.extend(spans.map(|spans| spans[0].max(1.0) * 1e-9));
        }
        Ok(median(seconds))
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs) -> Outcome {
    if args.output == Format::Csv {
        return Err(Failure::usage("--limits: these are several tables: take -o md, json or jsonl"));
    }
    let models = args.machine.models();
    let [model] = models.as_slice() else { return Err(Failure::usage("--limits takes one model's shapes")) };
    let engine_args = args.machine.of(model.clone(), None);
    let found = model::find(&engine_args.model, engine_args.run.source)?;
    let about = |failure: Failure| failure.about(found.shown());
    let source = Source::open(&found.path).map_err(|error| about(error.into()))?;
    let config = FlintConfig::from_gguf(source.gguf()).map_err(|error| about(error.into()))?;
    let device = &engine_args.run.device;
    let gpu = Gpu::open(&GpuOptions {
        device: device.device.clone(),
        validation: device.validation,
        cache_dir: folders::cache_dir(),
        ..GpuOptions::default()
    })?;
    let stamps = gpu.timestamps(2)?;
    let options = open::options(&engine_args, &found, None);
    let chosen = flint_rt::engine::tuned::choose(&options, gpu.info(), &config)?;
    let bench = Bench { gpu, stamps };

    let _asked = interrupt::Reply::begin();
    let bar = Bar::steps("limits");
    bar.message("dispatches and copies");
    let costs = costs::measure(&bench, &config, chosen.tuning)?;
    let matrices = matrices::measure(&bench, &config, chosen.tuning, &costs, &bar)?;
    bar.clear();
    let info = bench.gpu.info();
    let limits = Limits {
        schema_version: 1,
        gpu_info: info.title(),
        device_kind: info.kind.to_string(),
        model_type: config.name.clone(),
        tuning: chosen.to_string(),
        costs,
        matrices,
    };
    let mut out = io::stdout().lock();
    match args.output {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&limits).map_err(io::Error::from)?)?,
        Format::Jsonl => writeln!(out, "{}", serde_json::to_string(&limits).map_err(io::Error::from)?)?,
        Format::Md | Format::Csv => table(&mut out, &limits)?,
    }
    out.flush()?;
    open::check_validation_of(&bench.gpu)
}

fn table(out: &mut dyn Write, limits: &Limits) -> io::Result<()> {
    writeln!(out, "| what | figure |\n| --- | ---: |")?;
    for (what, figure) in limits.costs.lines() {
        writeln!(out, "| {what} | {figure} |")?;
    }
    writeln!(out, "\n{}", matrices::TITLES)?;
    limits.matrices.iter().try_for_each(|row| writeln!(out, "{row}"))?;
    writeln!(out, "\ndevice: {}", limits.gpu_info)?;
    writeln!(out, "shapes of: {}; tuning in use: {}", limits.model_type, limits.tuning)?;
    writeln!(
        out,
        "stream: dispatches that wait for nothing, over more weights than caches hold, share of the best of copy and fill; \
         dependent: one behind another with a barrier between, the time of each"
    )
}
