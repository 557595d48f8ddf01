//! The store as the worker sees it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use flint_rt::base::ids::TokenId;
use flint_rt::engine::session::common_prefix;
use flint_rt::engine::snapshot::shape::CutMark;
use flint_rt::engine::snapshot::value::{CUTS_MAX, kept_cuts};
use flint_rt::engine::snapshot::{CacheShape, Cut, file};
use flint_rt::engine::{EngineError, Snapshot};
use flint_rt::text::chat::Marker;

use super::PrefixOptions;
use super::disk::Disk;
use super::errands::{Errand, From, Target};
use super::files::Files;
use super::memory::Memory;
use super::metrics::{Origin, PrefixMetrics};
use super::policy::{FreeSlot, GAIN_MIN, PROMPT_SLACK, TOKENS_MIN, Wanted, is_displaced, place, wanted_cuts};
use super::requests::{Action, Requests};
use crate::engine::backend::Backend;

/// What is known of a slot's conversation beside its cache.
pub(super) struct Slot {
    /// Cuts of it, by position.
    pub(super) cuts: Vec<Arc<Cut>>,
    /// Where more are wanted.
    wanted: Vec<Wanted>,
    /// Tokens of its last prompt.
    prompt_tokens: u32,
    /// Where the beginning of its prompt came from.
    pub(super) origin: Origin,
    /// What is to be done before its next step.
    pub(super) errands: VecDeque<Errand>,
}

impl Slot {
    fn new() -> Self {
        Self {
            cuts: Vec::new(),
            wanted: Vec::new(),
            prompt_tokens: 0,
            origin: Origin::Slot,
            errands: VecDeque::new(),
        }
    }

    /// It holds something that no prompt brought.
    pub(super) fn begin_anew(&mut self, tokens: usize) {
        self.prompt_tokens = len(tokens);
        self.wanted.clear();
    }

    /// The cut from which most of `prompt` is taken up, and how much.
    fn own_cut(&self, shape: &CacheShape, tokens: &[TokenId], prompt: &[TokenId]) -> Option<(Arc<Cut>, u32)> {
        let common = len(common_prefix(tokens, prompt));
        let reached = self.cuts.iter().map(|cut| (cut, common.min(cut.position())));
        let usable = reached.filter(|(cut, to)| *to > 0 && cut.reach(shape).contains(to));
        usable.max_by_key(|(_, to)| *to).map(|(cut, to)| (cut.clone(), to))
    }
}

/// How often it is asked at the end whether the writer has come further.
const WRITER_LOOK: Duration = Duration::from_millis(1);

/// All that is kept.
pub(crate) struct PrefixStore {
    pub(super) memory: Memory,
    pub(super) disk: Option<Arc<Disk>>,
    pub(super) files: Option<Files>,
    pub(super) slots: Vec<Slot>,
    shape: CacheShape,
    /// What the first turn of a chat begins with.
    turn: Option<TokenId>,
}

fn len(tokens: usize) -> u32 {
    u32::try_from(tokens).expect("invariant: a context is a u32")
}

impl PrefixStore {
    /// Nothing yet but what the folder has, for `slots` slots.
    ///
    /// # Errors
    /// When a folder cannot be used, or the system gives no threads.
    pub(crate) fn open<B: Backend>(
        options: &PrefixOptions,
        backend: &B,
        slots: usize,
    ) -> Result<Self, EngineError> {
        let (model, shape) = backend.identity();
        let disk = match &options.disk {
            Some((folder, bytes_max)) => {
                Some(Arc::new(Disk::open(folder, *bytes_max, model, shape.clone())?))
            }
            None => None,
        };
        if let Some(folder) = &options.slot_files {
            file::remove_partial(folder);
        }
        let files = match disk.is_some() || options.slot_files.is_some() {
            true => Some(Files::start(disk.clone(), model, shape.clone())?),
            false => None,
        };
        Ok(Self {
            memory: Memory::new(options.memory_bytes),
            disk,
            files,
            slots: (0..slots).map(|_| Slot::new()).collect(),
            shape,
            turn: Marker::User.id(&backend.facts().tokenizer).ok(),
        })
    }

    /// Gives up what was to be done with slots; who asked for it is not answered by this.
    pub(crate) fn give_up(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.errands.clear());
    }

    /// Whether something is to be done with a slot before it can be used.
    pub(crate) fn is_busy(&self, index: usize) -> bool {
        !self.slots[index].errands.is_empty()
    }

    /// Makes room in host memory; whether there is.
    pub(super) fn make_room(&mut self, bytes: u64, metrics: &PrefixMetrics) -> bool {
        let cuts: u64 = self.slots.iter().flat_map(|slot| &slot.cuts).map(|cut| cut.bytes()).sum();
        let filled: u64 = self.slots.iter().flat_map(|slot| &slot.errands).map(Errand::bytes).sum();
        let left = self.memory.make_room(bytes, cuts.saturating_add(filled));
        metrics.evicted(left.unwrap_or(0));
        left.is_some()
    }

    /// What is kept now.
    pub(crate) fn tell(&self, metrics: &PrefixMetrics) {
        let disk_bytes = self.disk.as_ref().map_or(0, |disk| disk.bytes());
        let written_bytes = self.files.as_ref().map_or(0, Files::written_bytes);
        metrics.holds(self.memory.bytes(), disk_bytes, written_bytes);
    }

    /// Chooses among the free ones of `slots`, each with when it was used, the one for `ids`, of which only what `prefix` has may be
    /// re-used; and notes what is to be saved and restored first.
    ///
    /// # Panics
    /// When no slot is free.
    pub(crate) fn choose<B: Backend>(
        &mut self,
        backend: &B,
        slots: &[Option<(&B::Session, u64)>],
        prefix: &[TokenId],
        ids: &[TokenId],
    ) -> usize {
        let own: Vec<Option<(Arc<Cut>, u32)>> = (0..)
            .zip(slots)
            .map(|(index, slot): (usize, _)| {
                let (session, _) = (*slot)?;
                self.slots[index].own_cut(&self.shape, backend.tokens(session), prefix)
            })
            .collect();
        let reach = |index: usize, session: &B::Session| {
            backend.reach(session, prefix).max(own[index].as_ref().map_or(0, |(_, to)| *to))
        };
        let free: Vec<Option<FreeSlot<'_>>> = (0..)
            .zip(slots)
            .map(|(index, slot)| {
                let (session, used) = (*slot)?;
                Some(FreeSlot { tokens: backend.tokens(session), reach: reach(index, session), used })
            })
            .collect();
        let in_memory = self.memory.find(prefix);
        let in_memory_reach = in_memory.as_ref().map_or(0, |(_, reach)| *reach);
        let on_disk = self.disk.as_ref().filter(|_| self.memory.is_on()).and_then(|disk| disk.find(prefix));
        let on_disk = on_disk.filter(|(_, reach, _)| *reach >= in_memory_reach.saturating_add(GAIN_MIN));
        let kept_reach = on_disk.as_ref().map_or(in_memory_reach, |(_, reach, _)| *reach);

        let chosen = place(&free, kept_reach, prefix).expect("invariant: a slot is free");
        let (session, _) = slots[chosen.slot].expect("invariant: only free slots are chosen");
        let found = free[chosen.slot].expect("invariant: only free slots are chosen");
        let common = len(common_prefix(found.tokens, prefix));
        let stays = if chosen.takes_kept { common.min(kept_reach) } else { found.reach };
        let reach = if chosen.takes_kept { kept_reach } else { found.reach };
        let seen = free.iter().flatten().map(|slot| common_prefix(slot.tokens, prefix)).max().unwrap_or(0);
        let parting = len(seen.max(self.memory.common(prefix)));

        let slot = &mut self.slots[chosen.slot];
        slot.origin = Origin::Slot;
        if self.memory.is_on() && is_displaced(len(found.tokens.len()), slot.prompt_tokens, stays) {
            let back_to = slot.prompt_tokens.checked_sub(PROMPT_SLACK);
            slot.errands.push_back(Errand::Save { back_to, cuts: slot.cuts.clone(), target: Target::Memory });
        }
        match (chosen.takes_kept, on_disk, in_memory) {
            (true, Some((path, to, bytes)), _) => {
                slot.errands.push_back(Errand::LoadKept { path, bytes, to });
            }
            (true, None, Some((snapshot, to))) => {
                let from = From::Snapshot(snapshot);
                slot.errands.push_back(Errand::Restore { from, to, origin: Origin::Memory, asker: None });
            }
            _ => {
                let by_cut = own[chosen.slot].clone().filter(|(_, to)| *to > backend.reach(session, prefix));
                if let Some((cut, to)) = by_cut {
                    let from = From::Cut(cut);
                    slot.errands.push_back(Errand::Restore { from, to, origin: Origin::Cut, asker: None });
                }
            }
        }
        slot.prompt_tokens = len(ids.len());
        let parting = if parting >= reach.saturating_add(GAIN_MIN) { parting } else { 0 };
        slot.wanted = match self.memory.is_on() {
            true => wanted_cuts(ids, self.turn, parting),
            false => Vec::new(),
        };
        chosen.slot
    }

    /// Forgets what a slot's conversation was brought back from, and what a prompt alike would be: the rows may be no numbers. Where
    /// they were good, this costs time.
    pub(crate) fn distrust(&mut self, index: usize, prompt: &[TokenId]) {
        let slot = &mut self.slots[index];
        slot.cuts.clear();
        slot.wanted.clear();
        if slot.origin != Origin::Slot {
            self.memory.forget(prompt);
            if let Some(disk) = &self.disk {
                disk.remove(prompt);
            }
        }
    }

    /// Notes that a slot's errands are done and it keeps `kept` tokens of its prompt.
    pub(crate) fn settled(&mut self, index: usize, kept: u32, metrics: &PrefixMetrics) {
        let slot = &mut self.slots[index];
        slot.cuts.retain(|cut| cut.position() <= kept);
        metrics.found(slot.origin, kept);
    }

    /// Makes the cuts of a slot that would be out of reach after its next step of `tokens`.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn before_step<B: Backend>(
        &mut self,
        index: usize,
        backend: &mut B,
        session: &B::Session,
        tokens: u32,
        metrics: &PrefixMetrics,
    ) -> Result<(), EngineError> {
        if self.slots[index].wanted.is_empty() {
            return Ok(());
        }
        let held = len(backend.tokens(session).len());
        let mut later = Vec::new();
        for wanted in std::mem::take(&mut self.slots[index].wanted) {
            let Wanted { position, slack } = wanted;
            let back_to = position - slack;
            let has_it = self.slots[index].cuts.iter().any(|cut| cut.position() == position);
            if position > held || (!has_it && backend.could_continue_at(session, back_to, tokens)) {
                later.push(wanted);
            } else if !has_it && backend.can_continue_at(session, back_to) {
                self.cut(index, backend, session, wanted, metrics)?;
            }
        }
        self.slots[index].wanted = later;
        Ok(())
    }

    fn cut<B: Backend>(
        &mut self,
        index: usize,
        backend: &mut B,
        session: &B::Session,
        Wanted { position, slack }: Wanted,
        metrics: &PrefixMetrics,
    ) -> Result<(), EngineError> {
        let bytes = self.shape.cut_bytes(CutMark { position, slack });
        if !self.make_room(bytes, metrics) {
            return Ok(());
        }
        let made = match backend.cut(session, position, slack) {
            // Without it the conversation is fed again one day, which is no reason to end it.
            Err(EngineError::Snapshot(error)) => {
                tracing::warn!(bytes, "a cut was not made: {error}");
                None
            }
            made => made?,
        };
        let cuts = &mut self.slots[index].cuts;
        cuts.extend(made.map(Arc::new));
        cuts.sort_by_key(|cut| cut.position());
        let positions: Vec<u32> = cuts.iter().map(|cut| cut.position()).collect();
        let mut stays = kept_cuts(&positions, CUTS_MAX - 1).into_iter();
        cuts.retain(|_| stays.next().unwrap_or(false));
        Ok(())
    }

    /// Takes up what is asked of free slots; `is_free` says which do no job.
    pub(crate) fn serve(&mut self, requests: &Requests, is_free: impl Fn(usize) -> bool) {
        while let Some(request) = requests
            .next(|index| self.slots.get(index).is_some_and(|slot| slot.errands.is_empty() && is_free(index)))
        {
            let slot = &mut self.slots[request.slot];
            let asker = request.asker;
            slot.errands.push_back(match request.action {
                Action::Save(path) => Errand::Save {
                    back_to: slot.prompt_tokens.checked_sub(PROMPT_SLACK),
                    cuts: slot.cuts.clone(),
                    target: Target::File(path, asker),
                },
                Action::Restore(path) => Errand::LoadNamed { path, asker },
                Action::Erase => Errand::Erase { asker },
            });
        }
    }

    /// Keeps in host memory what the slots hold, whose sessions are about to go; until `is_given_up`.
    pub(crate) fn let_go<'s, B: Backend>(
        &mut self,
        backend: &mut B,
        sessions: impl Iterator<Item = &'s B::Session>,
        is_given_up: &dyn Fn() -> bool,
        metrics: &PrefixMetrics,
    ) where
        B::Session: 's,
    {
        if self.memory.is_on() {
            self.take_in(backend, sessions, is_given_up, metrics);
            // What ends this server while it waits for requests finds it written.
            if let Some(files) = self.files.as_ref().filter(|_| self.disk.is_some()) {
                self.write_all(files, is_given_up);
            }
        }
        self.slots.iter_mut().for_each(|slot| *slot = Slot::new());
    }

    fn take_in<'s, B: Backend>(
        &mut self,
        backend: &mut B,
        sessions: impl Iterator<Item = &'s B::Session>,
        is_given_up: &dyn Fn() -> bool,
        metrics: &PrefixMetrics,
    ) where
        B::Session: 's,
    {
        for (index, session) in sessions.enumerate() {
            match self.last_snapshot(index, backend, session, is_given_up, metrics) {
                Ok(Some(snapshot)) => self.memory.insert(snapshot),
                Ok(None) => {}
                Err(error) => tracing::warn!("a conversation was not kept: {error}"),
            }
        }
    }

    /// Writes what is not on disk yet, slots included, if there is a folder; until `is_given_up`.
    pub(crate) fn finish<'s, B: Backend>(
        &mut self,
        backend: &mut B,
        sessions: impl Iterator<Item = &'s B::Session>,
        is_given_up: &dyn Fn() -> bool,
        metrics: &PrefixMetrics,
    ) where
        B::Session: 's,
    {
        if let Some(files) = self.files.as_ref().filter(|_| self.disk.is_some()) {
            // Those first that a slot's might take the place of; what is on disk already is not written again.
            self.write_all(files, is_given_up);
            self.take_in(backend, sessions, is_given_up, metrics);
        }
        self.end(is_given_up);
    }

    /// As [`Self::finish`] where no slot holds anything any more.
    pub(crate) fn end(&mut self, is_given_up: &dyn Fn() -> bool) {
        let Some(files) = self.files.take() else { return };
        if self.disk.is_some() {
            self.write_all(&files, is_given_up);
            tracing::info!(
                bytes = self.memory.bytes(),
                "conversations are written to the prompt cache's folder"
            );
        }
        files.finish(is_given_up);
    }

    /// Has all that is in memory written.
    fn write_all(&self, files: &Files, is_given_up: &dyn Fn() -> bool) {
        for snapshot in self.memory.snapshots() {
            while !is_given_up() && !files.keep(snapshot.clone()) {
                std::thread::sleep(WRITER_LOOK);
            }
        }
    }

    /// What a slot holds, if it is worth it and not kept yet.
    fn last_snapshot<B: Backend>(
        &mut self,
        index: usize,
        backend: &mut B,
        session: &B::Session,
        is_given_up: &dyn Fn() -> bool,
        metrics: &PrefixMetrics,
    ) -> Result<Option<Arc<Snapshot>>, EngineError> {
        let tokens = backend.tokens(session);
        if len(tokens.len()) < TOKENS_MIN || self.memory.has(tokens) {
            return Ok(None);
        }
        let cuts = std::mem::take(&mut self.slots[index].cuts);
        let back_to = self.slots[index].prompt_tokens.checked_sub(PROMPT_SLACK);
        let mut saving = backend.begin_saving(session, back_to, &cuts)?;
        while !self.make_room(saving.bytes(), metrics) {
            // Whatever is written leaves when it is.
            if !self.memory.is_any_held() || is_given_up() {
                return Ok(None);
            }
            std::thread::sleep(WRITER_LOOK);
        }
        while !backend.save_step(session, &mut saving)? {
            if is_given_up() {
                return Ok(None);
            }
        }
        Ok(Some(Arc::new(saving.finish())))
    }
}
