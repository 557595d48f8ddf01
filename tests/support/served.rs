//! The real binary, serving, as tests run it.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that panics has failed, and says where")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use tempfile::TempDir;

use crate::http_client::Client;
use crate::program::{Ran, program};

/// Compiled kernels, for all tests of this file.
pub(crate) static CACHE: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

pub(crate) fn command(home: &TempDir, args: &[&str]) -> Command {
    let mut command = program(&["FLINT_RT_DEVICE", "FLINT_RT_VALIDATION"]);
    command
        .args(args)
        .env("HOME", home.path())
        .env("XDG_DATA_HOME", home.path().join("data"))
        .env("XDG_CACHE_HOME", CACHE.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(crate) fn run(args: &[&str]) -> Ran {
    Ran::new(command(&tempfile::tempdir().unwrap(), args).output().unwrap())
}

/// The program, serving.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) client: Client,
    stderr: BufReader<std::process::ChildStderr>,
    /// What it said until it was ready.
    pub(crate) said: String,
    _home: TempDir,
}

impl Server {
    /// Waits until it is ready; none where there is no device.
    pub(crate) fn start(test: &str, args: &[&str]) -> Option<Self> {
        if run(&["devices"]).code != Some(0) {
            eprintln!("SKIPPED {test}, no Vulkan device");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let command = command(&home, &[&["serve", "--port", "0"], args].concat());
        Some(Self::run(command, home))
    }

    /// Waits until what `command` runs is ready.
    #[expect(clippy::zombie_processes, reason = "it is waited for when the server is dropped")]
    pub(crate) fn run(mut command: Command, home: TempDir) -> Self {
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let (mut said, mut address) = (String::new(), None);
        loop {
            let mut line = String::new();
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it ended: {said}");
            if let Some(found) = line.trim().strip_prefix("flint-rt: listening on http://") {
                address = Some(found.parse().unwrap());
            }
            said.push_str(&line);
            if line.starts_with("flint-rt: ready") {
                // Where it listens on a socket file, nobody asks at an address.
                let client = Client(address.unwrap_or_else(|| ([127, 0, 0, 1], 0).into()));
                return Self { child, client, stderr, said, _home: home };
            }
        }
    }

    /// Asks it to end, and gives its exit code and all that it said.
    pub(crate) fn end(mut self, signal: &str) -> (Option<i32>, String) {
        // A shell has it built in; not every machine has the program.
        let kill = format!("kill {signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let mut said = std::mem::take(&mut self.said);
        self.stderr.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
