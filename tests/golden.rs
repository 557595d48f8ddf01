//! The bundled model against the reference vectors: the right tokens, by every way through the engine.
//!
//! The vectors were made by an independent forward pass in double precision (`tests/vectors/prompts.json`); tolerances and
//! near ties are stated in them. One engine a test, with the validation layers on: not one message may come.

#[path = "support/nano.rs"]
mod nano;

use flint_rt::engine::{EngineOptions, Session};
use flint_rt::gpu::DeviceKind;
use flint_rt::kernels::{Fusion, Many, ManyForm, Tuning};
use flint_rt::model::Want;
use nano::{Collected, Prompt, Vectors, open_nano, skip_without_device};

/// Feeds a prompt in the chunks that the engine was opened for, and checks all that the vectors know of it.
fn check_prompt(
    engine: &mut flint_rt::engine::Engine,
    session: &mut Session,
    prompt: &Prompt,
    vectors: &Vectors,
) {
    session.reset();
    let mut seen = Collected::default();
    let output =
        engine.feed_prompt(session, &prompt.ids, Want::Logits, &mut seen).expect("the prompt is fed");
    assert_eq!(output.fed as usize, prompt.ids.len(), "{}: nothing is re-used", prompt.name);

    let name = &prompt.name;
    prompt.check_top(&seen.last_logits, vectors);
    let mut mean = 0.0;
    for logit in &seen.last_logits {
        mean += f64::from(*logit) / seen.last_logits.len() as f64;
    }
    assert!((mean - prompt.logit_mean).abs() < vectors.logit_tolerance, "{name}: mean logit {mean}");
    for (position, (&wanted, &got)) in prompt.argmax.iter().zip(&seen.argmax).enumerate() {
        if !prompt.argmax_near_tie.contains(&position) {
            assert_eq!(got, wanted, "{name}: greedy token after position {position}");
        }
    }
    assert_eq!(seen.argmax.len(), prompt.ids.len(), "{name}: every position has its logits");
    prompt.check_routes(&seen.last_routes, vectors);

    let mut token = output.step.greedy.expect("logits were wanted");
    for (step, &wanted) in prompt.greedy[..prompt.assert_greedy].iter().enumerate() {
        assert_eq!(token, wanted, "{name}: greedy token {step}");
        token = engine.feed_token(session, token, Want::Greedy).expect("a step").greedy.expect("wanted");
    }
}

fn check_all(prefill_chunk: u32) {
    check_all_up_to(usize::MAX, |options| options.prefill_chunk = Some(prefill_chunk));
}

/// The prompts of at most `tokens_max` tokens.
fn check_all_up_to(tokens_max: usize, change: impl FnOnce(&mut EngineOptions)) {
    let Some(mut engine) = open_nano(change) else { return skip_without_device() };
    let vectors = Vectors::read();
    let mut session = engine.session().expect("a session");
    for prompt in vectors.prompts.iter().filter(|prompt| prompt.ids.len() <= tokens_max) {
        check_prompt(&mut engine, &mut session, prompt, &vectors);
    }
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
}

#[test]
fn every_prompt_in_one_chunk() {
    check_all(1_100);
}

#[test]
fn every_prompt_in_chunks_of_64() {
    check_all(64);
}

/// The forms of a prompt's products, whichever of them the device takes by itself, in chunks with a last one that is short.
#[test]
fn every_prompt_by_every_form_of_products() {
    let Some(engine) = open_nano(|_| {}) else { return skip_without_device() };
    let info = engine.gpu().info().clone();
    drop(engine);
    let vectors = Vectors::read();
    for form in [ManyForm::Registers, ManyForm::Tiles, ManyForm::CooperativeMatrix] {
        if form == ManyForm::CooperativeMatrix && info.matrix.is_none() {
            println!("SKIPPED: the device has no cooperative matrices");
            continue;
        }
        let opened = open_nano(|options| {
            options.prefill_chunk = Some(72);
            options.tuning = Some(Tuning::of(&info).with_form(&info, form));
        });
        let mut engine = opened.expect("the device opened before");
        let mut session = engine.session().expect("a session");
        for prompt in &vectors.prompts {
            check_prompt(&mut engine, &mut session, prompt, &vectors);
        }
        assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers, {form}");
    }
}

#[test]
fn every_prompt_in_chunks_of_7() {
    check_all(7);
}

#[test]
fn every_prompt_by_decode_alone() {
    check_all(1);
}

/// Every form of a next token's layer with a GPU's sizes, but for products of prompts, whose large tiles a software device compiles for
/// minutes; few slots, so that steps stop and go on within a layer. One prompt reaches beyond the window of the sliding layers, in the form that software devices do not take by themselves.
#[test]
fn every_prompt_by_decode_alone_in_every_fusion() {
    for (fusion, tokens_max) in [(Fusion::Nothing, 13), (Fusion::Stages, 13), (Fusion::StagesAndNorms, 60)] {
        check_all_up_to(tokens_max, |options| {
            let many = Many::new(ManyForm::Tiles, DeviceKind::Software);
            options.prefill_chunk = Some(1);
            options.pool_slots = Some(24);
            options.tuning = Some(Tuning { fusion, many, ..Tuning::for_device(DeviceKind::Discrete) });
        });
    }
}

#[test]
fn perplexity_of_a_text_that_no_model_has_seen() {
    let Some(mut engine) = open_nano(|_| {}) else { return skip_without_device() };
    let vectors = Vectors::read();
    let ids = vectors.heldout_ids(&engine);
    let mut session = engine.session().expect("a session");
    let mut seen = nano::Losses::new(&ids);
    engine
        .feed_prompt(&mut session, &ids[..ids.len() - 1], Want::Nothing, &mut seen)
        .expect("the text is fed");
    for (count, wanted) in vectors.loss_first.iter().chain([&(ids.len() - 1, vectors.loss)]) {
        let loss = seen.losses[..*count].iter().sum::<f64>() / *count as f64;
        assert!(
            (loss - wanted).abs() < vectors.loss_tolerance,
            "first {count}: loss {loss}, wanted {wanted}"
        );
    }
    assert_eq!(engine.gpu().validation_messages(), Vec::<String>::new(), "validation layers");
}
