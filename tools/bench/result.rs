//! One row of a bench: the keys of llama-bench, in its order and with its meaning, then what only a streaming runtime has.
//!
//! A key of llama-bench that has no meaning here holds what it holds there by default. Keys in `Option` are null where nobody
//! measured or knows them; in a row that is read back, a key that is not there counts as not measured. Rates are per second, times in nanoseconds, sizes in bytes unless a key says otherwise.

use serde::{Deserialize, Serialize};

use crate::profile::{KernelRow, Profiled};

/// Counted up when a key changes its meaning or goes; a new key changes nothing.
pub(super) const SCHEMA_VERSION: u32 = 2;

/// A test's result.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Row {
    pub(crate) build_commit: String,
    pub(crate) build_number: u32,
    pub(crate) cpu_info: String,
    pub(crate) gpu_info: String,
    pub(crate) backends: String,
    pub(crate) model_filename: String,
    pub(crate) model_type: String,
    pub(crate) model_size: u64,
    pub(crate) model_n_params: u64,
    /// Tokens of a prompt that go through the layers together, as `n_ubatch`.
    pub(crate) n_batch: u32,
    pub(crate) n_ubatch: u32,
    pub(crate) n_threads: usize,
    pub(crate) cpu_mask: String,
    pub(crate) cpu_strict: bool,
    pub(crate) poll: u32,
    pub(crate) type_k: String,
    pub(crate) type_v: String,
    pub(crate) n_gpu_layers: u32,
    pub(crate) n_cpu_moe: u32,
    pub(crate) split_mode: String,
    pub(crate) main_gpu: usize,
    pub(crate) no_kv_offload: bool,
    pub(crate) flash_attn: bool,
    pub(crate) devices: String,
    pub(crate) tensor_split: String,
    pub(crate) tensor_buft_overrides: String,
    pub(crate) use_mmap: bool,
    /// Whether every file of experts is read past the page cache.
    pub(crate) use_direct_io: bool,
    pub(crate) embeddings: bool,
    pub(crate) no_op_offload: u32,
    pub(crate) no_host: bool,
    pub(crate) n_prompt: u32,
    pub(crate) n_gen: u32,
    pub(crate) n_depth: u32,
    /// When the test began, UTC.
    pub(crate) test_time: String,
    pub(crate) avg_ns: u64,
    pub(crate) stddev_ns: u64,
    pub(crate) avg_ts: f64,
    pub(crate) stddev_ts: f64,
    pub(crate) samples_ns: Vec<u64>,
    pub(crate) samples_ts: Vec<f64>,

    /// [`SCHEMA_VERSION`].
    pub(crate) schema_version: u32,
    pub(crate) program: String,
    pub(crate) build_version: String,
    /// The test's name: `pp512`, `tg128 @ d4096`.
    pub(crate) test: String,
    /// Whether it was ended before all repetitions were done.
    pub(crate) interrupted: bool,
    pub(crate) warmup: bool,
    pub(crate) device_kind: String,
    pub(crate) driver: String,
    /// `store` or `gguf`.
    pub(crate) model_source: String,
    pub(crate) context_len: u32,
    pub(crate) read_path: String,
    pub(crate) host_path: String,
    /// Whether records are compared with checksums.
    pub(crate) checked: bool,
    /// Which tokens were fed.
    pub(crate) tokens: String,
    /// `model`, `routes: NAME`, or `expanded: NAME` with the rule.
    pub(crate) routes: String,
    /// `warm` or `cold`.
    pub(crate) cache: String,
    /// How that was brought about.
    pub(crate) cache_policy: String,
    /// Null, or the drive whose times these are.
    pub(crate) simulated_drive: Option<String>,
    /// Reads that came later than that drive would have given them: with many, the row does not say what that drive would do.
    pub(crate) simulated_late_reads: Option<u64>,

    pub(crate) record_bytes: u64,
    pub(crate) expert_total: u32,
    pub(crate) experts_a_token: u32,
    pub(crate) pool_slots: u32,
    /// Share of all experts that the pool holds.
    pub(crate) pool_share: f64,
    pub(crate) pool_bytes: u64,
    /// Host memory that keeps experts which the pool does not hold.
    pub(crate) host_tier_bytes: u64,
    pub(crate) staging_bytes: u64,

    /// Conversations whose replies took the same steps: counts and rates are of all together.
    pub(crate) n_parallel: u32,
    /// How kernels were cut up, and where that is from.
    pub(crate) tuning: String,
    /// Whether tokens were not to depend on what runs beside them, to the last bit.
    pub(crate) deterministic: bool,

    /// Expert uses, over all repetitions. In a prompt one use serves all tokens of a chunk that picked the expert.
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) evictions: u64,
    pub(crate) hit_rate: Option<f64>,
    pub(crate) samples_hit_rate: Vec<Option<f64>>,
    /// `[model layer, hits, misses]` over all repetitions.
    pub(crate) layer_hits: Vec<(u32, u64, u64)>,
    /// Bytes of records read from the drive, a timed token.
    pub(crate) read_bytes_a_token: f64,
    pub(crate) samples_read_bytes: Vec<u64>,
    /// Bytes read by the time in which at least one read was under way, in 1e9 bytes a second.
    pub(crate) disk_gb_s: Option<f64>,
    /// That, by the drive's own rate.
    pub(crate) disk_share: Option<f64>,
    /// That time, by the timed one: what is left of 1 is the drive's idleness.
    pub(crate) disk_busy_share: f64,
    /// The rate, in 1e9 bytes a second, and where it is from.
    pub(crate) drive_gb_s: Option<f64>,
    pub(crate) drive_profile: String,

    /// Time of a timed token, by what the engine waited for.
    pub(crate) disk_ns_a_token: f64,
    pub(crate) copy_ns_a_token: f64,
    pub(crate) gpu_ns_a_token: f64,
    pub(crate) host_ns_a_token: f64,
    /// Waiting for reads and copies: what a device that held everything would not spend.
    pub(crate) stall_ns_a_token: f64,

    /// Who leaves when a slot is needed.
    pub(crate) policy: String,
    /// Where guesses at experts come from that are read ahead of need, or none.
    pub(crate) prefetch: String,
    pub(crate) prefetch_issued: u64,
    pub(crate) prefetch_used: u64,
    pub(crate) prefetch_wasted: u64,
    /// Guesses that were still being read when they were wanted.
    #[serde(default)]
    pub(crate) prefetch_late: u64,
    /// Share of a layer's picks that were among the guesses made one layer earlier.
    #[serde(default)]
    pub(crate) prefetch_accuracy: Option<f64>,
    /// When drafts of the next tokens were verified; and how many, and how many of them were right.
    #[serde(default)]
    pub(crate) speculate: String,
    #[serde(default)]
    pub(crate) draft_n: u64,
    #[serde(default)]
    pub(crate) draft_n_accepted: u64,
    /// Generated tokens by steps that gave them.
    #[serde(default)]
    pub(crate) tokens_a_step: f64,
    /// Misses that host memory had, guesses left out; and experts copied there as they left their slot.
    #[serde(default)]
    pub(crate) host_hits: u64,
    #[serde(default)]
    pub(crate) host_kept: u64,

    /// Bringing experts, waits for reads included.
    #[serde(default)]
    pub(crate) load_ns_a_token: f64,
    /// Sums of what was read, on all threads together; and of that what the engine's thread summed or waited for.
    #[serde(default)]
    pub(crate) check_ns_a_token: f64,
    #[serde(default)]
    pub(crate) check_waited_ns_a_token: f64,
    /// Of single tokens: submissions that the host waited for, segments (about one a layer) in them, and stops for an expert.
    #[serde(default)]
    pub(crate) submissions_a_token: f64,
    #[serde(default)]
    pub(crate) segments_a_token: f64,
    #[serde(default)]
    pub(crate) stops_a_token: f64,

    /// Tokens a second if nothing but the bytes read took time, at the drive's rate.
    pub(crate) disk_bound_ts: Option<f64>,
    /// Tokens a second if nothing but the bytes of device memory took time; of generated tokens only.
    pub(crate) memory_bound_ts: Option<f64>,
    /// What of device memory a generated token reads, and at which rate; the rate is an estimate for this kind of device. Null for
    /// prompts, whose tokens share what is read.
    pub(crate) memory_bytes_a_token: Option<u64>,
    pub(crate) memory_gb_s: f64,
    pub(crate) memory_rate_source: String,
    /// The lower of the two: `disk` or `memory`.
    pub(crate) bound: Option<String>,
    /// `avg_ts` by that bound.
    pub(crate) bound_share: Option<f64>,

    /// With `--profile`, of an average token of a few more: dispatches by kernel and shape, largest first; their count, the stages in
    /// which they lie, the sum of their times; the token with stamps; and 1 less that sum by `avg_ns` of a token.
    pub(crate) kernels: Vec<KernelRow>,
    pub(crate) dispatches_a_token: Option<f64>,
    pub(crate) stages_a_token: Option<f64>,
    pub(crate) dispatch_ns_a_token: Option<f64>,
    pub(crate) stamped_ns_a_token: Option<f64>,
    pub(crate) dispatch_gap_share: Option<f64>,

    /// What `flint-rt plan` expects for this pool and drive; of generated tokens only.
    pub(crate) plan_ts: Option<f64>,
    pub(crate) plan_hit_rate: Option<f64>,
    /// `avg_ts` by `plan_ts`.
    pub(crate) plan_ratio: Option<f64>,
    /// The same expectation with the hit rate that was measured.
    pub(crate) plan_ts_at_hit_rate: Option<f64>,
    /// Where the plan's times are from: `measured now`, or what stood for that.
    pub(crate) plan_drive: String,
    pub(crate) plan_device: String,
}

impl Row {
    /// Notes what was profiled.
    pub(super) fn set_profile(&mut self, profiled: &Profiled) {
        self.kernels = profiled.rows();
        self.dispatches_a_token = Some(profiled.dispatches_a_token());
        self.stages_a_token = Some(profiled.stages_a_token());
        self.dispatch_ns_a_token = Some(profiled.dispatch_ns_a_token());
        self.stamped_ns_a_token = Some(profiled.stamped_ns_a_token());
        self.dispatch_gap_share = profiled.gap_share();
    }

    /// The lower bound of the two, in tokens a second.
    pub(crate) fn bound_ts(&self) -> Option<f64> {
        let bounds = [self.disk_bound_ts, self.memory_bound_ts];
        bounds.into_iter().flatten().filter(|bound| *bound > 0.0).reduce(f64::min)
    }
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
    fn the_lower_bound_is_the_bound() {
        let mut row = Row { disk_bound_ts: Some(5.0), memory_bound_ts: Some(90.0), ..Row::default() };
        assert_eq!(row.bound_ts(), Some(5.0));
        row.disk_bound_ts = Some(f64::INFINITY);
        assert_eq!(row.bound_ts(), Some(90.0));
        assert_eq!(Row::default().bound_ts(), None);
    }

    #[test]
    fn spread_is_that_of_a_sample() {
        let (mean, spread) = mean_and_spread(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!((mean - 5.0).abs() < 1e-12);
        assert!((spread - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(mean_and_spread(&[3.0]), (3.0, 0.0));
        assert_eq!(mean_and_spread(&[]), (0.0, 0.0));
    }
}
