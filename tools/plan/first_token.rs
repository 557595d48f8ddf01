//! How long an agent's first prompt keeps the drive busy before the first token, on drives of several speeds. Pure.
//!
//! A prompt of this length is what an agent sends before any work: instructions, tools, some files. Its next turns begin with the same
//! tokens, which are kept, and cost what is new.

use flint_rt::engine::MemoryPlan;
use flint_rt::engine::expectation::chunk_read_bytes;
use flint_rt::model::hparams::FlintConfig;
use serde_json::{Value, json};

/// Tokens of the prompt.
const PROMPT_TOKENS: u32 = 10_000;

/// Bytes a second of the drives: a SATA or an old NVMe drive, a middling one, a fast one.
const DRIVE_RATES: [f64; 3] = [2e9, 3.5e9, 7e9];

/// What such a prompt reads.
pub(super) struct FirstToken {
    /// Tokens that go through a layer together.
    chunk: u32,
    read_bytes: f64,
}

impl FirstToken {
    /// With nothing resident when it begins. Each chunk reads its experts again, unless all of them are kept.
    pub(super) fn new(config: &FlintConfig, plan: &MemoryPlan) -> Self {
        let chunk = plan.prefill_chunk.max(1);
        let keeps_all = plan.pool_slots + plan.host.slots >= plan.expert_total;
        let read_bytes = match keeps_all {
            true => chunk_read_bytes(config, PROMPT_TOKENS),
            false => {
                let whole = f64::from(PROMPT_TOKENS / chunk) * chunk_read_bytes(config, chunk);
                whole + chunk_read_bytes(config, PROMPT_TOKENS % chunk)
            }
        };
        Self { chunk, read_bytes }
    }

    /// For people.
    pub(super) fn line(&self) -> String {
        let seconds: Vec<String> =
            DRIVE_RATES.iter().map(|rate| format!("{:.1}", self.read_bytes / rate)).collect();
        let rates: Vec<String> = DRIVE_RATES.iter().map(|rate| (rate / 1e9).to_string()).collect();
        format!(
            "{} s of a drive of {} GB/s: an agent's first {PROMPT_TOKENS} tokens in chunks of {} read {:.1} GB; what kernels \
             take is not in it",
            seconds.join(", "),
            rates.join(", "),
            self.chunk,
            self.read_bytes / 1e9,
        )
    }

    pub(super) fn json(&self) -> Value {
        let drives = DRIVE_RATES
            .iter()
            .map(|rate| json!({ "bytes_a_second": rate, "drive_seconds": self.read_bytes / rate }));
        json!({
            "tokens": PROMPT_TOKENS,
            "chunk_tokens": self.chunk,
            "read_bytes": self.read_bytes,
            "drives": drives.collect::<Value>(),
        })
    }
}
