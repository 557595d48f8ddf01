//! Station `model`.
