//! What only a measurement asks of a file: holes, attributes, cached pages, a mapping; and the process's own time.
//!
//! - Owns: a mapping as long as its [`MappedFile`] lives. In: an open [`SourceFile`]. Out: numbers and copies of bytes.
//! - Invariants: nothing is written. A mapping covers the file as it was at open; the caller keeps to files that nobody cuts
//!   meanwhile, since the kernel ends a process that touches what was cut off. Models are immutable.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::time::Duration;

use crate::base::region::page_bytes;

/// Processor time of all threads of this process so far, the kernel's part and its io_uring workers included.
pub fn process_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure that it is given, which is ours alone.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert!(rc == 0, "every Linux has the clock of a process: {}", io::Error::last_os_error());
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    Duration::from_secs(part(time.tv_sec)) + Duration::from_nanos(part(time.tv_nsec))
}

/// What the file system says of a file; `None` where it does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileAttributes {
    /// Whether its bytes lie compressed.
    pub is_compressed: Option<bool>,
    /// Whether the file system encrypts it.
    pub is_encrypted: Option<bool>,
}

/// Asks statx for the attributes of a file (Linux 4.11).
pub(super) fn attributes(file: &File) -> FileAttributes {
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY:
    // - The descriptor is open: `file` is borrowed. The path is an empty C string, which AT_EMPTY_PATH allows.
    // - `answer` has the size of the structure that the call fills, and is ours alone.
    let rc = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_BASIC_STATS,
            answer.as_mut_ptr(),
        )
    };
    if rc != 0 {
        return FileAttributes::default();
    }
    // SAFETY: the structure is plain numbers, for which all-zero is a value, and the call filled it.
    let answer = unsafe { answer.assume_init() };
    let has = |bit: i32| {
        let bit = u64::try_from(bit).unwrap_or(0);
        (answer.stx_attributes_mask & bit != 0).then_some(answer.stx_attributes & bit != 0)
    };
    FileAttributes {
        is_compressed: has(libc::STATX_ATTR_COMPRESSED),
        is_encrypted: has(libc::STATX_ATTR_ENCRYPTED),
    }
}

/// Where the file's first hole begins; the file's length where it has none. `None`: the file system does not say.
pub(super) fn first_hole(file: &File) -> Option<u64> {
    // SAFETY: the descriptor is open, as `file` is borrowed, and the call touches no memory of ours. All reads of the file name
    // their offset, so that the position does not matter.
    let at = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_HOLE) };
    u64::try_from(at).ok()
}

/// A file mapped for reading.
#[derive(Debug)]
pub struct MappedFile {
    base: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY:
// - The mapping is of the process, read-only, valid from every thread until the drop, which the owner does once.
unsafe impl Send for MappedFile {}

// SAFETY: as for `Send`; shared methods only read bytes and advise the kernel.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    pub(super) fn new(file: &File, len_bytes: u64) -> io::Result<Self> {
        let len_bytes = usize::try_from(len_bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        if len_bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY:
        // - A null address lets the kernel choose, so no mapping that exists is touched.
        // - The descriptor is open: `file` is borrowed; the mapping does not need it afterwards.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len_bytes,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(address.cast::<u8>()).expect("invariant: mmap never gives the null page");
        Ok(Self { base, len_bytes })
    }

    /// Copies the bytes from `offset_bytes` on into `target`, faulting in what is not there.
    ///
    /// # Panics
    /// When the span leaves the file as it was at open.
    pub fn copy_to(&self, offset_bytes: u64, target: &mut [u8]) {
        let at = usize::try_from(offset_bytes).unwrap_or(usize::MAX);
        let end = at.checked_add(target.len());
        assert!(
            end.is_some_and(|end| end <= self.len_bytes),
            "a span of {} B at byte {offset_bytes} in a mapping of {} B",
            target.len(),
            self.len_bytes
        );
        // SAFETY: `at` lies inside the mapping, by the assertion.
        let source = unsafe { self.base.add(at) };
        // SAFETY:
        // - Source: `target.len()` mapped bytes from there on, by the assertion. Other processes may write the file, which
        //   changes which bytes are copied, nothing else: no reference to them is made.
        // - Target: borrowed exclusively, and no part of a read-only mapping.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_mut_ptr(), target.len()) };
    }

    /// Gives the mapped pages back, so that the page cache may drop them.
    pub fn release_pages(&self) {
        // SAFETY: the range is this mapping; of a shared mapping of a file the advice drops no byte, only the page tables.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len_bytes, libc::MADV_DONTNEED) };
    }

    /// Bytes of the file that the page cache holds. The kernel tells this only to who owns the file or may write it, and says
    /// "all" to others.
    ///
    /// # Errors
    /// The kernel's.
    pub fn resident_bytes(&self) -> io::Result<u64> {
        let page = page_bytes();
        /// Pages asked about at once: 1 GiB of them at 4 KiB.
        const PAGES: usize = 262_144;
        let mut flags = vec![0_u8; PAGES.min(self.len_bytes.div_ceil(page))];
        let mut resident = 0;
        for at in (0..self.len_bytes).step_by(PAGES * page) {
            let len = (self.len_bytes - at).min(PAGES * page);
            // SAFETY: `at` lies inside the mapping.
            let start = unsafe { self.base.add(at) };
            // SAFETY:
            // - `start` is at a page of this mapping (a multiple of the page size from its start), and `len` stays in it.
            // - `flags` has a byte for each page of `len`.
            let rc = unsafe { libc::mincore(start.as_ptr().cast(), len, flags.as_mut_ptr()) };
            if rc != 0 {
                return Err(io::Error::last_os_error());
            }
            resident += flags[..len.div_ceil(page)].iter().filter(|&&flag| flag & 1 != 0).count();
        }
        Ok((resident * page).min(self.len_bytes) as u64)
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: base and length are what `mmap` gave; nobody else unmaps it, and no reference into it was ever made.
        let rc = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes) };
        assert!(rc == 0, "munmap of our own mapping: {}", io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::disk::SourceFile;

    #[test]
    fn a_mapping_gives_the_files_bytes_and_counts_its_pages() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
        file.write_all(&bytes).unwrap();
        let map = SourceFile::open_buffered(file.path()).unwrap().map().unwrap();
        let mut target = vec![0; 5000];
        map.copy_to(95_000, &mut target);
        assert_eq!(target, bytes[95_000..]);
        assert_eq!(map.resident_bytes().unwrap(), 100_000, "just written, so cached");
        map.release_pages();
        map.copy_to(1, &mut target);
        assert_eq!(target, bytes[1..5001]);
    }

    #[test]
    #[should_panic(expected = "in a mapping of")]
    fn a_span_beyond_the_mapping_is_refused() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[1; 100]).unwrap();
        SourceFile::open_buffered(file.path()).unwrap().map().unwrap().copy_to(90, &mut [0; 11]);
    }

    #[test]
    fn a_hole_is_found_where_it_begins() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&[1; 65_536], 0).unwrap();
        let whole = SourceFile::open_buffered(file.path()).unwrap();
        assert!(whole.first_hole().is_none_or(|at| at == 65_536), "{:?}", whole.first_hole());
        file.as_file().set_len(1 << 20).unwrap();
        let sparse = SourceFile::open_buffered(file.path()).unwrap();
        assert!(sparse.first_hole().is_none_or(|at| at == 65_536), "{:?}", sparse.first_hole());
        assert_ne!(sparse.attributes().is_compressed, Some(true), "nobody compresses a temporary file");
    }

    #[test]
    fn the_process_clock_counts_work() {
        let before = process_cpu();
        let mut sum = 0_u64;
        while process_cpu() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(process_cpu() > before, "{sum}");
    }
}
