//! Status codes, and which error has which.
//!
//! In: errors of the stations. Out: a [`Fault`], a code with its text. Pure.

use crate::base::causes::with_causes;
use crate::disk::DiskError;
use crate::engine::{EngineError, SnapshotError};
use crate::expert::{ExpertError, HostPoolError};
use crate::gguf::GgufError;
use crate::gpu::GpuError;
use crate::model::ModelError;
use crate::sample::{OptionsError, SampleError};
use crate::store::StoreError;
use crate::text::TextError;

/// What a call gives back; the numbers are the header's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// It did what it should.
    Ok = 0,
    /// An argument makes no sense.
    Argument = -1,
    /// No such handle: null, freed, never made, or of another kind.
    Handle = -2,
    /// The library is of another ABI than the caller, or lacks what the caller asks for.
    Abi = -3,
    /// Called from a callback of a call that holds what this one needs.
    Reentrant = -4,
    /// The caller's buffer is too small; the size that is needed was written.
    Buffer = -5,
    /// Stopped by a callback or a cancel.
    Cancelled = -6,
    /// The object is in a state in which this cannot be done.
    State = -7,
    /// The model is missing, unfinished, or not one that runs here.
    Model = -8,
    /// Bytes on the drive are not what they should be.
    Damaged = -9,
    /// No suitable device, or it failed.
    Device = -10,
    /// Not enough memory.
    Memory = -11,
    /// A read failed.
    Io = -12,
    /// The context has no room.
    Context = -13,
    /// Every slot of the pool is held.
    PoolFull = -14,
    /// The time is over.
    Timeout = -15,
    /// A fault of the library: the object can only be freed.
    Panic = -16,
    /// Anything else.
    Other = -17,
}

impl Status {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 18] = [
        Self::Ok,
        Self::Argument,
        Self::Handle,
        Self::Abi,
        Self::Reentrant,
        Self::Buffer,
        Self::Cancelled,
        Self::State,
        Self::Model,
        Self::Damaged,
        Self::Device,
        Self::Memory,
        Self::Io,
        Self::Context,
        Self::PoolFull,
        Self::Timeout,
        Self::Panic,
        Self::Other,
    ];

    /// In a few words.
    pub(super) fn words(self) -> &'static std::ffi::CStr {
        match self {
            Self::Ok => c"done",
            Self::Argument => c"an argument makes no sense",
            Self::Handle => c"no such handle: null, freed, or of another kind",
            Self::Abi => c"library and caller are of different versions",
            Self::Reentrant => c"called from a callback that must not call this",
            Self::Buffer => c"the buffer is too small",
            Self::Cancelled => c"cancelled",
            Self::State => c"not possible in this state",
            Self::Model => c"the model is missing or not one that runs here",
            Self::Damaged => c"bytes on the drive are damaged",
            Self::Device => c"no suitable device, or it failed",
            Self::Memory => c"not enough memory",
            Self::Io => c"a read failed",
            Self::Context => c"the context is full",
            Self::PoolFull => c"every slot of the pool is held",
            Self::Timeout => c"the time is over",
            Self::Panic => c"a fault of the library",
            Self::Other => c"failed",
        }
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) status: Status,
    pub(super) text: String,
}

impl Fault {
    pub(super) fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub(super) fn argument(text: impl Into<String>) -> Self {
        Self::new(Status::Argument, text)
    }

    fn of(status: Status, error: &dyn std::error::Error) -> Self {
        Self { status, text: with_causes(error) }
    }
}

macro_rules! fault_from {
    ($($error:ty => $status:expr;)*) => {
        $(impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                let status: fn(&$error) -> Status = $status;
                Self::of(status(&error), &error)
            }
        })*
    };
}

fault_from! {
    EngineError => of_engine;
    StoreError => of_store;
    GpuError => of_gpu;
    HostPoolError => of_host_pool;
    ExpertError => of_expert;
    DiskError => of_disk;
    TextError => |_| Status::Argument;
    OptionsError => |_| Status::Argument;
    SampleError => of_sample;
    SnapshotError => of_snapshot;
}

fn of_io(error: &std::io::Error) -> Status {
    match error.kind() {
        std::io::ErrorKind::OutOfMemory => Status::Memory,
        _ => Status::Io,
    }
}

fn of_model_io(error: &std::io::Error) -> Status {
    match error.kind() {
        std::io::ErrorKind::NotFound
        | std::io::ErrorKind::NotADirectory
        | std::io::ErrorKind::UnexpectedEof => Status::Model,
        _ => of_io(error),
    }
}

fn of_engine(error: &EngineError) -> Status {
    match error {
        EngineError::Store(error) => of_store(error),
        EngineError::Gguf(error) => of_gguf(error),
        EngineError::Text(TextError::UnknownId { .. }) => Status::Argument,
        EngineError::Config(_) | EngineError::Text(_) => Status::Model,
        EngineError::Disk(error) => of_disk(error),
        EngineError::Gpu(error) => of_gpu(error),
        EngineError::Expert(error) => of_expert(error),
        EngineError::Model(error) => of_model(error),
        EngineError::Sample(error) => of_sample(error),
        EngineError::Snapshot(error) => of_snapshot(error),
        EngineError::MemoryTooSmall(_)
        | EngineError::HostMemoryTooSmall(_)
        | EngineError::GpuMemoryTooLarge { .. } => Status::Memory,
        EngineError::Sampling(_)
        | EngineError::OutOfRange { .. }
        | EngineError::RoutesOther { .. }
        | EngineError::EmptyPrompt => Status::Argument,
    }
}

fn of_snapshot(error: &SnapshotError) -> Status {
    match error {
        SnapshotError::NothingHeld => Status::State,
        SnapshotError::NoMemory { .. } => Status::Memory,
        SnapshotError::TooLong { .. } => Status::Context,
        SnapshotError::OtherLength { .. } | SnapshotError::Damaged { .. } | SnapshotError::BadHead { .. } => {
            Status::Damaged
        }
        SnapshotError::Io { source, .. } => of_io(source),
        SnapshotError::GivenUp => Status::Cancelled,
        SnapshotError::OtherModel { .. }
        | SnapshotError::OtherShape { .. }
        | SnapshotError::NoCut { .. }
        | SnapshotError::NotASnapshot { .. }
        | SnapshotError::OtherVersion { .. } => Status::Argument,
    }
}

fn of_model(error: &ModelError) -> Status {
    match error {
        ModelError::Gpu(error) => of_gpu(error),
        ModelError::Expert(error) => of_expert(error),
        ModelError::Disk(error) => of_disk(error),
        ModelError::ContextFull { .. } => Status::Context,
        ModelError::UnknownToken { .. } => Status::Argument,
        ModelError::NotFinite { .. } => Status::Damaged,
        ModelError::Stopped => Status::Cancelled,
    }
}

fn of_gguf(error: &GgufError) -> Status {
    match error.cause() {
        GgufError::Open { error, .. } | GgufError::Read { error, .. } => of_model_io(error),
        _ => Status::Model,
    }
}

fn of_store(error: &StoreError) -> Status {
    match error {
        StoreError::Gguf(error) => of_gguf(error),
        StoreError::Io { source, .. } => of_model_io(source),
        StoreError::Memory(_) => Status::Memory,
        error if error.is_data_damage() => Status::Damaged,
        _ => Status::Model,
    }
}

fn of_gpu(error: &GpuError) -> Status {
    if error.is_out_of_memory() { Status::Memory } else { Status::Device }
}

fn of_disk(error: &DiskError) -> Status {
    match error {
        DiskError::Open { source, .. } => of_model_io(source),
        DiskError::Read { source, .. } => of_io(source),
        DiskError::PathUnknown { .. } | DiskError::Depth { .. } | DiskError::PathImpossible { .. } => {
            Status::Argument
        }
        DiskError::Memory(_) | DiskError::PoolThreads { .. } => Status::Memory,
        error if error.is_data_damage() => Status::Damaged,
        _ => Status::Io,
    }
}

fn of_expert(error: &ExpertError) -> Status {
    match error {
        ExpertError::Disk(error) => of_disk(error),
        ExpertError::Gpu(error) => of_gpu(error),
        ExpertError::Damaged { .. } => Status::Damaged,
        ExpertError::PoolTooLarge { .. } => Status::Argument,
        ExpertError::HostPath { .. } | ExpertError::NoHostPath { .. } | ExpertError::ProbeMismatch { .. } => {
            Status::Device
        }
        ExpertError::NotPinned { .. } => Status::Memory,
        ExpertError::Abandoned => Status::Other,
    }
}

fn of_sample(error: &SampleError) -> Status {
    match error {
        SampleError::NotFinite { .. } => Status::Damaged,
        SampleError::WrongLength { .. } | SampleError::NothingAllowed | SampleError::UnknownId { .. } => {
            Status::Argument
        }
    }
}

fn of_host_pool(error: &HostPoolError) -> Status {
    match error {
        HostPoolError::Disk(error) => of_disk(error),
        HostPoolError::Memory(_) => Status::Memory,
        HostPoolError::Read(error) => of_expert(error),
        HostPoolError::Full { .. } => Status::PoolFull,
        HostPoolError::Slots { .. }
        | HostPoolError::MemoryLength { .. }
        | HostPoolError::UnknownExpert { .. }
        | HostPoolError::UnknownRequest { .. }
        | HostPoolError::TooManyRequests { .. } => Status::Argument,
        HostPoolError::Pending { .. } => Status::State,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_count_down_from_zero() {
        for (index, status) in Status::ALL.into_iter().enumerate() {
            assert_eq!(status as i32, -i32::try_from(index).unwrap());
            assert!(!status.words().is_empty());
        }
    }

    #[test]
    fn a_full_context_is_told_from_a_wrong_argument() {
        let full = EngineError::from(ModelError::ContextFull { context_len: 4 });
        assert_eq!(Fault::from(full).status, Status::Context);
        assert_eq!(Fault::from(EngineError::EmptyPrompt).status, Status::Argument);
        assert_eq!(Fault::from(EngineError::from(ModelError::Stopped)).status, Status::Cancelled);
    }
}
