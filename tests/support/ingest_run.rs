//! `flint-rt ingest` in folders of its own, with no proxy, token or certificate but those that a test gives.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(
    clippy::unwrap_used,
    clippy::missing_assert_message,
    reason = "a test that panics has failed, and says where"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use flint_rt::store::Sha256Digest;
use tempfile::TempDir;

pub(crate) const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/flint-nano-q4_1.gguf");

pub(crate) fn model() -> Arc<Vec<u8>> {
    Arc::new(std::fs::read(MODEL).unwrap())
}

pub(crate) fn sha256_of(bytes: &[u8]) -> String {
    Sha256Digest::of(bytes).to_string()
}

/// A folder for stores, and a home that has no token.
pub(crate) struct Home(pub(crate) TempDir);

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn new(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ran =
            Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
        assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
        for said in [&ran.stdout, &ran.stderr] {
            assert!(
                !["hf_secret", "signed_secret", "proxy_secret"].iter().any(|secret| said.contains(secret)),
                "a secret in {said}"
            );
        }
        ran
    }

    #[track_caller]
    pub(crate) fn gives(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn says(self, words: &str) -> Self {
        let line = self.stderr.lines().last().unwrap_or_default();
        assert!(line.starts_with("flint-rt: ") && line.contains(words), "wanted {words:?} in {line:?}");
        self
    }
}

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn command(&self, source: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flint-rt"));
        for (name, _) in std::env::vars_os() {
            // The caller's hub, proxies and settings are not under test.
            let upper = name.to_string_lossy().to_uppercase();
            if ["HF_", "FLINT_RT_", "HUGGING", "SSL_CERT"].iter().any(|start| upper.starts_with(start))
                || upper.ends_with("_PROXY")
            {
                command.env_remove(name);
            }
        }
        command
            .arg("ingest")
            .args((!source.is_empty()).then_some(source))
            .args(args)
            .env("HOME", self.0.path())
            .env("XDG_CACHE_HOME", self.0.path().join("cache"))
            .env("FLINT_RT_STORE_DIR", self.0.path().join("stores"))
            .envs([
                ("FLINT_RT_RETRIES", "3"),
                ("FLINT_RT_RETRY_WAIT", "0.01"),
                ("FLINT_RT_STALL_TIMEOUT", "0.5"),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, source: &str, args: &[&str]) -> Ran {
        Ran::new(self.command(source, args).output().unwrap())
    }

    /// Where the store is to be.
    pub(crate) fn store(&self) -> PathBuf {
        self.0.path().join("stores/flint-nano-q4_1")
    }

    /// What is in it.
    pub(crate) fn files(&self) -> BTreeMap<String, Vec<u8>> {
        files_in(&self.store())
    }
}

pub(crate) fn files_in(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

/// The store as it is made from the file itself.
pub(crate) fn wanted() -> BTreeMap<String, Vec<u8>> {
    let home = Home::new();
    home.run(MODEL, &[]).gives(0);
    home.files()
}
