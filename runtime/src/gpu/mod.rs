//! Station `gpu`.
