//! One step for several sessions: the bits of each are those that it has alone.

#[path = "support/nano.rs"]
mod nano;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, EngineError, EngineOptions, Feed, HostMemory, Session};
use flint_rt::gpu::DeviceKind;
use flint_rt::kernels::{Many, ManyForm, Tuning};
use flint_rt::model::prefill::{NoObserver, PrefillObserver};
use flint_rt::model::{LayerRoutes, ModelError, Want};
use nano::{Vectors, open_nano, skip_without_device};

/// A GPU's sizes, but for products of prompts, whose large tiles a software device compiles for minutes.
fn tiles_of_a_gpu() -> Tuning {
    let many = Many::new(ManyForm::Tiles, DeviceKind::Software);
    Tuning { many, ..Tuning::for_device(DeviceKind::Discrete) }
}

/// Tokens of a reply.
const REPLY: usize = 5;

/// Depths at which sessions meet: in and behind the window of the sliding layers, and on both sides of a chunk's end.
const DEPTHS: [usize; 5] = [2, 150, 49, 97, 17];

/// What a session gave: its tokens, and the bits of every step's logits.
#[derive(Debug, Clone, PartialEq)]
struct Trail {
    tokens: Vec<TokenId>,
    logits: Vec<Vec<u32>>,
}

impl Trail {
    fn of(engine: &Engine, output: &flint_rt::model::decode::StepOutput) -> Self {
        let mut trail = Self { tokens: Vec::new(), logits: Vec::new() };
        trail.push(engine, output);
        trail
    }

    fn push(&mut self, engine: &Engine, output: &flint_rt::model::decode::StepOutput) {
        let mut logits = Vec::new();
        engine.read_logits_of(output, &mut logits);
        self.tokens.push(output.greedy.expect("wanted"));
        self.logits.push(logits.iter().map(|logit| logit.to_bits()).collect());
    }

    fn last(&self) -> TokenId {
        *self.tokens.last().expect("a prompt gave one")
    }
}

fn open(change: impl FnOnce(&mut EngineOptions)) -> Option<Engine> {
    open_nano(|options| {
        options.prefill_chunk = Some(48);
        options.context_len = Some(256);
        change(options);
    })
}

/// Prompts of the depths above, each another piece of the text.
fn prompts(engine: &Engine) -> Vec<Vec<TokenId>> {
    let text = Vectors::read().heldout_ids(engine);
    DEPTHS.iter().enumerate().map(|(index, &depth)| text[index * 11..][..depth].to_vec()).collect()
}

fn start(engine: &mut Engine, prompt: &[TokenId]) -> (Session, Trail) {
    let mut session = engine.session().expect("a session");
    let fed = engine.feed_prompt(&mut session, prompt, Want::Logits, &mut NoObserver).expect("fed");
    let trail = Trail::of(engine, &fed.step);
    (session, trail)
}

fn alone(engine: &mut Engine, prompt: &[TokenId]) -> Trail {
    let (mut session, mut trail) = start(engine, prompt);
    for _ in 0..REPLY {
        let output = engine.feed_token(&mut session, trail.last(), Want::Logits).expect("a step");
        trail.push(engine, &output);
    }
    trail
}

fn together(engine: &mut Engine, prompts: &[Vec<TokenId>]) -> Vec<Trail> {
    let (mut sessions, mut trails): (Vec<_>, Vec<_>) =
        prompts.iter().map(|prompt| start(engine, prompt)).unzip();
    for _ in 0..REPLY {
        let next: Vec<[TokenId; 1]> = trails.iter().map(|trail| [trail.last()]).collect();
        let outputs = step(engine, &mut sessions, &next);
        for (trail, output) in trails.iter_mut().zip(outputs) {
            trail.push(engine, &output.expect("there is room"));
        }
    }
    trails
}

type Outputs = Vec<Result<flint_rt::model::decode::StepOutput, EngineError>>;

fn step<const N: usize>(engine: &mut Engine, sessions: &mut [Session], next: &[[TokenId; N]]) -> Outputs {
    let mut feeds: Vec<Feed<'_>> = sessions
        .iter_mut()
        .zip(next)
        .map(|(session, tokens)| Feed { session, tokens, want: Want::Logits })
        .collect();
    engine.feed_many(&mut feeds, &mut NoObserver).expect("a step")
}

fn assert_sound(engine: &Engine) {
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
}

#[test]
fn a_session_has_the_same_bits_alone_and_beside_others() {
    type Way = (&'static str, &'static [usize], fn(&mut EngineOptions));
    let ways: [Way; 6] = [
        ("everything resident", &[1, 2, 3, 5], |_| {}),
        ("the fewest slots", &[3, 5], |options| options.pool_slots = Some(4)),
        ("no guesses", &[2], |options| {
            options.pool_slots = Some(5);
            options.prefetch = Some(false);
        }),
        ("host memory for the rest", &[5], |options| {
            options.pool_slots = Some(4);
            options.host_memory = HostMemory::Auto;
        }),
        // Several subgroups sum a row, and keys are split in 16.
        ("the tiles of a GPU", &[2, 3, 5], |options| options.tuning = Some(tiles_of_a_gpu())),
        ("a deterministic engine", &[3], |options| options.is_deterministic = true),
    ];
    for (name, counts, change) in ways {
        let Some(mut engine) = open(change) else { return skip_without_device() };
        let prompts = prompts(&engine);
        let wanted: Vec<Trail> = prompts.iter().map(|prompt| alone(&mut engine, prompt)).collect();
        for &count in counts {
            for (index, got) in together(&mut engine, &prompts[..count]).into_iter().enumerate() {
                assert!(got == wanted[index], "{name}: session {index} of {count} differs from itself alone");
            }
        }
        assert_sound(&engine);
    }
}

/// A wide step: more sessions than the largest tile of a few rows has columns.
#[test]
fn eleven_sessions_have_their_own_bits() {
    let Some(mut engine) = open(|options| options.pool_slots = Some(12)) else {
        return skip_without_device();
    };
    let text = Vectors::read().heldout_ids(&engine);
    let prompts: Vec<_> = (0..11).map(|index| text[index * 7..][..3 + 5 * index].to_vec()).collect();
    let wanted: Vec<Trail> = prompts.iter().map(|prompt| alone(&mut engine, prompt)).collect();
    let got = together(&mut engine, &prompts);
    assert!(got == wanted);
    assert_sound(&engine);
}

/// A piece of one prompt in the step of others' tokens changes neither, on a device whose mat-vecs have one subgroup, and on any
/// device where determinism was asked for.
#[test]
fn a_piece_of_a_prompt_rides_beside_tokens() {
    for is_deterministic in [false, true] {
        let Some(mut engine) = open(|options| {
            options.pool_slots = Some(6);
            options.is_deterministic = is_deterministic;
            options.tuning = is_deterministic.then(tiles_of_a_gpu);
        }) else {
            return skip_without_device();
        };
        if !is_deterministic && !engine.gpu().info().is_software() {
            continue;
        }
        let prompts = prompts(&engine);
        let wanted: Vec<Trail> = prompts[..3].iter().map(|prompt| alone(&mut engine, prompt)).collect();

        let (mut first, mut first_trail) = start(&mut engine, &prompts[0]);
        let (mut third, mut third_trail) = start(&mut engine, &prompts[2]);
        let mut second = engine.session().expect("a session");
        let pieces = [&prompts[1][..40], &prompts[1][40..77], &prompts[1][77..120], &prompts[1][120..]];
        let mut second_trail = None;
        for piece in pieces {
            let (one, three) = ([first_trail.last()], [third_trail.last()]);
            let mut feeds = [
                Feed { session: &mut first, tokens: &one, want: Want::Logits },
                Feed { session: &mut second, tokens: piece, want: Want::Logits },
                Feed { session: &mut third, tokens: &three, want: Want::Logits },
            ];
            let outputs = engine.feed_many(&mut feeds, &mut NoObserver).expect("a step");
            let outputs: Vec<_> = outputs.into_iter().map(|output| output.expect("there is room")).collect();
            first_trail.push(&engine, &outputs[0]);
            third_trail.push(&engine, &outputs[2]);
            second_trail = Some(Trail::of(&engine, &outputs[1]));
        }
        assert_eq!(second.tokens(), prompts[1]);
        let second_trail = second_trail.expect("there were pieces");
        assert!(first_trail.logits == wanted[0].logits[..5], "deterministic {is_deterministic}");
        assert!(third_trail.logits == wanted[2].logits[..5], "deterministic {is_deterministic}");
        assert!(second_trail.logits[0] == wanted[1].logits[0], "deterministic {is_deterministic}");
        assert_sound(&engine);
    }
}

/// However a prompt is cut, also into single tokens, and whatever of it was in the cache as a reply.
#[test]
fn a_deterministic_engine_does_not_see_how_a_prompt_was_cut() {
    let Some(mut engine) = open(|options| {
        options.is_deterministic = true;
        options.tuning = Some(tiles_of_a_gpu());
    }) else {
        return skip_without_device();
    };
    let prompt = &prompts(&engine)[1];
    let wanted = alone(&mut engine, prompt);
    for cut in [1, 2, 7, 31] {
        let mut session = engine.session().expect("a session");
        let mut last = None;
        for end in (cut..prompt.len()).step_by(cut).chain([prompt.len()]) {
            let fed = engine.feed_prompt(&mut session, &prompt[..end], Want::Logits, &mut NoObserver);
            last = Some(fed.expect("fed").step);
        }
        let got = Trail::of(&engine, &last.expect("there was a piece"));
        assert!(got.logits[0] == wanted.logits[0], "cut into pieces of {cut}");
    }
    // The reply of before, now as a part of a prompt.
    let whole = [prompt.as_slice(), &wanted.tokens[..REPLY]].concat();
    let (_, got) = start(&mut engine, &whole);
    assert!(got.logits[0] == wanted.logits[REPLY]);
    assert_sound(&engine);
}

/// Gives the step up before its second expert layer.
struct StopsLater(u32);

impl PrefillObserver for StopsLater {
    fn should_stop(&mut self) -> bool {
        self.0 += 1;
        self.0 > 1
    }

    fn routes(&mut self, _routes: LayerRoutes) {}
}

#[test]
fn a_step_that_is_given_up_leaves_every_session_as_it_was() {
    let Some(mut engine) = open(|options| options.pool_slots = Some(5)) else { return skip_without_device() };
    let prompts = prompts(&engine);
    let wanted: Vec<Trail> = prompts[..3].iter().map(|prompt| alone(&mut engine, prompt)).collect();
    let (mut sessions, trails): (Vec<_>, Vec<_>) =
        prompts[..3].iter().map(|prompt| start(&mut engine, prompt)).unzip();
    let next: Vec<[TokenId; 1]> = trails.iter().map(|trail| [trail.last()]).collect();
    let mut feeds: Vec<Feed<'_>> = sessions
        .iter_mut()
        .zip(&next)
        .map(|(session, tokens)| Feed { session, tokens, want: Want::Logits })
        .collect();
    let error = engine.feed_many(&mut feeds, &mut StopsLater(0)).expect_err("it is given up");
    assert!(matches!(error, EngineError::Model(ModelError::Stopped)), "{error}");
    for (session, prompt) in sessions.iter().zip(&prompts) {
        assert_eq!(session.tokens(), prompt);
    }
    for (index, output) in step(&mut engine, &mut sessions, &next).into_iter().enumerate() {
        let got = Trail::of(&engine, &output.expect("there is room"));
        assert!(got.logits[0] == wanted[index].logits[1], "session {index}");
    }
    assert_sound(&engine);
}

#[test]
fn a_full_session_is_refused_and_harms_no_other() {
    let Some(mut engine) = open(|options| options.context_len = Some(49)) else {
        return skip_without_device();
    };
    let prompts = prompts(&engine);
    // 2, 49 and 17 tokens of 49.
    let chosen = [prompts[0].clone(), prompts[2].clone(), prompts[4].clone()];
    let wanted = [alone(&mut engine, &chosen[0]), alone(&mut engine, &chosen[2])];
    let (mut sessions, trails): (Vec<_>, Vec<_>) =
        chosen.iter().map(|prompt| start(&mut engine, prompt)).unzip();
    let next: Vec<[TokenId; 1]> = trails.iter().map(|trail| [trail.last()]).collect();
    let outputs = step(&mut engine, &mut sessions, &next);
    assert!(
        matches!(outputs[1], Err(EngineError::Model(ModelError::ContextFull { context_len: 49 }))),
        "{:?}",
        outputs[1]
    );
    assert_eq!(sessions[1].tokens(), chosen[1]);
    for (output, wanted) in [&outputs[0], &outputs[2]].into_iter().zip(&wanted) {
        let got = Trail::of(&engine, output.as_ref().expect("there is room"));
        assert!(got.logits[0] == wanted.logits[1]);
    }
    // A token that no vocabulary has.
    let outputs = step(&mut engine, &mut sessions, &[[u32::MAX]]);
    assert!(matches!(outputs[0], Err(EngineError::Model(ModelError::UnknownToken { token: u32::MAX, .. }))));
    assert_sound(&engine);
}

/// With everything in slots, a step of several sessions' next tokens waits for the device once.
#[test]
fn a_resident_step_of_several_runs_without_the_host() {
    let Some(mut engine) = open(|_| {}) else { return skip_without_device() };
    let prompts = prompts(&engine);
    let (mut sessions, trails): (Vec<_>, Vec<_>) =
        prompts.iter().map(|prompt| start(&mut engine, prompt)).unzip();
    let next: Vec<[TokenId; 1]> = trails.iter().map(|trail| [trail.last()]).collect();
    let mut waits = Vec::new();
    for _ in 0..12 {
        let before = engine.step_counters();
        step(&mut engine, &mut sessions, &next);
        let after = engine.step_counters();
        assert_eq!(after.steps - before.steps, 1);
        waits.push(after.waits - before.waits);
    }
    // The first steps find out that nothing is missing.
    assert_eq!(waits.iter().min(), Some(&1), "{waits:?}");
    assert_sound(&engine);
}

#[test]
fn guesses_of_several_sessions_are_used() {
    let Some(mut engine) = open(|options| options.pool_slots = Some(8)) else { return skip_without_device() };
    let prompts = prompts(&engine);
    let (mut sessions, trails): (Vec<_>, Vec<_>) =
        prompts[..2].iter().map(|prompt| start(&mut engine, prompt)).unzip();
    // Those that come in time, and those that a step waits for the rest of.
    let used = |engine: &Engine| {
        let stats = engine.inflow_stats();
        stats.guesses_used + stats.guesses_used_late
    };
    let used_by_prompts = used(&engine);
    for _ in 0..4 {
        let next: Vec<[TokenId; 1]> = trails.iter().map(|trail| [trail.last()]).collect();
        step(&mut engine, &mut sessions, &next);
    }
    let inflow = engine.inflow_stats();
    assert!(used(&engine) > used_by_prompts, "{inflow:?}");
    let stats = engine.stream_stats();
    let brought = inflow.demand_reads + inflow.host_hits + inflow.guesses_used + inflow.guesses_used_late;
    assert_eq!(stats.misses, brought, "every miss is read, or was read before: {stats:?}, {inflow:?}");
}

/// Sessions that pick the same experts read them once: the bytes a token fall.
#[test]
fn experts_are_read_once_for_all_sessions() {
    let bytes_a_token = |count: usize| {
        let mut engine = open(|options| {
            options.pool_slots = Some(8);
            options.prefetch = Some(false);
        })?;
        let prompt = &prompts(&engine)[2];
        let mut sessions: Vec<Session> = (0..count).map(|_| start(&mut engine, prompt).0).collect();
        let before = engine.stream_stats().read_bytes;
        let next = vec![[prompt[0]]; count];
        for _ in 0..8 {
            step(&mut engine, &mut sessions, &next);
        }
        Some((engine.stream_stats().read_bytes - before) / (8 * count as u64))
    };
    let Some(one) = bytes_a_token(1) else { return skip_without_device() };
    let four = bytes_a_token(4).expect("there was a device");
    assert!(four * 2 < one, "{one} bytes a token alone, {four} beside three that pick the same");
}
