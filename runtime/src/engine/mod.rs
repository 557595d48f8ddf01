//! Station `engine`.
