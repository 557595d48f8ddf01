//! A layout to a file, as fast as the drive takes it.
//!
//! Owns: the file while it is written, under another name, locked; it is removed unless it was finished.
//! In: a [`Layout`] and a path. Out: the file, on the drive for good.
//!
//! Each thread takes the next piece of the file, makes it in its own page-aligned buffer and writes it, past the page cache
//! where the file system lets it: making and writing overlap because there are more threads than processors, and nothing is
//! queued. Memory is one buffer a thread.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use flint_rt::base::region::HostRegion;
use flint_rt::base::units::align_up;
use flint_rt::base::volume::{free_bytes, reserve};

use super::error::SynthError;
use super::layout::Layout;
use crate::interrupt::Working;

/// What a thread makes and writes at a time: drives reach their full rate from about 1 MiB, and a Ctrl-C waits for one.
const PIECE_BYTES: u64 = 8 << 20;
/// Files from this length on are written past the page cache; smaller ones are likely to be read at once.
const DIRECT_BYTES_MIN: u64 = 64 << 20;
/// What offsets and lengths of direct writes are multiples of: enough for every drive and file system known.
const DIRECT_ALIGN_BYTES: u64 = 4096;
/// Kept free for the file system's own tables.
const RESERVE_BYTES: u64 = 16 << 20;
/// How often progress is told while no piece ends.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// How to write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    /// Threads; each holds one buffer.
    pub(super) threads: usize,
    /// Whether a file that is there may be replaced.
    pub(super) replaces: bool,
    /// Whether all but the header is left a hole.
    pub(super) header_only: bool,
}

/// What was done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    /// Bytes written.
    pub(super) bytes: u64,
    /// Whether the page cache was passed by.
    pub(super) is_direct: bool,
}

/// Writes `layout` to `target`. `progress` is told bytes done and in all, and may stop it.
pub(super) fn write(
    layout: &Layout,
    target: &Path,
    options: Options,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Written, SynthError> {
    check_target(target, options)?;
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let total = if options.header_only { layout.header_bytes() } else { layout.len_bytes() };
    let partial = Partial::create(target)?;
    let free_bytes = free_bytes(folder).map_err(SynthError::io("asking for free space", folder))?;
    if total + RESERVE_BYTES > free_bytes {
        let folder = folder.to_owned();
        return Err(SynthError::NoSpace { folder, needed_bytes: total + RESERVE_BYTES, free_bytes });
    }
    let full = |source| SynthError::write(&partial.path, 0, layout.len_bytes(), source);
    // First, so that a drive that fills up is found now, and threads write within the file, which file systems do in
    // parallel.
    match options.header_only {
        true => partial.file.set_len(layout.len_bytes()).map_err(full)?,
        false => reserve(&partial.file, layout.len_bytes()).map_err(full)?,
    }
    let direct = if total < DIRECT_BYTES_MIN { None } else { partial.open_direct() };
    let output = Output { partial: &partial, is_direct: AtomicBool::new(direct.is_some()), direct };
    write_pieces(layout, &output, total, options.threads, progress)?;

    let is_direct = output.is_direct.load(Ordering::Relaxed);
    partial.file.set_len(layout.len_bytes()).map_err(full)?;
    partial.file.sync_all().map_err(SynthError::io("syncing", &partial.path))?;
    if progress(total, total).is_break() {
        return Err(SynthError::Stopped);
    }
    check_target(target, options)?;
    partial.publish(target)?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(SynthError::io("syncing", folder))?;
    Ok(Written { bytes: total, is_direct })
}

fn check_target(target: &Path, options: Options) -> Result<(), SynthError> {
    match fs::symlink_metadata(target) {
        Ok(found) if !found.is_file() => Err(SynthError::NoFile { path: target.to_owned() }),
        Ok(_) if !options.replaces => Err(SynthError::Exists { path: target.to_owned() }),
        _ => Ok(()),
    }
}

/// The file under its working name.
struct Partial {
    path: PathBuf,
    file: File,
    is_published: bool,
    /// Removes it also where a signal ends the program before a piece does.
    _working: Working,
}

impl Partial {
    /// Makes it, empty, or takes over what a killed run has left.
    fn create(target: &Path) -> Result<Self, SynthError> {
        let mut path = target.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(SynthError::io("making it", &path))?;
        let is_ours = || -> io::Result<bool> {
            if file.try_lock().is_err() {
                return Ok(false);
            }
            // Whoever held the lock may have published or removed it meanwhile.
            let (locked, named) = (file.metadata()?, fs::symlink_metadata(&path)?);
            Ok((locked.dev(), locked.ino()) == (named.dev(), named.ino()))
        };
        if !is_ours().unwrap_or(false) {
            return Err(SynthError::Busy { path });
        }
        let working = Working::begin(path.clone());
        let partial = Self { path, file, is_published: false, _working: working };
        partial.file.set_len(0).map_err(SynthError::io("emptying it", &partial.path))?;
        Ok(partial)
    }

    /// A second handle that passes the page cache by, where the file system has that.
    fn open_direct(&self) -> Option<File> {
        OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&self.path).ok()
    }

    fn publish(mut self, target: &Path) -> Result<(), SynthError> {
        fs::rename(&self.path, target).map_err(SynthError::io("renaming it", &self.path))?;
        self.is_published = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_published {
            // There may be nothing to tell it by; the next run takes it over.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The file's two handles.
struct Output<'a> {
    partial: &'a Partial,
    direct: Option<File>,
    /// Whether direct writes have worked so far.
    is_direct: AtomicBool,
}

impl Output<'_> {
    /// Writes `bytes`, of whole blocks, in memory of whole pages.
    fn write(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        if let (Some(direct), true) = (&self.direct, self.is_direct.load(Ordering::Relaxed)) {
            match direct.write_all_at(bytes, offset_bytes) {
                // A file system that takes the flag and not the write, or a short write that ended within a block.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.is_direct.store(false, Ordering::Relaxed);
                }
                other => return other,
            }
        }
        self.partial.file.write_all_at(bytes, offset_bytes)
    }
}

fn write_pieces(
    layout: &Layout,
    output: &Output<'_>,
    total: u64,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), SynthError> {
    let threads = threads.min(usize::try_from(total.div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX));
    let piece = usize::try_from(PIECE_BYTES).expect("invariant: a piece is memory");
    let region = HostRegion::new(piece * threads)?;
    let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let mut has_thread = false;
    thread::scope(|scope| {
        for mut buffer in region.split(piece, threads) {
            let (sender, next, is_over) = (sender.clone(), &next, &is_over);
            let worker = move || {
                while !is_over.load(Ordering::Relaxed) {
                    let offset = next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
                    if offset >= total {
                        break;
                    }
                    let wanted = (total - offset).min(PIECE_BYTES);
                    let len =
                        usize::try_from(align_up(wanted, DIRECT_ALIGN_BYTES)).expect("invariant: a piece");
                    let bytes = &mut buffer.as_mut_slice()[..len];
                    layout.write(offset, bytes);
                    let written = output.write(bytes, offset).map(|()| wanted);
                    if sender.send((offset, written)).is_err() {
                        break;
                    }
                }
            };
            match thread::Builder::new().spawn_scoped(scope, worker) {
                Ok(_) => has_thread = true,
                Err(source) if !has_thread => return Err(SynthError::Thread(source)),
                // Fewer do the same work.
                Err(_) => break,
            }
        }
        drop(sender);
        let watched = watch(output, layout.len_bytes(), total, &receiver, progress);
        // The scope waits for the threads: each ends after its piece.
        is_over.store(true, Ordering::Relaxed);
        watched
    })
}

/// Counts pieces until the last, the first that failed, or a stop.
fn watch(
    output: &Output<'_>,
    len_bytes: u64,
    total: u64,
    pieces: &mpsc::Receiver<(u64, io::Result<u64>)>,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), SynthError> {
    let mut done = 0;
    while done < total {
        match pieces.recv_timeout(PROGRESS_EVERY) {
            Ok((_, Ok(bytes))) => done += bytes,
            Ok((offset, Err(source))) => {
                return Err(SynthError::write(&output.partial.path, offset, len_bytes, source));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("threads end behind the last piece"),
        }
        if progress(done, total).is_break() {
            return Err(SynthError::Stopped);
        }
    }
    Ok(())
}
