//! Station `text`.
