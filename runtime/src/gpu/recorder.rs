//! Work for the device, recorded once and submitted as often as wanted.
//!
//! Owns a command buffer and a handle to everything that it uses. In: dispatches, copies, barriers. Out: [`Commands`].
//!
//! Invariants: a recording begins by waiting for what earlier submissions wrote and ends by showing its own writes to the
//! host, so that recordings made apart follow each other in the order of submission; between dependent dispatches of one
//! recording the caller puts a barrier; commands are in flight at most once at a time, and dropping them waits.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

use ash::vk;

use super::bind::Bindings;
use super::buffer::Buffer;
use super::commands::Commands;
use super::context::Shared;
use super::dispatches::{DispatchLabel, Notes};
use super::error::GpuError;
use super::pipeline::Pipeline;
use super::queues::QueueKind;
use super::tape::Tape;
use super::timestamps::Timestamps;

/// Bytes that a recording may carry itself for one update: Vulkan's limit.
const UPDATE_BYTES_MAX: usize = 65_536;

const WORK_STAGES: vk::PipelineStageFlags2 = vk::PipelineStageFlags2::from_raw(
    vk::PipelineStageFlags2::COMPUTE_SHADER.as_raw() | vk::PipelineStageFlags2::ALL_TRANSFER.as_raw(),
);
const WORK_WRITES: vk::AccessFlags2 = vk::AccessFlags2::from_raw(
    vk::AccessFlags2::SHADER_STORAGE_WRITE.as_raw() | vk::AccessFlags2::TRANSFER_WRITE.as_raw(),
);
const WORK_ACCESSES: vk::AccessFlags2 = vk::AccessFlags2::from_raw(
    WORK_WRITES.as_raw()
        | vk::AccessFlags2::SHADER_STORAGE_READ.as_raw()
        | vk::AccessFlags2::TRANSFER_READ.as_raw(),
);

/// Handles to what a recording uses, each once.
#[derive(Default)]
struct Kept {
    handles: Vec<Arc<dyn Any + Send + Sync>>,
    seen: HashSet<usize>,
}

impl Kept {
    fn keep<T: Any + Send + Sync>(&mut self, handle: &Arc<T>) {
        if self.seen.insert(Arc::as_ptr(handle).addr()) {
            self.handles.push(Arc::<T>::clone(handle));
        }
    }
}

/// A recording under way.
pub struct Recorder {
    shared: Arc<Shared>,
    kind: QueueKind,
    /// `None` once it has become commands.
    tape: Option<Tape>,
    kept: Kept,
    bound_pipeline: vk::Pipeline,
    /// Where dispatches are timed.
    notes: Option<Notes>,
}

impl Recorder {
    /// See [`super::Gpu::recorder`].
    pub(super) fn new(shared: &Arc<Shared>, kind: QueueKind) -> Result<Self, GpuError> {
        let tape = shared.tapes(kind).take()?;
        let mut recorder = Self {
            shared: Arc::clone(shared),
            kind,
            tape: Some(tape),
            kept: Kept::default(),
            bound_pipeline: vk::Pipeline::null(),
            notes: None,
        };
        if kind == QueueKind::Kernels && recorder.can_stamp() {
            recorder.notes = Notes::of(shared);
        }
        recorder.barrier();
        Ok(recorder)
    }

    /// To be called before something is recorded that takes time; what it gives, behind it by [`Self::noted`].
    fn note(&mut self, label: impl FnOnce() -> DispatchLabel) -> Option<(Timestamps, u32)> {
        let mut notes = self.notes.take()?;
        let behind = notes.before(self, label());
        self.notes = Some(notes);
        behind
    }

    fn noted(&mut self, behind: Option<(Timestamps, u32)>) {
        if let Some((stamps, index)) = behind {
            self.stamp(&stamps, index);
        }
    }

    fn buffer(&self) -> vk::CommandBuffer {
        self.tape.as_ref().expect("invariant: only `finish` and `drop` take the tape").buffer
    }

    /// Runs a kernel on `groups` workgroups. A count of zero runs nothing.
    ///
    /// # Panics
    /// When the bindings are another kernel's, `push` is not as long as the kernel's push constants, or a count is over
    /// the device's limit.
    pub fn dispatch(&mut self, pipeline: &Pipeline, bindings: &Bindings, push: &[u8], groups: [u32; 3]) {
        self.dispatch_from(pipeline, bindings, push, [0; 3], groups);
    }

    /// As [`Self::dispatch`], for the workgroups from `base` on: the kernel sees their numbers, not numbers from 0.
    ///
    /// # Panics
    /// As there; the limit is on the last workgroup's number.
    pub fn dispatch_from(
        &mut self,
        pipeline: &Pipeline,
        bindings: &Bindings,
        push: &[u8],
        base: [u32; 3],
        groups: [u32; 3],
    ) {
        self.check_kernel(pipeline, bindings, push);
        let name = pipeline.kernel().name;
        let limits = self.shared.device.info.limits.groups;
        assert!(
            (0..3).all(|axis| groups[axis].checked_add(base[axis]).is_some_and(|end| end <= limits[axis])),
            "kernel {name}: {groups:?} workgroups from {base:?} on are over the device's limit of {limits:?}"
        );
        if groups.contains(&0) {
            return;
        }
        let behind =
            self.note(|| DispatchLabel::of_kernel(pipeline.kernel(), &pipeline.inner.values, push, groups));
        self.bind(pipeline, bindings, push);
        let ([x, y, z], [width, height, depth]) = (base, groups);
        // SAFETY: pipeline, set and push constants are bound; the last workgroup's number is within the limits; every
        // pipeline is made with `DISPATCH_BASE`.
        unsafe {
            self.shared.device.raw.cmd_dispatch_base(self.buffer(), x, y, z, width, height, depth);
        };
        self.noted(behind);
    }

    /// Runs a kernel on as many workgroups as three words of `grid` say when the device comes to it. Behind
    /// [`Self::barrier_for_grids`], where the device wrote them.
    ///
    /// # Panics
    /// When the bindings are another kernel's, `push` is not as long as the kernel's push constants, or the words lie not in `grid`.
    pub fn dispatch_indirect(
        &mut self,
        pipeline: &Pipeline,
        bindings: &Bindings,
        push: &[u8],
        grid: &Buffer,
        offset_bytes: u64,
    ) {
        self.check_kernel(pipeline, bindings, push);
        self.check_buffer("grid", grid, offset_bytes, 12);
        check_words("grid", offset_bytes, 12);
        let behind =
            self.note(|| DispatchLabel::of_kernel(pipeline.kernel(), &pipeline.inner.values, push, [0; 3]));
        self.bind(pipeline, bindings, push);
        // SAFETY: pipeline, set and push constants are bound; the words lie in a buffer of indirect usage, which `kept` keeps.
        // That they are within the device's limits is for the kernel to see to that writes them.
        unsafe { self.shared.device.raw.cmd_dispatch_indirect(self.buffer(), grid.inner.raw, offset_bytes) };
        self.kept.keep(&grid.inner);
        self.noted(behind);
    }

    fn check_kernel(&self, pipeline: &Pipeline, bindings: &Bindings, push: &[u8]) {
        let kernel = pipeline.kernel();
        let name = kernel.name;
        assert_eq!(self.kind, QueueKind::Kernels, "kernel {name}: on the queue of copies");
        assert!(
            Arc::ptr_eq(&self.shared, &pipeline.inner.shared),
            "kernel {name}: pipeline of another device"
        );
        assert!(
            Arc::ptr_eq(&self.shared, &bindings.inner.pipeline.shared)
                && bindings.inner.pipeline.kernel.bindings == kernel.bindings,
            "kernel {name}: bindings of kernel {}",
            bindings.inner.pipeline.kernel.name
        );
        assert_eq!(
            Ok(kernel.push_bytes),
            u32::try_from(push.len()),
            "kernel {name}: bytes of push constants"
        );
    }

    /// Binds what a dispatch runs with.
    fn bind(&mut self, pipeline: &Pipeline, bindings: &Bindings, push: &[u8]) {
        let device = &self.shared.device.raw;
        let buffer = self.buffer();
        let (compute, layout) = (vk::PipelineBindPoint::COMPUTE, pipeline.inner.layout);
        if self.bound_pipeline != pipeline.inner.raw {
            // SAFETY: the buffer is being recorded, by its one owner; `kept` keeps the pipeline.
            unsafe { device.cmd_bind_pipeline(buffer, compute, pipeline.inner.raw) };
        }
        // SAFETY: as above; the set's layout equals the pipeline's, since their counts of descriptors are equal and all
        // are storage buffers of the compute stage.
        unsafe { device.cmd_bind_descriptor_sets(buffer, compute, layout, 0, &[bindings.inner.set], &[]) };
        if !push.is_empty() {
            // SAFETY: as above; the bytes are exactly the layout's range, a multiple of 4.
            unsafe { device.cmd_push_constants(buffer, layout, vk::ShaderStageFlags::COMPUTE, 0, push) };
        }
        self.bound_pipeline = pipeline.inner.raw;
        self.kept.keep(&pipeline.inner);
        self.kept.keep(&bindings.inner);
    }

    /// What was recorded before is done, and its writes are seen, before what is recorded after begins.
    pub fn barrier(&mut self) {
        if let Some(notes) = &mut self.notes {
            notes.barrier();
        }
        let (stages, _, accesses) = self.work();
        self.memory_barrier(stages, accesses);
    }

    /// As [`Self::barrier`], and the workgroup counts of [`Self::dispatch_indirect`] are seen, too.
    pub fn barrier_for_grids(&mut self) {
        if let Some(notes) = &mut self.notes {
            notes.barrier();
        }
        let (stages, _, accesses) = self.work();
        self.memory_barrier(
            stages | vk::PipelineStageFlags2::DRAW_INDIRECT,
            accesses | vk::AccessFlags2::INDIRECT_COMMAND_READ,
        );
    }

    /// The stages of what is recorded here, what they write, and all that they do to memory.
    fn work(&self) -> (vk::PipelineStageFlags2, vk::AccessFlags2, vk::AccessFlags2) {
        let write = vk::AccessFlags2::TRANSFER_WRITE;
        match self.kind {
            QueueKind::Kernels => (WORK_STAGES, WORK_WRITES, WORK_ACCESSES),
            QueueKind::Copies => {
                (vk::PipelineStageFlags2::ALL_TRANSFER, write, write | vk::AccessFlags2::TRANSFER_READ)
            }
        }
    }

    fn memory_barrier(&mut self, stages: vk::PipelineStageFlags2, accesses: vk::AccessFlags2) {
        let (source_stages, writes, _) = self.work();
        let barriers = [vk::MemoryBarrier2::default()
            .src_stage_mask(source_stages)
            .src_access_mask(writes)
            .dst_stage_mask(stages)
            .dst_access_mask(accesses)];
        let info = vk::DependencyInfo::default().memory_barriers(&barriers);
        // SAFETY: the buffer is being recorded, by its one owner; synchronization2 is enabled; the queue's family has all of the
        // stages: one of copies is asked for no kernels.
        unsafe { self.shared.device.raw.cmd_pipeline_barrier2(self.buffer(), &info) };
    }

    /// Copies `len_bytes`; nothing when that is 0.
    ///
    /// # Panics
    /// When a range leaves its buffer, or both overlap in one buffer.
    pub fn copy(
        &mut self,
        source: &Buffer,
        source_offset_bytes: u64,
        target: &Buffer,
        target_offset_bytes: u64,
        len_bytes: u64,
    ) {
        self.check_buffer("copy", source, source_offset_bytes, len_bytes);
        self.check_buffer("copy", target, target_offset_bytes, len_bytes);
        assert!(
            source.inner.raw != target.inner.raw
                || source_offset_bytes.abs_diff(target_offset_bytes) >= len_bytes,
            "copy: {len_bytes} B from {source_offset_bytes} to {target_offset_bytes} overlap in {source:?}"
        );
        if len_bytes == 0 {
            return;
        }
        let behind = self.note(|| DispatchLabel::of_transfer("copy", len_bytes));
        let regions = [vk::BufferCopy {
            src_offset: source_offset_bytes,
            dst_offset: target_offset_bytes,
            size: len_bytes,
        }];
        let device = &self.shared.device.raw;
        // SAFETY: the buffer is being recorded, by its one owner; ranges lie inside, do not overlap, are not empty; all
        // buffers have transfer usage; `kept` keeps both.
        unsafe { device.cmd_copy_buffer(self.buffer(), source.inner.raw, target.inner.raw, &regions) };
        self.kept.keep(&source.inner);
        self.kept.keep(&target.inner);
        self.noted(behind);
    }

    /// Writes bytes that the recording itself carries; nothing when there are none.
    ///
    /// # Panics
    /// When the range leaves the buffer, is not in whole words, or is over 64 KiB.
    pub fn update(&mut self, target: &Buffer, offset_bytes: u64, bytes: &[u8]) {
        let len_bytes = u64::try_from(bytes.len()).expect("invariant: usize is at most 64 bits");
        self.check_buffer("update", target, offset_bytes, len_bytes);
        check_words("update", offset_bytes, len_bytes);
        assert!(bytes.len() <= UPDATE_BYTES_MAX, "update: {len_bytes} B are over {UPDATE_BYTES_MAX} B");
        if bytes.is_empty() {
            return;
        }
        let behind = self.note(|| DispatchLabel::of_transfer("update", len_bytes));
        let device = &self.shared.device.raw;
        // SAFETY: the buffer is being recorded, by its one owner; the range is in words, inside, not empty, within 64 KiB;
        // `kept` keeps the target.
        unsafe { device.cmd_update_buffer(self.buffer(), target.inner.raw, offset_bytes, bytes) };
        self.kept.keep(&target.inner);
        self.noted(behind);
    }

    /// Writes `word` over a range; nothing when that is empty.
    ///
    /// # Panics
    /// When the range leaves the buffer or is not in whole words.
    pub fn fill(&mut self, target: &Buffer, offset_bytes: u64, len_bytes: u64, word: u32) {
        self.check_buffer("fill", target, offset_bytes, len_bytes);
        check_words("fill", offset_bytes, len_bytes);
        if len_bytes == 0 {
            return;
        }
        let behind = self.note(|| DispatchLabel::of_transfer("fill", len_bytes));
        let device = &self.shared.device.raw;
        // SAFETY: the buffer is being recorded, by its one owner; the range is in words, inside, not empty; `kept` keeps
        // the target.
        unsafe { device.cmd_fill_buffer(self.buffer(), target.inner.raw, offset_bytes, len_bytes, word) };
        self.kept.keep(&target.inner);
        self.noted(behind);
    }

    /// Whether stamps can be noted here.
    pub fn can_stamp(&self) -> bool {
        let device = &self.shared.device;
        let can_reset = !self.is_beside_kernels_family() || device.has_host_query_reset;
        can_reset && device.lane(self.kind).timestamp_bits > 0
    }

    /// Whether it is recorded for a family that has no kernels, and so cannot reset stamps itself.
    fn is_beside_kernels_family(&self) -> bool {
        let device = &self.shared.device;
        device.lane(self.kind).family != device.lane(QueueKind::Kernels).family
    }

    /// Makes `count` of `stamps` from `first` on unset. To be recorded before [`Recorder::stamp`] notes them. Where the queue cannot,
    /// it happens at once: nothing that notes them may be in flight.
    ///
    /// # Panics
    /// When there are no such stamps.
    pub fn reset_stamps(&mut self, stamps: &Timestamps, first: u32, count: u32) {
        stamps.check_device(&self.shared);
        stamps.check_range(first, count);
        let device = &self.shared.device.raw;
        if self.is_beside_kernels_family() {
            // SAFETY: hostQueryReset is enabled where `can_stamp`; the range lies in the pool; nothing in flight uses it.
            unsafe { device.reset_query_pool(stamps.inner.pool, first, count) };
        } else {
            // SAFETY: the buffer is being recorded, by its one owner; the range lies in the pool, which `kept` keeps.
            unsafe { device.cmd_reset_query_pool(self.buffer(), stamps.inner.pool, first, count) };
        }
        self.kept.keep(&stamps.inner);
    }

    /// Notes the device's clock in stamp `index`, once everything recorded before is done.
    ///
    /// # Panics
    /// When there is no such stamp.
    pub fn stamp(&mut self, stamps: &Timestamps, index: u32) {
        stamps.check_device(&self.shared);
        assert!(index < stamps.count(), "stamp {index} of {}", stamps.count());
        let device = &self.shared.device.raw;
        let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
        // SAFETY: the buffer is being recorded, by its one owner; the queue family has timestamps: the pool could be made.
        unsafe { device.cmd_write_timestamp2(self.buffer(), stage, stamps.inner.pool, index) };
        self.kept.keep(&stamps.inner);
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// When the driver ran out of memory for it.
    pub fn finish(mut self) -> Result<Commands, GpuError> {
        self.memory_barrier(vk::PipelineStageFlags2::HOST, vk::AccessFlags2::HOST_READ);
        let device = &self.shared.device;
        // SAFETY: the buffer is being recorded, by its one owner.
        unsafe { device.raw.end_command_buffer(self.buffer()) }
            .map_err(|result| device.failed("vkEndCommandBuffer", result))?;
        let tape = self.tape.take().expect("invariant: it was just ended");
        let stamped = self.notes.take().map(Notes::finish);
        Ok(Commands::new(&self.shared, self.kind, tape, std::mem::take(&mut self.kept).handles, stamped))
    }

    fn check_buffer(&self, what: &str, buffer: &Buffer, offset_bytes: u64, len_bytes: u64) {
        assert!(Arc::ptr_eq(&self.shared, &buffer.inner.shared), "{what}: {buffer:?} is another device's");
        buffer.check_range(what, offset_bytes, len_bytes);
    }
}

fn check_words(what: &str, offset_bytes: u64, len_bytes: u64) {
    assert!(
        offset_bytes.is_multiple_of(4) && len_bytes.is_multiple_of(4),
        "{what}: {len_bytes} B at byte {offset_bytes} are not whole words"
    );
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(tape) = self.tape.take() {
            self.shared.tapes(self.kind).give_back(tape);
        }
    }
}
