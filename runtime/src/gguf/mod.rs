//! Station `gguf`.
