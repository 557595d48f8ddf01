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
use flint_rt::engine::{Engine, EngineOptions, HostMemory, Session};
use flint_rt::model::Want;
use flint_rt::model::hparams::FlintConfig;
use flint_rt::model::prefill::NoObserver;
use flint_rt::store::piece_checksum;

use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::{self, Reply, Working};
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
const ROUNDS: usize = 5;
const TURN: Duration = Duration::from_millis(100);

/// A drive as many have: what is waited for it is left out of the times, what the waiting does to everything else is not.
const DRIVE: DriveModel = DriveModel { rate: 3e9, latency: Duration::from_micros(300), depth: 32 };

/// Runs short models with the shapes of `config` on the device of `options`, with up to `position` tokens behind those that are
/// timed; `checks` says whether records are checked.
pub(super) fn measure(
    config: &FlintConfig,
    options: &EngineOptions,
    position: u32,
    checks: bool,
) -> Outcome<Rehearsal> {
    let _asked = Reply::begin();
    let bar = Bar::tokens("rehearsing");
    let folder = tempfile::Builder::new().prefix("flint-rt-rehearsal-").tempdir();
    let folder =
        folder.map_err(|error| Failure::because(Exit::of_io(&error), "a temporary folder", &error))?;
    let _working = Working::begin(folder.path().to_owned());
    let all = config.moe_layer_count();
    let (most, few) = (all.min(LAYERS_MAX), all.min(LAYERS_MAX) / 2);
    let mut long = Stage::open(&folder.path().join("long.gguf"), config, most, options, position)?;
    let mut short = match most < all {
        true => Some(Stage::open(&folder.path().join("short.gguf"), config, few, options, long.position)?),
        false => None,
    };
    let Script { resident, one_misses, all_miss, .. } = long.script.clone();
    let mut kinds = [vec![resident], one_misses, all_miss].map(|tokens| (tokens, Tally::default()));
    let mut shorter = Tally::default();
    for round in 0..ROUNDS {
        bar.set(round as u64, ROUNDS as u64);
        for (tokens, tally) in &mut kinds {
            long.turn(tokens, tally)?;
        }
        if let Some(short) = &mut short {
            short.turn(&[resident], &mut shorter)?;
        }
    }
    let [(_, resident), (_, one), (_, every)] = kinds;
    let mut times = vec![ResidentTime { layers: most, seconds: resident.seconds() }];
    if short.is_some() {
        times.push(ResidentTime { layers: few, seconds: shorter.seconds() });
    }
    let miss = |tally: &Tally, a_layer: u32| {
        let layers = (tally.records() / f64::from(a_layer)).min(f64::from(most));
        MissTime { layers, records: tally.records(), seconds: tally.seconds() - resident.seconds() }
    };
    let misses = [(one, 1), (every, config.experts_used)];
    Ok(Rehearsal {
        resident: times,
        misses: misses
            .iter()
            .filter(|(tally, _)| tally.count > 0)
            .map(|(tally, k)| miss(tally, *k))
            .collect(),
        position: long.position,
        check_seconds: if checks { check_seconds(config.record_bytes()) } else { 0.0 },
    })
}

/// What tokens of one kind took.
#[derive(Debug, Default)]
struct Tally {
    count: u32,
    /// Without waits for reads.
    seconds: f64,
    misses: u64,
}

impl Tally {
    /// A token, on average: so do tokens a second count.
    fn seconds(&self) -> f64 {
        self.seconds / f64::from(self.count.max(1))
    }

    /// Records that a token misses.
    fn records(&self) -> f64 {
        self.misses as f64 / f64::from(self.count.max(1))
    }
}

/// One model, open.
struct Stage {
    engine: Engine,
    session: Session,
    script: Script,
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
            // Its misses are to be reads.
            host_memory: HostMemory::Bytes(0),
            memory_bytes: None,
            // Picks are dictated by the script, and a guess would only blur what a miss takes.
            prefetch: Some(false),
            // Reads that take as long as a drive's: threads and device fall asleep as they will, and wake up again.
            drive_model: Some(DRIVE),
            ..options.clone()
        };
        let engine = Engine::open(&options, &mut |_| {})?;
        let session = engine.session()?;
        let mut stage = Self { engine, session, script, position: 0 };
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

    /// Feeds `tokens` one after the other, again and again.
    fn turn(&mut self, tokens: &[TokenId], tally: &mut Tally) -> Outcome {
        // Twice around, until slots hold what they will hold.
        for token in tokens.iter().chain(tokens) {
            self.feed(*token)?;
        }
        let (began, misses) = (Instant::now(), self.engine.stream_stats().misses);
        while !tokens.is_empty() && began.elapsed() < TURN {
            for token in tokens {
                tally.seconds += self.feed(*token)?;
                tally.count += 1;
            }
        }
        tally.misses += self.engine.stream_stats().misses - misses;
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
