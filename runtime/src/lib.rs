//! flint-rt as a library: runs the Flint mixture-of-experts model with its dense weights on a Vulkan device and its
//! routed experts on disk, read by io_uring with `O_DIRECT` straight into memory that the device reads.
//!
//! The modules below are the stations of the data, in the order in which it travels. A module imports only from
//! those above it.

#![deny(unsafe_code)]
#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod base;

pub mod gguf;

pub mod store;

#[allow(unsafe_code, reason = "island: io_uring submissions point at memory that the kernel writes")]
pub mod disk;

#[allow(unsafe_code, reason = "island: every Vulkan call is unsafe")]
pub mod gpu;

pub mod expert;

pub mod kernels;

pub mod model;

pub mod text;

pub mod sample;

pub mod engine;

#[allow(unsafe_code, reason = "island: the callers' pointers are followed, and names are exported")]
pub mod capi;
