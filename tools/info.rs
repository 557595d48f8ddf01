//! `flint-rt info`: a model's numbers, its files, the devices, the memory plan, the paths chosen. No weight is read.
//!
//! What can be said without a device is said even where none opens; the exit code is then that of the device.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use flint_rt::base::ids::FileIndex;
use flint_rt::base::mounts::Mount;
use flint_rt::base::units::display_bytes;
use flint_rt::disk::SourceFile;
use flint_rt::engine::open::read_tokenizer;
use flint_rt::engine::{
    ChosenTuning, Engine, EngineError, EngineOptions, MemoryPlan, PathsChosen, Survey, TuningSource,
};
use flint_rt::gguf::Gguf;
use flint_rt::gpu::list_devices;
use flint_rt::model::hparams::{FlintConfig, LayerKind};
use flint_rt::store::{Source, SourceKind};
use flint_rt::text::Tokenizer;
use flint_rt::text::chat::{StopTokens, check_markers};
use serde_json::{Value, json};

use crate::args::InfoArgs;
use crate::devices;
use crate::exit::{Failure, Outcome};
use crate::model::{self, Found};
use crate::open;
use crate::terminal::{escaped, escaped_line};

/// What the files say.
struct Model {
    source: Source,
    config: FlintConfig,
    tokenizer: Tokenizer,
    stops: StopTokens,
    template: Option<String>,
    files: Vec<FileFacts>,
}

/// How one file lies on its drive.
pub(crate) struct FileFacts {
    pub(crate) path: String,
    pub(crate) len_bytes: u64,
    /// How it is read, and why not directly if not.
    pub(crate) report: String,
    pub(crate) align_bytes: Option<u32>,
    pub(crate) why_buffered: Option<String>,
    /// What statx says of alignment, in memory and in the file.
    pub(crate) statx: Option<(u32, u32)>,
    pub(crate) mount: Option<Mount>,
}

/// Runs the command.
pub(crate) fn run(args: &InfoArgs) -> Outcome {
    let found = find(args)?;
    let model = read(&found).map_err(|failure| failure.about(found.shown()))?;
    let listed = list_devices(false);
    let sessions = Some(args.conversations.parallel);
    let surveyed = match &listed {
        Ok(_) => Engine::survey(&EngineOptions { sessions, ..open::options(&args.engine, &found, None) })
            .map_err(Failure::from),
        Err(_) => Err(Failure::usage("no device")),
    };
    let mut stdout = io::stdout().lock();
    let devices = listed.as_deref().unwrap_or_default();
    let survey = surveyed.as_ref().ok();
    if args.json {
        let document = json!({
            "schema_version": 1,
            "model": model_json(&found, &model),
            "tokenizer": tokenizer_json(&model),
            "files": model.files.iter().map(file_json).collect::<Vec<_>>(),
            "devices": devices.iter().map(devices::as_json).collect::<Vec<_>>(),
            "device": survey.map(|survey| devices::as_json(survey.gpu.info())),
            "memory": survey.and_then(|survey| survey.plan.as_ref().ok()).map(plan_json),
            "tuning": survey.map(|survey| tuning_json(&survey.tuning)),
            "paths": survey.and_then(|survey| survey.paths.as_ref().ok()).map(paths_json),
            "prompt_kernels": survey.map(|survey| survey.tuning.tuning.many.form.name()),
        });
        writeln!(stdout, "{document:#}")?;
    } else {
        write!(stdout, "{}", model_text(&found, &model))?;
        writeln!(stdout, "devices")?;
        for device in devices {
            writeln!(stdout, "  {}", escaped(&devices::line(device)))?;
        }
        if let Some(survey) = survey {
            write!(stdout, "{}", escaped(&survey_text(survey)))?;
        }
    }
    stdout.flush()?;
    drop(stdout);
    listed?;
    let survey = surveyed?;
    survey.plan?;
    survey.paths?;
    open::check_validation_of(&survey.gpu)
}

fn find(args: &InfoArgs) -> Outcome<Found> {
    let named = &args.engine.model;
    let model = crate::args::ModelArgs {
        model: args.positional.clone().or_else(|| named.model.clone()),
        store_dir: named.store_dir.clone(),
    };
    model::find(&model, args.engine.run.source)
}

fn read(found: &Found) -> Outcome<Model> {
    let source = Source::open(&found.path)?;
    let config = FlintConfig::from_gguf(source.gguf())?;
    let tokenizer = read_tokenizer(source.gguf())?;
    let stops = StopTokens::new(&tokenizer, config.eos);
    let template = source.gguf().metadata.str_opt("tokenizer.chat_template")?.map(str::to_owned);
    let files = source.files().iter().map(|path| file_facts(path)).collect::<Outcome<_>>()?;
    Ok(Model { source, config, tokenizer, stops, template, files })
}

/// Opens a file as the runtime would, to see what it allows.
pub(crate) fn file_facts(path: &Path) -> Outcome<FileFacts> {
    let file = SourceFile::open(path).map_err(EngineError::from)?;
    let direct = file.direct();
    Ok(FileFacts {
        path: path.display().to_string(),
        len_bytes: file.len_bytes(),
        report: direct.to_string(),
        align_bytes: direct.align.map(|(bytes, _)| bytes),
        why_buffered: direct.why_buffered.clone(),
        statx: file.statx_align(),
        mount: Mount::of(path).ok(),
    })
}

impl FileFacts {
    /// How it is read and where it lies, in one line.
    pub(crate) fn line(&self) -> String {
        let statx = match self.statx {
            Some((memory, offset)) => format!("statx says {memory} B in memory, {offset} B in the file"),
            None => "statx does not say".to_owned(),
        };
        let place = match &self.mount {
            Some(mount) => format!("{} on {}", mount.kind, mount.source),
            None => "file system unknown".to_owned(),
        };
        format!("{}: {}; {}; {statx}; {place}", self.path, display_bytes(self.len_bytes), self.report)
    }
}

/// One file as JSON.
pub(crate) fn file_json(file: &FileFacts) -> Value {
    json!({
        "path": file.path,
        "len_bytes": file.len_bytes,
        "direct": file.align_bytes.is_some(),
        "align_bytes": file.align_bytes,
        "why_buffered": file.why_buffered,
        "statx_memory_align": file.statx.map(|(memory, _)| memory),
        "statx_offset_align": file.statx.map(|(_, offset)| offset),
        "file_system": file.mount.as_ref().map(|mount| &mount.kind),
        "device": file.mount.as_ref().map(|mount| &mount.source),
        "mount_point": file.mount.as_ref().map(|mount| mount.point.display().to_string()),
    })
}

/// Name and digest of each of a store's files; none of a GGUF in place.
fn digests(source: &Source) -> Vec<(String, String)> {
    let files = (0..).zip(source.files()).filter_map(|(index, path)| {
        let digest = source.file_digest(FileIndex(index))?;
        Some((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), digest.to_string()))
    });
    files.collect()
}

/// Whether every record has its checksum.
fn has_record_sums(source: &Source) -> bool {
    source.expert_keys().next().is_some_and(|key| source.record_checksum(key).is_some())
}

/// Tensors and bytes of each type.
fn tensor_kinds(gguf: &Gguf) -> BTreeMap<&'static str, (u64, u64)> {
    let mut kinds = BTreeMap::new();
    for tensor in gguf.tensors.iter() {
        let (count, bytes) = kinds.entry(tensor.kind.name()).or_insert((0, 0));
        *count += 1;
        *bytes += tensor.len_bytes;
    }
    kinds
}

/// A letter for what a layer's attention is: small where it is rotated, W or F for window and full.
fn letter(layer: &LayerKind) -> char {
    match (layer.window, layer.rope) {
        (Some(_), true) => 'w',
        (Some(_), false) => 'W',
        (None, true) => 'f',
        (None, false) => 'F',
    }
}

/// The layers' attention as a word of letters, and what each letter means.
fn attention(config: &FlintConfig) -> (String, Vec<String>) {
    let word: String = config.layers.iter().map(letter).collect();
    let mut legend = Vec::new();
    for wanted in ['w', 'W', 'f', 'F'] {
        let mut of_kind = config.layers.iter().filter(|layer| letter(layer) == wanted);
        let Some(first) = of_kind.next() else { continue };
        let sees = match first.window {
            Some(window) => format!("sees {window} tokens"),
            None => "sees all tokens".to_owned(),
        };
        let rope = if first.rope { "RoPE" } else { "no RoPE" };
        legend.push(format!("{wanted}: {sees}, {rope} ({} layers)", of_kind.count() + 1));
    }
    (word, legend)
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
        "origin": model.source.origin().iter().map(|part| json!({
            "file_name": part.file_name,
            "len_bytes": part.len_bytes,
            "sha256": part.sha256.map(|digest| digest.to_string()),
        })).collect::<Vec<_>>(),
        "sha256_trees": digests(&model.source).into_iter().collect::<BTreeMap<_, _>>(),
        "record_checksums": has_record_sums(&model.source).then_some("xxh3-128"),
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
        "attention": attention(config).0,
        "gguf_version": model.source.gguf().version,
        "gguf_bytes": model.source.gguf().file_len_bytes,
        "gguf_alignment": model.source.gguf().alignment,
        "tensor_types": tensor_kinds(model.source.gguf()).into_iter()
            .map(|(kind, (count, bytes))| (kind, json!({ "tensors": count, "bytes": bytes })))
            .collect::<BTreeMap<_, _>>(),
        "record": {
            "gate_bytes": model.source.record().gate_bytes,
            "up_bytes": model.source.record().up_bytes,
            "down_bytes": model.source.record().down_bytes,
            "record_bytes": model.source.record().record_bytes(),
            "stride_bytes": (model.source.kind() == SourceKind::Store)
                .then(|| model.source.record().stride_bytes()),
            "records": config.moe_layer_count() * config.expert_count,
        },
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

pub(crate) fn plan_json(plan: &MemoryPlan) -> Value {
    json!({
        "budget_bytes": plan.budget_bytes,
        "resident_bytes": plan.resident_bytes,
        "kv_bytes": plan.kv_bytes,
        "sessions": plan.sessions,
        "scratch_bytes": plan.scratch_bytes,
        "pool_slots": plan.pool_slots,
        "pool_bytes": plan.pool_bytes,
        "expert_total": plan.expert_total,
        "experts_a_token": plan.experts_a_token,
        "staging_bytes": plan.staging_bytes,
        "host_slots": plan.host.slots,
        "host_bytes": plan.host.bytes(),
        "host_available_bytes": plan.host.available_bytes,
        "host_reserve_bytes": plan.host.reserve_bytes,
        "token_table_bytes": plan.token_table_bytes,
        "experts_bytes": plan.experts_bytes,
        "context_len": plan.context_len,
        "prefill_chunk": plan.prefill_chunk,
        "warnings": plan.warnings,
    })
}

fn paths_json(paths: &PathsChosen) -> Value {
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
        let _ = writeln!(text, "  {what:<16} {}", escaped_line(&value));
    };
    line("path", format!("{} ({})", found.shown(), kind(&model.source)));
    match model.source.source_sha256() {
        Some(digest) => line("made of", format!("{}, SHA-256 {digest}", model.source.file_name())),
        None => line("SHA-256", "not known of a GGUF in place".to_owned()),
    }
    line("identity", format!("{}, of header and length", model.source.identity()));
    for (name, digest) in digests(&model.source) {
        line("SHA-256 tree", format!("{digest}, of {name}"));
    }
    if has_record_sums(&model.source) {
        line(
            "checksums",
            "XXH3-128 of every record and dense tensor; flint-rt verify takes them anew".to_owned(),
        );
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
    line(
        "attention",
        format!(
            "{} heads over {} KV heads of {} values, with sinks",
            config.head_count, config.kv_head_count, config.head_dim
        ),
    );
    let (word, legend) = attention(config);
    line("by layer", word);
    for meaning in legend {
        line("", meaning);
    }
    line(
        "width",
        format!(
            "{} embedding, {} dense FFN, {} expert FFN, {} shared FFN",
            config.embed_dim, config.ffn_dim, config.expert_ffn_dim, config.shared_ffn_dim
        ),
    );
    line(
        "numerics",
        format!(
            "RoPE base {}, RMS epsilon {:e}, expert weights times {}",
            config.rope_base, config.norm_epsilon, config.expert_weights_scale
        ),
    );
    for (kind, (count, bytes)) in tensor_kinds(model.source.gguf()) {
        line("tensors", format!("{count} of {kind}, {}", display_bytes(bytes)));
    }
    line("expert record", record_text(model));
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
        Some(template) => format!("the file's template ({} B) is for `serve` alone", template.len()),
        None => "the file has no template".to_owned(),
    };
    line("chat form", format!("{form}; {template}"));
    for file in &model.files {
        line("file", file.line());
    }
    format!("model {}\n{text}", escaped_line(&config.name))
}

fn record_text(model: &Model) -> String {
    let record = model.source.record();
    let parts = format!("gate {} + up {} + down {} B", record.gate_bytes, record.up_bytes, record.down_bytes);
    let count = model.config.moe_layer_count() * model.config.expert_count;
    match model.source.kind() {
        SourceKind::Store => {
            format!("{parts}, one read, every {} B; {count} records", record.stride_bytes())
        }
        SourceKind::Gguf => format!("{parts}, three reads; {count} records"),
    }
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

/// How kernels are cut up, as JSON.
fn tuning_json(chosen: &ChosenTuning) -> Value {
    let values = chosen.tuning.values().into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    let (source, path) = match &chosen.source {
        TuningSource::Caller => ("caller", None),
        TuningSource::Table(_) => ("table", None),
        TuningSource::Remembered(path) => ("remembered", Some(path.display().to_string())),
    };
    json!({
        "source": source,
        "path": path,
        "changed": chosen.is_changed,
        "deterministic": chosen.is_deterministic,
        "note": chosen.note,
        "values": values.collect::<serde_json::Map<_, _>>(),
    })
}

fn survey_text(survey: &Survey) -> String {
    let mut text = String::new();
    if let Ok(plan) = &survey.plan {
        let _ = write!(text, "memory on {}\n{plan}", survey.gpu.info().title());
        for warning in &plan.warnings {
            let _ = writeln!(text, "  warning: {warning}");
        }
    }
    let _ = writeln!(text, "prompts\n  {:<16} {}", "products", survey.tuning.tuning.many.form);
    let _ = writeln!(text, "kernels\n  {:<16} {}", "sizes", survey.tuning);
    let Ok(paths) = &survey.paths else { return text };
    text.push_str("paths\n");
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
    text
}
