//! The flags of `flint-rt synth`.

use std::path::PathBuf;

use clap::Args as ArgsOf;
use clap::builder::RangedU64ValueParser;

use super::shape::Preset;
use crate::stripes::Stripe;

#[derive(Debug, ArgsOf)]
pub(crate) struct SynthArgs {
    /// The GGUF file to write.
    #[arg(value_name = "OUT.gguf", required_unless_present = "store")]
    pub(crate) target: Option<PathBuf>,
    /// Make a store instead, without a GGUF on the way: its name in the store folder, or a path with a slash in it.
    #[arg(long, value_name = "NAME|DIR", conflicts_with_all = ["target", "header_only", "force"])]
    pub(crate) store: Option<PathBuf>,
    /// Folder in which a store is made [default: $XDG_DATA_HOME/flint-rt or ~/.local/share/flint-rt].
    #[arg(long, env = "FLINT_RT_STORE_DIR", value_name = "DIR")]
    pub(crate) store_dir: Option<PathBuf>,
    /// Spread a store's experts over these drives, as `ingest` does: DIR[=WEIGHT],...
    #[arg(
        long,
        value_name = "DIR[=WEIGHT]",
        value_delimiter = ',',
        requires = "store",
        conflicts_with = "target"
    )]
    pub(crate) stripe: Vec<Stripe>,
    /// The dimensions.
    #[arg(long, value_enum)]
    pub(crate) preset: Preset,
    /// Equal seeds give equal bytes, on every machine.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// How uneven the use of the experts is: a layer's n-th most used expert is used about in proportion to n^-S; 0 is even.
    #[arg(long, default_value_t = 0.0, value_name = "S", allow_negative_numbers = true)]
    pub(crate) skew: f64,
    /// Write the header alone and leave a hole for the weights, which takes no room: for looking at, not for running.
    #[arg(long)]
    pub(crate) header_only: bool,
    /// Replace OUT.gguf if it exists.
    #[arg(long)]
    pub(crate) force: bool,
    /// Threads that make and write the file, which do not change its bytes [default: two for each processor].
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(crate) threads: Option<usize>,
    /// Print events as JSON, one a line.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten, next_help_heading = "Dimensions, in place of the preset's")]
    pub(crate) dimensions: DimensionArgs,
}

/// Single dimensions.
#[derive(Debug, ArgsOf)]
pub(crate) struct DimensionArgs {
    /// Layers, lead layers included.
    #[arg(long, value_name = "N", value_parser = dimension(1))]
    pub(crate) layers: Option<u32>,
    /// Layers at the start that have no experts.
    #[arg(long, value_name = "N", value_parser = dimension(0))]
    pub(crate) lead_layers: Option<u32>,
    /// Width of the residual stream.
    #[arg(long, value_name = "N", value_parser = dimension(32))]
    pub(crate) embed: Option<u32>,
    /// Query heads.
    #[arg(long, value_name = "N", value_parser = dimension(1))]
    pub(crate) heads: Option<u32>,
    /// Key and value heads.
    #[arg(long, value_name = "N", value_parser = dimension(1))]
    pub(crate) kv_heads: Option<u32>,
    /// Width of a head.
    #[arg(long, value_name = "N", value_parser = dimension(4))]
    pub(crate) head_dim: Option<u32>,
    /// Width of the lead layers' feed-forward.
    #[arg(long, value_name = "N", value_parser = dimension(32))]
    pub(crate) ffn: Option<u32>,
    /// Experts of a layer.
    #[arg(long, value_name = "N", value_parser = dimension(1))]
    pub(crate) experts: Option<u32>,
    /// Experts that a token uses in a layer.
    #[arg(long, value_name = "N", value_parser = dimension(1))]
    pub(crate) experts_used: Option<u32>,
    /// Width of an expert.
    #[arg(long, value_name = "N", value_parser = dimension(32))]
    pub(crate) expert_ffn: Option<u32>,
    /// Width of the shared expert.
    #[arg(long, value_name = "N", value_parser = dimension(32))]
    pub(crate) shared_ffn: Option<u32>,
    /// Tokens.
    #[arg(long, value_name = "N")]
    pub(crate) vocabulary: Option<u32>,
    /// Keys that a query of a sliding layer sees, its own included.
    #[arg(long, value_name = "N")]
    pub(crate) window: Option<u32>,
    /// Context length.
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<u32>,
    /// `general.alignment`: tensors begin at multiples of it.
    #[arg(long, value_name = "BYTES")]
    pub(crate) alignment: Option<u32>,
}

/// A dimension. The end keeps the product of two within 32 bits, and is far beyond what a Flint has.
fn dimension(from: u64) -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(from..=65_535)
}
