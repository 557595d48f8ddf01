//! A drive that misbehaves changes no token: reads that end short, out of order, interrupted or refused are made whole, and one
//! that fails for good fails its request alone.
//!
//! The drive is simulated over the bundled model's bytes; one seed decides every fault, and is printed. It also decides the way through
//! the engine: slots, source, policy, guesses, host memory, queue of copies. What leaves a slot is written over with NaNs at once.

#[path = "support/nano.rs"]
mod nano;

use std::ops::ControlFlow;
use std::path::PathBuf;

use flint_rt::base::ids::TokenId;
use flint_rt::disk::Faults;
use flint_rt::engine::{Engine, EngineError, GenerateObserver, GenerateOptions, HostMemory};
use flint_rt::expert::Policy;
use flint_rt::gpu::CopyQueue;
use flint_rt::model::prefill::NoObserver;
use flint_rt::model::{ModelError, Want};
use flint_rt::sample::{Sampler, SamplerOptions};
use flint_rt::store::{IngestOptions, StripePlan, ingest_from, open_local};
use nano::{Vectors, nano_path, open_nano, skip_without_device};

/// Seeds of the normal run; `FLINT_RT_SEEDS` asks for other ones, `count` or `first..end`: `tests/thousand_seeds` for a thousand.
fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("FLINT_RT_SEEDS").unwrap_or_else(|_| "50".to_owned());
    let number = |text: &str| text.parse().expect("FLINT_RT_SEEDS is `count` or `first..end`");
    match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&text),
    }
}

/// The sources of one model: the GGUF, a store, and a store striped over two folders.
struct Sources {
    _folder: tempfile::TempDir,
    paths: [PathBuf; 3],
}

impl Sources {
    fn make() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = [nano_path(), folder.path().join("flint-nano"), folder.path().join("flint-nano-striped")];
        let other = folder.path().join("flint-nano-other");
        std::fs::create_dir(&other).expect("a second drive");
        let stripes =
            vec![StripePlan { folder: None, weight: 2.0 }, StripePlan { folder: Some(other), weight: 1.0 }];
        for (path, stripes) in [(&paths[1], Vec::new()), (&paths[2], stripes)] {
            let options = IngestOptions { stripes, ..IngestOptions::default() };
            let source = open_local(&paths[0]).expect("the bundled model");
            ingest_from(source, path, &options, &mut |_| ControlFlow::Continue(())).expect("a store");
        }
        Self { _folder: folder, paths }
    }
}

/// A way through the engine: everything that may change only the time.
#[derive(Debug, Clone, Copy)]
struct Way {
    slots: u32,
    source: usize,
    policy: Policy,
    prefetch: bool,
    host_memory: u64,
    copy_queue: CopyQueue,
}

impl Way {
    /// By a seed, so that any few dozen seeds have seen every value of everything.
    fn of(seed: u64) -> Self {
        let at = |step: u64, count: usize| usize::try_from(seed / step).expect("few seeds") % count;
        Self {
            slots: [4, 7, 24, 96][at(1, 4)],
            source: at(1, 3),
            policy: Policy::all(8)[at(1, 5)],
            prefetch: at(4, 2) == 0,
            host_memory: [0, 2 << 20, 64 << 20][at(2, 3)],
            copy_queue: [CopyQueue::Split, CopyQueue::Auto][at(3, 2)],
        }
    }
}

/// Greedy tokens after a prompt, whatever reads fail on the way: a failed step is asked for again.
fn tokens_despite_failures(engine: &mut Engine, failures: &mut u32) -> Vec<TokenId> {
    let vectors = Vectors::read();
    let prompt = vectors.prompts.iter().find(|prompt| prompt.name == "chat_tool").expect("a known prompt");
    let mut session = engine.session().expect("a session");
    let mut note = |error: EngineError| {
        *failures += 1;
        assert!(*failures < 200, "it never gets through");
        let EngineError::Model(ModelError::Expert(error)) = error else { panic!("another error: {error}") };
        assert!(error.to_string().contains("flint-nano"), "the file is named: {error}");
    };
    let mut token = loop {
        match engine.feed_prompt(&mut session, &prompt.ids, Want::Greedy, &mut NoObserver) {
            Ok(output) => break output.step.greedy.expect("wanted"),
            Err(error) => note(error),
        }
    };
    let mut tokens = vec![token];
    while tokens.len() < 16 {
        match engine.feed_token(&mut session, token, Want::Greedy) {
            Ok(step) => {
                token = step.greedy.expect("wanted");
                tokens.push(token);
            }
            Err(error) => note(error),
        }
    }
    let wanted = &prompt.greedy[..prompt.assert_greedy.min(16)];
    assert_eq!(tokens[..wanted.len()], *wanted, "the right tokens");
    tokens
}

fn run(sources: &Sources, seed: u64, faults: Faults, way: Way) -> Option<(Vec<TokenId>, u32)> {
    let mut failures = 0;
    let opened = std::panic::catch_unwind(|| {
        open_nano(|options| {
            options.model = sources.paths[way.source].clone();
            options.simulation = Some((seed, faults));
            options.poison = true;
            options.pool_slots = Some(way.slots);
            options.cache_policy = Some(way.policy);
            options.prefetch = Some(way.prefetch);
            options.host_memory = HostMemory::Bytes(way.host_memory);
            options.copy_queue = way.copy_queue;
            options.prefill_chunk = Some(32);
        })
    });
    // Opening reads the dense weights, which a failing drive may refuse: another seed then.
    let mut engine = opened.ok()??;
    let tokens = tokens_despite_failures(&mut engine, &mut failures);
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers, seed {seed}");
    Some((tokens, failures))
}

#[test]
fn reads_that_end_early_or_late_change_nothing() {
    let sources = Sources::make();
    let sound = Faults { latency_ticks_max: 1, ..Faults::default() };
    let Some((wanted, _)) = run(&sources, 0, sound, Way::of(0)) else { return skip_without_device() };
    for seed in seeds() {
        let faults = Faults {
            short_permille: 300,
            interrupted_permille: 200,
            latency_ticks_max: 40,
            ..Faults::default()
        };
        let way = Way::of(seed);
        let (tokens, failures) = run(&sources, seed, faults, way).expect("a drive that gets there opens");
        assert_eq!((tokens, failures), (wanted.clone(), 0), "seed {seed}, {way:?}");
    }
}

#[test]
fn a_read_that_fails_for_good_or_gives_wrong_bytes_fails_its_step_alone() {
    if open_nano(|_| {}).is_none() {
        return skip_without_device();
    }
    let sources = Sources::make();
    let (mut opened, mut failed) = (0, 0);
    for seed in seeds() {
        let way = Way::of(seed);
        // Two repetitions are allowed, so about one read in 1,000 fails for good; a token makes 72. Wrong bytes are seen where there
        // are sums, and are read once more: one record in 2,500 is wrong for good.
        let flipped_permille = if way.source == 0 { 0 } else { 20 };
        let faults =
            Faults { failed_permille: 100, flipped_permille, latency_ticks_max: 10, ..Faults::default() };
        if let Some((_, failures)) = run(&sources, seed, faults, way) {
            opened += 1;
            failed += failures;
        }
    }
    println!("{opened} of {:?} seeds opened, {failed} steps failed and were asked for again", seeds());
    assert!(opened > 0 && failed > 0, "{opened} opened, {failed} failed: the test shows nothing");
}

struct Quiet;

impl GenerateObserver for Quiet {
    fn token(&mut self, _id: TokenId) {}
}

#[test]
fn penalties_and_bias_count_for_greedy_tokens_too() {
    let Some(mut engine) = open_nano(|_| {}) else { return skip_without_device() };
    let vectors = Vectors::read();
    let prompt = vectors.prompts.iter().find(|prompt| prompt.name == "short").expect("a known prompt");
    let mut reply = |options: SamplerOptions| {
        let mut session = engine.session().expect("a session");
        let mut sampler = Sampler::new(options, engine.config().vocabulary).expect("valid options");
        let mut options = GenerateOptions { sampler: &mut sampler, tokens_max: 12, ignores_stops: true };
        engine.generate(&mut session, &prompt.ids, &mut options, &mut Quiet).expect("a reply").ids
    };
    let plain = reply(SamplerOptions::default());
    assert_eq!(plain, prompt.greedy[..12], "greedy is the reference's");
    let forbidden = (plain[0], f32::NEG_INFINITY);
    let biased = reply(SamplerOptions { logit_bias: vec![forbidden], ..SamplerOptions::default() });
    assert!(!biased.contains(&plain[0]), "a forbidden token does not come");
    let penalised = reply(SamplerOptions { repetition_penalty: 50.0, ..SamplerOptions::default() });
    assert_ne!(penalised, plain, "a penalty shows");
    assert!(!prompt.ids.contains(&penalised[0]), "and it minds the prompt");
}
