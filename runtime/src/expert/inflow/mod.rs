//! Experts from the drive into host memory, whatever a step does meanwhile.
//!
//! - Owns: the transport, the host tier's table and its slots' memory.
//! - In: experts that a step waits for, and guesses at those that it will want.
//! - Out: host slots that hold a whole record: what was compared is held; what has landed and is being summed may be copied to where
//!   nobody looks yet.
//! - Invariants: reads that a step waits for are begun before every guess, and a guess only while few of their bytes are under way,
//!   so a demand waits for little that it did not ask for ([`Pace`]). A guess that fails is forgotten; a step
//!   that wants the same expert reads it again and hears what is wrong. A slot with a read or a copy under way is nobody else's.

mod arrivals;
mod keeping;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::base::ids::ExpertKey;
use crate::disk::{Completion, Read};
use crate::expert::host_tier::{Claim, Found, HostSlot, HostTier};
use crate::expert::pace::Pace;
use crate::expert::parts_ahead::PartsAhead;
use crate::expert::place::Place;
use crate::expert::sums::Sums;
use crate::expert::{ExpertError, Transport};
use crate::gpu::{Buffer, Recorder, Ticket};
use crate::store::Source;
use arrivals::tag_of;

/// What came of asking for an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// It lies there.
    Held(HostSlot),
    /// It is being read.
    Reading(HostSlot),
    /// All slots are in use; some become free as copies end.
    NoSlot,
}

/// How far a record has come that a step waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Not all of it is there.
    Reading,
    /// All bytes are there and are being summed: they may be copied, and not be used.
    Landed,
    /// It is there and right.
    Held,
}

/// Counters of what was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InflowStats {
    /// Records read because a step waited for them.
    pub demand_reads: u64,
    /// Guesses whose read was begun.
    pub guesses_issued: u64,
    /// Guesses that a step wanted while they were still being read.
    pub guesses_used_late: u64,
    /// Guesses that lay there when a step wanted them.
    pub guesses_used: u64,
    /// Guesses that were never wanted.
    pub guesses_wasted: u64,
    /// Uses that found their record in host memory, guesses left out.
    pub host_hits: u64,
    /// Experts that the device gave up and that were copied to host memory.
    pub kept: u64,
    /// Record bytes read.
    pub read_bytes: u64,
}

/// Reads experts into host slots.
pub(super) struct Inflow {
    transport: Transport,
    source: Arc<Source>,
    tier: HostTier,
    places: Vec<Place>,
    /// Slots with pieces whose read has not begun, first asked first.
    demand: VecDeque<HostSlot>,
    guesses: VecDeque<HostSlot>,
    /// Copies out of slots under way.
    lent: VecDeque<(Ticket, HostSlot)>,
    /// Slots lent to copies that are not submitted yet.
    held: Vec<HostSlot>,
    /// Slots of records that are still being summed, with copies that are not submitted yet.
    held_early: Vec<HostSlot>,
    completions: Vec<Completion>,
    sums: Vec<Sums>,
    /// One entry a piece that has settled and is not yet counted.
    settled: Vec<HostSlot>,
    pace: Pace,
    /// Pieces of a record.
    pieces: usize,
    /// Slots that may keep what the device gives up, as far as there is memory for them.
    kept_allowed: u32,
    kept_capacity: u32,
    /// Memory that came after the ring's and goes part by part: the slots in each.
    parts: Vec<Vec<HostSlot>>,
    /// Makes it; nobody does where none is kept.
    parts_ahead: Option<PartsAhead>,
    refused: Option<ExpertError>,
    stats: InflowStats,
}

impl Inflow {
    /// Takes over a transport that nothing is under way in. Its ring is what is read into; for up to `kept_capacity` records more
    /// memory is taken as they come.
    ///
    /// # Errors
    /// When the device is lost.
    ///
    /// # Panics
    /// When the transport's ring has fewer buffers than one record has pieces.
    pub(super) fn new(
        mut transport: Transport,
        source: Arc<Source>,
        kept_capacity: u32,
        pace: Pace,
    ) -> Result<Self, ExpertError> {
        let pieces = source.expert_keys().next().map_or(1, |key| source.expert_pieces(key).len());
        let mut buffers = transport.take_buffers()?;
        let ring = u32::try_from(buffers.len() / pieces).expect("invariant: buffers are counted in u32");
        let kept_capacity = if transport.can_keep() { kept_capacity } else { 0 };
        let maker = transport.staging().maker(transport.gpu());
        let parts_ahead = if kept_capacity > 0 { PartsAhead::start(maker) } else { None };
        let kept_capacity = if parts_ahead.is_some() { kept_capacity } else { 0 };
        let capacity = (ring + kept_capacity) as usize;
        let mut places: Vec<Place> = Vec::new();
        places.resize_with(capacity, Place::default);
        for place in &mut places[..ring as usize] {
            place.take_buffers(pieces, &mut buffers);
        }
        Ok(Self {
            transport,
            source,
            // Half of the ring for guesses; the rest is read into and copied from.
            tier: HostTier::new(ring, kept_capacity, ring / 2),
            places,
            demand: VecDeque::with_capacity(capacity),
            guesses: VecDeque::with_capacity(capacity),
            lent: VecDeque::with_capacity(capacity),
            held: Vec::with_capacity(capacity),
            held_early: Vec::with_capacity(capacity),
            completions: Vec::new(),
            sums: Vec::new(),
            settled: Vec::new(),
            pace,
            pieces,
            kept_allowed: kept_capacity,
            kept_capacity,
            parts: Vec::new(),
            parts_ahead,
            refused: None,
            stats: InflowStats::default(),
        })
    }

    /// Where the device finds the pieces of the record in `slot`: the buffer and the offset in it, the offset in the record, the length.
    fn for_each_piece(&self, slot: HostSlot, mut visit: impl FnMut(&Buffer, u64, u64, u64)) {
        let place = &self.places[slot.0 as usize];
        let pieces = place.pieces.expect("invariant: what is held has pieces");
        for (piece, (buffer, range)) in pieces.iter().zip(place.buffers.iter().zip(&place.ranges)) {
            let buffer = buffer.as_ref().expect("invariant: what is held has its buffers");
            let (landed, offset_bytes) = self.transport.staging().land(buffer, range);
            visit(landed, offset_bytes, piece.record_offset_bytes, range.len() as u64);
        }
    }

    /// Where experts are read from.
    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    pub(super) fn transport(&self) -> &Transport {
        &self.transport
    }

    pub(super) fn transport_mut(&mut self) -> &mut Transport {
        &mut self.transport
    }

    pub(super) fn stats(&self) -> InflowStats {
        self.stats
    }

    /// Uses since `before`, which is what [`Self::stats`] said, were not a step's: they are not counted. Bytes are.
    pub(super) fn forget_uses_since(&mut self, before: InflowStats) {
        let InflowStats { demand_reads, guesses_used_late, guesses_used, host_hits, .. } = before;
        self.stats = InflowStats { demand_reads, guesses_used_late, guesses_used, host_hits, ..self.stats };
    }

    /// Asks for an expert that a step waits for.
    pub(super) fn want(&mut self, key: ExpertKey) -> Wanted {
        match self.tier.lookup(key) {
            Some((slot, Found::Held)) => {
                if self.tier.is_guess(slot) {
                    self.stats.guesses_used += 1;
                } else {
                    self.stats.host_hits += 1;
                }
                self.hold(slot);
                Wanted::Held(slot)
            }
            Some((slot, Found::Reading)) => {
                let place = &mut self.places[slot.0 as usize];
                // What failed before anybody waited for it is asked for anew once the rest of it has ended, and counted then.
                let has_failed = !place.is_wanted && place.failure.is_some();
                if has_failed {
                    place.failure = Some(ExpertError::Abandoned);
                }
                place.is_wanted = true;
                let has_begun = place.next_piece > 0;
                if self.tier.is_unwanted_guess(slot) {
                    match (has_failed, has_begun) {
                        (true, _) => {}
                        (false, true) => self.stats.guesses_used_late += 1,
                        (false, false) => self.stats.demand_reads += 1,
                    }
                    self.tier.want(slot);
                    if let Some(at) = self.guesses.iter().position(|&other| other == slot) {
                        self.guesses.remove(at);
                        self.demand.push_back(slot);
                    }
                }
                Wanted::Reading(slot)
            }
            None => {
                let mut slot = self.claim(key, Claim::Demand);
                if slot.is_none() {
                    // What a step waits for goes before guesses that have not begun.
                    self.drop_guesses(|_| true);
                    slot = self.tier.claim(key, Claim::Demand);
                }
                let Some(slot) = slot else { return Wanted::NoSlot };
                self.stats.demand_reads += 1;
                self.prepare(slot, key, true);
                self.demand.push_back(slot);
                Wanted::Reading(slot)
            }
        }
    }

    /// Has an expert read that a step may want soon, when the drive has nothing better to do. False when there is no room for
    /// it, or it is here.
    pub(super) fn guess(&mut self, key: ExpertKey) -> bool {
        if self.tier.lookup(key).is_some() {
            return false;
        }
        let Some(slot) = self.claim(key, Claim::Guess) else { return false };
        self.prepare(slot, key, false);
        self.guesses.push_back(slot);
        true
    }

    /// Gives up guesses for which `is_stale` holds: those not begun are not read, those that lie there may be overwritten.
    pub(super) fn drop_guesses(&mut self, is_stale: impl Fn(ExpertKey) -> bool) {
        let (tier, places, stats) = (&mut self.tier, &mut self.places, &mut self.stats);
        self.guesses.retain(|&slot| {
            let place = &mut places[slot.0 as usize];
            let is_untouched = place.next_piece == 0;
            let drop_it = is_untouched && place.key.is_some_and(&is_stale);
            if drop_it {
                place.key = None;
                tier.failed(slot);
            }
            !drop_it
        });
        stats.guesses_wasted += u64::from(tier.drop_guesses(is_stale));
    }

    /// How many more guesses find a slot.
    pub(super) fn guess_room(&self) -> u32 {
        self.tier.guess_room()
    }

    /// Whether a read is under way.
    pub(super) fn is_reading(&self) -> bool {
        self.transport.in_flight() > 0
    }

    /// A slot to read into. While more memory may be had it is an empty one, so that what was read stays: when the device gives it up
    /// nothing needs to be copied.
    fn claim(&mut self, key: ExpertKey, claim: Claim) -> Option<HostSlot> {
        if !self.tier.has_free() {
            self.grow();
        }
        self.tier.claim(key, claim)
    }

    /// Whether copies out of slots are under way.
    pub(super) fn is_lending(&self) -> bool {
        !self.lent.is_empty()
    }

    fn prepare(&mut self, slot: HostSlot, key: ExpertKey, is_wanted: bool) {
        let pieces = self.source.expert_pieces(key);
        self.places[slot.0 as usize].prepare(key, pieces, is_wanted);
    }

    /// Begins as many reads as the pace allows, demands first.
    pub(super) fn begin_reads(&mut self) {
        while self.transport.room() > 0 {
            let (slot, is_guess) = match (self.demand.front(), self.guesses.front()) {
                (Some(&slot), _) => (slot, false),
                (None, Some(&slot)) => (slot, true),
                (None, None) => return,
            };
            let place = &mut self.places[slot.0 as usize];
            let pieces = place.pieces.expect("invariant: prepared when it was asked for");
            let piece = place.next_piece;
            let span = pieces[piece].span;
            if !self.pace.admits(span.len_bytes, is_guess) {
                return;
            }
            if piece == 0 && is_guess {
                self.stats.guesses_issued += 1;
            }
            let buffer = place.take_buffer(piece);
            let now = Instant::now();
            place.begun[piece] = Some((now, is_guess));
            place.next_piece += 1;
            if place.next_piece == pieces.len() {
                if is_guess {
                    self.guesses.pop_front()
                } else {
                    self.demand.pop_front()
                };
            }
            self.pace.begun(span.len_bytes, is_guess, now);
            self.transport.push(Read {
                file: span.file,
                offset_bytes: span.offset_bytes,
                len_bytes: u32::try_from(span.len_bytes).expect("invariant: a record is below 4 GiB"),
                buffer,
                tag: tag_of(slot, piece),
            });
        }
    }

    /// No step waits for anything any more: what has not begun is not read, and what is being read counts as a guess that fails
    /// in silence.
    pub(super) fn abandon(&mut self) {
        for slot in self.demand.drain(..).chain(self.guesses.drain(..)) {
            if self.places[slot.0 as usize].give_up() {
                self.tier.failed(slot);
            }
        }
        self.places.iter_mut().for_each(|place| place.is_wanted = false);
        self.held.drain(..).for_each(|slot| self.tier.give_back(slot));
        self.held_early.clear();
    }

    /// Forgets every record; reads and copies under way are waited for.
    ///
    /// # Errors
    /// When the device is lost or the queue fails.
    pub(super) fn clear(&mut self) -> Result<(), ExpertError> {
        self.abandon();
        while self.transport.in_flight() > 0 || self.is_summing() {
            self.collect(true)?;
        }
        while !self.lent.is_empty() {
            self.take_back(true)?;
        }
        self.tier.clear_idle();
        Ok(())
    }

    /// How far `key` has come in `slot`; `None` when it is not there any more.
    pub(super) fn arrival(&self, slot: HostSlot, key: ExpertKey) -> Option<Arrival> {
        match self.tier.lookup(key).filter(|&(at, _)| at == slot)?.1 {
            Found::Held => Some(Arrival::Held),
            Found::Reading if self.places[slot.0 as usize].is_whole() => Some(Arrival::Landed),
            Found::Reading => Some(Arrival::Reading),
        }
    }

    /// Keeps `slot`, whose record is held, for a copy that is to be submitted next.
    pub(super) fn hold(&mut self, slot: HostSlot) {
        self.tier.lend(slot);
        self.held.push(slot);
    }

    /// Keeps `slot`, whose record has landed and is being summed, for a copy that is submitted before anything else is taken in.
    pub(super) fn hold_early(&mut self, slot: HostSlot) {
        self.held_early.push(slot);
    }

    /// Records the copy of a held record to `target`.
    pub(super) fn record_copy(
        &self,
        recorder: &mut Recorder,
        slot: HostSlot,
        target: &Buffer,
        target_offset_bytes: u64,
    ) {
        self.for_each_piece(slot, |source, offset_bytes, record_offset_bytes, len_bytes| {
            recorder.copy(source, offset_bytes, target, target_offset_bytes + record_offset_bytes, len_bytes);
        });
    }

    /// The copies of all that is held end with `ticket`.
    pub(super) fn submitted(&mut self, ticket: Ticket) {
        self.lent.extend(self.held.drain(..).map(|slot| (ticket, slot)));
        for slot in self.held_early.drain(..) {
            self.places[slot.0 as usize].early_copy = Some(ticket);
        }
    }

    /// Takes back the slots whose copies have ended; with `wait`, waits for the oldest first.
    ///
    /// # Errors
    /// When the device is lost.
    pub(super) fn take_back(&mut self, wait: bool) -> Result<(), ExpertError> {
        if let (true, Some(&(ticket, _))) = (wait, self.lent.front()) {
            self.transport.wait_copy(ticket)?;
        }
        while let Some(&(ticket, slot)) = self.lent.front() {
            if !self.transport.gpu().is_done(ticket)? {
                break;
            }
            self.lent.pop_front();
            self.tier.give_back(slot);
        }
        Ok(())
    }
}
