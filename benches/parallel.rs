//! `cargo bench --bench parallel`: what a token costs where several conversations get theirs in one step. The limit is the same
//! tokens one conversation after the other, so a share of 200 % says that a step of all is twice as fast as theirs alone.
//!
//! `FLINT_RT_BENCH_MODEL` names a model in place of the bundled one, `FLINT_RT_BENCH_POOL` its slots, `FLINT_RT_DEVICE` a device;
//! `FLINT_RT_DETERMINISTIC=1` sums rows as `serve --deterministic` does.

#[path = "support/paired.rs"]
mod paired;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, EngineError, EngineOptions, Feed, HostMemory, Session};
use flint_rt::gpu::GpuError;
use flint_rt::model::Want;
use flint_rt::model::prefill::NoObserver;
use paired::{Bench, Limit, Work};

/// Conversations at a time.
const COUNTS: [usize; 4] = [1, 2, 4, 8];

/// Tokens in front of what is measured.
const DEPTH: usize = 64;

/// Tokens of a conversation, after which it goes back to its beginning.
const CONTEXT: u32 = 512;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut bench = Bench::new(2500);
    let pools: Vec<Option<u32>> = match std::env::var("FLINT_RT_BENCH_POOL") {
        Ok(slots) => vec![Some(slots.parse()?)],
        Err(_) => vec![None, Some(24)],
    };
    for slots in pools {
        let Some(mut engine) = open(slots)? else { return Ok(()) };
        for count in COUNTS {
            let work = Work::Things(count as u64, "token");
            let mut talks = Talks::new(&mut engine, count)?;
            let slots = talks.engine.plan().pool_slots;
            let [alone, together] = [Talks::one_by_one, Talks::together].map(|way| talks.read_bytes(way));
            println!(
                "{count} conversations, {slots} slots: {alone} B read a token one after the other, {together} together"
            );
            let talks = RefCell::new(talks);
            let run = |iterations| talks.borrow_mut().run(iterations, Talks::one_by_one);
            let limit = Limit { name: "one after the other", work, run };
            bench.case(
                "parallel",
                &format!("{count} conversations, {slots} slots"),
                work,
                limit,
                |iterations| talks.borrow_mut().run(iterations, Talks::together),
            );
        }
    }
    bench.finish();
    Ok(())
}

fn open(pool_slots: Option<u32>) -> Result<Option<Engine>, EngineError> {
    let bundled = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/flint-nano-q4_1.gguf");
    let options = EngineOptions {
        model: std::env::var_os("FLINT_RT_BENCH_MODEL").map_or_else(bundled, PathBuf::from),
        device: std::env::var("FLINT_RT_DEVICE").ok(),
        context_len: Some(CONTEXT),
        sessions: u32::try_from(COUNTS[COUNTS.len() - 1]).ok(),
        pool_slots,
        is_deterministic: std::env::var("FLINT_RT_DETERMINISTIC").is_ok_and(|value| value == "1"),
        // What leaves the pool is read again.
        host_memory: HostMemory::Bytes(0),
        ..EngineOptions::default()
    };
    match Engine::open(&options, &mut |_| {}) {
        Ok(engine) => {
            println!("{}\n", engine.gpu().info().title());
            Ok(Some(engine))
        }
        Err(EngineError::Gpu(error @ (GpuError::LoaderMissing { .. } | GpuError::NoDevice { .. }))) => {
            println!("skipped: no Vulkan device: {error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Conversations, and the tokens that each has got.
struct Talks<'a> {
    engine: &'a mut Engine,
    talks: Vec<(Session, Vec<TokenId>)>,
}

impl<'a> Talks<'a> {
    fn new(engine: &'a mut Engine, count: usize) -> Result<Self, EngineError> {
        let mut talks = Vec::new();
        for index in 0..count {
            let mut session = engine.session()?;
            let tokens: Vec<TokenId> = (0..DEPTH).map(|at| token(engine, index, at)).collect();
            engine.feed_prompt(&mut session, &tokens, Want::Nothing, &mut NoObserver)?;
            talks.push((session, tokens));
        }
        Ok(Self { engine, talks })
    }

    /// A token more for each conversation, one after the other.
    fn one_by_one(&mut self) {
        for (session, tokens) in &mut self.talks {
            let last = *tokens.last().expect("it has a beginning");
            self.engine.feed_token(session, last, Want::Greedy).expect("a step");
        }
    }

    /// A token more for each conversation, in one step.
    fn together(&mut self) {
        let mut feeds: Vec<Feed<'_>> = self
            .talks
            .iter_mut()
            .map(|(session, tokens)| Feed {
                session,
                tokens: &tokens[tokens.len() - 1..],
                want: Want::Greedy,
            })
            .collect();
        for output in self.engine.feed_many(&mut feeds, &mut NoObserver).expect("a step") {
            output.expect("there is room");
        }
    }

    /// The time of so many steps of all conversations, by `way`.
    fn run(&mut self, steps: u64, way: fn(&mut Self)) -> Duration {
        let mut time = Duration::ZERO;
        for _ in 0..steps {
            for (index, (session, tokens)) in self.talks.iter_mut().enumerate() {
                if session.room() == 0 {
                    tokens.truncate(DEPTH);
                    session.keep_prefix(tokens);
                    // The beginning's last token is fed in any case.
                    tokens.pop();
                }
                tokens.push(token(self.engine, index, tokens.len()));
            }
            let begin = Instant::now();
            way(self);
            time += begin.elapsed();
        }
        time
    }

    /// Bytes of experts that are read a token, by `way`.
    fn read_bytes(&mut self, way: fn(&mut Self)) -> u64 {
        const STEPS: u64 = 16;
        let before = self.engine.stream_stats().read_bytes;
        self.run(STEPS, way);
        (self.engine.stream_stats().read_bytes - before) / (STEPS * self.talks.len() as u64)
    }
}

/// Token `at` of conversation `index`: whatever, but no two conversations alike.
fn token(engine: &Engine, index: usize, at: usize) -> TokenId {
    let mixed = (index * 7919 + at * 104_729 + (at * at) % 257) % engine.config().vocabulary as usize;
    u32::try_from(mixed).expect("a token is a u32")
}
