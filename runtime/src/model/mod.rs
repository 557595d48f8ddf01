//! The network, once, for prompts and for single tokens.
//!
//! - Owns: the resident weights, the activations, the KV caches, and the bound kernels of every layer.
//! - In: token ids and positions; experts through [`crate::expert::Streamer`].
//! - Out: logits, the greedy token, the picks of every layer.
//! - Invariants: streaming changes only the time. A layer's experts run when all of a wave are in slots; each pick writes its
//!   own row, and rows are summed in the router's order.
//!
//! Read [`layer`] for what a layer computes, [`decode`] for how one token runs until an expert is missing, [`prefill`] for
//! how many rows go layer by layer, [`step`] for whose they are.

pub mod hparams;

pub mod angles;

pub mod grouping;

pub mod weights;

pub mod embedding;

pub mod kv_cache;

pub mod scratch;

pub mod inputs;

mod attend;

pub mod layer;

pub mod forced;
mod fused;

pub mod sequence;

pub mod step;

pub mod decode;

pub mod prefill;

mod ahead;

mod resident;

mod waves;

mod error;

pub use ahead::Ahead;
pub use error::ModelError;

use crate::expert::{Streamer, Watch};
use crate::gpu::{Gpu, GpuError, Ticket};
use crate::kernels::{Binder, Pipelines};
use embedding::Embedding;
use forced::Forced;
use hparams::FlintConfig;
use inputs::Inputs;
use scratch::Scratch;
use weights::Weights;

/// A model in memory, ready to step sequences.
pub struct Model {
    /// The device.
    pub gpu: Gpu,
    /// Its numbers.
    pub config: FlintConfig,
    /// Its kernels.
    pub pipelines: Pipelines,
    /// What stays on the device.
    pub weights: Weights,
    /// Token rows, on the host.
    pub embedding: Embedding,
    /// The activations of a step; sequences take turns, or share it.
    pub scratch: Scratch,
    /// What a step begins with.
    pub inputs: Inputs,
    /// The experts.
    pub streamer: Streamer,
    /// Picks that replace the router's, where the model was opened with a trace.
    pub forced: Option<Forced>,
    /// What steps wait for.
    pub watch: Watch,
    /// How tokens came about.
    pub counters: DecodeCounters,
    /// How steps of many rows came about.
    pub step_counters: StepCounters,
    /// Layers that the device is given at once, in steps of few rows and of many.
    pub ahead: [Ahead; 2],
}

/// How steps of many rows went through the device, since the model was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCounters {
    /// Steps that were begun.
    pub steps: u64,
    /// Submissions, but for those of waves of experts.
    pub submissions: u64,
    /// Waits of the host for the picks of layers.
    pub waits: u64,
    /// Expert layers that the device ran without the host, to their end.
    pub layers_alone: u64,
    /// Expert layers at which it stopped for an expert.
    pub stops: u64,
}

/// How single tokens went through the device, since the model was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecodeCounters {
    /// Tokens that were begun.
    pub tokens: u64,
    /// Submissions, each of which the host waited for.
    pub submissions: u64,
    /// Layers' segments submitted, those that a stop made void included.
    pub segments: u64,
    /// Layers at which the device stopped for an expert.
    pub stops: u64,
}

impl Model {
    /// What kernels are bound with, for up to `tokens_max` tokens or rows.
    fn binder(&self, tokens_max: u32) -> Binder<'_> {
        Binder { gpu: &self.gpu, pipelines: &self.pipelines, control: &self.scratch.control, tokens_max }
    }

    /// Waits for work of a step, and first for copies in front of it, so that each counts as what it is.
    fn wait(&mut self, ticket: Ticket) -> Result<(), GpuError> {
        if let Some(copies) = self.streamer.take_copies() {
            self.watch.wait_copy(&self.gpu, copies)?;
        }
        self.watch.wait_gpu(&self.gpu, ticket)
    }
}

/// What a step is to give beside the new KV rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Nothing: part of a prompt.
    Nothing,
    /// The greedy token after the last position.
    Greedy,
    /// The greedy token, and all logits of the last position.
    Logits,
}

/// What the picks of a layer were, for one token or many.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerRoutes {
    /// The model layer.
    pub layer: u32,
    /// `[tokens, experts_used]`, best first.
    pub experts: Vec<u32>,
    /// `[tokens, experts_used]`, in the same order.
    pub weights: Vec<f32>,
}
