//! Every flag, its default and its limit.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ArgsOf, Parser, Subcommand, ValueEnum};
use flint_rt::base::limits::SESSIONS_MAX;
use flint_rt::disk::ReadPath;
use flint_rt::engine::{HostMemory, SpeculateMode};
use flint_rt::expert::{HostPath, PrefetchMode};
use flint_rt::kernels::tuning::TuningChanges;
use flint_rt::sample::SamplerOptions;
use flint_rt::store::Sha256Digest;
use flint_rt::text::chat::Thinking;

use crate::exit::EXIT_CODES;
use crate::stripes::Stripe;

/// Runs the Flint mixture-of-experts model with its experts on disk, through Vulkan compute.
#[derive(Debug, Parser)]
#[command(name = "flint-rt", version, after_help = EXIT_CODES, after_long_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a text, or answer one message with --chat.
    Generate(GenerateArgs),
    /// Talk: reads messages from the terminal, or lines from a pipe.
    Chat(ChatArgs),
    /// Serve OpenAI's and Anthropic's interfaces over HTTP, for editors, agents and libraries.
    Serve(Box<crate::serve_command::ServeArgs>),
    /// Print how an agent, an editor or a library is set up for this server; without a name, list them.
    ClientConfig(crate::client_config::ClientConfigArgs),
    /// Make a store of a GGUF file, from which experts are read fastest.
    Ingest(IngestArgs),
    /// Recompute every checksum of a store, or the SHA-256 of a GGUF; name what is damaged; mend a store.
    Verify(VerifyArgs),
    /// Show a model: its numbers, the memory plan, the paths chosen, the devices.
    Info(InfoArgs),
    /// Say what this machine would do with a model: memory, speed to expect, flags. Reads its header only.
    Plan(PlanArgs),
    /// Measure what a drive gives for the runtime's reads, and what is in its way.
    DiskProfile(crate::disk_profile::DiskProfileArgs),
    /// List the stores.
    List(ListArgs),
    /// Remove a store.
    Remove(RemoveArgs),
    /// List the Vulkan devices.
    Devices(DevicesArgs),
    /// Show the token ids of a text.
    Tokenize(TokenizeArgs),
    /// Compute logits, routes and greedy tokens of a prompt, or the perplexity of a text.
    Eval(EvalArgs),
    /// Measure speed, hit rate and bytes read, in the tests of llama-bench.
    Bench(Box<crate::bench::BenchArgs>),
    /// Write a Flint of random weights, of any size, for measuring.
    Synth(crate::synth::SynthArgs),
    /// Make one page of a bench's results: pictures, tables, a timeline.
    Report(crate::report::ReportArgs),
}

/// Which model.
#[derive(Debug, ArgsOf)]
pub(crate) struct ModelArgs {
    /// GGUF file, store folder, or name of a store in the store folder; the bundled flint-nano when left out.
    #[arg(short, long, env = "FLINT_RT_MODEL", value_name = "PATH|NAME")]
    pub(crate) model: Option<PathBuf>,
    /// Folder of the stores [default: $XDG_DATA_HOME/flint-rt or ~/.local/share/flint-rt].
    #[arg(long, env = "FLINT_RT_STORE_DIR", value_name = "DIR")]
    pub(crate) store_dir: Option<PathBuf>,
}

/// Which device.
#[derive(Debug, Clone, ArgsOf)]
pub(crate) struct DeviceArgs {
    /// Vulkan device: its number in `flint-rt devices`, or part of its name, which has a letter: "RTX 4090", as digits
    /// alone are a number [default: the best GPU, else software].
    #[arg(long, env = "FLINT_RT_DEVICE", value_name = "NAME|INDEX", value_parser = device)]
    pub(crate) device: Option<String>,
    /// Have the Vulkan validation layer watch every call; its messages make the command fail.
    #[arg(long, env = "FLINT_RT_VALIDATION", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) validation: bool,
}

/// How a model is opened.
#[derive(Debug, ArgsOf)]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens of a conversation [default: 4096, or what the model was trained for if that is less].
    #[arg(short = 'c', long, env = "FLINT_RT_CTX_SIZE", value_name = "TOKENS")]
    pub(crate) ctx_size: Option<u32>,
    /// Tokens of a prompt that go through a layer together [default: 512, or up to 4096 where that costs few expert slots].
    #[arg(long, env = "FLINT_RT_PREFILL_CHUNK", value_name = "TOKENS")]
    pub(crate) prefill_chunk: Option<u32>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    /// Read the experts that were used most before anything is asked: those of the last run with --warm of this model, or
    /// of recorded routes.
    #[arg(
        long,
        env = "FLINT_RT_WARM",
        value_name = "last|ROUTES.json",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "last"
    )]
    pub(crate) warm: Option<PathBuf>,
    /// Take the SHA-256 of a GGUF before it is used, and compare it with the pinned one, if it is the
    /// hub's file by name and length, else with what it was before; once, until the file changes.
    #[arg(long, env = "FLINT_RT_CHECK_SOURCE", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) check_source: bool,
}

/// What any model is run on, and how its experts come.
#[derive(Debug, Clone, ArgsOf)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Device memory that may be used in all, in bytes or as 800MiB, 6GiB [default: what is free, less a reserve].
    #[arg(long, env = "FLINT_RT_GPU_MEMORY", value_name = "BYTES", value_parser = bytes)]
    pub(crate) gpu_memory: Option<u64>,
    /// Experts that device memory holds at a time [default: as many as fit].
    #[arg(long, env = "FLINT_RT_POOL_SLOTS", value_name = "N")]
    pub(crate) pool_slots: Option<u32>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    /// How files are read: ring, ring-plain or pool [default: the first that works].
    #[arg(long, env = "FLINT_RT_READ_PATH", value_name = "PATH")]
    pub(crate) read_path: Option<ReadPath>,
    /// How the device reaches what was read: import, mapped or copy [default: the first that works].
    #[arg(long, env = "FLINT_RT_HOST_PATH", value_name = "PATH")]
    pub(crate) host_path: Option<HostPath>,
    /// Read experts from a store, made of the GGUF if there is none yet, or from the GGUF in place
    /// [default: what --model names].
    #[arg(long, env = "FLINT_RT_SOURCE", value_enum)]
    pub(crate) source: Option<SourceChoice>,
    /// Read experts ahead that the next layer is likely to pick, when the drive has nothing better to do: on, off, or
    /// auto, as long as what is read so is used [default: auto].
    #[arg(long, env = "FLINT_RT_PREFETCH", value_name = "WHEN")]
    pub(crate) prefetch: Option<PrefetchMode>,
    /// Sizes of the kernels' tiles, chosen by hand: NAME=VALUE,...; `info` names them all [default: what `bench --tune` found on
    /// this device, else a table's].
    #[arg(long, env = "FLINT_RT_TUNING", value_name = "NAME=VALUE,...")]
    pub(crate) tuning: Option<TuningChanges>,
    /// Do not use what `bench --tune` found.
    #[arg(long, env = "FLINT_RT_NO_TUNED", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) no_tuned: bool,
    /// Compute several tokens in a step where a conversation says again what it said, and keep those that would have been
    /// chosen: auto, as many as pay; off; or so many beside each token, 1 to 7. Replies are the same [default: off].
    #[arg(long, env = "FLINT_RT_SPECULATE", value_name = "auto|off|N")]
    pub(crate) speculate: Option<SpeculateMode>,
    /// Do not compare what is read from a store with its checksums.
    #[arg(long, env = "FLINT_RT_UNCHECKED", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) unchecked: bool,
}

/// How much memory is used beyond the device's.
#[derive(Debug, Clone, Copy, Default, ArgsOf)]
pub(crate) struct MemoryArgs {
    /// Host memory that keeps experts which device memory does not hold: bytes or as 8GiB, 0 for none, or auto: three quarters of
    /// what is available, less where that would leave others less than an eighth of the machine's memory [default: auto].
    #[arg(long, env = "FLINT_RT_HOST_MEMORY", value_name = "BYTES|auto|0", value_parser = auto_or_bytes)]
    pub(crate) host_memory: Option<AutoOrBytes>,
    /// Memory of device and host together, for the model, its experts and the read buffers: bytes or as 16GiB, or auto. The
    /// device's part is taken first, and what remains keeps experts in host memory [default: auto, what each has].
    #[arg(long, env = "FLINT_RT_MEMORY", value_name = "BYTES|auto", value_parser = auto_or_bytes)]
    pub(crate) memory: Option<AutoOrBytes>,
}

impl MemoryArgs {
    /// Host memory as the engine takes it.
    pub(crate) fn of_host(&self) -> HostMemory {
        match self.host_memory {
            Some(AutoOrBytes(Some(bytes))) => HostMemory::Bytes(bytes),
            Some(AutoOrBytes(None)) | None => HostMemory::Auto,
        }
    }

    /// The limit on both, if there is one.
    pub(crate) fn of_both(&self) -> Option<u64> {
        self.memory.and_then(|AutoOrBytes(bytes)| bytes)
    }
}

/// A number of bytes, `None` for auto.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AutoOrBytes(pub(crate) Option<u64>);

/// Where experts are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SourceChoice {
    Store,
    Gguf,
}

/// How tokens are chosen.
#[derive(Debug, ArgsOf)]
#[command(next_help_heading = "Sampling (greedy unless --temp is above 0)")]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 takes the best token every time.
    #[arg(long, env = "FLINT_RT_TEMP", default_value_t = 0.0, value_parser = sampling(|options, value| options.temperature = value))]
    pub(crate) temp: f32,
    /// Only the K best tokens; 0 for all.
    #[arg(long, env = "FLINT_RT_TOP_K", default_value_t = 0, value_name = "K")]
    pub(crate) top_k: u32,
    /// Only the best tokens that together reach this probability, 0 to 1.
    #[arg(long, env = "FLINT_RT_TOP_P", default_value_t = 1.0, value_name = "P", value_parser = sampling(|options, value| options.top_p = value))]
    pub(crate) top_p: f32,
    /// Only tokens with at least this share of the best one's probability, 0 to 1.
    #[arg(long, env = "FLINT_RT_MIN_P", default_value_t = 0.0, value_name = "P", value_parser = sampling(|options, value| options.min_p = value))]
    pub(crate) min_p: f32,
    /// Makes recent tokens less likely by this factor; 1 is off.
    #[arg(long, env = "FLINT_RT_REPEAT_PENALTY", default_value_t = 1.0, value_name = "X", value_parser = sampling(|options, value| options.repetition_penalty = value))]
    pub(crate) repeat_penalty: f32,
    /// Subtracted from the logit of each recent token, -2 to 2.
    #[arg(long, env = "FLINT_RT_PRESENCE_PENALTY", default_value_t = 0.0, value_name = "X", value_parser = sampling(|options, value| options.presence_penalty = value))]
    pub(crate) presence_penalty: f32,
    /// Subtracted from the logit of each recent token as often as it occurs, -2 to 2.
    #[arg(long, env = "FLINT_RT_FREQUENCY_PENALTY", default_value_t = 0.0, value_name = "X", value_parser = sampling(|options, value| options.frequency_penalty = value))]
    pub(crate) frequency_penalty: f32,
    /// Seed of the draws: equal seeds give equal replies.
    #[arg(short, long, env = "FLINT_RT_SEED", default_value_t = 0)]
    pub(crate) seed: u64,
}

impl SamplingArgs {
    /// As the sampler takes them.
    pub(crate) fn options(&self) -> SamplerOptions {
        SamplerOptions {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            ..SamplerOptions::default()
        }
    }
}

/// Whether a reply begins within a thought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Think {
    /// The model decides.
    Auto,
    /// The prompt opens a thought.
    On,
    /// The prompt holds an empty thought, already closed.
    Off,
}

impl From<Think> for Thinking {
    fn from(think: Think) -> Self {
        match think {
            Think::Auto => Self::Auto,
            Think::On => Self::On,
            Think::Off => Self::Off,
        }
    }
}

#[derive(Debug, ArgsOf)]
pub(crate) struct GenerateArgs {
    /// The text to continue; standard input when left out, less the newline at its end.
    pub(crate) prompt: Option<String>,
    /// Take the prompt as a user's message and answer it.
    #[arg(long)]
    pub(crate) chat: bool,
    /// Take markers such as <|user|> in the text for control tokens.
    #[arg(long, conflicts_with = "chat")]
    pub(crate) special: bool,
    /// Whether the reply begins within a thought; with --chat.
    #[arg(long, env = "FLINT_RT_THINK", value_enum, default_value_t = Think::Auto)]
    pub(crate) think: Think,
    /// Tokens of the reply at most.
    #[arg(short = 'n', long, env = "FLINT_RT_PREDICT", default_value_t = 512, value_name = "TOKENS")]
    pub(crate) predict: u32,
    /// Print speed, hit rate and bytes read at the end.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Afterwards run the prompt and the reply's first tokens once more with every dispatch timed, and print sums by kernel and shape.
    #[arg(long)]
    pub(crate) profile: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten, next_help_heading = "Model and machine")]
    pub(crate) engine: EngineArgs,
}

#[derive(Debug, ArgsOf)]
pub(crate) struct ChatArgs {
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Whether replies begin within a thought.
    #[arg(long, env = "FLINT_RT_THINK", value_enum, default_value_t = Think::Auto)]
    pub(crate) think: Think,
    /// Tokens of a reply at most.
    #[arg(short = 'n', long, env = "FLINT_RT_PREDICT", default_value_t = 2048, value_name = "TOKENS")]
    pub(crate) predict: u32,
    /// Print speed, hit rate and bytes read after each reply.
    #[arg(long)]
    pub(crate) stats: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten, next_help_heading = "Model and machine")]
    pub(crate) engine: EngineArgs,
}

#[derive(Debug, ArgsOf)]
pub(crate) struct IngestArgs {
    /// GGUF file, http(s) URL, or file of a model hub, as owner/repo/file[@revision]; of a split GGUF any part
    /// [default: the full Flint, pinned by its SHA-256].
    #[arg(value_name = "FILE|URL|HUB-NAME")]
    pub(crate) source: Option<PathBuf>,
    /// What the file must be, as SHA-256; of a split GGUF one for each part, with commas. A hub tells it itself.
    #[arg(long, value_name = "HEX", value_delimiter = ',')]
    pub(crate) sha256: Vec<Sha256Digest>,
    /// Take a file from a network although nobody says what its SHA-256 must be.
    #[arg(long, conflicts_with = "sha256")]
    pub(crate) force_unverified: bool,
    /// Folder in which the store is made [default: $XDG_DATA_HOME/flint-rt or ~/.local/share/flint-rt].
    #[arg(long, env = "FLINT_RT_STORE_DIR", value_name = "DIR")]
    pub(crate) store_dir: Option<PathBuf>,
    /// The store's name [default: the file's, without its ending].
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Spread the experts over these drives, each by its share: DIR[=WEIGHT],... Without weights the drives are measured.
    #[arg(long, value_name = "DIR[=WEIGHT]", value_delimiter = ',')]
    pub(crate) stripe: Vec<Stripe>,
    /// Say what would be fetched, how much room it needs and where; fetch the header alone, and write nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print events as JSON, one a line: progress, retry, and at the end done, planned (--dry-run) or error.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
}

/// How patiently a network is used.
#[derive(Debug, ArgsOf)]
#[command(next_help_heading = "Network")]
pub(crate) struct NetworkArgs {
    /// Seconds without a byte, or with less than 1 KiB for each of them, after which a connection is given up.
    #[arg(long, env = "FLINT_RT_STALL_TIMEOUT", default_value_t = 30.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) stall_timeout: f64,
    /// Tries in a row that bring less than that, after which the source is given up.
    #[arg(long, env = "FLINT_RT_RETRIES", default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) retries: u32,
    /// Seconds to wait after the first of them; each further one doubles it, up to 32 times.
    #[arg(long, env = "FLINT_RT_RETRY_WAIT", default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) retry_wait: f64,
}

#[derive(Debug, ArgsOf)]
pub(crate) struct VerifyArgs {
    /// The folder of a store, its name in the store folder, or a GGUF file.
    #[arg(value_name = "STORE|GGUF")]
    pub(crate) model: PathBuf,
    /// Rewrite what is damaged in the store with the bytes of this GGUF, which must be the one that it was made of.
    #[arg(long, value_name = "SOURCE", conflicts_with = "sha256")]
    pub(crate) repair: Option<PathBuf>,
    /// What the SHA-256 of the GGUF must be [default: what it was when it was taken last].
    #[arg(long, value_name = "HEX", conflicts_with = "quick")]
    pub(crate) sha256: Option<Sha256Digest>,
    /// Leave out the SHA-256 of a store's files: the checksums of its records and tensors cover every byte, too.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Folder of the stores [default: $XDG_DATA_HOME/flint-rt or ~/.local/share/flint-rt].
    #[arg(long, env = "FLINT_RT_STORE_DIR", value_name = "DIR")]
    pub(crate) store_dir: Option<PathBuf>,
    /// Print progress and result as JSON, one event a line.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ArgsOf)]
pub(crate) struct InfoArgs {
    /// The model, as for --model.
    #[arg(value_name = "MODEL")]
    pub(crate) positional: Option<PathBuf>,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) conversations: ConversationArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// How many conversations memory is planned for.
#[derive(Debug, Clone, Copy, ArgsOf)]
pub(crate) struct ConversationArgs {
    /// Conversations that memory is planned for, as many as serve is to hold.
    #[arg(long, env = "FLINT_RT_PARALLEL", default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SESSIONS_MAX)))]
    pub(crate) parallel: u32,
}

#[derive(Debug, ArgsOf)]
pub(crate) struct PlanArgs {
    /// The model, as for --model.
    #[arg(value_name = "MODEL")]
    pub(crate) positional: Option<PathBuf>,
    /// Measure the drive by reads as decode makes them: of the model's files, of the file PATH, or of a file that is made
    /// in the folder PATH and removed. And the device, by a few tokens through a short model of the same shapes.
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true)]
    pub(crate) measure: Option<Option<PathBuf>>,
    /// Seconds that the drive is measured.
    #[arg(long, default_value_t = 10, value_name = "N", requires = "measure", value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Take this for the drive's rate, in GB/s [default: the drive's saved profile, else 3].
    #[arg(long, value_name = "GB/S", conflicts_with = "measure", value_parser = drive_rate)]
    pub(crate) drive_rate: Option<f64>,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) conversations: ConversationArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

#[derive(Debug, ArgsOf)]
pub(crate) struct ListArgs {
    /// Folder of the stores [default: $XDG_DATA_HOME/flint-rt or ~/.local/share/flint-rt].
    #[arg(long, env = "FLINT_RT_STORE_DIR", value_name = "DIR")]
    pub(crate) store_dir: Option<PathBuf>,
    /// Print them as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ArgsOf)]
pub(crate) struct RemoveArgs {
    /// Name of a store, or of an unfinished one, as `flint-rt list` shows it; or the path of its folder.
    #[arg(value_name = "NAME")]
    pub(crate) name: PathBuf,
    /// Folder of the stores [default: $XDG_DATA_HOME/flint-rt or ~/.local/share/flint-rt].
    #[arg(long, env = "FLINT_RT_STORE_DIR", value_name = "DIR")]
    pub(crate) store_dir: Option<PathBuf>,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print what was removed as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ArgsOf)]
pub(crate) struct DevicesArgs {
    /// Print them as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, ArgsOf)]
pub(crate) struct TokenizeArgs {
    /// The text; standard input when left out, as it is.
    pub(crate) text: Option<String>,
    /// Print {"ids": [...]}; else a line for each token.
    #[arg(long)]
    pub(crate) json: bool,
    /// Take markers such as <|user|> for control tokens: the default, for saying so.
    #[arg(long, conflicts_with = "plain")]
    pub(crate) special: bool,
    /// Take markers for text, as in what a message says.
    #[arg(long)]
    pub(crate) plain: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
}

#[derive(Debug, ArgsOf)]
#[command(group = ArgGroup::new("input").required(true).args(["ids", "prompt", "chat", "perplexity"]))]
pub(crate) struct EvalArgs {
    /// A prompt as token ids.
    #[arg(long, value_delimiter = ',', value_name = "ID,ID,...")]
    pub(crate) ids: Option<Vec<u32>>,
    /// A prompt as text: markers such as <|user|> are control tokens, nothing is added.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// A prompt as messages: a JSON file with {"messages": [...]} or the list alone.
    #[arg(long, value_name = "FILE")]
    pub(crate) chat: Option<PathBuf>,
    /// The perplexity of this file's text after <|begin_of_text|>, in one context, markers as text.
    #[arg(long, value_name = "FILE")]
    pub(crate) perplexity: Option<PathBuf>,
    /// Only the first N tokens of the file; with --perplexity.
    #[arg(long, value_name = "N", conflicts_with_all = ["ids", "prompt", "chat"], value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tokens: Option<u32>,
    /// How many of the best tokens `top` and `logprobs` have.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) top: u32,
    /// Give the experts picked at the last position, and their weights.
    #[arg(long, conflicts_with = "perplexity")]
    pub(crate) routes: bool,
    /// Continue greedily by N tokens, through stop tokens.
    #[arg(long, value_name = "N", conflicts_with = "perplexity")]
    pub(crate) greedy: Option<u32>,
    /// Whether the reply to --chat begins within a thought.
    #[arg(long, value_enum, default_value_t = Think::Auto)]
    pub(crate) think: Think,
    /// Print it as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// A drive's rate in GB/s.
fn drive_rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "wanted GB/s, as 3.5".to_owned())?;
    if (0.001..=1000.0).contains(&rate) { Ok(rate) } else { Err("wanted 0.001 to 1000 GB/s".to_owned()) }
}

/// A number of [`SamplerOptions`], put there by `set`, in the range that the sampler has for it.
pub(crate) fn sampling(set: fn(&mut SamplerOptions, f32)) -> impl Fn(&str) -> Result<f32, String> + Clone {
    move |text| {
        let value: f32 = text.parse().map_err(|_| "wanted a number, as 0.8".to_owned())?;
        let mut options = SamplerOptions::default();
        set(&mut options, value);
        options.check(u32::MAX).map(|()| value).map_err(|error| error.to_string())
    }
}

/// A wait.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "wanted seconds, as 30".to_owned())?;
    if (0.001..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("wanted 0.001 to 3600 seconds".to_owned())
    }
}

/// A device's number or part of its name.
fn device(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text.is_empty() {
        true => Err("wanted a number of `flint-rt devices` or part of a name".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// `auto`, or a number of bytes as [`bytes`] takes it.
pub(crate) fn auto_or_bytes(text: &str) -> Result<AutoOrBytes, String> {
    if text == "auto" {
        return Ok(AutoOrBytes(None));
    }
    bytes(text).map(|bytes| AutoOrBytes(Some(bytes))).map_err(|error| format!("{error}; or auto"))
}

/// A number of bytes, with or without a unit. K, KiB and so on are powers of 1,024, KB and so on of 1,000.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return Err("wanted bytes as 6442450944, 800MiB, 6GiB or 6GB".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "wanted a whole number of bytes, as 800MiB".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "more bytes than there are".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes("17"), Ok(17));
        assert_eq!(bytes("800MiB"), Ok(800 << 20));
        assert_eq!(bytes("6 GB"), Ok(6_000_000_000));
        for wrong in ["", "GiB", "-1", "1.5G", "1e9", "99999999999TiB", "6 GiBs"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(auto_or_bytes("auto"), Ok(AutoOrBytes(None)));
        assert_eq!(auto_or_bytes("8GiB"), Ok(AutoOrBytes(Some(8 << 30))));
        assert!(auto_or_bytes("Auto").unwrap_err().contains("auto"));
    }
}
