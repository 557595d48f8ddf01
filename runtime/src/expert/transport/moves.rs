//! Moves carried out: reads and copies of many spans at once. An engine's dense weights come this way.

use std::ops::Range;
use std::time::Instant;

use super::{COPY_BATCH_BYTES, Move, Transport};
use crate::base::events::Lane;
use crate::base::region::HostBuffer;
use crate::disk::{Completion, Read};
use crate::expert::ExpertError;
use crate::expert::check::{Check, Verdict};
use crate::gpu::{Buffer, Recorder, Ticket};

/// A move whose read has begun.
pub(super) struct UnderWay {
    item: Move,
    /// Whether the read was begun again, after its bytes were found wrong.
    is_second_read: bool,
    began: Instant,
    /// Its bytes, while they wait for those before them: a tensor's parts are checked in their order.
    waiting: Option<(HostBuffer, Range<usize>)>,
}

pub(super) struct Landed {
    range: Range<usize>,
    buffer: HostBuffer,
    target: Buffer,
    target_offset_bytes: u64,
}

impl Transport {
    /// Carries out all moves. `begin` records what must stand in front of the first copy, `finish` what must follow the last,
    /// in the same submissions as these.
    ///
    /// Returns when the last copy is submitted: the ticket tells when it is done.
    ///
    /// # Errors
    /// The first that a read or the device reports, or [`ExpertError::Damaged`]. What was not read, or is not what it should
    /// be, is not copied and `finish` is not called; `begin` and some of the copies may have been submitted.
    pub fn run(
        &mut self,
        moves: &mut dyn Iterator<Item = Move>,
        begin: &mut dyn FnMut(&mut Recorder),
        finish: &mut dyn FnMut(&mut Recorder),
    ) -> Result<Ticket, ExpertError> {
        self.take_back()?;
        let outcome = self.carry(moves, begin, finish);
        if outcome.is_err() {
            // The first error is the one to report.
            let _ = self.take_back();
        }
        outcome
    }

    pub(super) fn carry(
        &mut self,
        moves: &mut dyn Iterator<Item = Move>,
        begin: &mut dyn FnMut(&mut Recorder),
        finish: &mut dyn FnMut(&mut Recorder),
    ) -> Result<Ticket, ExpertError> {
        let mut begin = Some(begin);
        let mut next = moves.next();
        loop {
            while let Some(item) = next.take() {
                match self.start(item)? {
                    None => next = moves.next(),
                    Some(item) => {
                        next = Some(item);
                        break;
                    }
                }
            }
            let is_idle = self.queue.in_flight() == 0;
            if is_idle && next.is_none() {
                return self.submit(begin.take(), Some(finish));
            }
            if self.landed_bytes >= COPY_BATCH_BYTES || (is_idle && !self.landed.is_empty()) {
                self.submit(begin.take(), None)?;
            } else if is_idle {
                if let Some(ticket) = self.staging.next_free() {
                    self.watch.wait_copy(&self.gpu, ticket)?;
                }
            } else {
                self.collect()?;
            }
        }
    }

    /// Starts the read of one move, or gives it back where no buffer or no place in the queue is free.
    pub(super) fn start(&mut self, item: Move) -> Result<Option<Move>, ExpertError> {
        assert!(
            item.span.len_bytes <= u64::from(self.span_bytes_max),
            "a move is longer than the ring's buffers"
        );
        if self.queue.in_flight() == self.queue.depth() {
            return Ok(Some(item));
        }
        let Some(buffer) = self.staging.take(&self.gpu)? else { return Ok(Some(item)) };
        self.push_move(&item, self.tag_next, buffer);
        self.under_way.push_back(Some(UnderWay {
            item,
            is_second_read: false,
            began: Instant::now(),
            waiting: None,
        }));
        self.tag_next += 1;
        Ok(None)
    }

    pub(super) fn push_move(&mut self, item: &Move, tag: u64, buffer: HostBuffer) {
        let pushed = self.queue.push(Read {
            file: item.span.file,
            offset_bytes: item.span.offset_bytes,
            len_bytes: u32::try_from(item.span.len_bytes).expect("invariant: asserted when it started"),
            buffer,
            tag,
        });
        assert!(pushed.is_ok(), "a queue below its depth takes a read");
    }

    /// Waits for reads to end and takes in what they brought.
    pub(super) fn collect(&mut self) -> Result<(), ExpertError> {
        let mut completions = std::mem::take(&mut self.completions);
        let begin = Instant::now();
        let mut failure = self.queue.poll(true, &mut completions).err().map(ExpertError::from);
        self.watch.waited_for_disk(begin);
        for Completion { tag, buffer, result } in completions.drain(..) {
            // Tags before `tag_first` are of a call that has failed: nobody waits for them.
            let index = tag.checked_sub(self.tag_first).and_then(|index| usize::try_from(index).ok());
            let index = index.filter(|&index| matches!(self.under_way.get(index), Some(Some(_))));
            match (result, index) {
                (Ok(range), Some(index)) if failure.is_none() => {
                    failure = self.arrive(index, buffer, range).err();
                }
                (Ok(_), _) => self.staging.give_back(buffer),
                (Err(error), _) => {
                    self.staging.give_back(buffer);
                    failure.get_or_insert(error.into());
                }
            }
        }
        self.completions = completions;
        match failure {
            None => self.settle(),
            Some(error) => Err(error),
        }
    }

    /// Takes the bytes of one read: checks them, and has them read again once where they are wrong.
    pub(super) fn arrive(
        &mut self,
        index: usize,
        buffer: HostBuffer,
        range: Range<usize>,
    ) -> Result<(), ExpertError> {
        let slot = &mut self.under_way[index];
        let UnderWay { item, is_second_read, began, .. } = slot.take().expect("invariant: a read ends once");
        let layer = item.check.as_ref().and_then(Check::layer).map(|layer| layer.0);
        self.watch.log.add(Lane::Drive, "read", layer, range.len() as u64, began, Instant::now());
        if item.check.as_ref().is_some_and(Check::is_in_order) {
            *slot = Some(UnderWay { item, is_second_read, began, waiting: Some((buffer, range)) });
            return Ok(());
        }
        let verdict = self.checker.check(item.check.as_ref(), &buffer.as_slice()[range.clone()]);
        match (verdict, is_second_read) {
            (Verdict::Right, _) => self.land(item, buffer, range),
            (Verdict::Wrong, false) => {
                // The drive, or the way from it, may have been wrong this once.
                self.checker.note_second_read();
                self.push_move(&item, self.tag_first + index as u64, buffer);
                self.under_way[index] =
                    Some(UnderWay { item, is_second_read: true, began: Instant::now(), waiting: None });
            }
            (Verdict::Wrong, true) => {
                self.staging.give_back(buffer);
                return Err(self.damaged(&item));
            }
        }
        Ok(())
    }

    /// Takes from the front what has landed, and what waits there for its turn to be checked.
    pub(super) fn settle(&mut self) -> Result<(), ExpertError> {
        while let Some(front) = self.under_way.front_mut() {
            if let Some(under_way) = front {
                let Some((buffer, range)) = under_way.waiting.take() else { break };
                let item = front.take().expect("invariant: looked at above").item;
                let verdict = self.checker.check(item.check.as_ref(), &buffer.as_slice()[range.clone()]);
                if verdict == Verdict::Wrong {
                    self.staging.give_back(buffer);
                    return Err(self.damaged(&item));
                }
                self.land(item, buffer, range);
            }
            self.under_way.pop_front();
            self.tag_first += 1;
        }
        Ok(())
    }

    pub(super) fn damaged(&self, item: &Move) -> ExpertError {
        self.checker.damaged(item.check.as_ref().expect("invariant: something was compared"), item.span)
    }

    pub(super) fn land(&mut self, item: Move, buffer: HostBuffer, range: Range<usize>) {
        let Move { target, target_offset_bytes, .. } = item;
        self.landed_bytes += range.len() as u64;
        self.landed.push(Landed { range, buffer, target, target_offset_bytes });
    }

    /// Records and submits the copies of what has landed.
    pub(super) fn submit(
        &mut self,
        begin: Option<&mut dyn FnMut(&mut Recorder)>,
        finish: Option<&mut dyn FnMut(&mut Recorder)>,
    ) -> Result<Ticket, ExpertError> {
        let mut recorder = self.gpu.recorder()?;
        if let Some(begin) = begin {
            begin(&mut recorder);
        }
        let clock = self.watch.clock.clone();
        let mark = if self.landed_bytes > 0 {
            clock.mark(Lane::Copy, "copy", None, self.landed_bytes)
        } else {
            None
        };
        clock.begin(&mut recorder, mark);
        for item in &self.landed {
            let (source, offset_bytes) = self.staging.land(&item.buffer, &item.range);
            let len_bytes = item.range.len() as u64;
            recorder.copy(source, offset_bytes, &item.target, item.target_offset_bytes, len_bytes);
        }
        clock.end(&mut recorder, mark);
        if let Some(finish) = finish {
            recorder.barrier();
            finish(&mut recorder);
        }
        let submitted = recorder.finish().and_then(|commands| Ok((self.gpu.submit(&[&commands])?, commands)));
        clock.ended(submitted.as_ref().ok().map(|&(ticket, _)| ticket), mark);
        let (ticket, commands) = submitted?;
        for item in self.landed.drain(..) {
            self.staging.release(ticket, item.buffer);
        }
        self.landed_bytes = 0;
        self.retired.add(&self.gpu, ticket, commands)?;
        Ok(ticket)
    }

    /// Puts back whatever a failed call has left: reads still under way, buffers that were never copied.
    pub(super) fn take_back(&mut self) -> Result<(), ExpertError> {
        self.landed.drain(..).for_each(|item| self.staging.give_back(item.buffer));
        self.landed_bytes = 0;
        self.checker.forget();
        let waiting = self.under_way.drain(..).flatten().filter_map(|under_way| under_way.waiting);
        waiting.for_each(|(buffer, _)| self.staging.give_back(buffer));
        self.tag_first = self.tag_next;
        while self.queue.in_flight() > 0 {
            let mut completions = Vec::new();
            let polled = self.queue.poll(true, &mut completions);
            completions.into_iter().for_each(|completion| self.staging.give_back(completion.buffer));
            polled?;
        }
        Ok(())
    }
}
