//! What this machine would do with a model, found out without loading it.
//!
//! - Owns: nothing that outlives the question, but for the device while a [`Survey`] lives.
//! - In: a header, [`EngineOptions`], and what a machine has free ([`Room`]).
//! - Out: the [`MemoryPlan`] that opening would make, and the paths that it would choose.
//! - Invariants: the plan is the one that [`Engine::open`] uses, made by the same function. No weight is read: paths are
//!   probed by a few blocks of each file and a staging ring that is given back.

use std::sync::Arc;

use crate::base::host_memory::HostRoom;
use crate::base::limits::{PREFILL_CHUNK_MAX, SESSIONS_MAX};
use crate::disk::SourceFile;
use crate::engine::budget::BudgetInput;
use crate::engine::open::{
    PathsChosen, TOKEN_TABLE, host_slot_bytes, is_checked, open_files, open_transport, paths_chosen,
    ring_bytes, with_tuning,
};
use crate::engine::options::{CONTEXT_LEN_DEFAULT, PREFILL_CHUNK_DEFAULT};
use crate::engine::tuned::{self, ChosenTuning};
use crate::engine::{Engine, EngineError, EngineOptions, HostMemory, MemoryPlan};
use crate::expert::HostPath;
use crate::gguf::Gguf;
use crate::gpu::{DeviceKind, Gpu, GpuOptions};
use crate::model::hparams::FlintConfig;
use crate::store::{Source, SourceKind, is_expert_tensor};

/// Shortest conversation that [`fit`] comes down to.
const CONTEXT_LEN_LEAST: u32 = 256;

/// What a device has for a model. Plain data, so that a plan can be made for a device that is not at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRoom {
    /// What it is made of; sizes of kernels follow from it.
    pub kind: DeviceKind,
    /// Bytes that are free in its largest heap of its own.
    pub free_bytes: u64,
    /// Bytes that one storage-buffer binding reaches.
    pub range_bytes: u64,
}

impl DeviceRoom {
    /// What an open device has at this moment.
    pub fn of(gpu: &Gpu) -> Self {
        let heaps = gpu.memory_budget();
        let own = heaps.iter().filter(|heap| heap.is_device_local);
        Self {
            kind: gpu.info().kind,
            free_bytes: own.map(|heap| heap.free_bytes()).max().unwrap_or(0),
            range_bytes: gpu.info().limits.largest_binding(),
        }
    }

    /// Whether its memory is the host's.
    pub fn is_shared(&self) -> bool {
        matches!(self.kind, DeviceKind::Integrated | DeviceKind::Software)
    }
}

/// What a machine has for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Its device.
    pub device: DeviceRoom,
    /// Its host.
    pub host: HostRoom,
}

impl Room {
    /// What there is at this moment.
    pub fn of(gpu: &Gpu) -> Self {
        Self { device: DeviceRoom::of(gpu), host: HostRoom::look() }
    }
}

/// What [`Engine::survey`] found.
pub struct Survey {
    /// The device, open, with nothing on it.
    pub gpu: Gpu,
    /// What goes where, or why it does not fit.
    pub plan: Result<MemoryPlan, EngineError>,
    /// How bytes would travel, or why none could.
    pub paths: Result<PathsChosen, EngineError>,
    /// How kernels would be cut up.
    pub tuning: ChosenTuning,
}

impl Engine {
    /// Finds out what [`Engine::open`] would do with `options`, without reading weights: the device is opened, the memory
    /// is planned, the paths are probed.
    ///
    /// # Errors
    /// When the file is not a model that this runtime runs, or no device opens. A plan that does not fit and paths that
    /// do not work are in the [`Survey`].
    pub fn survey(options: &EngineOptions) -> Result<Survey, EngineError> {
        let source = Source::open(&options.model)?;
        let config = FlintConfig::from_gguf(source.gguf())?;
        let gpu = open_gpu(options)?;
        let tuning = tuned::choose(options, gpu.info(), &config)?;
        let options = &with_tuning(options, &tuning);
        let mut plan = plan_memory(options, source.gguf(), source.kind(), &config, &Room::of(&gpu));
        if let Ok(plan) = &mut plan {
            plan.warnings.extend(tuning.note.clone());
        }
        let paths = probe_paths(options, &source, &config, &gpu);
        Ok(Survey { gpu, plan, paths, tuning })
    }
}

/// The device that `options` name.
///
/// # Errors
/// As [`Gpu::open`].
pub fn open_gpu(options: &EngineOptions) -> Result<Gpu, EngineError> {
    Ok(Gpu::open(&GpuOptions {
        copy_queue: options.copy_queue,
        device: options.device.clone(),
        validation: options.validation,
        cache_dir: options.cache_dir.clone(),
        storage_range_max: options.storage_range_max,
    })?)
}

fn probe_paths(
    options: &EngineOptions,
    source: &Source,
    config: &FlintConfig,
    gpu: &Gpu,
) -> Result<PathsChosen, EngineError> {
    let files: Vec<Arc<SourceFile>> = open_files(options, source)?;
    let transport = open_transport(options, config, source.kind(), gpu, &files)?;
    Ok(paths_chosen(source.kind(), is_checked(options, source.kind()), &transport, &files))
}

/// The memory plan of the model whose header is `gguf` and whose experts are read as `kind` says, on a machine with `room`.
/// `options.model` is not looked at.
///
/// # Errors
/// [`EngineError::OutOfRange`], [`EngineError::MemoryTooSmall`], [`EngineError::HostMemoryTooSmall`],
/// [`EngineError::GpuMemoryTooLarge`], or a pool that kernels could not bind.
pub fn plan_memory(
    options: &EngineOptions,
    gguf: &Gguf,
    kind: SourceKind,
    config: &FlintConfig,
    room: &Room,
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
    let sessions = in_range("number of conversations", options.sessions, 1, SESSIONS_MAX)?;
    let prefill_chunk =
        in_range("prefill chunk", options.prefill_chunk, PREFILL_CHUNK_DEFAULT, PREFILL_CHUNK_MAX)?
            .min(context_len);
    let token_table_bytes = gguf.tensors.get(TOKEN_TABLE).map_or(0, |table| table.len_bytes);
    let dense_bytes: u64 = gguf
        .tensors
        .iter()
        .filter(|tensor| !is_expert_tensor(&tensor.name))
        .map(|tensor| tensor.len_bytes)
        .sum();
    let Room { device, host } = room;
    let tuning = options.tuning(device.kind);
    // On a software device the processors are the wall, not the reads, and long chunks find no room in their caches.
    let decide = match options.prefill_chunk.is_some() || device.kind == DeviceKind::Software {
        true => MemoryPlan::new,
        false => MemoryPlan::with_longest_chunk,
    };
    decide(
        config,
        &BudgetInput {
            free_bytes: device.free_bytes,
            is_shared: device.is_shared(),
            host: host.without(options.aside_bytes),
            host_memory: match (options.host_memory, options.host_path) {
                // The device cannot write where only a copy by the processor leads, so nothing would be kept there.
                (HostMemory::Auto, Some(HostPath::Copy)) => HostMemory::Bytes(0),
                (wanted, _) => wanted,
            },
            host_slot_bytes: host_slot_bytes(config, kind),
            memory_bytes: options.memory_bytes.map(|bytes| bytes.saturating_sub(options.aside_bytes)),
            allowed_bytes: options.gpu_memory_bytes,
            pool_slots: options.pool_slots,
            context_len,
            sessions,
            prefill_chunk,
            decode_splits: tuning.decode_splits,
            tile_max: tuning.tile_pairs_least(),
            resident_bytes: dense_bytes - token_table_bytes,
            range_bytes: device.range_bytes,
            staging_bytes: ring_bytes(config, kind),
            token_table_bytes,
        },
    )
}

/// Options of shorter chunks and, after those, of a shorter conversation, with which the model fits: the first that do,
/// with their plan. What the caller decided is left as it is.
pub fn fit(
    options: &EngineOptions,
    gguf: &Gguf,
    kind: SourceKind,
    config: &FlintConfig,
    room: &Room,
) -> Option<(EngineOptions, MemoryPlan)> {
    let lower = |given: Option<u32>, default: u32, least: u32| -> Vec<Option<u32>> {
        match given {
            Some(value) => vec![Some(value)],
            None => std::iter::successors(Some(default), |value| (value / 2 >= least).then_some(value / 2))
                .map(Some)
                .collect(),
        }
    };
    let context_len_max = CONTEXT_LEN_DEFAULT.min(config.context_len);
    for context_len in lower(options.context_len, context_len_max, CONTEXT_LEN_LEAST.min(context_len_max)) {
        for prefill_chunk in lower(options.prefill_chunk, PREFILL_CHUNK_DEFAULT, 1) {
            let options = EngineOptions { context_len, prefill_chunk, ..options.clone() };
            if let Ok(plan) = plan_memory(&options, gguf, kind, config, room) {
                return Some((options, plan));
            }
        }
    }
    None
}
