//! The open device: its function pointers, its queues, and whether it is lost.
//!
//! Owns the logical device and, through it, the instance. In: the [`Candidate`] to open. Out: a [`Device`] that every
//! object of this station keeps alive.
//!
//! Invariants: exactly the features that the kernels need are on, and what cooperative matrices need where there are any; robust
//! buffer access is not among them; once lost, a device stays lost.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};

use ash::{ext, khr, vk};

use super::error::GpuError;
use super::info::DeviceInfo;
use super::instance::Instance;
use super::probe::Candidate;
use super::queues::{CopyQueue, Lane, QueueKind, Queues};

/// A logical device.
pub(super) struct Device {
    pub(super) raw: ash::Device,
    pub(super) physical: vk::PhysicalDevice,
    pub(super) queues: Queues,
    /// Whether stamps can be reset by the host.
    pub(super) has_host_query_reset: bool,
    pub(super) info: DeviceInfo,
    pub(super) host_import: Option<ext::external_memory_host::Device>,
    names: Option<ext::debug_utils::Device>,
    is_lost: AtomicBool,
    /// Dropped after the device is destroyed.
    pub(super) instance: Instance,
}

impl Device {
    /// Opens `candidate` with a queue for kernels, and one for copies where it has one and `copies` does not forbid it.
    ///
    /// # Errors
    /// When the driver refuses.
    pub(super) fn open(
        instance: Instance,
        candidate: Candidate,
        copies: CopyQueue,
    ) -> Result<Self, GpuError> {
        let Candidate { physical, info, queues } = candidate;
        let mut queues = queues.expect("invariant: a device without a compute queue is not chosen");
        if copies == CopyQueue::Shared {
            queues.copies = None;
        }
        let mut extensions = Vec::new();
        if info.limits.import_alignment.is_some() {
            extensions.push(ext::external_memory_host::NAME.as_ptr());
        }
        if info.has_memory_budget {
            extensions.push(ext::memory_budget::NAME.as_ptr());
        }
        let has_matrix = info.matrix.is_some();
        if has_matrix {
            extensions.push(khr::cooperative_matrix::NAME.as_ptr());
        }
        let priorities = [1.0, 1.0];
        let of_family = |family: u32, count: usize| {
            vk::DeviceQueueCreateInfo::default()
                .queue_family_index(family)
                .queue_priorities(&priorities[..count])
        };
        let family = queues.kernels.family;
        let queue_infos = match queues.copies {
            None => vec![of_family(family, 1)],
            Some(copies) if copies.family == family => vec![of_family(family, 2)],
            Some(copies) => vec![of_family(family, 1), of_family(copies.family, 1)],
        };
        let has_host_query_reset = has_host_query_reset(&instance, physical);
        let base = vk::PhysicalDeviceFeatures::default().shader_storage_buffer_array_dynamic_indexing(true);
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
            .timeline_semaphore(true)
            .host_query_reset(has_host_query_reset)
            .shader_float16(has_matrix)
            .vulkan_memory_model(has_matrix)
            .vulkan_memory_model_device_scope(has_matrix);
        let mut matrix = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
        let mut v13 = vk::PhysicalDeviceVulkan13Features::default()
            .synchronization2(true)
            .subgroup_size_control(true)
            .compute_full_subgroups(true)
            .shader_integer_dot_product(true)
            .maintenance4(true);
        let mut create = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queue_infos)
            .enabled_extension_names(&extensions)
            .enabled_features(&base)
            .push_next(&mut v12)
            .push_next(&mut v13);
        if has_matrix {
            create = create.push_next(&mut matrix);
        }
        // SAFETY:
        // - `physical` comes from this instance; family, extensions and features were all seen to be offered.
        // - Everything that `create` points to lives until the call returns.
        let raw = unsafe { instance.raw.create_device(physical, &create, None) }
            .map_err(|result| GpuError::of_call("vkCreateDevice", result))?;
        let has_import = info.limits.import_alignment.is_some();
        let host_import = has_import.then(|| ext::external_memory_host::Device::new(&instance.raw, &raw));
        let names = instance.is_validated().then(|| ext::debug_utils::Device::new(&instance.raw, &raw));
        Ok(Self {
            raw,
            physical,
            queues,
            has_host_query_reset,
            info,
            host_import,
            names,
            is_lost: AtomicBool::new(false),
            instance,
        })
    }

    /// The queue on which work of `kind` runs.
    pub(super) fn lane(&self, kind: QueueKind) -> Lane {
        match kind {
            QueueKind::Kernels => self.queues.kernels,
            QueueKind::Copies => self.queues.copies.unwrap_or(self.queues.kernels),
        }
    }

    /// The families that use a buffer, where they are two.
    pub(super) fn sharing_families(&self) -> Option<[u32; 2]> {
        let families = [QueueKind::Kernels, QueueKind::Copies].map(|kind| self.lane(kind).family);
        (families[0] != families[1]).then_some(families)
    }

    /// The error for `result` of `call`; remembers a loss.
    pub(super) fn failed(&self, call: &'static str, result: vk::Result) -> GpuError {
        let error = GpuError::of_call(call, result);
        if error.is_device_lost() {
            self.is_lost.store(true, Ordering::Release);
        }
        error
    }

    /// Whether a call has said that the device is lost.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// # Errors
    /// [`GpuError::DeviceLost`] once the device is lost.
    pub(super) fn check_alive(&self, call: &'static str) -> Result<(), GpuError> {
        if self.is_lost() { Err(GpuError::DeviceLost { call }) } else { Ok(()) }
    }

    /// Names an object for the validation layer's messages; nothing without validation.
    pub(super) fn name_object(&self, handle: impl vk::Handle, name: &str) {
        let Some(names) = &self.names else { return };
        let Ok(name) = CString::new(name) else { return };
        let info = vk::DebugUtilsObjectNameInfoEXT::default().object_handle(handle).object_name(&name);
        // SAFETY: the handle was just made from this device and only its maker holds it. A name that could not be set
        // only makes a message harder to read, so the answer does not matter.
        let _ = unsafe { names.set_debug_utils_object_name(&info) };
    }
}

fn has_host_query_reset(instance: &Instance, physical: vk::PhysicalDevice) -> bool {
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut chain = vk::PhysicalDeviceFeatures2::default().push_next(&mut v12);
    // SAFETY: the device comes from this instance and speaks Vulkan 1.3, where the struct is core.
    unsafe { instance.raw.get_physical_device_features2(physical, &mut chain) };
    v12.host_query_reset == vk::TRUE
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: every object that was made from the device holds it by `Arc` and is destroyed, and what was submitted
        // has been waited for: `Commands` and `Timeline` do so when they are dropped.
        unsafe { self.raw.destroy_device(None) };
    }
}
