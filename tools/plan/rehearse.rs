//! What the device takes, measured: tokens through a short model of the same shapes, by the engine itself.
//!
//! - In: the model's numbers, the engine's options. Out: a [`Rehearsal`].
//! - Invariants: nothing of the model is read. The files that are made are nearly all hole, lie in the folder for temporary
//!   files, and are removed, also by a signal. Waits for reads are taken out of every time: they are not this model's.

use std::path::Path;
use std::time::{Duration, Instant};

use flint_rt::base::ids::TokenId;
use flint_rt::engine::rehearsal::{MissTime, Rehearsal, ResidentTime};
use flint_rt::engine::{Engine, EngineOptions, Session};
use flint_rt::model::Want;
use flint_rt::model::hparams::FlintConfig;
use flint_rt::store::piece_checksum;

use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt::{self, Reply, Working};
use crate::synth::rehearsal::{self, Script};
use crate::terminal::Bar;

/// Expert layers of the longest model that is run.
const LAYERS_MAX: u32 = 8;

/// Tokens of its conversation; then it begins anew.
const CONTEXT_LEN: u32 = 256;

/// How long each kind of token is measured, and how many tokens at least.
const TIME: Duration = Duration::from_millis(400);
const TOKENS_MIN: usize = 9;

/// Runs short models with the shapes of `config` on the device of `options`; `checks` says whether records are checked.
pub(super) fn measure(config: &FlintConfig, options: &EngineOptions, checks: bool) -> Outcome<Rehearsal> {
    let _asked = Reply::begin();
    let bar = Bar::tokens("rehearsing");
    let folder = tempfile::Builder::new().prefix("flint-rt-rehearsal-").tempdir();
    let folder =
        folder.map_err(|error| Failure::because(Exit::of_io(&error), "a temporary folder", &error))?;
    let _working = Working::begin(folder.path().to_owned());
    let all = config.moe_layer_count();
    let most = all.min(LAYERS_MAX);
    let mut long = Stage::open(&folder.path().join("long.gguf"), config, most, options)?;
    let resident = long.seconds(&[long.script.resident], &bar)?;
    let mut rehearsal = Rehearsal {
        resident: vec![ResidentTime { layers: most, seconds: resident.seconds }],
        misses: Vec::new(),
        check_seconds: if checks { check_seconds(config.record_bytes()) } else { 0.0 },
    };
    for (tokens, a_layer) in [
        (long.script.one_misses.clone(), 1.0),
        (long.script.all_miss.clone(), f64::from(config.experts_used)),
    ] {
        if !tokens.is_empty() {
            let found = long.seconds(&tokens, &bar)?;
            let layers = (found.records / a_layer).min(f64::from(most));
            let seconds = found.seconds - resident.seconds;
            rehearsal.misses.push(MissTime { layers, records: found.records, seconds });
        }
    }
    drop(long);
    if most < all {
        let few = most / 2;
        let mut short = Stage::open(&folder.path().join("short.gguf"), config, few, options)?;
        let seconds = short.seconds(&[short.script.resident], &bar)?.seconds;
        rehearsal.resident.push(ResidentTime { layers: few, seconds });
    }
    Ok(rehearsal)
}

/// One model, open.
struct Stage {
    engine: Engine,
    session: Session,
    script: Script,
}

/// What a token took.
struct Found {
    /// Without waits for reads: the median.
    seconds: f64,
    /// Records that missed, on average.
    records: f64,
}

impl Stage {
    fn open(path: &Path, config: &FlintConfig, layers: u32, options: &EngineOptions) -> Outcome<Self> {
        let script = rehearsal::write(path, config, layers)?;
        let options = EngineOptions {
            model: path.to_owned(),
            context_len: Some(CONTEXT_LEN.min(config.context_len)),
            pool_slots: Some(rehearsal::pool_slots(config, layers)),
            prefill_chunk: Some(1),
            ..options.clone()
        };
        let engine = Engine::open(&options, &mut |_| {})?;
        let session = engine.session()?;
        Ok(Self { engine, session, script })
    }

    /// Feeds `tokens` in turn.
    fn seconds(&mut self, tokens: &[TokenId], bar: &Bar) -> Outcome<Found> {
        // Twice around, until slots hold what they will hold.
        for token in tokens.iter().chain(tokens) {
            self.feed(*token)?;
        }
        let (began, misses) = (Instant::now(), self.engine.stream_stats().misses);
        let mut times = Vec::new();
        while began.elapsed() < TIME || times.len() < TOKENS_MIN || !times.len().is_multiple_of(tokens.len())
        {
            times.push(self.feed(tokens[times.len() % tokens.len()])?);
            bar.set(times.len() as u64, 0);
        }
        times.sort_by(f64::total_cmp);
        let missed = self.engine.stream_stats().misses - misses;
        Ok(Found { seconds: times[times.len() / 2], records: missed as f64 / times.len() as f64 })
    }

    /// Feeds one token; gives its seconds without waits for reads.
    fn feed(&mut self, token: TokenId) -> Outcome<f64> {
        if interrupt::is_requested() {
            return Err(Failure::Interrupted);
        }
        if self.session.room() == 0 {
            self.session.reset();
        }
        let (began, before) = (Instant::now(), self.engine.time_split());
        self.engine.feed_token(&mut self.session, token, Want::Greedy)?;
        let waited = self.engine.time_split().since(before).disk_ns;
        Ok(began.elapsed().saturating_sub(Duration::from_nanos(waited)).as_secs_f64())
    }
}

/// Seconds of the checksum of a record that has just come from the drive: the median of a few, over more memory than caches hold.
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
    times[times.len() / 2]
}
