//! The SHA-256 of a whole file.
//!
//! One thread reads, one sums: a SHA-256 is made in order, so a core's rate (1 to 2 GB/s with the SHA instructions) is its
//! limit where the drive is faster.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use sha2::{Digest, Sha256};

use crate::base::region::HostRegion;
use crate::store::digest::Sha256Digest;
use crate::store::error::{StoreError, io_error};
use crate::store::pin::FileStamp;
use crate::store::threads::start_thread;
use crate::store::verify::VerifyProgress;
use crate::store::verify::input::Input;

/// Bytes of a read: large enough for any drive's full rate.
const CHUNK_BYTES: usize = 8 << 20;

/// Buffers between the two threads: one is read, one summed, one waits.
const BUFFERS: usize = 3;

/// Reads the file at `path` and gives its SHA-256, and the state of the file that it belongs to.
///
/// # Errors
/// [`StoreError::Io`], [`StoreError::SourceChanged`] when it was written to meanwhile, [`StoreError::Stopped`] when
/// `progress` breaks off.
pub fn sha256_of_file(
    path: &Path,
    progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
) -> Result<(Sha256Digest, FileStamp), StoreError> {
    let input = Input::open(path).map_err(io_error("open", path))?;
    let before = FileStamp::of(path, input.file())?;
    let total_bytes = input.len_bytes();
    let region = HostRegion::new(CHUNK_BYTES * BUFFERS)?;
    let mut sha256 = Sha256::new();
    let mut done_bytes = 0;
    let summed = thread::scope(|scope| {
        let (give, free) = mpsc::channel();
        let (send, full) = mpsc::sync_channel(BUFFERS);
        for buffer in region.split(CHUNK_BYTES, BUFFERS) {
            let _ = give.send(buffer);
        }
        let input = &input;
        start_thread(scope, move || {
            let mut at = 0;
            // When the other side is gone, nobody wants more.
            while let Some(mut buffer) = free.recv().ok().filter(|_| at < total_bytes) {
                let len = usize::try_from(total_bytes - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
                let read = input.read(at, len, &mut buffer).map(|_| ());
                let read = read.map(|()| (buffer, len));
                let is_end = read.is_err();
                if send.send(read).is_err() || is_end {
                    break;
                }
                at += len as u64;
            }
        })?;
        for read in full {
            let (buffer, len) = read.map_err(io_error("read", path))?;
            sha256.update(&buffer.as_slice()[..len]);
            done_bytes += len as u64;
            let _ = give.send(buffer);
            if progress(VerifyProgress { done_bytes, total_bytes, damaged: 0 }).is_break() {
                return Err(StoreError::Stopped);
            }
        }
        Ok(())
    });
    summed?;
    let after = FileStamp::of(path, input.file())?;
    if before != after || done_bytes != total_bytes {
        return Err(StoreError::SourceChanged { path: path.to_owned() });
    }
    Ok((Sha256Digest(sha256.finalize().into()), after))
}
