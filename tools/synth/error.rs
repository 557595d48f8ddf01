//! Why a synthetic model was not written.

use std::io;
use std::path::PathBuf;

use flint_rt::base::region::RegionError;
use flint_rt::base::units::display_bytes;

use crate::exit::{Exit, Failure};

/// Why a file was not written. Nothing of it is left, unless that is what is said.
#[derive(Debug, thiserror::Error)]
pub(super) enum SynthError {
    #[error("{} is there already: choose another name, or replace it with --force", path.display())]
    Exists { path: PathBuf },
    #[error("{} is no regular file, and is left as it is: choose another name", path.display())]
    NoFile { path: PathBuf },
    #[error("{} is being written by another process", path.display())]
    Busy { path: PathBuf },
    #[error("{} has {} free, and {} are needed", folder.display(), display_bytes(*.free_bytes), display_bytes(*.needed_bytes))]
    NoSpace { folder: PathBuf, needed_bytes: u64, free_bytes: u64 },
    #[error("{}: the drive was full, or a quota or the largest file reached, at byte {offset_bytes} of {len_bytes}", path.display())]
    DriveFull { path: PathBuf, offset_bytes: u64, len_bytes: u64, source: io::Error },
    #[error("{}: {what} failed", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error(transparent)]
    Memory(#[from] RegionError),
    #[error(
        "a thread could not be started: raise the process's limits of memory (ulimit -v) and of threads (ulimit -u)"
    )]
    Thread(#[source] io::Error),
    #[error("stopped")]
    Stopped,
}

impl SynthError {
    /// Takes an error of the system.
    pub(super) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// Takes an error of growing a file to `len_bytes`, at `offset_bytes`, and tells a full drive from a broken one.
    pub(super) fn write(
        path: impl Into<PathBuf>,
        offset_bytes: u64,
        len_bytes: u64,
        source: io::Error,
    ) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::DriveFull { path, offset_bytes, len_bytes, source }
            }
            _ => Self::Io { what: "writing", path, source },
        }
    }
}

impl From<SynthError> for Failure {
    fn from(error: SynthError) -> Self {
        let exit = match error {
            SynthError::NoSpace { .. }
            | SynthError::DriveFull { .. }
            | SynthError::Memory(_)
            | SynthError::Thread(_) => Exit::Memory,
            SynthError::Exists { .. }
            | SynthError::NoFile { .. }
            | SynthError::Busy { .. }
            | SynthError::Io { .. } => Exit::Failed,
            SynthError::Stopped => return Self::Interrupted,
        };
        Self::because(exit, "synth", &error)
    }
}
