//! `flint-rt serve`: the flags of the server, and the engine that it drives. What it does is in the crate `flint_serve`.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args as ArgsOf, ValueEnum};
use flint_rt::base::host_memory::HostRoom;
use flint_rt::base::limits::SESSIONS_MAX;
use flint_rt::base::units::display_bytes;
use flint_rt::engine::{Engine, EngineError, EngineOptions, SamplingAdvice};
use flint_rt::sample::SamplerOptions;
use flint_serve::{
    Defaults, FormChoice, Listen, Loading, Origins, PrefixOptions, Reasoning, ServeError, ServeOptions,
    sensible_bytes,
};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::args::{AutoOrBytes, EngineArgs, Think, auto_or_bytes, bytes, sampling};
use crate::exit::{Exit, Failure, Outcome};
use crate::interrupt;
use crate::model;
use crate::open;
use crate::service::{self, Manager};
use crate::terminal::note;

/// Longest file of a template or of keys.
const TEXT_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, ArgsOf)]
pub(crate) struct ServeArgs {
    /// Address to listen on. Others than those of this machine alone need a key, or --no-api-key.
    #[arg(long, env = "FLINT_RT_HOST", default_value = "127.0.0.1", value_name = "IP")]
    host: IpAddr,
    /// Port to listen on; 0 for any that is free.
    #[arg(long, env = "FLINT_RT_PORT", default_value_t = 8484)]
    port: u16,
    /// Listen on this socket file instead of on an address; only its owner may use it.
    #[arg(long, env = "FLINT_RT_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Keys of which a request must have one, with commas.
    #[arg(long, env = "FLINT_RT_API_KEY", hide_env_values = true, value_name = "KEY", value_delimiter = ',')]
    api_key: Vec<String>,
    /// File of keys, one a line; lines with # are left out.
    #[arg(long, env = "FLINT_RT_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Serve everybody who reaches the address, also where that is not this machine alone.
    #[arg(long, conflicts_with_all = ["api_key", "api_key_file"])]
    no_api_key: bool,
    /// Pages that may ask, by origin: localhost, https://example.org,... or * [default: none but this server's own].
    #[arg(long, env = "FLINT_RT_CORS_ORIGINS", value_name = "ORIGIN", value_delimiter = ',')]
    cors_origins: Vec<String>,
    /// Conversations that are held at a time, each with a cache of its own on the device; requests beyond those wait.
    #[arg(long, env = "FLINT_RT_PARALLEL", default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SESSIONS_MAX)))]
    parallel: u32,
    /// Give every conversation the same bits whatever runs beside it, however its prompt is cut and whatever of it was held.
    #[arg(long, env = "FLINT_RT_DETERMINISTIC")]
    deterministic: bool,
    /// Requests that may wait; more are refused (429).
    #[arg(long, env = "FLINT_RT_QUEUE", default_value_t = 64, value_name = "N")]
    queue: usize,
    /// Longest body of a request.
    #[arg(long, env = "FLINT_RT_BODY_LIMIT", default_value = "64MiB", value_name = "BYTES", value_parser = body_limit)]
    body_limit: u64,
    /// Seconds of silence after which a stream says that it lives.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    ping: u64,
    /// Seconds that replies have to end after Ctrl-C or SIGTERM; a second one ends the program at once.
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=3600))]
    stop_timeout: u64,
    /// Seconds without a request after which the model is closed, so that others have its memory; the next request opens it
    /// again, and waits for that [default: never].
    #[arg(long, env = "FLINT_RT_IDLE_RELEASE", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    idle_release: Option<u64>,
    /// What the model is called in answers [default: its file's or store's].
    #[arg(short, long, env = "FLINT_RT_ALIAS", value_name = "NAME", value_parser = alias)]
    alias: Option<String>,
    /// Refuse requests for models of other names (404).
    #[arg(long)]
    strict_model: bool,
    /// The form of conversations: file for the template in the model's file, flint for the built-in form, or a file with a
    /// template.
    #[arg(long, env = "FLINT_RT_CHAT_TEMPLATE", default_value = "file", value_name = "file|flint|PATH")]
    chat_template: PathBuf,
    /// Where a reply's thought goes: content for the field reasoning_content, short for reasoning, inline to leave it between its
    /// tags.
    #[arg(long, env = "FLINT_RT_REASONING", value_enum, default_value_t = ReasoningField::Content)]
    reasoning: ReasoningField,
    /// Whether chat replies begin within a thought, where a request does not say.
    #[arg(long, env = "FLINT_RT_THINK", value_enum, default_value_t = Think::Auto)]
    think: Think,
    /// Tokens of a reply at most, where a request does not say [default: to the end of the context].
    #[arg(short = 'n', long, env = "FLINT_RT_PREDICT", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    predict: Option<u32>,
    /// What is logged on standard error: a line for each request.
    #[arg(long, visible_alias = "log-format", env = "FLINT_RT_LOG", value_enum, default_value_t = Log::Text)]
    log: Log,
    #[command(flatten)]
    prefix: PrefixArgs,
    #[command(flatten)]
    sampling: ServeSamplingArgs,
    #[command(flatten, next_help_heading = "Model and machine")]
    engine: EngineArgs,
}

/// What is kept of conversations that no slot holds.
#[derive(Debug, ArgsOf)]
#[command(next_help_heading = "Conversations that are kept")]
struct PrefixArgs {
    /// Host memory for conversations whose slot another one took: bytes or as 2GiB, 0 for none, or auto: an eighth of what is
    /// available, or a sixteenth of --memory where that is less, and at most 4 GiB. It counts toward --memory [default: auto].
    #[arg(long, env = "FLINT_RT_PROMPT_CACHE_MEMORY", value_name = "BYTES|auto|0", value_parser = auto_or_bytes)]
    prompt_cache_memory: Option<AutoOrBytes>,
    /// Folder to which they are written, too, so that they outlive the server. Its files hold what was said, readable by you alone.
    #[arg(long, env = "FLINT_RT_PROMPT_CACHE_DIR", value_name = "DIR")]
    prompt_cache_dir: Option<PathBuf>,
    /// What the files in that folder may take; the longest unused are removed.
    #[arg(long, env = "FLINT_RT_PROMPT_CACHE_SIZE", value_name = "BYTES", default_value = "16GiB", value_parser = bytes)]
    prompt_cache_size: u64,
    /// Folder for POST /slots/{id}?action=save and restore; without one both are refused.
    #[arg(long, env = "FLINT_RT_SLOT_SAVE_PATH", value_name = "DIR")]
    slot_save_path: Option<PathBuf>,
}

impl PrefixArgs {
    fn options(&self, limit_bytes: Option<u64>) -> Outcome<PrefixOptions> {
        let given = self.prompt_cache_memory.and_then(|AutoOrBytes(bytes)| bytes);
        let memory_bytes = given.unwrap_or_else(|| {
            let available = HostRoom::look().free().map(|(bytes, _)| bytes);
            sensible_bytes(available, limit_bytes)
        });
        if memory_bytes == 0 && self.prompt_cache_dir.is_some() {
            return Err(Failure::usage(
                "--prompt-cache-dir needs host memory to pass through: give --prompt-cache-memory more than 0".to_owned(),
            ));
        }
        if let Some(folder) = self.slot_save_path.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(Failure::usage(format!(
                "--slot-save-path {}: there is no such folder",
                folder.display()
            )));
        }
        let real = |folder: &Option<PathBuf>| folder.as_ref().and_then(|folder| folder.canonicalize().ok());
        if real(&self.slot_save_path).is_some_and(|folder| Some(folder) == real(&self.prompt_cache_dir)) {
            return Err(Failure::usage(
                "--slot-save-path and --prompt-cache-dir name one folder, and files of the cache are removed when room is needed: \
                 give each its own"
                    .to_owned(),
            ));
        }
        Ok(PrefixOptions {
            memory_bytes,
            disk: self.prompt_cache_dir.clone().map(|folder| (folder, self.prompt_cache_size)),
            slot_files: self.slot_save_path.clone(),
        })
    }
}

/// How tokens are chosen where a request does not say.
#[derive(Debug, ArgsOf)]
#[command(
    next_help_heading = "Sampling where a request does not say [default: what the model's file, else its maker recommends]"
)]
struct ServeSamplingArgs {
    /// Temperature; 0 takes the best token every time [default: 1].
    #[arg(long, env = "FLINT_RT_TEMP", value_parser = sampling(|options, value| options.temperature = value))]
    temp: Option<f32>,
    /// Only the K best tokens; 0 for all [default: 20].
    #[arg(long, env = "FLINT_RT_TOP_K", value_name = "K")]
    top_k: Option<u32>,
    /// Only the best tokens that together reach this probability [default: 0.95].
    #[arg(long, env = "FLINT_RT_TOP_P", value_name = "P", value_parser = sampling(|options, value| options.top_p = value))]
    top_p: Option<f32>,
    /// Only tokens with at least this share of the best one's probability [default: 0].
    #[arg(long, env = "FLINT_RT_MIN_P", value_name = "P", value_parser = sampling(|options, value| options.min_p = value))]
    min_p: Option<f32>,
    /// Makes recent tokens less likely by this factor [default: 1].
    #[arg(long, env = "FLINT_RT_REPEAT_PENALTY", value_name = "X", value_parser = sampling(|options, value| options.repetition_penalty = value))]
    repeat_penalty: Option<f32>,
    /// Seed of the draws of every reply [default: another one each time].
    #[arg(short, long, env = "FLINT_RT_SEED")]
    seed: Option<u64>,
}

/// Where a thought goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReasoningField {
    Content,
    Short,
    Inline,
}

/// What is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Log {
    /// A line for each reply.
    Text,
    /// The same as JSON.
    Json,
    /// Nothing.
    Off,
}

/// Runs the command.
pub(crate) fn run(args: ServeArgs) -> Outcome {
    let options = options(&args)?;
    let manager = Manager::find();
    let model = model::find(&args.engine.model, args.engine.run.source)?;
    let file_name = model.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let alias = args.alias.clone().unwrap_or_else(|| file_name.trim_end_matches(".gguf").to_owned());
    let options =
        ServeOptions { alias, file_name, moment: Box::new(move |moment| manager.tell(moment)), ..options };
    log(args.log);
    if options.prefix.memory_bytes > 0 {
        note(&format!("prompt cache: up to {} of host memory", display_bytes(options.prefix.memory_bytes)));
    }
    raise_descriptor_limit();
    interrupt::serve();
    let aside_bytes = options.prefix.memory_bytes;
    let (engine, parallel, is_deterministic) = (args.engine, args.parallel, args.deterministic);
    let model = Arc::new(model);
    let opened = model.clone();
    let open = move |loading: &Loading| -> Outcome<Engine> {
        let model = &opened;
        let options = EngineOptions {
            sessions: Some(parallel),
            is_deterministic,
            aside_bytes,
            ..open::options(&engine, model, None)
        };
        open::engine_watched(&engine, model, &options, &mut |progress| {
            loading.set(progress.done_bytes, progress.total_bytes);
        })
    };
    let outcome = flint_serve::run(options, open, interrupt::is_requested).map_err(failure);
    // A store that lives as long as this process is removed now.
    drop(model);
    outcome
}

/// Descriptors that a server may use, where the system lets a program have them that asks: most allow 1,024 until then, and each
/// connection takes one.
const DESCRIPTORS: u64 = 65_536;

fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX).min(DESCRIPTORS);
    if limit.current.is_some_and(|current| current < most) {
        limit.current = Some(most);
        // With fewer, connections wait for those that end.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

fn failure(error: ServeError<Failure>) -> Failure {
    match error {
        ServeError::Open(failure) => failure,
        ServeError::Sessions(error) => EngineError::into(error),
        ServeError::Option(text) => Failure::usage(text),
        error @ ServeError::Form(_) => Failure::new(Exit::Model, error.to_string()),
        other => Failure::new(Exit::Failed, other.to_string()),
    }
}

fn options(args: &ServeArgs) -> Outcome<ServeOptions> {
    let keys = keys(args)?;
    let listen = match (service::sockets()?, &args.socket) {
        (sockets, _) if !sockets.is_empty() => sockets,
        (_, Some(path)) => vec![Listen::File(path.clone())],
        (_, None) => vec![Listen::Address(SocketAddr::new(args.host, args.port))],
    };
    let open_to_others =
        listen.iter().filter_map(Listen::address).find(|address| !address.ip().is_loopback());
    if let (Some(address), true, false) = (open_to_others, keys.is_empty(), args.no_api_key) {
        return Err(Failure::usage(format!(
            "--host {} lets other machines ask: give an --api-key, or --no-api-key to serve everybody",
            address.ip()
        )));
    }
    if args.no_api_key && open_to_others.is_some() {
        note("warning: everybody who reaches this machine's address can use the model (--no-api-key)");
    }
    Ok(ServeOptions {
        listen,
        keys,
        origins: origins(&args.cors_origins),
        slots: args.parallel,
        queue: args.queue,
        body_bytes_max: usize::try_from(args.body_limit).unwrap_or(usize::MAX),
        ping: Duration::from_secs(args.ping),
        stop_time: Duration::from_secs(args.stop_timeout),
        prefix: args.prefix.options(args.engine.run.memory.of_both())?,
        idle_release: args.idle_release.map(Duration::from_secs),
        alias: args.alias.clone().unwrap_or_default(),
        is_strict: args.strict_model,
        file_name: String::new(),
        form: form(&args.chat_template)?,
        reasoning: match args.reasoning {
            ReasoningField::Content => Reasoning::Content,
            ReasoningField::Short => Reasoning::Short,
            ReasoningField::Inline => Reasoning::Inline,
        },
        defaults: defaults(args),
        notice: Box::new(|text| note(&format!("flint-rt: {text}"))),
        moment: Box::new(|_| {}),
    })
}

fn defaults(args: &ServeArgs) -> Defaults {
    let given = &args.sampling;
    Defaults {
        sampling: SamplerOptions::recommended(given.seed.unwrap_or_default()),
        asked: SamplingAdvice {
            temperature: given.temp,
            top_k: given.top_k,
            top_p: given.top_p,
            min_p: given.min_p,
            repetition_penalty: given.repeat_penalty,
            penalty_last_n: None,
        },
        has_seed: given.seed.is_some(),
        tokens_max: args.predict,
        thinking: args.think.into(),
    }
}

fn keys(args: &ServeArgs) -> Outcome<Vec<String>> {
    let mut keys = args.api_key.clone();
    if let Some(path) = &args.api_key_file {
        let text = short_text(path)?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = keys.len();
        keys.extend(lines.map(str::to_owned));
        if keys.len() == before {
            return Err(Failure::usage(format!("{}: the file holds no key", path.display())));
        }
    }
    Ok(keys)
}

fn origins(listed: &[String]) -> Origins {
    match listed {
        [] => Origins::None,
        listed if listed.iter().any(|origin| origin == "*") => Origins::Any,
        [only] if only == "localhost" => Origins::Localhost,
        listed => Origins::Listed(listed.to_vec()),
    }
}

fn form(named: &Path) -> Outcome<FormChoice> {
    match named.to_str() {
        Some("file") => Ok(FormChoice::File),
        Some("flint") => Ok(FormChoice::BuiltIn),
        _ => short_text(named).map(FormChoice::Given),
    }
}

/// A file that a person wrote.
fn short_text(path: &Path) -> Outcome<String> {
    // Counted while it is read: a device or a pipe does not say how long it is.
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(TEXT_BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Ok(bytes) if bytes as u64 > TEXT_BYTES_MAX => Err(Failure::usage(format!(
            "{}: longer than {TEXT_BYTES_MAX} bytes, which is the most that is read",
            path.display()
        ))),
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::because(Exit::of_io(&error), path.display().to_string(), &error)),
    }
}

fn alias(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("a model needs a name of at least one character".to_owned()),
        name => Ok(name.to_owned()),
    }
}

/// The least body limit: less than this holds no conversation.
const BODY_BYTES_MIN: u64 = 1 << 10;

fn body_limit(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        few if few < BODY_BYTES_MIN => {
            Err(format!("{few} bytes hold no request, wanted {BODY_BYTES_MIN} or more"))
        }
        bytes => Ok(bytes),
    }
}

fn log(log: Log) {
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false);
    match log {
        Log::Off => {}
        Log::Text => lines.with_ansi(false).init(),
        Log::Json => lines.json().flatten_event(true).init(),
    }
}
