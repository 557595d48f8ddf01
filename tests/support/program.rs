//! The real binary as tests run it: what a run gave, and the caller's settings kept out.

#![allow(dead_code, reason = "each test file uses a part")]

use std::process::{Command, Output};

use serde_json::Value;

/// The binary, without the caller's settings but for those in `keeps`.
pub(crate) fn program(keeps: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flint-rt"));
    for (name, _) in std::env::vars_os() {
        let shown = name.to_string_lossy();
        if shown.starts_with("FLINT_RT_") && !keeps.contains(&&*shown) {
            command.env_remove(&name);
        }
    }
    command
}

/// What a run gave.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn new(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    #[track_caller]
    pub(crate) fn gives(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    /// A refusal: nothing on standard output, a last line that names `what` on standard error.
    #[track_caller]
    pub(crate) fn refuses(self, code: i32, what: &str) {
        let ran = self.gives(code);
        assert_eq!(ran.stdout, "");
        let line = ran.stderr.lines().last().unwrap_or_default();
        assert!(line.starts_with("flint-rt: ") && line.contains(what), "wanted {what:?} in {line:?}");
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}
