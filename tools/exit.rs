//! Exit codes, and which error has which.
//!
//! In: errors of the library. Out: a [`Failure`], whose report is one line, `flint-rt: what: cause`, and its code.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

use flint_rt::base::causes::with_causes;
use flint_rt::disk::DiskError;
use flint_rt::engine::{EngineError, SnapshotError};
use flint_rt::expert::ExpertError;
use flint_rt::gguf::GgufError;
use flint_rt::gpu::GpuError;
use flint_rt::model::ModelError;
use flint_rt::model::hparams::ConfigError;
use flint_rt::sample::{OptionsError, SampleError};
use flint_rt::store::{SourceError, StoreError};
use flint_rt::text::TextError;

use crate::interrupt;
use crate::source::{FetchError, OpenError};
use crate::terminal::note;

/// What `--help` says of them.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  failed: a read, a write, the device, or anything else
    2  the arguments make no sense
    3  the model is missing, damaged, or not one that runs here
    4  no suitable Vulkan device or driver
    5  not enough memory or room on the drive
  130  interrupted (Ctrl-C, SIGINT)
  143  terminated (SIGTERM)

Every flag with an [env: ...] can be given by that variable; a flag wins over its variable.
Answers go to standard output, everything else to standard error. NO_COLOR is honoured.";

/// Why the program ends with something else than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    Model = 3,
    Device = 4,
    Memory = 5,
    Interrupted = 130,
    Terminated = 143,
}

impl Exit {
    /// Of a failed operation of the file system.
    pub(crate) fn of_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::Memory
            }
            _ => Self::Failed,
        }
    }

    /// Of a failed operation on a model's file: only what is not there, or leads to itself, is the
    /// model's fault.
    pub(crate) fn of_model_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::UnexpectedEof => {
                Self::Model
            }
            _ if error.raw_os_error() == Some(libc::ELOOP) => Self::Model,
            _ => Self::of_io(error),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// What ended a command.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Whoever read the answer went away: nothing to say, nothing wrong.
    Closed,
    /// Ctrl-C, or SIGTERM.
    Interrupted,
    /// Something to report.
    Told {
        /// The code.
        exit: Exit,
        /// What, and why.
        text: String,
    },
}

/// What a command gives.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("nobody reads the answer"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Told { text, .. } => f.write_str(text),
        }
    }
}

impl Failure {
    /// A failure in one's own words.
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self::Told { exit, text: text.into() }
    }

    /// Arguments that make no sense.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(Exit::Usage, text)
    }

    /// `what`, because of `error`.
    pub(crate) fn because(exit: Exit, what: impl Into<String>, error: &dyn Error) -> Self {
        Self::new(exit, chain(error)).about(what)
    }

    /// Puts `what` in front, unless the report names it already.
    pub(crate) fn about(self, what: impl Into<String>) -> Self {
        let what = what.into();
        match self {
            Self::Told { exit, text } if !text.contains(&what) => {
                Self::Told { exit, text: format!("{what}: {text}") }
            }
            other => other,
        }
    }

    /// Says it, and gives the code. Of what may be the fault of a setting, the variables are named that made settings:
    /// `from_environment`, as `NAME=value`.
    pub(crate) fn report(self, from_environment: &[String]) -> ExitCode {
        let may_be_of_setting =
            matches!(self, Self::Told { exit: Exit::Usage | Exit::Model | Exit::Device | Exit::Memory, .. });
        if may_be_of_setting && !from_environment.is_empty() {
            note(&format!("from the environment: {}", from_environment.join(", ")));
        }
        self.say().into()
    }

    /// Says it, if there is something to say.
    pub(crate) fn say(self) -> Exit {
        match self {
            Self::Closed => Exit::Done,
            Self::Interrupted => interrupt::exit(),
            Self::Told { exit, text } => {
                note(&format!("flint-rt: {}", one_line(&text)));
                exit
            }
        }
    }
}

/// An error and its causes, each once.
fn chain(error: &dyn Error) -> String {
    with_limit(with_causes(error))
}

/// Names the limit that is behind too many open files, which no drive and no model is at fault for.
fn with_limit(text: String) -> String {
    match text.contains(&format!("(os error {})", libc::EMFILE)) {
        true => format!("{text}; raise the process's limit of open files (ulimit -n)"),
        false => text,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Failures of writing the answer; other files' errors are reported with their path.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::because(Exit::of_io(&error), "the answer cannot be written", &error),
        }
    }
}

macro_rules! failure_from {
    ($($error:ty => $exit:expr;)*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                let exit: fn(&$error) -> Exit = $exit;
                Self::new(exit(&error), chain(&error))
            }
        })*
    };
}

failure_from! {
    GgufError => of_gguf;
    ConfigError => |_| Exit::Model;
    TextError => |_| Exit::Model;
    StoreError => of_store;
    FetchError => of_fetch;
    OpenError => of_open;
    GpuError => of_gpu;
    OptionsError => |_| Exit::Usage;
    SampleError => |_| Exit::Failed;
    EngineError => of_engine;
}

fn of_gguf(error: &GgufError) -> Exit {
    match error.cause() {
        GgufError::Open { error, .. } | GgufError::Read { error, .. } => Exit::of_model_io(error),
        _ => Exit::Model,
    }
}

fn of_engine(error: &EngineError) -> Exit {
    match error {
        EngineError::Store(error) => of_store(error),
        EngineError::Gguf(error) => of_gguf(error),
        EngineError::Config(_) | EngineError::Text(_) => Exit::Model,
        EngineError::Disk(error) => of_disk(error),
        EngineError::Gpu(error) => of_gpu(error),
        EngineError::Expert(error) => of_expert(error),
        EngineError::Model(ModelError::Gpu(error)) => of_gpu(error),
        EngineError::Model(ModelError::Expert(error)) => of_expert(error),
        EngineError::Model(ModelError::Disk(error)) => of_disk(error),
        EngineError::Model(ModelError::UnknownToken { .. } | ModelError::ContextFull { .. }) => Exit::Usage,
        EngineError::Sampling(_) | EngineError::OutOfRange { .. } | EngineError::EmptyPrompt => Exit::Usage,
        EngineError::Snapshot(SnapshotError::Io { source, .. }) => Exit::of_io(source),
        EngineError::MemoryTooSmall { .. }
        | EngineError::HostMemoryTooSmall { .. }
        | EngineError::GpuMemoryTooLarge { .. } => Exit::Memory,
        _ => Exit::Failed,
    }
}

/// Of a store that does not open, or could not be made.
pub(crate) fn of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::Gguf(error) => of_gguf(error),
        StoreError::Io { source, .. } => Exit::of_model_io(source),
        // The target is at fault, not a model.
        StoreError::TargetRefused { source, .. } => Exit::of_io(source),
        StoreError::NoSpace { .. }
        | StoreError::DriveFull { .. }
        | StoreError::Memory(_)
        | StoreError::Thread { .. } => Exit::Memory,
        StoreError::TargetName { .. } | StoreError::StripeFolder { .. } => Exit::Usage,
        StoreError::Stopped => interrupt::exit(),
        StoreError::TargetParent { .. }
        | StoreError::TargetExists { .. }
        | StoreError::Busy { .. }
        | StoreError::InUse { .. }
        | StoreError::BeingChanged { .. }
        | StoreError::SourceOther { .. }
        | StoreError::StripesOther { .. }
        | StoreError::SyncFailed { .. } => Exit::Failed,
        StoreError::Source(error) => of_source(error),
        _ => Exit::Model,
    }
}

fn of_source(error: &SourceError) -> Exit {
    match error {
        SourceError::Changed { .. } => Exit::Model,
        SourceError::Stopped => interrupt::exit(),
        SourceError::Read { source, .. } => source.downcast_ref().map_or(Exit::Failed, of_fetch),
        _ => Exit::Failed,
    }
}

fn of_open(error: &OpenError) -> Exit {
    match error {
        OpenError::Fetch(error) => of_fetch(error),
        OpenError::Store(error) => of_store(error),
    }
}

fn of_fetch(error: &FetchError) -> Exit {
    match error {
        FetchError::Name { .. } | FetchError::Environment { .. } | FetchError::DigestCount { .. } => {
            Exit::Usage
        }
        FetchError::Access { .. }
        | FetchError::Missing { .. }
        | FetchError::Length { .. }
        | FetchError::Digest { .. }
        | FetchError::Changed { .. } => Exit::Model,
        FetchError::Stopped => interrupt::exit(),
        _ => Exit::Failed,
    }
}

fn of_gpu(error: &GpuError) -> Exit {
    match error {
        GpuError::LoaderMissing { .. }
        | GpuError::ValidationMissing { .. }
        | GpuError::NoDevice { .. }
        | GpuError::InvalidChoice { .. }
        | GpuError::FeatureMissing { .. } => Exit::Device,
        GpuError::InvalidVariable { .. } => Exit::Usage,
        error if error.is_out_of_memory() => Exit::Memory,
        _ => Exit::Failed,
    }
}

fn of_disk(error: &DiskError) -> Exit {
    match error {
        DiskError::Open { source, .. } => Exit::of_model_io(source),
        DiskError::NotAFile { .. } | DiskError::Truncated { .. } => Exit::Model,
        DiskError::Read { source, .. } => Exit::of_io(source),
        DiskError::PathUnknown { .. } | DiskError::Depth { .. } => Exit::Usage,
        DiskError::Memory(_) | DiskError::PoolThreads { .. } => Exit::Memory,
        _ => Exit::Failed,
    }
}

fn of_expert(error: &ExpertError) -> Exit {
    match error {
        ExpertError::Disk(error) => of_disk(error),
        ExpertError::Gpu(error) => of_gpu(error),
        ExpertError::NoHostPath { reasons } if is_of_host_memory(reasons) => Exit::Memory,
        ExpertError::NoHostPath { .. } => Exit::Device,
        ExpertError::PoolTooLarge { .. } => Exit::Usage,
        ExpertError::Damaged { .. } => Exit::Model,
        _ => Exit::Failed,
    }
}

/// Whether the last of the host paths, the plainest, which needs host memory alone, found none: then the device is not
/// at fault.
fn is_of_host_memory(reasons: &str) -> bool {
    let plainest = reasons.rsplit("; ").next().unwrap_or_default();
    plainest.contains("no memory for") || plainest.contains("host memory could not be mapped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_is_not_there_is_the_models_fault() {
        let of = |kind: io::ErrorKind| {
            let path = "model.gguf".into();
            of_engine(&EngineError::Store(StoreError::Io { action: "open", path, source: kind.into() }))
        };
        assert_eq!(of(io::ErrorKind::NotFound), Exit::Model);
        assert_eq!(of(io::ErrorKind::PermissionDenied), Exit::Failed);
        assert_eq!(of(io::ErrorKind::StorageFull), Exit::Memory);
        let too_many = io::Error::from_raw_os_error(24);
        let open = DiskError::Open { path: "dense.bin".into(), source: too_many };
        assert_eq!(of_engine(&EngineError::Disk(open)), Exit::Failed);
    }

    #[test]
    fn short_host_memory_is_no_fault_of_the_device() {
        let of = |reasons: &str| of_expert(&ExpertError::NoHostPath { reasons: reasons.to_owned() });
        assert_eq!(of("import: refused; copy: no memory for a probe read"), Exit::Memory);
        assert_eq!(of("import: no memory for a probe read; copy: the probe differs"), Exit::Device);
    }

    #[test]
    fn a_full_drive_is_said_by_its_code_of_an_answer_too() {
        let of = |kind: io::ErrorKind| match Failure::from(io::Error::from(kind)) {
            Failure::Told { exit, .. } => Some(exit),
            _ => None,
        };
        assert_eq!(of(io::ErrorKind::StorageFull), Some(Exit::Memory));
        assert_eq!(of(io::ErrorKind::PermissionDenied), Some(Exit::Failed));
        assert_eq!(of(io::ErrorKind::BrokenPipe), None);
    }

    #[test]
    fn too_many_open_files_name_their_limit() {
        let of = |code: i32| {
            let source = io::Error::from_raw_os_error(code);
            chain(&StoreError::Io { action: "lock", path: "lock".into(), source })
        };
        assert!(of(libc::EMFILE).ends_with("(ulimit -n)"), "{}", of(libc::EMFILE));
        assert!(!of(libc::EACCES).contains("ulimit"), "{}", of(libc::EACCES));
    }

    #[test]
    fn a_prompt_over_the_context_is_a_usage_fault() {
        assert_eq!(of_engine(&ModelError::ContextFull { context_len: 4 }.into()), Exit::Usage);
    }
}
