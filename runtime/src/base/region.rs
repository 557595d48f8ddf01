//! Page-aligned host memory that the disk fills and the device may read.
//!
//! Owns: one mapping a [`HostRegion`], made here by `mmap` or lent by whoever mapped it (a Vulkan driver).
//! In: a length, or a mapping with the value that keeps it alive. Out: [`HostBuffer`]s, exclusive pieces of it.
//!
//! Invariants:
//! - a region's bytes stay mapped as long as the region, a clone of it or one of its buffers lives;
//! - two buffers never overlap, because a region is cut once, so a buffer's bytes have one owner;
//! - a buffer begins and ends on a page, which is what `O_DIRECT` and the import into Vulkan ask for.

use std::any::Any;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::units::display_bytes;

/// From this length on, huge pages are asked for: a 2 MiB read then pins one page instead of 512.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// What can go wrong when memory is taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The kernel refused the mapping.
    #[error(
        "{} of host memory could not be mapped: ask for less host memory, or raise the limit of the process",
        display_bytes(*.wanted_bytes)
    )]
    Map {
        /// Bytes asked for, rounded up to pages.
        wanted_bytes: u64,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The length does not fit the address space, or is 0.
    #[error("{wanted_bytes} B is no length for a region of host memory")]
    Length {
        /// Bytes asked for.
        wanted_bytes: u64,
    },
}

/// Bytes of a page of this machine: 4096, or 16 KiB or 64 KiB on some ARM kernels.
pub fn page_bytes() -> usize {
    // SAFETY: `sysconf` takes a number, touches no memory of ours and has no other condition.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("invariant: POSIX guarantees a page size")
}

/// What ends a mapping.
enum Owner {
    /// Ours: unmapped on drop.
    Mapped,
    /// Lent: stays as long as this value lives.
    Lent(#[expect(dead_code, reason = "held for its drop alone")] Arc<dyn Any + Send + Sync>),
}

struct Inner {
    base: NonNull<u8>,
    len_bytes: usize,
    is_split: AtomicBool,
    owner: Owner,
}

// SAFETY:
// - The pointer is to a mapping of the process, valid from every thread.
// - `Inner` itself reads and writes none of its bytes; only a `HostBuffer` does, and that has one owner.
// - The mapping is ended once, by the last owner, on whichever thread that is; `munmap` may be called from any.
unsafe impl Send for Inner {}

// SAFETY: as for `Send`; the shared methods give out the pointer's value and flip an atomic, nothing else.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if matches!(self.owner, Owner::Mapped) {
            // SAFETY:
            // - `base` and `len_bytes` are what `HostRegion::new` left of its mapping, whole pages, and nobody else unmaps them.
            // - No reference into it is left: every `HostBuffer` holds an `Arc` of `self`, and this is the last one.
            let rc = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes) };
            assert!(rc == 0, "munmap of our own mapping: {}", io::Error::last_os_error());
        }
    }
}

/// Page-aligned memory, shared by handles; its bytes are reached through the buffers it is cut into.
#[derive(Clone)]
pub struct HostRegion(Arc<Inner>);

impl HostRegion {
    /// Maps `len_bytes`, rounded up to whole pages (huge ones from 2 MiB on), of zeroed private anonymous memory: the kind that drivers import.
    ///
    /// A child of `fork` does not get the mapping, so that no page is moved to a copy while the drive writes into it.
    ///
    /// # Errors
    /// [`RegionError::Length`] for 0 bytes or more than the address space has, [`RegionError::Map`] when the kernel
    /// refuses.
    pub fn new(len_bytes: usize) -> Result<Self, RegionError> {
        let length_error = || RegionError::Length { wanted_bytes: len_bytes as u64 };
        // The kernel gives huge pages to whole ones only.
        let unit =
            if len_bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES.max(page_bytes()) } else { page_bytes() };
        let len_bytes = len_bytes.checked_next_multiple_of(unit).ok_or_else(length_error)?;
        if len_bytes == 0 || isize::try_from(len_bytes).is_err() {
            return Err(length_error());
        }
        // Newer kernels begin such a mapping where a huge page can, older ones anywhere: what is too much is given back.
        let excess = if len_bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 0 };
        let mapped_bytes = len_bytes.checked_add(excess).ok_or_else(length_error)?;
        // SAFETY:
        // - A null address lets the kernel choose, so no mapping that exists is touched.
        // - An anonymous private mapping needs no descriptor (-1) and no offset (0).
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(RegionError::Map {
                wanted_bytes: len_bytes as u64,
                source: io::Error::last_os_error(),
            });
        }
        let head_bytes = if excess == 0 { 0 } else { mapped.align_offset(HUGE_PAGE_BYTES) };
        let address = mapped.wrapping_byte_add(head_bytes);
        let behind = address.wrapping_byte_add(len_bytes);
        for (part, part_bytes) in [(mapped, head_bytes), (behind, excess - head_bytes)] {
            if part_bytes > 0 {
                // SAFETY: both ends of the mapping just made, whole pages of it, that nothing else knows of.
                let rc = unsafe { libc::munmap(part, part_bytes) };
                assert!(rc == 0, "munmap of our own mapping: {}", io::Error::last_os_error());
            }
        }
        // Both are advice. Without DONTFORK a fork is only dangerous while reads are under way; without HUGEPAGE
        // pinning is only slower. So a kernel that knows neither is no error.
        // SAFETY: the range is the mapping just made, and DONTFORK changes no byte of it.
        unsafe { libc::madvise(address, len_bytes, libc::MADV_DONTFORK) };
        if len_bytes >= HUGE_PAGE_BYTES {
            // SAFETY: the range is the mapping just made, and HUGEPAGE changes no byte of it.
            unsafe { libc::madvise(address, len_bytes, libc::MADV_HUGEPAGE) };
        }
        let base = NonNull::new(address.cast::<u8>()).expect("invariant: mmap never gives the null page");
        Ok(Self(Arc::new(Inner { base, len_bytes, is_split: AtomicBool::new(false), owner: Owner::Mapped })))
    }

    /// A region over memory that somebody else mapped, for example a Vulkan driver.
    ///
    /// # Safety
    /// `[ptr, ptr + len_bytes)` is readable and writable, and is neither unmapped nor read or written by anything but
    /// this region's buffers (and a device that the caller orders against them) as long as `keep_alive` lives.
    ///
    /// # Panics
    /// When `ptr` is not at a page's start, or `len_bytes` is 0 or above `isize::MAX`. A driver may map anywhere:
    /// the caller allocates one page more and rounds up.
    pub unsafe fn from_mapped(
        ptr: NonNull<u8>,
        len_bytes: usize,
        keep_alive: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        assert!(ptr.addr().get().is_multiple_of(page_bytes()), "a region begins at a page, not at {ptr:?}");
        assert!(
            len_bytes > 0 && isize::try_from(len_bytes).is_ok(),
            "{len_bytes} B is no length for a region"
        );
        let owner = Owner::Lent(keep_alive);
        Self(Arc::new(Inner { base: ptr, len_bytes, is_split: AtomicBool::new(false), owner }))
    }

    /// A number that no other living region has: its address.
    pub fn id(&self) -> u64 {
        self.0.base.addr().get() as u64
    }

    /// Bytes of the whole region.
    pub fn len_bytes(&self) -> usize {
        self.0.len_bytes
    }

    /// Its first byte, for an import into Vulkan or a registration with the kernel. Reading or writing through it is
    /// only sound where no buffer of the region is in somebody's hands.
    pub fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    /// Bytes of a region that [`Self::split`] cuts into `count` buffers of `buffer_bytes` each, none across the border of a huge page
    /// where that costs little memory.
    ///
    /// A drive's command over one stretch of physical memory is quicker than over two: on two virtual machines a read of 1.97 MB
    /// into one huge page came at 3.3 and 2.1 GB/s, across a border at 1.3.
    pub fn bytes_for(buffer_bytes: usize, count: usize) -> usize {
        match buffers_a_huge_page(buffer_bytes) {
            Some(a_page) => count.div_ceil(a_page).saturating_mul(HUGE_PAGE_BYTES),
            None => count.saturating_mul(buffer_bytes),
        }
    }

    /// How many buffers [`Self::bytes_for`] fits into so many bytes.
    pub fn buffers_in(buffer_bytes: usize, len_bytes: usize) -> usize {
        match buffers_a_huge_page(buffer_bytes) {
            Some(a_page) => len_bytes / HUGE_PAGE_BYTES * a_page,
            None => len_bytes / buffer_bytes,
        }
    }

    /// Bytes that one of many buffers takes there, the gaps shared among them.
    pub fn bytes_a_buffer(buffer_bytes: usize) -> usize {
        buffers_a_huge_page(buffer_bytes).map_or(buffer_bytes, |a_page| HUGE_PAGE_BYTES.div_ceil(a_page))
    }

    /// Cuts the region into `count` exclusive buffers of `buffer_bytes` each, from its start: one behind the other, or with gaps as
    /// [`Self::bytes_for`] says where the region has room for them.
    ///
    /// # Panics
    /// On a second call, for any clone: two cuts would give the same bytes to two owners. When `buffer_bytes` is not a
    /// positive multiple of the page size, or the buffers do not fit.
    pub fn split(&self, buffer_bytes: usize, count: usize) -> Vec<HostBuffer> {
        let page = page_bytes();
        assert!(
            buffer_bytes > 0 && buffer_bytes.is_multiple_of(page),
            "buffers of {buffer_bytes} B: not whole pages of {page} B"
        );
        let total = buffer_bytes.checked_mul(count);
        assert!(
            total.is_some_and(|total| total <= self.0.len_bytes),
            "{count} buffers of {buffer_bytes} B do not fit into {} B",
            self.0.len_bytes
        );
        let was_split = self.0.is_split.swap(true, Ordering::AcqRel);
        assert!(!was_split, "a region is cut into buffers once");
        let has_room = Self::bytes_for(buffer_bytes, count) <= self.0.len_bytes;
        let offset_bytes = |index: usize| match buffers_a_huge_page(buffer_bytes).filter(|_| has_room) {
            Some(a_page) => index / a_page * HUGE_PAGE_BYTES + index % a_page * buffer_bytes,
            None => index * buffer_bytes,
        };
        let cut = |index| HostBuffer {
            region: self.clone(),
            offset_bytes: offset_bytes(index),
            len_bytes: buffer_bytes,
        };
        (0..count).map(cut).collect()
    }
}

/// How many buffers share a huge page, where at most an eighth of it is left over.
fn buffers_a_huge_page(buffer_bytes: usize) -> Option<usize> {
    let count = HUGE_PAGE_BYTES.checked_div(buffer_bytes)?;
    (count * buffer_bytes >= HUGE_PAGE_BYTES / 8 * 7).then_some(count)
}

impl fmt::Debug for HostRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostRegion({:?}, {} B)", self.0.base, self.0.len_bytes)
    }
}

/// An exclusive piece of a [`HostRegion`], whole pages of it. Keeps the region alive.
pub struct HostBuffer {
    region: HostRegion,
    offset_bytes: usize,
    len_bytes: usize,
}

impl HostBuffer {
    /// The [`HostRegion::id`] of the region it was cut from.
    pub fn region_id(&self) -> u64 {
        self.region.id()
    }

    /// Where it begins in its region.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// How long it is.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Its first byte. For a caller that hands the address to the kernel while it owns the buffer.
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: `split` checked that offset + length lies within the region, so the sum stays inside one mapping.
        unsafe { self.region.0.base.add(self.offset_bytes) }
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY:
        // - The bytes are mapped and initialised (anonymous memory is zeroed; a lender promised readable memory),
        //   and stay so while `self`, which holds the region, is borrowed.
        // - No other buffer covers them (cut once), and this one is borrowed shared, so nobody writes them.
        // - `len_bytes <= isize::MAX`, checked when the region was made.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len_bytes) }
    }

    /// Its bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `self` is borrowed exclusively, so this is the only reference to these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len_bytes) }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({:#x} + {}, {} B)", self.region.id(), self.offset_bytes, self.len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_page_aligned_apart_and_outlive_the_region() {
        let page = page_bytes();
        let region = HostRegion::new(3 * page - 5).unwrap();
        assert_eq!(region.len_bytes(), 3 * page);
        let mut buffers = region.split(page, 3);
        drop(region);
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.start().addr().get() % page, 0);
            assert_eq!(buffer.offset_bytes(), index * page);
            assert!(buffer.as_slice().iter().all(|byte| *byte == 0));
            buffer.as_mut_slice().fill(u8::try_from(index + 1).unwrap());
        }
        let last = buffers.pop().unwrap();
        drop(buffers);
        assert!(last.as_slice().iter().all(|byte| *byte == 3));
    }

    #[test]
    fn buffers_lie_within_huge_pages_where_that_costs_little() {
        let page = page_bytes();
        for (buffer_bytes, count, wanted_bytes) in [
            (480 * page, 5, 5 * HUGE_PAGE_BYTES),
            (161 * page, 7, 3 * HUGE_PAGE_BYTES),
            (page, 3, HUGE_PAGE_BYTES),
            (300 * page, 5, 1500 * page),
            (HUGE_PAGE_BYTES + page, 2, 2 * HUGE_PAGE_BYTES + 2 * page),
        ] {
            let wanted = HostRegion::bytes_for(buffer_bytes, count);
            assert_eq!(wanted, wanted_bytes, "{count} buffers of {buffer_bytes} B");
            let region = HostRegion::new(wanted).unwrap();
            assert!(wanted < HUGE_PAGE_BYTES || region.base().addr().get().is_multiple_of(HUGE_PAGE_BYTES));
            let mut end = 0;
            for buffer in region.split(buffer_bytes, count) {
                let begin = buffer.offset_bytes();
                assert!(begin >= end, "buffers lie apart");
                end = begin + buffer.len_bytes();
                if buffers_a_huge_page(buffer_bytes).is_some() {
                    assert_eq!(begin / HUGE_PAGE_BYTES, (end - 1) / HUGE_PAGE_BYTES, "across a border");
                }
            }
            assert!(end <= region.len_bytes());
        }
        let tight = HostRegion::new(16 * 480 * page).unwrap().split(480 * page, 16);
        assert_eq!(tight[1].offset_bytes() % (480 * page), 0, "a region without room has no gaps");
    }

    #[test]
    #[should_panic(expected = "cut into buffers once")]
    fn a_region_is_cut_once_whichever_clone_asks() {
        let region = HostRegion::new(page_bytes()).unwrap();
        let clone = region.clone();
        drop(region.split(page_bytes(), 1));
        drop(clone.split(page_bytes(), 1));
    }

    #[test]
    #[should_panic(expected = "not whole pages")]
    fn buffers_are_whole_pages() {
        drop(HostRegion::new(page_bytes()).unwrap().split(512, 1));
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error_with_its_size() {
        let error = HostRegion::new(1 << 60).unwrap_err();
        assert!(matches!(error, RegionError::Map { wanted_bytes, .. } if wanted_bytes == 1 << 60), "{error}");
        assert!(matches!(HostRegion::new(0).unwrap_err(), RegionError::Length { .. }));
        assert!(matches!(HostRegion::new(usize::MAX).unwrap_err(), RegionError::Length { .. }));
    }

    #[test]
    fn lent_memory_is_kept_as_long_as_a_buffer_lives() {
        let lender = HostRegion::new(page_bytes()).unwrap();
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(lender.clone());
        let watch = Arc::downgrade(&keep);
        // SAFETY: the lender's mapping is readable and writable, lives in `keep`, and is cut by nobody else.
        let region = unsafe { HostRegion::from_mapped(lender.base(), lender.len_bytes(), keep) };
        let buffers = region.split(page_bytes(), 1);
        drop(region);
        assert!(watch.upgrade().is_some());
        drop(buffers);
        assert!(watch.upgrade().is_none());
    }
}
