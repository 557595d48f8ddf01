//! `cargo bench --bench simulate -- [TRACE.json ...]`: cache policies and prefetchers on recorded routes, in the simulator that
//! runs the product's own pool. Without a name the recorded traces of tests/vectors/routes are taken, each and all in turn.

use std::path::{Path, PathBuf};

use clap::Parser;
use flint_rt::engine::drive_cost::DriveCost;
use flint_rt::engine::hit_curve::HIT_RATES;
use flint_rt::engine::simulate::curves::{SHARES, curve, largest_difference};
use flint_rt::engine::simulate::table::{Row, Sweep, markdown, sweep};
use flint_rt::engine::simulate::{CacheKind, TimeCost};
use flint_rt::expert::{Policy, RouteTrace};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Cache and prefetch on recorded routes.
#[derive(Parser)]
struct Arguments {
    /// Route traces: NAME.json, with NAME.picks.u8 beside it.
    traces: Vec<PathBuf>,
    /// Shares of all experts that the pool holds.
    #[arg(long, value_delimiter = ',', default_values_t = SHARES)]
    share: Vec<f64>,
    /// Policies of the product, such as lru or half-life:64; all and the bound if left out.
    #[arg(long, value_delimiter = ',')]
    policy: Vec<Policy>,
    /// Adds tokens a second and the prefetchers, for a drive of so many GB/s.
    #[arg(long)]
    drive: Option<f64>,
    /// Bytes of a record.
    #[arg(long, default_value_t = 1_966_080)]
    record: u64,
    /// Microseconds that the device takes for a layer.
    #[arg(long, default_value_t = 170.0)]
    layer_us: f64,
    /// Microseconds that a layer with a miss takes beside the reads.
    #[arg(long, default_value_t = 264.0)]
    miss_us: f64,
    /// Another model's shape to expand the routes to: layers, experts, experts used.
    #[arg(long, value_delimiter = ',', value_name = "LAYERS,EXPERTS,USED")]
    expand: Option<Vec<u32>>,
    /// The seed of the expansion.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Prints the hit rates of the default policy that `engine::expectation` holds.
    #[arg(long)]
    hit_rates: bool,
    /// What cargo says to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let mut traces = load(&arguments.traces)?;
    if arguments.hit_rates {
        return print_hit_rates(&traces);
    }
    if let Some(shape) = arguments.expand.as_deref() {
        let &[layers, experts, used] = shape else {
            return Err(format!("--expand wants three numbers such as 47,256,6, got {}", shape.len()).into());
        };
        for (name, trace) in &mut traces {
            let expanded = trace.expand(layers, experts, used, arguments.seed)?;
            let difference = largest_difference(trace, &expanded);
            eprintln!(
                "{name}: {}; largest difference of the LRU hit curve from the recording's {difference:.3}",
                expanded.expansion.as_deref().unwrap_or("not expanded")
            );
            *trace = expanded;
        }
    }
    let plan = Sweep {
        shares: arguments.share.clone(),
        caches: match arguments.policy.as_slice() {
            [] => Sweep::caches_to_compare(),
            named => named.iter().copied().map(CacheKind::Pool).chain([CacheKind::Belady]).collect(),
        },
        prefetches: Sweep::prefetches_to_compare(),
        cost: arguments.drive.map(|rate| TimeCost {
            drive: DriveCost::assumed(rate * 1e9, arguments.record),
            layer_seconds: arguments.layer_us * 1e-6,
            ends_seconds: arguments.layer_us * 1e-6,
            miss_seconds: arguments.miss_us * 1e-6,
        }),
    };
    let mut rows: Vec<Row> = Vec::new();
    for (name, trace) in &traces {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len}")?);
        bar.set_prefix(name.clone());
        rows.extend(sweep(trace, name, &plan, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }));
        bar.finish_and_clear();
    }
    match arguments.json {
        true => println!("{}", serde_json::to_string_pretty(&rows)?),
        false => print!("{}", markdown(&rows)),
    }
    Ok(())
}

/// The named traces, or the recorded ones: each, and all in turn.
fn load(paths: &[PathBuf]) -> Result<Vec<(String, RouteTrace)>, Box<dyn std::error::Error>> {
    let name = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if !paths.is_empty() {
        return paths.iter().map(|path| Ok((name(path), RouteTrace::load(path)?))).collect();
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/routes");
    let mut traces = Vec::new();
    for text in ["code", "prose", "chat"] {
        traces.push((text.to_owned(), RouteTrace::load(&folder.join(format!("flint-mini-{text}.json")))?));
    }
    let all = RouteTrace::in_turn(&traces.iter().map(|(_, trace)| trace).collect::<Vec<_>>())?;
    traces.push(("all in turn".to_owned(), all));
    Ok(traces)
}

fn print_hit_rates(traces: &[(String, RouteTrace)]) -> Result<(), Box<dyn std::error::Error>> {
    let of = |wanted: &str| traces.iter().find(|(name, _)| name == wanted).map(|(_, trace)| trace);
    let columns: Option<Vec<_>> = ["code", "all in turn", "prose"].into_iter().map(of).collect();
    let columns = columns.ok_or("hit rates are those of the recorded traces: name none")?;
    let shares = HIT_RATES.map(|(share, _)| share);
    let of = |trace: &&RouteTrace| curve(trace, CacheKind::Pool(Policy::default()), &shares);
    let curves: Vec<_> = columns.iter().map(of).collect();
    println!("// {}", Policy::default());
    for (at, share) in shares.iter().enumerate() {
        println!("    ({share}, [{:.3}, {:.3}, {:.3}]),", curves[0][at], curves[1][at], curves[2][at]);
    }
    Ok(())
}
