//! Opens a model: from a path to an engine that can generate.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use crate::base::events::EventLog;
use crate::base::host_memory::HostRoom;
use crate::base::ids::{FileIndex, Span, TokenId};
use crate::base::limits::{READS_IN_FLIGHT_MAX, STAGING_PART_BYTES};
use crate::base::region::{HostRegion, page_bytes};
use crate::base::units::align_up;
use crate::disk::{ReadPath, SourceFile};
use crate::engine::host_budget::HostPlan;
use crate::engine::pressure::Pressure;
use crate::engine::pressure::decide::Limits;
use crate::engine::profile::Profiler;
use crate::engine::snapshot::porter::Porter;
use crate::engine::speculate::SpeculateStats;
use crate::engine::speculate::control::SpeculateControl;
use crate::engine::survey::{Room, open_gpu, plan_memory};
use crate::engine::tuned::{self, ChosenTuning};
use crate::engine::{EngineError, EngineOptions, MemoryPlan, SamplingAdvice, Session, SpeculateMode};
use crate::expert::{
    CheckStats, ExpertError, ExpertSpace, InflowStats, PrefetchMode, StreamStats, Streamer, Transport,
    TransportOptions, TransportReport, Watch,
};
use crate::gguf::Gguf;
use crate::gpu::{Clock, Gpu};
use crate::kernels::{KernelShape, Pipelines};
use crate::model::embedding::Embedding;
use crate::model::forced::Forced;
use crate::model::hparams::FlintConfig;
use crate::model::inputs::Inputs;
use crate::model::scratch::Scratch;
use crate::model::sequence::Sequence;
use crate::model::weights::Weights;
use crate::model::{Ahead, DecodeCounters, Model, ModelError, StepCounters};
use crate::sample::SamplerOptions;
use crate::store::{ExpertPieces, Sha256Digest, Source, SourceKind, is_tensor_whole};
use crate::text::chat::StopTokens;
use crate::text::{TextError, Tokenizer, Vocabulary};

/// Bytes of one buffer of host memory at least: dense weights are read in pieces of this size, which drives like.
const HOST_BUFFER_BYTES_MIN: u64 = 256 << 10;

/// Records that host memory holds beyond what it keeps: being read, guessed, or copied from.
const RING_SLOTS: u32 = 2 * READS_IN_FLIGHT_MAX;

/// Marks of a timeline that are in use at a time: those of the recorded steps of a few sessions, and of a chunk's waves.
const TIMELINE_MARKS: u32 = 2048;

/// The tensor that stays on disk: a step reads one row of it a token.
pub(super) const TOKEN_TABLE: &str = "token_embd.weight";

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
    /// Whether every file is read past the page cache.
    pub is_direct: bool,
    /// Whether what is read is compared with checksums.
    pub is_checked: bool,
}

/// A model that is open.
pub struct Engine {
    pub(super) model: Model,
    tokenizer: Tokenizer,
    stops: StopTokens,
    plan: MemoryPlan,
    paths: PathsChosen,
    files: Vec<Arc<SourceFile>>,
    is_drive_modelled: bool,
    chat_template: Option<String>,
    sampling_advice: SamplingAdvice,
    /// Experts that the caller allows in host memory.
    keep_limit: u32,
    /// Watches host memory, where some of it keeps experts.
    pressure: Option<Pressure>,
    /// Time spent in steps, in nanoseconds.
    pub(super) step_ns: u64,
    /// The kernels' sizes, and where they are from.
    tuning: ChosenTuning,
    /// Where dispatches are timed.
    pub(super) profiler: Option<Profiler>,
    /// Steps that were begun.
    pub(super) step_count: u64,
    /// How many drafts a step verifies.
    pub(super) speculation: SpeculateControl,
    pub(super) speculate_stats: SpeculateStats,
    /// What snapshots pass through.
    pub(super) porter: Porter,
}

/// Experts in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostTierUse {
    /// Those that are kept because the device gave them up.
    pub kept: u32,
    /// Those that there is memory for, beyond what is read into.
    pub memory: u32,
    /// Those that may be kept now.
    pub allowed: u32,
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
        Self::open_while(options, &mut |at| {
            progress(at);
            ControlFlow::Continue(())
        })
    }

    /// As [`Self::open`], until `progress` says that it is enough.
    ///
    /// # Errors
    /// As [`Self::open`]; [`ModelError::Stopped`] when `progress` ended it, with all that was taken given back.
    pub fn open_while(
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress) -> ControlFlow<()>,
    ) -> Result<Self, EngineError> {
        let source = Arc::new(Source::open(&options.model)?);
        let config = FlintConfig::from_gguf(source.gguf())?;
        if let Some(routes) = &options.routes {
            let wanted = [config.moe_layer_count(), config.expert_count, config.experts_used];
            if routes.shape() != wanted {
                return Err(EngineError::RoutesOther { got: routes.shape(), wanted });
            }
        }
        let tokenizer = read_tokenizer(source.gguf())?;
        let stops = StopTokens::new(&tokenizer, config.eos);
        let gpu = open_gpu(options)?;
        let chosen = tuned::choose(options, gpu.info(), &config)?;
        let (tuning, options) = (chosen.tuning, &with_tuning(options, &chosen));
        let mut plan = plan_memory(options, source.gguf(), source.kind(), &config, &Room::of(&gpu))?;
        plan.warnings.extend(chosen.note.clone());
        if source.gguf().metadata.get(TOKENIZER_PRE.0).is_none() {
            let (key, taken) = TOKENIZER_PRE;
            plan.warnings.push(format!("the model does not have {key}: its text is split as {taken:?} does"));
        }

        let is_checked = is_checked(options, source.kind());
        // The token table stays on the drive, so nothing else reads all of it: checked beside the other work.
        let table_check = is_checked.then(|| {
            let source = source.clone();
            std::thread::Builder::new().name("token-table".to_owned()).spawn(move || check_table(&source))
        });

        if progress(LoadProgress { phase: LoadPhase::Kernels, done_bytes: 0, total_bytes: 0 }).is_break() {
            return Err(ModelError::Stopped.into());
        }
        let shape = KernelShape {
            head_dim: config.head_dim,
            group: config.head_count / config.kv_head_count,
            expert_count: config.expert_count,
            experts_used: config.experts_used,
        };
        let pipelines = Pipelines::new(&gpu, shape, tuning)?;

        let files = open_files(options, &source)?;
        let mut transport = open_transport(options, &config, source.kind(), &gpu, &files)?;
        if !transport.can_keep() && plan.host.slots > 0 {
            plan.warnings.push(
                "no experts are kept in host memory: this device cannot write where the drive's reads land"
                    .to_owned(),
            );
            plan.host.slots = 0;
        }
        let kept_max = plan.host.slots;
        if is_checked {
            transport.check_against(source.clone());
        }
        let paths = paths_chosen(source.kind(), is_checked, &transport, &files);
        let weights =
            Weights::load(&gpu, &source, &config, &mut transport, &mut |done_bytes, total_bytes| {
                progress(LoadProgress { phase: LoadPhase::Weights, done_bytes, total_bytes })
            })?;

        match table_check {
            None => {}
            Some(Ok(check)) => check.join().expect("invariant: the check returns its errors")?,
            // No thread was to be had for it.
            Some(Err(_)) => check_table(&source)?,
        }
        let table = token_table(&source);
        let FileIndex(file) = table.file;
        let embedding =
            Embedding::new(files[usize::from(file)].clone(), table, config.embed_dim, config.vocabulary);
        let mut streamer = Streamer::new(
            &gpu,
            source.clone(),
            transport,
            plan.pool_slots,
            options.cache_policy.unwrap_or_default(),
            ExpertSpace {
                layer_first: config.lead_layer_count,
                layer_count: config.layer_count - config.lead_layer_count,
                expert_count: config.expert_count,
            },
            kept_max,
        )?;
        #[cfg(feature = "simulation")]
        streamer.poison(options.poison);
        let scratch = Scratch::new(&gpu, &pipelines, &config, plan.prefill_chunk)?;
        let forced = match &options.routes {
            Some(picks) => Some(Forced::new(&gpu, picks.clone(), plan.prefill_chunk)?),
            None => None,
        };
        let chat_template = source.gguf().metadata.str_opt("tokenizer.chat_template")?.map(str::to_owned);
        let sampling_advice = sampling_advice(source.gguf(), &config, &mut plan);
        let log = if options.timeline { EventLog::on() } else { EventLog::off() };
        let watch = Watch::with_timeline(log.clone(), Clock::new(&gpu, TIMELINE_MARKS, log)?);
        streamer.transport_mut().watch_by(watch.clone());
        streamer.set_prefetch(prefetch_mode(options.prefetch));
        let pressure = watch_memory(&plan.host, streamer.kept()[2]);
        let inputs = Inputs::new(&config);
        let model = Model {
            gpu,
            config,
            pipelines,
            weights,
            embedding,
            scratch,
            inputs,
            streamer,
            watch,
            forced,
            counters: DecodeCounters::default(),
            step_counters: StepCounters::default(),
            ahead: [Ahead::default(); 2],
        };
        Ok(Self {
            model,
            tokenizer,
            stops,
            plan,
            paths,
            files,
            chat_template,
            sampling_advice,
            keep_limit: u32::MAX,
            pressure,
            step_ns: 0,
            profiler: None,
            tuning: chosen,
            step_count: 0,
            speculation: SpeculateControl::new(options.speculate),
            speculate_stats: SpeculateStats::default(),
            porter: Porter::default(),
            is_drive_modelled: options.drive_model.is_some(),
        })
    }

    /// Keeps at most `experts` in host memory from now on, and gives the memory of the others back; not more than was planned for.
    /// What others need of the machine's memory goes before.
    pub fn keep_at_most(&mut self, experts: u32) {
        self.keep_limit = experts;
        let allowed = self.kept_allowed();
        self.model.streamer.allow_kept(allowed);
    }

    /// The lesser of what the caller allows and what the machine has to spare.
    fn kept_allowed(&self) -> u32 {
        self.pressure.as_ref().map_or(0, Pressure::kept_max).min(self.keep_limit)
    }

    /// Why host memory did not grow as far as the plan says, if it was refused.
    pub fn host_memory_refused(&self) -> Option<String> {
        self.model.streamer.memory_refused().map(ToString::to_string)
    }

    /// What host memory holds beside the device's slots.
    pub fn host_tier(&self) -> HostTierUse {
        let [kept, memory, allowed] = self.model.streamer.kept();
        HostTierUse { kept, memory, allowed }
    }

    /// Gives host memory back that others need more than this engine does. Every step ends with it; whoever holds an engine that
    /// makes no steps for a while calls it about once a second, which costs some 0.1 ms.
    pub fn look_after_memory(&mut self) {
        let Some(pressure) = &mut self.pressure else { return };
        let streamer = &mut self.model.streamer;
        let [_, memory, allowed] = streamer.kept();
        let has_changed = pressure.kept_max_now(Instant::now(), memory).is_some();
        if has_changed || memory > allowed || (memory == allowed && streamer.has_memory_ahead()) {
            let allowed = if has_changed { self.kept_allowed() } else { allowed };
            self.model.streamer.allow_kept(allowed);
        }
    }

    /// An empty conversation.
    ///
    /// # Errors
    /// When the device has too little memory for its cache.
    pub fn session(&self) -> Result<Session, EngineError> {
        Ok(Session::new(Sequence::new(&self.model, self.plan.context_len)?))
    }

    /// Names the model: a store and the GGUF that it was made of have the same.
    pub fn identity(&self) -> Sha256Digest {
        self.model.streamer.source().identity()
    }

    /// Names what the rows of a cache were computed with, and so which snapshots may be taken up: the weights, this program's version, the
    /// device with its driver, and how sums are split among threads, on which their last bits depend.
    pub fn snapshot_identity(&self) -> Sha256Digest {
        let info = self.model.gpu.info();
        let text = format!(
            "{} {} {} {} {:?}",
            self.model.streamer.source().weights_identity(),
            env!("CARGO_PKG_VERSION"),
            info.name,
            info.driver,
            self.model.pipelines.tuning(),
        );
        Sha256Digest::of(text.as_bytes())
    }

    /// The sizes of the kernels' tiles, and where they are from.
    pub fn tuning(&self) -> &ChosenTuning {
        &self.tuning
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

    /// How the file says that its tokens are best drawn.
    pub fn sampling_advice(&self) -> &SamplingAdvice {
        &self.sampling_advice
    }

    /// Counters of the expert stream since the engine was opened.
    pub fn stream_stats(&self) -> StreamStats {
        self.model.streamer.stats()
    }

    /// Whether likely experts are read ahead of need.
    pub fn prefetches(&self) -> bool {
        self.model.streamer.wants_guesses()
    }

    /// Turns reads ahead on or off; sessions that are open follow.
    pub fn set_prefetch(&mut self, is_on: bool) {
        self.model.streamer.set_prefetch(prefetch_mode(Some(is_on)));
    }

    /// Says when drafts are verified from now on; what was learned of them is forgotten.
    pub fn set_speculate(&mut self, mode: SpeculateMode) {
        self.speculation = SpeculateControl::new(mode);
    }

    /// What was read into host memory, and why, since the engine was opened.
    pub fn inflow_stats(&self) -> InflowStats {
        self.model.streamer.inflow_stats()
    }

    /// Hits and misses of each layer with experts since the engine was opened, as (model layer, hits, misses); their sums are
    /// those of [`Self::stream_stats`].
    pub fn layer_hits(&self) -> Vec<(u32, u64, u64)> {
        let uses = self.model.streamer.layer_uses();
        uses.map(|(layer, uses)| (layer.0, uses.hits, uses.misses)).collect()
    }

    /// Counters of the read queue since the engine was opened.
    pub fn read_counters(&self) -> crate::disk::ReadCounters {
        self.model.streamer.transport().counters()
    }

    /// What was compared with checksums since the engine was opened.
    pub fn check_stats(&self) -> CheckStats {
        self.model.streamer.transport().check_stats()
    }

    /// Empties what lies above the drive: every expert slot, and as far as the kernel follows advice the cached pages of the
    /// model's files. Gives the number of files whose experts are read through the page cache, and so may still lie there.
    /// Under a modelled drive the pages stay and there are no such files: its bytes are to come from there.
    ///
    /// # Errors
    /// When the device fails.
    pub fn clear_tiers(&mut self) -> Result<usize, EngineError> {
        self.model.streamer.clear(&self.model.gpu)?;
        if self.is_drive_modelled {
            return Ok(0);
        }
        for file in &self.files {
            file.drop_cached(0, file.len_bytes());
        }
        Ok(self.files.iter().filter(|file| !file.direct().is_direct()).count())
    }

    /// Lets position 0 of every session have the picks of token `first` of the routes that the engine was opened with;
    /// nothing happens where it was opened with none.
    pub fn start_routes_at(&mut self, first: u64) {
        if let Some(forced) = &mut self.model.forced {
            forced.start_at(first);
        }
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

/// `options` with the tuning that was chosen.
pub(super) fn with_tuning(options: &EngineOptions, chosen: &ChosenTuning) -> EngineOptions {
    EngineOptions { tuning: Some(chosen.tuning), ..options.clone() }
}

fn prefetch_mode(is_on: Option<bool>) -> PrefetchMode {
    match is_on {
        None => PrefetchMode::Auto,
        Some(true) => PrefetchMode::On,
        Some(false) => PrefetchMode::Off,
    }
}

/// Whether what is read is compared with checksums: a store has them, a GGUF has none.
pub(super) fn is_checked(options: &EngineOptions, source: SourceKind) -> bool {
    !options.skip_checks && source == SourceKind::Store
}

/// Compares the token table with its checksum.
/// The file's advice, or none and a warning: what is wrong with it keeps no model from running.
fn sampling_advice(gguf: &Gguf, config: &FlintConfig, plan: &mut MemoryPlan) -> SamplingAdvice {
    let read = SamplingAdvice::of(&gguf.metadata).map_err(|error| error.to_string()).and_then(|advice| {
        let checked = advice.over(SamplerOptions::recommended(0)).check(config.vocabulary);
        checked.map(|()| advice).map_err(|error| error.to_string())
    });
    read.unwrap_or_else(|error| {
        plan.warnings
            .push(format!("the model's advice on sampling (general.sampling.*) is left out: {error}"));
        SamplingAdvice::default()
    })
}

fn check_table(source: &Source) -> Result<(), EngineError> {
    if is_tensor_whole(source, TOKEN_TABLE)? {
        return Ok(());
    }
    let span = token_table(source);
    Err(EngineError::Expert(ExpertError::Damaged {
        what: format!("tensor {TOKEN_TABLE}"),
        path: source.files()[usize::from(span.file.0)].clone(),
        offset_bytes: span.offset_bytes,
        len_bytes: span.len_bytes,
    }))
}

fn token_table(source: &Source) -> Span {
    source.tensor_span(TOKEN_TABLE).expect("invariant: the config was checked")
}

/// The files of a source, each with what was found out about it.
/// Those under a modelled drive go through the page cache, from where its bytes are to come.
pub(super) fn open_files(
    options: &EngineOptions,
    source: &Source,
) -> Result<Vec<Arc<SourceFile>>, EngineError> {
    let open = if options.drive_model.is_some() { SourceFile::open_buffered } else { SourceFile::open };
    source.files().iter().map(|path| Ok(Arc::new(open(path)?))).collect()
}

/// Who watches host memory that may keep `slots` experts; nobody where none are kept.
fn watch_memory(host: &HostPlan, slots: u32) -> Option<Pressure> {
    if slots == 0 {
        return None;
    }
    let a_part =
        u64::try_from(STAGING_PART_BYTES).expect("invariant: a u64 holds every length") / host.slot_bytes;
    Some(Pressure::new(Limits {
        slots_max: slots,
        step_slots: u32::try_from(a_part).unwrap_or(u32::MAX).max(1),
        slot_bytes: host.slot_bytes,
        reserve_bytes: host.reserve_bytes,
        total_bytes: HostRoom::look().most_bytes().unwrap_or(u64::MAX),
    }))
}

/// The way from `files` to the device; the disk may be a simulated one, if a test asks for it.
pub(super) fn open_transport(
    options: &EngineOptions,
    config: &FlintConfig,
    kind: SourceKind,
    gpu: &Gpu,
    files: &[Arc<SourceFile>],
) -> Result<Transport, EngineError> {
    // A modelled drive's bytes are copied out of the page cache, which a ring does in the thread that submits: pread threads do it
    // beside it, as a drive would.
    let modelled_path = options.drive_model.map(|_| ReadPath::Pool);
    let transport_options = TransportOptions {
        read_path: options.read_path.or(modelled_path),
        host_path: options.host_path,
        span_bytes_max: span_bytes_max(config, kind),
        buffer_count: RING_SLOTS as usize * pieces_a_record(config, kind).0,
        depth: READS_IN_FLIGHT_MAX,
    };
    #[cfg(feature = "simulation")]
    if let Some((seed, faults)) = &options.simulation {
        return Ok(Transport::open_simulated(gpu, files, &transport_options, *seed, faults)?);
    }
    if let Some(model) = options.drive_model {
        return Ok(Transport::open_modelled(gpu, files, &transport_options, model)?);
    }
    Ok(Transport::open(gpu, files, &transport_options)?)
}

/// What was chosen on the way.
pub(super) fn paths_chosen(
    source: SourceKind,
    is_checked: bool,
    transport: &Transport,
    files: &[Arc<SourceFile>],
) -> PathsChosen {
    PathsChosen {
        source,
        transport: transport.report().clone(),
        files: files.iter().map(|file| format!("{}: {}", file.path().display(), file.direct())).collect(),
        is_direct: files.iter().all(|file| file.direct().is_direct()),
        is_checked,
    }
}

/// The pieces in which a record is read: how many, and the bytes of the longest.
fn pieces_a_record(config: &FlintConfig, kind: SourceKind) -> (usize, u64) {
    let layout = config.record_layout();
    match kind {
        SourceKind::Store => {
            let span = Span { file: FileIndex(0), offset_bytes: 0, len_bytes: layout.record_bytes() };
            let pieces = ExpertPieces::of_record(span, &layout);
            (pieces.len(), pieces.iter().map(|piece| piece.span.len_bytes).max().unwrap_or(0))
        }
        SourceKind::Gguf => {
            let matrices = layout.matrix_ranges();
            (matrices.len(), matrices.iter().map(|&(_, len_bytes)| len_bytes).max().unwrap_or(0))
        }
    }
}

/// The longest span of one read: a record's largest piece, and a good size for dense weights.
fn span_bytes_max(config: &FlintConfig, kind: SourceKind) -> u32 {
    let (_, piece_bytes) = pieces_a_record(config, kind);
    u32::try_from(piece_bytes.max(HOST_BUFFER_BYTES_MIN)).expect("invariant: a record is below 4 GiB")
}

/// Bytes of host memory that records pass through.
pub(super) fn ring_bytes(config: &FlintConfig, kind: SourceKind) -> u64 {
    u64::from(RING_SLOTS) * host_slot_bytes(config, kind)
}

/// Bytes of host memory that a record takes, with what is read around its pieces on a drive of blocks of 4 KiB.
pub(super) fn host_slot_bytes(config: &FlintConfig, kind: SourceKind) -> u64 {
    const BLOCK: u64 = 4096;
    let unit = BLOCK.max(page_bytes() as u64);
    let buffer_bytes = align_up(u64::from(span_bytes_max(config, kind)) + BLOCK - 1, unit);
    let buffer_bytes = usize::try_from(buffer_bytes).expect("invariant: a record is below 4 GiB");
    (pieces_a_record(config, kind).0 * HostRegion::bytes_a_buffer(buffer_bytes)) as u64
}
