//! SHA-256 of several streams on one core, two at a time.
//!
//! - Owns: the state of a stream. In: bytes. Out: its digest, which is the plain one.
//! - Invariants: how streams are paired and cut changes no digest.
//!
//! Each round of SHA-256 needs the one before it, so a core that hashes one stream waits most of the time for its own
//! answers. Two streams that take turns block by block fill each other's waits, as the core looks further ahead than one
//! block: two cost what 1.4 of them cost one after the other, where the processor has instructions for SHA-256.

use sha2::{Digest, Sha256};

use crate::store::digest::Sha256Digest;

/// Bytes that SHA-256 takes at a time.
const SHA_BLOCK_BYTES: usize = 64;

/// A SHA-256 that is being taken.
#[derive(Clone, Default)]
pub(super) struct Lane {
    sha256: Sha256,
    /// Bytes since the last whole block.
    into_block: usize,
}

impl Lane {
    fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        self.into_block = (self.into_block + bytes.len()) % SHA_BLOCK_BYTES;
    }

    /// Takes what is missing to a whole block from the front of `bytes`.
    fn align(&mut self, bytes: &mut &[u8]) {
        let missing = (SHA_BLOCK_BYTES - self.into_block) % SHA_BLOCK_BYTES;
        let (head, rest) = bytes.split_at(missing.min(bytes.len()));
        self.update(head);
        *bytes = rest;
    }

    /// The digest of all bytes so far.
    pub(super) fn finish(self) -> Sha256Digest {
        Sha256Digest(self.sha256.finalize().into())
    }
}

/// Adds to each lane the bytes beside it.
pub(super) fn update_all<'a>(lanes: impl IntoIterator<Item = (&'a mut Lane, &'a [u8])>) {
    let mut waiting = lanes.into_iter().map(|(lane, mut bytes)| {
        lane.align(&mut bytes);
        (lane, bytes)
    });
    let Some(mut one) = waiting.next() else { return };
    for mut other in waiting {
        let len = one.1.len().min(other.1.len()) / SHA_BLOCK_BYTES * SHA_BLOCK_BYTES;
        let ((first, one_rest), (second, other_rest)) = (one.1.split_at(len), other.1.split_at(len));
        for (first, second) in first.chunks_exact(SHA_BLOCK_BYTES).zip(second.chunks_exact(SHA_BLOCK_BYTES)) {
            one.0.sha256.update(first);
            other.0.sha256.update(second);
        }
        (one.1, other.1) = (one_rest, other_rest);
        // Who has more left goes on beside the next one.
        if one.1.len() < other.1.len() {
            std::mem::swap(&mut one, &mut other);
        }
        other.0.update(other.1);
    }
    one.0.update(one.1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_any_lengths_and_cuts_have_the_plain_digests() {
        let bytes: Vec<u8> = (0..5000u32).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
        let mut seed = 1usize;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for round in 0..300 {
            let count = random(6);
            let mut lanes = vec![Lane::default(); count];
            let mut added = vec![Vec::new(); count];
            for _ in 0..random(4) {
                let parts: Vec<&[u8]> = (0..count)
                    .map(|_| {
                        let start = random(bytes.len());
                        let most = if random(2) == 0 { 200 } else { bytes.len() };
                        &bytes[start..start + random(most.min(bytes.len() - start))]
                    })
                    .collect();
                added.iter_mut().zip(&parts).for_each(|(all, part)| all.extend_from_slice(part));
                update_all(lanes.iter_mut().zip(parts));
            }
            for (lane, all) in lanes.into_iter().zip(added) {
                assert_eq!(lane.finish(), Sha256Digest::of(&all), "round {round}, {} bytes", all.len());
            }
        }
    }
}
