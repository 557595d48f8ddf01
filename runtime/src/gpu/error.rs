//! What can go wrong between this program and a Vulkan driver.

use std::path::PathBuf;

use ash::vk;

use crate::base::units::display_bytes;

/// Why the device layer could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// There is no Vulkan loader on this machine.
    #[error(
        "the Vulkan loader is missing ({reason}): install it and a driver, on Debian and Ubuntu \
         `apt install libvulkan1 mesa-vulkan-drivers`"
    )]
    LoaderMissing {
        /// What the dynamic linker said.
        reason: String,
    },
    /// Validation was asked for and cannot be had.
    #[error(
        "validation was asked for, but {reason}: install the layer, on Debian and Ubuntu \
         `apt install vulkan-validationlayers`, or ask without it"
    )]
    ValidationMissing {
        /// What is not there.
        reason: String,
    },
    /// The loader is there, but no driver offers a device.
    #[error(
        "no Vulkan device ({reason}): install a driver, on Debian and Ubuntu `apt install mesa-vulkan-drivers` \
         (it brings a software device), or the GPU vendor's"
    )]
    NoDevice {
        /// What the loader said.
        reason: String,
    },
    /// No device goes by that name or index.
    #[error("no Vulkan device is called or numbered {wanted:?}; there are: {}", .devices.join("; "))]
    InvalidChoice {
        /// The name part or index that was asked for.
        wanted: String,
        /// Index and name of each device.
        devices: Vec<String>,
    },
    /// A variable of the environment has a value that means nothing.
    #[error("{name} in the environment is {value:?}: set it to {wanted}, or do not set it")]
    InvalidVariable {
        /// Its name.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        wanted: &'static str,
    },
    /// The device, or its driver, lacks what this program needs.
    #[error("{device} lacks {}: update its driver or choose another device", .features.join(", "))]
    FeatureMissing {
        /// The device's name and driver.
        device: String,
        /// Each missing feature, by its Vulkan name.
        features: Vec<String>,
    },
    /// Memory of the device, or memory that it shares with the host, is exhausted.
    #[error(
        "{what}: no {} of device memory (budget {}, already used {}): ask for less, or free some",
        display_bytes(*requested_bytes), display_bytes(*budget_bytes), display_bytes(*used_bytes)
    )]
    OutOfMemory {
        /// The buffer's name.
        what: String,
        /// Bytes asked for.
        requested_bytes: u64,
        /// What the driver lets this process use of the heap; its size where the driver does not say.
        budget_bytes: u64,
        /// What this process uses of the heap.
        used_bytes: u64,
    },
    /// A driver call found no memory for its own objects.
    #[error("{call} found no memory for the driver's own objects: close other programs")]
    OutOfObjectMemory {
        /// The Vulkan call.
        call: &'static str,
    },
    /// A size is over a limit of the device.
    #[error("{what}: {wanted} B is over the device's {limit_name} of {limit} B: split it")]
    OverLimit {
        /// The buffer or binding.
        what: String,
        /// Bytes wanted.
        wanted: u64,
        /// The limit's Vulkan name.
        limit_name: &'static str,
        /// The limit in bytes.
        limit: u64,
    },
    /// The driver does not take this host memory as a buffer.
    #[error("host memory of {len_bytes} B cannot be imported ({reason}): use mapped memory or a copy")]
    ImportRefused {
        /// Length of the region.
        len_bytes: u64,
        /// What stands in the way.
        reason: String,
    },
    /// The driver gave no memory that both sides reach at page alignment.
    #[error("no host-visible memory of {len_bytes} B can be mapped at page alignment ({reason}): use a copy")]
    MapRefused {
        /// Bytes asked for.
        len_bytes: u64,
        /// What stands in the way.
        reason: String,
    },
    /// The driver could not make a pipeline. The device is still usable.
    #[error("kernel {kernel}: {driver} refused its pipeline: {result}; try another variant or driver")]
    PipelineRefused {
        /// The kernel's name.
        kernel: &'static str,
        /// The device's driver.
        driver: String,
        /// The driver's answer.
        result: String,
    },
    /// The device was reset or fell off the bus. Everything on it is lost; a new [`crate::gpu::Gpu`] may work.
    #[error("{call}: the device was lost: see the kernel log for a reset or a watchdog, then open it again")]
    DeviceLost {
        /// The call that learned of it.
        call: &'static str,
    },
    /// The device did not finish in time.
    #[error("the device has not finished ticket {ticket} after {seconds} s: it hangs; restart the program")]
    Timeout {
        /// The ticket that was waited for.
        ticket: u64,
        /// How long.
        seconds: u64,
    },
    /// A driver call failed for a reason that has no variant of its own.
    #[error("{call} failed: {result}")]
    DriverRefused {
        /// The Vulkan call.
        call: &'static str,
        /// The driver's answer.
        result: String,
    },
    /// The pipeline cache could not be written.
    #[error("{path}: the pipeline cache could not be written; the next start will be slower")]
    CacheNotWritten {
        /// The cache file.
        path: PathBuf,
        /// What the file system said.
        #[source]
        source: std::io::Error,
    },
}

impl GpuError {
    /// Whether asking for less memory may help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::OutOfObjectMemory { .. })
    }

    /// Whether the device is gone and only a new [`crate::gpu::Gpu`] can help.
    pub fn is_device_lost(&self) -> bool {
        matches!(self, Self::DeviceLost { .. } | Self::Timeout { .. })
    }

    /// The error that stands for `result` of `call`.
    pub(super) fn of_call(call: &'static str, result: vk::Result) -> Self {
        match result {
            vk::Result::ERROR_DEVICE_LOST => Self::DeviceLost { call },
            vk::Result::ERROR_OUT_OF_HOST_MEMORY
            | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
            | vk::Result::ERROR_OUT_OF_POOL_MEMORY => Self::OutOfObjectMemory { call },
            other => Self::DriverRefused { call, result: describe(other) },
        }
    }
}

/// A driver's answer by name and number.
pub(super) fn describe(result: vk::Result) -> String {
    format!("{result:?} ({})", result.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lost_device_is_called_lost() {
        assert!(GpuError::of_call("vkQueueSubmit2", vk::Result::ERROR_DEVICE_LOST).is_device_lost());
        for result in
            [vk::Result::ERROR_UNKNOWN, vk::Result::ERROR_INVALID_SHADER_NV, vk::Result::from_raw(-77)]
        {
            let error = GpuError::of_call("vkCreateComputePipelines", result);
            assert!(!error.is_device_lost(), "{error}");
            assert!(error.to_string().contains(&result.as_raw().to_string()), "{error}");
        }
        assert!(GpuError::of_call("vkCreateBuffer", vk::Result::ERROR_OUT_OF_HOST_MEMORY).is_out_of_memory());
    }
}
