//! Sets a ring up, tries it, and registers files.
//!
//! In: depth and files. Out: an [`IoUring`] that has made one real read, and refusals in words.
//!
//! A ring may be refused at three calls (setup, enter, register), by a sysctl or by a container's filter, and as EPERM,
//! ENOSYS or EACCES alike. So nothing is believed before a read through the ring has come back, and the text of a
//! refusal names both causes.

use std::fs;
use std::io;
use std::os::fd::RawFd;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode};

use super::DiskError;
use super::source::SourceFile;
use crate::base::region::{HostRegion, page_bytes};
use crate::base::units::display_bytes;

/// Seconds of one wait inside the kernel; what waits longer comes back to look at the clock.
const WAIT_SLICE_S: u64 = 1;

/// A ring for `depth` reads that has made one read of `file`.
///
/// # Errors
/// [`DiskError::RingUnavailable`] with the call that was refused; [`DiskError::Memory`].
pub(super) fn set_up(depth: u32, file: &SourceFile) -> Result<IoUring, DiskError> {
    // A child of fork must not submit to, or reap from, its parent's ring. The kernel makes the completion queue
    // twice as long as the submission queue, and rounds both up to powers of two: never shorter than the depth.
    let mut ring = IoUring::builder()
        .dontfork()
        .build(depth.next_power_of_two())
        .map_err(|source| unavailable("io_uring_setup", source))?;
    if ring.params().cq_entries() < depth || ring.params().sq_entries() < depth {
        let source = io::Error::other(format!("{} entries for {depth} reads", ring.params().cq_entries()));
        return Err(unavailable("io_uring_setup", source));
    }
    let mut probe = Probe::new();
    // Where the question itself is refused, the trial below is the answer.
    if ring.submitter().register_probe(&mut probe).is_ok() && !probe.is_supported(opcode::Read::CODE) {
        return Err(unavailable("IORING_OP_READ", io::Error::from_raw_os_error(libc::EINVAL)));
    }
    trial(&mut ring, file)?;
    Ok(ring)
}

/// Reads one byte of the file through the ring.
fn trial(ring: &mut IoUring, file: &SourceFile) -> Result<(), DiskError> {
    let memory = HostRegion::new(page_bytes())?;
    let [_, buffered] = file.descriptors();
    let entry = opcode::Read::new(Fd(buffered), memory.base().as_ptr(), 1).build();
    // SAFETY:
    // - The memory is mapped until `memory` drops, which is after the completion, or never (leaked below).
    // - Nobody else touches it: the region is never cut into buffers.
    // - The descriptor is open while `file` is borrowed.
    unsafe { ring.submission().push(&entry) }.expect("invariant: a new ring's queue is empty");
    let answer = loop {
        if let Some(completion) = ring.completion().next() {
            break completion.result();
        }
        match enter(ring, 1) {
            Ok(()) => {}
            Err(error) => {
                if ring.submission().is_empty() {
                    // The kernel has the read and cannot be asked for its end: the page is its for good.
                    std::mem::forget(memory);
                }
                return Err(unavailable("io_uring_enter", error));
            }
        }
    };
    if answer < 0 {
        return Err(unavailable("IORING_OP_READ", io::Error::from_raw_os_error(-answer)));
    }
    Ok(())
}

/// Submits what stands in the queue and waits for `want` completions, at most [`WAIT_SLICE_S`] where the kernel can
/// count (5.11 on). A signal, the end of the slice and a kernel short of memory are no errors: the caller looks again.
pub(super) fn enter(ring: &IoUring, want: usize) -> io::Result<()> {
    let submitter = ring.submitter();
    let result = if want > 0 && ring.params().is_feature_ext_arg() {
        let slice = Timespec::new().sec(WAIT_SLICE_S);
        submitter.submit_with_args(want, &SubmitArgs::new().timespec(&slice))
    } else {
        submitter.submit_and_wait(want)
    };
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(error),
        },
    }
}

/// Registers each file's two descriptors: file `i` has the indexes `2 i` and `2 i + 1`.
///
/// # Errors
/// The kernel's, with the likely cause.
pub(super) fn register_files<'a>(
    ring: &IoUring,
    files: impl Iterator<Item = &'a SourceFile>,
) -> Result<(), DiskError> {
    let descriptors: Vec<RawFd> = files.flat_map(SourceFile::descriptors).collect();
    ring.submitter()
        .register_files(&descriptors)
        .map_err(|source| unavailable("io_uring_register (files)", source))
}

pub(super) fn unavailable(call: &'static str, source: io::Error) -> DiskError {
    let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    let hint = hint(call, source.raw_os_error(), sysctl.as_deref().map(str::trim), locked_memory_limit());
    DiskError::RingUnavailable { call, source, hint }
}

/// The soft RLIMIT_MEMLOCK in bytes; `None` when it is unlimited.
fn locked_memory_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure that it is given, which is ours alone.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (rc == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The likely causes of a refusal. Pure.
fn hint(call: &str, errno: Option<i32>, sysctl: Option<&str>, memlock_bytes: Option<u64>) -> String {
    match errno {
        Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => {
            let sysctl = match sysctl {
                Some("0") => "is 0, so it is not the cause".to_owned(),
                Some(value) => format!("is {value}: an administrator can set it to 0"),
                None => "is not there: a kernel before 6.6, or one without io_uring".to_owned(),
            };
            format!(
                "either the sysctl kernel.io_uring_disabled (it {sysctl}), or a seccomp filter, as containers \
                 have by default (allow io_uring_setup, io_uring_enter and io_uring_register in its profile)"
            )
        }
        Some(libc::ENOMEM) => {
            let limit = memlock_bytes.map_or_else(|| "unlimited".to_owned(), display_bytes);
            format!(
                "locked memory is limited to {limit} for this user (RLIMIT_MEMLOCK): raise it with ulimit -l, \
                 LimitMEMLOCK= of a service, or /etc/security/limits.conf"
            )
        }
        Some(libc::EINVAL) if call == "IORING_OP_READ" => "the kernel is older than 5.6".to_owned(),
        Some(libc::EFAULT | libc::EOPNOTSUPP) => {
            "the kernel cannot pin memory that a driver mapped".to_owned()
        }
        Some(libc::EMFILE | libc::ENFILE) => "no file descriptor is left: raise ulimit -n".to_owned(),
        _ => "no known cause".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_both_causes_whatever_its_number() {
        for errno in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
            for sysctl in [None, Some("0"), Some("1"), Some("2")] {
                let text = hint("io_uring_setup", Some(errno), sysctl, None);
                assert!(text.contains("kernel.io_uring_disabled") && text.contains("seccomp"), "{text}");
            }
        }
        assert!(hint("io_uring_setup", Some(libc::EPERM), Some("2"), None).contains("is 2"));
    }

    #[test]
    fn locked_memory_is_named_with_its_limit() {
        let text = hint("io_uring_register (buffers)", Some(libc::ENOMEM), None, Some(8 << 20));
        assert!(text.contains("8.00 MiB") && text.contains("ulimit -l"), "{text}");
    }
}
