//! The thread of a pass that reads the source.
//!
//! - Owns: the buffers of the chunks. In: sources, where to begin. Out: chunks, the ends of the parts, or why there are
//!   no more.
//! - Invariants: what is handed on is what the header said: of its length, with its bytes, of the state that the source
//!   had at the beginning. Chunks end at multiples of their length, so that reads stay aligned after the first.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Scope;

use crate::base::region::{HostBuffer, HostRegion, page_bytes};
use crate::base::units::{align_down, align_up};
use crate::store::bytes::ByteSource;
use crate::store::error::StoreError;
use crate::store::parts::Part;
use crate::store::pass::Work;
use crate::store::record::RECORD_ALIGN_BYTES;
use crate::store::threads::start_thread;

/// Chunks at a time: one being read, one being hashed, one being cut, as many waiting.
pub(super) const CHUNKS: usize = 6;

/// Bytes of the source on their way. The buffer goes back to the reader when nobody needs them any more.
pub(super) struct Chunk {
    buffer: Option<HostBuffer>,
    bytes: Range<usize>,
    back: Sender<HostBuffer>,
}

impl Chunk {
    pub(super) fn as_slice(&self) -> &[u8] {
        let buffer = self.buffer.as_ref().expect("invariant: taken only when it is dropped");
        &buffer.as_slice()[self.bytes.clone()]
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            // The reader may have ended before; then the memory is simply freed.
            let _ = self.back.send(buffer);
        }
    }
}

/// What the thread says.
pub(super) enum FromReader {
    Bytes(Arc<Chunk>),
    PartEnd,
    Failed(StoreError),
}

impl Work<'_> {
    /// Starts the thread, from a part and a byte counted through all parts on.
    pub(super) fn start_reader<'scope, 'run>(
        &'run self,
        scope: &'scope Scope<'scope, 'run>,
        sources: &'run mut [Box<dyn ByteSource>],
        from: (usize, u64),
    ) -> Result<Receiver<FromReader>, StoreError> {
        let chunk_bytes = self.chunk_bytes();
        let region = HostRegion::new(chunk_bytes * CHUNKS)?;
        let (back, free) = channel();
        for buffer in region.split(chunk_bytes, CHUNKS) {
            back.send(buffer).expect("invariant: its receiver is in this function");
        }
        let (send, receive) = sync_channel(CHUNKS);
        start_thread(scope, move || {
            if let Err(error) = self.read(sources, from, &free, &back, &send) {
                // A caller who is gone has failed by himself.
                let _ = send.send(FromReader::Failed(error));
            }
        })?;
        Ok(receive)
    }

    /// Bytes of a chunk: a power of two, so whole pages.
    fn chunk_bytes(&self) -> usize {
        self.options.chunk_bytes.clamp(page_bytes(), 1 << 30).next_power_of_two()
    }

    fn read(
        &self,
        sources: &mut [Box<dyn ByteSource>],
        (first, offset_bytes): (usize, u64),
        free: &Receiver<HostBuffer>,
        back: &Sender<HostBuffer>,
        send: &SyncSender<FromReader>,
    ) -> Result<(), StoreError> {
        for (index, source) in sources.iter_mut().enumerate().skip(first) {
            let part = &self.parts[index];
            let mut at = if index == first { offset_bytes - part.start_bytes } else { 0 };
            while at < part.len_bytes {
                let Ok(mut buffer) = free.recv() else { return Ok(()) };
                let bytes = self.fill(source.as_mut(), part, at, buffer.as_mut_slice())?;
                at += bytes.len() as u64;
                let chunk = Chunk { buffer: Some(buffer), bytes, back: back.clone() };
                if send.send(FromReader::Bytes(Arc::new(chunk))).is_err() {
                    return Ok(());
                }
            }
            let changed = || StoreError::SourceChanged { path: self.stamps[index].location.clone().into() };
            if source.read_from(part.len_bytes, &mut [0])? != 0
                || !source.stamp()?.is_same(&self.stamps[index])
            {
                return Err(changed());
            }
            if send.send(FromReader::PartEnd).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Fills `buffer` from byte `at` of a part on, up to a multiple of the buffer's length; gives where the bytes are.
    fn fill(
        &self,
        source: &mut dyn ByteSource,
        part: &Part,
        at: u64,
        buffer: &mut [u8],
    ) -> Result<Range<usize>, StoreError> {
        let location = || self.location(part);
        let to = |bytes: u64| usize::try_from(bytes).expect("invariant: within a buffer");
        let start = to(at % RECORD_ALIGN_BYTES);
        let chunk_end = align_down(at, buffer.len() as u64) + buffer.len() as u64;
        let wanted = start + to(chunk_end.min(part.len_bytes) - at);
        // The last block is asked for whole, as reads past the page cache want it.
        let limit = to(align_up(wanted as u64, RECORD_ALIGN_BYTES)).min(buffer.len());
        let mut end = start;
        while end < wanted {
            let offset_bytes = at + (end - start) as u64;
            match source.read_from(offset_bytes, &mut buffer[end..limit])? {
                0 => {
                    let (want_bytes, got_bytes) = (part.len_bytes, offset_bytes);
                    return Err(StoreError::SourceTruncated { path: location(), want_bytes, got_bytes });
                }
                got => end += got,
            }
        }
        if end > wanted || !self.agrees_with_header(part, at, &buffer[start..wanted]) {
            return Err(StoreError::SourceChanged { path: location() });
        }
        Ok(start..wanted)
    }

    /// Whether `bytes`, which stand at `at` in the part, still are what was parsed before.
    fn agrees_with_header(&self, part: &Part, at: u64, bytes: &[u8]) -> bool {
        let before = self.parts.iter().take_while(|other| other.start_bytes < part.start_bytes);
        let from: u64 = before.map(|other| other.header_bytes).sum();
        let place = |bytes: u64| usize::try_from(bytes).expect("invariant: headers are in memory");
        let header = &self.headers[place(from)..place(from + part.header_bytes)];
        let rest = usize::try_from(at).ok().and_then(|start| header.get(start..)).unwrap_or_default();
        let len = rest.len().min(bytes.len());
        bytes[..len] == rest[..len]
    }

    /// Where a part is, for errors.
    fn location(&self, part: &Part) -> PathBuf {
        let index = self.parts.partition_point(|other| other.start_bytes < part.start_bytes);
        self.stamps[index].location.clone().into()
    }
}
