//! `--warm`: a run begins with the experts that the one before used most, says the same, and remembers anew.

#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

#[path = "support/program.rs"]
mod program;

use std::fs;
use std::path::Path;

use flint_rt::gpu::list_devices;
use program::{Ran, program};

fn generate(home: &Path, warm: &str) -> Ran {
    let args = ["generate", "fn main() {", "-n", "12", "--pool-slots", "24", "--host-memory", "0", warm];
    let mut command = program(&["FLINT_RT_DEVICE", "FLINT_RT_VALIDATION"]);
    for (variable, folder) in [("XDG_STATE_HOME", "state"), ("XDG_CACHE_HOME", "cache")] {
        command.env(variable, home.join(folder));
    }
    Ran::new(command.args(args).env("HOME", home).output().unwrap())
}

#[test]
fn a_run_begins_with_what_the_last_one_used_most() {
    if list_devices(false).is_ok_and(|devices| devices.is_empty()) || list_devices(false).is_err() {
        println!("SKIPPED: no Vulkan device");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let first = generate(home.path(), "--warm").gives(0);
    assert!(first.stderr.contains("nothing is remembered"), "{}", first.stderr);
    let folder = home.path().join("state/flint-rt/warm");
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("one model, {files:?}") };
    let second = generate(home.path(), "--warm").gives(0);
    assert!(second.stderr.contains("24 experts were read ahead"), "{}", second.stderr);
    assert_eq!(first.stdout, second.stdout, "a warm start changes the time alone");

    // What is not of this model, or nothing at all, is said and written anew.
    fs::write(file, b"{").unwrap();
    let third = generate(home.path(), "--warm").gives(0);
    assert!(third.stderr.contains("is not of this model"), "{}", third.stderr);
    assert_eq!(third.stdout, first.stdout);
    assert!(fs::read(file).unwrap().len() > 10, "remembered anew");

    // Routes of a model of another shape are refused by their numbers.
    let routes = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/routes/flint-mini-code.json");
    generate(home.path(), &format!("--warm={routes}")).refuses(2, "12 layers of 56 experts");
}
