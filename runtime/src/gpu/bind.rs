//! Buffers bound to a kernel's bindings.
//!
//! Owns the descriptor pools, which grow. In: a pipeline, views of buffers. Out: [`Bindings`].
//!
//! Invariants: a set is written once, when it is made, and never changes; it goes back to its pool with the last handle
//! to it; every view is within the device's range and alignment limits.

use std::sync::{Arc, Mutex};

use ash::vk;

use super::buffer::{Buffer, BufferView};
use super::context::Shared;
use super::device::Device;
use super::error::GpuError;
use super::instance::lock;
use super::pipeline::{Pipeline, PipelineInner};

/// Sets of one pool. A model of 49 layers with a dozen kernels a layer needs some 600.
const SETS_PER_POOL: u32 = 256;

/// Descriptors of one pool: 8 a set on average; a set with an array of 16 takes more, small ones less.
const DESCRIPTORS_PER_POOL: u32 = 8 * SETS_PER_POOL;

/// The pools of one device.
pub(super) struct DescriptorPools {
    device: Arc<Device>,
    pools: Mutex<Vec<Pool>>,
}

struct Pool {
    raw: vk::DescriptorPool,
    free_sets: u32,
    free_descriptors: u32,
}

impl DescriptorPools {
    pub(super) fn new(device: Arc<Device>) -> Self {
        Self { device, pools: Mutex::new(Vec::new()) }
    }

    /// A set of `layout`, which has `count` descriptors.
    fn take(
        &self,
        layout: vk::DescriptorSetLayout,
        count: u32,
    ) -> Result<(vk::DescriptorPool, vk::DescriptorSet), GpuError> {
        let mut pools = lock(&self.pools);
        for pool in pools.iter_mut().filter(|pool| pool.free_sets > 0 && pool.free_descriptors >= count) {
            match allocate(&self.device, pool, layout, count) {
                Ok(set) => return Ok((pool.raw, set)),
                // Our counts do not see how a pool is fragmented.
                Err(vk::Result::ERROR_FRAGMENTED_POOL | vk::Result::ERROR_OUT_OF_POOL_MEMORY) => {}
                Err(result) => return Err(self.device.failed("vkAllocateDescriptorSets", result)),
            }
        }
        let mut pool = create_pool(&self.device, count.max(DESCRIPTORS_PER_POOL))?;
        let answer = allocate(&self.device, &mut pool, layout, count);
        let raw = pool.raw;
        pools.push(pool);
        let set = answer.map_err(|result| self.device.failed("vkAllocateDescriptorSets", result))?;
        Ok((raw, set))
    }

    fn give_back(&self, raw: vk::DescriptorPool, set: vk::DescriptorSet, count: u32) {
        let mut pools = lock(&self.pools);
        // SAFETY: the set came from this pool, which allows freeing and is used under the lock; commands that used the
        // set have run. The call cannot fail.
        let _ = unsafe { self.device.raw.free_descriptor_sets(raw, &[set]) };
        if let Some(pool) = pools.iter_mut().find(|pool| pool.raw == raw) {
            pool.free_sets += 1;
            pool.free_descriptors += count;
        }
    }
}

impl Drop for DescriptorPools {
    fn drop(&mut self) {
        for pool in lock(&self.pools).drain(..) {
            // SAFETY: every set of it has been given back: bindings keep this value alive.
            unsafe { self.device.raw.destroy_descriptor_pool(pool.raw, None) };
        }
    }
}

fn create_pool(device: &Device, descriptors: u32) -> Result<Pool, GpuError> {
    let sizes =
        [vk::DescriptorPoolSize { ty: vk::DescriptorType::STORAGE_BUFFER, descriptor_count: descriptors }];
    let info = vk::DescriptorPoolCreateInfo::default()
        .flags(vk::DescriptorPoolCreateFlags::FREE_DESCRIPTOR_SET)
        .max_sets(SETS_PER_POOL)
        .pool_sizes(&sizes);
    // SAFETY: counts above zero of a core descriptor type.
    let raw = unsafe { device.raw.create_descriptor_pool(&info, None) }
        .map_err(|result| device.failed("vkCreateDescriptorPool", result))?;
    Ok(Pool { raw, free_sets: SETS_PER_POOL, free_descriptors: descriptors })
}

fn allocate(
    device: &Device,
    pool: &mut Pool,
    layout: vk::DescriptorSetLayout,
    count: u32,
) -> Result<vk::DescriptorSet, vk::Result> {
    let layouts = [layout];
    let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool.raw).set_layouts(&layouts);
    // SAFETY: pool and layout are of this device; the pool is used under the lock of `DescriptorPools`.
    let sets = unsafe { device.raw.allocate_descriptor_sets(&info) }?;
    pool.free_sets -= 1;
    pool.free_descriptors -= count;
    sets.first().copied().ok_or(vk::Result::ERROR_UNKNOWN)
}

pub(super) struct BindingsInner {
    pub(super) set: vk::DescriptorSet,
    pool: vk::DescriptorPool,
    count: u32,
    /// The pipeline that it was made for.
    pub(super) pipeline: Arc<PipelineInner>,
    /// Every buffer in the set.
    _buffers: Vec<Buffer>,
}

impl Drop for BindingsInner {
    fn drop(&mut self) {
        self.pipeline.shared.pools.give_back(self.pool, self.set, self.count);
    }
}

/// Buffers bound to the bindings of a kernel, for every pipeline of that kernel. A handle: clones mean the same set.
#[derive(Clone)]
pub struct Bindings {
    pub(super) inner: Arc<BindingsInner>,
}

impl Bindings {
    /// See [`super::Gpu::bind`].
    pub(super) fn new(
        shared: &Arc<Shared>,
        pipeline: &Pipeline,
        buffers: &[&[BufferView]],
    ) -> Result<Self, GpuError> {
        let kernel = pipeline.kernel();
        assert!(
            Arc::ptr_eq(shared, &pipeline.inner.shared),
            "kernel {}: pipeline of another device",
            kernel.name
        );
        assert_eq!(
            buffers.len(),
            kernel.bindings.len(),
            "kernel {}: one slice of views a binding",
            kernel.name
        );
        shared.device.check_alive("vkUpdateDescriptorSets")?;
        for (binding, (views, &count)) in buffers.iter().zip(kernel.bindings).enumerate() {
            let views_count = u32::try_from(views.len()).unwrap_or(u32::MAX);
            assert_eq!(views_count, count, "kernel {}: views of binding {binding}", kernel.name);
            for view in *views {
                check_view(shared, kernel.name, binding, view)?;
            }
        }
        let count = kernel.bindings.iter().sum();
        let (pool, set) = shared.pools.take(pipeline.inner.set_layout, count)?;
        write_set(&shared.device, set, buffers);
        let kept = buffers.iter().flat_map(|views| views.iter().map(|view| view.buffer.clone())).collect();
        let pipeline = Arc::clone(&pipeline.inner);
        Ok(Self { inner: Arc::new(BindingsInner { set, pool, count, pipeline, _buffers: kept }) })
    }
}

fn check_view(shared: &Arc<Shared>, kernel: &str, binding: usize, view: &BufferView) -> Result<(), GpuError> {
    let name = view.buffer.name();
    let limits = &shared.device.info.limits;
    assert!(
        Arc::ptr_eq(shared, &view.buffer.inner.shared),
        "kernel {kernel}, binding {binding}: buffer {name:?} of another device"
    );
    assert!(view.len_bytes > 0, "kernel {kernel}, binding {binding}: empty view of buffer {name:?}");
    view.buffer.check_range("bind", view.offset_bytes, view.len_bytes);
    assert!(
        view.offset_bytes.is_multiple_of(limits.storage_offset_alignment),
        "kernel {kernel}, binding {binding}: byte {} of buffer {name:?} is no multiple of {}",
        view.offset_bytes,
        limits.storage_offset_alignment
    );
    if view.len_bytes > limits.storage_range {
        return Err(GpuError::OverLimit {
            what: format!("kernel {kernel}, binding {binding}, buffer {name}"),
            wanted: view.len_bytes,
            limit_name: "maxStorageBufferRange",
            limit: limits.storage_range,
        });
    }
    Ok(())
}

fn write_set(device: &Device, set: vk::DescriptorSet, buffers: &[&[BufferView]]) {
    let infos: Vec<Vec<vk::DescriptorBufferInfo>> = buffers
        .iter()
        .map(|views| {
            let info = |view: &BufferView| {
                vk::DescriptorBufferInfo::default()
                    .buffer(view.buffer.inner.raw)
                    .offset(view.offset_bytes)
                    .range(view.len_bytes)
            };
            views.iter().map(info).collect()
        })
        .collect();
    let writes: Vec<_> = (0u32..)
        .zip(&infos)
        .map(|(binding, infos)| {
            vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(binding)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .buffer_info(infos)
        })
        .collect();
    // SAFETY: the set is new and in no command buffer; buffers, ranges and alignments were checked against the layout and
    // the device; every buffer is kept alive with the set.
    unsafe { device.raw.update_descriptor_sets(&writes, &[]) };
}
