//! Station `model`.

pub mod hparams;
