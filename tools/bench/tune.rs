//! `flint-rt bench --tune`: which of the kernels' sizes are fastest on this device, for a model's shapes.
//!
//! - In: a device; the numbers of a model, of which nothing but the header is read. Out: a table; the fastest sizes, remembered.
//! - Invariants: what is timed is the engine itself, on a short model of the same shapes, with all that it needs in slots; one choice
//!   after another is tried, and taken only when it is faster twice. It ends in time, with what was found until then.
//!
//! Sizes change the order in which sums are taken, and so the last bits of what a model says: what is remembered is named by
//! `flint-rt info`, and passed over with `--no-tuned` and where bits are to depend on nothing else.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, EngineError, EngineOptions, Feed, HostMemory, Session, tuned};
use flint_rt::gpu::GpuError;
use flint_rt::kernels::Tuning;
use flint_rt::kernels::tuning::{CHOICES, Choice, TunedFor};
use flint_rt::model::Want;
use flint_rt::model::hparams::FlintConfig;
use flint_rt::model::prefill::NoObserver;
use flint_rt::store::Source;
use serde_json::json;

use super::args::{BenchArgs, Format};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::{self, Working};
use crate::synth::rehearsal::{self, Script};
use crate::terminal::{Bar, note};
use crate::{folders, model, open};

/// Expert layers of the model that is timed.
const LAYERS_MAX: u32 = 8;

/// Sequences of a step of a few.
const FEW: u32 = 8;

/// Tokens of the prompt, on a GPU and on a software device.
const PROMPT: usize = 1024;
const PROMPT_SOFTWARE: usize = 64;

/// Steps of which the median counts, and those before them that do not.
const STEPS: usize = 24;
const SETTLING_STEPS: usize = 4;

/// After so long the steps so far have to do.
const STEPS_TIME: Duration = Duration::from_millis(400);

/// By how much a value has to be faster to be taken.
const GAIN_MIN: f64 = 0.02;

/// What was tried of a choice.
struct Tried {
    choice: &'static Choice,
    before: u32,
    after: u32,
    /// Value and time of its work, in nanoseconds.
    times: Vec<(u32, f64)>,
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs) -> Outcome {
    // What is under way then is finished.
    let time = Duration::from_secs(args.tune.expect("invariant: it was asked for").into());
    let models = args.machine.models();
    let [model] = models.as_slice() else { return Err(Failure::usage("--tune takes one model's shapes")) };
    let engine_args = args.machine.of(model.clone(), None);
    if args.deterministic || engine_args.run.tuning.is_some() {
        return Err(Failure::usage(
            "--tune chooses the kernels' sizes: leave out --tuning and --deterministic",
        ));
    }
    let folder = folders::state_dir().ok_or_else(|| {
        Failure::usage("--tune remembers what it finds below HOME or XDG_STATE_HOME: set one")
    })?;
    let found = model::find(&engine_args.model, engine_args.run.source)?;
    let about = |failure: Failure| failure.about(found.shown());
    let source = Source::open(&found.path).map_err(|error| about(error.into()))?;
    let config = FlintConfig::from_gguf(source.gguf()).map_err(|error| about(error.into()))?;

    let scratch = tempfile::Builder::new().prefix("flint-rt-tune-").tempdir();
    let scratch =
        scratch.map_err(|error| Failure::because(Exit::of_io(&error), "a temporary folder", &error))?;
    let _working = Working::begin(scratch.path().to_owned());
    let _asked = interrupt::Reply::begin();
    let layers = config.moe_layer_count().min(LAYERS_MAX);
    let path = scratch.path().join("short.gguf");
    let script = rehearsal::write(&path, &config, layers)?;
    let options = EngineOptions {
        model: path,
        context_len: None,
        pool_slots: Some(layers * config.expert_count.min(script.experts_touched())),
        prefill_chunk: None,
        sessions: Some(FEW),
        host_memory: HostMemory::Bytes(0),
        memory_bytes: None,
        tuning_dir: None,
        ..open::options(&engine_args, &found, None)
    };
    let mut tuner = Tuner { options, config: &config, script, end: Instant::now() + time };
    let table = {
        let gpu = flint_rt::engine::survey::open_gpu(&tuner.options)?;
        Tuning::of(gpu.info())
    };
    let bar = Bar::steps("tuning");
    let (best, tried, is_whole) = tuner.descend(table, &bar)?;
    bar.clear();

    let gpu = flint_rt::engine::survey::open_gpu(&tuner.options)?;
    let kept = tuned::remember(&folder, gpu.info(), &config, &best)
        .map_err(|error| Failure::because(Exit::of_io(&error), folder.display().to_string(), &error))?;
    let mut out = io::stdout().lock();
    match args.output {
        Format::Md | Format::Csv => {
            writeln!(out, "| choice | table | taken | us by value |\n| --- | ---: | ---: | --- |")?;
            for Tried { choice, before, after, times } in &tried {
                let times: Vec<String> =
                    times.iter().map(|(value, ns)| format!("{value}: {:.1}", ns / 1e3)).collect();
                writeln!(out, "| {} | {before} | {after} | {} |", choice.name, times.join(", "))?;
            }
            writeln!(out, "\ndevice: {}; shapes of: {}", gpu.info().title(), config.name)?;
            writeln!(out, "remembered in {}", kept.display())?;
        }
        Format::Json | Format::Jsonl => {
            let choices = tried.iter().map(|tried| {
                json!({
                    "name": tried.choice.name,
                    "table": tried.before,
                    "taken": tried.after,
                    "ns": tried.times,
                })
            });
            let document = json!({
                "schema_version": 1,
                "gpu_info": gpu.info().title(),
                "complete": is_whole,
                "path": kept.display().to_string(),
                "tuning": best.to_string(),
                "choices": choices.collect::<Vec<_>>(),
            });
            writeln!(out, "{document}")?;
        }
    }
    out.flush()?;
    if !is_whole {
        note(&format!(
            "ended after {} s: what is not in the table stays as it was; --tune=SECONDS gives it longer",
            time.as_secs()
        ));
    }
    open::check_validation_of(&gpu)
}

/// What candidates are timed with.
struct Tuner<'a> {
    options: EngineOptions,
    config: &'a FlintConfig,
    script: Script,
    end: Instant,
}

impl Tuner<'_> {
    /// Tries every value of every choice, one choice after another, from `table` on. Gives the fastest, what was tried, and whether there
    /// was time for all.
    fn descend(&mut self, table: Tuning, bar: &Bar) -> Outcome<(Tuning, Vec<Tried>, bool)> {
        let (mut best, mut is_whole) = (table, true);
        let mut tried = Vec::new();
        let total: usize = CHOICES.iter().map(|choice| choice.tries.len()).sum();
        let mut done = 0;
        for choice in CHOICES {
            if Instant::now() > self.end {
                return Ok((best, tried, false));
            }
            bar.message(choice.name);
            let value_of = |tuning: &Tuning| {
                let value = tuning.values().into_iter().find(|(name, _)| *name == choice.name);
                value.expect("invariant: every choice is a field").1
            };
            let before = value_of(&best);
            let mut best_ns = self.time(best, choice.work)?.ok_or_else(|| {
                Failure::new(Exit::Device, "the table's sizes cannot be compiled on this device")
            })?;
            let mut times = vec![(before, best_ns)];
            for &value in choice.tries.iter().filter(|&&value| value != before) {
                bar.set(done, total as u64);
                done += 1;
                if Instant::now() > self.end {
                    is_whole = false;
                    break;
                }
                let candidate = best.with(choice.name, value).expect("invariant: one of those to be tried");
                let Some(ns) = self.time(candidate, choice.work)? else { continue };
                times.push((value, ns));
                // Twice, as other work on the machine comes and goes.
                if is_faster(ns, best_ns)
                    && let (Some(again), Some(best_again)) =
                        (self.time(candidate, choice.work)?, self.time(best, choice.work)?)
                    && is_faster(again, best_again)
                {
                    (best, best_ns) = (candidate, ns.max(again));
                }
            }
            times.sort_by_key(|(value, _)| *value);
            tried.push(Tried { choice, before, after: value_of(&best), times });
        }
        Ok((best, tried, is_whole))
    }

    /// The median time of a step, in nanoseconds; `None` where the device cannot have kernels of these sizes.
    fn time(&self, tuning: Tuning, work: TunedFor) -> Outcome<Option<f64>> {
        let opened = self.open(tuning);
        let mut engine = match opened {
            Err(EngineError::Gpu(GpuError::FeatureMissing { .. } | GpuError::PipelineRefused { .. })) => {
                return Ok(None);
            }
            opened => opened?,
        };
        let prompt = self.prompt(engine.gpu().info().is_software());
        let mut sessions = Vec::new();
        for _ in 0..if work == TunedFor::Few { FEW } else { 1 } {
            sessions.push(engine.session()?);
        }
        for session in &mut sessions {
            engine.feed_prompt(session, &prompt, Want::Nothing, &mut NoObserver)?;
        }
        let settling = if work == TunedFor::Prompt { 1 } else { SETTLING_STEPS };
        let mut ns = Vec::new();
        let begun = Instant::now();
        for step in 0..SETTLING_STEPS + STEPS {
            if interrupt::is_requested() {
                return Err(Failure::Interrupted);
            }
            let is_settled = step >= settling;
            let token = prompt[step % prompt.len()];
            let step_begun = Instant::now();
            run_step(&mut engine, &mut sessions, work, &prompt, token)?;
            if is_settled {
                ns.push(step_begun.elapsed().as_nanos() as f64);
            }
            if ns.len() >= 3 && begun.elapsed() > STEPS_TIME {
                break;
            }
        }
        ns.sort_by(f64::total_cmp);
        Ok(Some(ns[ns.len() / 2]))
    }

    fn open(&self, tuning: Tuning) -> Result<Engine, EngineError> {
        let context = u32::try_from(PROMPT + SETTLING_STEPS + STEPS + 1).expect("invariant: a short context");
        let options = EngineOptions {
            tuning: Some(tuning),
            context_len: Some(context.min(self.config.context_len)),
            ..self.options.clone()
        };
        Engine::open(&options, &mut |_| {})
    }

    /// Tokens whose picks differ.
    fn prompt(&self, is_software: bool) -> Vec<TokenId> {
        let most = if is_software { PROMPT_SOFTWARE } else { PROMPT };
        let room = self.config.context_len as usize - (SETTLING_STEPS + STEPS + 1);
        let tokens = [self.script.resident].into_iter().chain(self.script.all_miss.iter().copied());
        tokens.cycle().take(most.min(room)).collect()
    }
}

fn run_step(
    engine: &mut Engine,
    sessions: &mut [Session],
    work: TunedFor,
    prompt: &[TokenId],
    token: TokenId,
) -> Result<(), EngineError> {
    match (work, sessions) {
        (TunedFor::Prompt, [session]) => {
            session.reset();
            engine.feed_prompt(session, prompt, Want::Nothing, &mut NoObserver).map(drop)
        }
        (TunedFor::Token, [session]) => engine.feed_token(session, token, Want::Greedy).map(drop),
        (_, sessions) => {
            let tokens = [token];
            let mut feeds: Vec<_> = sessions
                .iter_mut()
                .map(|session| Feed { session, tokens: &tokens, want: Want::Greedy })
                .collect();
            engine.feed_many(&mut feeds, &mut NoObserver)?.into_iter().try_for_each(|output| output.map(drop))
        }
    }
}

/// Whether the difference is more than noise.
fn is_faster(ns: f64, best_ns: f64) -> bool {
    ns < best_ns * (1.0 - GAIN_MIN)
}
