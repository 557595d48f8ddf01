//! Station `disk`.
