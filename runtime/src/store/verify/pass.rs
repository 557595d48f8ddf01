//! One pass over a store's files, with all cores: every piece against its checksum, every byte of padding against zero,
//! every file against its digest.
//!
//! - Owns: the threads and their buffers. In: a [`StoreMap`]. Out: what is damaged, in the order of the files.
//! - Invariants: every byte of a file belongs to exactly one piece or to the padding behind one. Memory is bounded: a
//!   buffer a thread. A piece that cannot be read is damaged, and hides no other.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::base::region::{HostBuffer, HostRegion, page_bytes};
use crate::base::units::align_up;
use crate::store::checksum::{record_checksum, tree_digest};
use crate::store::digest::Sha256Digest;
use crate::store::error::{StoreError, io_error};
use crate::store::record::{RECORD_ALIGN_BYTES, RecordLayout};
use crate::store::threads::start_thread;
use crate::store::verify::damage::{Cause, Damage, DamagedPart};
use crate::store::verify::input::Input;
use crate::store::verify::map::{MapFile, Piece, PieceName, StoreMap};
use crate::store::verify::sum::BothSums;
use crate::store::verify::{VerifyOptions, VerifyProgress};

/// Bytes of a read: large enough for any drive's full rate.
const CHUNK_BYTES: u64 = 8 << 20;

/// Threads: while one sums, another waits for the drive, so there are some even where cores are few.
const THREADS_MIN: usize = 4;
const THREADS_MAX: usize = 64;

/// How often whoever watches is told.
const TICK: Duration = Duration::from_millis(50);

/// Pieces `first..end` of a file, read together.
struct Item {
    file: usize,
    first: usize,
    end: usize,
}

/// A file that is there, and what its pieces gave.
struct Opened<'m> {
    map: &'m MapFile,
    input: Input,
    /// SHA-256 of each tensor, or of each matrix of each record.
    leaves: Mutex<Vec<Option<Sha256Digest>>>,
}

struct Pass<'m> {
    map: &'m StoreMap,
    with_sha256: bool,
    opened: Vec<Option<Opened<'m>>>,
    items: Vec<Item>,
    next: AtomicUsize,
    done_bytes: AtomicU64,
    is_stopped: AtomicBool,
    damage: Mutex<Vec<(usize, Damage)>>,
}

/// What a pass found.
pub(super) struct Found {
    pub(super) damage: Vec<Damage>,
    /// Files that were not read past the page cache.
    pub(super) buffered: Vec<std::path::PathBuf>,
}

/// Looks through all files but the header's.
pub(super) fn run(
    map: &StoreMap,
    options: &VerifyOptions,
    progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
) -> Result<Found, StoreError> {
    let mut damage = Vec::new();
    let opened = map.files.iter().enumerate().map(|(number, file)| open(number, file, &mut damage));
    let opened = opened.collect::<Result<Vec<_>, StoreError>>()?;
    let mut pass = Pass {
        map,
        with_sha256: options.with_sha256,
        items: Vec::new(),
        opened,
        next: AtomicUsize::new(0),
        done_bytes: AtomicU64::new(map.header_bytes),
        is_stopped: AtomicBool::new(false),
        damage: Mutex::new(damage),
    };
    pass.items = pass.all_items();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.unwrap_or(cores.max(THREADS_MIN)).clamp(1, THREADS_MAX);
    let longest = pass.items.iter().map(|item| pass.read_bytes(item)).max().unwrap_or(0).max(CHUNK_BYTES);
    let align_bytes = RECORD_ALIGN_BYTES.max(page_bytes() as u64);
    let buffer_bytes = usize::try_from(align_up(longest, align_bytes)).unwrap_or(usize::MAX);
    let region = HostRegion::new(HostRegion::bytes_for(buffer_bytes, threads))?;

    let total_bytes = map.total_bytes();
    let (ended, is_ended) = channel::<()>();
    thread::scope(|scope| {
        for (started, mut buffer) in region.split(buffer_bytes, threads).into_iter().enumerate() {
            let (pass, ended) = (&pass, ended.clone());
            let thread = start_thread(scope, move || {
                pass.work(&mut buffer);
                drop(ended);
            });
            match thread {
                Ok(()) => {}
                Err(error) if started == 0 => return Err(error),
                // Fewer do the same work.
                Err(_) => break,
            }
        }
        drop(ended);
        loop {
            // Nobody sends: the channel ends with the last thread.
            let is_over = is_ended.recv_timeout(TICK) == Err(RecvTimeoutError::Disconnected);
            let done_bytes = if is_over { total_bytes } else { pass.done_bytes.load(Ordering::Relaxed) };
            let damaged = pass.damage.lock().map_or(0, |damage| damage.len());
            if !pass.is_stopped.load(Ordering::Relaxed)
                && progress(VerifyProgress { done_bytes, total_bytes, damaged }).is_break()
            {
                pass.is_stopped.store(true, Ordering::Relaxed);
            }
            if is_over {
                break;
            }
        }
        Ok(())
    })?;
    if pass.is_stopped.load(Ordering::Relaxed) {
        return Err(StoreError::Stopped);
    }
    Ok(pass.finish())
}

/// Opens a file of the store, or notes what is wrong with it as a whole.
fn open<'m>(
    number: usize,
    map: &'m MapFile,
    damage: &mut Vec<(usize, Damage)>,
) -> Result<Option<Opened<'m>>, StoreError> {
    let note = |cause| {
        let (offset_bytes, len_bytes) = (0, map.len_bytes);
        let path = map.path.clone();
        (number, Damage { part: DamagedPart::File, path, offset_bytes, len_bytes, cause })
    };
    let input = match Input::open(&map.path) {
        Ok(input) => input,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            damage.push(note(Cause::Missing));
            return Ok(None);
        }
        Err(error) => return Err(io_error("open", &map.path)(error)),
    };
    if input.len_bytes() != map.len_bytes {
        damage.push(note(Cause::Length { found_bytes: input.len_bytes() }));
    }
    Ok(Some(Opened { map, input, leaves: Mutex::default() }))
}

impl Pass<'_> {
    /// What there is to do: long tensors first, since each is one thread's work; records of several drives side by side.
    fn all_items(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for (file, opened) in self.opened.iter().enumerate() {
            let Some(opened) = opened else { continue };
            let pieces = &opened.map.pieces;
            let mut first = 0;
            while first < pieces.len() {
                let mut end = first + 1;
                let start = pieces[first].offset_bytes;
                while end < pieces.len() && opened.map.padding_end_bytes(end) - start <= CHUNK_BYTES {
                    end += 1;
                }
                items.push(Item { file, first, end });
                first = end;
            }
        }
        let share = |item: &Item| {
            let map = &self.map.files[item.file];
            let offset_bytes = u128::from(map.pieces[item.first].offset_bytes);
            // In thousandths of the file, so that files end together.
            (!is_long(map, item.first), offset_bytes * 1000 / u128::from(map.len_bytes.max(1)), item.file)
        };
        items.sort_by_key(share);
        items
    }

    /// Bytes of the longest read of an item. A long tensor is read in chunks.
    fn read_bytes(&self, item: &Item) -> u64 {
        let map = &self.map.files[item.file];
        let piece = &map.pieces[item.first];
        let bytes = map.padding_end_bytes(item.end - 1) - piece.offset_bytes;
        if matches!(piece.name, PieceName::Tensor(_)) { bytes.min(CHUNK_BYTES) } else { bytes }
    }

    fn work(&self, buffer: &mut HostBuffer) {
        while !self.is_stopped.load(Ordering::Relaxed) {
            let Some(item) = self.items.get(self.next.fetch_add(1, Ordering::Relaxed)) else { return };
            let opened =
                self.opened[item.file].as_ref().expect("invariant: items are of files that are there");
            let map = opened.map;
            let start = map.pieces[item.first].offset_bytes;
            let end = map.padding_end_bytes(item.end - 1);
            if end <= opened.input.len_bytes() && end - start <= buffer.len_bytes() as u64 {
                let len = usize::try_from(end - start).expect("invariant: it fits the buffer");
                if let Ok(bytes) = opened.input.read(start, len, buffer) {
                    for index in item.first..item.end {
                        let from = usize::try_from(map.pieces[index].offset_bytes - start)
                            .expect("invariant: inside the read");
                        let to = usize::try_from(map.padding_end_bytes(index) - start)
                            .expect("invariant: inside the read");
                        self.check_piece(item.file, opened, index, &bytes[from..to]);
                    }
                    self.done_bytes.fetch_add(end - start, Ordering::Relaxed);
                    continue;
                }
            }
            // Too long for one read, beyond the end, or unreadable: piece by piece, so that no piece hides another.
            for index in item.first..item.end {
                self.read_piece(item.file, opened, index, buffer);
                if !is_long(map, index) {
                    let bytes = map.padding_end_bytes(index) - map.pieces[index].offset_bytes;
                    self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
            }
        }
    }

    /// Sums a piece in memory, with the padding behind it.
    fn check_piece(&self, file: usize, opened: &Opened<'_>, index: usize, bytes: &[u8]) {
        let piece = &opened.map.pieces[index];
        let (bytes, padding) =
            bytes.split_at(usize::try_from(piece.len_bytes).expect("invariant: in memory"));
        let found = match &piece.name {
            PieceName::Record(key) => {
                if self.with_sha256 {
                    for (matrix, leaf) in matrices(&self.map.record, bytes).into_iter().enumerate() {
                        opened.keep_leaf(index * 3 + matrix, Sha256Digest::of(leaf));
                    }
                }
                record_checksum(self.map.store_id, *key, &self.map.record, bytes)
            }
            PieceName::Tensor(name) => {
                let mut sums = BothSums::new(self.with_sha256);
                sums.update(bytes);
                let found = sums.tensor.finish(self.map.store_id, name);
                sums.leaf().into_iter().for_each(|leaf| opened.keep_leaf(index, leaf));
                found
            }
        };
        self.judge(file, opened, piece, found);
        self.check_padding(file, opened, piece.end_bytes(), padding);
    }

    /// Reads a piece on its own.
    fn read_piece(&self, file: usize, opened: &Opened<'_>, index: usize, buffer: &mut HostBuffer) {
        let piece = &opened.map.pieces[index];
        let end = opened.map.padding_end_bytes(index).min(opened.input.len_bytes());
        if piece.end_bytes() > opened.input.len_bytes() {
            return self.note(file, opened, piece, Cause::Missing);
        }
        let PieceName::Tensor(name) = &piece.name else {
            let len = usize::try_from(end - piece.offset_bytes).expect("invariant: a record is below 1 GiB");
            return match opened.input.read(piece.offset_bytes, len, buffer) {
                Ok(bytes) => self.check_piece(file, opened, index, bytes),
                Err(error) => self.note(file, opened, piece, Cause::Unreadable { error: error.to_string() }),
            };
        };
        let mut sums = BothSums::new(self.with_sha256);
        let mut at = piece.offset_bytes;
        while at < end && !self.is_stopped.load(Ordering::Relaxed) {
            let len = usize::try_from((end - at).min(CHUNK_BYTES)).expect("invariant: a chunk");
            match opened.input.read(at, len, buffer) {
                Ok(bytes) => {
                    let of_piece = piece.end_bytes().saturating_sub(at).min(len as u64);
                    let (bytes, padding) =
                        bytes.split_at(usize::try_from(of_piece).expect("invariant: a chunk"));
                    sums.update(bytes);
                    self.check_padding(file, opened, at + of_piece, padding);
                }
                Err(error) => {
                    return self.note(file, opened, piece, Cause::Unreadable { error: error.to_string() });
                }
            }
            at += len as u64;
            if is_long(opened.map, index) {
                self.done_bytes.fetch_add(len as u64, Ordering::Relaxed);
            }
        }
        let found = sums.tensor.finish(self.map.store_id, name);
        sums.leaf().into_iter().for_each(|leaf| opened.keep_leaf(index, leaf));
        self.judge(file, opened, piece, found);
    }

    fn judge(&self, file: usize, opened: &Opened<'_>, piece: &Piece, found: u128) {
        if found != piece.checksum {
            self.note(file, opened, piece, Cause::Checksum { found, wanted: piece.checksum });
        }
    }

    fn check_padding(&self, file: usize, opened: &Opened<'_>, offset_bytes: u64, padding: &[u8]) {
        if padding.iter().any(|&byte| byte != 0) {
            let (path, len_bytes) = (opened.map.path.clone(), padding.len() as u64);
            let part = DamagedPart::Padding;
            self.push(file, Damage { part, path, offset_bytes, len_bytes, cause: Cause::NotZero });
        }
    }

    fn note(&self, file: usize, opened: &Opened<'_>, piece: &Piece, cause: Cause) {
        let part = match &piece.name {
            PieceName::Tensor(name) => DamagedPart::Tensor(name.clone()),
            PieceName::Record(key) => DamagedPart::Record(*key),
        };
        let path = opened.map.path.clone();
        let (offset_bytes, len_bytes) = (piece.offset_bytes, piece.len_bytes);
        self.push(file, Damage { part, path, offset_bytes, len_bytes, cause });
    }

    fn push(&self, file: usize, damage: Damage) {
        self.damage.lock().expect("invariant: no thread panics with it").push((file, damage));
    }

    /// Compares the digests of files in which no piece is damaged, and puts all in order.
    fn finish(self) -> Found {
        let mut damage = self.damage.into_inner().expect("invariant: no thread panics with it");
        for (number, opened) in self.opened.iter().enumerate().filter(|_| self.with_sha256) {
            let Some(opened) = opened else { continue };
            let is_damaged = damage.iter().any(|(file, damage)| *file == number && damage.part.is_piece());
            if is_damaged {
                continue;
            }
            let leaves = opened.leaves.lock().expect("invariant: no thread panics with it");
            let leaves = leaves.iter().map(|leaf| leaf.expect("invariant: every piece was summed"));
            let (found, wanted) = (tree_digest(leaves), opened.map.sha256_tree);
            if found != wanted {
                let path = opened.map.path.clone();
                let (part, cause) = (DamagedPart::File, Cause::Digest { found, wanted });
                let len_bytes = opened.map.len_bytes;
                damage.push((number, Damage { part, path, offset_bytes: 0, len_bytes, cause }));
            }
        }
        damage.sort_by_key(|(file, damage)| (*file, damage.part.is_piece(), damage.offset_bytes));
        let buffered = self.opened.iter().flatten().filter(|opened| !opened.input.is_direct());
        Found {
            buffered: buffered.map(|opened| opened.input.path().to_owned()).collect(),
            damage: damage.into_iter().map(|(_, damage)| damage).collect(),
        }
    }
}

impl Opened<'_> {
    fn keep_leaf(&self, index: usize, leaf: Sha256Digest) {
        let mut leaves = self.leaves.lock().expect("invariant: no thread panics with it");
        if leaves.len() <= index {
            leaves.resize(index + 1, None);
        }
        leaves[index] = Some(leaf);
    }
}

/// Whether a piece is read in chunks: records are not, since their matrices are summed apart.
fn is_long(map: &MapFile, index: usize) -> bool {
    let piece = &map.pieces[index];
    let bytes = map.padding_end_bytes(index) - piece.offset_bytes;
    bytes > CHUNK_BYTES && matches!(piece.name, PieceName::Tensor(_))
}

/// Gate, up and down of a record.
fn matrices<'b>(layout: &RecordLayout, record: &'b [u8]) -> [&'b [u8]; 3] {
    let end = |bytes: u64| usize::try_from(bytes).expect("invariant: a record is below 1 GiB");
    let (gate, rest) = record.split_at(end(layout.gate_bytes));
    let (up, down) = rest.split_at(end(layout.up_bytes));
    [gate, up, down]
}
