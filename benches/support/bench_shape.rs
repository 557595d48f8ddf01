//! The full Flint's shapes, and buffers of them: activations once, weights in as many copies as no cache holds.
//!
//! - Owns: buffers. In: a device. Out: what kernels are bound with.
//! - Invariants: every value is finite; every pick has a slot. Times do not depend on the numbers beyond that.

use flint_rt::gpu::{Buffer, GpuError};
use flint_rt::kernels::{
    Argmax, Attention, AttentionShape, Binder, ExpertPool, KernelShape, ManyForm, Matrix, MatrixPiece,
    Pipelines, TileBuffers, Tuning,
};
use flint_rt::model::hparams::FlintConfig;

use super::device::Device;

/// Bytes of weights that one recording walks through.
const WALK_BYTES: u64 = 256 << 20;

/// Copies of a weight at most.
const COPIES_MAX: u64 = 64;

/// The dimensions.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) embed: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    pub(crate) ffn: u32,
    pub(crate) shared_ffn: u32,
    pub(crate) experts: u32,
    pub(crate) experts_used: u32,
    pub(crate) expert_ffn: u32,
    pub(crate) vocabulary: u32,
    /// Tokens in the caches.
    pub(crate) context: u32,
}

impl Shape {
    pub(crate) fn q_dim(&self) -> u32 {
        self.heads * self.head_dim
    }

    pub(crate) fn kv_dim(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// Gate, up or down of an expert.
    pub(crate) fn expert_matrix_bytes(&self) -> u64 {
        FlintConfig::matrix_bytes(self.expert_ffn, self.embed)
    }

    pub(crate) fn attention(&self, window: u32) -> AttentionShape {
        AttentionShape {
            head_count: self.heads,
            kv_head_count: self.kv_heads,
            head_dim: self.head_dim,
            window,
            is_rotated: true,
            ring_rows: self.context,
            epsilon: 1e-6,
        }
    }
}

/// Activations and tables, each large enough for every kernel that uses it.
pub(crate) struct Buffers {
    control_one: Buffer,
    control_many: Buffer,
    pub(crate) rows: Buffer,
    pub(crate) row_index: Buffer,
    pub(crate) x: Buffer,
    pub(crate) norm: Buffer,
    pub(crate) normed: Buffer,
    pub(crate) wide_in: Buffer,
    pub(crate) wide_out: Buffer,
    pub(crate) k: Buffer,
    pub(crate) v: Buffer,
    pub(crate) head_norm: Buffer,
    pub(crate) angles: Buffer,
    pub(crate) k_cache: Buffer,
    pub(crate) v_cache: Buffer,
    pub(crate) partial: Buffer,
    pub(crate) sinks: Buffer,
    pub(crate) router_logits: Buffer,
    pub(crate) forced: Buffer,
    pub(crate) table: Buffer,
    pub(crate) routes: Buffer,
    pub(crate) report: Buffer,
    pub(crate) tiles: TileBuffers,
    pub(crate) expert_hidden: Buffer,
    pub(crate) expert_rows: Buffer,
    pub(crate) argmax_partial: Buffer,
    pub(crate) argmax_result: Buffer,
    pub(crate) counters: Buffer,
}

/// Shapes, pipelines and buffers.
pub(crate) struct Model<'a> {
    device: &'a Device,
    pub(crate) shape: Shape,
    pub(crate) prompt_tokens: u32,
    pipelines: Pipelines,
    pub(crate) buffers: Buffers,
}

impl<'a> Model<'a> {
    pub(crate) fn new(device: &'a Device) -> Result<Self, GpuError> {
        let is_software = device.is_software();
        let shape = Shape {
            embed: 2048,
            heads: 32,
            kv_heads: 4,
            head_dim: 128,
            ffn: 6144,
            shared_ffn: 1024,
            experts: 256,
            experts_used: 6,
            expert_ffn: 512,
            vocabulary: if is_software { 150_144 / 16 } else { 150_144 },
            context: if is_software { 1024 } else { 4096 },
        };
        let prompt_tokens = if is_software { 16 } else { 2048 };
        let compiled = KernelShape {
            head_dim: shape.head_dim,
            group: shape.heads / shape.kv_heads,
            expert_count: shape.experts,
            experts_used: shape.experts_used,
        };
        let pipelines = Pipelines::new(&device.gpu, compiled, {
            let info = device.gpu.info();
            let form = ManyForm::from_environment()?;
            form.map_or(Tuning::of(info), |form| Tuning::of(info).with_form(info, form))
        })?;
        let buffers = Buffers::new(device, &pipelines, &shape, prompt_tokens)?;
        Ok(Self { device, shape, prompt_tokens, pipelines, buffers })
    }

    /// What kernels of a single token are bound with.
    pub(crate) fn one(&self) -> Binder<'_> {
        self.binder(&self.buffers.control_one, 1)
    }

    /// What kernels of a prompt are bound with.
    pub(crate) fn many(&self) -> Binder<'_> {
        self.binder(&self.buffers.control_many, self.prompt_tokens)
    }

    /// How products of prompts are computed: what suits the device, or what `FLINT_RT_PROMPT_KERNELS` names.
    pub(crate) fn prompt_form(&self) -> ManyForm {
        self.pipelines.tuning().many.form
    }

    fn binder<'b>(&'b self, control: &'b Buffer, tokens_max: u32) -> Binder<'b> {
        Binder { gpu: &self.device.gpu, pipelines: &self.pipelines, control, tokens_max }
    }
}

impl Buffers {
    fn new(device: &Device, pipelines: &Pipelines, shape: &Shape, tokens: u32) -> Result<Self, GpuError> {
        let floats = |name, count: u64| device.filled(name, count * 4);
        let w = |count: u32| u64::from(count);
        let (t, used, splits) = (w(tokens), w(shape.experts_used), pipelines.tuning().decode_splits);
        let widest = shape.ffn.max(shape.q_dim());
        // stop, token count, position of the first token, and the rest.
        let control = |count, position| device.holding("control", &[0, count, position, 0, 0, 0, 0, 0]);
        let cache = |name| device.filled(name, cache_bytes(shape));
        Ok(Self {
            control_one: control(1, shape.context - 1)?,
            control_many: control(tokens, 0)?,
            rows: floats("rows", w(shape.embed))?,
            row_index: device.holding("row index", &[0])?,
            x: floats("x", w(shape.embed))?,
            norm: floats("norm", w(shape.embed))?,
            normed: floats("normed", w(shape.embed))?,
            wide_in: floats("in", t * w(widest))?,
            wide_out: floats("out", (t * w(widest)).max(w(shape.vocabulary)))?,
            k: floats("k", w(shape.kv_dim()))?,
            v: floats("v", w(shape.kv_dim()))?,
            head_norm: floats("head norm", w(shape.head_dim))?,
            angles: floats("angles", w(shape.head_dim))?,
            k_cache: cache("k cache")?,
            v_cache: cache("v cache")?,
            partial: floats("partial", Attention::partial_words(splits, shape.heads, shape.head_dim, 1))?,
            sinks: floats("sinks", w(shape.heads))?,
            router_logits: floats("router logits", w(shape.experts))?,
            forced: device.holding("forced", &(0..shape.experts_used).collect::<Vec<_>>())?,
            table: device.holding("table", &(0..shape.experts).collect::<Vec<_>>())?,
            routes: floats("routes", 2 * used)?,
            report: floats("report", 2 * used)?,
            tiles: TileBuffers { tiles: floats("tiles", 3 * used)?, pairs: floats("pairs", used)? },
            expert_hidden: floats("expert hidden", t * used * w(shape.expert_ffn))?,
            expert_rows: floats("expert rows", t * used * w(shape.embed))?,
            argmax_partial: floats("argmax partial", Argmax::partial_words(1))?,
            argmax_result: floats("argmax result", 1)?,
            counters: device.holding("counters", &[0])?,
        })
    }
}

/// A cache of keys or values, f16.
fn cache_bytes(shape: &Shape) -> u64 {
    u64::from(shape.context) * u64::from(shape.kv_dim()) * 2
}

/// How many copies of a weight no cache holds.
fn copies(device: &Device, bytes: u64) -> u64 {
    if device.is_software() { 1 } else { WALK_BYTES.div_ceil(bytes).clamp(1, COPIES_MAX) }
}

/// Copies of a matrix.
pub(crate) struct Repeated {
    matrices: Vec<Matrix>,
    /// Of one.
    pub(crate) bytes: u64,
}

/// The experts of a recording.
pub(crate) struct Experts {
    pub(crate) pool: ExpertPool,
    /// Which slots each run of the kernel uses.
    pub(crate) tiles: Vec<TileBuffers>,
    /// Tiles of one run.
    pub(crate) tiles_each: u32,
    /// Experts of one run.
    pub(crate) experts_each: u32,
    /// Pairs of a tile, but of the last.
    pub(crate) pairs_a_tile: u32,
}

impl Repeated {
    /// Q4_1 matrices.
    pub(crate) fn matrices(device: &Device, row_count: u32, column_count: u32) -> Result<Self, GpuError> {
        let bytes = FlintConfig::matrix_bytes(row_count, column_count);
        let matrix = |_| {
            let blocks = device.filled("matrix", bytes)?;
            let pieces = vec![MatrixPiece { blocks, row_first: 0, row_count }];
            Ok(Matrix { pieces, row_count, column_count })
        };
        let matrices = (0..copies(device, bytes)).map(matrix).collect::<Result<_, GpuError>>()?;
        Ok(Self { matrices, bytes })
    }

    pub(crate) fn count(&self) -> usize {
        self.matrices.len()
    }

    pub(crate) fn matrix(&self, copy: usize) -> Matrix {
        self.matrices[copy].clone()
    }

    /// Matrices of floats.
    pub(crate) fn floats(device: &Device, count: u32) -> Result<Vec<Buffer>, GpuError> {
        let bytes = u64::from(count) * 4;
        (0..copies(device, bytes)).map(|_| device.filled("floats", bytes)).collect()
    }

    /// Keys and values.
    pub(crate) fn caches(device: &Device, shape: &Shape) -> Result<Vec<(Buffer, Buffer)>, GpuError> {
        let cache = |name| device.filled(name, cache_bytes(shape));
        (0..copies(device, 2 * cache_bytes(shape))).map(|_| Ok((cache("k")?, cache("v")?))).collect()
    }

    /// A pool, and for each run the slots that `tokens` tokens use: of one token its picks, of a prompt as many experts as it
    /// has picks of, each by as many tokens as a tile holds.
    pub(crate) fn experts(device: &Device, model: &Model<'_>, tokens: u32) -> Result<Experts, GpuError> {
        let shape = &model.shape;
        let tuning = model.pipelines.tuning();
        let per_tile =
            if tokens == 1 { 1 } else { tuning.tile_pairs(tokens, shape.experts_used, shape.experts) };
        let pairs = tokens * shape.experts_used;
        let tiles_each = pairs.div_ceil(per_tile);
        let experts_each = tiles_each.min(shape.experts);
        let record_bytes = 3 * shape.expert_matrix_bytes();
        let runs = copies(device, u64::from(experts_each) * record_bytes);
        let runs = u32::try_from(runs).expect("few runs");
        // One buffer a run: a binding of all of them would be over some devices' limit.
        let runs = runs.min(flint_shaders::layout::POOL_BUFFERS);
        let buffer = |_| device.filled("slots", u64::from(experts_each) * record_bytes);
        let buffers = (0..runs).map(buffer).collect::<Result<_, _>>()?;
        let pool = ExpertPool {
            buffers,
            slots_per_buffer: experts_each,
            record_bytes,
            gate_bytes: shape.expert_matrix_bytes(),
        };
        let all_pairs: Vec<u32> = (0..pairs).collect();
        let tiles = |run: u32| {
            // Slot, first pair, pairs.
            let tile = |tile: u32| {
                let first = tile * per_tile;
                [run * experts_each + tile % experts_each, first, per_tile.min(pairs - first)]
            };
            Ok(TileBuffers {
                tiles: device.holding("tiles", &(0..tiles_each).flat_map(tile).collect::<Vec<_>>())?,
                pairs: device.holding("pairs", &all_pairs)?,
            })
        };
        let tiles = (0..runs).map(tiles).collect::<Result<_, GpuError>>()?;
        Ok(Experts { pool, tiles, tiles_each, experts_each, pairs_a_tile: per_tile })
    }
}
