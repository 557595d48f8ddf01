//! The activations of a step: taken once, before the first one.

use flint_shaders::layout::{CONTROL_TOKEN_COUNT, CONTROL_WORDS, GROUP_WORDS, TILE_WORDS};

use crate::base::limits::STEP_SEQUENCES_MAX;
use crate::gpu::{Buffer, Gpu, GpuError, Placement};
use crate::kernels::{Argmax, Attention, Counters, Group, Pipelines, TileBuffers, TileKinds};
use crate::model::grouping::tiles_max;
use crate::model::hparams::FlintConfig;
use crate::model::resident::LAYERS_A_SUBMISSION;

/// Rows whose logits are computed at once: one a sequence of a step, or some of a chunk of which all are wanted.
pub const LOGIT_ROWS: u32 = STEP_SEQUENCES_MAX;

/// The buffers, for up to `tokens_max` tokens a step. T = tokens_max, H = embed_dim, K = experts_used.
pub struct Scratch {
    /// Tokens of the longest step.
    pub tokens_max: u32,
    /// Host to device: u32 `[8]`, copied to `control` when a step begins.
    pub control_upload: Buffer,
    /// u32 `[8]`: stop, token count, position.
    pub control: Buffer,
    /// Device to host: what `control` was when a submission ended.
    pub control_report: Buffer,
    /// Device to host: the stop word at the end of each submission of layers that the device runs alone.
    pub stop_report: Buffer,
    /// Host to device: f32 `[T, H]`, token rows.
    pub rows: Buffer,
    /// u32 `[T]`: 0, 1, 2, ...; rows are handed over in order.
    pub row_index: Buffer,
    /// Host to device: f32 `[T, head_dim]`.
    pub angles_upload: Buffer,
    /// f32 `[T, head_dim]`: cosines and sines.
    pub angles: Buffer,
    /// f32 `[T, H]`: the residual stream.
    pub x: Buffer,
    /// f32 `[max(T, LOGIT_ROWS), H]`: what a norm gives.
    pub normed: Buffer,
    /// f32 `[T, head_count * head_dim]`.
    pub q: Buffer,
    /// f32 `[T, kv_head_count * head_dim]`.
    pub k: Buffer,
    /// f32 `[T, kv_head_count * head_dim]`.
    pub v: Buffer,
    /// f32 `[min(T, STEP_SEQUENCES_MAX), head_count, splits, head_dim + 2]`.
    pub partial: Buffer,
    /// f32 `[T, head_count * head_dim]`.
    pub attended: Buffer,
    /// f32 `[T, max(ffn_dim, shared_ffn_dim)]`.
    pub hidden: Buffer,
    /// f32 `[T, H]`: the shared expert's output.
    pub shared: Buffer,
    /// f32 `[T, expert_count]`.
    pub router_logits: Buffer,
    /// u32 `[T, 2, K]`: picks and weights.
    pub routes: Buffer,
    /// Device to host: the same, of all expert layers: u32 `[moe_layers, tokens of the step, 2, K]`.
    pub route_report: Buffer,
    /// f32 `[STEP_SEQUENCES_MAX, expert_count]`: guesses at the next layer's router logits.
    pub guess_logits: Buffer,
    /// As `control`, but nothing ever stops it: guesses are made beside the kernel that may stop the step.
    pub guess_control: Buffer,
    /// What guesses bind for tiles and pairs; nothing is written to them.
    pub guess_tiles: TileBuffers,
    /// u32 `[STEP_SEQUENCES_MAX, 2, K]`: guessed picks and weights; nobody reads them here.
    pub guess_routes: Buffer,
    /// Device to host: guessed picks and weights of all expert layers: u32 `[moe_layers, tokens of the step, 2, K]`, of few tokens.
    pub guess_report: Buffer,
    /// Host to device: tiles, then pairs.
    pub tiles_upload: Buffer,
    /// Where pairs begin in `tiles_upload`, in bytes.
    pub pairs_offset_bytes: u64,
    /// u32 tiles and pairs.
    pub tiles: TileBuffers,
    /// u32 `[expert_count, 2]`: the pairs of each expert, where the device groups them.
    pub groups: Buffer,
    /// Workgroup counts for the tiles that the device made.
    pub grids: Buffer,
    /// f32 `[T * K, expert_ffn_dim]`.
    pub expert_hidden: Buffer,
    /// f32 `[T * K, H]`.
    pub expert_rows: Buffer,
    /// f32 `[LOGIT_ROWS, vocabulary]`.
    pub logits: Buffer,
    /// Device to host: the same.
    pub logits_report: Buffer,
    /// u32 `[LOGIT_ROWS, parts, 2]`.
    pub argmax_partial: Buffer,
    /// Device to host: u32 `[LOGIT_ROWS]`.
    pub argmax_report: Buffer,
    /// u32: zero between dispatches, and set to it when a step begins, whatever became of the one before. Of attention, of the choice
    /// of experts, of the greedy tokens, one after another.
    pub counters: Buffer,
    /// The same, of guesses: they run beside what uses those.
    pub guess_counters: Buffer,
    kv_head_count: u32,
}

/// Device and host-visible bytes that a scratch takes, for the memory plan.
pub fn scratch_bytes(config: &FlintConfig, decode_splits: u32, tokens_max: u32) -> u64 {
    let t = u64::from(tokens_max);
    let w = |value: u32| u64::from(value);
    let q_dim = w(config.head_count) * w(config.head_dim);
    let kv_dim = w(config.kv_head_count) * w(config.head_dim);
    let k = w(config.experts_used);
    let a_token = 4 * w(config.embed_dim)
        + 2 * q_dim
        + 2 * kv_dim
        + w(config.ffn_dim.max(config.shared_ffn_dim))
        + w(config.expert_count)
        + k * (w(config.expert_ffn_dim) + w(config.embed_dim) + 8)
        + 2 * w(config.head_dim);
    let partial = Attention::partial_words(decode_splits, config.head_count, config.head_dim, tokens_max);
    let logits = 2 * w(LOGIT_ROWS) * w(config.vocabulary);
    let [routes, guesses] = report_words(config, tokens_max);
    4 * (t * a_token + partial + logits + routes + guesses)
}

/// Words of the reports of picks, and of guesses.
fn report_words(config: &FlintConfig, tokens_max: u32) -> [u64; 2] {
    let a_row = u64::from(config.layer_count - config.lead_layer_count) * 2 * u64::from(config.experts_used);
    [tokens_max, STEP_SEQUENCES_MAX].map(|rows| u64::from(rows) * a_row)
}

impl Scratch {
    /// Takes all buffers.
    ///
    /// # Errors
    /// When the device has too little memory.
    pub fn new(
        gpu: &Gpu,
        pipelines: &Pipelines,
        config: &FlintConfig,
        tokens_max: u32,
    ) -> Result<Self, GpuError> {
        let words = |name: &str, count: u64, placement: Placement| gpu.buffer(name, count * 4, placement);
        let device = |name: &str, count: u64| words(name, count, Placement::Device);
        let t = u64::from(tokens_max);
        let w = |value: u32| u64::from(value);
        let (embed, vocabulary) = (w(config.embed_dim), w(config.vocabulary));
        let q_dim = w(config.head_count) * w(config.head_dim);
        let kv_dim = w(config.kv_head_count) * w(config.head_dim);
        let k = w(config.experts_used);
        let [route_words, guess_words] = report_words(config, tokens_max);

        let row_index = words("row index", t, Placement::Upload)?;
        row_index.write(0, &(0..tokens_max).collect::<Vec<u32>>());
        let guess_control = words("guess control", CONTROL_WORDS as u64, Placement::Upload)?;
        let mut guessed = [0_u32; CONTROL_WORDS as usize];
        guessed[CONTROL_TOKEN_COUNT as usize] = STEP_SEQUENCES_MAX;
        guess_control.write(0, &guessed);
        let pairs = tokens_max * config.experts_used;
        // Few rows make tiles of several kinds, at most one a pick; a prompt, tiles of several pairs of one expert.
        let tile_words = (w(tiles_max(pairs, config.expert_count, pipelines.tuning().tile_pairs_least()))
            * TILE_WORDS as u64)
            .max(TileKinds::words_of_few(tokens_max, config.experts_used));
        Ok(Self {
            tokens_max,
            control_upload: words("control upload", CONTROL_WORDS as u64, Placement::Upload)?,
            control: device("control", CONTROL_WORDS as u64)?,
            control_report: words("control report", CONTROL_WORDS as u64, Placement::Readback)?,
            stop_report: words(
                "stop report",
                u64::from(config.layer_count).div_ceil(LAYERS_A_SUBMISSION as u64),
                Placement::Readback,
            )?,
            rows: words("token rows", t * embed, Placement::Upload)?,
            row_index,
            angles_upload: words("angles upload", t * w(config.head_dim), Placement::Upload)?,
            angles: device("angles", t * w(config.head_dim))?,
            x: device("residual", t * embed)?,
            normed: device("normed", t.max(w(LOGIT_ROWS)) * embed)?,
            q: device("queries", t * q_dim)?,
            k: device("keys", t * kv_dim)?,
            v: device("values", t * kv_dim)?,
            partial: device(
                "attention splits",
                Attention::partial_words(
                    pipelines.tuning().decode_splits,
                    config.head_count,
                    config.head_dim,
                    tokens_max,
                ),
            )?,
            attended: device("attended", t * q_dim)?,
            hidden: device("hidden", t * w(config.ffn_dim.max(config.shared_ffn_dim)))?,
            shared: device("shared expert", t * embed)?,
            router_logits: device("router logits", t * w(config.expert_count))?,
            routes: device("routes", t * 2 * k)?,
            route_report: words("route report", route_words, Placement::Readback)?,
            guess_logits: device("guessed logits", w(STEP_SEQUENCES_MAX) * w(config.expert_count))?,
            guess_control,
            guess_tiles: TileBuffers {
                tiles: device("guessed tiles", k * TILE_WORDS as u64)?,
                pairs: device("guessed pairs", w(STEP_SEQUENCES_MAX) * k)?,
            },
            guess_routes: device("guessed routes", w(STEP_SEQUENCES_MAX) * 2 * k)?,
            guess_report: words("guess report", guess_words, Placement::Readback)?,
            tiles_upload: words("tiles upload", tile_words + u64::from(pairs), Placement::Upload)?,
            pairs_offset_bytes: tile_words * 4,
            tiles: TileBuffers {
                tiles: device("tiles", tile_words)?,
                pairs: device("pairs", u64::from(pairs))?,
            },
            groups: device("groups", w(config.expert_count) * GROUP_WORDS as u64)?,
            grids: device("grids", Group::grids_words())?,
            expert_hidden: device("expert hidden", t * k * w(config.expert_ffn_dim))?,
            expert_rows: device("expert rows", t * k * embed)?,
            logits: device("logits", w(LOGIT_ROWS) * vocabulary)?,
            logits_report: words("logits report", w(LOGIT_ROWS) * vocabulary, Placement::Readback)?,
            argmax_partial: device("argmax parts", Argmax::partial_words(LOGIT_ROWS))?,
            argmax_report: words("argmax report", w(LOGIT_ROWS), Placement::Readback)?,
            counters: device("counters", w(argmax_counter(config.kv_head_count) + LOGIT_ROWS))?,
            guess_counters: device("guess counters", w(STEP_SEQUENCES_MAX))?,
            kv_head_count: config.kv_head_count,
        })
    }

    /// Counters of attention: one a row and KV head.
    pub fn attend_counters(&self) -> Counters<'_> {
        Counters { buffer: &self.counters, first: 0 }
    }

    /// Counters of the choice of experts: one a row.
    pub fn pick_counters(&self) -> Counters<'_> {
        Counters { buffer: &self.counters, first: pick_counter(self.kv_head_count) }
    }

    /// Counters of the greedy tokens: one a row.
    pub fn argmax_counters(&self) -> Counters<'_> {
        Counters { buffer: &self.counters, first: argmax_counter(self.kv_head_count) }
    }

    /// Counters of guesses at a choice of experts: one a row.
    pub fn guess_counters(&self) -> Counters<'_> {
        Counters { buffer: &self.guess_counters, first: 0 }
    }
}

fn pick_counter(kv_head_count: u32) -> u32 {
    kv_head_count * STEP_SEQUENCES_MAX
}

fn argmax_counter(kv_head_count: u32) -> u32 {
    pick_counter(kv_head_count) + STEP_SEQUENCES_MAX
}
