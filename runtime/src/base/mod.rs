//! Words that every station uses: ids, units, limits, host memory.
//!
//! Owns: no resources but [`region::HostRegion`]. Imports nothing of ours.

pub mod causes;

pub mod events;

pub mod host_memory;

pub mod ids;

pub mod limits;

pub mod mounts;

#[allow(unsafe_code, reason = "island: owns mappings made by mmap or by a Vulkan driver")]
pub mod region;

pub mod split_mix;

pub mod units;

#[allow(unsafe_code, reason = "island: one call that fills a C struct")]
pub mod volume;
