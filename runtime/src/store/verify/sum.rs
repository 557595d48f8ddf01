//! The sums of a tensor whose bytes come in several pieces.

use sha2::{Digest, Sha256};
use twox_hash::XxHash3_128;

use crate::store::checksum::join_tensor;
use crate::store::digest::Sha256Digest;

/// A tensor's checksum in the making.
#[derive(Default)]
pub struct TensorSum {
    sum: XxHash3_128,
    len_bytes: u64,
}

impl TensorSum {
    /// Takes the next bytes of the tensor.
    pub fn update(&mut self, bytes: &[u8]) {
        self.sum.write(bytes);
        self.len_bytes += bytes.len() as u64;
    }

    /// The checksum of the tensor `name` in the store `store_id`, of all bytes so far.
    pub fn finish(&self, store_id: Sha256Digest, name: &str) -> u128 {
        join_tensor(store_id, name, self.len_bytes, self.sum.finish_128())
    }
}

/// Both sums of a piece: the fast one that is always made, and its SHA-256 where that is wanted.
pub(super) struct BothSums {
    pub(super) tensor: TensorSum,
    sha256: Option<Sha256>,
}

impl BothSums {
    pub(super) fn new(with_sha256: bool) -> Self {
        Self { tensor: TensorSum::default(), sha256: with_sha256.then(Sha256::new) }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.tensor.update(bytes);
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
    }

    pub(super) fn leaf(self) -> Option<Sha256Digest> {
        self.sha256.map(|sha256| Sha256Digest(sha256.finalize().into()))
    }
}
