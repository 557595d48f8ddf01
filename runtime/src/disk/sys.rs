//! The two system calls about files that the standard library lacks: the alignment of direct I/O, and dropping
//! cached pages.
//!
//! In: an open file. Out: numbers, or the kernel's error. Holds nothing.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// What the file system says about direct I/O on one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReportedAlign {
    /// Alignment that the memory needs; 0: no direct I/O.
    pub(super) memory_bytes: u32,
    /// Alignment that offset and length need; 0: no direct I/O.
    pub(super) offset_bytes: u32,
}

/// Asks statx for the alignment of direct I/O (Linux 6.1). `None`: kernel or file system does not say.
pub(super) fn direct_align(file: &File) -> io::Result<Option<ReportedAlign>> {
    let mut answer = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY:
    // - The descriptor is open: `file` is borrowed. The path is an empty C string, which AT_EMPTY_PATH allows.
    // - `answer` has the size of the structure that the call fills, and is ours alone.
    let rc = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            answer.as_mut_ptr(),
        )
    };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the structure is plain numbers, for which all-zero is a value, and the call filled it.
    let answer = unsafe { answer.assume_init() };
    // A kernel that knows the question sets the bit in the mask of what it answered.
    let is_answered = answer.stx_mask & libc::STATX_DIOALIGN != 0;
    Ok(is_answered.then_some(ReportedAlign {
        memory_bytes: answer.stx_dio_mem_align,
        offset_bytes: answer.stx_dio_offset_align,
    }))
}

/// Asks the kernel to forget cached pages of a span. Advice: pages that others hold stay, and an error means nothing.
pub(super) fn drop_cached(file: &File, offset_bytes: u64, len_bytes: u64) {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset_bytes), i64::try_from(len_bytes)) else {
        return;
    };
    // SAFETY: the descriptor is open, as `file` is borrowed, and the call touches no memory of ours.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, libc::POSIX_FADV_DONTNEED) };
}
