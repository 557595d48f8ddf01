//! Station `kernels`.
