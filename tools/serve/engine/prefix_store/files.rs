//! The threads that read and write files, so that nobody's token waits for a drive.
//!
//! - Owns: one thread that writes, one that reads, a short queue for each. In: snapshots, paths. Out: answers over a channel each.
//! - Invariants: the engine's thread never waits for them, but for an answer of its own slot, a little at a time. What is being written
//!   is held in memory, so the store counts it until it is written.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use flint_rt::engine::snapshot::CacheShape;
use flint_rt::engine::{Snapshot, SnapshotError};
use flint_rt::store::Sha256Digest;

use super::disk::Disk;

/// Snapshots that wait to be written, or to be read. They are few and long.
const WAITING_MAX: usize = 4;

/// How long the engine's thread looks for an answer before it does something else.
const LOOK: Duration = Duration::from_millis(1);

/// Something to write.
enum Write {
    /// Into the folder.
    Keep(Arc<Snapshot>),
    /// Into a file that somebody named.
    Name(Arc<Snapshot>, PathBuf, SyncSender<Result<u64, SnapshotError>>),
}

/// Something to read.
enum Read {
    /// From the folder.
    Kept(PathBuf, SyncSender<Result<Snapshot, SnapshotError>>),
    /// A file that somebody named.
    Name(PathBuf, SyncSender<Result<Snapshot, SnapshotError>>),
}

/// An answer that is still to come.
pub(super) struct Answer<T>(Receiver<Result<T, SnapshotError>>);

impl<T> Answer<T> {
    /// The answer, if it comes within a moment. None after a thread that is gone.
    pub(super) fn look(&self) -> Option<Option<Result<T, SnapshotError>>> {
        use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
        match self.0.recv_timeout(LOOK) {
            Ok(answer) => Some(Some(answer)),
            Err(Timeout) => None,
            Err(Disconnected) => Some(None),
        }
    }
}

/// What the threads and the engine's thread share.
struct Common {
    disk: Option<Arc<Disk>>,
    model: Sha256Digest,
    shape: CacheShape,
    is_given_up: AtomicBool,
    written: AtomicU64,
}

/// The threads.
pub(super) struct Files {
    common: Arc<Common>,
    writes: SyncSender<Write>,
    reads: SyncSender<Read>,
    writer: JoinHandle<()>,
}

impl Files {
    /// Starts them, for a model and the folder if there is one.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub(super) fn start(
        disk: Option<Arc<Disk>>,
        model: Sha256Digest,
        shape: CacheShape,
    ) -> Result<Self, SnapshotError> {
        let common = Arc::new(Common {
            disk,
            model,
            shape,
            is_given_up: AtomicBool::new(false),
            written: AtomicU64::new(0),
        });
        let (writes, to_write) = sync_channel(WAITING_MAX);
        let (reads, to_read) = sync_channel(WAITING_MAX);
        let (writes_of, reads_of) = (common.clone(), common.clone());
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let failed = |source| SnapshotError::Io { what: "start a thread for", path: PathBuf::new(), source };
        let writer =
            named("cache-write").spawn(move || to_write.iter().for_each(|write| writes_of.write(write)));
        let writer = writer.map_err(failed)?;
        let reader = named("cache-read").spawn(move || to_read.iter().for_each(|read| reads_of.read(read)));
        reader.map_err(failed)?;
        Ok(Self { common, writes, reads, writer })
    }

    /// An answer that does not come while its sender is kept.
    #[cfg(test)]
    pub(super) fn unanswered() -> (SyncSender<Result<Snapshot, SnapshotError>>, Answer<Snapshot>) {
        let (sender, answer) = sync_channel(1);
        (sender, Answer(answer))
    }

    /// Has it written into the folder. Whether there was room in the queue.
    pub(super) fn keep(&self, snapshot: Arc<Snapshot>) -> bool {
        self.writes.try_send(Write::Keep(snapshot)).is_ok()
    }

    /// Has it written under a name; none where the queue is full.
    pub(super) fn save(&self, snapshot: Arc<Snapshot>, path: PathBuf) -> Option<Answer<u64>> {
        let (sender, answer) = sync_channel(1);
        self.writes.try_send(Write::Name(snapshot, path, sender)).ok()?;
        Some(Answer(answer))
    }

    /// Has a file of the folder read; none where the queue is full.
    pub(super) fn load_kept(&self, path: PathBuf) -> Option<Answer<Snapshot>> {
        self.ask(|sender| Read::Kept(path, sender))
    }

    /// Has a file read that somebody named; none where the queue is full.
    pub(super) fn load(&self, path: PathBuf) -> Option<Answer<Snapshot>> {
        self.ask(|sender| Read::Name(path, sender))
    }

    fn ask(
        &self,
        read: impl FnOnce(SyncSender<Result<Snapshot, SnapshotError>>) -> Read,
    ) -> Option<Answer<Snapshot>> {
        let (sender, answer) = sync_channel(1);
        match self.reads.try_send(read(sender)) {
            Ok(()) => Some(Answer(answer)),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => None,
        }
    }

    /// Bytes written into the folder.
    pub(super) fn written_bytes(&self) -> u64 {
        self.common.written.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, or `is_given_up` says that it is not to be.
    pub(super) fn finish(self, is_given_up: &dyn Fn() -> bool) {
        let Self { common, writes, writer, .. } = self;
        drop(writes);
        while !writer.is_finished() {
            if is_given_up() {
                // It may hang in a drive: what it leaves is removed at the next start.
                common.is_given_up.store(true, Ordering::Relaxed);
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Common {
    fn write(&self, write: Write) {
        let is_given_up = || self.is_given_up.load(Ordering::Relaxed);
        match (write, &self.disk) {
            (Write::Keep(snapshot), Some(disk)) => match disk.write(&snapshot, &is_given_up) {
                Ok(bytes) => {
                    self.written.fetch_add(bytes.unwrap_or(0), Ordering::Relaxed);
                }
                Err(error) => tracing::warn!("a conversation was not kept on disk: {error}"),
            },
            (Write::Keep(_), None) => {}
            // Who does not wait for the answer has it done nevertheless.
            (Write::Name(snapshot, path, answer), _) => {
                let _ = answer.send(snapshot.save(&path, &is_given_up));
            }
        }
    }

    fn read(&self, read: Read) {
        // Who does not wait any more needs no answer.
        match (read, &self.disk) {
            (Read::Kept(path, answer), Some(disk)) => {
                let _ = answer.send(disk.read(&path));
            }
            (Read::Kept(_, _), None) => {}
            (Read::Name(path, answer), _) => {
                let _ = answer.send(Snapshot::load(&path, (self.model, &self.shape)));
            }
        }
    }
}
