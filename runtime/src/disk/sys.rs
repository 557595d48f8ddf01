//! The two system calls about files that the standard library lacks: the alignment of direct I/O, and dropping
//! cached pages.
//!
//! In: an open file. Out: numbers, or the kernel's error. Holds nothing.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::DiskError;

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

/// A new eventfd, at 0; reads and writes of it do not wait.
///
/// # Errors
/// [`DiskError::WakeRefused`] when the process has no descriptor left.
pub fn new_eventfd() -> Result<OwnedFd, DiskError> {
    // SAFETY: `eventfd` takes a number and flags, and touches no memory of ours.
    let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(DiskError::WakeRefused { source: io::Error::last_os_error() });
    }
    // SAFETY: a descriptor that the kernel just gave, and that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Adds 1 to an eventfd: whoever waits for it goes on.
pub(super) fn wake(eventfd: BorrowedFd<'_>) {
    let one = 1_u64;
    // SAFETY: the eight bytes of `one`. An eventfd that is full wakes all the same, so the answer does not matter.
    unsafe { libc::write(eventfd.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
}

/// Sets an eventfd to 0.
pub fn drain_eventfd(eventfd: BorrowedFd<'_>) {
    let mut count = 0_u64;
    // SAFETY: the eight bytes of `count`, which an eventfd fills or leaves alone. That it was 0 already does not matter.
    unsafe { libc::read(eventfd.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
}

/// Waits until an eventfd is not 0, at most `at_most`; a signal may end it earlier.
pub fn wait_eventfd(eventfd: BorrowedFd<'_>, at_most: Duration) {
    let mut entry = libc::pollfd { fd: eventfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // Rounded up, so that a short wait is none of zero length, over and over.
    let wait_ms = i32::try_from(at_most.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: one entry of ours.
    unsafe { libc::poll(&raw mut entry, 1, wait_ms) };
}
