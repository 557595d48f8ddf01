//! `cargo bench --bench kernels`: every kernel at the full Flint's shapes: its bytes a second beside what the device's memory
//! is seen to move: by a copy within the device, reads and writes together, or by a fill, whichever is faster.
//!
//! Bytes are those that a kernel cannot do without: weights once, keys and values once, or for kernels without either what
//! they read and write of activations. One recording runs a kernel on several copies of its weights in turn, more than a
//! device's caches hold, with a barrier behind each as in a token. Activations are in the caches, as they are in a token.
//! A software device gets one copy, a shorter context, fewer tokens of a prompt and a part of the vocabulary.

#[path = "support/bench_shape.rs"]
mod bench_shape;
#[path = "support/clock.rs"]
mod clock;
#[path = "support/device.rs"]
mod device;
#[path = "support/paired.rs"]
mod paired;

use bench_shape::{Model, Repeated};
use clock::Clock;
use device::Device;
use flint_rt::base::ids::LayerIndex;
use flint_rt::gpu::{Commands, GpuError};
use flint_rt::kernels::{
    Argmax, Attention, Combine, Counters, Embed, ExpertDown, ExpertGateUp, ForceRoutes, GateUp, Matmul,
    RmsNorm, Rope, Route, RoutePlace, Router, Rows, attention::RopeBuffers, router::RouteBuffers,
};
use paired::{Bench, Limit, Work};

/// Bytes that are copied and filled for the limit: more than a device's caches hold.
const COPY_BYTES: u64 = 256 << 20;

/// The same on a software device.
const COPY_BYTES_SOFTWARE: u64 = 32 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(device) = Device::open()? else { return Ok(()) };
    let mut kernels = Kernels::new(&device)?;
    one_token(&mut kernels)?;
    prompt(&mut kernels)?;
    kernels.bench.finish();
    Ok(())
}

/// Runs of each way to move bytes before the fastest is chosen as the limit.
const TRIES: u64 = 5;

/// The fastest of the plain ways to move bytes.
struct Fastest {
    name: &'static str,
    /// Read and written.
    bytes: u64,
    commands: Commands,
}

impl Fastest {
    fn new(device: &Device, clock: &Clock<'_>) -> Result<Self, GpuError> {
        let bytes = if device.is_software() { COPY_BYTES_SOFTWARE } else { COPY_BYTES };
        let source = device.filled("copied from", bytes)?;
        let target = device.filled("copied to", bytes)?;
        let copy = clock.timed(|recorder| recorder.copy(&source, 0, &target, 0, bytes))?;
        let fill = clock.timed(|recorder| recorder.fill(&target, 0, bytes, 0))?;
        // A copy reads and writes each byte.
        let copy = Self { name: "device copy", bytes: 2 * bytes, commands: copy };
        let fill = Self { name: "device fill", bytes, commands: fill };
        let mut rates = Vec::new();
        for way in [&copy, &fill] {
            clock.run(&way.commands, 1)?;
            let seconds = clock.run(&way.commands, TRIES)?.as_secs_f64() / TRIES as f64;
            rates.push(way.bytes as f64 / seconds);
            println!("{}: {:.1} GB/s", way.name, way.bytes as f64 / seconds / 1e9);
        }
        println!();
        Ok(if rates[1] > rates[0] { fill } else { copy })
    }
}

/// What every case needs.
struct Kernels<'a> {
    bench: Bench,
    device: &'a Device,
    clock: Clock<'a>,
    model: Model<'a>,
    fastest: Fastest,
}

impl<'a> Kernels<'a> {
    fn new(device: &'a Device) -> Result<Self, GpuError> {
        let clock = Clock::new(device)?;
        let fastest = Fastest::new(device, &clock)?;
        let milliseconds = if device.is_software() { 500 } else { 400 };
        let (bench, model) = (Bench::new(milliseconds), Model::new(device)?);
        Ok(Self { bench, device, clock, model, fastest })
    }

    /// Measures one recording that does `work`.
    fn case(&mut self, name: &str, work: Work, commands: &Commands) {
        let (clock, fastest) = (&self.clock, &self.fastest);
        let run = |iterations| clock.run(&fastest.commands, iterations).expect("the device works");
        let limit = Limit { name: fastest.name, work: Work::Bytes(fastest.bytes), run };
        self.bench.case("kernels", name, work, limit, |iterations| {
            clock.run(commands, iterations).expect("the device works")
        });
    }

    /// Measures `count` of a kernel, each of `bytes`.
    fn repeated<K>(
        &mut self,
        name: &str,
        bytes: u64,
        count: usize,
        make: impl Fn(&Model<'a>, usize) -> Result<K, GpuError>,
        record: impl Fn(&K, &mut flint_rt::gpu::Recorder),
    ) -> Result<(), GpuError> {
        self.repeated_work(name, Work::Bytes(bytes), count, make, record)
    }

    /// Measures `count` of a kernel, each of which does `work`.
    fn repeated_work<K>(
        &mut self,
        name: &str,
        work: Work,
        count: usize,
        make: impl Fn(&Model<'a>, usize) -> Result<K, GpuError>,
        record: impl Fn(&K, &mut flint_rt::gpu::Recorder),
    ) -> Result<(), GpuError> {
        let kernels: Vec<K> = (0..count).map(|copy| make(&self.model, copy)).collect::<Result<_, _>>()?;
        let commands = self.clock.timed(|recorder| {
            for kernel in &kernels {
                record(kernel, recorder);
                recorder.barrier();
            }
        })?;
        self.case(name, work.times(count as u64), &commands);
        Ok(())
    }
}

/// Bytes of so many 32-bit words.
fn words(count: u32) -> u64 {
    u64::from(count) * 4
}

/// The kernels of a single token, in the order in which it meets them.
fn one_token(kernels: &mut Kernels<'_>) -> Result<(), GpuError> {
    let shape = kernels.model.shape;
    let (embed, q_dim, kv_dim) = (shape.embed, shape.q_dim(), shape.kv_dim());
    // Kernels without weights run as often as there are layers, or their time is lost in the clock's.
    let light = 48;

    kernels.repeated(
        "embed",
        2 * words(embed),
        light,
        |model, _| {
            Embed::new(&model.one(), &model.buffers.rows, &model.buffers.row_index, &model.buffers.x, embed)
        },
        |kernel, recorder| kernel.record(recorder, 1),
    )?;
    kernels.repeated(
        "rms_norm 2048",
        3 * words(embed),
        light,
        |model, _| {
            let buffers = &model.buffers;
            RmsNorm::new(&model.one(), &buffers.x, &buffers.norm, &buffers.normed, embed, 1e-6)
        },
        |kernel, recorder| kernel.record(recorder, 1, 0, 0),
    )?;
    for (name, rows, columns) in [
        ("matmul q, 4096 x 2048", q_dim, embed),
        ("matmul k or v, 512 x 2048", kv_dim, embed),
        ("matmul o, 2048 x 4096", embed, q_dim),
        ("matmul lead down, 2048 x 6144", embed, shape.ffn),
        ("matmul shared down, 2048 x 1024", embed, shape.shared_ffn),
        ("matmul head, vocabulary x 2048", shape.vocabulary, embed),
    ] {
        let weights = Repeated::matrices(kernels.device, rows, columns)?;
        kernels.repeated(
            name,
            weights.bytes,
            weights.count(),
            |model, copy| {
                let buffers = &model.buffers;
                Matmul::new(&model.one(), &buffers.wide_in, &weights.matrix(copy), &buffers.wide_out, false)
            },
            |kernel, recorder| kernel.record(recorder, 1),
        )?;
    }
    for (name, rows) in
        [("gate_up lead, 2 x 6144 x 2048", shape.ffn), ("gate_up shared, 2 x 1024 x 2048", shape.shared_ffn)]
    {
        let gates = Repeated::matrices(kernels.device, rows, embed)?;
        let ups = Repeated::matrices(kernels.device, rows, embed)?;
        kernels.repeated(
            name,
            2 * gates.bytes,
            gates.count(),
            |model, copy| {
                let buffers = &model.buffers;
                let (gate, up) = (gates.matrix(copy), ups.matrix(copy));
                GateUp::new(&model.one(), &buffers.wide_in, &gate, &up, &buffers.wide_out)
            },
            |kernel, recorder| kernel.record(recorder, 1),
        )?;
    }
    attention(kernels, light)?;
    experts(kernels, light)?;
    let logits = shape.vocabulary;
    kernels.repeated(
        "argmax, vocabulary",
        words(logits),
        light,
        |model, _| {
            let buffers = &model.buffers;
            Argmax::new(
                &model.one(),
                &buffers.wide_out,
                &buffers.argmax_partial,
                &buffers.argmax_result,
                Counters { buffer: &buffers.counters, first: 0 },
                logits,
            )
        },
        |kernel, recorder| kernel.record(recorder, 1),
    )
}

/// Per-head norm, rotation and cache write; attention in a sliding and in a full layer.
fn attention(kernels: &mut Kernels<'_>, light: usize) -> Result<(), GpuError> {
    let shape = kernels.model.shape;
    let heads = shape.q_dim() + 2 * shape.kv_dim();
    kernels.repeated(
        "rope, 32 + 4 + 4 heads",
        2 * words(heads),
        light,
        |model, _| {
            let buffers = &model.buffers;
            let (k_cache, v_cache) = (&buffers.k_cache, &buffers.v_cache);
            let (q, k, v, angles) = (&buffers.wide_in, &buffers.k, &buffers.v, &buffers.angles);
            let (q_norm, k_norm) = (&buffers.head_norm, &buffers.head_norm);
            let bound = RopeBuffers { q, k, v, q_norm, k_norm, angles, k_cache, v_cache };
            Rope::new(&model.one(), &bound, &shape.attention(0))
        },
        |kernel, recorder| kernel.record(recorder, 1),
    )?;
    for (name, window) in [("attention, window of 513", 513), ("attention, all of the context", 0)] {
        let keys = if window == 0 { shape.context } else { window };
        let caches = Repeated::caches(kernels.device, &shape)?;
        // Keys and values as f16.
        let bytes = 2 * u64::from(keys) * u64::from(shape.kv_dim()) * 2;
        kernels.repeated(
            name,
            bytes,
            caches.len(),
            |model, copy| {
                let buffers = &model.buffers;
                let (k_cache, v_cache) = &caches[copy];
                let bound =
                    [&buffers.wide_in, k_cache, v_cache, &buffers.partial, &buffers.sinks, &buffers.wide_out];
                Attention::new(&model.one(), bound, &shape.attention(window))
            },
            Attention::record,
        )?;
    }
    Ok(())
}

/// Router, route, experts and their sum.
fn experts(kernels: &mut Kernels<'_>, light: usize) -> Result<(), GpuError> {
    let shape = kernels.model.shape;
    let (embed, used) = (shape.embed, shape.experts_used);
    let routers = Repeated::floats(kernels.device, shape.experts * embed)?;
    kernels.repeated(
        "router, 256 x 2048 in F32",
        words(shape.experts * embed),
        routers.len(),
        |model, copy| {
            Router::new(
                &model.one(),
                &model.buffers.wide_in,
                &routers[copy],
                &model.buffers.router_logits,
                embed,
            )
        },
        |kernel, recorder| kernel.record(recorder, 1),
    )?;
    kernels.repeated(
        "force_routes, 256 experts",
        2 * words(shape.experts),
        light,
        |model, _| ForceRoutes::new(&model.one(), &model.buffers.router_logits, &model.buffers.forced, 1, 0),
        |kernel, recorder| kernel.record(recorder, 1),
    )?;
    kernels.repeated(
        "route, 6 of 256",
        words(shape.experts),
        light,
        |model, _| {
            let buffers = &model.buffers;
            let (logits, table) = (&buffers.router_logits, &buffers.table);
            let bound = RouteBuffers { logits, table, routes: &buffers.routes, report: &buffers.report };
            let place = RoutePlace { layer: LayerIndex(2), moe_layer: 0, weights_scale: 1.0 };
            Route::new(&model.one(), &bound, &buffers.tiles, place)
        },
        Route::record_resolved,
    )?;
    let picks = Repeated::experts(kernels.device, &kernels.model, 1)?;
    let (gate_up, down) = (2 * shape.expert_matrix_bytes(), shape.expert_matrix_bytes());
    let (hidden, ffn) = (kernels.model.buffers.expert_hidden.clone(), shape.expert_ffn);
    kernels.repeated(
        "expert_gate_up, 6 experts",
        u64::from(used) * gate_up,
        picks.tiles.len(),
        |model, copy| {
            let x = &model.buffers.wide_in;
            ExpertGateUp::new(&model.one(), x, &picks.tiles[copy], &hidden, &picks.pool, ffn, embed)
        },
        |kernel, recorder| kernel.record(recorder, Rows::Few(1), 0, used),
    )?;
    kernels.repeated(
        "expert_down, 6 experts",
        u64::from(used) * down,
        picks.tiles.len(),
        |model, copy| {
            let rows = &model.buffers.expert_rows;
            ExpertDown::new(&model.one(), &hidden, &picks.tiles[copy], rows, &picks.pool, ffn, embed)
        },
        |kernel, recorder| kernel.record(recorder, Rows::Few(1), 0, used),
    )?;
    kernels.repeated(
        "combine, 6 experts",
        words(embed) * u64::from(used + 3),
        light,
        |model, _| {
            let buffers = &model.buffers;
            let bound = [&buffers.routes, &buffers.expert_rows, &buffers.normed, &buffers.x];
            Combine::new(&model.one(), bound, embed)
        },
        |kernel, recorder| kernel.record(recorder, 1),
    )
}

/// Matrix products over the tokens of a prompt, at every shape that there is; arithmetic is their limit.
fn prompt(kernels: &mut Kernels<'_>) -> Result<(), GpuError> {
    let shape = kernels.model.shape;
    let (embed, q_dim, tokens) = (shape.embed, shape.q_dim(), kernels.model.prompt_tokens);
    println!("products of prompts: {}\n", kernels.model.prompt_form());
    let flops = |rows: u32, columns: u32, count: u32| {
        Work::Flops(2 * u64::from(rows) * u64::from(columns) * u64::from(count))
    };
    for (name, rows, columns) in [
        ("matmul q, 4096 x 2048", q_dim, embed),
        ("matmul k or v, 512 x 2048", shape.kv_dim(), embed),
        ("matmul o, 2048 x 4096", embed, q_dim),
        ("matmul lead down, 2048 x 6144", embed, shape.ffn),
        ("matmul shared down, 2048 x 1024", embed, shape.shared_ffn),
    ] {
        let weights = Repeated::matrices(kernels.device, rows, columns)?;
        kernels.repeated_work(
            &format!("prompt of {tokens}: {name}"),
            flops(rows, columns, tokens),
            weights.count(),
            |model, copy| {
                let buffers = &model.buffers;
                Matmul::new(&model.many(), &buffers.wide_in, &weights.matrix(copy), &buffers.wide_out, false)
            },
            |kernel, recorder| kernel.record(recorder, tokens),
        )?;
    }
    for (name, rows) in
        [("gate_up lead, 2 x 6144 x 2048", shape.ffn), ("gate_up shared, 2 x 1024 x 2048", shape.shared_ffn)]
    {
        let gates = Repeated::matrices(kernels.device, rows, embed)?;
        let ups = Repeated::matrices(kernels.device, rows, embed)?;
        kernels.repeated_work(
            &format!("prompt of {tokens}: {name}"),
            flops(2 * rows, embed, tokens),
            gates.count(),
            |model, copy| {
                let buffers = &model.buffers;
                let (gate, up) = (gates.matrix(copy), ups.matrix(copy));
                GateUp::new(&model.many(), &buffers.wide_in, &gate, &up, &buffers.wide_out)
            },
            |kernel, recorder| kernel.record(recorder, tokens),
        )?;
    }
    prompt_experts(kernels)
}

/// The experts of a prompt, each with as many pairs as a tile has columns.
fn prompt_experts(kernels: &mut Kernels<'_>) -> Result<(), GpuError> {
    let shape = kernels.model.shape;
    let (embed, ffn, tokens) = (shape.embed, shape.expert_ffn, kernels.model.prompt_tokens);
    let picks = Repeated::experts(kernels.device, &kernels.model, tokens)?;
    let (tiles, experts, width) = (picks.tiles_each, picks.experts_each, picks.pairs_a_tile);
    let flops = 2 * u64::from(tokens * shape.experts_used) * u64::from(ffn) * u64::from(embed);
    let hidden = kernels.model.buffers.expert_hidden.clone();
    kernels.repeated_work(
        &format!("prompt of {tokens}: expert_gate_up, {experts} experts"),
        Work::Flops(2 * flops),
        picks.tiles.len(),
        |model, copy| {
            let x = &model.buffers.wide_in;
            ExpertGateUp::new(&model.many(), x, &picks.tiles[copy], &hidden, &picks.pool, ffn, embed)
        },
        |kernel, recorder| kernel.record(recorder, Rows::Many(width), 0, tiles),
    )?;
    kernels.repeated_work(
        &format!("prompt of {tokens}: expert_down, {experts} experts"),
        Work::Flops(flops),
        picks.tiles.len(),
        |model, copy| {
            let rows = &model.buffers.expert_rows;
            ExpertDown::new(&model.many(), &hidden, &picks.tiles[copy], rows, &picks.pool, ffn, embed)
        },
        |kernel, recorder| kernel.record(recorder, Rows::Many(width), 0, tiles),
    )
}
