//! One row of a bench: the keys of llama-bench, in its order and with its meaning, then what only a streaming runtime has.
//!
//! A key of llama-bench that has no meaning here holds what it holds there by default. Keys in `Option` are null where nobody
//! measured or knows them. Rates are per second, times in nanoseconds, sizes in bytes unless a key says otherwise.

use serde::{Deserialize, Serialize};

/// Counted up when a key changes its meaning or goes; a new key changes nothing.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// A test's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) build_commit: String,
    pub(super) build_number: u32,
    pub(super) cpu_info: String,
    pub(super) gpu_info: String,
    pub(super) backends: String,
    pub(super) model_filename: String,
    pub(super) model_type: String,
    pub(super) model_size: u64,
    pub(super) model_n_params: u64,
    /// Tokens of a prompt that go through the layers together, as `n_ubatch`.
    pub(super) n_batch: u32,
    pub(super) n_ubatch: u32,
    pub(super) n_threads: usize,
    pub(super) cpu_mask: String,
    pub(super) cpu_strict: bool,
    pub(super) poll: u32,
    pub(super) type_k: String,
    pub(super) type_v: String,
    pub(super) n_gpu_layers: u32,
    pub(super) n_cpu_moe: u32,
    pub(super) split_mode: String,
    pub(super) main_gpu: usize,
    pub(super) no_kv_offload: bool,
    pub(super) flash_attn: bool,
    pub(super) devices: String,
    pub(super) tensor_split: String,
    pub(super) tensor_buft_overrides: String,
    pub(super) use_mmap: bool,
    /// Whether every file of experts is read past the page cache.
    pub(super) use_direct_io: bool,
    pub(super) embeddings: bool,
    pub(super) no_op_offload: u32,
    pub(super) no_host: bool,
    pub(super) n_prompt: u32,
    pub(super) n_gen: u32,
    pub(super) n_depth: u32,
    /// When the test began, UTC.
    pub(super) test_time: String,
    pub(super) avg_ns: u64,
    pub(super) stddev_ns: u64,
    pub(super) avg_ts: f64,
    pub(super) stddev_ts: f64,
    pub(super) samples_ns: Vec<u64>,
    pub(super) samples_ts: Vec<f64>,

    /// [`SCHEMA_VERSION`].
    pub(super) schema_version: u32,
    pub(super) program: String,
    pub(super) build_version: String,
    /// The test's name: `pp512`, `tg128 @ d4096`.
    pub(super) test: String,
    /// Whether it was ended before all repetitions were done.
    pub(super) interrupted: bool,
    pub(super) warmup: bool,
    pub(super) device_kind: String,
    pub(super) driver: String,
    /// `store` or `gguf`.
    pub(super) model_source: String,
    pub(super) context_len: u32,
    pub(super) read_path: String,
    pub(super) host_path: String,
    /// Whether records are compared with checksums.
    pub(super) checked: bool,
    /// Which tokens were fed.
    pub(super) tokens: String,
    /// `model`, `routes: NAME`, or `expanded: NAME` with the rule.
    pub(super) routes: String,
    /// `warm` or `cold`.
    pub(super) cache: String,
    /// How that was brought about.
    pub(super) cache_policy: String,
    /// Null, or the drive whose times these are.
    pub(super) simulated_drive: Option<String>,
    /// Reads that came later than that drive would have given them: with many, the row does not say what that drive would do.
    pub(super) simulated_late_reads: Option<u64>,

    pub(super) record_bytes: u64,
    pub(super) expert_total: u32,
    pub(super) experts_a_token: u32,
    pub(super) pool_slots: u32,
    /// Share of all experts that the pool holds.
    pub(super) pool_share: f64,
    pub(super) pool_bytes: u64,
    /// Host memory that keeps experts which the pool does not hold.
    pub(super) host_tier_bytes: u64,
    pub(super) staging_bytes: u64,

    /// Expert uses, over all repetitions. In a prompt one use serves all tokens of a chunk that picked the expert.
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) evictions: u64,
    pub(super) hit_rate: Option<f64>,
    pub(super) samples_hit_rate: Vec<Option<f64>>,
    /// `[model layer, hits, misses]` over all repetitions.
    #[serde(default)]
    pub(super) layer_hits: Vec<(u32, u64, u64)>,
    /// Bytes of records read from the drive, a timed token.
    pub(super) read_bytes_a_token: f64,
    pub(super) samples_read_bytes: Vec<u64>,
    /// Bytes read by the time spent waiting for reads, in 1e9 bytes a second.
    pub(super) disk_gb_s: Option<f64>,
    /// That, by the drive's own rate.
    pub(super) disk_share: Option<f64>,
    /// The rate, in 1e9 bytes a second, and where it is from.
    pub(super) drive_gb_s: Option<f64>,
    pub(super) drive_profile: String,

    /// Time of a timed token, by what the engine waited for.
    pub(super) disk_ns_a_token: f64,
    pub(super) copy_ns_a_token: f64,
    pub(super) gpu_ns_a_token: f64,
    pub(super) host_ns_a_token: f64,
    /// Waiting for reads and copies: what a device that held everything would not spend.
    pub(super) stall_ns_a_token: f64,

    /// Who leaves when a slot is needed.
    pub(super) policy: String,
    /// Where guesses at experts come from that are read ahead of need, or none.
    pub(super) prefetch: String,
    pub(super) prefetch_issued: u64,
    pub(super) prefetch_used: u64,
    pub(super) prefetch_wasted: u64,

    /// Tokens a second if nothing but the bytes read took time, at the drive's rate.
    pub(super) disk_bound_ts: Option<f64>,
    /// Tokens a second if nothing but the bytes of device memory took time; of generated tokens only.
    pub(super) memory_bound_ts: Option<f64>,
    /// What of device memory a token reads, and at which rate; the rate is an estimate for this kind of device.
    pub(super) memory_bytes_a_token: u64,
    pub(super) memory_gb_s: f64,
    pub(super) memory_rate_source: String,
    /// The lower of the two: `disk` or `memory`.
    pub(super) bound: Option<String>,
    /// `avg_ts` by that bound.
    pub(super) bound_share: Option<f64>,

    /// What `flint-rt plan` expects for this pool and drive; of generated tokens only.
    pub(super) plan_ts: Option<f64>,
    pub(super) plan_hit_rate: Option<f64>,
    /// `avg_ts` by `plan_ts`.
    pub(super) plan_ratio: Option<f64>,
    /// The same expectation with the hit rate that was measured.
    pub(super) plan_ts_at_hit_rate: Option<f64>,
    pub(super) plan_drive: String,
}

/// Mean and sample standard deviation; 0 for the latter where there is one value.
pub(super) fn mean_and_spread(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / count;
    if values.len() == 1 {
        return (mean, 0.0);
    }
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_that_of_a_sample() {
        let (mean, spread) = mean_and_spread(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!((mean - 5.0).abs() < 1e-12);
        assert!((spread - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(mean_and_spread(&[3.0]), (3.0, 0.0));
        assert_eq!(mean_and_spread(&[]), (0.0, 0.0));
    }
}
