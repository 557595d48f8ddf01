//! The handle through which everything above uses the device.
//!
//! Owns, by one `Arc`, the device and everything that its objects share. In: [`GpuOptions`]. Out: buffers, pipelines,
//! bindings, recordings, tickets.
//!
//! Invariant: the fields of [`Shared`] are dropped in order, the device after all that was made from it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ash::vk;
use flint_shaders::Kernel;

use super::bind::{Bindings, DescriptorPools};
use super::buffer::{Buffer, BufferView};
use super::cache::{CacheState, PipelineCache};
use super::commands::Commands;
use super::device::Device;
use super::error::GpuError;
use super::info::{self, DeviceInfo};
use super::instance::lock;
use super::instance::{Instance, ValidationLog};
use super::memory::Memory;
use super::pipeline::Pipeline;
use super::placement::{HeapUse, Placement};
use super::queues::{CopyQueue, QueueKind};
use super::recorder::Recorder;
use super::tape::Tapes;
use super::timeline::{Ticket, Timeline, raw_queue};
use super::timestamps::Timestamps;
use super::{dispatches, import, mapped, probe};
use crate::base::limits::COMMANDS_PER_SUBMIT_MAX;
use crate::base::region::HostRegion;

/// What the objects of one device share.
pub(super) struct Shared {
    kernels: Timeline,
    /// `None` where copies share the kernels' queue and timeline.
    copies: Option<Timeline>,
    /// The last of the copies that kernels submitted from now on run behind.
    copies_seen: AtomicU64,
    tapes: [Tapes; 2],
    /// Who has dispatches stamped, if anyone.
    dispatches: Mutex<Weak<dispatches::Inner>>,
    pub(super) pools: DescriptorPools,
    pub(super) cache: PipelineCache,
    pub(super) memory: Memory,
    pub(super) device: Arc<Device>,
}

impl Shared {
    /// The timeline that `ticket` is of.
    pub(super) fn timeline(&self, ticket: Ticket) -> &Timeline {
        match ticket.kind {
            QueueKind::Kernels => &self.kernels,
            QueueKind::Copies => self.copies.as_ref().expect("invariant: it gave the ticket"),
        }
    }

    /// Who has dispatches stamped, if anyone.
    pub(super) fn dispatches(&self) -> Option<Arc<dispatches::Inner>> {
        lock(&self.dispatches).upgrade()
    }

    pub(super) fn set_dispatches(&self, inner: Weak<dispatches::Inner>) {
        *lock(&self.dispatches) = inner;
    }

    /// What is recorded on for the queue of `kind`.
    pub(super) fn tapes(&self, kind: QueueKind) -> &Tapes {
        match kind {
            QueueKind::Kernels => &self.tapes[0],
            QueueKind::Copies => &self.tapes[1],
        }
    }
}

impl Drop for Shared {
    /// What runs on one queue may wait for the semaphore of the other: none is destroyed before both are done. A wait that has passed may
    /// still be known to a driver's own thread (Mesa 22.3.6, lavapipe), so the queues are asked, too.
    fn drop(&mut self) {
        for timeline in [Some(&self.kernels), self.copies.as_ref()].into_iter().flatten() {
            // A device that is lost or hangs is left to the drops of the fields.
            let _ = timeline.drain();
        }
    }
}

/// How to open a device.
#[derive(Debug, Clone, Default)]
pub struct GpuOptions {
    /// Part of its name, in any case, or its index; `None` for the best there is.
    pub device: Option<String>,
    /// Whether the Khronos validation layer watches, with synchronization validation. `FLINT_RT_VALIDATION=1` in the
    /// environment asks for the same.
    pub validation: bool,
    /// Where to keep compiled pipelines between runs; `None` for nowhere.
    pub cache_dir: Option<PathBuf>,
    /// Lowers what one storage-buffer binding may reach, to run as on a smaller device; `None` for what this one has.
    pub storage_range_max: Option<u64>,
    /// Whether copies run on a queue of their own. `FLINT_RT_COPY_QUEUE` in the environment, `auto`, `shared` or `split`, goes before.
    pub copy_queue: CopyQueue,
}

/// Every Vulkan device, usable or not, in our order.
///
/// # Errors
/// [`GpuError::LoaderMissing`], [`GpuError::NoDevice`] when no driver is installed, [`GpuError::ValidationMissing`].
pub fn list_devices(validation: bool) -> Result<Vec<DeviceInfo>, GpuError> {
    let instance = Instance::open(validation)?;
    let candidates = probe::candidates(&instance)?;
    Ok(candidates.into_iter().map(|candidate| candidate.info).collect())
}

/// An open device. A handle: clones mean the same device, which lives as long as anything made from it.
#[derive(Clone)]
pub struct Gpu {
    shared: Arc<Shared>,
}

impl Gpu {
    /// Opens the device that `options` name, or the best: discrete before integrated before virtual, and a software
    /// device only when nothing else can run the kernels, which [`DeviceInfo::choice`] then says.
    ///
    /// # Errors
    /// [`GpuError::LoaderMissing`], [`GpuError::ValidationMissing`], [`GpuError::NoDevice`],
    /// [`GpuError::InvalidChoice`] with the devices there are, [`GpuError::FeatureMissing`] with what the device lacks;
    /// [`GpuError::InvalidVariable`]; the driver's refusals.
    pub fn open(options: &GpuOptions) -> Result<Self, GpuError> {
        let instance = Instance::open(options.validation)?;
        let mut candidates = probe::candidates(&instance)?;
        let infos: Vec<DeviceInfo> = candidates.iter().map(|candidate| candidate.info.clone()).collect();
        let (index, choice) = info::choose(&infos, options.device.as_deref())?;
        let mut candidate = candidates.swap_remove(index);
        candidate.info.choice = choice;
        if let Some(range_max) = options.storage_range_max {
            let range = &mut candidate.info.limits.storage_range;
            *range = range_max.min(*range);
        }
        let copy_queue = options.copy_queue.or_environment()?;
        let device = Arc::new(Device::open(instance, candidate, copy_queue)?);
        let [kernels, copies] = [QueueKind::Kernels, QueueKind::Copies].map(|kind| device.lane(kind));
        let queue = raw_queue(&device, kernels);
        let copy_queue = match device.queues.copies {
            Some(copies) => Some(raw_queue(&device, copies)),
            None => (copy_queue == CopyQueue::Split).then(|| queue.clone()),
        };
        let on_copies = |queue| Timeline::new(Arc::clone(&device), QueueKind::Copies, queue);
        let shared = Shared {
            copies: copy_queue.map(on_copies).transpose()?,
            copies_seen: AtomicU64::new(0),
            kernels: Timeline::new(Arc::clone(&device), QueueKind::Kernels, queue)?,
            tapes: [kernels, copies].map(|lane| Tapes::new(Arc::clone(&device), lane.family)),
            dispatches: Mutex::new(Weak::new()),
            pools: DescriptorPools::new(Arc::clone(&device)),
            cache: PipelineCache::open(Arc::clone(&device), options.cache_dir.as_deref())?,
            memory: Memory::new(Arc::clone(&device))?,
            device,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What is known of the device, and why it was chosen.
    pub fn info(&self) -> &DeviceInfo {
        &self.shared.device.info
    }

    /// A buffer of `len_bytes`, with undefined content. Its memory is chosen by the use that `placement` names, among
    /// the heaps that have room.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] with what is there, [`GpuError::OverLimit`] when one buffer cannot be so long.
    ///
    /// # Panics
    /// When `len_bytes` is 0.
    pub fn buffer(&self, name: &str, len_bytes: u64, placement: Placement) -> Result<Buffer, GpuError> {
        Buffer::new(&self.shared, name, len_bytes, placement)
    }

    /// Fills buffers with zeros and waits.
    ///
    /// # Errors
    /// As those of recording and submitting.
    ///
    /// # Panics
    /// When a length is not in whole words.
    pub fn clear(&self, buffers: &[&Buffer]) -> Result<(), GpuError> {
        let mut recorder = self.recorder()?;
        for buffer in buffers {
            recorder.fill(buffer, 0, buffer.len_bytes(), 0);
        }
        let commands = recorder.finish()?;
        self.wait(self.submit(&[&commands])?)
    }

    /// `region`'s memory as a buffer over the same bytes. The host reaches them only through the region's pieces, and
    /// must not write a piece while submitted work reads it.
    ///
    /// # Errors
    /// [`GpuError::ImportRefused`] where the driver does not do that; [`GpuError::OverLimit`].
    pub fn import(&self, region: &HostRegion) -> Result<Buffer, GpuError> {
        import::import(&self.shared, region)
    }

    /// Memory of the driver's, at least `len_bytes` of zeros at page alignment, as host memory and as a buffer over the
    /// same bytes: host-visible, coherent, cached by the host and outside the device's own memory where there is a choice.
    ///
    /// # Errors
    /// [`GpuError::MapRefused`], [`GpuError::OutOfMemory`], [`GpuError::OverLimit`].
    ///
    /// # Panics
    /// When `len_bytes` is 0.
    pub fn mapped_region(&self, len_bytes: u64) -> Result<(HostRegion, Buffer), GpuError> {
        mapped::mapped_region(&self.shared, len_bytes)
    }

    /// Makes a kernel ready: `subgroup_size` lanes a subgroup, and `specialization` the values of `constant_id` 0, 1, ...
    ///
    /// # Errors
    /// [`GpuError::FeatureMissing`] when the kernel is over a limit of the device, [`GpuError::PipelineRefused`] when the
    /// driver cannot compile it; the device stays usable.
    ///
    /// # Panics
    /// When `specialization` has not one value a constant, or the kernel's SPIR-V is broken.
    pub fn pipeline(
        &self,
        kernel: &'static Kernel,
        subgroup_size: u32,
        specialization: &[u32],
    ) -> Result<Pipeline, GpuError> {
        Pipeline::new(&self.shared, kernel, subgroup_size, specialization)
    }

    /// Binds buffers to a kernel: one slice of views a binding, as long as the binding's count. The result serves every
    /// pipeline of that kernel.
    ///
    /// # Errors
    /// [`GpuError::OverLimit`] when a view is longer than a binding reaches; the driver's.
    ///
    /// # Panics
    /// When counts do not fit the kernel, or a view is empty, leaves its buffer, or begins at an unaligned byte.
    pub fn bind(&self, pipeline: &Pipeline, buffers: &[&[BufferView]]) -> Result<Bindings, GpuError> {
        Bindings::new(&self.shared, pipeline, buffers)
    }

    /// Begins a recording.
    ///
    /// # Errors
    /// The driver's.
    pub fn recorder(&self) -> Result<Recorder, GpuError> {
        Recorder::new(&self.shared, QueueKind::Kernels)
    }

    /// Begins a recording of copies, updates and fills for [`Self::submit_copies`].
    ///
    /// # Errors
    /// The driver's.
    pub fn copy_recorder(&self) -> Result<Recorder, GpuError> {
        let has_queue = self.shared.copies.is_some();
        Recorder::new(&self.shared, if has_queue { QueueKind::Copies } else { QueueKind::Kernels })
    }

    /// Whether copies run beside kernels, on a timeline of their own.
    pub fn has_copy_queue(&self) -> bool {
        self.shared.copies.is_some()
    }

    /// `count` stamps on the device's clock, reset; waits for that.
    ///
    /// # Errors
    /// [`GpuError::FeatureMissing`] when the queue has no clock; the driver's.
    ///
    /// # Panics
    /// When `count` is 0.
    pub fn timestamps(&self, count: u32) -> Result<Timestamps, GpuError> {
        let stamps = Timestamps::new(&self.shared, count)?;
        let mut recorder = self.recorder()?;
        recorder.reset_stamps(&stamps, 0, count);
        let commands = recorder.finish()?;
        self.wait(self.submit(&[&commands])?)?;
        Ok(stamps)
    }

    /// Hands commands to the device, to be run in this order, after all that was submitted before, copies among it. Host writes made
    /// until now are seen by them.
    ///
    /// # Errors
    /// [`GpuError::DeviceLost`]; the driver's. Then nothing was submitted.
    ///
    /// # Panics
    /// When commands are another device's, are in flight, come twice, or are more than 256.
    pub fn submit(&self, all: &[&Commands]) -> Result<Ticket, GpuError> {
        let count = all.len();
        assert!(
            count <= COMMANDS_PER_SUBMIT_MAX,
            "{count} commands are over {COMMANDS_PER_SUBMIT_MAX} a submission"
        );
        let (kernels, seen) = (&self.shared.kernels, &self.shared.copies_seen);
        let copies = self.shared.copies.as_ref();
        let last = copies.and_then(|copies| copies.last().map(|last| (copies, last)));
        // A wait holds for all that is submitted later, too.
        let after = last.filter(|(_, last)| last.value > seen.load(Ordering::Acquire));
        let ticket = self.submit_on(kernels, all, after)?;
        if let Some((_, last)) = after {
            seen.fetch_max(last.value, Ordering::AcqRel);
        }
        Ok(ticket)
    }

    /// Hands copies to the device, recorded by [`Self::copy_recorder`], to be run after all copies that were submitted before and
    /// the kernels of `after`, whose results they do not read; where they have a queue of their own, beside everything else. Whatever is submitted later by [`Self::submit`] runs
    /// after them.
    ///
    /// # Errors
    /// As [`Self::submit`].
    ///
    /// # Panics
    /// As [`Self::submit`].
    pub fn submit_copies(&self, commands: &Commands, after: Option<Ticket>) -> Result<Ticket, GpuError> {
        let Some(copies) = &self.shared.copies else { return self.submit(&[commands]) };
        let kernels = &self.shared.kernels;
        let after = match after {
            // What kernels have read they have read: there is nothing of theirs to be seen.
            Some(after) if after.kind == QueueKind::Kernels && !kernels.is_done(after)? => {
                Some((kernels, after))
            }
            _ => None,
        };
        self.submit_on(copies, &[commands], after)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The ticket of what [`Self::submit`] took last.
    pub fn last_ticket(&self) -> Option<Ticket> {
        self.shared.kernels.last()
    }

    fn submit_on(
        &self,
        timeline: &Timeline,
        all: &[&Commands],
        after: Option<(&Timeline, Ticket)>,
    ) -> Result<Ticket, GpuError> {
        let check = |buffers: &mut [vk::CommandBufferSubmitInfo<'_>]| {
            for (index, (&commands, buffer)) in all.iter().zip(buffers).enumerate() {
                assert!(Arc::ptr_eq(&self.shared, &commands.shared), "commands of another device");
                assert_eq!(commands.kind, timeline.kind(), "commands were recorded for another queue");
                let is_repeated = all[..index].iter().any(|&other| std::ptr::eq(other, commands));
                assert!(!is_repeated, "the same commands twice in one submission");
                let before = commands.ticket();
                let is_idle = before.map_or(Ok(true), |before| timeline.is_done(before))?;
                assert!(is_idle, "commands are still in flight with {before:?}");
                *buffer = vk::CommandBufferSubmitInfo::default().command_buffer(commands.buffer());
            }
            Ok(())
        };
        for commands in all {
            commands.stamped().map_or(Ok(()), |stamped| stamped.collect(&self.shared))?;
        }
        let ticket = timeline.submit(all.len(), after, check, |ticket| {
            all.iter().for_each(|commands| commands.set_ticket(ticket))
        })?;
        all.iter().filter_map(|commands| commands.stamped()).for_each(|stamped| stamped.submitted(ticket));
        Ok(ticket)
    }

    /// Waits until the device has done what `ticket` stands for, and all before it.
    ///
    /// # Errors
    /// [`GpuError::DeviceLost`], [`GpuError::Timeout`] after 60 s.
    ///
    /// # Panics
    /// When the ticket was never given out.
    pub fn wait(&self, ticket: Ticket) -> Result<(), GpuError> {
        self.shared.timeline(ticket).wait(ticket)
    }

    /// Whether the device has done what `ticket` stands for.
    ///
    /// # Errors
    /// [`GpuError::DeviceLost`].
    pub fn is_done(&self, ticket: Ticket) -> Result<bool, GpuError> {
        self.shared.timeline(ticket).is_done(ticket)
    }

    /// What the validation layer has said so far; empty without validation.
    pub fn validation_messages(&self) -> Vec<String> {
        self.validation_log().messages()
    }

    /// The validation layer's log, which outlives the device.
    pub fn validation_log(&self) -> ValidationLog {
        self.shared.device.instance.log.clone()
    }

    /// Bytes of live buffers; imported memory is the host's and not counted.
    pub fn memory_used(&self) -> u64 {
        self.shared.memory.used_bytes()
    }

    /// Every heap: size, budget, use.
    pub fn memory_budget(&self) -> Vec<HeapUse> {
        self.shared.memory.heaps()
    }

    /// What came of the pipeline cache's file when the device was opened.
    pub fn pipeline_cache(&self) -> &CacheState {
        &self.shared.cache.state
    }

    /// Writes the pipeline cache if it has grown; also done, silently, when the device closes. The file, if there is one.
    ///
    /// # Errors
    /// [`GpuError::CacheNotWritten`].
    pub fn save_pipeline_cache(&self) -> Result<Option<&Path>, GpuError> {
        self.shared.cache.save()
    }
}
