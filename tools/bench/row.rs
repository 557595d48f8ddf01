//! From what was measured to a [`Row`]. Pure but for the questions to an open engine.

use flint_rt::disk::DriveModel;
use flint_rt::engine::expectation::{DeviceCost, Expectation, TokenCost};
use flint_rt::engine::hit_curve::{Hits, Routes};
use flint_rt::engine::{Engine, SpeculateStats, TimeSplit};
use flint_rt::expert::Policy;
use flint_rt::store::SourceKind;

use super::case::Case;
use super::drive::Drive;
use super::facts::{self, ModelFacts};
use super::measure::{Measured, Sample, rate};
use super::plan::{Planner, step_cost};
use super::result::{Row, SCHEMA_VERSION, mean_and_spread};

/// What all tests of an open engine have in common.
pub(super) struct Setting {
    pub(super) model: ModelFacts,
    pub(super) drive: Drive,
    pub(super) simulated: Option<DriveModel>,
    /// Which tokens, and whose picks.
    pub(super) tokens: String,
    pub(super) routes: String,
    pub(super) is_cold: bool,
    pub(super) is_deterministic: bool,
    pub(super) has_warmup: bool,
    pub(super) policy: Policy,
}

/// Sums over all repetitions.
struct Sums {
    tokens: f64,
    hits: u64,
    misses: u64,
    host_hits: u64,
    evictions: u64,
    read_bytes: u64,
    ns: u64,
    disk_busy_ns: u64,
    late_reads: u64,
    guesses_issued: u64,
    guesses_used: u64,
    guesses_wasted: u64,
    split: TimeSplit,
    load_ns: u64,
    check_ns: u64,
    check_waited_ns: u64,
    late_hits: u64,
    guessed_at: u64,
    guessed_right: u64,
    kept: u64,
    speculate: SpeculateStats,
    submissions: u64,
    segments: u64,
    stops: u64,
}

impl Sums {
    fn new(case: Case, samples: &[Sample]) -> Self {
        let sum = |of: fn(&Sample) -> u64| samples.iter().map(of).sum::<u64>();
        Self {
            tokens: (case.tokens() * samples.len() as u64) as f64,
            hits: sum(|sample| sample.hits),
            misses: sum(|sample| sample.misses),
            host_hits: sum(|sample| sample.host_hits),
            evictions: sum(|sample| sample.evictions),
            read_bytes: sum(|sample| sample.read_bytes),
            ns: sum(|sample| sample.ns),
            disk_busy_ns: sum(|sample| sample.disk_busy_ns),
            late_reads: sum(|sample| sample.late_reads),
            guesses_issued: sum(|sample| sample.guesses_issued),
            guesses_used: sum(|sample| sample.guesses_used),
            guesses_wasted: sum(|sample| sample.guesses_wasted),
            split: TimeSplit {
                disk_ns: sum(|sample| sample.split.disk_ns),
                copy_ns: sum(|sample| sample.split.copy_ns),
                gpu_ns: sum(|sample| sample.split.gpu_ns),
                host_ns: sum(|sample| sample.split.host_ns),
            },
            load_ns: sum(|sample| sample.telemetry.stream.load_ns),
            check_ns: sum(|sample| sample.telemetry.checks.ns),
            check_waited_ns: sum(|sample| sample.telemetry.checks.waited_ns),
            late_hits: sum(|sample| sample.telemetry.inflow.guesses_used_late),
            guessed_at: sum(|sample| sample.telemetry.stream.picks_guessed_at),
            guessed_right: sum(|sample| sample.telemetry.stream.picks_guessed_right),
            kept: sum(|sample| sample.telemetry.inflow.kept),
            speculate: samples
                .iter()
                .map(|sample| sample.telemetry.speculate)
                .fold(SpeculateStats::default(), SpeculateStats::plus),
            submissions: sum(|sample| sample.telemetry.decode.submissions),
            segments: sum(|sample| sample.telemetry.decode.segments),
            stops: sum(|sample| sample.telemetry.decode.stops),
        }
    }
}

/// The bounds of a test, in tokens a second.
#[derive(Debug, Clone, PartialEq)]
struct Bounds {
    disk: Option<f64>,
    memory: Option<f64>,
}

impl Bounds {
    /// The lower one and its name.
    fn lowest(&self) -> Option<(&'static str, f64)> {
        let known = [("disk", self.disk), ("memory", self.memory)];
        let known = known.into_iter().filter_map(|(name, bound)| Some((name, bound?)));
        known.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

impl Row {
    /// The row of `case`, begun at `test_time`, of which at least one repetition was finished.
    pub(super) fn new(
        engine: &Engine,
        setting: &Setting,
        case: Case,
        measured: &Measured,
        planner: &Planner,
        test_time: String,
    ) -> Self {
        let (config, plan, paths) = (engine.config(), engine.plan(), engine.paths());
        let info = engine.gpu().info();
        let samples = &measured.samples;
        let sums = Sums::new(case, samples);
        let samples_ns: Vec<u64> = samples.iter().map(|sample| sample.ns).collect();
        let samples_ts: Vec<f64> =
            samples_ns.iter().map(|&ns| case.tokens() as f64 * 1e9 / ns.max(1) as f64).collect();
        let (avg_ns, stddev_ns) =
            mean_and_spread(&samples_ns.iter().map(|&ns| ns as f64).collect::<Vec<_>>());
        let (avg_ts, stddev_ts) = mean_and_spread(&samples_ts);

        let is_reply = case.is_reply();
        let token = TokenCost::new(config, plan.resident_bytes, case.position());
        let device = DeviceCost::estimate(info.kind, facts::threads());
        let read_bytes_a_token = sums.read_bytes as f64 / sums.tokens;
        let bounds = Bounds {
            disk: setting
                .drive
                .rate
                .filter(|_| read_bytes_a_token > 0.0)
                .map(|rate| rate / read_bytes_a_token),
            memory: is_reply.then(|| device.memory_rate / token.device_bytes as f64),
        };
        let bound = bounds.lowest();
        let disk_rate = (sums.disk_busy_ns > 0 && sums.read_bytes > 0)
            .then(|| sums.read_bytes as f64 * 1e9 / sums.disk_busy_ns as f64);
        let measured_hits = rate(sums.hits, sums.misses);
        let plan_hits = Hits::of(plan.pool_slots, plan.host.slots, plan.expert_total, Routes::Mixed);
        let (step, plan_device) = step_cost(engine, info.kind, &token, planner.found().as_ref());
        let (drive_cost, plan_drive) = planner.drive(&setting.drive);
        let expect = |hits| Expectation::with_host(&token, &step, &drive_cost, hits).tokens_a_second();
        let uses = (sums.hits + sums.misses) as f64;
        let plan_ts = is_reply.then(|| expect(plan_hits));
        let a_token = |ns: u64| ns as f64 / sums.tokens;

        Self {
            build_commit: facts::BUILD_COMMIT.to_owned(),
            build_number: 0,
            cpu_info: facts::cpu(),
            gpu_info: info.title(),
            backends: "Vulkan".to_owned(),
            model_filename: setting.model.filename.clone(),
            model_type: setting.model.kind.clone(),
            model_size: setting.model.size_bytes,
            model_n_params: setting.model.params,
            n_batch: plan.prefill_chunk,
            n_ubatch: plan.prefill_chunk,
            n_threads: facts::threads(),
            cpu_mask: "0x0".to_owned(),
            cpu_strict: false,
            poll: 0,
            type_k: "f16".to_owned(),
            type_v: "f16".to_owned(),
            n_gpu_layers: config.layer_count,
            n_cpu_moe: 0,
            split_mode: "none".to_owned(),
            main_gpu: info.index,
            no_kv_offload: false,
            flash_attn: true,
            devices: info.name.clone(),
            tensor_split: "0.00".to_owned(),
            tensor_buft_overrides: "none".to_owned(),
            use_mmap: false,
            use_direct_io: paths.is_direct,
            embeddings: false,
            no_op_offload: 0,
            no_host: false,
            n_prompt: case.n_prompt,
            n_gen: case.n_gen,
            n_depth: case.n_depth,
            test_time,
            avg_ns: whole(avg_ns),
            stddev_ns: whole(stddev_ns),
            avg_ts,
            stddev_ts,
            samples_ns,
            samples_ts,
            schema_version: SCHEMA_VERSION,
            program: "flint-rt".to_owned(),
            build_version: env!("CARGO_PKG_VERSION").to_owned(),
            test: case.to_string(),
            interrupted: measured.is_interrupted,
            warmup: setting.has_warmup,
            device_kind: info.kind.to_string(),
            driver: info.driver.clone(),
            model_source: match setting.model.source {
                SourceKind::Store => "store",
                SourceKind::Gguf => "gguf",
            }
            .to_owned(),
            context_len: plan.context_len,
            read_path: paths.transport.read.path.to_string(),
            host_path: paths.transport.host_path.to_string(),
            checked: paths.is_checked,
            tokens: setting.tokens.clone(),
            routes: setting.routes.clone(),
            cache: if setting.is_cold { "cold" } else { "warm" }.to_owned(),
            cache_policy: cache_policy(setting, measured.buffered_files),
            simulated_drive: setting.simulated.map(|model| model.to_string()),
            simulated_late_reads: setting.simulated.map(|_| sums.late_reads),
            record_bytes: config.record_bytes(),
            expert_total: plan.expert_total,
            experts_a_token: plan.experts_a_token,
            pool_slots: plan.pool_slots,
            pool_share: f64::from(plan.pool_slots) / f64::from(plan.expert_total),
            pool_bytes: plan.pool_bytes,
            host_tier_bytes: plan.host.bytes(),
            staging_bytes: plan.staging_bytes,
            n_parallel: case.n_parallel,
            tuning: engine.tuning().to_string(),
            deterministic: setting.is_deterministic,
            hits: sums.hits,
            misses: sums.misses,
            evictions: sums.evictions,
            hit_rate: measured_hits,
            samples_hit_rate: samples.iter().map(Sample::hit_rate).collect(),
            read_bytes_a_token,
            samples_read_bytes: samples.iter().map(|sample| sample.read_bytes).collect(),
            disk_gb_s: disk_rate.map(|rate| rate / 1e9),
            disk_share: disk_rate.zip(setting.drive.rate).map(|(rate, of)| rate / of),
            disk_busy_share: sums.disk_busy_ns as f64 / sums.ns.max(1) as f64,
            drive_gb_s: setting.drive.rate.map(|rate| rate / 1e9),
            drive_profile: setting.drive.profile.clone(),
            disk_ns_a_token: a_token(sums.split.disk_ns),
            copy_ns_a_token: a_token(sums.split.copy_ns),
            gpu_ns_a_token: a_token(sums.split.gpu_ns),
            host_ns_a_token: a_token(sums.split.host_ns),
            stall_ns_a_token: a_token(sums.split.disk_ns + sums.split.copy_ns),
            policy: setting.policy.to_string(),
            prefetch: if engine.prefetches() { "next router" } else { "none" }.to_owned(),
            prefetch_issued: sums.guesses_issued,
            prefetch_used: sums.guesses_used,
            prefetch_wasted: sums.guesses_wasted,
            prefetch_late: sums.late_hits,
            prefetch_accuracy: (sums.guessed_at > 0)
                .then(|| sums.guessed_right as f64 / sums.guessed_at as f64),
            speculate: engine.speculates().to_string(),
            draft_n: sums.speculate.drafted,
            draft_n_accepted: sums.speculate.accepted,
            tokens_a_step: sums.speculate.tokens_a_step(u64::from(case.n_gen) * samples.len() as u64),
            host_hits: sums.host_hits,
            host_kept: sums.kept,
            load_ns_a_token: a_token(sums.load_ns),
            check_ns_a_token: a_token(sums.check_ns),
            check_waited_ns_a_token: a_token(sums.check_waited_ns),
            submissions_a_token: a_token(sums.submissions),
            segments_a_token: a_token(sums.segments),
            stops_a_token: a_token(sums.stops),
            disk_bound_ts: bounds.disk,
            memory_bound_ts: bounds.memory,
            memory_bytes_a_token: is_reply.then_some(token.device_bytes),
            memory_gb_s: device.memory_rate / 1e9,
            memory_rate_source: format!("estimate for a {}", info.kind),
            bound: bound.map(|(name, _)| name.to_owned()),
            bound_share: bound.map(|(_, bound)| avg_ts / bound),
            plan_ts,
            plan_hit_rate: is_reply.then_some(plan_hits.device),
            plan_ratio: plan_ts.map(|plan_ts| avg_ts / plan_ts),
            plan_ts_at_hit_rate: measured_hits
                .filter(|_| is_reply)
                .map(|device| expect(Hits { device, host: sums.host_hits as f64 / uses })),
            plan_drive,
            plan_device,
            layer_hits: measured.layer_hits.clone(),
            // Where it was asked for, `set_profile` notes it.
            kernels: Vec::new(),
            dispatches_a_token: None,
            stages_a_token: None,
            dispatch_ns_a_token: None,
            stamped_ns_a_token: None,
            dispatch_gap_share: None,
        }
    }
}

fn cache_policy(setting: &Setting, buffered_files: usize) -> String {
    if !setting.is_cold {
        let begun = if setting.has_warmup { "a run that does not count" } else { "empty slots" };
        return format!("begun with {begun}; slots keep what the run before left");
    }
    let pages = match (setting.simulated, buffered_files) {
        (Some(_), _) => "page cache kept, as it stands for the simulated drive".to_owned(),
        (None, 0) => "direct reads, past the page cache".to_owned(),
        (None, count) => format!(
            "{count} files are read through the page cache, whose pages were dropped by advice (POSIX_FADV_DONTNEED)"
        ),
    };
    format!("slots emptied before each repetition; {pages}")
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time of some seconds, not negative"
)]
fn whole(ns: f64) -> u64 {
    ns.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_bound_binds() {
        let of = |disk, memory| Bounds { disk, memory }.lowest();
        assert_eq!(of(None, None), None);
        assert_eq!(of(Some(3.0), None), Some(("disk", 3.0)));
        assert_eq!(of(Some(3.0), Some(2.0)), Some(("memory", 2.0)));
    }
}
