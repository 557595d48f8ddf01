//! What is known of a device, and which one is taken: plain data and pure choice.
//!
//! In: the devices that the drivers report. Out: [`DeviceInfo`], and the index of the device to open with the reason.
//!
//! Invariants: the order, and so the index, depends only on what the devices are, not on the order in which the loader
//! found their drivers; a software device is taken only when asked for or when no other can run the kernels.

use std::fmt;

use super::error::GpuError;
use super::matrix::MatrixShape;

/// What a device is made of; the order is the order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A GPU behind a hypervisor.
    Virtual,
    /// Something that the driver does not describe.
    Other,
    /// The host's processor, posing as a device.
    Software,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discrete => "discrete GPU",
            Self::Integrated => "integrated GPU",
            Self::Virtual => "virtual GPU",
            Self::Other => "unknown kind",
            Self::Software => "software device",
        })
    }
}

/// Why a device was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceChoice {
    /// It was not opened, only listed.
    Listed,
    /// It was asked for.
    Asked(String),
    /// Nobody asked; it is the first of the best kind.
    Best,
    /// Nobody asked; no other device can run the kernels. Those that were passed over, with what they lack.
    SoftwareOnly(Vec<String>),
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed => f.write_str("listed"),
            Self::Asked(wanted) => write!(f, "asked for as {wanted:?}"),
            Self::Best => f.write_str("the best kind there is"),
            Self::SoftwareOnly(passed) if passed.is_empty() => {
                f.write_str("a software device, as there is no GPU with a Vulkan driver")
            }
            Self::SoftwareOnly(passed) => write!(f, "a software device, as {}", passed.join("; ")),
        }
    }
}

/// The limits of a device that this program minds.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceLimits {
    /// Bytes that one storage-buffer binding reaches (`maxStorageBufferRange`).
    pub storage_range: u64,
    /// What a binding's offset must be a multiple of (`minStorageBufferOffsetAlignment`).
    pub storage_offset_alignment: u64,
    /// Bytes of push constants.
    pub push_bytes: u32,
    /// Storage buffers of one kernel.
    pub storage_buffers: u32,
    /// Workgroups of a dispatch, by dimension.
    pub groups: [u32; 3],
    /// Invocations of a workgroup.
    pub workgroup_len: u32,
    /// Subgroups of a workgroup.
    pub workgroup_subgroups: u32,
    /// Bytes of shared memory of a workgroup.
    pub shared_bytes: u32,
    /// Bytes of one allocation (`maxMemoryAllocationSize`).
    pub allocation_bytes: u64,
    /// Bytes of one buffer (`maxBufferSize`).
    pub buffer_bytes: u64,
    /// What address and length of imported host memory must be a multiple of; `None` where it cannot be imported.
    pub import_alignment: Option<u64>,
    /// Nanoseconds of a timestamp's unit; 0 where the queue has no timestamps.
    pub timestamp_ns: f32,
}

/// One device as the drivers describe it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceInfo {
    /// Its number in our order, as `--device` takes it.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its driver's name and version.
    pub driver: String,
    /// The Vulkan version it speaks.
    pub api: String,
    /// What it is made of.
    pub kind: DeviceKind,
    /// PCI vendor.
    pub vendor_id: u32,
    /// PCI device.
    pub device_id: u32,
    /// The driver's version number, as it packs it.
    pub driver_version: u32,
    /// The device's own id, which tells twins apart.
    pub device_uuid: [u8; 16],
    /// What the driver says its pipeline cache belongs to.
    pub cache_uuid: [u8; 16],
    /// Lanes of a subgroup that this program uses.
    pub subgroup_size: u32,
    /// Lanes that a kernel gets when it asks for nothing.
    pub subgroup_default: u32,
    /// Fewest lanes that may be asked for.
    pub subgroup_min: u32,
    /// Most lanes that may be asked for.
    pub subgroup_max: u32,
    /// Whether a compute kernel may ask for its lanes at all.
    pub has_subgroup_choice: bool,
    /// The cooperative matrix of f16 into f32 that its kernels may use; `None` where it has none.
    pub matrix: Option<MatrixShape>,
    /// Its limits.
    pub limits: DeviceLimits,
    /// Its heaps: bytes, and whether they are the device's own memory.
    pub heaps: Vec<(u64, bool)>,
    /// Whether the driver reports how much memory it has left (`VK_EXT_memory_budget`).
    pub has_memory_budget: bool,
    /// What it lacks to run our kernels, by Vulkan name; empty for a usable device.
    pub missing: Vec<String>,
    /// Why it was opened.
    pub choice: DeviceChoice,
}

impl DeviceLimits {
    /// Bytes of the largest buffer that can be made and bound whole: an NVIDIA H200 binds 4 GiB - 1 but allocates 2 MB
    /// less at once.
    pub fn largest_binding(&self) -> u64 {
        self.storage_range.min(self.allocation_bytes).min(self.buffer_bytes)
    }
}

impl DeviceInfo {
    /// Whether it is the host's processor.
    pub fn is_software(&self) -> bool {
        self.kind == DeviceKind::Software
    }

    /// Name and driver in one line.
    pub fn title(&self) -> String {
        format!("{} ({})", self.name, self.driver)
    }
}

/// PCI numbers of the vendors that need a word of their own.
const VENDOR_NVIDIA: u32 = 0x10DE;
const VENDOR_AMD: u32 = 0x1002;
const VENDOR_INTEL: u32 = 0x8086;

/// The lanes to ask for: 32 on NVIDIA and on AMD's RDNA (which has 32 and 64), 16 on Intel, else what the device
/// does by itself. Older AMD has 64 only, so that 32 is out of its range.
pub(super) fn subgroup_size(vendor_id: u32, default: u32, min: u32, max: u32, has_choice: bool) -> u32 {
    let wanted = match vendor_id {
        VENDOR_NVIDIA | VENDOR_AMD => 32,
        VENDOR_INTEL => 16,
        _ => default,
    };
    if has_choice && (min..=max).contains(&wanted) { wanted } else { default }
}

/// Sorts devices by kind, then by what they are; the device's own id tells twins apart.
pub(super) fn sort_key(info: &DeviceInfo) -> (DeviceKind, u32, u32, String, String, [u8; 16]) {
    (info.kind, info.vendor_id, info.device_id, info.name.clone(), info.driver.clone(), info.device_uuid)
}

/// Which of `devices` (in our order) to open, and why. Digits alone are an index, anything else is part of a name,
/// in any case.
///
/// # Errors
/// [`GpuError::NoDevice`], [`GpuError::InvalidChoice`], or [`GpuError::FeatureMissing`] for the wanted or the only device.
pub(super) fn choose(
    devices: &[DeviceInfo],
    wanted: Option<&str>,
) -> Result<(usize, DeviceChoice), GpuError> {
    if devices.is_empty() {
        return Err(GpuError::NoDevice { reason: "the drivers offer none".to_owned() });
    }
    let (index, choice) = match wanted {
        Some(wanted) => (find(devices, wanted)?, DeviceChoice::Asked(wanted.to_owned())),
        None => best(devices),
    };
    let info = &devices[index];
    if !info.missing.is_empty() {
        return Err(GpuError::FeatureMissing { device: info.title(), features: info.missing.clone() });
    }
    Ok((index, choice))
}

fn find(devices: &[DeviceInfo], wanted: &str) -> Result<usize, GpuError> {
    let part = wanted.trim().to_lowercase();
    // A number that is no index must not fall on a device whose name happens to hold its digits.
    let is_index = part.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(index) = part.parse::<usize>().ok().filter(|&index| is_index && index < devices.len()) {
        return Ok(index);
    }
    let is_named = |info: &DeviceInfo| !is_index && info.name.to_lowercase().contains(&part);
    // One GPU may have two drivers: the one that can run the kernels is meant.
    let usable = devices.iter().position(|info| is_named(info) && info.missing.is_empty());
    usable.or_else(|| devices.iter().position(is_named)).ok_or_else(|| GpuError::InvalidChoice {
        wanted: wanted.to_owned(),
        devices: devices.iter().map(|info| format!("{} {}", info.index, info.name)).collect(),
    })
}

fn best(devices: &[DeviceInfo]) -> (usize, DeviceChoice) {
    let Some(index) = devices.iter().position(|info| info.missing.is_empty()) else {
        return (0, DeviceChoice::Best);
    };
    if !devices[index].is_software() {
        return (index, DeviceChoice::Best);
    }
    let passed = devices.iter().filter(|info| !info.is_software());
    let passed = passed.map(|info| format!("{} lacks {}", info.title(), info.missing.join(", ")));
    (index, DeviceChoice::SoftwareOnly(passed.collect()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::gpu) fn device(index: usize, name: &str, kind: DeviceKind, missing: &[&str]) -> DeviceInfo {
        DeviceInfo {
            index,
            name: name.to_owned(),
            driver: "test 1".to_owned(),
            api: "1.3.0".to_owned(),
            kind,
            vendor_id: 1,
            device_id: 2,
            driver_version: 3,
            device_uuid: [0; 16],
            cache_uuid: [0; 16],
            subgroup_size: 8,
            subgroup_default: 8,
            subgroup_min: 8,
            subgroup_max: 8,
            has_subgroup_choice: true,
            matrix: None,
            limits: DeviceLimits {
                storage_range: 1 << 27,
                storage_offset_alignment: 16,
                push_bytes: 128,
                storage_buffers: 32,
                groups: [65_535; 3],
                workgroup_len: 1024,
                workgroup_subgroups: 32,
                shared_bytes: 32 << 10,
                allocation_bytes: 1 << 31,
                buffer_bytes: 1 << 31,
                import_alignment: None,
                timestamp_ns: 1.0,
            },
            heaps: vec![(1 << 31, true)],
            has_memory_budget: false,
            missing: missing.iter().map(|&name| name.to_owned()).collect(),
            choice: DeviceChoice::Listed,
        }
    }

    #[test]
    fn the_best_kind_is_taken_and_software_only_with_a_reason() {
        let gpu = device(0, "NVIDIA H200", DeviceKind::Discrete, &[]);
        let old = device(0, "GeForce 8", DeviceKind::Discrete, &["Vulkan 1.3"]);
        let cpu = device(1, "llvmpipe", DeviceKind::Software, &[]);
        assert_eq!(choose(&[gpu.clone(), cpu.clone()], None).unwrap(), (0, DeviceChoice::Best));
        let (index, choice) = choose(&[old, cpu.clone()], None).unwrap();
        assert_eq!(index, 1);
        assert!(choice.to_string().contains("GeForce 8 (test 1) lacks Vulkan 1.3"), "{choice}");
        let cpu_alone = DeviceInfo { index: 0, ..cpu };
        assert_eq!(choose(&[cpu_alone], None).unwrap(), (0, DeviceChoice::SoftwareOnly(Vec::new())));
    }

    #[test]
    fn a_name_part_or_an_index_chooses() {
        let devices = [
            device(0, "NVIDIA GeForce RTX 4090", DeviceKind::Discrete, &[]),
            device(1, "llvmpipe (LLVM 15)", DeviceKind::Software, &[]),
        ];
        assert_eq!(choose(&devices, Some("LLVMpipe")).unwrap().0, 1);
        assert_eq!(choose(&devices, Some("1")).unwrap().0, 1);
        assert_eq!(choose(&devices, Some("RTX 4090")).unwrap().0, 0);
        for wrong in ["2", "4090", "15", "+1", "radeon", "", " ", "-1"] {
            let error = choose(&devices, Some(wrong)).unwrap_err();
            assert!(
                error.to_string().contains("0 NVIDIA GeForce RTX 4090; 1 llvmpipe"),
                "{wrong:?}: {error}"
            );
        }
        assert!(matches!(choose(&[], None), Err(GpuError::NoDevice { .. })));
    }

    #[test]
    fn a_device_that_was_asked_for_is_never_replaced() {
        let devices = [
            device(0, "GeForce 8", DeviceKind::Discrete, &["synchronization2", "maintenance4"]),
            device(1, "llvmpipe", DeviceKind::Software, &[]),
        ];
        let error = choose(&devices, Some("geforce")).unwrap_err();
        assert!(error.to_string().contains("lacks synchronization2, maintenance4"), "{error}");
    }

    #[test]
    fn lanes_follow_the_vendor() {
        assert_eq!(subgroup_size(VENDOR_NVIDIA, 32, 32, 32, true), 32);
        assert_eq!(subgroup_size(VENDOR_AMD, 64, 32, 64, true), 32);
        assert_eq!(subgroup_size(VENDOR_AMD, 64, 64, 64, true), 64);
        assert_eq!(subgroup_size(VENDOR_INTEL, 32, 8, 32, true), 16);
        assert_eq!(subgroup_size(VENDOR_INTEL, 32, 8, 32, false), 32);
        assert_eq!(subgroup_size(0x10005, 8, 8, 8, true), 8);
        assert_eq!(subgroup_size(0x10005, 4, 4, 4, true), 4);
    }
}
