//! The compute kernels of flint-rt.

#![forbid(unsafe_code)]
