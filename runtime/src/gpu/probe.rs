//! Reads what the drivers say about their devices.
//!
//! In: an instance. Out: a [`Candidate`] a device, in our order, each with what it lacks.
//!
//! Invariant: a device older than Vulkan 1.3 is asked only what it can answer.

use ash::{ext, khr, vk};

use super::error::GpuError;
use super::info::{self, DeviceChoice, DeviceInfo, DeviceKind, DeviceLimits};
use super::instance::Instance;
use super::matrix;
use super::queues::{self, Queues};

/// A device that could be opened.
pub(super) struct Candidate {
    pub(super) physical: vk::PhysicalDevice,
    pub(super) info: DeviceInfo,
    /// The queues to use; `None` without compute.
    pub(super) queues: Option<Queues>,
}

/// Every device of `instance`, in our order.
///
/// # Errors
/// When the drivers cannot be asked.
pub(super) fn candidates(instance: &Instance) -> Result<Vec<Candidate>, GpuError> {
    // SAFETY: no conditions but a live instance.
    let physicals = unsafe { instance.raw.enumerate_physical_devices() }.map_err(|result| match result {
        // Some loaders report "no driver started" so.
        vk::Result::ERROR_INITIALIZATION_FAILED => {
            GpuError::NoDevice { reason: "no installed driver found its hardware".to_owned() }
        }
        other => GpuError::of_call("vkEnumeratePhysicalDevices", other),
    })?;
    let mut found = Vec::with_capacity(physicals.len());
    for physical in physicals {
        found.push(candidate(instance, physical)?);
    }
    found.sort_by_cached_key(|candidate| info::sort_key(&candidate.info));
    for (index, candidate) in found.iter_mut().enumerate() {
        candidate.info.index = index;
    }
    Ok(found)
}

/// Everything that the property chain holds, copied out of it.
#[derive(Default)]
struct Properties {
    base: vk::PhysicalDeviceProperties,
    driver: vk::PhysicalDeviceDriverProperties<'static>,
    id: vk::PhysicalDeviceIDProperties<'static>,
    subgroup: vk::PhysicalDeviceSubgroupProperties<'static>,
    subgroup_sizes: vk::PhysicalDeviceSubgroupSizeControlProperties<'static>,
    allocation: vk::PhysicalDeviceMaintenance3Properties<'static>,
    buffers: vk::PhysicalDeviceMaintenance4Properties<'static>,
    import: vk::PhysicalDeviceExternalMemoryHostPropertiesEXT<'static>,
}

fn candidate(opened: &Instance, physical: vk::PhysicalDevice) -> Result<Candidate, GpuError> {
    let instance = &opened.raw;
    // SAFETY: `physical` comes from this instance.
    let extensions = unsafe { instance.enumerate_device_extension_properties(physical) }
        .map_err(|result| GpuError::of_call("vkEnumerateDeviceExtensionProperties", result))?;
    let has = |name| extensions.iter().any(|known| known.extension_name_as_c_str() == Ok(name));
    let has_import = has(ext::external_memory_host::NAME);

    // SAFETY: `physical` comes from this instance.
    let base = unsafe { instance.get_physical_device_properties(physical) };
    let is_new = base.api_version >= vk::API_VERSION_1_3;
    let properties = if is_new {
        read_properties(instance, physical, has_import)
    } else {
        Properties { base, ..Properties::default() }
    };
    // SAFETY: `physical` comes from this instance.
    let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
    let queues = queues::choose(&families);
    let timestamp_bits = queues.map_or(0, |queues| queues.kernels.timestamp_bits);
    let mut missing =
        if is_new { missing_features(instance, physical) } else { vec!["Vulkan 1.3".to_owned()] };
    if is_new {
        missing.extend(missing_subgroup_operations(&properties.subgroup));
    }
    if queues.is_none() {
        missing.push("a compute queue".to_owned());
    }
    // SAFETY: `physical` comes from this instance.
    let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
    let heaps = memory.memory_heaps_as_slice().iter();
    let heaps = heaps.map(|heap| (heap.size, heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL)));

    let mut info = describe(&properties, has_import, timestamp_bits > 0);
    info.heaps = heaps.collect();
    info.has_memory_budget = has(ext::memory_budget::NAME);
    if is_new && has(khr::cooperative_matrix::NAME) {
        info.matrix = matrix::read(opened.entry(), instance, physical);
    }
    info.missing = missing;
    Ok(Candidate { physical, info, queues })
}

fn read_properties(instance: &ash::Instance, physical: vk::PhysicalDevice, has_import: bool) -> Properties {
    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    let mut id = vk::PhysicalDeviceIDProperties::default();
    let mut subgroup = vk::PhysicalDeviceSubgroupProperties::default();
    let mut subgroup_sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
    let mut allocation = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut buffers = vk::PhysicalDeviceMaintenance4Properties::default();
    let mut import = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
    let mut chain = vk::PhysicalDeviceProperties2::default()
        .push_next(&mut driver)
        .push_next(&mut id)
        .push_next(&mut subgroup)
        .push_next(&mut subgroup_sizes)
        .push_next(&mut allocation)
        .push_next(&mut buffers);
    if has_import {
        chain = chain.push_next(&mut import);
    }
    // SAFETY: the device speaks Vulkan 1.3, where every struct of the chain but the last is core; the last is chained
    // only where its extension is offered.
    unsafe { instance.get_physical_device_properties2(physical, &mut chain) };
    let base = chain.properties;
    // The copies must not point into this function's chain.
    driver.p_next = std::ptr::null_mut();
    id.p_next = std::ptr::null_mut();
    subgroup.p_next = std::ptr::null_mut();
    subgroup_sizes.p_next = std::ptr::null_mut();
    allocation.p_next = std::ptr::null_mut();
    buffers.p_next = std::ptr::null_mut();
    import.p_next = std::ptr::null_mut();
    Properties { base, driver, id, subgroup, subgroup_sizes, allocation, buffers, import }
}

fn describe(properties: &Properties, has_import: bool, has_timestamps: bool) -> DeviceInfo {
    let Properties { base, driver, subgroup, subgroup_sizes, .. } = properties;
    let limits = &base.limits;
    let has_subgroup_choice =
        subgroup_sizes.required_subgroup_size_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let (min, max) = (subgroup_sizes.min_subgroup_size, subgroup_sizes.max_subgroup_size);
    let default = subgroup.subgroup_size;
    DeviceInfo {
        index: 0,
        name: text(base.device_name_as_c_str()),
        driver: format!("{} {}", text(driver.driver_name_as_c_str()), text(driver.driver_info_as_c_str()))
            .trim()
            .to_owned(),
        api: version_text(base.api_version),
        kind: kind(base.device_type),
        vendor_id: base.vendor_id,
        device_id: base.device_id,
        driver_version: base.driver_version,
        device_uuid: properties.id.device_uuid,
        cache_uuid: base.pipeline_cache_uuid,
        subgroup_size: info::subgroup_size(base.vendor_id, default, min, max, has_subgroup_choice),
        subgroup_default: default,
        subgroup_min: min,
        subgroup_max: max,
        has_subgroup_choice,
        matrix: None,
        limits: DeviceLimits {
            storage_range: limits.max_storage_buffer_range.into(),
            storage_offset_alignment: limits.min_storage_buffer_offset_alignment,
            push_bytes: limits.max_push_constants_size,
            storage_buffers: limits
                .max_per_stage_descriptor_storage_buffers
                .min(limits.max_descriptor_set_storage_buffers)
                .min(limits.max_per_stage_resources),
            groups: limits.max_compute_work_group_count,
            workgroup_len: limits
                .max_compute_work_group_invocations
                .min(limits.max_compute_work_group_size[0]),
            workgroup_subgroups: subgroup_sizes.max_compute_workgroup_subgroups,
            shared_bytes: limits.max_compute_shared_memory_size,
            allocation_bytes: properties.allocation.max_memory_allocation_size,
            buffer_bytes: properties.buffers.max_buffer_size,
            import_alignment: has_import.then_some(properties.import.min_imported_host_pointer_alignment),
            timestamp_ns: if has_timestamps { limits.timestamp_period } else { 0.0 },
        },
        heaps: Vec::new(),
        has_memory_budget: false,
        missing: Vec::new(),
        choice: DeviceChoice::Listed,
    }
}

fn text(name: Result<&std::ffi::CStr, std::ffi::FromBytesUntilNulError>) -> String {
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn version_text(version: u32) -> String {
    format!(
        "{}.{}.{}",
        vk::api_version_major(version),
        vk::api_version_minor(version),
        vk::api_version_patch(version)
    )
}

fn kind(kind: vk::PhysicalDeviceType) -> DeviceKind {
    match kind {
        vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
        vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
        vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Virtual,
        vk::PhysicalDeviceType::CPU => DeviceKind::Software,
        _ => DeviceKind::Other,
    }
}

fn missing_features(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Vec<String> {
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut chain = vk::PhysicalDeviceFeatures2::default().push_next(&mut v12).push_next(&mut v13);
    // SAFETY: the device speaks Vulkan 1.3, where every struct of the chain is core.
    unsafe { instance.get_physical_device_features2(physical, &mut chain) };
    let base = chain.features;
    let required = [
        ("shaderStorageBufferArrayDynamicIndexing", base.shader_storage_buffer_array_dynamic_indexing),
        ("timelineSemaphore", v12.timeline_semaphore),
        ("synchronization2", v13.synchronization2),
        ("subgroupSizeControl", v13.subgroup_size_control),
        ("computeFullSubgroups", v13.compute_full_subgroups),
        ("maintenance4", v13.maintenance4),
    ];
    required
        .iter()
        .filter(|(_, is_there)| *is_there == vk::FALSE)
        .map(|(name, _)| (*name).to_owned())
        .collect()
}

fn missing_subgroup_operations(subgroup: &vk::PhysicalDeviceSubgroupProperties<'_>) -> Vec<String> {
    let has_stage = subgroup.supported_stages.contains(vk::ShaderStageFlags::COMPUTE);
    let required = [
        ("subgroup basic operations", vk::SubgroupFeatureFlags::BASIC),
        ("subgroup arithmetic", vk::SubgroupFeatureFlags::ARITHMETIC),
        ("subgroup ballot", vk::SubgroupFeatureFlags::BALLOT),
        ("subgroup shuffle", vk::SubgroupFeatureFlags::SHUFFLE),
        ("subgroup vote", vk::SubgroupFeatureFlags::VOTE),
    ];
    let is_missing = |flags| !has_stage || !subgroup.supported_operations.contains(flags);
    required.iter().filter(|(_, flags)| is_missing(*flags)).map(|(name, _)| (*name).to_owned()).collect()
}
