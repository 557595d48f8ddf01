//! The file system under a path.
//!
//! - Owns: nothing. In: a path. Out: what the file system says about its room.
//! - Invariants: a safe face over one call.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_room_and_a_missing_one_is_an_error() {
        assert!(free_bytes(&std::env::temp_dir()).unwrap() > 0, "the temporary folder is full");
        assert!(free_bytes(Path::new("/does/not/exist")).is_err(), "a missing path has no file system");
        assert!(free_bytes(Path::new("a\0b")).is_err(), "a NUL cannot be asked about");
    }
}
