//! Experts from the drive into host memory, whatever a step does meanwhile.
//!
//! - Owns: the transport, the host tier's table and its slots' memory.
//! - In: experts that a step waits for, and guesses at those that it will want.
//! - Out: host slots that hold a whole record: what was compared is held; what has landed and is being summed may be copied to where
//!   nobody looks yet.
//! - Invariants: reads that a step waits for are begun before every guess, and a guess only while few of their bytes are under way,
//!   so a demand waits for little that it did not ask for ([`Pace`]). A guess that fails is forgotten; a step
//!   that wants the same expert reads it again and hears what is wrong. A slot with a read or a copy under way is nobody else's.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::base::events::Lane;
use crate::base::ids::{ExpertKey, Span};
use crate::base::region::HostBuffer;
use crate::disk::{Completion, DiskError, Read};
use crate::expert::check::{Check, Verdict};
use crate::expert::host_tier::{Claim, Found, HostSlot, HostTier};
use crate::expert::pace::Pace;
use crate::expert::parts_ahead::PartsAhead;
use crate::expert::place::{MATRICES, PIECES_MAX, Place};
use crate::expert::staging::Part;
use crate::expert::sums::{Piece, Sums};
use crate::expert::{ExpertError, Transport};
use crate::gpu::{Buffer, Recorder, Ticket};
use crate::store::Source;

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

    /// How many experts may be kept, as far as there is memory for them.
    pub(super) fn kept_allowed(&self) -> u32 {
        self.kept_allowed
    }

    /// Slots that have memory beyond the ring's.
    pub(super) fn kept_memory(&self) -> u32 {
        self.tier.kept_max()
    }

    /// Experts that are kept.
    pub(super) fn kept_count(&self) -> u32 {
        self.tier.kept_count()
    }

    /// From now on at most `slots` experts are kept: memory beyond goes back to the system as far as nothing is under way in it,
    /// the rest with a later call.
    pub(super) fn allow_kept(&mut self, slots: u32) {
        self.kept_allowed = slots.min(self.kept_capacity);
        if self.take_back(false).is_err() {
            // The device is lost; the next step says so.
            return;
        }
        while self.wanted() == 0
            && let Some(ahead) = &mut self.parts_ahead
            && ahead.take().is_some()
        {}
        let mut at = self.parts.len();
        while at > 0 && self.tier.kept_max() > self.kept_allowed {
            at -= 1;
            if self.parts[at].iter().all(|&slot| self.tier.is_idle(slot)) {
                let part = self.parts.remove(at);
                self.give_up(part);
            }
        }
    }

    fn give_up(&mut self, part: Vec<HostSlot>) {
        let mut buffers = Vec::with_capacity(part.len() * self.pieces);
        for slot in part {
            self.tier.remove(slot);
            buffers.extend(self.places[slot.0 as usize].give_buffers());
        }
        self.transport.shrink(buffers);
    }

    /// Experts that may be kept and have no memory yet.
    fn wanted(&self) -> usize {
        self.kept_allowed.saturating_sub(self.tier.kept_max()) as usize
    }

    /// Memory that was made ahead, or is being made, and that nothing is kept in yet.
    pub(super) fn has_memory_ahead(&self) -> bool {
        self.parts_ahead.as_ref().is_some_and(PartsAhead::has_asked)
    }

    /// Why no more memory was to be had, if it was refused.
    pub(super) fn refused(&self) -> Option<&ExpertError> {
        self.refused.as_ref()
    }

    /// Takes memory for some experts more, where that is allowed and some is ready, and has more made. Where none can be had no more
    /// is asked for.
    fn grow(&mut self) {
        let wanted = self.wanted();
        let Some(ahead) = &mut self.parts_ahead else { return };
        match ahead.take() {
            // What came too late to be allowed goes back at once.
            Some(Ok(part)) if part.buffer_count() > wanted * self.pieces => {}
            Some(Ok(part)) => self.adopt(part),
            Some(Err(error)) => {
                self.kept_allowed = self.tier.kept_max();
                self.refused = Some(error);
            }
            None => {}
        }
        let buffers = self.wanted() * self.pieces;
        if let Some(ahead) = &mut self.parts_ahead {
            ahead.ask(buffers);
        }
    }

    fn adopt(&mut self, part: Part) {
        let mut buffers = self.transport.adopt(part);
        let mut slots = Vec::with_capacity(buffers.len() / self.pieces);
        while !buffers.is_empty() {
            let slot = self.tier.add().expect("invariant: no more is taken than is wanted");
            self.places[slot.0 as usize].take_buffers(self.pieces, &mut buffers);
            slots.push(slot);
        }
        self.parts.push(slots);
    }

    /// The device gives `key` up. `Some` when its bytes are to be copied into a slot before they are overwritten; nothing where they
    /// are here already, or are not kept. `is_worth_more` says whether the first of two is worth more than the second.
    pub(super) fn keep(
        &mut self,
        key: ExpertKey,
        is_worth_more: impl Fn(ExpertKey, ExpertKey) -> bool,
    ) -> Option<HostSlot> {
        if self.kept_capacity == 0 {
            return None;
        }
        if self.tier.is_kept_full() {
            self.grow();
        }
        if self.tier.is_kept_full() {
            let oldest = self.tier.oldest_kept()?;
            if !is_worth_more(key, oldest) {
                // One that is worth much does not stand for ever before others that are worth little.
                self.tier.renew_oldest_kept();
                return None;
            }
        }
        if self.tier.lookup(key).is_some() {
            self.tier.keep(key);
            return None;
        }
        let slot = self.tier.claim(key, Claim::Keep)?;
        self.prepare(slot, key, false);
        self.places[slot.0 as usize].is_written_by_device();
        self.stats.kept += 1;
        Some(slot)
    }

    /// Records the copy of a record that the device gives up, from `source` into the slot that [`Self::keep`] gave.
    pub(super) fn record_keep(
        &self,
        recorder: &mut Recorder,
        slot: HostSlot,
        source: &Buffer,
        source_offset_bytes: u64,
    ) {
        self.for_each_piece(slot, |target, offset_bytes, record_offset_bytes, len_bytes| {
            recorder.copy(source, source_offset_bytes + record_offset_bytes, target, offset_bytes, len_bytes);
        });
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

    /// The copies into `slots` end with the ticket; without one they were never submitted.
    pub(super) fn kept(&mut self, slots: &[HostSlot], ticket: Option<Ticket>) {
        match ticket {
            Some(ticket) => self.lent.extend(slots.iter().map(|&slot| (ticket, slot))),
            None => slots.iter().for_each(|&slot| self.tier.forget(slot)),
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

    /// Takes in what has been read and summed; with `wait`, waits until something has: a read, as long as one is under way.
    ///
    /// # Errors
    /// What happened to a read that a step waits for, or to the queue. What else is under way goes on.
    pub(super) fn collect(&mut self, wait: bool) -> Result<(), ExpertError> {
        if wait && self.transport.in_flight() == 0 {
            return self.wait_for_sums();
        }
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.transport.poll(wait, &mut completions);
        self.take_in(completions, polled)
    }

    /// As [`Self::collect`] that waits for a read, for one who waits for something else as well: it is not counted as a wait for reads.
    ///
    /// # Errors
    /// As [`Self::collect`].
    pub(super) fn collect_quietly(&mut self) -> Result<(), ExpertError> {
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.transport.poll_quietly(&mut completions);
        self.take_in(completions, polled)
    }

    /// Waits until something more has been summed, if there is anything to be.
    ///
    /// # Errors
    /// As [`Self::collect`].
    pub(super) fn wait_for_sums(&mut self) -> Result<(), ExpertError> {
        let mut sums = std::mem::take(&mut self.sums);
        self.transport.checker().wait(&mut sums);
        self.note_sums(sums);
        self.settle()
    }

    /// Whether something is being summed.
    pub(super) fn is_summing(&mut self) -> bool {
        self.transport.checker().outstanding() > 0
    }

    fn take_in(
        &mut self,
        mut completions: Vec<Completion>,
        polled: Result<(), DiskError>,
    ) -> Result<(), ExpertError> {
        for Completion { tag, buffer, result } in completions.drain(..) {
            let (slot, piece) = of_tag(tag);
            self.arrive(slot, piece, buffer, result.map_err(ExpertError::from));
        }
        self.completions = completions;
        let mut sums = std::mem::take(&mut self.sums);
        self.transport.checker().take(&mut sums);
        self.note_sums(sums);
        // The drive goes on while what it gave is looked at.
        self.begin_reads();
        let settled = self.settle();
        polled?;
        settled
    }

    /// Takes in one piece.
    fn arrive(
        &mut self,
        slot: HostSlot,
        piece: usize,
        buffer: HostBuffer,
        result: Result<Range<usize>, ExpertError>,
    ) {
        let place = &mut self.places[slot.0 as usize];
        let pieces = place.pieces.expect("invariant: what is read has pieces");
        let (begun, was_guess) = place.begun[piece].take().expect("invariant: what ends has begun");
        let now = Instant::now();
        self.pace.ended(pieces[piece].span.len_bytes, was_guess, now);
        place.buffers[piece] = Some(Arc::new(buffer));
        place.to_land -= 1;
        match result {
            Ok(range) => {
                if let Some(key) = place.key {
                    let bytes = range.len() as u64;
                    self.stats.read_bytes += bytes;
                    let watch = self.transport.watch();
                    watch.log.add(Lane::Drive, "read", Some(key.layer.0), bytes, begun, now);
                }
                place.ranges[piece] = range;
                self.have_summed(slot, piece);
            }
            Err(error) => {
                place.failure.get_or_insert(error);
                self.settled.push(slot);
            }
        }
    }

    /// Has a piece summed, where there is something to compare it with. A GGUF in place has no checksums.
    fn have_summed(&mut self, slot: HostSlot, piece: usize) {
        let place = &self.places[slot.0 as usize];
        let pieces = place.pieces.expect("invariant: what has landed has pieces");
        if !self.transport.checker().is_on() || place.key.is_none() || place.failure.is_some() {
            self.settled.push(slot);
            return;
        }
        let range = place.ranges[piece].clone();
        let matrices = if pieces.len() == MATRICES {
            [range, 0..0, 0..0]
        } else {
            self.source.record().matrix_ranges().map(|(offset_bytes, len_bytes)| {
                let number = |bytes: u64| usize::try_from(bytes).expect("invariant: a record is below 4 GiB");
                let begin = range.start + number(offset_bytes);
                begin..begin + number(len_bytes)
            })
        };
        let buffer = place.buffers[piece].clone().expect("invariant: it has landed");
        let job = Piece { tag: tag_of(slot, piece), buffer, matrices };
        if let Some(sums) = self.transport.checker().sum(job, place.is_wanted) {
            self.note_sums(vec![sums]);
        }
    }

    fn note_sums(&mut self, mut sums: Vec<Sums>) {
        for Sums { tag, sums, .. } in sums.drain(..) {
            let (slot, piece) = of_tag(tag);
            let place = &mut self.places[slot.0 as usize];
            match place.pieces.expect("invariant: what is summed has pieces").len() {
                MATRICES => place.sums[piece] = sums[0],
                _ => place.sums = sums,
            }
            self.settled.push(slot);
        }
        self.sums = sums;
    }

    /// Counts what has settled. Records of which all pieces have are done, or are read once more where they are wrong.
    fn settle(&mut self) -> Result<(), ExpertError> {
        let mut failure = None;
        let mut settled = std::mem::take(&mut self.settled);
        for slot in settled.drain(..) {
            let place = &mut self.places[slot.0 as usize];
            place.to_settle -= 1;
            if place.to_settle == 0
                && let Err(error) = self.conclude(slot)
            {
                failure.get_or_insert(error);
            }
        }
        self.settled = settled;
        failure.map_or(Ok(()), Err)
    }

    /// All that there is to know of a record in `slot` is known.
    ///
    /// # Errors
    /// What is wrong with a record that a step waits for.
    fn conclude(&mut self, slot: HostSlot) -> Result<(), ExpertError> {
        let place = &mut self.places[slot.0 as usize];
        let key = place.key.expect("invariant: what is read has a name");
        let pieces = place.pieces.expect("invariant: what is read has pieces");
        let checker = self.transport.checker();
        if place.failure.is_none() && checker.is_on() && checker.judge(key, place.sums) == Verdict::Wrong {
            let is_second_read = place.is_second_read;
            if is_second_read {
                let len_bytes = pieces.iter().map(|piece| piece.span.len_bytes).sum();
                let span = Span { len_bytes, ..pieces[0].span };
                place.failure = Some(checker.damaged(&Check::Record(key), span));
            } else {
                // The drive, or the way from it, may have been wrong this once.
                checker.note_second_read();
                place.is_second_read = true;
            }
            // Nobody uses the copy of what is wrong; but it reads the memory that is to be read into.
            let early_copy = place.early_copy.take();
            let waited = early_copy.map_or(Ok(()), |ticket| self.transport.wait_copy(ticket));
            let place = &mut self.places[slot.0 as usize];
            match waited {
                Err(error) => place.failure = Some(error),
                Ok(()) if is_second_read => {}
                Ok(()) => {
                    place.begin_again();
                    match self.tier.is_unwanted_guess(slot) {
                        true => self.guesses.push_back(slot),
                        false => self.demand.push_back(slot),
                    }
                    return Ok(());
                }
            }
        }
        let place = &mut self.places[slot.0 as usize];
        match place.failure.take() {
            None => {
                self.tier.landed(slot);
                if let Some(ticket) = place.early_copy.take() {
                    self.tier.lend(slot);
                    self.lent.push_back((ticket, slot));
                }
                Ok(())
            }
            Some(error) => {
                place.key = None;
                self.tier.failed(slot);
                // Whoever wants it later reads it again, and hears of it then.
                let is_heard = place.is_wanted && !matches!(error, ExpertError::Abandoned);
                if is_heard { Err(error) } else { Ok(()) }
            }
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

/// The number of a piece on its way into a slot.
fn tag_of(slot: HostSlot, piece: usize) -> u64 {
    u64::from(slot.0) * PIECES_MAX as u64 + piece as u64
}

fn of_tag(tag: u64) -> (HostSlot, usize) {
    let slot = u32::try_from(tag / PIECES_MAX as u64).expect("invariant: tags are made of slots");
    let piece = usize::try_from(tag % PIECES_MAX as u64).expect("invariant: at most PIECES_MAX");
    (HostSlot(slot), piece)
}
