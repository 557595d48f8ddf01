//! The streaming layer alone: experts of a source in slots of host memory, for a program with kernels of its own.
//!
//! - Owns: the slots' buffers, the read queue, who waits for what.
//! - In: requests, each some experts of one layer. Out: where their matrices lie, for as long as the request is held.
//! - Invariants: no device and no thread of its own: reads are begun and taken in by the calls of [`HostPool`], and an eventfd
//!   says when one of them has something to take in. What a request holds stays where it is. What a store has a checksum of is
//!   compared with it before it is given out. Requests that are needed are read before guesses.

mod error;
mod reading;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use self::error::HostPoolError;
use crate::base::ids::{ExpertKey, SlotIndex};
use crate::base::region::{HostBuffer, HostRegion};
use crate::disk::{
    self, Completion, DiskError, ReadCounters, ReadPath, ReadPathReport, ReadQueue, SourceFile,
};
use crate::expert::policy::Policy;
use crate::expert::pool::Pool;
use crate::expert::slot::SlotState;
use crate::expert::{CheckStats, ExpertError, ExpertSpace};
use crate::store::{ExpertPieces, Source, SourceKind};

/// Most pieces of a record, and its matrices.
const PIECES: usize = 3;

/// Requests that may be held at a time: one a layer and token of a deep model, many times over.
pub const REQUESTS_MAX: usize = 65_536;

/// How a pool is made.
#[derive(Debug, Clone, Default)]
pub struct HostPoolOptions {
    /// Experts that it holds.
    pub slots: u32,
    /// Reads under way at most.
    pub depth: u32,
    /// This read path and no other.
    pub read_path: Option<ReadPath>,
    /// Who leaves when a slot is needed.
    pub policy: Policy,
    /// Leaves out the comparison with a store's checksums.
    pub skip_checks: bool,
}

/// How urgent a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Somebody waits for it, or will at once.
    Needed,
    /// It may be wanted soon.
    Guess,
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Some of its experts are being read.
    Pending,
    /// All are there.
    Ready,
}

/// What a slot has of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residency {
    /// Nothing.
    Absent,
    /// It is being read.
    Reading,
    /// All of it.
    Resident,
}

/// What a pool did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostPoolStats {
    /// Experts asked for that were there.
    pub hits: u64,
    /// Experts asked for that were not, those counted that were already being read.
    pub misses: u64,
    /// Experts that left a slot for another.
    pub evictions: u64,
    /// Requests held now.
    pub requests: u64,
    /// Experts that are there now.
    pub resident: u32,
}

/// The memory of a slot and what is being read into it.
struct Place {
    buffers: [Option<HostBuffer>; PIECES],
    ranges: [Range<usize>; PIECES],
    pieces: Option<ExpertPieces>,
    key: Option<ExpertKey>,
    next_piece: usize,
    left: usize,
    /// Requests that hold it.
    holders: u32,
    is_second_read: bool,
    failure: Option<ExpertError>,
}

struct Request {
    slots: Vec<SlotIndex>,
    failure: Option<Arc<ExpertError>>,
}

/// Slots of host memory, and the reads into them.
pub struct HostPool {
    // Dropped first: it ends what still writes into the buffers.
    queue: Box<dyn ReadQueue>,
    wake: OwnedFd,
    report: ReadPathReport,
    source: Arc<Source>,
    is_checked: bool,
    checks: CheckStats,
    table: Pool,
    places: Vec<Place>,
    needed: VecDeque<SlotIndex>,
    guesses: VecDeque<SlotIndex>,
    requests: HashMap<u64, Request>,
    next_request: u64,
    last_layer: u32,
    completions: Vec<Completion>,
    stats: HostPoolStats,
}

/// The experts of a source as a pool numbers them.
fn space(source: &Source) -> ExpertSpace {
    let layers = source.expert_layers();
    let (first, last) = (layers[0].0, layers[layers.len() - 1].0);
    ExpertSpace { layer_first: first, layer_count: last - first + 1, expert_count: source.expert_count() }
}

/// How many buffers a record takes, and the bytes of each.
fn buffers_a_record(source: &Source, files: &[Arc<SourceFile>]) -> (usize, usize) {
    let first = source.expert_keys().next().expect("invariant: a source has experts");
    // Every record is cut as the first.
    let pieces = source.expert_pieces(first);
    let longest = pieces.iter().map(|piece| piece.span.len_bytes).max().unwrap_or(0);
    let longest = u32::try_from(longest).expect("invariant: a record is below 1 GiB");
    (pieces.len(), disk::buffer_bytes_for(files, longest))
}

fn open_files(source: &Source) -> Result<Vec<Arc<SourceFile>>, DiskError> {
    source.files().iter().map(|path| Ok(Arc::new(SourceFile::open(path)?))).collect()
}

/// Bytes of memory that `slots` experts of `source` take in a pool, gaps included; the memory begins at a page.
///
/// # Errors
/// When the files do not open.
pub fn host_pool_bytes(source: &Source, slots: u32) -> Result<usize, HostPoolError> {
    let (count, buffer_bytes) = buffers_a_record(source, &open_files(source)?);
    Ok(HostRegion::bytes_for(buffer_bytes, count.saturating_mul(slots as usize)))
}

impl HostPool {
    /// A pool over `region`, or over memory of its own. The region's bytes are the pool's as long as it lives.
    ///
    /// # Errors
    /// When options make no sense, memory is short, or the files or the queue do not open.
    pub fn open(
        source: Arc<Source>,
        options: &HostPoolOptions,
        region: Option<HostRegion>,
    ) -> Result<Self, HostPoolError> {
        let space = space(&source);
        let total = u32::try_from(source.expert_keys().count()).unwrap_or(u32::MAX);
        if options.slots == 0 || options.slots > total {
            return Err(HostPoolError::Slots { wanted: options.slots, max: total });
        }
        let files = open_files(&source)?;
        let (count, buffer_bytes) = buffers_a_record(&source, &files);
        let buffer_count = count.saturating_mul(options.slots as usize);
        let wanted_bytes = HostRegion::bytes_for(buffer_bytes, buffer_count);
        let region = match region {
            Some(region) => region,
            None => HostRegion::new(wanted_bytes)?,
        };
        if region.len_bytes() < wanted_bytes {
            let found_bytes = region.len_bytes();
            return Err(HostPoolError::MemoryLength { slots: options.slots, wanted_bytes, found_bytes });
        }
        let regions = std::slice::from_ref(&region);
        let (mut queue, report) = disk::open_queue(files, regions, options.read_path, options.depth)?;
        let wake = disk::new_eventfd()?;
        queue.wake_by(wake.as_fd())?;
        let mut buffers = region.split(buffer_bytes, buffer_count).into_iter();
        let places = (0..options.slots).map(|_| Place::new(buffers.by_ref().take(count))).collect();
        let is_checked = !options.skip_checks && source.kind() == SourceKind::Store;
        Ok(Self {
            queue,
            wake,
            report,
            is_checked,
            checks: CheckStats::default(),
            source,
            table: Pool::new(options.slots, options.policy, space),
            places,
            needed: VecDeque::new(),
            guesses: VecDeque::new(),
            requests: HashMap::new(),
            next_request: 1,
            last_layer: 0,
            completions: Vec::new(),
            stats: HostPoolStats::default(),
        })
    }

    /// How files are read.
    pub fn report(&self) -> &ReadPathReport {
        &self.report
    }

    /// Readable when a read has ended since [`Self::take_in`] was last called; never to be read or written by the caller.
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Asks for experts of a layer: what is not there is read. The answer's number holds them until it is released.
    ///
    /// # Errors
    /// [`HostPoolError::UnknownExpert`], [`HostPoolError::Full`] and [`HostPoolError::TooManyRequests`]: then nothing is held.
    pub fn request(&mut self, layer: u32, experts: &[u32], urgency: Urgency) -> Result<u64, HostPoolError> {
        if self.requests.len() >= REQUESTS_MAX {
            return Err(HostPoolError::TooManyRequests { max: REQUESTS_MAX });
        }
        let keys = experts.iter().map(|&expert| ExpertKey::new(layer, expert));
        for key in keys.clone() {
            self.check(key)?;
        }
        // Layers are needed in their order within a step, so one in front of the last begins a step.
        if urgency == Urgency::Needed {
            if layer < self.last_layer {
                self.table.begin_step();
            }
            self.last_layer = layer;
        }
        self.table.begin_wave();
        let mut slots = Vec::with_capacity(experts.len());
        for key in keys {
            match self.hold(key, urgency) {
                Some(slot) => slots.push(slot),
                None => {
                    slots.into_iter().for_each(|slot| self.let_go(slot));
                    self.begin_reads();
                    return Err(HostPoolError::Full { key, slots: self.table.slot_count() });
                }
            }
        }
        self.begin_reads();
        let number = self.next_request;
        self.next_request += 1;
        self.requests.insert(number, Request { slots, failure: None });
        Ok(number)
    }

    fn check(&self, key: ExpertKey) -> Result<(), HostPoolError> {
        let is_there = self.source.expert_layers().binary_search(&key.layer).is_ok()
            && key.expert.0 < self.source.expert_count();
        if is_there { Ok(()) } else { Err(HostPoolError::UnknownExpert { key }) }
    }

    /// The slot of `key`, with one more holder; `None` when there is none for it.
    fn hold(&mut self, key: ExpertKey, urgency: Urgency) -> Option<SlotIndex> {
        let slot = match self.table.lookup(key) {
            Some(slot) => {
                self.table.join_wave(slot, key);
                if matches!(self.table.state(slot), SlotState::Ready(_)) {
                    self.stats.hits += 1;
                    self.table.pin(slot);
                } else {
                    self.stats.misses += 1;
                    let at = self.guesses.iter().position(|&other| other == slot);
                    if let (Urgency::Needed, Some(at)) = (urgency, at) {
                        self.guesses.remove(at);
                        self.needed.push_back(slot);
                    }
                }
                slot
            }
            None => {
                let (slot, victim) = self.table.claim(key)?;
                self.stats.misses += 1;
                self.stats.evictions += u64::from(victim.is_some());
                self.prepare(slot, key, urgency);
                slot
            }
        };
        self.places[slot.0 as usize].holders += 1;
        Some(slot)
    }

    fn prepare(&mut self, slot: SlotIndex, key: ExpertKey, urgency: Urgency) {
        let pieces = self.source.expert_pieces(key);
        let place = &mut self.places[slot.0 as usize];
        assert_eq!(place.holders, 0, "the slot of somebody's expert was claimed for {key}");
        place.left = pieces.len();
        place.pieces = Some(pieces);
        place.key = Some(key);
        place.next_piece = 0;
        place.is_second_read = false;
        match urgency {
            Urgency::Needed => self.needed.push_back(slot),
            Urgency::Guess => self.guesses.push_back(slot),
        }
    }

    fn let_go(&mut self, slot: SlotIndex) {
        self.places[slot.0 as usize].holders -= 1;
        if matches!(self.table.state(slot), SlotState::Ready(_)) {
            self.table.unpin(slot);
        }
    }

    /// How far a request is; no reads are taken in.
    ///
    /// # Errors
    /// [`HostPoolError::UnknownRequest`]; [`HostPoolError::Read`] when one of its experts could not be read.
    pub fn progress(&self, request: u64) -> Result<Progress, HostPoolError> {
        let found = self.requests.get(&request).ok_or(HostPoolError::UnknownRequest { request })?;
        if let Some(error) = &found.failure {
            return Err(HostPoolError::Read(error.clone()));
        }
        let is_ready = |&slot: &SlotIndex| matches!(self.table.state(slot), SlotState::Ready(_));
        Ok(if found.slots.iter().all(is_ready) { Progress::Ready } else { Progress::Pending })
    }

    /// Gate, up and down of the experts of a request, in the order in which they were asked for. The bytes are those of the
    /// model's file, and stay where they are until the request is released.
    ///
    /// # Errors
    /// As [`Self::progress`]; [`HostPoolError::Pending`] while some are being read.
    pub fn experts(&self, request: u64) -> Result<impl ExactSizeIterator<Item = [&[u8]; 3]>, HostPoolError> {
        if self.progress(request)? == Progress::Pending {
            return Err(HostPoolError::Pending { request });
        }
        let layout = self.source.record();
        Ok(self.requests[&request].slots.iter().map(move |slot| {
            let place = &self.places[slot.0 as usize];
            let pieces = place.pieces.expect("invariant: what is there was read by pieces");
            if pieces.len() == PIECES {
                return std::array::from_fn(|piece| place.bytes(piece));
            }
            let key = place.key.expect("invariant: what is there has a name");
            layout.matrices(key, place.bytes(0))
        }))
    }

    /// Lets go of what a request holds. What is there stays until its slot is needed; reads go on.
    ///
    /// # Errors
    /// [`HostPoolError::UnknownRequest`].
    pub fn release(&mut self, request: u64) -> Result<(), HostPoolError> {
        let found = self.requests.remove(&request).ok_or(HostPoolError::UnknownRequest { request })?;
        found.slots.into_iter().for_each(|slot| self.let_go(slot));
        Ok(())
    }

    /// What the pool has of an expert.
    ///
    /// # Errors
    /// [`HostPoolError::UnknownExpert`].
    pub fn residency(&self, layer: u32, expert: u32) -> Result<Residency, HostPoolError> {
        let key = ExpertKey::new(layer, expert);
        self.check(key)?;
        Ok(match self.table.lookup(key).map(|slot| self.table.state(slot)) {
            Some(SlotState::Ready(_)) => Residency::Resident,
            Some(SlotState::Loading(_)) => Residency::Reading,
            Some(SlotState::Empty) | None => Residency::Absent,
        })
    }

    /// Whether anything is being read or waits for its read.
    pub fn is_reading(&self) -> bool {
        self.queue.in_flight() > 0 || !self.needed.is_empty() || !self.guesses.is_empty()
    }

    /// What it did since it was opened.
    pub fn stats(&self) -> HostPoolStats {
        let resident = self.table.resident().count();
        HostPoolStats {
            requests: self.requests.len() as u64,
            resident: u32::try_from(resident).expect("invariant: at most one a slot"),
            ..self.stats
        }
    }

    /// What the read queue did since it was opened.
    pub fn read_counters(&self) -> ReadCounters {
        self.queue.counters()
    }

    /// What was compared with checksums.
    pub fn check_stats(&self) -> CheckStats {
        self.checks
    }

    /// Slots of the pool.
    pub fn slot_count(&self) -> u32 {
        self.table.slot_count()
    }
}

impl Place {
    fn new(buffers: impl Iterator<Item = HostBuffer>) -> Self {
        let mut place = Self {
            buffers: [const { None }; PIECES],
            ranges: [const { 0..0 }; PIECES],
            pieces: None,
            key: None,
            next_piece: 0,
            left: 0,
            holders: 0,
            is_second_read: false,
            failure: None,
        };
        for (index, buffer) in buffers.enumerate() {
            place.buffers[index] = Some(buffer);
        }
        place
    }

    /// The bytes of one piece that has landed; of none, none.
    fn bytes(&self, piece: usize) -> &[u8] {
        self.buffers[piece].as_ref().map_or(&[], |buffer| &buffer.as_slice()[self.ranges[piece].clone()])
    }
}
