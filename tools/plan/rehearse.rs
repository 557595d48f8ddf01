//! What the device takes, measured: tokens through a short model of the same shapes, by the engine itself.
//!
//! - In: the model's numbers, the engine's options. Out: a [`Rehearsal`].
//! - Invariants: nothing of the model is read. The files that are made are nearly all hole, lie in the folder for temporary
//!   files, and are removed, also by a signal. Waits for reads are taken out of every time: they are not this model's.

use std::path::Path;
use std::time::{Duration, Instant};

use flint_rt::base::ids::TokenId;
use flint_rt::disk::DriveModel;
use flint_rt::engine::rehearsal::{MissTime, Rehearsal, ResidentTime};
use flint_rt::engine::run_ahead::Submissions;
use flint_rt::engine::{Engine, EngineOptions, HostMemory, Session};
use flint_rt::model::Want;
use flint_rt::model::hparams::FlintConfig;
use flint_rt::model::prefill::NoObserver;
use flint_rt::store::piece_checksum;
use tempfile::TempDir;

use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::{self, Working};
use crate::synth::rehearsal::{self, Script};
use crate::terminal::Bar;

/// Expert layers of the longest model that is run.
const LAYERS_MAX: u32 = 8;

/// Tokens behind the position that is asked for; then the conversation begins anew.
const ROOM: u32 = 512;

/// Tokens of a chunk on the way to that position, and how long that may take: a slow device is timed nearer to the beginning.
const CHUNK: u32 = 64;
const APPROACH: Duration = Duration::from_millis(500);

/// Kinds of tokens take turns, so that whatever else loads the machine loads all: how often, and how long a turn is at least.
pub(crate) const ROUNDS: u32 = 10;
const TURN: Duration = Duration::from_millis(50);

/// Tokens at the beginning of a turn that are not timed: until slots hold what they will hold, and as much is submitted at once as
/// will be.
const SETTLING_TOKENS: usize = 3;

/// A drive as many have: what is waited for it is left out of the times, what the waiting does to everything else is not.
const DRIVE: DriveModel = DriveModel { rate: 3e9, latency: Duration::from_micros(300), depth: 32 };

/// The part of the misses that a kind of token is to have by which it may miss less or more often.
const OTHER_MISSES: f64 = 0.25;

/// Runs short models with the shapes of `config` on the device of `options`, with up to `position` tokens behind those that are
/// timed; `checks` says whether records are checked. The caller asks for signals to be told (`Reply`).
pub(crate) fn measure(
    config: &FlintConfig,
    options: &EngineOptions,
    position: u32,
    checks: bool,
) -> Outcome<Rehearsal> {
    let bar = Bar::tokens("rehearsing");
    let mut stages = Stages::open(config, options, position, checks)?;
    for round in 0..ROUNDS {
        bar.set(round.into(), ROUNDS.into());
        stages.round()?;
    }
    Ok(stages.found())
}

/// Short models, open, and what was measured of them.
pub(crate) struct Stages {
    long: Stage,
    short: Option<Stage>,
    kinds: Vec<Kind>,
    shorter: Kind,
    check_seconds: f64,
    // Last, so that the engines have closed their files before these are removed, which a signal does, too.
    _working: Working,
    _folder: TempDir,
}

impl Stages {
    /// Opens them.
    ///
    /// # Errors
    /// As an engine's opening; when the files cannot be made.
    pub(crate) fn open(
        config: &FlintConfig,
        options: &EngineOptions,
        position: u32,
        checks: bool,
    ) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("flint-rt-rehearsal-").tempdir();
        let folder =
            folder.map_err(|error| Failure::because(Exit::of_io(&error), "a temporary folder", &error))?;
        let working = Working::begin(folder.path().to_owned());
        let all = config.moe_layer_count();
        let (most, few) = (all.min(LAYERS_MAX), all.min(LAYERS_MAX) / 2);
        let long = Stage::open(&folder.path().join("long.gguf"), config, most, options, position)?;
        let short = match most < all {
            true => {
                Some(Stage::open(&folder.path().join("short.gguf"), config, few, options, long.position)?)
            }
            false => None,
        };
        let Script { resident, one_misses, all_miss, .. } = &long.script;
        let kind = |misses, tokens: &[TokenId]| Kind::new(misses, tokens.to_vec());
        let mut kinds = vec![kind(Misses::None, &[*resident])];
        if options.prefetch != Some(false) {
            kinds.push(kind(Misses::NoneGuessing, &[*resident]));
        }
        kinds.extend(one_misses.iter().map(|one| kind(Misses::One { every: one.every }, &one.tokens)));
        kinds.push(kind(Misses::All, all_miss));
        kinds.retain(|kind| !kind.tokens.is_empty());
        let shorter = kind(Misses::None, &[*resident]);
        let check_seconds = if checks { check_seconds(config.record_bytes()) } else { 0.0 };
        Ok(Self { long, short, kinds, shorter, check_seconds, _working: working, _folder: folder })
    }

    /// Forgets what was measured.
    pub(crate) fn forget(&mut self) {
        self.kinds.iter_mut().chain([&mut self.shorter]).for_each(|kind| kind.turns.clear());
    }

    /// A turn of every kind of token.
    ///
    /// # Errors
    /// As a step; when Ctrl-C was pressed.
    pub(crate) fn round(&mut self) -> Outcome {
        for kind in &mut self.kinds {
            self.long.turn(kind)?;
        }
        self.short.as_mut().map_or(Ok(()), |short| short.turn(&mut self.shorter))
    }

    /// What all rounds since the last [`Self::forget`] gave.
    pub(crate) fn found(&self) -> Rehearsal {
        let of = |misses| self.kinds.iter().find(|kind| kind.misses == misses);
        let base = of(Misses::None).expect("invariant: the first kind");
        let resident = median(base.turns.iter().map(|turn| turn.seconds).collect());
        // Beside the resident token of the same round, as other work comes and goes.
        let seconds = |kind: &Kind| {
            let turns = kind.turns.iter().zip(&base.turns);
            resident * median(turns.map(|(turn, base)| turn.seconds / base.seconds).collect())
        };
        let layers = self.long.layers;
        let mut times = vec![ResidentTime { layers, seconds: resident }];
        if let Some(short) = &self.short {
            times.push(ResidentTime { layers: short.layers, seconds: seconds(&self.shorter) });
        }
        let miss = |kind: &Kind| {
            let (every, records_a_layer) = match kind.misses {
                Misses::None | Misses::NoneGuessing => return None,
                Misses::One { every } => (every, 1),
                Misses::All => (1, self.long.used),
            };
            let pattern: Vec<bool> = (0..layers).map(|layer| layer % every == 0).collect();
            let submissions = Submissions::of_pattern(&pattern);
            let records = median(kind.turns.iter().map(|turn| turn.records).collect());
            let wanted = submissions.stops * f64::from(records_a_layer);
            let is_as_meant = (records - wanted).abs() <= OTHER_MISSES * wanted;
            is_as_meant.then(|| MissTime { submissions, records, seconds: seconds(kind) - resident })
        };
        let guessing = of(Misses::NoneGuessing).map_or(resident, seconds);
        Rehearsal {
            resident: times,
            guess_seconds: (guessing - resident) / f64::from(layers),
            misses: self.kinds.iter().filter_map(miss).collect(),
            position: self.long.position,
            check_seconds: self.check_seconds,
        }
    }
}

/// 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 0 => f64::midpoint(values[count / 2 - 1], values[count / 2]),
        count => values[count / 2],
    }
}

/// In which layers a token misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Misses {
    None,
    /// None, while guesses are computed.
    NoneGuessing,
    /// One pick in every so-manieth layer.
    One {
        every: u32,
    },
    /// Every pick in every layer.
    All,
}

/// Tokens of one kind, in turn.
#[derive(Debug)]
struct Kind {
    misses: Misses,
    tokens: Vec<TokenId>,
    next: usize,
    turns: Vec<Turn>,
}

impl Kind {
    fn new(misses: Misses, tokens: Vec<TokenId>) -> Self {
        Self { misses, tokens, next: 0, turns: Vec::new() }
    }

    fn next(&mut self) -> TokenId {
        let token = self.tokens[self.next % self.tokens.len()];
        self.next += 1;
        token
    }
}

/// What tokens of one turn took, on average.
#[derive(Debug)]
struct Turn {
    /// Without waits for reads.
    seconds: f64,
    /// That missed.
    records: f64,
}

/// One model, open.
struct Stage {
    engine: Engine,
    session: Session,
    script: Script,
    /// Its expert layers, and the experts that a token uses in each.
    layers: u32,
    used: u32,
    /// Tokens that the conversation begins with.
    position: u32,
}

impl Stage {
    fn open(
        path: &Path,
        config: &FlintConfig,
        layers: u32,
        options: &EngineOptions,
        position: u32,
    ) -> Outcome<Self> {
        let script = rehearsal::write(path, config, layers)?;
        let context_len = position.saturating_add(ROOM).min(config.context_len);
        let options = EngineOptions {
            model: path.to_owned(),
            context_len: Some(context_len),
            pool_slots: Some(rehearsal::pool_slots(config, layers)),
            prefill_chunk: Some(CHUNK.min(context_len)),
            // Picks are dictated by the script.
            routes: None,
            cache_policy: None,
            timeline: false,
            // Its misses are to be reads.
            host_memory: HostMemory::Bytes(0),
            memory_bytes: None,
            // Reads that take as long as a drive's: threads and device fall asleep as they will, and wake up again.
            drive_model: Some(options.drive_model.unwrap_or(DRIVE)),
            ..options.clone()
        };
        let engine = Engine::open(&options, &mut |_| {})?;
        let session = engine.session()?;
        let used = config.experts_used;
        let mut stage = Self { engine, session, script, layers, used, position: 0 };
        let began = Instant::now();
        while stage.position < position && began.elapsed() < APPROACH {
            stage.position = position.min(stage.position + CHUNK);
            stage.approach()?;
        }
        Ok(stage)
    }

    /// Brings the conversation to its position.
    fn approach(&mut self) -> Outcome {
        let tokens = vec![self.script.resident; self.position as usize];
        if !tokens.is_empty() {
            self.engine.feed_prompt(&mut self.session, &tokens, Want::Nothing, &mut NoObserver)?;
        }
        Ok(())
    }

    /// Feeds tokens of one kind for a while.
    fn turn(&mut self, kind: &mut Kind) -> Outcome {
        // Where a token misses, a guess would only blur what that takes.
        self.engine.set_prefetch(kind.misses == Misses::NoneGuessing);
        for _ in 0..SETTLING_TOKENS {
            self.feed(kind.next())?;
        }
        let (began, misses) = (Instant::now(), self.engine.stream_stats().misses);
        let (mut seconds, mut count) = (0.0, 0.0);
        while began.elapsed() < TURN {
            seconds += self.feed(kind.next())?;
            count += 1.0;
        }
        let records = (self.engine.stream_stats().misses - misses) as f64;
        kind.turns.push(Turn { seconds: seconds / count, records: records / count });
        Ok(())
    }

    /// Feeds one token; gives its seconds without waits for reads.
    fn feed(&mut self, token: TokenId) -> Outcome<f64> {
        if interrupt::is_requested() {
            return Err(Failure::Interrupted);
        }
        if self.session.room() == 0 {
            self.session.reset();
            self.approach()?;
        }
        let (began, before) = (Instant::now(), self.engine.time_split());
        self.engine.feed_token(&mut self.session, token, Want::Greedy)?;
        let waited = self.engine.time_split().since(before).disk_ns;
        Ok(began.elapsed().saturating_sub(Duration::from_nanos(waited)).as_secs_f64())
    }
}

/// Seconds of a record's share of the checks of those that come from the drive with it: the median of a few, over more memory than caches hold.
fn check_seconds(record_bytes: u64) -> f64 {
    const SPREAD_BYTES: usize = 64 << 20;
    let record = usize::try_from(record_bytes).unwrap_or(usize::MAX).max(1);
    let bytes = vec![1_u8; SPREAD_BYTES.max(record)];
    let mut times: Vec<f64> = bytes
        .chunks_exact(record)
        .take(64)
        .map(|record| {
            let began = Instant::now();
            std::hint::black_box(piece_checksum(record));
            began.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    // Records that land together share the threads that check.
    times[times.len() / 2] / flint_rt::expert::checking_threads() as f64
}
