//! Brings records into slots: reads, copies as they land, and the entries of the device's table behind them.

use flint_shaders::layout::NO_SLOT;

use super::Streamer;
use crate::base::events::Lane;
use crate::base::ids::{ExpertKey, SlotIndex};
use crate::expert::ExpertError;
use crate::expert::host_tier::HostSlot;
use crate::expert::inflow::{Arrival, Wanted};
use crate::expert::plan::Load;
use crate::expert::transport::COPY_BATCH_BYTES;
use crate::gpu::{Mark, Recorder, Ticket};

/// Two NaNs of 16 bits: scales of blocks are of these.
#[cfg(feature = "simulation")]
const POISON: u32 = 0x7e00_7e00;

impl Streamer {
    /// Has what leaves its slot copied to host memory, as far as it is kept there. The copies run while the records are read that
    /// take their places, and in front of the copies that bring these.
    pub(super) fn keep_victims(&mut self, loads: &[Load]) -> Result<(), ExpertError> {
        let mut copies = Vec::new();
        for load in loads {
            let Some(victim) = load.victim else { continue };
            let pool = &self.pool;
            // What a sweep passes on is worth no more than what the sweep before left there.
            let is_worth_more = |one, other| !pool.is_sweep() && pool.is_worth_more(one, other);
            if let Some(slot) = self.inflow.keep(victim, is_worth_more) {
                copies.push((slot, load.slot));
            }
        }
        if copies.is_empty() {
            return Ok(());
        }
        let submitted = self.submit_keeps(&copies);
        let slots: Vec<HostSlot> = copies.iter().map(|&(slot, _)| slot).collect();
        self.inflow.kept(&slots, submitted.as_ref().ok().copied());
        submitted.map(|_| ())
    }

    pub(super) fn submit_keeps(&mut self, copies: &[(HostSlot, SlotIndex)]) -> Result<Ticket, ExpertError> {
        let transport = self.inflow.transport();
        let (gpu, clock) = (transport.gpu().clone(), transport.watch().clock.clone());
        let mut recorder = gpu.copy_recorder()?;
        let bytes = copies.len() as u64 * self.memory.record_bytes;
        let mark = clock.mark_in(&recorder, Lane::Copy, "keep", None, bytes);
        clock.begin(&mut recorder, mark);
        for &(host, slot) in copies {
            let (source, offset_bytes) = self.memory.place(slot);
            self.inflow.record_keep(&mut recorder, host, source, offset_bytes);
        }
        clock.end(&mut recorder, mark);
        self.submit(recorder, mark, None)
    }

    /// Submits copies recorded within `mark`, to run after `after`.
    pub(super) fn submit(
        &mut self,
        recorder: Recorder,
        mark: Option<Mark>,
        after: Option<Ticket>,
    ) -> Result<Ticket, ExpertError> {
        let transport = self.inflow.transport();
        let (gpu, clock) = (transport.gpu().clone(), transport.watch().clock.clone());
        let submitted =
            recorder.finish().and_then(|commands| Ok((gpu.submit_copies(&commands, after)?, commands)));
        clock.ended(submitted.as_ref().ok().map(|&(ticket, _)| ticket), mark);
        let (ticket, commands) = submitted?;
        self.retired.add(&gpu, ticket, commands)?;
        Ok(ticket)
    }

    /// Copies run as records land, beside their sums; the device's table names the slots only when all sums were right.
    pub(super) fn bring(&mut self, loads: &[Load]) -> Result<(), ExpertError> {
        self.inflow.take_back(false)?;
        let mut next = loads.iter().peekable();
        let list = || Vec::<(HostSlot, &Load)>::with_capacity(loads.len());
        // Held and to be copied; asked for and not copied; copied, with sums that are not known.
        let (mut batch, mut awaited, mut unproven) = (list(), list(), list());
        let (mut is_first, mut are_kept) = (true, false);
        loop {
            // Asked for as early as there are slots, so that the drive always has work.
            while let Some(&load) = next.peek() {
                match self.inflow.want(load.key) {
                    Wanted::Held(slot) => batch.push((slot, load)),
                    Wanted::Reading(slot) => awaited.push((slot, load)),
                    Wanted::NoSlot => break,
                }
                next.next();
            }
            self.inflow.begin_reads();
            if !std::mem::replace(&mut are_kept, true) {
                // Behind what was found in host memory, which leaves its place there to what leaves the device.
                self.keep_victims(loads)?;
                #[cfg(feature = "simulation")]
                self.poison_slots(loads)?;
            }
            let landed = awaited.iter().filter(|(slot, load)| {
                matches!(self.inflow.arrival(*slot, load.key), Some(Arrival::Landed | Arrival::Held))
            });
            let landed = landed.count();
            let ready = batch.len() + landed;
            let (is_asked, is_all_here) = (next.peek().is_none(), landed == awaited.len());
            if ready > 0 && (is_all_here || ready as u64 * self.memory.record_bytes >= COPY_BATCH_BYTES) {
                for (slot, load) in std::mem::replace(&mut awaited, list()) {
                    match self.inflow.arrival(slot, load.key) {
                        Some(Arrival::Held) => self.inflow.hold(slot),
                        Some(Arrival::Landed) => {
                            self.inflow.hold_early(slot);
                            unproven.push((slot, load));
                        }
                        Some(Arrival::Reading) | None => {
                            awaited.push((slot, load));
                            continue;
                        }
                    }
                    batch.push((slot, load));
                }
                let is_last = is_asked && is_all_here && unproven.is_empty();
                self.submit_copies(&batch, std::mem::take(&mut is_first), if is_last { loads } else { &[] })?;
                batch.clear();
                if is_last {
                    return Ok(());
                }
            }
            if is_asked && awaited.is_empty() && unproven.is_empty() {
                return self.submit_copies(&[], is_first, loads);
            }
            if !awaited.is_empty() {
                self.inflow.collect(true)?;
                self.inflow.take_back(false)?;
            } else if self.inflow.is_summing() {
                self.inflow.wait_for_sums()?;
            } else if self.inflow.is_lending() {
                // Every host slot is being copied from, or guesses are being read into it.
                self.inflow.take_back(true)?;
            } else {
                self.inflow.collect(true)?;
            }
            for (slot, load) in std::mem::replace(&mut unproven, list()) {
                match self.inflow.arrival(slot, load.key) {
                    Some(Arrival::Held) => {}
                    Some(Arrival::Landed) => unproven.push((slot, load)),
                    // It was wrong, and is read again.
                    Some(Arrival::Reading) | None => awaited.push((slot, load)),
                }
            }
            for entry in &mut awaited {
                // What was begun for a step that failed, and given up, is asked for anew.
                if self.inflow.arrival(entry.0, entry.1.key).is_none() {
                    entry.0 = match self.inflow.want(entry.1.key) {
                        Wanted::Reading(slot) => slot,
                        Wanted::Held(_) | Wanted::NoSlot => {
                            unreachable!("it is nowhere, and its own slot has just become free")
                        }
                    };
                }
            }
        }
    }

    /// Fills the slots that are to be taken with NaNs, for a test: whoever still reads one computes with them.
    #[cfg(feature = "simulation")]
    pub(super) fn poison_slots(&mut self, loads: &[Load]) -> Result<(), ExpertError> {
        if !self.poisons {
            return Ok(());
        }
        let mut recorder = self.inflow.transport().gpu().copy_recorder()?;
        for &victim in &self.unlisted {
            recorder.update(&self.table, self.entry_offset_bytes(victim), &NO_SLOT.to_le_bytes());
        }
        for load in loads {
            let (buffer, offset_bytes) = self.memory.place(load.slot);
            recorder.fill(buffer, offset_bytes, self.memory.record_bytes & !3, POISON);
        }
        let after = loads.iter().filter_map(|load| self.given_until[load.slot.0 as usize]).max();
        self.submit(recorder, None, after).map(|_| ())
    }

    /// Submits copies of what host memory has; in front of the first, what left its slot leaves the device's table, and behind
    /// the last, `listed` enter it.
    pub(super) fn submit_copies(
        &mut self,
        batch: &[(HostSlot, &Load)],
        is_first: bool,
        listed: &[Load],
    ) -> Result<(), ExpertError> {
        let ticket = self.record_and_submit(batch, is_first, listed)?;
        self.inflow.submitted(ticket);
        self.copies = Some(ticket);
        Ok(())
    }

    pub(super) fn record_and_submit(
        &mut self,
        batch: &[(HostSlot, &Load)],
        is_first: bool,
        listed: &[Load],
    ) -> Result<Ticket, ExpertError> {
        let gpu = self.inflow.transport().gpu().clone();
        let clock = self.inflow.transport().watch().clock.clone();
        let mut recorder = gpu.copy_recorder()?;
        if is_first {
            for &victim in &self.unlisted {
                recorder.update(&self.table, self.entry_offset_bytes(victim), &NO_SLOT.to_le_bytes());
            }
        }
        let after = batch.iter().filter_map(|(_, load)| self.given_until[load.slot.0 as usize]).max();
        let bytes = batch.len() as u64 * self.memory.record_bytes;
        let mark = if bytes > 0 { clock.mark_in(&recorder, Lane::Copy, "copy", None, bytes) } else { None };
        clock.begin(&mut recorder, mark);
        for &(slot, load) in batch {
            let (buffer, offset_bytes) = self.memory.place(load.slot);
            self.inflow.record_copy(&mut recorder, slot, buffer, offset_bytes);
        }
        clock.end(&mut recorder, mark);
        if !listed.is_empty() {
            recorder.barrier();
        }
        for load in listed {
            recorder.update(&self.table, self.entry_offset_bytes(load.key), &load.slot.0.to_le_bytes());
        }
        self.submit(recorder, mark, after)
    }

    pub(super) fn entry_offset_bytes(&self, key: ExpertKey) -> u64 {
        u64::from(self.space.index(key)) * 4
    }
}
