//! Station `gpu`: Vulkan 1.3, thin. It runs what it is told and decides nothing about the model.
//!
//! Owns the instance, the device, its queues, device memory, pipelines, descriptor sets, recorded commands,
//! and the timelines that say how far the device has come. In: kernels as data ([`flint_shaders::Kernel`]), host memory
//! ([`crate::base::region::HostRegion`]), recordings. Out: [`Buffer`]s with the results, [`Ticket`]s, typed
//! [`GpuError`]s.
//!
//! What this layer promises:
//! - its face is safe: what the device may still touch is alive, since [`Commands`] own all that they use and wait
//!   for their ticket when they are dropped;
//! - commands that are submitted later see what earlier ones wrote, and the host sees it once the ticket has passed;
//! - no driver's answer panics: each becomes a [`GpuError`] with the call's name;
//! - the choice of a device and of a memory heap is deterministic and can be read in [`DeviceInfo`] and
//!   [`Gpu::memory_budget`].
//!
//! What callers must keep, asserted where it can be seen: ranges lie inside their buffers, host writes do not race with
//! the device, a barrier stands between dependent dispatches, commands are submitted again only after their last ticket
//! has passed. Kernels are built without robust buffer access: what a kernel reads inside its bindings is the caller's
//! responsibility.
//!
//! Invariants: one queue for kernels, with one timeline, and one for copies where the device has it, with another; ticket `n` of a
//! timeline has passed when its semaphore counts `n`; every object keeps the
//! device alive that made it, so drop order does not matter.

mod bind;
mod buffer;
mod cache;
mod clock;
mod commands;
mod context;
mod device;
mod dispatches;
mod error;
mod import;
mod info;
mod instance;
mod mapped;
mod matrix;
mod memory;
mod pipeline;
mod placement;
mod probe;
mod queues;
mod recorder;
mod tape;
mod timeline;
mod timestamps;

pub use bind::Bindings;
pub use buffer::{Buffer, BufferView};
pub use cache::CacheState;
pub use clock::{Clock, Mark};
pub use commands::Commands;
pub use context::{Gpu, GpuOptions, list_devices};
pub use dispatches::{DispatchLabel, DispatchSpan, Dispatches};
pub use error::GpuError;
pub use info::{DeviceChoice, DeviceInfo, DeviceKind, DeviceLimits};
pub use instance::ValidationLog;
pub use matrix::MatrixShape;
pub use pipeline::Pipeline;
pub use placement::{HeapUse, Placement};
pub use queues::CopyQueue;
pub use recorder::Recorder;
pub use timeline::Ticket;
pub use timestamps::Timestamps;
