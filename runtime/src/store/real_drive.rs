//! The machine's own file systems.
//!
//! - Owns: open files. In: paths, bytes. Out: the kernel's answers.
//! - Invariants: whole blocks go past the page cache where the file system lets them, so that a store of 26 GB pushes
//!   nothing out of it; the rest, at the edges of pieces, goes through it. Where the file system does not let them, all goes
//!   through it and is forgotten behind the writer.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::base::volume;
use crate::store::drive::{Drive, DriveFile, Entry, LockAnswer};
use crate::store::record::{BLOCK_BYTES, RECORD_ALIGN_BYTES};
use crate::store::write_behind::WriteBehind;

/// How often, and how long apart, a folder is tried that should be empty.
const EMPTY_TRIES: u32 = 50;
const EMPTY_WAIT: Duration = Duration::from_millis(20);

/// Where `flint-rt` writes.
#[derive(Debug, Default, Clone, Copy)]
pub struct RealDrive;

impl Drive for RealDrive {
    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        volume::free_bytes(folder)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<Entry>> {
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_file() => Ok(Some(Entry::File(metadata.len()))),
            Ok(metadata) if metadata.is_dir() => Ok(Some(Entry::Folder)),
            Ok(_) => Ok(Some(Entry::Other)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_at(&self, path: &Path, offset_bytes: u64, target: &mut [u8]) -> io::Result<()> {
        let file = File::open(path)?;
        file.read_exact_at(target, offset_bytes)?;
        volume::forget(&file, offset_bytes, target.len() as u64);
        Ok(())
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn create_file(&self, path: &Path, len_bytes: u64) -> io::Result<Box<dyn DriveFile>> {
        let buffered = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        volume::reserve(&buffered, len_bytes)?;
        Ok(Box::new(RealFile::of(buffered, path)))
    }

    fn open_file(&self, path: &Path) -> io::Result<Box<dyn DriveFile>> {
        Ok(Box::new(RealFile::of(OpenOptions::new().write(true).open(path)?, path)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_empty(&self, path: &Path) {
        for _ in 0..EMPTY_TRIES {
            match fs::remove_dir(path) {
                Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => thread::sleep(EMPTY_WAIT),
                // Gone, or the next ingest of this name says why not.
                _ => return,
            }
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = match self.entry(path)? {
            None => return Ok(()),
            Some(Entry::Folder) => fs::remove_dir_all(path),
            Some(_) => fs::remove_file(path),
        };
        removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<LockAnswer> {
        loop {
            let mut file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Ok(LockAnswer::Taken(fs::read_to_string(path).unwrap_or_default()));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Who had it before may have removed the file together with the folder while we waited for nothing.
            let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
            let ours = identity(&file.metadata()?);
            if fs::metadata(path).is_ok_and(|found| identity(&found) == ours) {
                // Only for the message of who finds it taken: a full drive is no reason to stop here.
                let _ = file.set_len(0).and_then(|()| write!(file, "process {}", std::process::id()));
                return Ok(LockAnswer::Held(Box::new(file)));
            }
        }
    }
}

#[derive(Debug)]
struct RealFile {
    buffered: File,
    direct: Option<File>,
    /// The file system refused a direct write.
    is_refused: AtomicBool,
    /// What went through the page cache for want of direct I/O.
    behind: WriteBehind,
}

impl RealFile {
    fn of(buffered: File, path: &Path) -> Self {
        // The folder is ours, so the path still leads to the same file.
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).ok();
        Self { buffered, direct, is_refused: AtomicBool::new(false), behind: WriteBehind::default() }
    }

    fn is_direct(&self) -> bool {
        self.direct.is_some() && !self.is_refused.load(Ordering::Relaxed)
    }

    /// Writes whole blocks past the page cache; says how many bytes went, 0 where that cannot be done here.
    fn write_direct(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<usize> {
        let Some(direct) = self.direct.as_ref().filter(|_| !self.is_refused.load(Ordering::Relaxed)) else {
            return Ok(0);
        };
        let mut done = 0;
        while done < bytes.len() {
            match direct.write_at(&bytes[done..], offset_bytes + done as u64) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The file system, or its drive, wants other alignments; the page cache takes all.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                    self.is_refused.store(true, Ordering::Relaxed);
                    break;
                }
                Err(error) => return Err(error),
            }
            if !done.is_multiple_of(BLOCK_BYTES) {
                break;
            }
        }
        Ok(done)
    }
}

impl DriveFile for RealFile {
    fn write_at(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        let into_block = usize::try_from(offset_bytes % RECORD_ALIGN_BYTES).expect("invariant: below 4096");
        let head = if into_block == 0 { 0 } else { (BLOCK_BYTES - into_block).min(bytes.len()) };
        let is_aligned = bytes.as_ptr().addr() % BLOCK_BYTES == into_block;
        let body = if is_aligned { (bytes.len() - head) / BLOCK_BYTES * BLOCK_BYTES } else { 0 };
        self.buffered.write_all_at(&bytes[..head], offset_bytes)?;
        let mut at = head;
        if body > 0 {
            at += self.write_direct(&bytes[head..head + body], offset_bytes + head as u64)?;
        }
        self.buffered.write_all_at(&bytes[at..], offset_bytes + at as u64)?;
        if !self.is_direct() {
            self.behind.written(&self.buffered, offset_bytes..offset_bytes + bytes.len() as u64)?;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.buffered.sync_all()?;
        self.behind.synced(&self.buffered);
        Ok(())
    }
}
