//! `cargo bench --bench checksums`: the sums that guard a store, beside plainly reading the same bytes from memory.

#[path = "support/bytes.rs"]
mod bytes;
#[path = "support/paired.rs"]
mod paired;

use std::hint::black_box;

use flint_rt::base::ids::ExpertKey;
use flint_rt::store::{RecordLayout, Sha256Digest, piece_checksum, record_checksum};
use paired::{Bench, Limit, Work, repeat};

/// A matrix of an expert of the full Flint, and its record: gate, up, down.
const MATRIX_BYTES: u64 = 655_360;
const RECORD_BYTES: u64 = 3 * MATRIX_BYTES;

/// Records that take turns, together more than most caches hold: one that comes again was long pushed out.
const RECORDS: usize = 64;

/// A sum of bytes, its result thrown away.
type Sum = fn(&[u8]);

fn main() {
    let mut bench = Bench::new(800);
    let record_bytes = usize::try_from(RECORD_BYTES).expect("a record fits memory");
    let memory = bytes::random(record_bytes * RECORDS, 1);
    let records: Vec<&[u8]> = memory.chunks_exact(record_bytes).collect();
    let work = Work::Bytes(RECORD_BYTES);
    let sums: [(&str, Sum); 3] = [
        ("XXH3-128 of a record", |record| {
            black_box(piece_checksum(record));
        }),
        ("XXH3-128 of a record, as it is checked when it arrives", |record| {
            let layout =
                RecordLayout { gate_bytes: MATRIX_BYTES, up_bytes: MATRIX_BYTES, down_bytes: MATRIX_BYTES };
            let key = ExpertKey::new(3, 5);
            black_box(record_checksum(Sha256Digest([7; 32]), key, &layout, record));
        }),
        ("SHA-256 of a record", |record| {
            black_box(Sha256Digest::of(record));
        }),
    ];
    for (name, sum) in sums {
        // Half a round apart, so that neither finds in a cache what the other just read.
        let mut limits = records.iter().cycle();
        let mut ours = records.iter().cycle().skip(RECORDS / 2);
        let read =
            |iterations| repeat(iterations, || limits.next().into_iter().for_each(|all| bytes::read(all)));
        let limit = Limit { name: "memory read by one thread", work, run: read };
        bench.case("checksums", name, work, limit, |iterations| {
            repeat(iterations, || ours.next().into_iter().for_each(|record| sum(record)))
        });
    }
    bench.finish();
}
