//! Reads of a pool: begun as there is room, taken in, compared, and told to the requests that hold them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use super::{HostPool, HostPoolError, PIECES};
use crate::base::ids::SlotIndex;
use crate::disk::{self, Completion, Read};
use crate::expert::ExpertError;
use crate::store::{join_record, piece_checksum};

impl HostPool {
    /// Begins as many reads as there is room for, guesses last; they leave half of the queue to what is needed.
    pub(super) fn begin_reads(&mut self) {
        let depth = self.queue.depth();
        while self.queue.in_flight() < depth {
            let (from, slot) = match (self.needed.front(), self.guesses.front()) {
                (Some(&slot), _) => (&mut self.needed, slot),
                (None, Some(&slot)) if self.queue.in_flight() < depth.div_ceil(2) => {
                    (&mut self.guesses, slot)
                }
                _ => return,
            };
            let place = &mut self.places[slot.0 as usize];
            let pieces = place.pieces.expect("invariant: prepared when it was asked for");
            let piece = place.next_piece;
            place.next_piece += 1;
            if place.next_piece == pieces.len() {
                from.pop_front();
            }
            let span = pieces[piece].span;
            let pushed = self.queue.push(Read {
                file: span.file,
                offset_bytes: span.offset_bytes,
                len_bytes: u32::try_from(span.len_bytes).expect("invariant: a record is below 1 GiB"),
                buffer: place.buffers[piece].take().expect("invariant: nobody else reads into it"),
                tag: u64::from(slot.0) * PIECES as u64 + piece as u64,
            });
            assert!(pushed.is_ok(), "a queue below its depth takes a read");
        }
    }

    /// Takes in the reads that have ended and begins more. Gives how many experts have arrived.
    ///
    /// # Errors
    /// When the queue failed. What happened to an expert is told by the requests that hold it.
    pub fn take_in(&mut self) -> Result<u32, HostPoolError> {
        disk::drain_eventfd(self.wake.as_fd());
        let mut completions = std::mem::take(&mut self.completions);
        let polled = self.queue.poll(false, &mut completions);
        let mut arrived = 0;
        for Completion { tag, buffer, result } in completions.drain(..) {
            let number = u32::try_from(tag / PIECES as u64).expect("invariant: tags are made of slots");
            let piece = usize::try_from(tag % PIECES as u64).expect("invariant: at most PIECES");
            let place = &mut self.places[number as usize];
            place.buffers[piece] = Some(buffer);
            match result {
                Ok(range) => place.ranges[piece] = range,
                Err(error) => {
                    place.failure.get_or_insert(error.into());
                }
            }
            place.left -= 1;
            if place.left == 0 {
                arrived += u32::from(self.settle(SlotIndex(number)));
            }
        }
        self.completions = completions;
        self.begin_reads();
        polled?;
        Ok(arrived)
    }

    /// All pieces of a slot have come. False when they are to come again.
    pub(super) fn settle(&mut self, slot: SlotIndex) -> bool {
        let place = &mut self.places[slot.0 as usize];
        let key = place.key.expect("invariant: what is read has a name");
        let pieces = place.pieces.expect("invariant: what is read has pieces");
        if place.failure.is_none() && self.is_checked {
            let begin = Instant::now();
            let record = self.source.record();
            let parts: [&[u8]; PIECES] = std::array::from_fn(|piece| place.bytes(piece));
            let matrices = if pieces.len() == PIECES { parts } else { record.matrices(key, parts[0]) };
            let sums = matrices.map(piece_checksum);
            let found = join_record(self.source.identity(), key, record.record_bytes(), sums);
            self.checks.bytes += record.record_bytes();
            self.checks.ns += u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            if self.source.record_checksum(key).is_some_and(|wanted| wanted != found) {
                if !place.is_second_read {
                    // The drive, or the way from it, may have been wrong this once.
                    self.checks.second_reads += 1;
                    (place.is_second_read, place.next_piece, place.left) = (true, 0, pieces.len());
                    self.needed.push_back(slot);
                    return false;
                }
                let span = pieces[0].span;
                place.failure = Some(ExpertError::Damaged {
                    what: key.to_string(),
                    path: self.source.files()[usize::from(span.file.0)].clone(),
                    offset_bytes: span.offset_bytes,
                    len_bytes: record.record_bytes(),
                });
            }
        }
        match place.failure.take() {
            None => {
                let holders = place.holders;
                self.table.loaded(slot);
                (0..holders).for_each(|_| self.table.pin(slot));
            }
            Some(error) => {
                (place.holders, place.key) = (0, None);
                self.table.load_failed(slot);
                let error = Arc::new(error);
                for request in self.requests.values_mut().filter(|request| request.slots.contains(&slot)) {
                    request.slots.retain(|&other| other != slot);
                    request.failure.get_or_insert_with(|| error.clone());
                }
            }
        }
        true
    }
}
