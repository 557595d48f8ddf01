//! Products with one row at a model's shapes, by rows and subgroups of a workgroup.

use std::fmt;

use flint_rt::gpu::{Buffer, GpuError, Recorder};
use flint_rt::kernels::{
    Binder, ExpertDown, ExpertGateUp, ExpertPool, GateUp, Matmul, Matrix, MatrixPiece, Pipelines, Rows,
    TileBuffers, Tuning,
};
use flint_rt::model::hparams::FlintConfig;
use serde::Serialize;

use super::Bench;
use super::costs::{Costs, kernel_shape};
use crate::exit::{Failure, Outcome};
use crate::interrupt;
use crate::terminal::Bar;

/// Weights that a recording goes through: more than a device's caches hold; on a software device less.
const WALK_BYTES: u64 = 256 << 20;
const WALK_BYTES_SOFTWARE: u64 = 1 << 20;

/// Copies of a matrix: at least so many, and of the smallest at most.
const COPIES: (u64, u64) = (2, 512);

/// Rows and subgroups that are tried.
const TRIES: [u32; 4] = [1, 2, 4, 8];

/// The table's head.
pub(super) const TITLES: &str = "| matrix | MB | rows | subgroups | stream GB/s | of memory | stream us | dependent us |\n\
     | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |";

/// One shape with one way to cut it up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct MatrixRow {
    /// What it is in the model, and its rows by columns.
    pub(super) matrix: String,
    pub(super) bytes: u64,
    pub(super) rows: u32,
    pub(super) subgroups: u32,
    /// Whether the model would be run with these.
    pub(super) is_chosen: bool,
    /// As a stream of dispatches that wait for nothing.
    pub(super) stream_gb_s: f64,
    /// Of the faster of copy and fill.
    pub(super) stream_share: f64,
    pub(super) stream_us: f64,
    /// With a barrier between one and the next.
    pub(super) dependent_us: f64,
}

impl fmt::Display for MatrixRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "| {}{} | {:.2} | {} | {} | {:.1} | {:.1}% | {:.2} | {:.2} |",
            self.matrix,
            if self.is_chosen { " *" } else { "" },
            self.bytes as f64 / 1e6,
            self.rows,
            self.subgroups,
            self.stream_gb_s,
            100.0 * self.stream_share,
            self.stream_us,
            self.dependent_us
        )
    }
}

/// What is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A matrix.
    Plain,
    /// Two, into SwiGLU.
    Pair,
    /// The gate and up matrices of a token's experts.
    ExpertPairs,
    /// Their down matrices.
    ExpertDowns,
}

/// A product of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    kind: Kind,
    rows: u32,
    columns: u32,
}

/// The products of a token.
fn shapes(config: &FlintConfig) -> Vec<Shape> {
    let (embed, q) = (config.embed_dim, config.head_count * config.head_dim);
    let kv = config.kv_head_count * config.head_dim;
    let shape = |name, kind, rows, columns| Shape { name, kind, rows, columns };
    vec![
        shape("q, k and v in one", Kind::Plain, q + 2 * kv, embed),
        shape("q", Kind::Plain, q, embed),
        shape("k or v", Kind::Plain, kv, embed),
        shape("o", Kind::Plain, embed, q),
        shape("lead gate and up", Kind::Pair, config.ffn_dim, embed),
        shape("lead down", Kind::Plain, embed, config.ffn_dim),
        shape("shared gate and up", Kind::Pair, config.shared_ffn_dim, embed),
        shape("shared down", Kind::Plain, embed, config.shared_ffn_dim),
        shape("experts' gate and up", Kind::ExpertPairs, config.expert_ffn_dim, embed),
        shape("experts' down", Kind::ExpertDowns, embed, config.expert_ffn_dim),
        shape("head", Kind::Plain, config.vocabulary, embed),
    ]
}

impl Shape {
    fn matrix_bytes(&self) -> u64 {
        FlintConfig::matrix_bytes(self.rows, self.columns)
    }

    /// Weights of one dispatch.
    fn bytes(&self, used: u32) -> u64 {
        self.matrix_bytes()
            * match self.kind {
                Kind::Plain => 1,
                Kind::Pair => 2,
                Kind::ExpertPairs => 2 * u64::from(used),
                Kind::ExpertDowns => u64::from(used),
            }
    }

    fn title(&self, used: u32) -> String {
        let size = format!("{} x {}", self.rows, self.columns);
        match self.kind {
            Kind::Plain => format!("{}, {size}", self.name),
            Kind::Pair => format!("{}, 2 x {size}", self.name),
            Kind::ExpertPairs => format!("{}, {used} x 2 x {size}", self.name),
            Kind::ExpertDowns => format!("{}, {used} x {size}", self.name),
        }
    }
}

/// A kernel on its own copy of the weights.
enum Product {
    Plain(Matmul),
    Pair(GateUp),
    ExpertPairs(ExpertGateUp, u32),
    ExpertDowns(ExpertDown, u32),
}

impl Product {
    fn record(&self, recorder: &mut Recorder) {
        let one = Rows::Few(1);
        match self {
            Self::Plain(kernel) => kernel.record(recorder, one),
            Self::Pair(kernel) => kernel.record(recorder, one),
            Self::ExpertPairs(kernel, used) => kernel.record(recorder, one, 0, *used),
            Self::ExpertDowns(kernel, used) => kernel.record(recorder, one, 0, *used),
        }
    }
}

/// Weights, as many copies as no cache holds, and what goes with each.
struct Weights {
    first: Vec<Buffer>,
    second: Vec<Buffer>,
    target: Vec<Buffer>,
    tiles: TileBuffers,
}

impl Weights {
    fn new(bench: &Bench, shape: &Shape, used: u32) -> Result<Self, GpuError> {
        let walk = if bench.gpu.info().is_software() { WALK_BYTES_SOFTWARE } else { WALK_BYTES };
        let copies = walk.div_ceil(shape.bytes(used)).clamp(COPIES.0, COPIES.1);
        let each = |name: &str, bytes: u64| -> Result<Vec<Buffer>, GpuError> {
            (0..copies).map(|_| bench.filled(name, bytes)).collect()
        };
        let is_of_experts = matches!(shape.kind, Kind::ExpertPairs | Kind::ExpertDowns);
        // A record of an expert has three matrices.
        let bytes = if is_of_experts { 3 * u64::from(used) } else { 1 } * shape.matrix_bytes();
        let second = if shape.kind == Kind::Pair { each("second matrix", bytes)? } else { Vec::new() };
        let targets = if is_of_experts { u64::from(used) } else { 1 };
        // Slot, first pair, one pair.
        let tiles: Vec<u32> = (0..used).flat_map(|pair| [pair, pair, 1]).collect();
        Ok(Self {
            first: each("matrix", bytes)?,
            second,
            target: each("result", targets * u64::from(shape.rows) * 4)?,
            tiles: TileBuffers {
                tiles: bench.holding("tiles", &tiles)?,
                pairs: bench.holding("pairs", &(0..used).collect::<Vec<_>>())?,
            },
        })
    }
}

fn products(
    on: &Binder<'_>,
    shape: &Shape,
    weights: &Weights,
    x: &Buffer,
    used: u32,
) -> Result<Vec<Product>, GpuError> {
    let matrix = |buffer: &Buffer| Matrix {
        pieces: vec![MatrixPiece { blocks: buffer.clone(), row_first: 0, row_count: shape.rows }],
        row_count: shape.rows,
        column_count: shape.columns,
    };
    let pool = |buffer: &Buffer| ExpertPool {
        buffers: vec![buffer.clone()],
        slots_per_buffer: used,
        record_bytes: 3 * shape.matrix_bytes(),
        gate_bytes: shape.matrix_bytes(),
    };
    let product = |(copy, first): (usize, &Buffer)| {
        let target = &weights.target[copy];
        Ok(match shape.kind {
            Kind::Plain => Product::Plain(Matmul::new(on, x, &matrix(first), target, false)?),
            Kind::Pair => {
                let second = matrix(&weights.second[copy]);
                Product::Pair(GateUp::new(on, x, &matrix(first), &second, target)?)
            }
            Kind::ExpertPairs => Product::ExpertPairs(
                ExpertGateUp::new(on, x, &weights.tiles, target, &pool(first), shape.rows, shape.columns)?,
                used,
            ),
            Kind::ExpertDowns => Product::ExpertDowns(
                ExpertDown::new(on, x, &weights.tiles, target, &pool(first), shape.columns, shape.rows)?,
                used,
            ),
        })
    };
    weights.first.iter().enumerate().map(product).collect()
}

/// Measures every shape with every way to cut it up.
pub(super) fn measure(
    bench: &Bench,
    config: &FlintConfig,
    chosen: Tuning,
    costs: &Costs,
    bar: &Bar,
) -> Outcome<Vec<MatrixRow>> {
    let gpu = &bench.gpu;
    let limits = &gpu.info().limits;
    let lanes = gpu.info().subgroup_size;
    let most = (limits.workgroup_len / lanes).min(limits.workgroup_subgroups);
    let ways = TRIES.into_iter().flat_map(|rows| TRIES.map(|subgroups| (rows, subgroups)));
    let mut tunings: Vec<Tuning> = ways
        .filter(|&(_, subgroups)| subgroups <= most)
        .map(|(rows_one, subgroups_one)| Tuning { rows_one, subgroups_one, ..chosen })
        .collect();
    if !tunings.contains(&chosen) {
        tunings.push(chosen);
    }
    let shapes = shapes(config);
    let total = (tunings.len() * (1 + shapes.len())) as u64;
    let mut done = 0;
    let mut step = |what: String| -> Outcome {
        if interrupt::is_requested() {
            return Err(Failure::Interrupted);
        }
        bar.message(what);
        bar.set(done, total);
        done += 1;
        Ok(())
    };
    let mut pipelines = Vec::new();
    for tuning in &tunings {
        step("compiling".to_owned())?;
        pipelines.push(Pipelines::new(gpu, kernel_shape(config), *tuning)?);
    }
    let control = bench.holding("control", &[0, 1, 0, 0, 0, 0, 0, 0])?;
    let used = config.experts_used;
    let widest = shapes.iter().map(|shape| u64::from(shape.columns)).max().unwrap_or(1);
    let x = bench.filled("x", widest * u64::from(used) * 4)?;
    let mut rows = Vec::new();
    for shape in &shapes {
        if shape.bytes(used) > limits.largest_binding() {
            // The model has it in pieces, whose rates are no others.
            continue;
        }
        let weights = Weights::new(bench, shape, used)?;
        for (tuning, pipelines) in tunings.iter().zip(&pipelines) {
            step(shape.name.to_owned())?;
            let on = Binder { gpu, pipelines, control: &control, tokens_max: 1 };
            let products = products(&on, shape, &weights, &x, used)?;
            let stream = bench.timed(|recorder| products.iter().for_each(|one| one.record(recorder)))?;
            let dependent = bench.timed(|recorder| {
                for product in &products {
                    product.record(recorder);
                    recorder.barrier();
                }
            })?;
            let count = products.len() as f64;
            let (stream, dependent) = (bench.seconds(&stream)? / count, bench.seconds(&dependent)? / count);
            let gb_s = shape.bytes(used) as f64 / stream / 1e9;
            rows.push(MatrixRow {
                matrix: shape.title(used),
                bytes: shape.bytes(used),
                rows: tuning.rows_one,
                subgroups: tuning.subgroups_one,
                is_chosen: *tuning == chosen,
                stream_gb_s: gb_s,
                stream_share: gb_s / costs.memory_gb_s(),
                stream_us: stream * 1e6,
                dependent_us: dependent * 1e6,
            });
        }
    }
    Ok(rows)
}
