//! The flags of `flint-rt disk-profile`.

use std::path::PathBuf;

use clap::{Args as ArgsOf, ValueEnum};

use crate::args::bytes;

/// Examples, for the end of the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  flint-rt disk-profile MODEL                        what the drive gives for this model's experts
  flint-rt disk-profile --record 1966080 FILE        the same of any file
  flint-rt disk-profile --make-file 8GiB FOLDER      of a file that is made there and removed
  flint-rt disk-profile --seconds 60 /dev/nvme0n1    a minute at one depth, from the whole drive, read-only

It writes nothing to the drive unless --make-file asks for it. The standard set is saved as the drive's profile, which
`flint-rt plan` reads.";

#[derive(Debug, ArgsOf)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DiskProfileArgs {
    /// A store, a GGUF, any file, a folder of files, or a block device, which is only read. Several are read together.
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Bytes of a record, as 1966080 or 2MiB [default: the model's, else 1966080, the full Flint's].
    #[arg(long, value_name = "BYTES", value_parser = record)]
    pub(crate) record: Option<u64>,
    /// Measure every engine, block size and depth: some two minutes.
    #[arg(long, conflicts_with_all = ["engine", "depth", "block", "sequential"])]
    pub(crate) full: bool,
    /// Read for so long at one depth, and show the rate over time [default: not at all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) seconds: Option<u32>,
    /// One measurement instead of the set: by which calls.
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub(crate) engine: Option<Engine>,
    /// One measurement instead of the set: how many blocks are under way, 1 to 64.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) depth: Option<u32>,
    /// One measurement instead of the set: bytes of a block, as 4096 or 1MiB [default: a record].
    #[arg(long, value_name = "BYTES", value_parser = block)]
    pub(crate) block: Option<u64>,
    /// With one measurement: one block after the other.
    #[arg(long)]
    pub(crate) sequential: bool,
    /// Seconds of each measurement [default: 0.6, with --full 0.4, of a single one 5].
    #[arg(long, value_name = "S", value_parser = row_seconds)]
    pub(crate) row_seconds: Option<f64>,
    /// Make a file of so many bytes, which no drive can compress, in the folder PATH, read that, and remove it.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) make_file: Option<u64>,
    /// Do not measure beside a device's copies.
    #[arg(long)]
    pub(crate) no_gpu: bool,
    /// The Vulkan device that copies, as for other commands.
    #[arg(long, env = "FLINT_RT_DEVICE", value_name = "NAME|INDEX")]
    pub(crate) device: Option<String>,
    /// Do not save the drive's profile.
    #[arg(long)]
    pub(crate) no_save: bool,
    /// What to print.
    #[arg(short, long, value_enum, default_value_t = Output::Text, conflicts_with = "json")]
    pub(crate) output: Output,
    /// Print it as JSON: the same as -o json.
    #[arg(long)]
    pub(crate) json: bool,
}

impl DiskProfileArgs {
    /// Whether one measurement was asked for, and not the set.
    pub(super) fn is_single(&self) -> bool {
        self.engine.is_some() || self.depth.is_some() || self.block.is_some() || self.sequential
    }

    /// What to print.
    pub(super) fn output(&self) -> Output {
        if self.json { Output::Json } else { self.output }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Md,
    Csv,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    Ring,
    RingPlain,
    Pool,
    Buffered,
    Mmap,
}

/// A record's bytes.
fn record(text: &str) -> Result<u64, String> {
    within(text, 512, 1 << 30)
}

/// A block's bytes.
fn block(text: &str) -> Result<u64, String> {
    let bytes = within(text, 512, 64 << 20)?;
    if bytes.is_multiple_of(512) { Ok(bytes) } else { Err("wanted a multiple of 512 bytes".to_owned()) }
}

fn within(text: &str, min: u64, max: u64) -> Result<u64, String> {
    let found = bytes(text)?;
    if (min..=max).contains(&found) { Ok(found) } else { Err(format!("wanted {min} to {max} bytes")) }
}

fn row_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "wanted seconds, as 0.5".to_owned())?;
    if (0.01..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("wanted 0.01 to 3600 seconds".to_owned())
    }
}
