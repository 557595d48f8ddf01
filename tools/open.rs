//! Opens an engine the way the flags say, and says on which device.

use flint_rt::base::ids::TokenId;
use flint_rt::disk::DiskError;
use flint_rt::engine::{Engine, EngineError, EngineOptions, LoadPhase, LoadProgress, Session};
use flint_rt::expert::{ExpertError, PrefetchMode};
use flint_rt::gpu::Gpu;

use crate::args::EngineArgs;
use crate::exit::{Exit, Failure, Outcome};
use crate::folders;
use crate::model::Found;
use crate::terminal::{Bar, note};
use crate::{verify, warm};

/// The engine's options: what the flags say, with `context_len` where they say nothing about it.
pub(crate) fn options(args: &EngineArgs, model: &Found, context_len: Option<u32>) -> EngineOptions {
    EngineOptions {
        model: model.path.clone(),
        device: args.run.device.device.clone(),
        validation: args.run.device.validation,
        cache_dir: folders::cache_dir(),
        context_len: args.ctx_size.or(context_len),
        pool_slots: args.run.pool_slots,
        prefill_chunk: args.prefill_chunk,
        gpu_memory_bytes: args.run.gpu_memory,
        host_memory: args.run.memory.of_host(),
        memory_bytes: args.run.memory.of_both(),
        read_path: args.run.read_path,
        host_path: args.run.host_path,
        prefetch: args.run.prefetch.and_then(|mode| match mode {
            PrefetchMode::Auto => None,
            PrefetchMode::On => Some(true),
            PrefetchMode::Off => Some(false),
        }),
        speculate: args.run.speculate.unwrap_or_default(),
        skip_checks: args.run.unchecked,
        tuning_dir: folders::state_dir().filter(|_| !args.run.no_tuned),
        tuning_changes: args.run.tuning.clone().unwrap_or_default(),
        ..EngineOptions::default()
    }
}

/// Opens it.
pub(crate) fn engine(args: &EngineArgs, model: &Found, context_len: Option<u32>) -> Outcome<Engine> {
    engine_by(args, model, &options(args, model, context_len))
}

/// Opens it with options of the caller's.
pub(crate) fn engine_by(args: &EngineArgs, model: &Found, options: &EngineOptions) -> Outcome<Engine> {
    engine_watched(args, model, options, &mut |_| {})
}

/// The same; `watch` is told how far it is.
pub(crate) fn engine_watched(
    args: &EngineArgs,
    model: &Found,
    options: &EngineOptions,
    watch: &mut dyn FnMut(LoadProgress),
) -> Outcome<Engine> {
    if args.check_source {
        verify::check_source(model)?;
    }
    let bar = Bar::bytes("opening");
    let opened = Engine::open(options, &mut |progress| {
        watch(progress);
        bar.message(match progress.phase {
            LoadPhase::Kernels => "compiling",
            LoadPhase::Weights => "reading weights",
        });
        bar.set(progress.done_bytes, progress.total_bytes);
    });
    bar.clear();
    let mut engine = opened.map_err(|error| {
        let is_of_read_path = matches!(
            error,
            EngineError::Expert(ExpertError::Disk(DiskError::PathImpossible { .. }))
                | EngineError::Disk(DiskError::PathImpossible { .. })
        );
        let failure = Failure::from(error);
        // Only what is wrong with the model is about its file.
        match failure {
            Failure::Told { exit: Exit::Model, .. } => failure.about(model.shown()),
            other if is_of_read_path => other.about("--read-path"),
            other => other,
        }
    })?;
    note(&format!("device: {}", device_line(&engine)));
    for warning in &engine.plan().warnings {
        note(&format!("warning: {warning}"));
    }
    if let Some(routes) = &args.warm {
        warm::fill(&mut engine, routes)?;
    }
    Ok(engine)
}

fn device_line(engine: &Engine) -> String {
    let info = engine.gpu().info();
    format!("{} {}, {}, Vulkan {}: {}", info.index, info.title(), info.kind, info.api, info.choice)
}

/// Refuses a prompt that the context cannot hold; `what` is it called, and `ids` its tokens.
pub(crate) fn check_room(engine: &Engine, session: &Session, what: &str, ids: &[TokenId]) -> Outcome {
    let (context_len, context_max) = (session.context_len(), engine.config().context_len);
    if ids.len() as u64 <= u64::from(context_len) {
        return Ok(());
    }
    Err(too_long(what, ids.len() as u64, context_len, context_max))
}

/// The refusal of `needed` tokens in a context of `context_len`, of a model that has at most `context_max`.
pub(crate) fn too_long(what: &str, needed: u64, context_len: u32, context_max: u32) -> Failure {
    let remedy = if needed <= u64::from(context_max) {
        format!("give --ctx-size {needed} or more, up to {context_max}")
    } else {
        format!("the model has at most {context_max}")
    };
    Failure::usage(format!("{what} of {needed} tokens does not fit the context of {context_len}: {remedy}"))
}

/// How a conversation that fills its context may go on.
pub(crate) fn larger_context(engine: &Engine, session: &Session) -> String {
    let context_max = engine.config().context_len;
    match session.context_len() < context_max {
        true => format!("a larger --ctx-size, up to {context_max}, holds more"),
        false => format!("the model holds no more than {context_max} tokens"),
    }
}

/// What went unseen while an engine worked: host memory that it could not have, which only costs time, and what the validation layer
/// said, if anything: a fault of this program.
pub(crate) fn check_engine(engine: &Engine) -> Outcome {
    if let Some(why) = engine.host_memory_refused() {
        let held = engine.host_tier().memory;
        note(&format!("note: host memory keeps {held} experts, as there was no more of it: {why}"));
    }
    check_validation_of(engine.gpu())
}

/// The same of a device on which no engine runs.
pub(crate) fn check_validation_of(gpu: &Gpu) -> Outcome {
    let messages = gpu.validation_messages();
    if messages.is_empty() {
        return Ok(());
    }
    for message in &messages {
        note(&format!("validation: {message}"));
    }
    Err(Failure::new(Exit::Failed, format!("the validation layer reported {} faults", messages.len())))
}

/// A token's text for looking.
pub(crate) fn shown_token(engine: &Engine, id: TokenId) -> String {
    format!("{:?}", engine.tokenizer().decode(&[id]))
}
