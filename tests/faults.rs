//! A drive that misbehaves changes no token: reads that end short, out of order, interrupted or refused are made whole, and one
//! that fails for good fails its request alone.
//!
//! The drive is simulated over the bundled model's bytes; one seed decides every fault, and is printed.

#[path = "support/nano.rs"]
mod nano;

use flint_rt::base::ids::TokenId;
use flint_rt::disk::Faults;
use flint_rt::engine::{Engine, EngineError, GenerateObserver, GenerateOptions};
use flint_rt::model::prefill::NoObserver;
use flint_rt::model::{ModelError, Want};
use flint_rt::sample::{Sampler, SamplerOptions};
use nano::{Vectors, open_nano, skip_without_device};

/// Seeds of the normal run; `FLINT_RT_SEEDS` asks for more.
fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("FLINT_RT_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(6)
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
        assert!(error.to_string().contains("flint-nano-q4_1.gguf"), "the file is named: {error}");
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

fn run(seed: u64, faults: Faults, slots: u32) -> Option<(Vec<TokenId>, u32)> {
    let mut failures = 0;
    let opened = std::panic::catch_unwind(|| {
        open_nano(|options| {
            options.simulation = Some((seed, faults));
            options.pool_slots = Some(slots);
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
    let sound = Faults { latency_ticks_max: 1, ..Faults::default() };
    let Some((wanted, _)) = run(0, sound, 4) else { return skip_without_device() };
    for seed in seeds() {
        let faults = Faults {
            short_permille: 300,
            interrupted_permille: 200,
            latency_ticks_max: 40,
            ..Faults::default()
        };
        let slots = [4, 7, 24, 96][usize::try_from(seed % 4).expect("below four")];
        let (tokens, failures) = run(seed, faults, slots).expect("a drive that always gets there opens");
        assert_eq!((tokens, failures), (wanted.clone(), 0), "seed {seed}");
    }
}

#[test]
fn a_read_that_fails_for_good_fails_its_step_alone() {
    if open_nano(|_| {}).is_none() {
        return skip_without_device();
    }
    let (mut opened, mut failed) = (0, 0);
    for seed in seeds() {
        // Two repetitions are allowed, so about one read in 1,000 fails for good; a token makes 72.
        let faults = Faults { failed_permille: 100, latency_ticks_max: 10, ..Faults::default() };
        if let Some((_, failures)) = run(seed, faults, 5) {
            opened += 1;
            failed += failures;
        }
    }
    println!("{opened} of {} seeds opened, {failed} steps failed and were asked for again", seeds().end);
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
