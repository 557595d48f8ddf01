//! Memory that is registered with a ring, so that a read into it pins no pages.
//!
//! Owns: the numbers of the ring's table of buffers. In: regions, at any time. Out: the number that a read may name.
//!
//! Invariants:
//! - a region that has a number is kept until the kernel has let go of it, or the ring is closed;
//! - memory that the kernel does not register is no less usable: a read into it names its address instead.
//!
//! The table is made empty and filled place by place (Linux 5.19), so that regions come and go while reads are under way: the
//! kernel keeps what a read of its own still names. Where it cannot, the table is made once of what is there.
//!
//! Registered pages are pinned. `madvise(MADV_DONTNEED)` on them frees nothing, and a read by number goes on into the old
//! pages while the process sees new ones; so memory is given back by whole regions, which leave the table first.

use std::collections::BTreeMap;

use io_uring::IoUring;

use super::DiskError;
use super::ring_setup::unavailable;
use crate::base::limits::{REGISTERED_BYTES_MAX, REGISTERED_PIECES_MAX};
use crate::base::region::HostRegion;

/// A number of the ring's table.
type Number = u16;

/// A piece of memory: its first address, and its length in bytes.
type Piece = (usize, usize);

/// Which pieces have which number. Pure.
#[derive(Debug, Default)]
struct Table {
    by_start: BTreeMap<usize, (usize, Number)>,
    free: Vec<Number>,
}

impl Table {
    fn new(count: Number) -> Self {
        Self { by_start: BTreeMap::new(), free: (0..count).rev().collect() }
    }

    /// Takes the lowest free number for a piece; `None` where there is none.
    fn take(&mut self, (start, len_bytes): Piece) -> Option<Number> {
        let number = self.free.pop()?;
        self.by_start.insert(start, (len_bytes, number));
        Some(number)
    }

    fn release(&mut self, start: usize) {
        if let Some((_, number)) = self.by_start.remove(&start) {
            self.free.push(number);
        }
    }

    /// The number of the piece that begins at `start`.
    fn number_of(&self, start: usize) -> Option<Number> {
        self.by_start.get(&start).map(|&(_, number)| number)
    }

    /// The number by which a read into `[start, start + len_bytes)` may name its memory.
    fn holding(&self, start: usize, len_bytes: usize) -> Option<Number> {
        let (&piece, &(piece_bytes, number)) = self.by_start.range(..=start).next_back()?;
        (start - piece + len_bytes <= piece_bytes).then_some(number)
    }
}

/// What a ring has registered.
#[derive(Debug, Default)]
pub(super) struct Registered {
    table: Table,
    /// Kept for the kernel, which writes into them.
    regions: Vec<HostRegion>,
    /// Whether places of the table can be filled and emptied.
    is_open: bool,
}

impl Registered {
    /// Registers `regions`, in their order, until one is refused; the refusal comes beside what was registered.
    ///
    /// Not buffer by buffer: that was measured to be no faster, in huge pages and in small ones (99 to 102 % of the rate at
    /// depths 1, 4 and 16, by `cargo bench --bench read_queue -- registration`, Linux 6.18).
    pub(super) fn of(ring: &IoUring, regions: &[HostRegion]) -> (Self, Option<DiskError>) {
        let mut registered = Self::default();
        if ring.submitter().register_buffers_sparse(REGISTERED_PIECES_MAX.into()).is_ok() {
            (registered.table, registered.is_open) = (Table::new(REGISTERED_PIECES_MAX), true);
            let refused = regions.iter().find_map(|region| registered.add(ring, region).err());
            return (registered, refused);
        }
        let pieces: Vec<Piece> = regions.iter().flat_map(pieces).collect();
        let vectors: Vec<libc::iovec> = pieces.iter().map(to_kernel).collect();
        // SAFETY:
        // - Each vector lies in one region's mapping, and `regions` is kept until after the ring.
        // - Registering pins the pages; it reads and writes none of their bytes.
        if let Err(source) = unsafe { ring.submitter().register_buffers(&vectors) } {
            return (registered, Some(unavailable("io_uring_register (buffers)", source)));
        }
        registered.table = Table::new(Number::try_from(pieces.len()).unwrap_or(Number::MAX));
        for piece in pieces {
            registered.table.take(piece);
        }
        registered.regions = regions.to_vec();
        (registered, None)
    }

    /// Bytes that are registered.
    pub(super) fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.len_bytes() as u64).sum()
    }

    /// The number by which a read into `[start, start + len_bytes)` may name its memory.
    pub(super) fn holding(&self, start: usize, len_bytes: usize) -> Option<Number> {
        self.table.holding(start, len_bytes)
    }

    /// Registers one more region.
    ///
    /// # Errors
    /// The kernel's refusal; nothing of the region is registered then.
    pub(super) fn add(&mut self, ring: &IoUring, region: &HostRegion) -> Result<(), DiskError> {
        const CALL: &str = "io_uring_register (a buffer more)";
        if !self.is_open {
            return Err(unavailable(CALL, std::io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let mut taken: Vec<usize> = Vec::new();
        let refused = pieces(region).find_map(|piece| {
            let Some(number) = self.table.take(piece) else {
                return Some(std::io::Error::other(format!("all {REGISTERED_PIECES_MAX} places are taken")));
            };
            taken.push(piece.0);
            update(ring, number, piece).err()
        });
        let Some(source) = refused else {
            self.regions.push(region.clone());
            return Ok(());
        };
        for start in taken {
            if let Err(error) = self.forget(ring, start) {
                // The kernel still has some of its pages, under numbers that lead to them: it is kept like one that is registered.
                self.regions.push(region.clone());
                return Err(error);
            }
        }
        Err(unavailable(CALL, source))
    }

    /// Lets go of a region, if it is registered: what the kernel is reading into it is first brought to its end.
    ///
    /// # Errors
    /// When the kernel does not let go; the region stays registered, and is kept.
    pub(super) fn remove(&mut self, ring: &IoUring, region: &HostRegion) -> Result<(), DiskError> {
        let Some(at) = self.regions.iter().position(|kept| kept.id() == region.id()) else { return Ok(()) };
        for (start, _) in pieces(region) {
            self.forget(ring, start)?;
        }
        self.regions.swap_remove(at);
        Ok(())
    }

    fn forget(&mut self, ring: &IoUring, start: usize) -> Result<(), DiskError> {
        if let Some(number) = self.table.number_of(start) {
            // A place is emptied by the null vector. One whose filling was refused is empty already.
            update(ring, number, (0, 0))
                .map_err(|source| unavailable("io_uring_register (a buffer less)", source))?;
            self.table.release(start);
        }
        Ok(())
    }
}

fn update(ring: &IoUring, number: Number, piece: Piece) -> std::io::Result<()> {
    // SAFETY:
    // - The piece lies in one region's mapping, which the caller keeps as long as the number names it; or it is null,
    //   which empties the place.
    // - Registering pins the pages; it reads and writes none of their bytes.
    unsafe { ring.submitter().register_buffers_update(number.into(), &[to_kernel(&piece)], None) }
}

fn to_kernel(&(start, len_bytes): &Piece) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(start), iov_len: len_bytes }
}

/// A region in pieces that the kernel takes.
fn pieces(region: &HostRegion) -> impl Iterator<Item = Piece> + use<> {
    cut(region.base().addr().get(), region.len_bytes())
}

fn cut(start: usize, len_bytes: usize) -> impl Iterator<Item = Piece> {
    (0..len_bytes)
        .step_by(REGISTERED_BYTES_MAX)
        .map(move |offset| (start + offset, (len_bytes - offset).min(REGISTERED_BYTES_MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_piece_is_above_one_gibibyte() {
        let gib = REGISTERED_BYTES_MAX;
        let lens = |len| cut(4096, len).map(|(_, len_bytes)| len_bytes).collect::<Vec<_>>();
        assert_eq!(lens(gib), [gib]);
        assert_eq!(lens(gib + 4096), [gib, 4096]);
        assert_eq!(lens(2 * gib), [gib, gib]);
    }

    #[test]
    fn a_read_is_named_only_where_it_lies_in_one_piece() {
        let gib = REGISTERED_BYTES_MAX;
        let mut table = Table::new(8);
        for piece in cut(4096, gib + 8192) {
            table.take(piece).unwrap();
        }
        assert_eq!(table.holding(4096, gib), Some(0));
        assert_eq!(table.holding(8192, gib), None, "across the border of two pieces");
        assert_eq!(table.holding(gib + 4096, 8192), Some(1));
        assert_eq!(table.holding(gib + 4096, 8193), None, "beyond the end");
        assert_eq!(table.holding(0, 1), None, "before the beginning");
    }

    #[test]
    fn a_place_that_was_left_is_taken_again() {
        let mut table = Table::new(2);
        assert_eq!(table.take((0x1000, 0x1000)), Some(0));
        assert_eq!(table.take((0x4000, 0x1000)), Some(1));
        assert_eq!(table.take((0x8000, 0x1000)), None, "full");
        table.release(0x1000);
        assert_eq!(table.holding(0x1000, 1), None);
        assert_eq!((table.number_of(0x1000), table.number_of(0x4000)), (None, Some(1)));
        assert_eq!(table.take((0x8000, 0x2000)), Some(0));
        assert_eq!(table.holding(0x9000, 0x1000), Some(0));
    }
}
