//! A hash for keys of one u64, several times faster than the standard one: merging looks up three pairs a merge.
//!
//! Keyed at random in each process, so that no file and no text can be made to collide.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes hashers with one key.
#[derive(Debug, Clone)]
pub(super) struct PairHash {
    key: u64,
}

impl Default for PairHash {
    fn default() -> Self {
        Self { key: RandomState::new().hash_one(0u64) }
    }
}

impl BuildHasher for PairHash {
    type Hasher = PairHasher;

    fn build_hasher(&self) -> PairHasher {
        PairHasher { key: self.key, hash: 0 }
    }
}

/// Hashes one u64.
pub(super) struct PairHasher {
    key: u64,
    hash: u64,
}

impl Hasher for PairHasher {
    fn write_u64(&mut self, value: u64) {
        // The two halves of a 128-bit product, of a value that the key hides: every bit of it reaches every place.
        let product = u128::from(value ^ self.key) * u128::from(self.key.rotate_left(32) | 1);
        let bytes = product.to_le_bytes();
        let (low, high) = bytes.split_at(8);
        let half =
            |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("invariant: half of sixteen bytes"));
        self.hash ^= half(low) ^ half(high);
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.hash = self.hash.rotate_left(5);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}
