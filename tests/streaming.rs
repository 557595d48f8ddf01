//! Streaming changes only the time: tokens and logits are equal, bit for bit, for every pool size, source, read path and
//! host path.
//!
//! The normal run takes one way at a time away from the first; `tests/matrix.py` runs all combinations.

#[path = "support/nano.rs"]
mod nano;

use flint_rt::base::ids::TokenId;
use flint_rt::disk::ReadPath;
use flint_rt::engine::{Engine, EngineOptions, HostMemory};
use flint_rt::expert::HostPath;
use flint_rt::model::prefill::PrefillObserver;
use flint_rt::model::{LayerRoutes, Want};
use nano::{Collected, Vectors, nano_path, open_nano, skip_without_device};

/// What one way through the engine gave: greedy tokens, and the bits of every logit.
#[derive(PartialEq)]
struct Trail {
    tokens: Vec<TokenId>,
    logits: Vec<u32>,
}

const CHUNK: u32 = 48;

/// The prompts `chat_tool` and `chat` one after the other in one engine, each with a reply: slots are full of the first when the
/// second comes.
fn run(engine: &mut Engine) -> Trail {
    let vectors = Vectors::read();
    let mut session = engine.session().expect("a session");
    let mut trail = Trail { tokens: Vec::new(), logits: Vec::new() };
    for name in ["chat_tool", "chat"] {
        let prompt = vectors.prompts.iter().find(|prompt| prompt.name == name).expect("a known prompt");
        session.reset();
        let mut seen = Collected::default();
        let output = engine.feed_prompt(&mut session, &prompt.ids, Want::Logits, &mut seen).expect("fed");
        trail.logits.extend(seen.last_logits.iter().map(|logit| logit.to_bits()));
        let mut token = output.step.greedy.expect("wanted");
        let mut logits = Vec::new();
        for _ in 0..12 {
            trail.tokens.push(token);
            token =
                engine.feed_token(&mut session, token, Want::Logits).expect("a step").greedy.expect("wanted");
            engine.read_logits(&mut logits);
            trail.logits.extend(logits.iter().map(|logit| logit.to_bits()));
        }
    }
    trail
}

fn trail_of(change: impl FnOnce(&mut EngineOptions)) -> Option<Trail> {
    let mut engine = open_nano(|options| {
        options.prefill_chunk = Some(CHUNK);
        options.context_len = Some(512);
        change(options);
    })?;
    let trail = run(&mut engine);
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
    Some(trail)
}

/// A way through the engine, by name.
type Way = (&'static str, Box<dyn FnOnce(&mut EngineOptions)>);

#[test]
fn every_way_gives_the_same_bits() {
    let Some(wanted) = trail_of(|_| {}) else { return skip_without_device() };
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("flint-nano");
    flint_rt::store::ingest(&nano_path(), &store, &mut |_| std::ops::ControlFlow::Continue(()))
        .expect("a store");

    let from_store = store.clone();
    let ways: Vec<Way> = vec![
        ("the fewest slots", Box::new(|options| options.pool_slots = Some(4))),
        (
            "no guesses",
            Box::new(|options| {
                options.pool_slots = Some(5);
                options.prefetch = Some(false);
            }),
        ),
        ("one slot more", Box::new(|options| options.pool_slots = Some(5))),
        ("a token's working set", Box::new(|options| options.pool_slots = Some(24))),
        ("all slots but one", Box::new(|options| options.pool_slots = Some(95))),
        ("a store", Box::new(move |options| options.model = from_store)),
        (
            "a store with the fewest slots",
            Box::new(move |options| {
                options.model = store;
                options.pool_slots = Some(4);
            }),
        ),
        (
            "host memory for all that the pool does not hold",
            Box::new(|options| {
                options.pool_slots = Some(4);
                options.host_memory = HostMemory::Auto;
            }),
        ),
        (
            "a little host memory, copied",
            Box::new(|options| {
                options.pool_slots = Some(4);
                options.host_memory = HostMemory::Bytes(32 << 20);
                options.host_path = Some(HostPath::Copy);
            }),
        ),
        ("a plain ring", Box::new(|options| options.read_path = Some(ReadPath::RingPlain))),
        ("a pread pool", Box::new(|options| options.read_path = Some(ReadPath::Pool))),
        ("mapped memory", Box::new(|options| options.host_path = Some(HostPath::Mapped))),
        (
            // 13 slots a buffer, 8 buffers; the head in two pieces of rows.
            "a device of small bindings",
            Box::new(|options| options.storage_range_max = Some(400_000)),
        ),
        ("copied memory", Box::new(|options| options.host_path = Some(HostPath::Copy))),
    ];
    for (name, change) in ways {
        let got = trail_of(change).expect("a device");
        assert_eq!(got.tokens, wanted.tokens, "tokens by {name}");
        assert!(got.logits == wanted.logits, "logits by {name} differ in bits");
    }
}

#[test]
fn a_small_pool_reads_and_evicts_and_a_full_one_does_neither() {
    let Some(mut small) = open_nano(|options| options.pool_slots = Some(4)) else {
        return skip_without_device();
    };
    run(&mut small);
    let stats = small.stream_stats();
    assert!(stats.evictions > 100, "{stats:?}");
    let inflow = small.inflow_stats();
    let read = inflow.demand_reads + inflow.guesses_issued;
    // The last guesses may still be under way.
    assert!(stats.read_bytes <= read * 30_720, "{stats:?}, {inflow:?}");
    assert!(stats.read_bytes + 8 * 30_720 >= read * 30_720, "{stats:?}, {inflow:?}");
    let brought = inflow.demand_reads + inflow.host_hits + inflow.guesses_used + inflow.guesses_used_late;
    assert_eq!(stats.misses, brought, "every miss is read, or was read before: {stats:?}, {inflow:?}");
    assert!(inflow.guesses_used + inflow.guesses_used_late > 0, "{inflow:?}");
    assert!(
        small.plan().warnings.iter().any(|warning| warning.contains("fewer")),
        "a small pool is warned of"
    );

    let layers = small.layer_hits();
    let first = small.config().lead_layer_count;
    let wanted: Vec<u32> = (first..small.config().layer_count).collect();
    assert_eq!(layers.iter().map(|&(layer, _, _)| layer).collect::<Vec<_>>(), wanted);
    assert_eq!(layers.iter().map(|&(_, hits, _)| hits).sum::<u64>(), stats.hits);
    assert_eq!(layers.iter().map(|&(_, _, misses)| misses).sum::<u64>(), stats.misses);
    assert!(layers.iter().all(|&(_, _, misses)| misses > 0), "every layer reads: {layers:?}");

    let mut full = open_nano(|_| {}).expect("a device");
    run(&mut full);
    let stats = full.stream_stats();
    assert_eq!(stats.evictions, 0, "{stats:?}");
    assert!(stats.misses <= 96, "each expert is read once: {stats:?}");
    let misses = stats.misses;
    run(&mut full);
    assert!(full.stream_stats().misses <= 96, "{misses} misses, then {:?}", full.stream_stats());
}

/// The picks of every layer, in the order in which they were told.
#[derive(Default)]
struct Picks(Vec<LayerRoutes>);

impl PrefillObserver for Picks {
    fn routes(&mut self, routes: LayerRoutes) {
        self.0.push(routes);
    }
}

/// Feeds the long prompt from its beginning and gives the bits of its last logits, and the picks of all layers.
fn feed_long(engine: &mut Engine, tokens: usize) -> (Vec<u32>, Vec<LayerRoutes>) {
    let vectors = Vectors::read();
    let long = vectors.prompts.iter().find(|prompt| prompt.name == "long").expect("a known prompt");
    let mut session = engine.session().expect("a session");
    let (mut picks, mut logits) = (Picks::default(), Vec::new());
    let fed = engine.feed_prompt(&mut session, &long.ids[..tokens], Want::Logits, &mut picks).expect("fed");
    engine.read_logits_of(&fed.step, &mut logits);
    (logits.iter().map(|logit| logit.to_bits()).collect(), picks.0)
}

/// With everything in slots the host waits once a chunk; and with fewer slots the device stops where an expert is missing, goes on
/// when it is there, and says the same.
#[test]
fn a_resident_prompt_runs_without_the_host() {
    const TOKENS: usize = 96;
    let chunks_of_8 = |slots: Option<u32>| {
        open_nano(|options| {
            options.prefill_chunk = Some(8);
            options.pool_slots = slots;
        })
    };
    let Some(mut engine) = chunks_of_8(None) else { return skip_without_device() };
    let wanted = feed_long(&mut engine, TOKENS);
    let layers = u64::from(engine.config().layer_count - engine.config().lead_layer_count);
    let mut least = u64::MAX;
    for _ in 0..30 {
        let (before, hits) = (engine.step_counters(), engine.stream_stats().hits);
        assert!(feed_long(&mut engine, TOKENS) == wanted, "other bits without the host");
        let after = engine.step_counters();
        assert_eq!(after.steps - before.steps, 12, "chunks");
        assert_eq!(after.layers_alone - before.layers_alone, 12 * layers, "{after:?}");
        assert_eq!(after.stops, before.stops, "{after:?}");
        // Each expert counts once a chunk, as where the host groups.
        let picked: usize = wanted.1.iter().map(|routes| distinct(&routes.experts)).sum();
        assert_eq!(engine.stream_stats().hits - hits, picked as u64);
        // Where the machine is so busy that a layer takes long, the host looks more often.
        least = least.min(after.waits - before.waits);
        if least == 12 {
            assert_eq!(after.submissions - before.submissions, 2 * 12, "{after:?}");
            break;
        }
    }
    assert_eq!(least, 12, "waits of twelve chunks");
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");

    let mut stops = 0;
    for slots in [4, 40, 80, 92] {
        let mut small = chunks_of_8(Some(slots)).expect("a device was there before");
        for _ in 0..2 {
            assert!(feed_long(&mut small, TOKENS) == wanted, "other bits with {slots} slots");
        }
        stops += small.step_counters().stops;
        assert_eq!(small.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
    }
    assert!(stops > 0, "the device came upon a missing expert by itself");
}

fn distinct(experts: &[u32]) -> usize {
    experts.iter().collect::<std::collections::HashSet<_>>().len()
}

#[test]
fn host_memory_has_what_the_plan_says_and_saves_reads() {
    let Some(mut none) = open_nano(|options| options.pool_slots = Some(4)) else {
        return skip_without_device();
    };
    assert_eq!(none.plan().host.slots, 0);
    let mut all = open_nano(|options| {
        options.pool_slots = Some(4);
        options.host_memory = HostMemory::Auto;
    })
    .expect("a device");
    assert_eq!(all.plan().host.slots, 96 - 4, "{:?}", all.plan());
    let reads = |engine: &Engine| {
        let stats = engine.inflow_stats();
        stats.demand_reads + stats.guesses_issued
    };
    run(&mut none);
    let read = reads(&none);
    // Memory comes as it is made, so what is read before that is read once more.
    let mut reads_of_a_run = || {
        let before = reads(&all);
        run(&mut all);
        reads(&all) - before
    };
    assert!((0..20).any(|_| reads_of_a_run() == 0), "all in host memory, and experts are read");
    assert!(read > 96, "{read} reads without host memory");
    // What cannot be had is refused before anything is taken.
    let error = refused(|options| {
        options.pool_slots = Some(4);
        options.host_memory = HostMemory::Bytes(1);
    });
    assert!(error.contains("host memory in bytes of 1"), "{error}");
    let error = refused(|options| options.gpu_memory_bytes = Some(1 << 60));
    assert!(error.contains("--gpu-memory"), "{error}");
}

#[test]
fn host_memory_comes_and_goes_while_tokens_are_made() {
    let Some(mut engine) = open_nano(|options| {
        options.pool_slots = Some(4);
        options.host_memory = HostMemory::Auto;
    }) else {
        return skip_without_device();
    };
    let wanted = run(&mut engine);
    // Memory is made by a thread meanwhile.
    let fill = |engine: &mut Engine| {
        let is_full = (0..20).any(|_| {
            assert!(run(engine) == wanted, "memory has come meanwhile");
            engine.host_tier().kept > 60
        });
        assert!(is_full, "{:?}", engine.host_tier());
    };
    fill(&mut engine);
    let full = engine.host_tier();
    assert!(full.kept <= full.memory && full.allowed == 92, "{full:?}");
    for allowed in [40, 0, 92] {
        engine.keep_at_most(allowed);
        let shrunk = engine.host_tier();
        assert!(shrunk.kept <= allowed && shrunk.memory <= full.memory, "{shrunk:?}");
        if allowed == 0 {
            assert_eq!(shrunk.memory, 0, "all of it is given back");
        }
        let read = engine.stream_stats().read_bytes;
        assert!(run(&mut engine) == wanted, "other tokens with {allowed} experts in host memory");
        // More experts were used than are kept now; whether a step waits for them or a guess brings them is a matter of time.
        let read = engine.stream_stats().read_bytes - read;
        assert!(allowed == 92 || read > 0, "what is not kept is read again");
    }
    fill(&mut engine);
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
}

/// Slots, and host memory behind them, that are filled with what was used most before: fewer reads and the same bits.
#[test]
fn an_engine_that_begins_warm_reads_less_and_says_the_same() {
    let small = |options: &mut EngineOptions| options.pool_slots = Some(24);
    let Some(mut cold) = open_nano(small) else { return skip_without_device() };
    let wanted = run(&mut cold);
    let most_used = cold.most_used();
    assert!(most_used.len() > 24, "{} experts were used", most_used.len());
    for host_memory in [HostMemory::Bytes(0), HostMemory::Auto] {
        let mut warm = open_nano(|options| {
            small(options);
            options.host_memory = host_memory;
        })
        .expect("a device was there before");
        let mut heard = 0;
        let filled = warm
            .warm(&most_used, &mut |done, total| {
                assert!(done > heard && done <= total, "{done} of {total} after {heard}");
                heard = done;
                std::ops::ControlFlow::Continue(())
            })
            .expect("read");
        let slots = if host_memory == HostMemory::Auto { most_used.len() } else { 24 };
        assert_eq!((filled as usize, heard), (slots, filled));
        let stats = warm.stream_stats();
        assert_eq!((stats.hits, stats.misses, stats.evictions), (0, 0, 0), "nobody has used anything");
        let inflow = warm.telemetry().inflow;
        assert_eq!((inflow.demand_reads, inflow.host_hits, inflow.guesses_used), (0, 0, 0), "{inflow:?}");
        let before = warm.stream_stats().read_bytes;
        assert!(run(&mut warm) == wanted, "other bits in an engine that began warm");
        let (read, cold_read) = (warm.stream_stats().read_bytes - before, cold.stream_stats().read_bytes);
        assert!(read < cold_read, "{read} B read after a warm start, {cold_read} B after a cold one");
    }
    // Experts that there are not are left out.
    assert_eq!(cold.warm(&[(0, 0), (9999, 0), (2, 9999)], &mut |_, _| unreachable!()).expect("nothing"), 0);
}

/// Why the bundled model does not open so.
fn refused(change: impl FnOnce(&mut EngineOptions)) -> String {
    let device = std::env::var("FLINT_RT_DEVICE").ok().filter(|name| !name.is_empty());
    let mut options = EngineOptions { model: nano_path(), device, ..EngineOptions::default() };
    change(&mut options);
    Engine::open(&options, &mut |_| {}).err().expect("it is refused").to_string()
}

#[test]
fn a_conversation_that_goes_on_reuses_what_is_there() {
    let Some(mut engine) = open_nano(|options| options.prefill_chunk = Some(16)) else {
        return skip_without_device();
    };
    let vectors = Vectors::read();
    let long = vectors.prompts.iter().find(|prompt| prompt.name == "long").expect("a known prompt");
    let mut session = engine.session().expect("a session");
    let (first, all) = (&long.ids[..300], &long.ids[..420]);
    let feed = |engine: &mut Engine, session: &mut _, ids: &[TokenId]| {
        engine
            .feed_prompt(session, ids, Want::Greedy, &mut flint_rt::model::prefill::NoObserver)
            .expect("fed")
    };
    feed(&mut engine, &mut session, first);
    let more = feed(&mut engine, &mut session, all);
    assert_eq!((more.reused, more.fed), (300, 120), "a longer prompt goes on");
    assert_eq!(more.step.greedy, Some(long.argmax[419]), "and gives the right token");

    // Back by less than the rings' slack: the window is still there. Back by more: all is fed again.
    let back = feed(&mut engine, &mut session, &long.ids[..410]);
    assert_eq!((back.reused, back.fed), (409, 1), "a short way back");
    assert_eq!(back.step.greedy, Some(long.argmax[409]), "and gives the right token");
    let far = feed(&mut engine, &mut session, &long.ids[..200]);
    assert_eq!((far.reused, far.fed), (0, 200), "a long way back");
    assert_eq!(far.step.greedy, Some(long.argmax[199]), "and gives the right token");
}

#[test]
fn a_full_context_is_an_error_that_loses_nothing() {
    let Some(mut engine) = open_nano(|options| options.context_len = Some(20)) else {
        return skip_without_device();
    };
    let vectors = Vectors::read();
    let prompt = vectors.prompts.iter().find(|prompt| prompt.name == "chat").expect("a known prompt");
    let mut session = engine.session().expect("a session");
    let mut seen = flint_rt::model::prefill::NoObserver;
    let mut token = engine
        .feed_prompt(&mut session, &prompt.ids, Want::Greedy, &mut seen)
        .expect("fed")
        .step
        .greedy
        .unwrap();
    while session.room() > 0 {
        token = engine.feed_token(&mut session, token, Want::Greedy).expect("there is room").greedy.unwrap();
    }
    let before = session.tokens().to_vec();
    let error = engine.feed_token(&mut session, token, Want::Greedy).expect_err("it is full");
    assert!(error.to_string().contains("context of 20 tokens is full"), "{error}");
    assert_eq!(session.tokens(), before, "the session holds what it held");
    let too_long = vec![4; 21];
    assert!(
        engine.feed_prompt(&mut session, &too_long, Want::Greedy, &mut seen).is_err(),
        "too long a prompt"
    );
}
