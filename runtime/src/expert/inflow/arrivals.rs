//! What has been read: summed, compared, held, or read once more.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::Inflow;
use crate::base::events::Lane;
use crate::base::ids::Span;
use crate::base::region::HostBuffer;
use crate::disk::{Completion, DiskError};
use crate::expert::ExpertError;
use crate::expert::check::{Check, Verdict};
use crate::expert::host_tier::HostSlot;
use crate::expert::place::{MATRICES, PIECES_MAX};
use crate::expert::sums::{Piece, Sums};

impl Inflow {
    /// Takes in what has been read and summed; with `wait`, waits until something has: a read, as long as one is under way.
    ///
    /// # Errors
    /// What happened to a read that a step waits for, or to the queue. What else is under way goes on.
    pub(in crate::expert) fn collect(&mut self, wait: bool) -> Result<(), ExpertError> {
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
    pub(in crate::expert) fn collect_quietly(&mut self) -> Result<(), ExpertError> {
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.transport.poll_quietly(&mut completions);
        self.take_in(completions, polled)
    }

    /// Waits until something more has been summed, if there is anything to be.
    ///
    /// # Errors
    /// As [`Self::collect`].
    pub(in crate::expert) fn wait_for_sums(&mut self) -> Result<(), ExpertError> {
        let mut sums = std::mem::take(&mut self.sums);
        self.transport.checker().wait(&mut sums);
        self.note_sums(sums);
        self.settle()
    }

    /// Whether something is being summed.
    pub(in crate::expert) fn is_summing(&mut self) -> bool {
        self.transport.checker().outstanding() > 0
    }

    pub(super) fn take_in(
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
    pub(super) fn arrive(
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
    pub(super) fn have_summed(&mut self, slot: HostSlot, piece: usize) {
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

    pub(super) fn note_sums(&mut self, mut sums: Vec<Sums>) {
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
    pub(super) fn settle(&mut self) -> Result<(), ExpertError> {
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
    pub(super) fn conclude(&mut self, slot: HostSlot) -> Result<(), ExpertError> {
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
}

/// The number of a piece on its way into a slot.
pub(super) fn tag_of(slot: HostSlot, piece: usize) -> u64 {
    u64::from(slot.0) * PIECES_MAX as u64 + piece as u64
}

fn of_tag(tag: u64) -> (HostSlot, usize) {
    let slot = u32::try_from(tag / PIECES_MAX as u64).expect("invariant: tags are made of slots");
    let piece = usize::try_from(tag % PIECES_MAX as u64).expect("invariant: at most PIECES_MAX");
    (HostSlot(slot), piece)
}
