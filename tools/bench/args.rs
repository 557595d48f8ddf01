//! The flags of `flint-rt bench`: names of llama-bench where it has them.

use std::path::PathBuf;

use clap::{Args as ArgsOf, ValueEnum};
use flint_rt::disk::DriveModel;
use flint_rt::expert::Policy;

use super::plan::PlanBy;
use super::values::{PromptAndReply, Sweep, Values, drive_model};
use crate::args::{EngineArgs, ModelArgs, RunArgs};

/// How rows are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table.
    Md,
    /// One array of objects.
    Json,
    /// A header, then a line a row.
    Csv,
    /// One object a line.
    Jsonl,
}

#[derive(Debug, ArgsOf)]
pub(crate) struct BenchArgs {
    /// Tokens of a prompt; several by commas or as ranges a-b+step, a-b*factor; 0 for no such test.
    #[arg(short = 'p', long, default_value = "512", value_name = "N,...")]
    pub(crate) n_prompt: Vec<Values>,
    /// Tokens generated one at a time; 0 for no such test.
    #[arg(short = 'n', long, default_value = "128", value_name = "N,...")]
    pub(crate) n_gen: Vec<Values>,
    /// A prompt and a reply behind it, timed together; also as -pg.
    #[arg(long = "pg", value_name = "PROMPT,GEN")]
    pub(crate) prompt_gen: Vec<PromptAndReply>,
    /// Tokens in the context before the test begins.
    #[arg(short = 'd', long, default_value = "0", value_name = "N,...")]
    pub(crate) n_depth: Vec<Values>,
    /// Conversations whose replies are generated side by side, in steps that they share; t/s are of all together; also as -npl.
    #[arg(long = "npl", default_value = "1", value_name = "N,...")]
    pub(crate) n_parallel: Vec<Values>,
    /// How often each test is run.
    #[arg(short, long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: u32,
    /// Seconds to wait before each test.
    #[arg(long, default_value_t = 0, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(..=3600))]
    pub(crate) delay: u32,
    /// Leave out the run before each test that does not count.
    #[arg(long)]
    pub(crate) no_warmup: bool,
    /// How rows are printed on standard output.
    #[arg(short, long, value_enum, default_value_t = Format::Md)]
    pub(crate) output: Format,
    /// Print rows on standard error, too; also as -oe.
    #[arg(long, value_enum)]
    pub(crate) output_err: Option<Format>,
    /// Empty the expert slots, and drop what the page cache holds of the model, before each repetition.
    #[arg(long)]
    pub(crate) cold: bool,
    /// Have the experts picked that a recorded trace says, NAME.json; one of another shape is expanded to the model's.
    #[arg(long, value_name = "TRACE.json")]
    pub(crate) routes: Option<PathBuf>,
    /// Write the picks of the timed tokens as a trace.
    #[arg(long, value_name = "OUT.json")]
    pub(crate) record_routes: Option<PathBuf>,
    /// Run everything at several pool sizes: pool=10%,20%,...,100%, or slots: pool=64,128.
    #[arg(long, value_name = "pool=SIZE,...", conflicts_with = "pool_slots")]
    pub(crate) sweep: Option<Sweep>,
    /// Times of a drive that is not at hand: RATE[,LATENCY], as 7GB/s or 3.5GB/s,100us. Its bytes come from the page cache.
    #[arg(long, value_name = "RATE[,LATENCY]", value_parser = drive_model)]
    pub(crate) simulated_drive: Option<DriveModel>,
    /// Have a conversation's tokens not depend, to the last bit, on what runs beside it or how its prompt is cut; costs speed.
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// Time every dispatch of a few tokens more of each test, and print the sums by kernel and shape.
    #[arg(long, conflicts_with_all = ["compare", "simulate"])]
    pub(crate) profile: bool,
    /// Measure instead what the device allows: dispatches, round trips, memory, and matrices of the model's shapes by how kernels
    /// are cut up. Opens no model.
    #[arg(long, conflicts_with_all = ["compare", "simulate", "profile", "report", "trace"])]
    pub(crate) limits: bool,
    /// Find instead which sizes of kernels are fastest on this device for the model's shapes, in some seconds, and remember them:
    /// from then on they are used [default: 50 seconds at most].
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "50",
        value_parser = clap::value_parser!(u32).range(1..=3600),
        conflicts_with_all = ["compare", "simulate", "profile", "report", "trace", "limits"]
    )]
    pub(crate) tune: Option<u32>,
    /// Take the tokens of this text, over and over, instead of random ones.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Seed of the random tokens, and of a trace's expansion.
    #[arg(short, long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Compare two results that were printed as json or jsonl, test by test, with Welch's t-test; measures nothing.
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"])]
    pub(crate) compare: Option<Vec<PathBuf>>,
    /// Replay traces in the simulator, with every cache policy and prefetcher, at the pool shares of --sweep; with
    /// --simulated-drive in time, too. Opens no model.
    #[arg(long, num_args = 1.., value_name = "TRACE.json", conflicts_with = "compare")]
    pub(crate) simulate: Option<Vec<PathBuf>>,
    /// Who leaves when a slot is needed: lru, lfu, lfu-ageing:N, half-life:N or frequency-recency:N [default: the product's].
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<Policy>,
    /// What the expectation of generated tokens rests on: reads of the drive and turns of a short model of the same shapes,
    /// measured beside the tests, or the drive's saved profile and what is usual for the kind of device.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = PlanBy::Measure)]
    pub(crate) plan: PlanBy,
    #[command(flatten)]
    pub(crate) pictures: crate::report::PictureArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

/// Models and how they are opened; as for other commands, but for the lists.
#[derive(Debug, ArgsOf)]
#[command(next_help_heading = "Models and machine")]
pub(crate) struct MachineArgs {
    /// GGUF files, store folders, or names of stores, by commas or repeated; the bundled flint-nano when left out.
    #[arg(short, long, env = "FLINT_RT_MODEL", value_name = "PATH|NAME,...", value_delimiter = ',')]
    pub(crate) model: Vec<PathBuf>,
    /// Folder of the stores [default: $XDG_DATA_HOME/flint-rt or ~/.local/share/flint-rt].
    #[arg(long, env = "FLINT_RT_STORE_DIR", value_name = "DIR")]
    pub(crate) store_dir: Option<PathBuf>,
    /// Tokens of a conversation [default: what the longest test needs].
    #[arg(short = 'c', long, env = "FLINT_RT_CTX_SIZE", value_name = "TOKENS")]
    pub(crate) ctx_size: Option<u32>,
    /// Tokens of a prompt that go through a layer together; several by commas; also as -ub [default: 512].
    #[arg(long, env = "FLINT_RT_PREFILL_CHUNK", alias = "ubatch-size", value_name = "TOKENS,...")]
    pub(crate) prefill_chunk: Vec<Values>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

impl MachineArgs {
    /// The models that are named, `None` for the bundled one.
    pub(super) fn models(&self) -> Vec<Option<PathBuf>> {
        let named: Vec<_> =
            self.model.iter().filter(|path| !path.as_os_str().is_empty()).cloned().map(Some).collect();
        if named.is_empty() { vec![None] } else { named }
    }

    /// The chunk sizes, `None` for the default.
    pub(super) fn prefill_chunks(&self) -> Vec<Option<u32>> {
        let named: Vec<_> = Values::all(&self.prefill_chunk).into_iter().map(Some).collect();
        if named.is_empty() { vec![None] } else { named }
    }

    /// As other commands take them, for one of the models and one chunk size.
    pub(super) fn of(&self, model: Option<PathBuf>, prefill_chunk: Option<u32>) -> EngineArgs {
        EngineArgs {
            model: ModelArgs { model, store_dir: self.store_dir.clone() },
            ctx_size: self.ctx_size,
            prefill_chunk,
            run: self.run.clone(),
            warm: None,
            check_source: false,
        }
    }
}
