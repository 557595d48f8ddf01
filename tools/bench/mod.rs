//! `flint-rt bench`: how fast a model runs here, in the tests and words of llama-bench, and what its experts' stream does
//! meanwhile.
//!
//! - In: tests ([`case`]), models, pool sizes; if asked for, a trace of routes to be driven by, or a drive to simulate.
//! - Out: one [`result::Row`] a test, printed as it is finished ([`output`]); if asked for a trace, or a comparison of two
//!   results.
//! - Invariants: what is measured is the product's own path. A row says whether its slots were warm or cold, whose picks they
//!   were, and whether the drive is real. Ctrl-C ends the run with what was measured so far.

mod args;
mod case;
mod compare;
mod conversations;
mod drive;
mod facts;
mod limits;
mod measure;
mod output;
mod plan;
mod read_back;
mod record;
mod result;
mod routes;
mod row;
mod simulate;
mod tokens;
mod tune;
mod values;
mod welch;

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use flint_rt::base::limits::STEP_SEQUENCES_MAX;
use flint_rt::engine::{Engine, EngineOptions};
use flint_rt::model::hparams::FlintConfig;
use flint_rt::store::Source;

pub(crate) use args::BenchArgs;
use case::Case;
use drive::Drive;
use facts::ModelFacts;
use measure::{Conditions, Measured};
use output::Printer;
use plan::{PlanBy, Planner};
pub(crate) use read_back::rows as read_back;
use record::Recording;
pub(crate) use result::Row;
use routes::Driven;
use row::Setting;
use tokens::Tokens;
use values::PoolSize;

use crate::args::EngineArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::input::text_of_file;
use crate::interrupt;
use crate::model;
use crate::open;
use crate::profile::Profiled;
use crate::report;
use crate::terminal::{Bar, note};

/// Tokens of the run that does not count, where every run begins cold: it has kernels and files touched once.
const COLD_WARMUP_TOKENS: u32 = 16;

/// Where rows go, and what is said under a table.
struct Outputs {
    out: Printer<io::Stdout>,
    err: Option<Printer<io::Stderr>>,
    notes: Vec<String>,
    /// Tables under the table.
    profiles: Vec<String>,
    /// What pictures are made of, if they are asked for.
    pictures: Option<report::Gathered>,
}

impl Outputs {
    fn each(
        &mut self,
        mut to_out: impl FnMut(&mut Printer<io::Stdout>) -> io::Result<()>,
        to_err: impl FnMut(&mut Printer<io::Stderr>) -> io::Result<()>,
    ) -> Outcome {
        to_out(&mut self.out)?;
        // Where standard error cannot be written there is nobody to tell.
        let _ = self.err.as_mut().map(to_err);
        Ok(())
    }

    fn row(&mut self, row: &Row) -> Outcome {
        let mut say = |text: String| {
            if !self.notes.contains(&text) {
                self.notes.push(text);
            }
        };
        say(format!("build: {} {} ({})", row.program, row.build_version, row.build_commit));
        say(format!("device: {}, {}", row.gpu_info, row.driver));
        say(format!(
            "cache: {}, {}; {} reads",
            row.cache,
            row.cache_policy,
            if row.use_direct_io { "direct" } else { "buffered" }
        ));
        say(format!("tokens: {}; picks: {}; victims: {}", row.tokens, row.routes, row.policy));
        say(format!("drive: {}", row.drive_profile));
        say(format!(
            "bounds: device memory at {} GB/s ({}); plan: drive {}, device {}",
            row.memory_gb_s, row.memory_rate_source, row.plan_drive, row.plan_device
        ));
        say(format!("prefetch: {}; experts in host memory: none", row.prefetch));
        say(format!("kernels: {}", row.tuning));
        if row.draft_n > 0 {
            say(format!(
                "drafts of {}, {}: {} of {} were right, {:.2} tokens a step",
                row.test, row.speculate, row.draft_n_accepted, row.draft_n, row.tokens_a_step
            ));
        }
        if let Some(late) = row.simulated_late_reads.filter(|late| *late > 0) {
            say(format!(
                "simulated drive: {late} reads of {} came later than it would have given them",
                row.test
            ));
        }
        if row.interrupted {
            say(format!("{} was ended after {} repetitions", row.test, row.samples_ns.len()));
        }
        if let Some(pictures) = &mut self.pictures {
            pictures.rows.push(row.clone());
        }
        self.each(|out| out.row(row), |err| err.row(row))
    }
}

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> Outcome {
    if let Some(paths) = &args.compare {
        return compare::run(paths, args.output);
    }
    if let Some(paths) = &args.simulate {
        let _asked = interrupt::Reply::begin();
        return simulate::run(args, paths);
    }
    if args.limits {
        return limits::run(args);
    }
    if args.tune.is_some() {
        return tune::run(args);
    }
    let cases = Case::all(args);
    if cases.is_empty() {
        return Err(Failure::usage("no test: give -p, -n or -pg a number of tokens above 0"));
    }
    let models = args.machine.models();
    let has_several = models.len() > 1 || args.machine.prefill_chunks().len() > 1 || args.sweep.is_some();
    let is_shared = cases.iter().any(|case| case.n_parallel > 1);
    if is_shared && (args.routes.is_some() || args.record_routes.is_some()) {
        return Err(Failure::usage(
            "-npl above 1: traces are of single conversations; leave out --routes and --record-routes",
        ));
    }
    let most = cases.iter().map(|case| case.n_parallel).max().unwrap_or(1);
    if !(1..=STEP_SEQUENCES_MAX).contains(&most) || cases.iter().any(|case| case.n_parallel == 0) {
        return Err(Failure::usage(format!("-npl: wanted 1 to {STEP_SEQUENCES_MAX} conversations")));
    }
    if args.record_routes.is_some() && has_several {
        return Err(Failure::usage("--record-routes takes one model, one chunk size and one pool size"));
    }
    args.pictures.check()?;
    args.record_routes.as_deref().map_or(Ok(()), routes::check)?;
    // Read again with each model's tokenizer; what is wrong with it is said before a model is opened.
    args.text.as_deref().map(text_of_file).transpose()?;
    let mut outputs = Outputs {
        out: Printer::new(args.output, io::stdout()),
        err: args.output_err.map(|format| Printer::new(format, io::stderr())),
        notes: Vec::new(),
        profiles: Vec::new(),
        pictures: args.pictures.are_wanted().then(report::Gathered::default),
    };
    let mut has_begun = false;
    let mut ran = Ok(());
    for model in models {
        for chunk in args.machine.prefill_chunks() {
            if ran.is_ok() {
                ran = run_model(
                    args,
                    &args.machine.of(model.clone(), chunk),
                    &cases,
                    &mut outputs,
                    &mut has_begun,
                );
            }
        }
    }
    // Whole also after an error or Ctrl-C: what was measured was measured.
    if has_begun {
        let mut notes = std::mem::take(&mut outputs.notes);
        for profile in std::mem::take(&mut outputs.profiles) {
            notes.extend([String::new(), profile]);
        }
        outputs.each(|out| out.end(&notes), |err| err.end(&notes))?;
    }
    if let Some(pictures) = outputs.pictures {
        pictures.write(&args.pictures)?;
    }
    ran
}

/// All tests of one model and chunk size, at each pool size.
fn run_model(
    args: &BenchArgs,
    engine_args: &EngineArgs,
    cases: &[Case],
    outputs: &mut Outputs,
    has_begun: &mut bool,
) -> Outcome {
    let model = model::find(&engine_args.model, engine_args.run.source)?;
    let about = |failure: Failure| failure.about(model.shown());
    let source = Source::open(&model.path).map_err(|error| about(error.into()))?;
    let config = FlintConfig::from_gguf(source.gguf()).map_err(|error| about(error.into()))?;
    let context = context_len(cases, engine_args, &config)?;
    args.pictures.check_context(context)?;
    let driven = args.routes.as_deref().map(|path| routes::load(path, &config, args.seed)).transpose()?;
    let total = config.moe_layer_count() * config.expert_count;
    let pools: Vec<Option<u32>> = match &args.sweep {
        None => vec![engine_args.run.pool_slots],
        Some(sweep) => {
            sweep.0.iter().map(|size: &PoolSize| Some(size.slots(total, config.experts_used))).collect()
        }
    };
    if args.simulated_drive.is_some() {
        fill_page_cache(source.files())?;
    }
    let mut recording =
        args.record_routes.as_ref().map(|_| Recording::new(config.moe_layer_count(), config.experts_used));
    let mut planner: Option<Planner> = None;
    let mut refused = None;
    let mut ran_some = false;
    let mut pictured = None;
    // Ctrl-C: what was recorded until then is a trace, too.
    let mut ended = Ok(());
    for pool_slots in pools {
        let options = EngineOptions {
            pool_slots,
            routes: driven.as_ref().map(|driven| driven.picks.clone()),
            drive_model: args.simulated_drive,
            cache_policy: args.policy,
            sessions: cases.iter().map(|case| case.n_parallel).max(),
            is_deterministic: args.deterministic,
            // A number is to say what a token takes, whatever the text repeats, unless this is asked for.
            speculate: args.machine.run.speculate.unwrap_or_default(),
            ..open::options(engine_args, &model, Some(context))
        };
        let opened = open::engine_by(engine_args, &model, &options);
        let mut engine = match opened {
            Ok(engine) => engine,
            // The largest of several pools may not fit; the others still say something.
            Err(Failure::Told { exit: Exit::Memory, text }) if args.sweep.is_some() => {
                note(&format!("a pool of {} slots is left out: {text}", pool_slots.unwrap_or(total)));
                refused = Some(Failure::new(Exit::Memory, text));
                continue;
            }
            Err(failure) => return Err(failure),
        };
        ran_some = true;
        if !std::mem::replace(has_begun, true) {
            outputs.each(Printer::begin, Printer::begin)?;
        }
        let tokens =
            Tokens::new(args.text.as_deref(), args.seed, engine.tokenizer(), engine.config().vocabulary)?;
        let setting = Setting {
            drive: Drive::of(&source, &model.shown(), args.simulated_drive)?,
            model: ModelFacts::of(&source, model.shown(), &config.name),
            simulated: args.simulated_drive,
            tokens: tokens.shown(),
            routes: driven
                .as_ref()
                .map_or_else(|| "model".to_owned(), |driven: &Driven| driven.label.clone()),
            is_cold: args.cold,
            is_deterministic: args.deterministic,
            has_warmup: !args.no_warmup,
            policy: args.policy.unwrap_or_default(),
        };
        if planner.is_none() {
            let reply = cases.iter().find(|case| case.is_reply());
            planner = Some(match reply.filter(|_| args.plan == PlanBy::Measure) {
                None => Planner::none(),
                Some(reply) => {
                    let _asked = interrupt::Reply::begin();
                    let (shown, simulated) = (model.shown(), args.simulated_drive);
                    Planner::open(&engine, &options, &source, &shown, simulated, reply.position())?
                }
            });
        }
        let planner = planner.as_mut().expect("invariant: made above");
        let ran =
            run_cases(args, &mut engine, &setting, cases, &tokens, recording.as_mut(), planner, outputs);
        let checked = open::check_engine(&engine);
        if matches!(ran, Err(Failure::Interrupted)) {
            ended = ran;
            break;
        }
        ran?;
        checked?;
        pictured.get_or_insert(options);
    }
    if let (Some(pictures), Some(options)) = (&mut outputs.pictures, pictured)
        && pictures.recorded.is_none()
        && ended.is_ok()
    {
        // The smallest pool of a sweep stands first as a rule: it reads most, so most is to be seen.
        if args.simulated_drive.is_none() {
            pictures.profile = drive::saved_profile(&source, &model.shown())?;
        }
        let mut engine = open::engine_by(engine_args, &model, &EngineOptions { timeline: true, ..options })?;
        if args.profile {
            engine.begin_profile()?;
        }
        let tokens =
            Tokens::new(args.text.as_deref(), args.seed, engine.tokenizer(), engine.config().vocabulary)?;
        let ids = tokens.part(0, u64::from(report::PASS_TOKENS.min(context)));
        pictures.recorded = report::record(&mut engine, &ids, &model.shown())?;
        open::check_engine(&engine)?;
    }
    if let (Some(path), Some(recording)) = (&args.record_routes, recording)
        && (ended.is_ok() || !recording.picks.is_empty())
    {
        let source = args.text.as_ref().map_or_else(
            || format!("random tokens, seed {}", args.seed),
            |text| format!("text {}", text.display()),
        );
        let name = model.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        routes::save(path, recording, &config, &name, source)?;
    }
    ended?;
    match refused {
        Some(failure) if !ran_some => Err(failure),
        _ => Ok(()),
    }
}

/// The tests of an open engine.
#[expect(clippy::too_many_arguments, reason = "one set of tests, from the one place that runs them")]
fn run_cases(
    args: &BenchArgs,
    engine: &mut Engine,
    setting: &Setting,
    cases: &[Case],
    tokens: &Tokens,
    mut recording: Option<&mut Recording>,
    planner: &mut Planner,
    outputs: &mut Outputs,
) -> Outcome {
    let _replying = interrupt::Reply::begin();
    let mut first = 0;
    for &case in cases {
        wait(args.delay);
        let test_time = facts::now();
        let bar = Bar::tokens("bench");
        bar.message(case.to_string());
        let conditions = |repetitions, has_warmup, recording, planner| Conditions {
            tokens,
            repetitions,
            has_warmup,
            is_cold: args.cold,
            recording,
            bar: &bar,
            planner,
        };
        if args.cold && !args.no_warmup {
            let (n_prompt, n_gen) = (case.n_prompt.min(COLD_WARMUP_TOKENS), case.n_gen.min(1));
            let short = Case { n_prompt, n_gen, n_depth: 0, ..case };
            measure::run(engine, short, &mut 0, &mut conditions(1, false, None, None))?;
        }
        let has_warmup = !args.no_warmup && !args.cold;
        planner.begin();
        // Only of generated tokens is anything expected.
        let turns = case.is_reply().then_some(&mut *planner);
        let mut conditions = conditions(args.repetitions, has_warmup, recording.as_deref_mut(), turns);
        let measured: Measured = measure::run(engine, case, &mut first, &mut conditions)?;
        let profiled = match args.profile && !measured.is_interrupted {
            true => {
                bar.message(format!("profiling {case}"));
                Some(measure::profile(engine, case, &mut first, &conditions)?)
            }
            false => None,
        };
        bar.clear();
        if !measured.samples.is_empty() {
            let mut row = Row::new(engine, setting, case, &measured, planner, test_time);
            let plain_ns_a_token = row.avg_ns as f64 / case.tokens() as f64;
            let profiled = profiled.and_then(|(tokens, profile)| {
                Profiled::new(case.to_string(), tokens, profile, plain_ns_a_token)
            });
            if let Some(profiled) = &profiled {
                row.set_profile(profiled);
            }
            outputs.row(&row)?;
            outputs.profiles.extend(profiled.map(|profiled| profiled.to_string()));
        }
        if measured.is_interrupted {
            return Err(Failure::Interrupted);
        }
    }
    Ok(())
}

/// Some seconds, or until Ctrl-C.
fn wait(seconds: u32) {
    for _ in 0..seconds * 20 {
        if interrupt::is_requested() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The context that the longest test needs, if the flags do not say another that holds it.
fn context_len(cases: &[Case], args: &EngineArgs, config: &FlintConfig) -> Outcome<u32> {
    let longest = cases.iter().max_by_key(|case| case.context()).expect("invariant: there is a test");
    let needed = longest.context();
    let context = args.ctx_size.unwrap_or(config.context_len);
    if needed > u64::from(context) {
        return Err(open::too_long(&format!("the test {longest}"), needed, context, config.context_len));
    }
    Ok(args.ctx_size.unwrap_or_else(|| u32::try_from(needed).expect("invariant: fits a u32 context")))
}

/// Reads all files once, so that a simulated drive's bytes lie in memory.
fn fill_page_cache(files: &[PathBuf]) -> Outcome {
    let _asked = interrupt::Reply::begin();
    let total: u64 = files.iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
    let bar = Bar::bytes("reading once");
    bar.message("reading once");
    let mut block = vec![0_u8; 1 << 20];
    let mut done = 0;
    for path in files {
        let failed =
            |error: io::Error| Failure::because(Exit::of_io(&error), path.display().to_string(), &error);
        let mut file = File::open(path).map_err(failed)?;
        loop {
            match file.read(&mut block).map_err(failed)? {
                0 => break,
                count => done += count as u64,
            }
            bar.set(done, total);
            if interrupt::is_requested() {
                return Err(Failure::Interrupted);
            }
        }
    }
    Ok(())
}
