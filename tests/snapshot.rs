//! A conversation that was taken out of the device and brought back goes on bit for bit as if it had stayed, also where its
//! rings have gone round, in a session of another length, and by way of a file.

#![allow(clippy::missing_assert_message, reason = "a test that panics has failed, and says where")]

#[path = "support/nano.rs"]
mod nano;

use std::sync::Arc;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, Session, Snapshot};
use flint_rt::model::Want;
use nano::{Vectors, open_nano, skip_without_device};

/// With a window of 129 the rings have 176 rows: 400 tokens go round twice.
const CHUNK: u32 = 48;
const TOKENS: usize = 400;

struct Silent;

impl flint_rt::model::prefill::PrefillObserver for Silent {}

fn open(context_len: u32, chunk: u32) -> Option<Engine> {
    open_nano(|options| {
        options.context_len = Some(context_len);
        options.prefill_chunk = Some(chunk);
    })
}

fn feed(engine: &mut Engine, session: &mut Session, ids: &[TokenId]) -> u32 {
    engine.feed_prompt(session, ids, Want::Nothing, &mut Silent).expect("fed").reused
}

/// Greedy tokens from `first` on, with the bits of every logit.
fn go_on(engine: &mut Engine, session: &mut Session, first: TokenId) -> (Vec<TokenId>, Vec<u32>) {
    let (mut tokens, mut bits, mut logits) = (vec![first], Vec::new(), Vec::new());
    for _ in 0..8 {
        let token = *tokens.last().expect("a first one");
        let step = engine.feed_token(session, token, Want::Logits).expect("a step");
        tokens.push(step.greedy.expect("wanted"));
        engine.read_logits(&mut logits);
        bits.extend(logits.iter().map(|logit| logit.to_bits()));
    }
    (tokens, bits)
}

fn assert_same(got: &(Vec<TokenId>, Vec<u32>), wanted: &(Vec<TokenId>, Vec<u32>), what: &str) {
    assert_eq!(got.0, wanted.0, "tokens, {what}");
    assert!(got.1 == wanted.1, "bits of logits, {what}");
}

#[test]
fn what_is_brought_back_goes_on_bit_for_bit() {
    let Some(mut engine) = open(512, CHUNK) else { return skip_without_device() };
    let ids = Vectors::read().heldout_ids(&engine);
    let (ids, next) = (&ids[..TOKENS], ids[TOKENS]);
    let mut session = engine.session().expect("a session");
    // The cut that other conversations would share, made while its rows were there.
    feed(&mut engine, &mut session, &ids[..240]);
    assert!(session.can_continue_at(200) && !session.could_continue_at(200, 100));
    let cut = Arc::new(engine.cut(&session, 200, 0).expect("copied").expect("still there"));
    feed(&mut engine, &mut session, ids);
    assert!(!session.can_continue_at(200));
    assert!(engine.cut(&session, 200, 0).expect("no fault").is_none(), "its rows are overwritten");

    let mut saving = engine.begin_saving(&session, Some(370), &[cut]).expect("something held");
    let mut slices = 1;
    while !engine.save_step(&session, &mut saving).expect("copied") {
        slices += 1;
    }
    assert_eq!(slices, 1, "all of the small model fits a slice");
    let bytes = saving.bytes();
    let snapshot = Arc::new(saving.finish());
    assert_eq!(snapshot.bytes(), bytes);
    assert_eq!(snapshot.tokens(), ids);
    let wanted = go_on(&mut engine, &mut session, next);

    // Into a session that holds something else, and one that is new.
    let more = [ids, &[next]].concat();
    session.reset();
    feed(&mut engine, &mut session, &ids[100..300]);
    assert_eq!(engine.restore(&mut session, &snapshot, &more).expect("restored"), 400);
    assert_eq!(session.tokens(), ids);
    assert_same(&go_on(&mut engine, &mut session, next), &wanted, "in the same session");
    let mut fresh = engine.session().expect("a session");
    assert_eq!(engine.restore(&mut fresh, &snapshot, &more).expect("restored"), 400);
    assert_same(&go_on(&mut engine, &mut fresh, next), &wanted, "in a new session");
    // What comes back is what was taken out: of the rings their last rows, so the same bytes.
    assert_eq!(engine.restore(&mut fresh, &snapshot, &more).expect("restored"), 400);
    let again = Arc::new(engine.snapshot(&fresh).expect("copied"));
    let mut twice = engine.session().expect("a session");
    assert_eq!(engine.restore(&mut twice, &again, &more).expect("restored"), 400);
    assert_same(&go_on(&mut engine, &mut twice, next), &wanted, "of a snapshot of a restored one");

    // Back within the slack: as a session that is rewound there.
    let other = next ^ 1;
    let branch = [&ids[..380], &[other]].concat();
    session.reset();
    feed(&mut engine, &mut session, ids);
    assert_eq!(session.reach(&branch), 380);
    assert_eq!(session.keep_prefix(&branch), 380);
    let wanted_branch = go_on(&mut engine, &mut session, other);
    assert_eq!(engine.restore(&mut fresh, &snapshot, &branch).expect("restored"), 380);
    assert_same(&go_on(&mut engine, &mut fresh, other), &wanted_branch, "380 of 400");
    // Further back there is the cut, and before that nothing.
    let branch = [&ids[..300], &[other]].concat();
    assert_eq!(session.reach(&branch), 0, "the rings have lost it");
    assert_eq!(engine.restore(&mut session, &snapshot, &branch).expect("restored"), 200);
    let got = go_on(&mut engine, &mut session, other);
    fresh.reset();
    feed(&mut engine, &mut fresh, &ids[..200]);
    // Fed in the very chunks of before: 200 is no border of these, and bits may depend on it.
    fresh.reset();
    feed(&mut engine, &mut fresh, &ids[..240]);
    assert_eq!(fresh.keep_prefix(&[&ids[..200], &[other]].concat()), 200);
    let wanted_at_cut = go_on(&mut engine, &mut fresh, other);
    assert_same(&got, &wanted_at_cut, "at the cut");
    // The same by the cut alone, in a session that still has all on its full layers.
    fresh.reset();
    feed(&mut engine, &mut fresh, ids);
    assert_eq!(fresh.reach(&branch), 0);
    let mut rewinding = engine.begin_rewinding(&mut fresh, snapshot.cuts()[0].clone(), 200).expect("a cut");
    while !engine.restore_step(&mut fresh, &mut rewinding).expect("copied") {}
    assert_eq!(fresh.tokens(), &ids[..200]);
    assert_same(&go_on(&mut engine, &mut fresh, other), &wanted_at_cut, "by the cut alone");
    assert_eq!(engine.restore(&mut session, &snapshot, &ids[..150]).expect("restored"), 0);
    assert_eq!(session.tokens(), Vec::<TokenId>::new());
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
    drop((session, fresh, twice));

    // By way of a file into a longer conversation with other rings.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kept");
    snapshot.save(&path, &|| false).expect("written");
    drop(engine);
    let mut engine = open(1024, 64).expect("a device");
    let loaded = Snapshot::load(&path, (engine.snapshot_identity(), &engine.cache_shape())).expect("read");
    assert_eq!(loaded, *snapshot);
    let mut session = engine.session().expect("a session");
    assert_eq!(engine.restore(&mut session, &Arc::new(loaded), &more).expect("restored"), 400);
    assert_same(&go_on(&mut engine, &mut session, next), &wanted, "in another engine");
    // One that is too short is told so.
    drop((session, engine));
    let mut engine = open(256, CHUNK).expect("a device");
    let mut session = engine.session().expect("a session");
    let refused = engine.begin_restoring(&mut session, snapshot.clone(), 400).expect_err("too long");
    assert!(refused.to_string().contains("400 tokens do not fit a context of 256"), "{refused}");
    assert_eq!(engine.restore(&mut session, &snapshot, &ids[..205]).expect("restored"), 200);
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
}

#[test]
fn what_takes_several_slices_comes_back_whole() {
    let Some(mut engine) = open(512, CHUNK) else { return skip_without_device() };
    // So that slices end within planes, and within the pieces of rings that have gone round.
    engine.set_snapshot_slice(100_000);
    let ids = &Vectors::read().heldout_ids(&engine)[..TOKENS];
    let mut session = engine.session().expect("a session");
    feed(&mut engine, &mut session, ids);
    let mut saving = engine.begin_saving(&session, Some(380), &[]).expect("something held");
    let mut slices = 1;
    while !engine.save_step(&session, &mut saving).expect("copied") {
        slices += 1;
    }
    let snapshot = Arc::new(saving.finish());
    // Of 195 rows each; the ring pieces are copied by the row, too.
    assert_eq!(slices, (snapshot.bytes() - 4 * 400).div_ceil(195 * 512));
    let wanted = go_on(&mut engine, &mut session, 7);

    session.reset();
    feed(&mut engine, &mut session, &ids[100..200]);
    let mut restoring = engine.begin_restoring(&mut session, snapshot, 400).expect("it fits");
    assert!(!engine.restore_step(&mut session, &mut restoring).expect("copied"));
    assert_eq!(session.tokens(), Vec::<TokenId>::new(), "nothing until it is whole");
    // Another conversation has steps between the slices.
    let mut other = engine.session().expect("a session");
    feed(&mut engine, &mut other, &ids[..50]);
    while !engine.restore_step(&mut session, &mut restoring).expect("copied") {
        engine.feed_token(&mut other, 7, Want::Greedy).expect("a step");
    }
    assert_eq!(session.tokens(), ids);
    assert_same(&go_on(&mut engine, &mut session, 7), &wanted, "in slices");
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
}
