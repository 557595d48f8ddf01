//! Drafts change the number of steps, and no bit: logits of every token, greedy and drawn replies, and what a session holds.

#[path = "support/nano.rs"]
mod nano;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{
    Engine, EngineError, EngineOptions, Feed, Finish, GenerateObserver, GenerateOptions, HostMemory, Session,
    SpeculateMode,
};
use flint_rt::gpu::DeviceKind;
use flint_rt::kernels::Tuning;
use flint_rt::model::prefill::NoObserver;
use flint_rt::model::{ModelError, Want};
use flint_rt::sample::{Sampler, SamplerOptions};
use nano::{Vectors, open_nano, skip_without_device};

/// With a window of 129 the rings have 136 rows: none to spare beside a step of 8.
const CHUNK: u32 = 8;

const CONTEXT: u32 = 192;

/// Tokens before the first that is fed alone: from there on rings go round.
const PROMPT: usize = 120;

fn open(change: impl FnOnce(&mut EngineOptions)) -> Option<Engine> {
    open_nano(|options| {
        options.prefill_chunk = Some(CHUNK);
        options.context_len = Some(CONTEXT);
        options.speculate = SpeculateMode::Fixed(7);
        change(options);
    })
}

/// A text that fills the context: from the prompt's end on it says again what the prompt said, with other words now and then.
fn script(engine: &Engine) -> Vec<TokenId> {
    let mut ids = Vectors::read().heldout_ids(engine)[..PROMPT].to_vec();
    for at in 0..CONTEXT as usize - PROMPT {
        let copied = ids[20 + at];
        ids.push(if [9, 10, 23, 40, 57].contains(&at) { copied ^ 1 } else { copied });
    }
    ids
}

fn bits_of(engine: &Engine, output: &flint_rt::model::decode::StepOutput) -> (TokenId, Vec<u32>) {
    let mut logits = Vec::new();
    engine.read_logits_of(output, &mut logits);
    (output.greedy.expect("wanted"), logits.iter().map(|logit| logit.to_bits()).collect())
}

/// Feeds what the script has behind what the session holds, up to `end`, each token by `feed`.
fn feed_by(
    engine: &mut Engine,
    session: &mut Session,
    script: &[TokenId],
    mut feed: impl FnMut(
        &mut Engine,
        &mut Session,
        TokenId,
        u32,
    ) -> Result<flint_rt::model::decode::StepOutput, EngineError>,
) -> Vec<(TokenId, Vec<u32>)> {
    let mut given = Vec::new();
    for at in session.tokens().len()..script.len() {
        let behind = u32::try_from(script.len() - at - 1).expect("a few");
        let output = feed(engine, session, script[at], behind).expect("a step");
        assert_eq!(session.tokens(), &script[..=at], "what was chosen, and no draft");
        given.push(bits_of(engine, &output));
    }
    given
}

fn plain(engine: &mut Engine, session: &mut Session, script: &[TokenId]) -> Vec<(TokenId, Vec<u32>)> {
    feed_by(engine, session, script, |engine, session, token, _| {
        engine.feed_token(session, token, Want::Logits)
    })
}

fn drafted(engine: &mut Engine, session: &mut Session, script: &[TokenId]) -> Vec<(TokenId, Vec<u32>)> {
    feed_by(engine, session, script, |engine, session, token, behind| {
        engine.feed_next(session, token, Want::Logits, behind)
    })
}

fn start(engine: &mut Engine, prompt: &[TokenId]) -> Session {
    let mut session = engine.session().expect("a session");
    engine.feed_prompt(&mut session, prompt, Want::Nothing, &mut NoObserver).expect("fed");
    session
}

fn assert_sound(engine: &Engine) {
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
}

#[test]
fn every_row_has_the_bits_of_a_plain_step() {
    type Way = (&'static str, fn(&mut EngineOptions));
    let ways: [Way; 6] = [
        ("everything resident", |_| {}),
        ("the fewest slots", |options| options.pool_slots = Some(4)),
        ("no guesses", |options| {
            options.pool_slots = Some(5);
            options.prefetch = Some(false);
        }),
        ("host memory for the rest", |options| {
            options.pool_slots = Some(6);
            options.host_memory = HostMemory::Auto;
        }),
        // Several subgroups sum a row, and keys are split.
        ("the tiles of a GPU", |options| options.tuning = Some(Tuning::for_device(DeviceKind::Discrete))),
        ("steps of three", |options| options.prefill_chunk = Some(3)),
    ];
    for (name, change) in ways {
        let Some(mut engine) = open(change) else { return skip_without_device() };
        let script = script(&engine);
        let mut session = start(&mut engine, &script[..PROMPT]);
        let wanted = plain(&mut engine, &mut session, &script);
        assert_eq!(engine.speculate_stats().steps, 0);
        session.reset();
        let mut session = start(&mut engine, &script[..PROMPT]);
        let got = drafted(&mut engine, &mut session, &script);
        for (at, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
            assert_eq!(got.0, wanted.0, "{name}: the token behind {at}");
            assert!(got.1 == wanted.1, "{name}: the bits behind {at}");
        }
        let stats = engine.speculate_stats();
        assert!(stats.accepted >= 30 && stats.drafted > stats.accepted, "{name}: {stats:?}");
        let fed = wanted.len() as u64;
        assert!(stats.steps + stats.accepted <= fed && stats.accepted < stats.drafted, "{name}: {stats:?}");
        // The context is full, and drafts did not reach beyond it.
        let error = engine.feed_next(&mut session, script[0], Want::Logits, 9).expect_err("no room");
        assert!(matches!(error, EngineError::Model(ModelError::ContextFull { .. })), "{error}");
        assert_sound(&engine);
    }
}

/// Rows of drafts that nobody chose are not in what is taken out of a session, and are no hindrance to going back.
#[test]
fn nobody_sees_the_rows_of_wrong_drafts() {
    let Some(mut engine) = open(|_| {}) else { return skip_without_device() };
    let mut script = script(&engine);
    script.truncate(PROMPT + 30);
    let mut other = start(&mut engine, &script[..PROMPT]);
    plain(&mut engine, &mut other, &script[..PROMPT + 2]);
    let mut session = start(&mut engine, &script[..PROMPT]);
    // Behind the second token lie drafts, of which none is taken.
    for (at, behind) in [(PROMPT, 0), (PROMPT + 1, 7)] {
        engine.feed_next(&mut session, script[at], Want::Logits, behind).expect("a step");
    }
    assert!(engine.speculate_stats().drafted >= 5, "{:?}", engine.speculate_stats());
    assert_eq!(session.tokens(), other.tokens());

    let wanted = plain(&mut engine, &mut other, &script);
    let snapshot = std::sync::Arc::new(engine.snapshot(&session).expect("copied"));
    assert_eq!(snapshot.tokens(), &script[..PROMPT + 2]);
    let mut restored = engine.session().expect("a session");
    engine.restore(&mut restored, &snapshot, &script).expect("restored");
    assert!(plain(&mut engine, &mut restored, &script) == wanted, "of a snapshot");
    // The step of the others came between.
    assert!(engine.take_ahead(&mut session, script[PROMPT + 2]).expect("no fault").is_none());
    assert!(drafted(&mut engine, &mut session, &script) == wanted, "the session itself");
    assert_sound(&engine);
}

/// Sessions that take turns, one of them with drafts; then both in one step.
#[test]
fn drafts_of_one_session_are_not_those_of_another() {
    let Some(mut engine) = open(|options| options.pool_slots = Some(8)) else { return skip_without_device() };
    let script = script(&engine)[..PROMPT + 24].to_vec();
    let mut session = start(&mut engine, &script[..PROMPT]);
    let wanted = plain(&mut engine, &mut session, &script);
    let (mut one, mut two) = (start(&mut engine, &script[..PROMPT]), start(&mut engine, &script[..PROMPT]));
    for (at, wanted) in wanted.iter().enumerate() {
        let (token, behind) = (script[PROMPT + at], 7);
        if at % 6 == 5 {
            let mut feeds = [&mut one, &mut two].map(|session| Feed {
                session,
                tokens: std::slice::from_ref(&script[PROMPT + at]),
                want: Want::Logits,
            });
            for output in engine.feed_many(&mut feeds, &mut NoObserver).expect("a step") {
                assert!(bits_of(&engine, &output.expect("there is room")) == *wanted, "token {at}");
            }
            continue;
        }
        let first = engine.feed_next(&mut one, token, Want::Logits, behind).expect("a step");
        assert!(bits_of(&engine, &first) == *wanted, "token {at}");
        if at % 6 < 3 {
            let second = engine.feed_token(&mut two, token, Want::Logits).expect("a step");
            assert!(bits_of(&engine, &second) == *wanted, "token {at}");
        } else {
            let second = engine.feed_next(&mut two, token, Want::Logits, behind).expect("a step");
            assert!(bits_of(&engine, &second) == *wanted, "token {at}");
        }
    }
    assert_sound(&engine);
}

/// Keeps the tokens, and stops behind so many.
struct Told {
    tokens: Vec<TokenId>,
    stop_at: usize,
}

impl GenerateObserver for Told {
    fn token(&mut self, id: TokenId) {
        self.tokens.push(id);
    }

    fn should_stop(&mut self) -> bool {
        self.tokens.len() >= self.stop_at
    }
}

#[test]
fn replies_are_those_without_drafts() {
    let Some(mut engine) = open(|options| options.pool_slots = Some(40)) else {
        return skip_without_device();
    };
    // The same words three times, so that the reply goes on with them.
    let text = &Vectors::read().heldout_ids(&engine)[..31];
    let prompt = [text, &text[1..], &text[1..], &text[1..8]].concat();
    let drawn = SamplerOptions { temperature: 0.8, top_p: 0.95, ..SamplerOptions::default() };
    let repeating = SamplerOptions { logit_bias: vec![(prompt[5], 9.0), (prompt[6], 9.0)], ..drawn.clone() };
    let cases = [
        ("greedy", SamplerOptions::default(), 60, usize::MAX),
        ("to the end of the context", SamplerOptions::default(), 500, usize::MAX),
        ("stopped", SamplerOptions::default(), 60, 13),
        ("drawn", SamplerOptions { seed: 7, ..drawn.clone() }, 40, usize::MAX),
        ("drawn from few", SamplerOptions { seed: 8, ..repeating }, 40, usize::MAX),
        ("penalised", SamplerOptions { seed: 9, repetition_penalty: 1.2, ..drawn }, 30, usize::MAX),
    ];
    let mut accepted = 0;
    for (name, options, tokens_max, stop_at) in cases {
        let reply = |engine: &mut Engine, mode| {
            engine.set_speculate(mode);
            let vocabulary = engine.config().vocabulary;
            let mut sampler = Sampler::new(options.clone(), vocabulary).expect("sound options");
            let mut told = Told { tokens: Vec::new(), stop_at };
            let mut session = engine.session().expect("a session");
            let mut how = GenerateOptions { sampler: &mut sampler, tokens_max, ignores_stops: true };
            let made = engine.generate(&mut session, &prompt, &mut how, &mut told).expect("a reply");
            assert_eq!(told.tokens, made.ids);
            (made.ids, made.finish, session.tokens().to_vec())
        };
        let wanted = reply(&mut engine, SpeculateMode::Off);
        assert_eq!(wanted.1 == Finish::Aborted, stop_at < usize::MAX, "{name}");
        for mode in [SpeculateMode::Fixed(7), SpeculateMode::Fixed(2), SpeculateMode::Auto] {
            let before = engine.speculate_stats();
            let got = reply(&mut engine, mode);
            assert_eq!(got, wanted, "{name}, {mode}");
            accepted += engine.speculate_stats().accepted - before.accepted;
        }
    }
    assert!(accepted > 60, "{accepted} drafts were right: this test shows little");
    assert_sound(&engine);
}
