//! What can go wrong at the top of the library.

use crate::base::units::display_bytes;
use crate::disk::DiskError;
use crate::engine::snapshot::SnapshotError;
use crate::engine::{HostBill, MemoryBill};
use crate::expert::ExpertError;
use crate::gguf::GgufError;
use crate::gpu::GpuError;
use crate::model::ModelError;
use crate::model::hparams::ConfigError;
use crate::sample::{OptionsError, SampleError};
use crate::store::StoreError;
use crate::text::TextError;

/// What can go wrong when a model is opened or a conversation goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The store or GGUF cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The model's header cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The model is not one that this runtime runs.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model's tokenizer cannot be used.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A file cannot be read.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Experts or weights could not be brought in.
    #[error(transparent)]
    Expert(#[from] ExpertError),
    /// A step failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Sampling options are out of range.
    #[error(transparent)]
    Sampling(#[from] OptionsError),
    /// The logits cannot be sampled.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A conversation could not be kept, or not be brought back.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A number asked for is out of range.
    #[error("{what} of {got} is out of range: {wanted}")]
    OutOfRange {
        /// What was asked for.
        what: &'static str,
        /// The number.
        got: u64,
        /// What is possible.
        wanted: String,
    },
    /// The memory asked for cannot hold the model.
    #[error("{0}")]
    MemoryTooSmall(Box<MemoryBill>),
    /// The host does not have the memory asked for.
    #[error("{0}")]
    HostMemoryTooSmall(Box<HostBill>),
    /// The device does not have the memory asked for.
    #[error(
        "{} of device memory were asked for and {} of it are free: lower --gpu-memory, or leave it out and what is free is \
         used, less a reserve",
        display_bytes(*.asked_bytes), display_bytes(*.free_bytes)
    )]
    GpuMemoryTooLarge {
        /// Bytes asked for.
        asked_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// Routes of another model.
    #[error(
        "the routes have {} layers of {} experts, {} a token, the model {} of {}, {}: expand them to the model's shape",
        got[0], got[1], got[2], wanted[0], wanted[1], wanted[2]
    )]
    RoutesOther {
        /// Layers, experts and picks of the routes.
        got: [u32; 3],
        /// Those of the model.
        wanted: [u32; 3],
    },
    /// A prompt without a token.
    #[error("the prompt has no token")]
    EmptyPrompt,
}
