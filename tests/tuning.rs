//! Kernels' sizes: chosen by a table, by hand or by measuring, they change the time and nothing that is said.

#[path = "support/nano.rs"]
mod nano;

use std::fs;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::{Engine, TuningSource, tuned};
use flint_rt::kernels::Tuning;
use nano::{open_nano, skip_without_device};

/// A prompt and some tokens.
fn run(engine: &mut Engine) -> Vec<TokenId> {
    nano::reply(engine, 6)
}

#[test]
fn what_was_measured_is_used_until_something_changes() {
    let Some(mut plain) = open_nano(|_| {}) else { return skip_without_device() };
    let table = Tuning::of(plain.gpu().info());
    assert_eq!(plain.tuning().tuning, table);
    assert!(matches!(plain.tuning().source, TuningSource::Table(_)));
    let wanted = run(&mut plain);

    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let other = Tuning { rows_one: 2, rows_many: 2, ..table };
    assert_ne!(other, table);
    let path = tuned::remember(&state, plain.gpu().info(), plain.config(), &other).expect("written");
    let open = |change: &dyn Fn(&mut flint_rt::engine::EngineOptions)| {
        open_nano(|options| {
            options.tuning_dir = Some(state.clone());
            change(options);
        })
        .expect("a device was there before")
    };
    let mut measured = open(&|_| {});
    assert_eq!(measured.tuning().source, TuningSource::Remembered(path.clone()));
    assert_eq!((measured.tuning().tuning, &measured.tuning().note), (other, &None));
    assert_eq!(run(&mut measured), wanted, "rows of a workgroup are summed each for itself");
    assert_eq!(measured.gpu().validation_messages(), Vec::<String>::new(), "validation layers");

    // Where bits are to depend on nothing else, it does not count; a choice by hand does.
    let same = open(&|options| options.is_deterministic = true);
    assert_eq!(same.tuning().tuning, table.deterministic());
    let by_hand = open(&|options| options.tuning_changes = "rows_one=4".parse().expect("a choice"));
    assert_eq!(by_hand.tuning().tuning, Tuning { rows_one: 4, ..other });
    assert!(by_hand.tuning().to_string().contains("by hand"), "{}", by_hand.tuning());

    // Another driver, and half a file: the table's, with a word about it.
    let text = fs::read_to_string(&path).expect("a file");
    let version = plain.gpu().info().driver_version;
    let old = format!("\"driver_version\": {version}");
    assert!(text.contains(&old), "{text}");
    let newer = text.replace(&old, &format!("\"driver_version\": {}", version.wrapping_add(1)));
    for (damaged, word) in [(newer, "driver"), (text[..text.len() / 2].to_owned(), "passed over")] {
        fs::write(&path, damaged).expect("written");
        let engine = open(&|_| {});
        assert_eq!(engine.tuning().tuning, table);
        let note = engine.tuning().note.clone().expect("a note");
        assert!(note.contains(word) && engine.plan().warnings.contains(&note), "{note}");
    }
}
