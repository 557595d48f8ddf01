//! What can go wrong between a plan and a filled slot.

use crate::disk::DiskError;
use crate::expert::HostPath;
use crate::gpu::GpuError;

/// What can go wrong when bytes travel from disk into device memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertError {
    /// A read failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The device failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A path that was asked for does not work here.
    #[error(
        "host path `{path}` does not work on this device: {reason}; leave --host-path out to let it be chosen"
    )]
    HostPath {
        /// The path.
        path: HostPath,
        /// What its probe met.
        reason: String,
    },
    /// The kernel cannot pin the memory that the driver gave.
    #[error("direct reads do not reach this memory: {reason}")]
    NotPinned {
        /// What the kernel said.
        reason: String,
    },
    /// No path works.
    #[error("no way from the drive to the device works here: {reasons}")]
    NoHostPath {
        /// What each probe met.
        reasons: String,
    },
    /// What the device saw after a read is not what the file holds.
    #[error(
        "{path}: bytes read by {host_path} differ from the file's when the device reads them: driver fault"
    )]
    ProbeMismatch {
        /// The file.
        path: std::path::PathBuf,
        /// The path that was probed.
        host_path: HostPath,
    },
    /// Bytes of a store are not those that were put there, also when they are read again.
    #[error(
        "{path}: {what} ({len_bytes} B at byte {offset_bytes}) is damaged: its checksum is another; run `flint-rt verify` on \
         the store, with --repair and the GGUF to mend it",
        path = path.display()
    )]
    Damaged {
        /// The expert or the tensor.
        what: String,
        /// The file.
        path: std::path::PathBuf,
        /// Where in it.
        offset_bytes: u64,
        /// How long.
        len_bytes: u64,
    },
    /// The step that a read was for has failed; never seen outside.
    #[error("the read was given up")]
    Abandoned,
    /// The pool would need more buffers than a kernel can bind.
    #[error(
        "{slots} slots of {record_bytes} B need {buffers} buffers on this device, kernels bind {buffers_max}: ask for \
         at most {slots_max} slots"
    )]
    PoolTooLarge {
        /// Slots asked for.
        slots: u32,
        /// Bytes of a record.
        record_bytes: u64,
        /// Buffers that they take.
        buffers: u32,
        /// Buffers that a kernel binds.
        buffers_max: u32,
        /// Slots that would fit.
        slots_max: u32,
    },
}

impl ExpertError {
    /// Whether the bytes on the drive are at fault: then the store is to be verified.
    pub fn is_data_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Disk(error) => error.is_data_damage(),
            _ => false,
        }
    }

    /// Whether another host path may do better: the fault is of this path's memory, not of a file or the device.
    pub fn is_of_host_path(&self) -> bool {
        match self {
            Self::NotPinned { .. } | Self::ProbeMismatch { .. } => true,
            Self::Gpu(error) => !error.is_device_lost(),
            Self::Disk(error) => matches!(error, DiskError::Memory(_)),
            _ => false,
        }
    }
}
