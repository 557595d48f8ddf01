//! Station `store`.
