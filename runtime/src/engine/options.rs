//! What the caller may decide about an engine; plain data.

use std::path::PathBuf;

use crate::disk::{DriveModel, ReadPath};
use crate::engine::{HostMemory, SpeculateMode};
use crate::expert::{HostPath, Policy};
use crate::gpu::{CopyQueue, DeviceKind};
use crate::kernels::Tuning;
use crate::kernels::tuning::TuningChanges;
use crate::model::forced::ForcedPicks;

/// How to open a model. Everything that is `None` is chosen.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// A GGUF file, or the folder of a store.
    pub model: PathBuf,
    /// A device's number, or part of its name.
    pub device: Option<String>,
    /// Whether the Vulkan validation layers watch every call.
    pub validation: bool,
    /// Where compiled pipelines are kept between runs; nowhere if `None`.
    pub cache_dir: Option<PathBuf>,
    /// Tokens of a conversation; the default is 4,096 or what the model was trained for, whichever is less.
    pub context_len: Option<u32>,
    /// Conversations that are open at a time, each with a cache of its own in device memory; the default is 1.
    pub sessions: Option<u32>,
    /// Expert slots; the default is what device memory allows.
    pub pool_slots: Option<u32>,
    /// Who leaves when a slot is needed; the default is what the simulator found best.
    pub cache_policy: Option<Policy>,
    /// Whether likely experts are read ahead of need, where the pool does not hold all; the default is as long as it pays.
    pub prefetch: Option<bool>,
    /// Whether steps verify drafts of the tokens that may follow, where a conversation repeats itself
    /// ([`crate::engine::Engine::generate`], [`crate::engine::Engine::feed_speculating`]); the default is off.
    pub speculate: SpeculateMode,
    /// Tokens of a prompt that go through the layers together; the default is 512, and up to 4096 where that costs few slots.
    pub prefill_chunk: Option<u32>,
    /// Whether a conversation's bits are to be the same whatever runs beside it, however its prompt is cut and whatever of it was in
    /// the cache. Without it, that is so only for what runs beside it, and only where no prompt shares a step with its tokens.
    pub is_deterministic: bool,
    /// Sizes of the kernels' tiles; the default is what was measured on the device ([`Self::tuning_dir`]), else what suits its kind.
    pub tuning: Option<Tuning>,
    /// Where sizes that were measured are remembered; nothing is if `None`.
    pub tuning_dir: Option<PathBuf>,
    /// Sizes chosen by hand, whatever the others are.
    pub tuning_changes: TuningChanges,
    /// Device bytes that may be used in all; the default is what is free, less a reserve.
    pub gpu_memory_bytes: Option<u64>,
    /// Host memory for experts that device memory does not hold; the default is what is sensible.
    pub host_memory: HostMemory,
    /// Bytes that device and host together may take for model and experts; the default is no other limit than theirs.
    pub memory_bytes: Option<u64>,
    /// Host bytes that the caller will take beside the engine, for conversations that it keeps: of what the host has, and of
    /// [`Self::memory_bytes`], the engine plans with so much less.
    pub aside_bytes: u64,
    /// Lowers what one storage-buffer binding may reach, to run as on a smaller device.
    pub storage_range_max: Option<u64>,
    /// A disk simulated over the model's files: a seed, and the faults that it decides.
    #[cfg(feature = "simulation")]
    pub simulation: Option<(u64, crate::disk::Faults)>,
    /// Fills a slot with what no weight may be, NaNs, before another expert takes it: a test sees who reads it too long.
    #[cfg(feature = "simulation")]
    pub poison: bool,
    /// Picks that take the place of the router's, to measure with: what the model then says means nothing.
    pub routes: Option<ForcedPicks>,
    /// Times of a drive that is not at hand, over bytes that come from the page cache: to measure with.
    pub drive_model: Option<DriveModel>,
    /// Whether copies run on a queue of the device's own, beside kernels; the default is where it has one.
    pub copy_queue: CopyQueue,
    /// How files are read.
    pub read_path: Option<ReadPath>,
    /// How the device reaches what was read.
    pub host_path: Option<HostPath>,
    /// Leaves out the comparison of what is read with a store's checksums. A GGUF in place has none.
    pub skip_checks: bool,
    /// Keeps a timeline of reads, copies and kernels ([`crate::engine::Engine::take_events`]); costs a few percent.
    pub timeline: bool,
}

impl EngineOptions {
    /// The tile sizes, for this kind of device unless they were chosen: for a plan, before or without a device.
    pub(super) fn tuning(&self, kind: DeviceKind) -> Tuning {
        let tuning = self.tuning.unwrap_or_else(|| self.tuning_changes.apply(Tuning::for_device(kind)));
        if self.is_deterministic { tuning.deterministic() } else { tuning }
    }
}

/// Default of [`EngineOptions::context_len`].
pub const CONTEXT_LEN_DEFAULT: u32 = 4096;

/// Default of [`EngineOptions::prefill_chunk`] where a longer one would cost slots ([`super::MemoryPlan::with_longest_chunk`]): from about 128 tokens on a chunk touches nearly every expert, so longer chunks
/// read less a token; 512 tokens of Flint take 90 MB of scratch.
pub const PREFILL_CHUNK_DEFAULT: u32 = 512;
