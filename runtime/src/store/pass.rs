//! The pass over a source: read once, hashed, cut into pieces, written to their places.
//!
//! - Owns: the threads of the pass. In: sources, a layout, a state to go on from. Out: the state at the end, and on the
//!   way a journal.
//! - Invariants: the source is read in order, each byte once. Reading, the source's SHA-256, the writes, and the cutting
//!   with the pieces' sums run side by side, each in order, joined by short queues; memory stays below 100 MiB, whatever the model's
//!   size. A state is saved only when everything before it was written and synced.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::Scope;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::store::bytes::{ByteSource, SourceStamp};
use crate::store::digest::Sha256Digest;
use crate::store::drive::Drive;
use crate::store::error::StoreError;
use crate::store::journal::{Journal, State};
use crate::store::layout::{Move, Owner};
use crate::store::options::{IngestOptions, IngestPhase, IngestProgress};
use crate::store::output::{Output, Writers};
use crate::store::parts::Part;
use crate::store::reader::{CHUNKS, Chunk, FromReader};
use crate::store::sums::Sums;
use crate::store::threads::start_thread;

/// The longest that the caller is not asked whether to go on.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// Pieces whose sums are taken together, two at a time: more lose less where a chunk cuts one, fewer stay in the cache.
const BATCH: usize = 4;

/// What stays the same through the pass.
pub(super) struct Work<'run> {
    pub(super) drive: &'run dyn Drive,
    pub(super) parts: &'run [Part],
    /// What the parts' names are, and were when the pass began.
    pub(super) stamps: &'run [SourceStamp],
    /// The headers of all parts, one behind the other.
    pub(super) headers: &'run [u8],
    /// In the order of the source.
    pub(super) moves: &'run [Move],
    pub(super) outputs: &'run [Output],
    pub(super) options: &'run IngestOptions,
}

enum ForHash {
    Bytes(Arc<Chunk>),
    State(SyncSender<Sha256>),
    Restart,
}

impl Work<'_> {
    /// Whether a state read from a drive can be one of this work.
    pub(super) fn accepts(&self, state: &State) -> bool {
        let end = |step: &Move| step.gguf_offset_bytes + step.target.len_bytes;
        let Some(part) = self.parts.get(state.parts_done.len()) else {
            let total = self.total_bytes();
            return state.parts_done.len() == self.parts.len()
                && (state.offset_bytes, state.pieces.len()) == (total, self.moves.len())
                && state.piece_bytes == 0;
        };
        let is_in_part = (part.start_bytes..=part.start_bytes + part.len_bytes).contains(&state.offset_bytes);
        let before = state.pieces.len().checked_sub(1).map_or(0, |last| end(&self.moves[last]));
        let next = self.moves.get(state.pieces.len());
        let is_in_place = match (next, state.piece_bytes) {
            (None, 0) => state.offset_bytes >= before,
            (Some(step), 0) => (before..=step.gguf_offset_bytes).contains(&state.offset_bytes),
            (Some(step), done) => {
                done < step.target.len_bytes && step.gguf_offset_bytes + done == state.offset_bytes
            }
            (None, _) => false,
        };
        is_in_part && is_in_place
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len_bytes).sum()
    }

    /// Goes on from `state` to the end. What was done so far is in `state` and in the journal when it fails.
    pub(super) fn run(
        &self,
        sources: &mut [Box<dyn ByteSource>],
        state: &mut State,
        journal: &mut Journal,
        progress: &mut dyn FnMut(IngestProgress) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let jobs = Mutex::new(None);
        let written: u64 = self.moves[..state.pieces.len()].iter().map(|step| step.target.len_bytes).sum();
        let all: u64 = self.outputs.iter().map(|output| output.len_bytes).sum();
        let left_bytes = AtomicU64::new(all.saturating_sub(written + state.piece_bytes));
        let sums = self.sums_so_far(state, journal)?;
        std::thread::scope(|scope| {
            let writers = Writers::start(scope, self.drive, self.outputs, &left_bytes, &jobs)?;
            let from = (state.parts_done.len(), state.offset_bytes);
            let reader = self.start_reader(scope, sources, from)?;
            let mut pass = Pass {
                work: self,
                writers,
                hash: start_hash(scope, state.sha256.clone())?,
                sums,
                next: state.pieces.len(),
                piece_bytes: state.piece_bytes,
                offset_bytes: state.offset_bytes,
                saved_bytes: state.offset_bytes,
                saved_at: Instant::now(),
                resumed_bytes: state.offset_bytes,
                state,
                journal,
                progress,
            };
            pass.run(&reader)
        })
    }

    /// The state of the sums in the middle of a piece: what stands of it on the drive is read again. Compared with the
    /// sum that was taken of the source, as the piece's sums would otherwise vouch for whatever the drive made of it.
    fn sums_so_far(&self, state: &State, journal: &Journal) -> Result<Sums, StoreError> {
        let mut sums = Sums::new();
        if state.piece_bytes == 0 {
            return Ok(sums);
        }
        let target = self.moves[state.pieces.len()].target;
        let output = &self.outputs[usize::from(target.file.0)];
        let mut buffer = vec![0; 1 << 20];
        let mut done = 0;
        while done < state.piece_bytes {
            let left = usize::try_from(state.piece_bytes - done).unwrap_or(usize::MAX);
            let len = left.min(buffer.len());
            let bytes = &mut buffer[..len];
            let read = self.drive.read_at(&output.path, target.offset_bytes + done, bytes);
            read.map_err(crate::store::error::io_error("read", &output.path))?;
            sums.add(&[], bytes);
            done += bytes.len() as u64;
        }
        if state.piece_xxh3.is_some_and(|wanted| wanted != sums.at_hand_xxh3()) {
            return Err(journal.damaged());
        }
        Ok(sums)
    }
}

fn start_hash<'scope>(
    scope: &'scope Scope<'scope, '_>,
    mut sha256: Sha256,
) -> Result<SyncSender<ForHash>, StoreError> {
    let (send, receive) = sync_channel(CHUNKS);
    start_thread(scope, move || {
        for work in receive {
            match work {
                ForHash::Bytes(chunk) => sha256.update(chunk.as_slice()),
                ForHash::State(answer) => drop(answer.send(sha256.clone())),
                ForHash::Restart => sha256 = Sha256::new(),
            }
        }
    })?;
    Ok(send)
}

/// The pass at work, on the caller's thread.
struct Pass<'pass, 'run> {
    work: &'pass Work<'run>,
    writers: Writers<'pass>,
    hash: SyncSender<ForHash>,
    sums: Sums,
    /// The piece at hand, and how much of it was handed on.
    next: usize,
    piece_bytes: u64,
    offset_bytes: u64,
    saved_bytes: u64,
    saved_at: Instant,
    resumed_bytes: u64,
    state: &'pass mut State,
    journal: &'pass mut Journal,
    progress: &'pass mut dyn FnMut(IngestProgress) -> ControlFlow<()>,
}

const ALIVE: &str = "invariant: a thread of the pass lives as long as the pass";

impl Pass<'_, '_> {
    fn run(&mut self, reader: &Receiver<FromReader>) -> Result<(), StoreError> {
        while self.state.parts_done.len() < self.work.parts.len() {
            match reader.recv_timeout(ASK_EVERY) {
                Ok(FromReader::Bytes(chunk)) => self.take(&chunk)?,
                Ok(FromReader::PartEnd) => self.end_part()?,
                Ok(FromReader::Failed(error)) => {
                    // A source that is gone for now: what came so far is kept.
                    if let StoreError::Source(_) = error {
                        let _ = self.save();
                    }
                    return Err(error);
                }
                Err(RecvTimeoutError::Timeout) => self.report()?,
                Err(RecvTimeoutError::Disconnected) => panic!("{ALIVE}, and it ends with a message"),
            }
        }
        assert_eq!(self.next, self.work.moves.len(), "a tensor inside the file was not met in it");
        self.save()
    }

    fn take(&mut self, chunk: &Arc<Chunk>) -> Result<(), StoreError> {
        self.hash.send(ForHash::Bytes(chunk.clone())).expect(ALIVE);
        self.cut(chunk.as_slice())?;
        let options = self.work.options;
        if self.offset_bytes - self.saved_bytes >= options.checkpoint_bytes
            || self.saved_at.elapsed() >= options.checkpoint_after
        {
            self.save()?;
        }
        self.report()
    }

    /// Takes the sums of the pieces' parts in a chunk, and hands them to the writers.
    fn cut(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let start_bytes = self.offset_bytes;
        let end_bytes = start_bytes + bytes.len() as u64;
        let place = |at: u64| usize::try_from(at - start_bytes).expect("invariant: inside the chunk");
        let mut batch: Vec<(Move, Range<u64>)> = Vec::with_capacity(BATCH);
        while let Some(&step) =
            self.work.moves.get(self.next).filter(|step| step.gguf_offset_bytes < end_bytes)
        {
            let from = step.gguf_offset_bytes + self.piece_bytes;
            let whole = step.gguf_offset_bytes + step.target.len_bytes;
            batch.push((step, from..whole.min(end_bytes)));
            if whole > end_bytes {
                self.piece_bytes = end_bytes - step.gguf_offset_bytes;
                break;
            }
            (self.next, self.piece_bytes) = (self.next + 1, 0);
            if batch.len() == BATCH {
                self.copy(&mut batch, |part| &bytes[place(part.start)..place(part.end)])?;
            }
        }
        self.copy(&mut batch, |part| &bytes[place(part.start)..place(part.end)])?;
        self.offset_bytes = end_bytes;
        Ok(())
    }

    /// Does so for some of them: the sums first, which wait for memory beside their work, so that the copy to the writers'
    /// buffers finds the bytes in the cache.
    fn copy<'bytes>(
        &mut self,
        batch: &mut Vec<(Move, Range<u64>)>,
        bytes_of: impl Fn(&Range<u64>) -> &'bytes [u8],
    ) -> Result<(), StoreError> {
        let parts: Vec<&[u8]> = batch.iter().map(|(_, part)| bytes_of(part)).collect();
        let is_whole =
            |(step, part): &(Move, Range<u64>)| part.end == step.gguf_offset_bytes + step.target.len_bytes;
        let ends = batch.iter().filter(|piece| is_whole(piece)).count();
        self.sums.add(&parts[..ends], parts.get(ends).copied().unwrap_or_default());
        for (piece, bytes) in batch.drain(..).zip(parts) {
            let Move { gguf_offset_bytes, target, owner } = piece.0;
            let file = usize::from(target.file.0);
            let offset_bytes = target.offset_bytes + (piece.1.start - gguf_offset_bytes);
            self.writers.write(file, offset_bytes, bytes)?;
            // What follows in the file is another record or tensor, except within a record.
            if is_whole(&piece) && !matches!(owner, Owner::Record(_, 0 | 1)) {
                self.writers.pad(file, target.offset_bytes + target.len_bytes)?;
            }
        }
        Ok(())
    }

    fn end_part(&mut self) -> Result<(), StoreError> {
        let index = self.state.parts_done.len();
        let found = Sha256Digest(self.hash_state().finalize().into());
        if let Some(&wanted) = self.work.options.sha256.get(index).filter(|wanted| **wanted != found) {
            let path = self.work.stamps[index].location.clone().into();
            return Err(StoreError::SourceDigest { path, found, wanted });
        }
        self.hash.send(ForHash::Restart).expect(ALIVE);
        self.state.parts_done.push(found);
        self.report()
    }

    fn hash_state(&self) -> Sha256 {
        let (answer, state) = sync_channel(1);
        self.hash.send(ForHash::State(answer)).expect(ALIVE);
        state.recv().expect(ALIVE)
    }

    /// Makes everything so far durable, and says so in the journal.
    fn save(&mut self) -> Result<(), StoreError> {
        self.writers.flush()?;
        for output in self.work.outputs {
            let synced = output.file.sync();
            synced.map_err(|source| StoreError::SyncFailed { path: output.path.clone(), source })?;
        }
        self.state.pieces.extend(self.sums.take());
        assert_eq!(self.state.pieces.len(), self.next, "sums of every piece that ended");
        self.state.sha256 = self.hash_state();
        (self.state.offset_bytes, self.state.piece_bytes) = (self.offset_bytes, self.piece_bytes);
        self.state.piece_xxh3 = (self.piece_bytes > 0).then(|| self.sums.at_hand_xxh3());
        self.journal.save(self.work.drive, self.state)?;
        (self.saved_bytes, self.saved_at) = (self.offset_bytes, Instant::now());
        Ok(())
    }

    fn report(&mut self) -> Result<(), StoreError> {
        let answer = (self.progress)(IngestProgress {
            phase: IngestPhase::Copy,
            done_bytes: self.offset_bytes,
            total_bytes: self.work.total_bytes(),
            resumed_bytes: self.resumed_bytes,
        });
        if answer.is_continue() {
            return Ok(());
        }
        // Whoever stops wants to go on later; if this fails, the journal before it stands.
        let _ = self.save();
        Err(StoreError::Stopped)
    }
}
