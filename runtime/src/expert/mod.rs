//! Station `expert`.
