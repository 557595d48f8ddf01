//! The sums that a store keeps of its bytes.
//!
//! - Owns: nothing. In: the bytes of a tensor or of an expert's matrices, and who they are. Out: a fast sum that a
//!   reader can check on every read, and SHA-256 leaves for the file's digest.
//! - Invariants: a checksum covers identity: the same bytes under another key, of another length or in another store
//!   have another sum. A record's sum is made of its matrices' sums, so a writer may meet them in any order.
//!
//! XXH3 finds damage, not malice: who can choose bytes can make two of one sum. The SHA-256 digests are for that.

use sha2::{Digest, Sha256};
use twox_hash::XxHash3_128;

use crate::base::ids::ExpertKey;
use crate::store::digest::Sha256Digest;
use crate::store::record::RecordLayout;

/// 128-bit XXH3 of some bytes, of which nothing else is said.
pub fn piece_checksum(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

/// The checksum of an expert's record. `record` holds gate, up and down, without padding.
///
/// It is XXH3-128 over: the text `flint-rt record`, the store's id, layer and expert (`u32`), the record's length
/// (`u64`), then the XXH3-128 of gate, up and down (16 bytes each); numbers little-endian.
///
/// # Panics
/// When `record` has another length than the layout.
pub fn record_checksum(store_id: Sha256Digest, key: ExpertKey, layout: &RecordLayout, record: &[u8]) -> u128 {
    join_record(store_id, key, layout.record_bytes(), layout.matrices(key, record).map(piece_checksum))
}

/// [`record_checksum`] from the [`piece_checksum`] of each matrix.
pub fn join_record(store_id: Sha256Digest, key: ExpertKey, record_bytes: u64, matrices: [u128; 3]) -> u128 {
    let mut sum = XxHash3_128::new();
    sum.write(b"flint-rt record");
    sum.write(&store_id.0);
    sum.write(&key.layer.0.to_le_bytes());
    sum.write(&key.expert.0.to_le_bytes());
    sum.write(&record_bytes.to_le_bytes());
    matrices.iter().for_each(|matrix| sum.write(&matrix.to_le_bytes()));
    sum.finish_128()
}

/// The checksum of a dense tensor.
///
/// It is XXH3-128 over: the text `flint-rt tensor`, the store's id, the name's length in bytes (`u64`) and the name,
/// the tensor's length (`u64`), then the XXH3-128 of its bytes (16 bytes); numbers little-endian.
pub fn tensor_checksum(store_id: Sha256Digest, name: &str, bytes: &[u8]) -> u128 {
    join_tensor(store_id, name, bytes.len() as u64, piece_checksum(bytes))
}

/// [`tensor_checksum`] from the [`piece_checksum`] of the tensor's bytes.
pub fn join_tensor(store_id: Sha256Digest, name: &str, len_bytes: u64, piece: u128) -> u128 {
    let mut sum = XxHash3_128::new();
    sum.write(b"flint-rt tensor");
    sum.write(&store_id.0);
    sum.write(&(name.len() as u64).to_le_bytes());
    sum.write(name.as_bytes());
    sum.write(&len_bytes.to_le_bytes());
    sum.write(&piece.to_le_bytes());
    sum.finish_128()
}

/// The digest of a file of which the leaves are the SHA-256 of its pieces, in the order of the file: SHA-256 over the
/// leaves' 32 bytes each. So a file can be written in any order and checked by many threads.
///
/// A piece is a dense tensor, or one matrix of an expert ([`crate::store::Source::digested_pieces`]); padding is in none.
pub fn tree_digest(leaves: impl IntoIterator<Item = Sha256Digest>) -> Sha256Digest {
    let mut digest = Sha256::new();
    leaves.into_iter().for_each(|leaf| digest.update(leaf.0));
    Sha256Digest(digest.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Sha256Digest = Sha256Digest([7; 32]);
    const LAYOUT: RecordLayout = RecordLayout { gate_bytes: 40, up_bytes: 40, down_bytes: 40 };

    #[test]
    fn a_checksum_covers_who_the_bytes_are() {
        let bytes: Vec<u8> = (0..120).collect();
        let key = ExpertKey::new(3, 5);
        let sum = record_checksum(ID, key, &LAYOUT, &bytes);
        let matrices = [&bytes[..40], &bytes[40..80], &bytes[80..]].map(piece_checksum);
        assert_eq!(sum, join_record(ID, key, 120, matrices), "two ways to one sum");
        let others = [
            record_checksum(Sha256Digest([8; 32]), key, &LAYOUT, &bytes),
            record_checksum(ID, ExpertKey::new(5, 3), &LAYOUT, &bytes),
            record_checksum(ID, ExpertKey::new(3, 4), &LAYOUT, &bytes),
            join_record(ID, key, 121, matrices),
            join_record(ID, key, 120, [matrices[1], matrices[0], matrices[2]]),
            tensor_checksum(ID, "layer 3 expert 5", &bytes),
        ];
        assert!(others.iter().all(|other| *other != sum), "another identity, the same sum");
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(record_checksum(ID, key, &LAYOUT, &flipped), sum, "bit {bit}");
        }
        assert_ne!(tensor_checksum(ID, "ab", b"c"), tensor_checksum(ID, "a", b"bc"), "names end");
    }
}
