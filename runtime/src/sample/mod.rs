//! Station `sample`.
