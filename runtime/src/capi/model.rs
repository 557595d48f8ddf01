//! `flint_rt_model_*`: open and close, what it is, what it takes, what it did.

use std::ffi::c_void;
use std::ops::ControlFlow;

use super::guard::{self, LastError};
use super::handles::{self, Handle};
use super::lock::Exclusive;
use super::memory::{In, InText, Out};
use super::status::{Fault, Status};
use super::types::{self, LogFn, ModelInfo, ModelOptions, ModelStats, put_text};
use crate::disk::ReadPath;
use crate::engine::{Engine, EngineOptions, HostMemory, LoadPhase, LoadProgress};
use crate::store::SourceKind;
use crate::text::Tokenizer;
use crate::text::chat::StopTokens;

/// Levels of the log.
const INFO: i32 = 1;
const WARNING: i32 = 2;

/// `FLINT_RT_NO_TOKEN`.
pub(super) const NO_TOKEN: u32 = u32::MAX;

/// An open model.
pub(super) struct Model {
    pub(super) engine: Exclusive<Engine>,
    pub(super) tokenizer: Tokenizer,
    pub(super) stops: StopTokens,
    pub(super) info: ModelInfo,
    pub(super) plan: types::MemoryPlan,
    pub(super) errors: LastError,
}

impl Model {
    /// Whether a call of this thread is using it.
    pub(super) fn is_held_here(&self) -> bool {
        self.engine.is_held_here()
    }
}

/// Who is told what the library does.
struct Log {
    function: Option<LogFn>,
    user_data: *mut c_void,
}

impl Log {
    fn say(&self, level: i32, text: &str) {
        if let Some(function) = self.function {
            function(self.user_data, level, text.as_ptr().cast(), text.len());
        }
    }
}

/// 0 chooses; else one of the header's.
pub(super) fn read_path(number: i32) -> Result<Option<ReadPath>, Fault> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(ReadPath::Ring)),
        2 => Ok(Some(ReadPath::RingPlain)),
        3 => Ok(Some(ReadPath::Pool)),
        _ => Err(Fault::argument(format!("read_path is {number}, wanted 0 to 3"))),
    }
}

fn engine_options(path: &str, options: &ModelOptions) -> Result<EngineOptions, Fault> {
    let some = |value: u32| (value > 0).then_some(value);
    let some_bytes = |value: u64| (value > 0).then_some(value);
    Ok(EngineOptions {
        model: path.into(),
        device: options.device.get("device")?.map(str::to_owned),
        validation: options.validation != 0,
        cache_dir: options.cache_dir.get("cache_dir")?.map(Into::into),
        context_len: some(options.context_len),
        sessions: some(options.sessions),
        pool_slots: some(options.pool_slots),
        prefetch: match options.prefetch {
            0 => None,
            1 => Some(true),
            2 => Some(false),
            other => return Err(Fault::argument(format!("prefetch is {other}, wanted 0 to 2"))),
        },
        prefill_chunk: some(options.prefill_chunk),
        gpu_memory_bytes: some_bytes(options.gpu_memory_bytes),
        host_memory: match options.host_memory_bytes {
            0 => HostMemory::Auto,
            u64::MAX => HostMemory::Bytes(0),
            bytes => HostMemory::Bytes(bytes),
        },
        memory_bytes: some_bytes(options.memory_bytes),
        read_path: read_path(options.read_path)?,
        skip_checks: options.skip_checks != 0,
        ..EngineOptions::default()
    })
}

fn plan_of(plan: &crate::engine::MemoryPlan) -> types::MemoryPlan {
    types::MemoryPlan {
        budget_bytes: plan.budget_bytes,
        resident_bytes: plan.resident_bytes,
        kv_bytes: plan.kv_bytes,
        scratch_bytes: plan.scratch_bytes,
        pool_bytes: plan.pool_bytes,
        staging_bytes: plan.staging_bytes,
        host_bytes: plan.host.bytes(),
        experts_bytes: plan.experts_bytes,
        pool_slots: plan.pool_slots,
        host_slots: plan.host.slots,
        expert_total: plan.expert_total,
        experts_a_token: plan.experts_a_token,
        context_len: plan.context_len,
        prefill_chunk: plan.prefill_chunk,
        ..types::MemoryPlan::default()
    }
}

fn info_of(engine: &Engine) -> ModelInfo {
    let (config, paths) = (engine.config(), engine.paths());
    let mut info = ModelInfo {
        vocabulary: config.vocabulary,
        context_len: engine.plan().context_len,
        context_len_trained: config.context_len,
        layer_count: config.layer_count,
        expert_layer_count: config.moe_layer_count(),
        expert_count: config.expert_count,
        experts_used: config.experts_used,
        embed_dim: config.embed_dim,
        bos_token: config.bos.unwrap_or(NO_TOKEN),
        eos_token: config.eos.unwrap_or(NO_TOKEN),
        is_store: i32::from(paths.source == SourceKind::Store),
        is_checked: i32::from(paths.is_checked),
        ..ModelInfo::default()
    };
    put_text(&mut info.device, &engine.gpu().info().title());
    info
}

fn open(path: &str, options: &ModelOptions) -> Result<Model, Fault> {
    let log = Log { function: options.log, user_data: options.user_data };
    let mut progress = |at: LoadProgress| {
        let Some(function) = options.progress else { return ControlFlow::Continue(()) };
        let phase = match at.phase {
            LoadPhase::Kernels => 1,
            LoadPhase::Weights => 2,
        };
        match function(options.user_data, phase, at.done_bytes, at.total_bytes) {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    };
    let engine = Engine::open_while(&engine_options(path, options)?, &mut progress)?;
    let (paths, plan) = (engine.paths(), engine.plan());
    log.say(INFO, &format!("device: {}", engine.gpu().info().title()));
    log.say(
        INFO,
        &format!("reads: {}; to the device by {}", paths.transport.read, paths.transport.host_path),
    );
    for passed_over in &paths.transport.passed_over {
        log.say(INFO, &format!("passed over: {passed_over}"));
    }
    for warning in &plan.warnings {
        log.say(WARNING, warning);
    }
    Ok(Model {
        tokenizer: engine.tokenizer().clone(),
        stops: engine.stops().clone(),
        info: info_of(&engine),
        plan: plan_of(plan),
        engine: Exclusive::waiting("model", engine),
        errors: LastError::default(),
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_options_init(
    options: Out<ModelOptions>,
    struct_size: usize,
) -> Status {
    guard::run(None, || options.init(struct_size, "options"))
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_open(
    path: InText,
    options: In<ModelOptions>,
    model: Out<Handle>,
) -> Status {
    guard::run(None, || {
        let target = model.need("model")?;
        target.set(0);
        let opened = open(path.need("path")?, &options.read("options")?)?;
        target.set(handles::add(opened));
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_close(model: Handle) -> Status {
    handles::free::<Model>(model)
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_info_get(model: Handle, info: Out<ModelInfo>) -> Status {
    handles::with::<Model>(model, |model| info.fill(&model.info, "info"))
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_plan_get(model: Handle, plan: Out<types::MemoryPlan>) -> Status {
    handles::with::<Model>(model, |model| plan.fill(&model.plan, "plan"))
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_plan_memory(
    path: InText,
    options: In<ModelOptions>,
    plan: Out<types::MemoryPlan>,
) -> Status {
    guard::run(None, || {
        plan.need("plan")?;
        let options = engine_options(path.need("path")?, &options.read("options")?)?;
        let survey = Engine::survey(&options)?;
        plan.fill(&plan_of(&survey.plan?), "plan")
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_stats_get(model: Handle, stats: Out<ModelStats>) -> Status {
    handles::with::<Model>(model, |model| {
        stats.need("stats")?;
        let engine = model.engine.enter()?;
        let (stream, inflow) = (engine.stream_stats(), engine.inflow_stats());
        let (drive, checks) = (engine.read_counters(), engine.check_stats());
        let answer = ModelStats {
            expert_hits: stream.hits,
            expert_misses: stream.misses,
            expert_evictions: stream.evictions,
            read_bytes: stream.read_bytes,
            load_ns: stream.load_ns,
            demand_reads: inflow.demand_reads,
            guesses_issued: inflow.guesses_issued,
            guesses_used: inflow.guesses_used,
            guesses_used_late: inflow.guesses_used_late,
            guesses_wasted: inflow.guesses_wasted,
            host_hits: inflow.host_hits,
            host_kept: inflow.kept,
            drive_reads: drive.reads,
            drive_failed: drive.failed,
            drive_retries: drive.retries,
            drive_read_bytes: drive.read_bytes,
            drive_busy_ns: drive.busy_ns,
            checked_bytes: checks.bytes,
            second_reads: checks.second_reads,
            ..ModelStats::default()
        };
        stats.fill(&answer, "stats")
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(super) extern "C" fn flint_rt_model_look_after_memory(model: Handle) -> Status {
    handles::with::<Model>(model, |model| {
        model.engine.enter()?.look_after_memory();
        Ok(())
    })
}
