//! Opens a model: from a path to an engine that can generate.

use std::sync::Arc;

use crate::base::ids::{FileIndex, Span, TokenId};
use crate::base::limits::{PREFILL_CHUNK_MAX, READS_IN_FLIGHT_MAX};
use crate::disk::SourceFile;
use crate::engine::budget::BudgetInput;
use crate::engine::options::{CONTEXT_LEN_DEFAULT, PREFILL_CHUNK_DEFAULT};
use crate::engine::{EngineError, EngineOptions, MemoryPlan, Session};
use crate::expert::{StreamStats, Streamer, Transport, TransportOptions, TransportReport};
use crate::gguf::Gguf;
use crate::gpu::{Gpu, GpuOptions};
use crate::kernels::{KernelShape, Pipelines, Tuning};
use crate::model::Model;
use crate::model::embedding::Embedding;
use crate::model::hparams::FlintConfig;
use crate::model::scratch::Scratch;
use crate::model::sequence::Sequence;
use crate::model::weights::Weights;
use crate::store::{Source, SourceKind, is_expert_tensor};
use crate::text::chat::StopTokens;
use crate::text::{TextError, Tokenizer, Vocabulary};

/// Bytes of one staging buffer at least: dense weights are read in pieces of this size, which drives like.
const STAGING_BUFFER_BYTES_MIN: u64 = 1 << 20;

/// What opening a model is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadPhase {
    /// Compiling kernels.
    Kernels,
    /// Reading dense weights.
    Weights,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// What it is doing.
    pub phase: LoadPhase,
    /// Done, in bytes; 0 where that has no measure.
    pub done_bytes: u64,
    /// In all, in bytes.
    pub total_bytes: u64,
}

/// The paths that were chosen for this machine.
#[derive(Debug, Clone)]
pub struct PathsChosen {
    /// Store or GGUF in place.
    pub source: SourceKind,
    /// How bytes travel.
    pub transport: TransportReport,
    /// For each file of the source: whether it is read directly, and why not.
    pub files: Vec<String>,
}

/// A model that is open.
pub struct Engine {
    pub(super) model: Model,
    tokenizer: Tokenizer,
    stops: StopTokens,
    plan: MemoryPlan,
    paths: PathsChosen,
    chat_template: Option<String>,
}

/// The kind of vocabulary, and the way in which text is split, that this tokenizer follows.
const TOKENIZER_MODEL: (&str, &str) = ("tokenizer.ggml.model", "gpt2");
const TOKENIZER_PRE: (&str, &str) = ("tokenizer.ggml.pre", "flint");

/// The vocabulary that a GGUF holds. A file that does not say how text is split is taken for one split as Flint's.
///
/// # Errors
/// When it is of another kind, a part is missing or they do not fit together.
pub fn read_tokenizer(gguf: &Gguf) -> Result<Tokenizer, EngineError> {
    let found = [Some(gguf.metadata.str(TOKENIZER_MODEL.0)?), gguf.metadata.str_opt(TOKENIZER_PRE.0)?];
    for ((key, wanted), found) in [TOKENIZER_MODEL, TOKENIZER_PRE].into_iter().zip(found) {
        if let Some(found) = found.filter(|found| *found != wanted) {
            return Err(TextError::OtherTokenizer { key, found: found.to_owned(), wanted }.into());
        }
    }
    let bytes = |key: &str| -> Result<Vec<Vec<u8>>, EngineError> {
        Ok(gguf.metadata.string_array(key)?.iter().map(<[u8]>::to_vec).collect())
    };
    let vocabulary = Vocabulary::new(
        bytes("tokenizer.ggml.tokens")?,
        gguf.metadata.i32_array("tokenizer.ggml.token_type")?,
        bytes("tokenizer.ggml.merges")?,
    )?;
    Ok(Tokenizer::new(vocabulary)?)
}

impl Engine {
    /// Opens `options.model`.
    ///
    /// # Errors
    /// When the file is not a model that this runtime runs, no device fits, memory is short, or a read fails.
    pub fn open(
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        let source = Arc::new(Source::open(&options.model)?);
        let config = FlintConfig::from_gguf(source.gguf())?;
        let tokenizer = read_tokenizer(source.gguf())?;
        let stops = StopTokens::new(&tokenizer, config.eos);
        let gpu = Gpu::open(&GpuOptions {
            device: options.device.clone(),
            validation: options.validation,
            cache_dir: options.cache_dir.clone(),
            storage_range_max: options.storage_range_max,
        })?;
        let tuning = Tuning::for_device(gpu.info().kind);
        let mut plan = plan_memory(options, &source, &config, &gpu, tuning)?;
        if source.gguf().metadata.get(TOKENIZER_PRE.0).is_none() {
            let (key, taken) = TOKENIZER_PRE;
            plan.warnings.push(format!("the model does not have {key}: its text is split as {taken:?} does"));
        }

        progress(LoadProgress { phase: LoadPhase::Kernels, done_bytes: 0, total_bytes: 0 });
        let shape = KernelShape {
            head_dim: config.head_dim,
            group: config.head_count / config.kv_head_count,
            expert_count: config.expert_count,
            experts_used: config.experts_used,
        };
        let pipelines = Pipelines::new(&gpu, shape, tuning)?;

        let files = source
            .files()
            .iter()
            .map(|path| Ok(Arc::new(SourceFile::open(path)?)))
            .collect::<Result<Vec<_>, EngineError>>()?;
        let transport_options = TransportOptions {
            read_path: options.read_path,
            host_path: options.host_path,
            span_bytes_max: span_bytes_max(&config),
            buffer_count: READS_IN_FLIGHT_MAX as usize,
            depth: READS_IN_FLIGHT_MAX,
        };
        let mut transport = open_transport(options, &gpu, &files, &transport_options)?;
        let paths = PathsChosen {
            source: source.kind(),
            transport: transport.report().clone(),
            files: files.iter().map(|file| format!("{}: {}", file.path().display(), file.direct())).collect(),
        };
        let weights =
            Weights::load(&gpu, &source, &config, &mut transport, &mut |done_bytes, total_bytes| {
                progress(LoadProgress { phase: LoadPhase::Weights, done_bytes, total_bytes });
            })?;

        let table = token_table(&source);
        let FileIndex(file) = table.file;
        let embedding =
            Embedding::new(files[usize::from(file)].clone(), table, config.embed_dim, config.vocabulary);
        let streamer = Streamer::new(
            &gpu,
            source.clone(),
            transport,
            plan.pool_slots,
            config.lead_layer_count,
            config.layer_count - config.lead_layer_count,
            config.expert_count,
        )?;
        let scratch = Scratch::new(&gpu, &pipelines, &config, plan.prefill_chunk)?;
        let chat_template = source.gguf().metadata.str_opt("tokenizer.chat_template")?.map(str::to_owned);
        let model = Model { gpu, config, pipelines, weights, embedding, scratch, streamer };
        Ok(Self { model, tokenizer, stops, plan, paths, chat_template })
    }

    /// An empty conversation.
    ///
    /// # Errors
    /// When the device has too little memory for its cache.
    pub fn session(&self) -> Result<Session, EngineError> {
        Ok(Session::new(Sequence::new(&self.model, self.plan.context_len)?))
    }

    /// The model's numbers.
    pub fn config(&self) -> &FlintConfig {
        &self.model.config
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens that end a reply.
    pub fn stops(&self) -> &StopTokens {
        &self.stops
    }

    /// The device that it runs on.
    pub fn gpu(&self) -> &Gpu {
        &self.model.gpu
    }

    /// What goes where in memory.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// How bytes travel on this machine.
    pub fn paths(&self) -> &PathsChosen {
        &self.paths
    }

    /// The chat template in the file, if there is one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Counters of the expert stream since the engine was opened.
    pub fn stream_stats(&self) -> StreamStats {
        self.model.streamer.stats()
    }

    /// Counters of the read queue since the engine was opened.
    pub fn read_counters(&self) -> crate::disk::ReadCounters {
        self.model.streamer.transport().counters()
    }

    /// Copies the logits of the last step that wanted them.
    pub fn read_logits(&self, logits: &mut Vec<f32>) {
        self.model.read_logits(logits);
    }

    /// Whether `id` ends a reply.
    pub fn is_stop(&self, id: TokenId) -> bool {
        self.stops.reason(id).is_some()
    }
}

/// The transport over the real disk, or over the simulated one that a test asks for.
fn open_transport(
    options: &EngineOptions,
    gpu: &Gpu,
    files: &[Arc<SourceFile>],
    transport: &TransportOptions,
) -> Result<Transport, EngineError> {
    #[cfg(feature = "simulation")]
    if let Some((seed, faults)) = &options.simulation {
        return Ok(Transport::open_simulated(gpu, files, transport, *seed, faults)?);
    }
    // Only the simulation is an option of its own.
    let _ = options;
    Ok(Transport::open(gpu, files, transport)?)
}

fn token_table(source: &Source) -> Span {
    source.tensor_span("token_embd.weight").expect("invariant: the config was checked")
}

/// The longest span of one read: a whole record, and a good size for dense weights.
fn span_bytes_max(config: &FlintConfig) -> u32 {
    u32::try_from(config.record_bytes().max(STAGING_BUFFER_BYTES_MIN))
        .expect("invariant: a record is below 4 GiB")
}

/// Free bytes of the device's largest heap of its own.
fn device_bytes_free(gpu: &Gpu) -> u64 {
    let heaps = gpu.memory_budget();
    heaps.iter().filter(|heap| heap.is_device_local).map(|heap| heap.free_bytes()).max().unwrap_or(0)
}

fn plan_memory(
    options: &EngineOptions,
    source: &Source,
    config: &FlintConfig,
    gpu: &Gpu,
    tuning: Tuning,
) -> Result<MemoryPlan, EngineError> {
    let in_range = |what, got: Option<u32>, default: u32, max: u32| -> Result<u32, EngineError> {
        let value = got.unwrap_or(default.min(max));
        if value == 0 || value > max {
            let wanted = format!("from 1 to {max}");
            return Err(EngineError::OutOfRange { what, got: value.into(), wanted });
        }
        Ok(value)
    };
    let context_len = in_range("context size", options.context_len, CONTEXT_LEN_DEFAULT, config.context_len)?;
    let prefill_chunk =
        in_range("prefill chunk", options.prefill_chunk, PREFILL_CHUNK_DEFAULT, PREFILL_CHUNK_MAX)?
            .min(context_len);
    let table_bytes = token_table(source).len_bytes;
    let dense_bytes: u64 = source
        .gguf()
        .tensors
        .iter()
        .filter(|tensor| !is_expert_tensor(&tensor.name))
        .map(|tensor| tensor.len_bytes)
        .sum();
    MemoryPlan::new(
        config,
        &BudgetInput {
            free_bytes: device_bytes_free(gpu),
            allowed_bytes: options.gpu_memory_bytes,
            pool_slots: options.pool_slots,
            context_len,
            prefill_chunk,
            decode_splits: tuning.decode_splits,
            tile_max: tuning.tokens_many,
            resident_bytes: dense_bytes - table_bytes,
            range_bytes: gpu.info().limits.largest_binding(),
            staging_bytes: u64::from(span_bytes_max(config)) * u64::from(READS_IN_FLIGHT_MAX),
            token_table_bytes: table_bytes,
        },
    )
}
