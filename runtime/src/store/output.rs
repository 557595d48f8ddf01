//! The new files of a store, written by a few threads.
//!
//! - Owns: the aligned buffers on their way to the drive. In: bytes and their places, in any sizes. Out: writes of
//!   whole blocks, several at a time, because a drive that is asked for one thing at a time is not at its rate.
//! - Invariants: a buffer is with its writer until the write has ended; [`Writers::flush`] returns when none is. Nothing
//!   is written beyond a file's planned end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Scope;

use crate::base::region::{HostBuffer, HostRegion};
use crate::store::drive::{Drive, DriveFile};
use crate::store::error::{StoreError, write_error};
use crate::store::record::{BLOCK_BYTES, RECORD_ALIGN_BYTES};
use crate::store::threads::start_thread;

/// Bytes of a write at most: an expert's matrix of the real Flint is a third of it.
const WRITE_BYTES: usize = 2 << 20;

/// Threads that write: enough for the queue of any single drive at writes of this size.
const WRITERS: usize = 4;

/// Buffers: one being filled, one for each writer, as many waiting. 18 MiB in all.
const BUFFERS: usize = 2 * WRITERS + 1;

/// One file of the store.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) path: PathBuf,
    pub(super) len_bytes: u64,
    pub(super) file: Box<dyn DriveFile>,
}

/// A write on its way.
pub(super) struct Job {
    file: usize,
    offset_bytes: u64,
    buffer: HostBuffer,
    start: usize,
    len: usize,
}

/// What became of it. The buffer comes back.
struct Done {
    buffer: HostBuffer,
    failed: Option<(usize, u64, std::io::Error)>,
}

/// The threads that write, and the buffer that is being filled for them.
pub(super) struct Writers<'run> {
    drive: &'run dyn Drive,
    outputs: &'run [Output],
    jobs: SyncSender<Job>,
    done: Receiver<Done>,
    free: Vec<HostBuffer>,
    current: Option<Job>,
    left_bytes: &'run AtomicU64,
}

impl<'run> Writers<'run> {
    /// Starts the threads. `left_bytes` counts down what is still to be written, for the message when a drive is full.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, 'run>,
        drive: &'run dyn Drive,
        outputs: &'run [Output],
        left_bytes: &'run AtomicU64,
        jobs_shared: &'run Mutex<Option<Receiver<Job>>>,
    ) -> Result<Self, StoreError> {
        let region = HostRegion::new(WRITE_BYTES * BUFFERS)?;
        let free = region.split(WRITE_BYTES, BUFFERS);
        let (jobs, waiting) = sync_channel::<Job>(BUFFERS);
        let (finished, done) = sync_channel::<Done>(BUFFERS);
        *jobs_shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(waiting);
        for _ in 0..WRITERS {
            let finished = finished.clone();
            let worker = move || {
                loop {
                    // The lock is held while waiting: one waits for the next job, the others for their turn.
                    let next = match &*jobs_shared.lock().unwrap_or_else(PoisonError::into_inner) {
                        Some(waiting) => waiting.recv(),
                        None => break,
                    };
                    let Ok(Job { file, offset_bytes, buffer, start, len }) = next else { break };
                    let bytes = &buffer.as_slice()[start..start + len];
                    let result = outputs[file].file.write_at(bytes, offset_bytes);
                    let failed = result.err().map(|error| (file, offset_bytes, error));
                    if failed.is_none() {
                        left_bytes.fetch_sub(len as u64, Ordering::Relaxed);
                    }
                    if finished.send(Done { buffer, failed }).is_err() {
                        break;
                    }
                }
            };
            start_thread(scope, worker)?;
        }
        Ok(Self { drive, outputs, jobs, done, free, current: None, left_bytes })
    }

    /// Writes `bytes` to file `file`. They may be on their way when this returns.
    pub(super) fn write(
        &mut self,
        file: usize,
        mut offset_bytes: u64,
        mut bytes: &[u8],
    ) -> Result<(), StoreError> {
        let output = &self.outputs[file];
        let end_bytes = offset_bytes + bytes.len() as u64;
        assert!(end_bytes <= output.len_bytes, "{} is written beyond its end", output.path.display());
        while !bytes.is_empty() {
            let room = self.room_for(file, offset_bytes)?;
            let (now, later) = bytes.split_at(room.len().min(bytes.len()));
            room[..now.len()].copy_from_slice(now);
            let current = self.current.as_mut().expect("invariant: room is in the buffer at hand");
            current.len += now.len();
            offset_bytes += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Writes zeros up to the next multiple of 4096 in file `file`.
    pub(super) fn pad(&mut self, file: usize, offset_bytes: u64) -> Result<(), StoreError> {
        const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];
        match into_block(offset_bytes) {
            0 => Ok(()),
            into => self.write(file, offset_bytes, &ZEROS[into..]),
        }
    }

    /// The free end of the buffer at hand, into which the bytes of `file` at `offset_bytes` go.
    fn room_for(&mut self, file: usize, offset_bytes: u64) -> Result<&mut [u8], StoreError> {
        let goes_on = self.current.as_ref().is_some_and(|job| {
            job.file == file
                && job.offset_bytes + job.len as u64 == offset_bytes
                && job.start + job.len < WRITE_BYTES
        });
        if !goes_on {
            self.ship()?;
            let buffer = match self.free.pop() {
                Some(buffer) => buffer,
                None => self.wait_for_one()?,
            };
            // Memory stands in its block as the bytes do in the file's.
            let start = into_block(offset_bytes);
            self.current = Some(Job { file, offset_bytes, buffer, start, len: 0 });
        }
        let job = self.current.as_mut().expect("invariant: there is a buffer at hand");
        Ok(&mut job.buffer.as_mut_slice()[job.start + job.len..])
    }

    fn ship(&mut self) -> Result<(), StoreError> {
        let Some(job) = self.current.take() else { return Ok(()) };
        // Its capacity is the number of buffers, so this waits only when the writers are gone.
        self.jobs.send(job).expect("invariant: writers live as long as there are jobs");
        Ok(())
    }

    fn wait_for_one(&mut self) -> Result<HostBuffer, StoreError> {
        let Done { buffer, failed } = self.done.recv().expect("invariant: a writer has the buffer");
        let Some((file, offset_bytes, source)) = failed else { return Ok(buffer) };
        self.free.push(buffer);
        let needed_bytes = self.left_bytes.load(Ordering::Relaxed);
        Err(write_error(self.drive, &self.outputs[file].path, offset_bytes, needed_bytes, source))
    }

    /// Waits until everything was written: the system has it, the drive perhaps not.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        self.ship()?;
        while self.free.len() < BUFFERS {
            let buffer = self.wait_for_one()?;
            self.free.push(buffer);
        }
        Ok(())
    }
}

fn into_block(offset_bytes: u64) -> usize {
    usize::try_from(offset_bytes % RECORD_ALIGN_BYTES).expect("invariant: below 4096")
}
