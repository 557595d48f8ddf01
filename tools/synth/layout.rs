//! A synthetic GGUF as one run of bytes that can be made from any place on.
//!
//! Owns: the header and the list of tensors with their places. In: dimensions, seed, skew. Out: the file's length and any
//! piece of it. Immutable, so threads share it.

use flint_rt::base::units::align_up;
use flint_rt::gguf::Gguf;
use flint_rt::model::hparams::FlintConfig;

use super::header;
use super::shape::Shape;
use super::tensors::{self, Tensor};
use crate::exit::{Exit, Failure, Outcome};

/// A file to be.
#[derive(Debug)]
pub(super) struct Layout {
    /// All bytes before the first tensor.
    header: Vec<u8>,
    /// With the offset in the file at which each begins.
    tensors: Vec<(u64, Tensor)>,
    len_bytes: u64,
}

impl Layout {
    /// Plans the file, and has the library read its header as it would when the model is opened.
    pub(super) fn new(name: &str, shape: &Shape, seed: u64, exponent: f64) -> Outcome<Self> {
        let alignment = u64::from(shape.alignment);
        let mut next = 0;
        let mut placed = Vec::new();
        for tensor in tensors::list(shape, seed, exponent) {
            let offset = next;
            next = align_up(offset + tensor.len_bytes, alignment);
            placed.push((offset, tensor));
        }
        let header = header::bytes(name, shape, seed, &placed);
        let data_start = header.len() as u64;
        for (offset, _) in &mut placed {
            *offset += data_start;
        }
        let layout = Self { header, tensors: placed, len_bytes: data_start + next };
        layout.check()?;
        Ok(layout)
    }

    /// Whether the library runs such a model.
    fn check(&self) -> Outcome {
        let parsed = Gguf::parse(&self.header, self.len_bytes)?;
        let gguf = parsed.complete(self.header.len() as u64)?;
        let config = FlintConfig::from_gguf(&gguf);
        config.map_err(|error| Failure::because(Exit::Usage, "these dimensions make no model", &error))?;
        Ok(())
    }

    /// All bytes before the first tensor.
    pub(super) fn header(&self) -> &[u8] {
        &self.header
    }

    /// Bytes of the whole file.
    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Bytes before the first tensor.
    pub(super) fn header_bytes(&self) -> u64 {
        self.header.len() as u64
    }

    /// All tensors, each with the offset at which it begins.
    pub(super) fn tensors(&self) -> &[(u64, Tensor)] {
        &self.tensors
    }

    /// How many tensors there are.
    pub(super) fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// Bytes of all tensors, without what lies between them.
    pub(super) fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|(_, tensor)| tensor.len_bytes).sum()
    }

    /// Writes the file's bytes from `offset_bytes` on into all of `target`; zeros behind its end.
    pub(super) fn write(&self, offset_bytes: u64, target: &mut [u8]) {
        let mut at = offset_bytes;
        let mut rest = target;
        let mut index = self.tensors.partition_point(|(offset, tensor)| offset + tensor.len_bytes <= at);
        while !rest.is_empty() {
            let part = |end: u64, rest: &[u8]| {
                usize::try_from(end - at).map_or(rest.len(), |len| len.min(rest.len()))
            };
            let written = if at < self.header_bytes() {
                let written = part(self.header_bytes(), rest);
                let from = usize::try_from(at).expect("invariant: within a header in memory");
                rest[..written].copy_from_slice(&self.header[from..from + written]);
                written
            } else {
                match self.tensors.get(index) {
                    Some((offset, tensor)) if *offset <= at => {
                        let written = part(offset + tensor.len_bytes, rest);
                        tensor.fill.write(at - offset, &mut rest[..written]);
                        index += usize::from(at + written as u64 == offset + tensor.len_bytes);
                        written
                    }
                    // Between two tensors, or behind the last.
                    next => {
                        let written = next.map_or(rest.len(), |(offset, _)| part(*offset, rest));
                        rest[..written].fill(0);
                        written
                    }
                }
            };
            at += written as u64;
            rest = &mut rest[written..];
        }
    }
}
