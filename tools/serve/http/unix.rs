//! A socket file to listen on: for this user alone, taken over where one was left behind, and removed at the end.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// Only its owner may connect.
const MODE: u32 = 0o600;

/// A socket file, which is removed with this.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode, so that no other's file is removed.
    id: (u64, u64),
}

/// Listens at `path`. A socket that nobody listens on is replaced.
///
/// # Errors
/// When something else is there, or somebody listens, or the system refuses.
pub(crate) fn bind(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    remove_stale(path)?;
    let listener = UnixListener::bind(path)?;
    let made =
        fs::set_permissions(path, Permissions::from_mode(MODE)).and_then(|()| fs::symlink_metadata(path));
    let metadata = made.inspect_err(|_| {
        let _ = fs::remove_file(path);
    })?;
    Ok((listener, SocketFile { path: path.to_owned(), id: (metadata.dev(), metadata.ino()) }))
}

fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type().is_socket(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !is_socket {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something is there that is no socket"));
    }
    match UnixStream::connect(path) {
        // Its program has ended without removing it.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.id) {
            // What is left behind is replaced by the next one.
            let _ = fs::remove_file(&self.path);
        }
    }
}
