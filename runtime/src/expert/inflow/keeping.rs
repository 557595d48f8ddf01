//! Host memory that keeps what the device gives up: it grows as it is needed and goes back part by part.

use super::Inflow;
use crate::base::ids::ExpertKey;
use crate::expert::ExpertError;
use crate::expert::host_tier::{Claim, HostSlot};
use crate::expert::parts_ahead::PartsAhead;
use crate::expert::staging::Part;
use crate::gpu::{Buffer, Recorder, Ticket};

impl Inflow {
    /// How many experts may be kept, as far as there is memory for them.
    pub(in crate::expert) fn kept_allowed(&self) -> u32 {
        self.kept_allowed
    }

    /// Slots that have memory beyond the ring's.
    pub(in crate::expert) fn kept_memory(&self) -> u32 {
        self.tier.kept_max()
    }

    /// Experts that are kept.
    pub(in crate::expert) fn kept_count(&self) -> u32 {
        self.tier.kept_count()
    }

    /// From now on at most `slots` experts are kept: memory beyond goes back to the system as far as nothing is under way in it,
    /// the rest with a later call.
    pub(in crate::expert) fn allow_kept(&mut self, slots: u32) {
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

    pub(super) fn give_up(&mut self, part: Vec<HostSlot>) {
        let mut buffers = Vec::with_capacity(part.len() * self.pieces);
        for slot in part {
            self.tier.remove(slot);
            buffers.extend(self.places[slot.0 as usize].give_buffers());
        }
        self.transport.shrink(buffers);
    }

    /// Experts that may be kept and have no memory yet.
    pub(super) fn wanted(&self) -> usize {
        self.kept_allowed.saturating_sub(self.tier.kept_max()) as usize
    }

    /// Memory that was made ahead, or is being made, and that nothing is kept in yet.
    pub(in crate::expert) fn has_memory_ahead(&self) -> bool {
        self.parts_ahead.as_ref().is_some_and(PartsAhead::has_asked)
    }

    /// Why no more memory was to be had, if it was refused.
    pub(in crate::expert) fn refused(&self) -> Option<&ExpertError> {
        self.refused.as_ref()
    }

    /// Takes memory for some experts more, where that is allowed and some is ready, and has more made. Where none can be had no more
    /// is asked for.
    pub(super) fn grow(&mut self) {
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

    pub(super) fn adopt(&mut self, part: Part) {
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
    pub(in crate::expert) fn keep(
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
    pub(in crate::expert) fn record_keep(
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

    /// The copies into `slots` end with the ticket; without one they were never submitted.
    pub(in crate::expert) fn kept(&mut self, slots: &[HostSlot], ticket: Option<Ticket>) {
        match ticket {
            Some(ticket) => self.lent.extend(slots.iter().map(|&slot| (ticket, slot))),
            None => slots.iter().for_each(|&slot| self.tier.forget(slot)),
        }
    }
}
