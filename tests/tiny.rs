//! A tiny model made from a seed, whose four layers have every combination of window and rotation, against vectors that an
//! independent forward pass in double precision made from the same file (`tests/vectors/tiny.json`).
//!
//! `cargo test --test tiny -- --ignored` writes the model to the folder that `FLINT_RT_TINY_DIR` names.

#[path = "support/nano.rs"]
mod nano;
#[path = "support/tiny_gguf.rs"]
mod tiny_gguf;

use std::path::{Path, PathBuf};

use flint_rt::engine::EngineError;
use flint_rt::model::{ModelError, Want};
use nano::{Collected, Vectors, open_nano, skip_without_device};

const SEED: u64 = 1;

fn write_tiny(folder: &Path, change: impl FnOnce(&mut tiny_gguf::GgufWriter)) -> PathBuf {
    let path = folder.join("tiny.gguf");
    let mut writer = tiny_gguf::tiny_flint(SEED);
    change(&mut writer);
    std::fs::write(&path, writer.bytes()).expect("the model is written");
    path
}

#[test]
#[ignore = "writes the model for whoever makes the vectors"]
fn write_the_model() {
    let folder = std::env::var_os("FLINT_RT_TINY_DIR").expect("FLINT_RT_TINY_DIR names a folder");
    write_tiny(Path::new(&folder), |_| {});
}

#[test]
fn windows_and_rotation_are_independent() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write_tiny(folder.path(), |_| {});
    let vectors = Vectors::parse(include_str!("vectors/tiny.json"));
    for chunk in [1, 5, 64] {
        let opened = open_nano(|options| {
            options.model = path.clone();
            options.prefill_chunk = Some(chunk);
            options.pool_slots = Some(3);
        });
        let Some(mut engine) = opened else { return skip_without_device() };
        let kinds: Vec<_> = engine.config().layers.iter().map(|l| (l.window.is_some(), l.rope)).collect();
        for kind in [(true, true), (true, false), (false, true), (false, false)] {
            assert!(kinds.contains(&kind), "no layer with window, rotation = {kind:?}");
        }
        let mut session = engine.session().expect("a session");
        for prompt in &vectors.prompts {
            session.reset();
            let mut seen = Collected::of(3);
            let output = engine.feed_prompt(&mut session, &prompt.ids, Want::Logits, &mut seen).expect("fed");
            prompt.check_top(&seen.last_logits, &vectors);
            prompt.check_routes(&seen.last_routes, &vectors);
            let mut token = output.step.greedy.expect("wanted");
            for &wanted in &prompt.greedy[..prompt.assert_greedy] {
                assert_eq!(token, wanted, "{}, chunks of {chunk}", prompt.name);
                token = engine
                    .feed_token(&mut session, token, Want::Greedy)
                    .expect("a step")
                    .greedy
                    .expect("wanted");
            }
        }
        assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
    }
}

#[test]
fn weights_that_are_not_finite_fail_the_request_and_not_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    // One token's row is NaN: sequences without it are sound.
    let broken = 40_usize;
    let path = write_tiny(folder.path(), |writer| {
        let table = writer.tensor("token_embd.weight");
        let row_bytes = 4 * usize::try_from(table.dims[0]).expect("a width");
        for value in table.data[broken * row_bytes..(broken + 1) * row_bytes].chunks_exact_mut(4) {
            value.copy_from_slice(&f32::NAN.to_le_bytes());
        }
    });
    let Some(mut engine) = open_nano(|options| options.model = path) else { return skip_without_device() };
    let mut session = engine.session().expect("a session");
    let mut observer = flint_rt::model::prefill::NoObserver;
    let sound = engine.feed_prompt(&mut session, &[50, 51, 52], Want::Greedy, &mut observer).expect("sound");
    for ids in [&[50, 51, 40, 52][..], &[40]] {
        session.reset();
        let error =
            engine.feed_prompt(&mut session, ids, Want::Greedy, &mut observer).expect_err("not finite");
        assert!(matches!(error, EngineError::Model(ModelError::NotFinite { .. })), "{error}");
        assert!(session.tokens().is_empty(), "the session is empty");
        let again =
            engine.feed_prompt(&mut session, &[50, 51, 52], Want::Greedy, &mut observer).expect("sound");
        assert_eq!(again.step, sound.step, "the next request is not touched");
    }
}
