//! Kernels made ready for the device.
//!
//! Owns pipelines and their layouts. In: a [`Kernel`], its lanes, the values of its specialization constants. Out: a
//! [`Pipeline`].
//!
//! Invariants: pipelines are made one at a time (Mesa 22.3.6's compiler thread is known to have crashed in programs
//! that did otherwise); a refused pipeline costs only itself, the device stays usable; a kernel always runs with the
//! lanes that were asked for.

use std::io::Cursor;
use std::sync::Arc;

use ash::vk;
use flint_shaders::Kernel;

use super::context::Shared;
use super::device::Device;
use super::error::{GpuError, describe};
use super::instance::lock;

/// The specialization constant that holds `local_size_x`.
const WORKGROUP: &str = "WORKGROUP";

pub(super) struct PipelineInner {
    pub(super) raw: vk::Pipeline,
    pub(super) layout: vk::PipelineLayout,
    pub(super) set_layout: vk::DescriptorSetLayout,
    pub(super) kernel: &'static Kernel,
    /// Of its specialization constants.
    pub(super) values: Arc<[u32]>,
    pub(super) shared: Arc<Shared>,
}

impl Drop for PipelineInner {
    fn drop(&mut self) {
        let device = &self.shared.device.raw;
        // SAFETY: commands that use it hold it and have run; null is allowed.
        unsafe { device.destroy_pipeline(self.raw, None) };
        // SAFETY: as above; the pipeline made with it is gone.
        unsafe { device.destroy_pipeline_layout(self.layout, None) };
        // SAFETY: as above; bindings made with it hold this value.
        unsafe { device.destroy_descriptor_set_layout(self.set_layout, None) };
    }
}

/// A kernel with its constants fixed, ready to be dispatched. A handle: clones mean the same pipeline.
#[derive(Clone)]
pub struct Pipeline {
    pub(super) inner: Arc<PipelineInner>,
}

impl Pipeline {
    /// The kernel that it was made from.
    pub fn kernel(&self) -> &'static Kernel {
        self.inner.kernel
    }

    /// See [`super::Gpu::pipeline`].
    pub(super) fn new(
        shared: &Arc<Shared>,
        kernel: &'static Kernel,
        subgroup_size: u32,
        specialization: &[u32],
    ) -> Result<Self, GpuError> {
        let device = &shared.device;
        device.check_alive("vkCreateComputePipelines")?;
        let request = Request::new(device, kernel, subgroup_size, specialization)?;
        // From here on the drop of `inner` destroys what was made.
        let mut inner = PipelineInner {
            raw: vk::Pipeline::null(),
            layout: vk::PipelineLayout::null(),
            set_layout: vk::DescriptorSetLayout::null(),
            kernel,
            values: specialization.into(),
            shared: Arc::clone(shared),
        };
        inner.set_layout = create_set_layout(device, kernel)?;
        inner.layout = create_layout(device, kernel, inner.set_layout)?;
        let module = create_module(device, kernel)?;
        let answer = request.create(shared, module, inner.layout);
        // SAFETY: the module is not needed once its pipelines are made.
        unsafe { device.raw.destroy_shader_module(module, None) };
        inner.raw = answer?;
        device.name_object(inner.raw, kernel.name);
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// A pipeline to make, checked against the device.
struct Request<'a> {
    kernel: &'static Kernel,
    specialization: &'a [u32],
    /// `None` where the device has only one size, and that is it.
    required_size: Option<u32>,
    has_full_subgroups: bool,
}

impl<'a> Request<'a> {
    fn new(
        device: &Device,
        kernel: &'static Kernel,
        subgroup_size: u32,
        specialization: &'a [u32],
    ) -> Result<Self, GpuError> {
        let info = &device.info;
        let name = kernel.name;
        assert_eq!(specialization.len(), kernel.constants.len(), "kernel {name}: one value a constant");
        assert!(kernel.push_bytes.is_multiple_of(4), "kernel {name}: push constants are words");

        let workgroup = kernel.constants.iter().position(|&constant| constant == WORKGROUP);
        let workgroup = workgroup.map(|index| specialization[index]);
        let buffers: u32 = kernel.bindings.iter().sum();
        let mut over = Vec::new();
        if !subgroup_size.is_power_of_two()
            || !(info.subgroup_min..=info.subgroup_max).contains(&subgroup_size)
        {
            over.push(format!("subgroups of {subgroup_size} lanes for kernel {name}"));
        } else if !info.has_subgroup_choice && subgroup_size != info.subgroup_default {
            over.push(format!("requiredSubgroupSizeStages with compute for kernel {name}"));
        }
        if kernel.push_bytes > info.limits.push_bytes {
            over.push(format!("{} B of push constants for kernel {name}", kernel.push_bytes));
        }
        if buffers > info.limits.storage_buffers {
            over.push(format!("{buffers} storage buffers a stage for kernel {name}"));
        }
        let lanes_max =
            info.limits.workgroup_len.min(info.limits.workgroup_subgroups.saturating_mul(subgroup_size));
        if workgroup.is_some_and(|lanes| lanes == 0 || lanes > lanes_max) {
            over.push(format!("workgroups of {} invocations for kernel {name}", workgroup.unwrap_or(0)));
        }
        if !over.is_empty() {
            return Err(GpuError::FeatureMissing { device: info.title(), features: over });
        }
        Ok(Self {
            kernel,
            specialization,
            required_size: info.has_subgroup_choice.then_some(subgroup_size),
            has_full_subgroups: workgroup.is_some_and(|lanes| lanes.is_multiple_of(subgroup_size)),
        })
    }

    fn create(
        &self,
        shared: &Shared,
        module: vk::ShaderModule,
        layout: vk::PipelineLayout,
    ) -> Result<vk::Pipeline, GpuError> {
        let device = &shared.device;
        let entries: Vec<_> = (0u32..)
            .zip(self.specialization)
            .map(|(id, _)| vk::SpecializationMapEntry { constant_id: id, offset: 4 * id, size: 4 })
            .collect();
        let constants = vk::SpecializationInfo::default()
            .map_entries(&entries)
            .data(bytemuck::cast_slice(self.specialization));
        let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
        let mut stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main")
            .specialization_info(&constants);
        if let Some(lanes) = self.required_size {
            size = size.required_subgroup_size(lanes);
            stage = stage.push_next(&mut size);
        }
        if self.has_full_subgroups {
            stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
        }
        // So that workgroups may be counted from another number than 0 (`Recorder::dispatch_from`).
        let flags = vk::PipelineCreateFlags::DISPATCH_BASE;
        let infos = [vk::ComputePipelineCreateInfo::default().flags(flags).stage(stage).layout(layout)];
        let cache = lock(&shared.cache.raw);
        // SAFETY:
        // - Module and layout were made from this device for this kernel; the cache is used under its lock.
        // - Lanes are a power of two within the device's range, the workgroup at most as many subgroups as it takes,
        //   and full subgroups are asked for only of a workgroup that is a multiple of them
        //   (VUID-VkPipelineShaderStageCreateInfo-pNext-02755, -02756, -02757).
        let answer = unsafe { device.raw.create_compute_pipelines(*cache, &infos, None) };
        let refused = |result: vk::Result| match result {
            vk::Result::ERROR_DEVICE_LOST => device.failed("vkCreateComputePipelines", result),
            // Also "out of memory": drivers answer so for a kernel that their compiler cannot take.
            other => GpuError::PipelineRefused {
                kernel: self.kernel.name,
                driver: device.info.title(),
                result: describe(other),
            },
        };
        match answer {
            Ok(pipelines) => pipelines.first().copied().ok_or_else(|| refused(vk::Result::ERROR_UNKNOWN)),
            Err((pipelines, result)) => {
                for pipeline in pipelines {
                    // SAFETY: nobody holds it; null is allowed.
                    unsafe { device.raw.destroy_pipeline(pipeline, None) };
                }
                Err(refused(result))
            }
        }
    }
}

fn create_set_layout(device: &Device, kernel: &Kernel) -> Result<vk::DescriptorSetLayout, GpuError> {
    let bindings: Vec<_> = (0u32..)
        .zip(kernel.bindings)
        .map(|(binding, &count)| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(binding)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(count)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        })
        .collect();
    let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
    // SAFETY: the count of buffers is within the device's limits (`Request::new`).
    unsafe { device.raw.create_descriptor_set_layout(&info, None) }
        .map_err(|result| device.failed("vkCreateDescriptorSetLayout", result))
}

fn create_layout(
    device: &Device,
    kernel: &Kernel,
    set_layout: vk::DescriptorSetLayout,
) -> Result<vk::PipelineLayout, GpuError> {
    let sets = [set_layout];
    let ranges =
        [vk::PushConstantRange::default().stage_flags(vk::ShaderStageFlags::COMPUTE).size(kernel.push_bytes)];
    let mut info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
    if kernel.push_bytes > 0 {
        info = info.push_constant_ranges(&ranges);
    }
    // SAFETY: the set layout is of this device; the push range is within its limit and a multiple of 4.
    unsafe { device.raw.create_pipeline_layout(&info, None) }
        .map_err(|result| device.failed("vkCreatePipelineLayout", result))
}

fn create_module(device: &Device, kernel: &Kernel) -> Result<vk::ShaderModule, GpuError> {
    let words = ash::util::read_spv(&mut Cursor::new(kernel.spirv))
        .unwrap_or_else(|error| panic!("kernel {}: its SPIR-V is broken: {error}", kernel.name));
    let info = vk::ShaderModuleCreateInfo::default().code(&words);
    // SAFETY: the words are SPIR-V that our own build made and its tests validated.
    unsafe { device.raw.create_shader_module(&info, None) }.map_err(|result| match result {
        vk::Result::ERROR_DEVICE_LOST => device.failed("vkCreateShaderModule", result),
        other => GpuError::PipelineRefused {
            kernel: kernel.name,
            driver: device.info.title(),
            result: describe(other),
        },
    })
}
