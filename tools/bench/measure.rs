//! Runs one test: fills the context, feeds, generates, and notes what each repetition took.
//!
//! - In: an open engine, a [`Case`], the tokens. Out: [`Sample`]s, one a repetition that was finished.
//! - Invariants: only feeding and generating is timed; the depth, the warm-up and the emptying of tiers are not. What an
//!   interrupt cuts short gives no sample.

use std::time::{Duration, Instant};

use flint_rt::disk::ReadCounters;
use flint_rt::engine::{Engine, EngineError, StepProfile, Telemetry, TimeSplit};
use flint_rt::expert::{InflowStats, StreamStats};
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::model::{LayerRoutes, ModelError, Want};

use super::case::Case;
use super::conversations::Conversations;
use super::plan::Planner;
use super::record::Recording;
use super::tokens::Tokens;
use crate::exit::{Failure, Outcome};
use crate::interrupt;
use crate::report;
use crate::terminal::Bar;

/// One repetition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) ns: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) evictions: u64,
    pub(super) read_bytes: u64,
    /// Time in which at least one read was under way.
    pub(super) disk_busy_ns: u64,
    pub(super) late_reads: u64,
    pub(super) guesses_issued: u64,
    pub(super) guesses_used: u64,
    pub(super) guesses_wasted: u64,
    pub(super) host_hits: u64,
    pub(super) split: TimeSplit,
    /// Everything, of which the fields above are what rows are made of.
    pub(super) telemetry: Telemetry,
}

impl Sample {
    /// Share of the uses that found their expert in a slot.
    pub(super) fn hit_rate(&self) -> Option<f64> {
        rate(self.hits, self.misses)
    }
}

/// Hits by uses; nothing where there was no use.
pub(super) fn rate(hits: u64, misses: u64) -> Option<f64> {
    (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
}

/// How a test is run.
pub(super) struct Conditions<'a> {
    pub(super) tokens: &'a Tokens,
    pub(super) repetitions: u32,
    pub(super) has_warmup: bool,
    pub(super) is_cold: bool,
    /// Times the tokens; takes the picks.
    pub(super) recording: Option<&'a mut Recording>,
    pub(super) bar: &'a Bar,
    /// Takes its turns before each repetition.
    pub(super) planner: Option<&'a mut Planner>,
}

/// What a test gave.
pub(super) struct Measured {
    pub(super) samples: Vec<Sample>,
    pub(super) is_interrupted: bool,
    /// Files that a cold start cannot be sure of, as they are read through the page cache.
    pub(super) buffered_files: usize,
    /// `(model layer, hits, misses)` of all samples.
    pub(super) layer_hits: Vec<(u32, u64, u64)>,
}

/// A prompt of the bench: stops at Ctrl-C, moves the bar, records.
pub(super) struct Watch<'a> {
    bar: &'a Bar,
    /// Tokens before what is fed, of all.
    pub(super) done: u64,
    total: u64,
    recording: Option<&'a mut Recording>,
}

impl PrefillObserver for Watch<'_> {
    fn should_stop(&mut self) -> bool {
        interrupt::is_requested()
    }

    fn progress(&mut self, done: u32, _total: u32) {
        self.bar.set(self.done + u64::from(done), self.total);
        if let Some(recording) = &mut self.recording {
            recording.end_chunk();
        }
    }

    fn routes(&mut self, routes: LayerRoutes) {
        if let Some(recording) = &mut self.recording {
            recording.add(&routes);
        }
    }
}

/// Counters at one moment.
struct Counters {
    stream: StreamStats,
    inflow: InflowStats,
    split: TimeSplit,
    reads: ReadCounters,
    telemetry: Telemetry,
}

impl Counters {
    fn now(engine: &Engine) -> Self {
        Self {
            stream: engine.stream_stats(),
            inflow: engine.inflow_stats(),
            split: engine.time_split(),
            reads: engine.read_counters(),
            telemetry: engine.telemetry(),
        }
    }

    fn sample(&self, engine: &Engine, time: Duration) -> Sample {
        let now = Self::now(engine);
        Sample {
            ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            hits: now.stream.hits - self.stream.hits,
            misses: now.stream.misses - self.stream.misses,
            evictions: now.stream.evictions - self.stream.evictions,
            read_bytes: now.stream.read_bytes - self.stream.read_bytes,
            // What is still under way counts by an estimate, so that more may have been counted before.
            disk_busy_ns: now.reads.busy_ns.saturating_sub(self.reads.busy_ns),
            late_reads: now.reads.late_reads - self.reads.late_reads,
            guesses_issued: now.inflow.guesses_issued - self.inflow.guesses_issued,
            guesses_used: now.inflow.guesses_used + now.inflow.guesses_used_late
                - self.inflow.guesses_used
                - self.inflow.guesses_used_late,
            guesses_wasted: now.inflow.guesses_wasted - self.inflow.guesses_wasted,
            host_hits: now.inflow.host_hits - self.inflow.host_hits,
            split: now.split.since(self.split),
            telemetry: now.telemetry.since(&self.telemetry),
        }
    }
}

/// Runs `case`. `first` is the row's token with which the first run begins; it moves on with every run that goes on from the
/// one before, and stays where each begins cold.
pub(super) fn run(
    engine: &mut Engine,
    case: Case,
    first: &mut u64,
    conditions: &mut Conditions<'_>,
) -> Outcome<Measured> {
    let mut conversations = Conversations::open(engine, case)?;
    let mut measured =
        Measured { samples: Vec::new(), is_interrupted: false, buffered_files: 0, layer_hits: Vec::new() };
    let warmups = u32::from(conditions.has_warmup);
    let total = case.contexts() * u64::from(warmups + conditions.repetitions);
    for round in 0..warmups + conditions.repetitions {
        if interrupt::is_requested() {
            measured.is_interrupted = true;
            break;
        }
        let is_warmup = round < warmups;
        if let Some(planner) = conditions.planner.as_deref_mut().filter(|_| !is_warmup) {
            match planner.turns(conditions.repetitions) {
                Err(Failure::Interrupted) => {
                    measured.is_interrupted = true;
                    break;
                }
                turned => turned?,
            }
        }
        let at = Progress { done: case.contexts() * u64::from(round), total };
        let sample =
            repetition(engine, &mut conversations, case, *first, conditions, is_warmup, at, &mut measured);
        match sample {
            Ok(_) if is_warmup => {}
            Ok(sample) => measured.samples.push(sample),
            Err(EngineError::Model(ModelError::Stopped)) => {
                measured.is_interrupted = true;
                break;
            }
            Err(error) => return Err(error.into()),
        }
        if !conditions.is_cold {
            *first += case.contexts();
        }
    }
    Ok(measured)
}

/// Tokens before those that are profiled: until as much is submitted at once as will be.
const SETTLING_TOKENS: u32 = 8;

/// Generated tokens that are profiled at most.
const PROFILED_TOKENS_MAX: u32 = 64;

/// Runs `case` once more, or its first tokens, with every dispatch timed: gives the tokens and their profile.
///
/// # Errors
/// A device without a clock; what happened to a step; Ctrl-C.
pub(super) fn profile(
    engine: &mut Engine,
    case: Case,
    first: &mut u64,
    conditions: &Conditions<'_>,
) -> Outcome<(u64, StepProfile)> {
    engine.begin_profile()?;
    let profiled = profile_begun(engine, case, first, conditions);
    engine.end_profile();
    profiled
}

fn profile_begun(
    engine: &mut Engine,
    case: Case,
    first: &mut u64,
    conditions: &Conditions<'_>,
) -> Outcome<(u64, StepProfile)> {
    let mut case = Case { n_gen: case.n_gen.min(PROFILED_TOKENS_MAX), ..case };
    let has_prompt = case.n_prompt > 0;
    // A prompt settles what its reply needs; a reply that is too short for that is profiled as it is.
    let settling = if has_prompt { 0 } else { SETTLING_TOKENS.min(case.n_gen / 2) };
    let mut conversations = Conversations::open(engine, case)?;
    conversations.begin(conditions.tokens, case, *first);
    engine.start_routes_at(*first);
    *first += case.contexts();
    let (depth, total) = (case.n_depth as usize, case.contexts());
    let mut watch = Watch { bar: conditions.bar, done: 0, total, recording: None };
    let begin = depth + settling as usize;
    if depth > 0 {
        conversations.prompt(engine, depth, Want::Nothing, &mut watch)?;
    }
    for index in depth..begin {
        conversations.token(engine, index, 0)?;
    }
    engine.take_profile();
    case.n_gen -= settling;
    let prompted = begin + case.n_prompt as usize;
    if has_prompt {
        conversations.prompt(engine, prompted, Want::Greedy, &mut watch)?;
    }
    for index in prompted..prompted + case.n_gen as usize {
        conversations.token(engine, index, 0)?;
    }
    Ok((case.tokens(), engine.take_profile()))
}

/// Where the bar stands when a repetition begins, in tokens.
#[derive(Clone, Copy)]
struct Progress {
    done: u64,
    total: u64,
}

#[expect(clippy::too_many_arguments, reason = "one repetition, from the one place that runs them")]
fn repetition(
    engine: &mut Engine,
    conversations: &mut Conversations,
    case: Case,
    first: u64,
    conditions: &mut Conditions<'_>,
    is_warmup: bool,
    at: Progress,
    measured: &mut Measured,
) -> Result<Sample, EngineError> {
    let bar = conditions.bar;
    let (depth, prompt) = (case.n_depth as usize, case.n_prompt as usize);
    let (parallel, context) = (u64::from(case.n_parallel), usize::try_from(case.context()));
    let context = context.expect("invariant: a context is a u32");
    conversations.begin(conditions.tokens, case, first);
    engine.start_routes_at(first);
    if depth > 0 {
        let mut watch = Watch { bar, done: at.done, total: at.total, recording: None };
        conversations.prompt(engine, depth, Want::Nothing, &mut watch)?;
    }
    if conditions.is_cold {
        measured.buffered_files = engine.clear_tiers()?;
    }

    let mut recording = conditions.recording.as_deref_mut().filter(|_| !is_warmup);
    if let Some(recording) = &mut recording {
        recording.begin_context();
    }
    let layers_before = engine.layer_hits();
    let before = Counters::now(engine);
    let started = Instant::now();
    let mut outcome = Ok(());
    if prompt > 0 {
        let done = at.done + depth as u64 * parallel;
        let mut watch = Watch { bar, done, total: at.total, recording: recording.as_deref_mut() };
        outcome = conversations.prompt(engine, depth + prompt, Want::Greedy, &mut watch);
    }
    for index in depth + prompt..context {
        if outcome.is_err() {
            break;
        }
        // Recorded picks are those of single tokens.
        let behind = if recording.is_some() { 0 } else { context - 1 - index };
        outcome = conversations.token(engine, index, u32::try_from(behind).unwrap_or(u32::MAX));
        if let (Some(recording), Ok(())) = (&mut recording, &outcome) {
            engine.last_routes().iter().for_each(|routes| recording.add(routes));
            recording.end_chunk();
        }
        bar.set(at.done + (index as u64 + 1) * parallel, at.total);
    }
    let time = started.elapsed();
    if let (Some(recording), Err(_)) = (&mut recording, &outcome) {
        recording.drop_context();
    }
    outcome?;
    let sample = before.sample(engine, time);
    if !is_warmup {
        report::add_uses(&mut measured.layer_hits, &report::uses_since(&engine.layer_hits(), &layers_before));
    }
    Ok(sample)
}
