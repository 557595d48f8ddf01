//! `flint-rt info`: a model's numbers, the devices, the memory plan, the paths chosen.
//!
//! What can be said without a device is said even where none opens; the exit code is then that of the device.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use flint_rt::base::units::display_bytes;
use flint_rt::engine::open::{PathsChosen, read_tokenizer};
use flint_rt::engine::{Engine, MemoryPlan};
use flint_rt::gpu::list_devices;
use flint_rt::model::hparams::FlintConfig;
use flint_rt::store::{Source, SourceKind};
use flint_rt::text::Tokenizer;
use flint_rt::text::chat::{StopTokens, check_markers};
use serde_json::{Value, json};

use crate::args::InfoArgs;
use crate::devices;
use crate::exit::{Failure, Outcome};
use crate::model::{self, Found};
use crate::open;

/// What the files say.
struct Model {
    source: Source,
    config: FlintConfig,
    tokenizer: Tokenizer,
    stops: StopTokens,
    template: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &InfoArgs) -> Outcome {
    let found = find(args)?;
    let model = read(&found).map_err(|failure| failure.about(found.shown()))?;
    let listed = list_devices(false);
    let opened = match &listed {
        Ok(_) => open::engine(&args.engine, &found, None),
        Err(_) => Err(Failure::usage("no device")),
    };
    let mut stdout = io::stdout().lock();
    let devices = listed.as_deref().unwrap_or_default();
    let engine = opened.as_ref().ok();
    if args.json {
        let document = json!({
            "schema_version": 1,
            "model": model_json(&found, &model),
            "tokenizer": tokenizer_json(&model),
            "devices": devices.iter().map(devices::as_json).collect::<Vec<_>>(),
            "device": engine.map(|engine| devices::as_json(engine.gpu().info())),
            "memory": engine.map(|engine| plan_json(engine.plan())),
            "paths": engine.map(paths_json),
        });
        writeln!(stdout, "{document:#}")?;
    } else {
        write!(stdout, "{}", model_text(&found, &model))?;
        writeln!(stdout, "devices")?;
        for device in devices {
            writeln!(stdout, "  {}", devices::line(device))?;
        }
        if let Some(engine) = engine {
            write!(stdout, "{}", engine_text(engine))?;
        }
    }
    stdout.flush()?;
    drop(stdout);
    listed?;
    open::check_validation(&opened?)
}

fn find(args: &InfoArgs) -> Outcome<Found> {
    let named = &args.engine.model;
    let model = crate::args::ModelArgs {
        model: args.positional.clone().or_else(|| named.model.clone()),
        store_dir: named.store_dir.clone(),
    };
    model::find(&model, args.engine.source)
}

fn read(found: &Found) -> Outcome<Model> {
    let source = Source::open(&found.path)?;
    let config = FlintConfig::from_gguf(source.gguf())?;
    let tokenizer = read_tokenizer(source.gguf())?;
    let stops = StopTokens::new(&tokenizer, config.eos);
    let template = source.gguf().metadata.str_opt("tokenizer.chat_template")?.map(str::to_owned);
    Ok(Model { source, config, tokenizer, stops, template })
}

fn kind(source: &Source) -> &'static str {
    match source.kind() {
        SourceKind::Store => "store",
        SourceKind::Gguf => "gguf",
    }
}

fn model_json(found: &Found, model: &Model) -> Value {
    let config = &model.config;
    let layers = config
        .layers
        .iter()
        .map(|layer| json!({ "window": layer.window, "rope": layer.rope, "moe": layer.is_moe }));
    json!({
        "path": found.shown(),
        "kind": kind(&model.source),
        "file_name": model.source.file_name(),
        "sha256": model.source.source_sha256().map(|digest| digest.to_string()),
        "identity": model.source.identity().to_string(),
        "name": config.name,
        "layer_count": config.layer_count,
        "lead_layer_count": config.lead_layer_count,
        "embed_dim": config.embed_dim,
        "head_count": config.head_count,
        "kv_head_count": config.kv_head_count,
        "head_dim": config.head_dim,
        "ffn_dim": config.ffn_dim,
        "expert_count": config.expert_count,
        "experts_used": config.experts_used,
        "expert_ffn_dim": config.expert_ffn_dim,
        "shared_ffn_dim": config.shared_ffn_dim,
        "expert_bytes": config.record_bytes(),
        "expert_weights_scale": config.expert_weights_scale,
        "vocabulary": config.vocabulary,
        "context_len": config.context_len,
        "window": config.window,
        "rope_base": config.rope_base,
        "norm_epsilon": config.norm_epsilon,
        "layers": layers.collect::<Vec<_>>(),
        "chat_template_bytes": model.template.as_ref().map(String::len),
    })
}

fn tokenizer_json(model: &Model) -> Value {
    let stops = model.stops.entries().iter().map(|(id, _)| *id).collect::<Vec<_>>();
    json!({
        "tokens": model.tokenizer.vocabulary().token_count(),
        "specials": model.tokenizer.vocabulary().specials().count(),
        "begin": model.config.bos,
        "end": model.config.eos,
        "stops": stops,
        "chat_form": check_markers(&model.tokenizer).is_ok(),
    })
}

fn plan_json(plan: &MemoryPlan) -> Value {
    json!({
        "budget_bytes": plan.budget_bytes,
        "resident_bytes": plan.resident_bytes,
        "kv_bytes": plan.kv_bytes,
        "scratch_bytes": plan.scratch_bytes,
        "pool_slots": plan.pool_slots,
        "pool_bytes": plan.pool_bytes,
        "expert_total": plan.expert_total,
        "experts_a_token": plan.experts_a_token,
        "staging_bytes": plan.staging_bytes,
        "token_table_bytes": plan.token_table_bytes,
        "experts_bytes": plan.experts_bytes,
        "context_len": plan.context_len,
        "prefill_chunk": plan.prefill_chunk,
        "warnings": plan.warnings,
    })
}

fn paths_json(engine: &Engine) -> Value {
    let paths = engine.paths();
    json!({
        "read_path": paths.transport.read.path.to_string(),
        "read_report": paths.transport.read.to_string(),
        "read_lost": paths.transport.read.lost,
        "host_path": paths.transport.host_path.to_string(),
        "host_passed_over": paths.transport.passed_over,
        "files": paths.files,
        "reads_checked": paths.is_checked,
    })
}

/// Never fails: it writes into memory.
fn model_text(found: &Found, model: &Model) -> String {
    let config = &model.config;
    let mut text = String::new();
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "  {what:<16} {value}");
    };
    line("path", format!("{} ({})", found.shown(), kind(&model.source)));
    if let Some(digest) = model.source.source_sha256() {
        line("made of", format!("{}, SHA-256 {digest}", model.source.file_name()));
    }
    line(
        "layers",
        format!("{}, of which the first {} without experts", config.layer_count, config.lead_layer_count),
    );
    line(
        "experts",
        format!(
            "{} a layer, {} a token, {} each; one shared",
            config.expert_count,
            config.experts_used,
            display_bytes(config.record_bytes())
        ),
    );
    let sliding = config.layers.iter().filter(|layer| layer.window.is_some()).count();
    line(
        "attention",
        format!(
            "{} heads over {} of {} values; {sliding} layers see {} tokens, the others all",
            config.head_count, config.kv_head_count, config.head_dim, config.window
        ),
    );
    line(
        "width",
        format!("{}, experts {}, shared {}", config.embed_dim, config.expert_ffn_dim, config.shared_ffn_dim),
    );
    line("context", format!("{} tokens", config.context_len));
    let vocabulary = model.tokenizer.vocabulary();
    line(
        "tokenizer",
        format!("{} tokens, {} special", vocabulary.token_count(), vocabulary.specials().count()),
    );
    let stops = model.stops.entries().iter().map(|(id, _)| id.to_string()).collect::<Vec<_>>();
    line("stop tokens", stops.join(", "));
    let form = match check_markers(&model.tokenizer) {
        Ok(()) => "built in".to_owned(),
        Err(error) => error.to_string(),
    };
    let template = match &model.template {
        Some(template) => format!("the file's template ({} B) is not run", template.len()),
        None => "the file has no template".to_owned(),
    };
    line("chat form", format!("{form}; {template}"));
    format!("model {}\n{text}", config.name)
}

/// What is known of the bytes that are read.
fn checks(paths: &PathsChosen) -> &'static str {
    match (paths.is_checked, paths.source) {
        (true, _) => "every record and tensor is compared with its checksum as it is read",
        (false, SourceKind::Store) => "left out (--unchecked)",
        (false, SourceKind::Gguf) => {
            "none: a GGUF in place has no checksums; `flint-rt verify` takes its SHA-256"
        }
    }
}

fn engine_text(engine: &Engine) -> String {
    let paths = engine.paths();
    let mut text = format!("memory on {}\n{}", engine.gpu().info().title(), engine.plan());
    let mut line = |what: &str, value: &str| {
        let _ = writeln!(text, "  {what:<16} {value}");
    };
    line("reads", &paths.transport.read.to_string());
    for lost in &paths.transport.read.lost {
        line("", lost);
    }
    line("checks", checks(paths));
    line("host memory", &paths.transport.host_path.to_string());
    for passed in &paths.transport.passed_over {
        line("", passed);
    }
    for file in &paths.files {
        line("file", file);
    }
    let at = text.find("  reads ").unwrap_or(text.len());
    text.insert_str(at, "paths\n");
    text
}
