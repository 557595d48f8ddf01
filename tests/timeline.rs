//! The timeline of a run and the split of its time: complete, in order, and without influence on what is computed.

#[path = "support/nano.rs"]
mod nano;

use flint_rt::base::events::{Event, Lane};
use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, Session, StepProfile, TimeSplit};
use flint_rt::model::Want;
use flint_rt::model::prefill::NoObserver;
use nano::{open_nano, skip_without_device};

const SLOTS: u32 = 12;
const RECORD_BYTES: u64 = 30_720;

/// A prompt and eight tokens with a pool that misses all the time.
fn run(engine: &mut Engine) -> Vec<TokenId> {
    nano::reply(engine, 8)
}

fn of(events: &[Event], lane: Lane) -> Vec<&Event> {
    events.iter().filter(|event| event.lane == lane).collect()
}

#[test]
fn a_timeline_shows_every_read_and_changes_no_token() {
    let Some(mut plain) = open_nano(|options| options.pool_slots = Some(SLOTS)) else {
        return skip_without_device();
    };
    let wanted = run(&mut plain);
    assert!(plain.take_events().is_empty(), "nobody asked for a timeline");

    let mut engine = open_nano(|options| {
        options.pool_slots = Some(SLOTS);
        options.timeline = true;
    })
    .expect("a device was there before");
    let before = engine.stream_stats();
    assert_eq!(run(&mut engine), wanted);
    let events = engine.take_events();
    let read_bytes = engine.stream_stats().read_bytes - before.read_bytes;

    assert!(events.windows(2).all(|pair| pair[0].begin_ns <= pair[1].begin_ns), "in order");
    assert!(events.iter().all(|event| event.begin_ns <= event.end_ns), "nothing ends before it begins");
    assert_eq!(of(&events, Lane::Drive).iter().map(|event| event.bytes).sum::<u64>(), read_bytes);
    let misses = engine.stream_stats().misses - before.misses;
    assert_eq!(of(&events, Lane::Copy).iter().map(|event| event.bytes).sum::<u64>(), misses * RECORD_BYTES);
    let tokens = of(&events, Lane::Step).iter().filter(|event| event.what == "token").count();
    assert_eq!(tokens, 8);
    let layers = engine.config().layer_count - engine.config().lead_layer_count;
    for layer in engine.config().lead_layer_count..engine.config().layer_count {
        let runs = of(&events, Lane::Device).iter().filter(|event| event.layer == Some(layer)).count();
        assert!(runs >= 8, "layer {layer} of {layers} ran {runs} times in 8 tokens and a prompt");
    }
    // A token's kernels lie inside its step, as far as two clocks can be brought together on a machine with other work.
    let slack_ns = 50_000_000;
    let steps = of(&events, Lane::Step);
    for event in of(&events, Lane::Device) {
        let is_inside = steps
            .iter()
            .any(|step| step.begin_ns <= event.begin_ns + slack_ns && event.end_ns <= step.end_ns + slack_ns);
        assert!(is_inside, "{event:?} lies in no step");
    }
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
}

#[test]
fn the_split_adds_up_to_the_time_of_the_steps() {
    let Some(mut engine) = open_nano(|options| options.pool_slots = Some(SLOTS)) else {
        return skip_without_device();
    };
    assert_eq!(engine.time_split(), TimeSplit::default());
    let begin = std::time::Instant::now();
    run(&mut engine);
    let elapsed_ns = u64::try_from(begin.elapsed().as_nanos()).expect("a short test");
    let split = engine.time_split();
    assert!(split.disk_ns > 0, "a pool of {SLOTS} slots reads: {split:?}");
    assert!(split.gpu_ns > 0 && split.host_ns > 0, "{split:?}");
    assert!(split.total_ns() <= elapsed_ns, "{split:?} in {elapsed_ns} ns");

    // What is resident is read no more.
    let mut engine = open_nano(|_| {}).expect("a device was there before");
    run(&mut engine);
    let before = engine.time_split();
    run(&mut engine);
    let split = engine.time_split().since(before);
    assert_eq!((split.disk_ns, split.copy_ns), (0, 0), "{split:?}");
}

#[test]
fn the_parts_of_a_token_add_up_to_its_wall_time() {
    let Some(mut engine) = open_nano(|options| options.pool_slots = Some(SLOTS)) else {
        return skip_without_device();
    };
    run(&mut engine);
    let mut session = engine.session().expect("a session");
    let mut token = engine.feed_prompt(&mut session, &[1, 2, 3], Want::Greedy, &mut NoObserver).expect("fed");
    let before = engine.telemetry();
    let begin = std::time::Instant::now();
    const TOKENS: u64 = 32;
    for _ in 0..TOKENS {
        let next = token.step.greedy.expect("wanted");
        token.step = engine.feed_token(&mut session, next, Want::Greedy).expect("a step");
    }
    let wall_ns = u64::try_from(begin.elapsed().as_nanos()).expect("a short test");
    let work = engine.telemetry().since(&before);
    let parts_ns = work.split.total_ns();
    assert!(
        parts_ns.abs_diff(wall_ns) * 100 <= wall_ns,
        "{:?} add up to {parts_ns} ns of {wall_ns}",
        work.split
    );
    // And the other counters agree with one another.
    assert_eq!(work.decode.tokens, TOKENS);
    assert!(work.decode.stops > 0 && work.decode.submissions > work.decode.stops, "{:?}", work.decode);
    assert!(work.decode.segments >= work.decode.submissions, "{:?}", work.decode);
    let uses = work.stream.hits + work.stream.misses;
    assert_eq!(uses, TOKENS * u64::from(engine.plan().experts_a_token), "{:?}", work.stream);
    let inflow = work.inflow;
    assert_eq!(
        work.stream.misses,
        inflow.demand_reads + inflow.guesses_used + inflow.guesses_used_late + inflow.host_hits,
        "every miss came from somewhere: {inflow:?}"
    );
    let accuracy = work.guess_accuracy().expect("layers stop, and the next is guessed at");
    assert!(accuracy > 0.3 && accuracy <= 1.0, "{accuracy}");
    assert!(work.hit_rate_with_late().expect("uses") <= 1.0);
}

#[test]
fn a_profile_has_every_dispatch_and_changes_no_token() {
    let Some(mut plain) = open_nano(|_| {}) else { return skip_without_device() };
    let wanted = run(&mut plain);
    assert_eq!(plain.take_profile(), StepProfile::default(), "nobody asked for a profile");

    let mut engine = open_nano(|options| options.timeline = true).expect("a device was there before");
    assert_eq!(run(&mut engine), wanted);
    engine.take_events();
    engine.begin_profile().expect("a device with a clock");
    assert_eq!(run(&mut engine), wanted);
    let profile = engine.take_profile();
    assert_eq!((profile.steps, profile.left_out), (9, 0), "a prompt and eight tokens");
    assert!(profile.kernels.windows(2).all(|pair| pair[0].ns >= pair[1].ns), "largest first");
    let dispatched = of(&engine.take_events(), Lane::Dispatch).len() as u64;
    assert_eq!(dispatched, profile.count(), "each is in the timeline");
    let step_ns = profile.step_ns as f64;
    assert!(profile.dispatch_ns() > 0.0 && profile.dispatch_ns() <= step_ns, "{profile:?}");
    assert!(profile.stages > 0 && profile.stages <= profile.count());

    // Of single tokens alone, everything resident: each has the same dispatches.
    let mut session = engine.session().expect("a session");
    engine.feed_prompt(&mut session, &wanted, Want::Greedy, &mut NoObserver).expect("fed");
    for &id in &wanted {
        // The first tokens of a session are submitted in several pieces, each of which ends with a copy.
        engine.feed_token(&mut session, id, Want::Greedy).expect("a step");
    }
    let count_of = |engine: &mut Engine, session: &mut Session, tokens: usize| {
        engine.take_profile();
        for &id in wanted.iter().cycle().take(tokens) {
            engine.feed_token(session, id, Want::Greedy).expect("a step");
        }
        engine.take_profile()
    };
    let one = count_of(&mut engine, &mut session, 1);
    let five = count_of(&mut engine, &mut session, 5);
    assert_eq!((one.count() * 5, one.stages * 5), (five.count(), five.stages));
    let head =
        five.kernels.iter().find(|kernel| kernel.kernel == "matmul" && kernel.shape.starts_with("3072x"));
    let head = head.unwrap_or_else(|| panic!("no head among {:?}", five.kernels));
    assert_eq!(head.count, 5, "{head:?}");
    assert!(head.gb_s().is_some_and(|rate| rate > 0.0));

    engine.end_profile();
    assert_eq!(run(&mut engine), wanted);
    assert_eq!(engine.take_profile(), StepProfile::default());
    drop(session);
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
}
