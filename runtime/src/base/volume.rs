//! The file system under a path: its room, room taken ahead of need, and what it keeps of files in memory.
//!
//! - Owns: nothing. In: a path or an open file. Out: what the file system says.
//! - Invariants: a safe face over four calls, none of which changes a byte of a file.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that an unprivileged writer can still take on the file system which holds `path`.
///
/// It is what the file system says at this moment; others may take it meanwhile, and quotas are not in it.
///
/// # Errors
/// `path` does not exist, cannot be reached or holds a NUL, or its file system does not answer.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut volume = MaybeUninit::<libc::statvfs>::zeroed();
    loop {
        // SAFETY:
        // - `path` ends with NUL and lives until after the call: `CString` owns it.
        // - `volume` is writable memory of the size of a `statvfs`, which the call fills and does not keep.
        let status = unsafe { libc::statvfs(path.as_ptr(), volume.as_mut_ptr()) };
        if status == 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: it was zeroed, which is a valid `statvfs` (integers only), and then filled by a call that succeeded.
    let volume = unsafe { volume.assume_init() };
    Ok(volume.f_bavail.saturating_mul(volume.f_frsize))
}

/// Gives `file` its final length and takes the room for it, so that a full drive is found before the work and not at
/// its end. Where the file system cannot take room ahead, the file only gets its length.
///
/// # Errors
/// The drive has not so much room, or files on it may not be so long.
pub fn reserve(file: &File, len_bytes: u64) -> io::Result<()> {
    let Ok(len) = i64::try_from(len_bytes) else { return Err(io::ErrorKind::FileTooLarge.into()) };
    if len == 0 {
        // The call below refuses a length of 0.
        return file.set_len(0);
    }
    loop {
        // SAFETY: the descriptor is open, as `file` is borrowed, and the call touches no memory of ours.
        let status = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) };
        if status == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return file.set_len(len_bytes),
            _ => return Err(error),
        }
    }
}

/// How far [`write_out`] goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOut {
    /// The writes to the drive are begun.
    Begin,
    /// They have ended: the pages are clean. The drive may still have them in a cache of its own.
    Finish,
}

/// Writes what the page cache has of these bytes of `file` to the drive. Where there is no such call, nothing is done.
///
/// # Errors
/// A write failed, this one or one of any page of the file before. It is said once: a sync of the same descriptor after it
/// would succeed, so the bytes count as lost.
pub fn write_out(file: &File, offset_bytes: u64, len_bytes: u64, how_far: WriteOut) -> io::Result<()> {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset_bytes), i64::try_from(len_bytes)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = match how_far {
        WriteOut::Begin => libc::SYNC_FILE_RANGE_WRITE,
        WriteOut::Finish => {
            libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER
        }
    };
    loop {
        // SAFETY: the descriptor is open, as `file` is borrowed, and the call touches no memory of ours.
        let status = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) };
        if status == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ESPIPE | libc::EINVAL) => return Ok(()),
            _ => return Err(error),
        }
    }
}

/// Tells the page cache that nobody here will want these bytes of `file` again. Pages that are not on the drive yet, that
/// another process has mapped, or that these bytes only begin or end in, stay. It is advice: that it is not taken is no
/// error.
pub fn forget(file: &File, offset_bytes: u64, len_bytes: u64) {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset_bytes), i64::try_from(len_bytes)) else { return };
    if len > 0 {
        // SAFETY: the descriptor is open, as `file` is borrowed, and the call touches no memory of ours.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, libc::POSIX_FADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_out_and_forgotten_is_still_there() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 20_000], 0).unwrap();
        write_out(&file, 0, 20_000, WriteOut::Begin).unwrap();
        write_out(&file, 0, 20_000, WriteOut::Finish).unwrap();
        forget(&file, 0, 20_000);
        forget(&file, 0, 0);
        let mut bytes = [0; 20_000];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [7; 20_000], "the bytes");
        assert!(write_out(&file, u64::MAX, 1, WriteOut::Begin).is_err(), "no file reaches there");
    }

    #[test]
    fn a_reserved_file_has_its_length_and_an_impossible_one_is_refused() {
        let file = tempfile::tempfile().unwrap();
        for len_bytes in [5000, 0] {
            file.set_len(0).unwrap();
            reserve(&file, len_bytes).unwrap();
            assert_eq!(file.metadata().unwrap().len(), len_bytes, "the length that was asked for");
        }
        assert!(reserve(&file, u64::MAX).is_err(), "longer than any file");
        assert!(reserve(&file, 1 << 60).is_err(), "longer than any drive");
    }

    #[test]
    fn a_folder_has_room_and_a_missing_one_is_an_error() {
        assert!(free_bytes(&std::env::temp_dir()).unwrap() > 0, "the temporary folder is full");
        assert!(free_bytes(Path::new("/does/not/exist")).is_err(), "a missing path has no file system");
        assert!(free_bytes(Path::new("a\0b")).is_err(), "a NUL cannot be asked about");
    }
}
