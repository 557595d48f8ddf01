//! Keeps the experts that a layer needs in device slots: carries out the pool's plans.
//!
//! - Owns: the transport, the pool's table, the slots' memory and the device's copy of the table.
//! - In: a layer and the experts that it picked.
//! - Out: the same experts with their slots, all loaded or being loaded by work that is already submitted: what is submitted
//!   after it finds them there.
//! - Invariants: between two calls the device's table lists what the [`Pool`] has, and after a failed load perhaps some of its
//!   victims, whose slots are whole as long as they are listed. A slot is overwritten only by copies that run after everything
//!   that reads it and after its old entry is gone; where copies have a queue of their own they wait for the kernels that the slots
//!   were last given to, and for no others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flint_shaders::layout::NO_SLOT;

use crate::base::events::Lane;
use crate::base::ids::{ExpertIndex, ExpertKey, LayerIndex, SlotIndex};
use crate::base::limits::POOL_BUFFERS_MAX;
use crate::expert::host_tier::HostSlot;
use crate::expert::inflow::{Arrival, Inflow, InflowStats, Wanted};
use crate::expert::pace::Pace;
use crate::expert::plan::{Load, Wave};
use crate::expert::policy::Policy;
use crate::expert::pool::{ExpertSpace, Pool};
use crate::expert::prefetch::{PrefetchControl, PrefetchMode, StepUse};
use crate::expert::retired::Retired;
use crate::expert::slot::SlotState;
use crate::expert::transport::COPY_BATCH_BYTES;
use crate::expert::{ExpertError, Transport};
use crate::gpu::{Buffer, Gpu, Mark, Placement, Recorder, Ticket};
use crate::store::Source;

/// Two NaNs of 16 bits: scales of blocks are of these.
#[cfg(feature = "simulation")]
const POISON: u32 = 0x7e00_7e00;

/// The longest time between two steps that counts as one step's.
const STEP_MAX: Duration = Duration::from_secs(2);

const _: () = assert!(
    POOL_BUFFERS_MAX == flint_shaders::layout::POOL_BUFFERS,
    "the pool may spread over exactly the buffers that kernels bind"
);

/// What the streamer has done since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Expert uses that found their record in a slot.
    pub hits: u64,
    /// Expert uses that had to read it.
    pub misses: u64,
    /// Records that left a slot for another.
    pub evictions: u64,
    /// Record bytes read from disk.
    pub read_bytes: u64,
    /// Time spent reading and submitting copies, in nanoseconds.
    pub load_ns: u64,
    /// Picks of layers that had been guessed at one layer earlier.
    pub picks_guessed_at: u64,
    /// Of those, picks that were among the guesses.
    pub picks_guessed_right: u64,
}

/// What one layer's experts were used for since the streamer was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerUses {
    /// Uses that found their record in a slot.
    pub hits: u64,
    /// Uses that had to read it.
    pub misses: u64,
}

/// The slots' memory.
pub struct SlotMemory {
    /// Buffers of `slots_per_buffer` slots each; the last may hold fewer.
    pub buffers: Vec<Buffer>,
    /// Slots in a buffer.
    pub slots_per_buffer: u32,
    /// Bytes of a slot.
    pub record_bytes: u64,
}

/// How `slots` records of `record_bytes` spread over buffers no larger than `range_bytes`: slots in a buffer.
///
/// # Errors
/// When kernels could not bind them all.
pub fn slots_per_buffer(slots: u32, record_bytes: u64, range_bytes: u64) -> Result<u32, ExpertError> {
    let per_buffer = u32::try_from((range_bytes / record_bytes).clamp(1, u64::from(u32::MAX)))
        .expect("invariant: clamped to u32");
    let buffers = slots.div_ceil(per_buffer);
    if buffers > POOL_BUFFERS_MAX {
        return Err(ExpertError::PoolTooLarge {
            slots,
            record_bytes,
            buffers,
            buffers_max: POOL_BUFFERS_MAX,
            slots_max: per_buffer.saturating_mul(POOL_BUFFERS_MAX),
        });
    }
    Ok(per_buffer.min(slots))
}

impl SlotMemory {
    /// Memory for `slots` records.
    ///
    /// # Errors
    /// When the device has too little, or kernels could not bind it.
    pub fn new(gpu: &Gpu, slots: u32, record_bytes: u64) -> Result<Self, ExpertError> {
        let slots_per_buffer = slots_per_buffer(slots, record_bytes, gpu.info().limits.largest_binding())?;
        let mut buffers = Vec::new();
        let mut left = slots;
        while left > 0 {
            let count = left.min(slots_per_buffer);
            let len_bytes = u64::from(count) * record_bytes;
            buffers.push(gpu.buffer("expert slots", len_bytes, Placement::Device)?);
            left -= count;
        }
        Ok(Self { buffers, slots_per_buffer, record_bytes })
    }

    /// Where a slot lies.
    fn place(&self, slot: SlotIndex) -> (&Buffer, u64) {
        let buffer = &self.buffers[(slot.0 / self.slots_per_buffer) as usize];
        (buffer, u64::from(slot.0 % self.slots_per_buffer) * self.record_bytes)
    }
}

/// Plans carried out.
pub struct Streamer {
    inflow: Inflow,
    pool: Pool,
    memory: SlotMemory,
    table: Buffer,
    space: ExpertSpace,
    prefetch: PrefetchMode,
    judge: PrefetchControl,
    /// When the last step began, and what had been counted by then: bytes of guesses used and wasted, and the drive's busy time.
    judged: Option<(Instant, [u64; 2], u64)>,
    /// What was last guessed of which layer.
    guessed: (LayerIndex, Vec<u32>),
    /// Experts that left their slot in a load that failed: whether the device's table still lists them is not known. They
    /// are taken from it in front of the next copies; until then a slot that it lists still holds what it says.
    unlisted: Vec<ExpertKey>,
    /// Slots given to work that may not be submitted yet.
    lately_given: Vec<SlotIndex>,
    /// By slot: what was submitted when it was known that all to which the slot had been given was.
    given_until: Vec<Option<Ticket>>,
    /// Whether slots that are given to another expert are first filled with NaNs.
    #[cfg(feature = "simulation")]
    poisons: bool,
    /// The last load's copies, until somebody waits for them.
    copies: Option<Ticket>,
    /// Submitted copies, kept until the device has run them.
    retired: Retired,
    stats: StreamStats,
    /// By expert layer, from the first.
    layers: Vec<LayerUses>,
    /// By expert: how often it was used.
    uses: Vec<u32>,
}

impl Streamer {
    /// A pool of `slots` empty slots, and a tier of host memory of as many as the transport's ring has buffers for, and of up to
    /// `kept_max` more that keep what leaves the pool; for the experts of `source`, which are those of `space`.
    ///
    /// # Errors
    /// When the device has too little memory, or kernels could not bind it.
    pub fn new(
        gpu: &Gpu,
        source: Arc<Source>,
        transport: Transport,
        slots: u32,
        policy: Policy,
        space: ExpertSpace,
        kept_max: u32,
    ) -> Result<Self, ExpertError> {
        let record_bytes = source.record().record_bytes();
        let memory = SlotMemory::new(gpu, slots, record_bytes)?;
        let entries = u64::from(space.total());
        let table = gpu.buffer("slot table", entries * 4, Placement::Device)?;
        let mut recorder = gpu.recorder()?;
        recorder.fill(&table, 0, entries * 4, NO_SLOT);
        let commands = recorder.finish()?;
        gpu.wait(gpu.submit(&[&commands])?)?;
        Ok(Self {
            inflow: Inflow::new(transport, source, kept_max, Pace::default())?,
            pool: Pool::new(slots, policy, space),
            memory,
            table,
            space,
            prefetch: PrefetchMode::Off,
            judge: PrefetchControl::default(),
            judged: None,
            guessed: (LayerIndex(0), Vec::new()),
            unlisted: Vec::new(),
            lately_given: Vec::new(),
            given_until: vec![None; slots as usize],
            #[cfg(feature = "simulation")]
            poisons: false,
            copies: None,
            retired: Retired::default(),
            stats: StreamStats::default(),
            layers: vec![LayerUses::default(); space.layer_count as usize],
            uses: vec![0; space.total() as usize],
        })
    }

    /// The device's table: u32 `[moe_layers, expert_count]`, slot or `NO_SLOT`.
    pub fn table(&self) -> &Buffer {
        &self.table
    }

    /// The slots' memory.
    pub fn memory(&self) -> &SlotMemory {
        &self.memory
    }

    /// The pool, to look at.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What the transport chose.
    pub fn transport(&self) -> &Transport {
        self.inflow.transport()
    }

    /// Counters since the streamer was made.
    pub fn stats(&self) -> StreamStats {
        StreamStats { read_bytes: self.inflow.stats().read_bytes, ..self.stats }
    }

    /// Uses of each expert layer since the streamer was made, by model layer; their sums are those of [`Self::stats`].
    pub fn layer_uses(&self) -> impl Iterator<Item = (LayerIndex, LayerUses)> {
        let first = self.space.layer_first;
        (first..).map(LayerIndex).zip(self.layers.iter().copied())
    }

    /// Empties all slots, in the table of the device, too: everything must be read again.
    ///
    /// # Errors
    /// When the device fails.
    pub fn clear(&mut self, gpu: &Gpu) -> Result<(), ExpertError> {
        let mut recorder = gpu.recorder()?;
        recorder.fill(&self.table, 0, self.table.len_bytes(), NO_SLOT);
        let commands = recorder.finish()?;
        gpu.wait(gpu.submit(&[&commands])?)?;
        self.pool.clear();
        self.inflow.clear()?;
        self.unlisted.clear();
        self.copies = None;
        Ok(())
    }

    /// Whether what leaves its slot is written over with NaNs from now on.
    #[cfg(feature = "simulation")]
    pub fn poison(&mut self, is_on: bool) {
        self.poisons = is_on;
    }

    /// What the last load's copies end with, once: to be waited for apart from what comes behind them.
    pub fn take_copies(&mut self) -> Option<Ticket> {
        self.copies.take()
    }

    /// The transport, to be watched.
    pub fn transport_mut(&mut self) -> &mut Transport {
        self.inflow.transport_mut()
    }

    /// A step begins: one pass through all layers. Guesses for the one before are given up.
    ///
    /// All that was submitted before has been waited for.
    pub fn begin_step(&mut self) {
        self.pool.begin_step();
        self.inflow.drop_guesses(|_| true);
        self.lately_given.clear();
        self.judge_guesses();
    }

    /// Has the judge look at the step that has ended.
    fn judge_guesses(&mut self) {
        if self.prefetch != PrefetchMode::Auto || !self.can_guess() {
            return;
        }
        let (stats, now) = (self.inflow.stats(), Instant::now());
        let guesses = [stats.guesses_used + stats.guesses_used_late, stats.guesses_wasted];
        let busy_ns = self.transport().counters().busy_ns;
        let before = self.judged.replace((now, guesses, busy_ns));
        let Some((begin, guesses_before, busy_before_ns)) = before else { return };
        let elapsed = now.saturating_duration_since(begin);
        // Longer than any step: nobody asked for one meanwhile, and that the drive was idle says nothing.
        if elapsed > STEP_MAX {
            return;
        }
        let bytes = |at: usize| (guesses[at] - guesses_before[at]) as f64 * self.memory.record_bytes as f64;
        self.judge.note(StepUse {
            used_bytes: bytes(0),
            wasted_bytes: bytes(1),
            busy_seconds: Duration::from_nanos(busy_ns.saturating_sub(busy_before_ns)).as_secs_f64(),
            seconds: elapsed.as_secs_f64(),
        });
    }

    /// As [`Self::begin_step`], for a step that uses nearly all experts.
    pub fn begin_sweep(&mut self) {
        self.pool.begin_sweep();
        self.inflow.drop_guesses(|_| true);
        self.lately_given.clear();
    }

    /// Whether `expert` is in a slot, also for the device.
    pub fn is_resident(&self, layer: LayerIndex, expert: ExpertIndex) -> bool {
        let slot = self.pool.lookup(ExpertKey { layer, expert });
        slot.is_some_and(|slot| matches!(self.pool.state(slot), SlotState::Ready(_)))
    }

    /// Notes that a step used `experts`, all of which are in slots.
    pub fn touch(&mut self, layer: LayerIndex, experts: &[u32]) {
        for &expert in experts {
            let key = ExpertKey { layer, expert: ExpertIndex(expert) };
            self.pool.touch(key);
            self.note_use(key);
            self.lately_given.extend(self.pool.lookup(key));
        }
        self.note_uses(layer, experts.len() as u64, 0);
    }

    /// Loads the next wave of `experts` (each once), as many as there are slots; what it takes leaves the list.
    ///
    /// # Errors
    /// When a read or the device fails: the experts of this wave that were missing are then in no slot.
    pub fn load_wave(
        &mut self,
        layer: LayerIndex,
        experts: &mut Vec<ExpertIndex>,
    ) -> Result<Wave, ExpertError> {
        let started = Instant::now();
        let wave = self.plan(layer, experts);
        self.note_uses(layer, wave.hit_count() as u64, wave.loads.len() as u64);
        for &(expert, _) in &wave.experts {
            self.note_use(ExpertKey { layer, expert });
        }
        if !wave.loads.is_empty() {
            self.carry_out(&wave.loads)?;
        }
        self.stats.load_ns += u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(wave)
    }

    /// As [`Self::load_wave`], for no step: what is read so is counted as no use.
    ///
    /// # Errors
    /// As [`Self::load_wave`].
    pub fn load_unasked(
        &mut self,
        layer: LayerIndex,
        experts: &mut Vec<ExpertIndex>,
    ) -> Result<(), ExpertError> {
        let (evictions, before) = (self.stats.evictions, self.inflow.stats());
        let wave = self.plan(layer, experts);
        let done = if wave.loads.is_empty() { Ok(()) } else { self.carry_out(&wave.loads) };
        self.stats.evictions = evictions;
        self.inflow.forget_uses_since(before);
        done
    }

    fn plan(&mut self, layer: LayerIndex, experts: &mut Vec<ExpertIndex>) -> Wave {
        if let Some(last) = self.inflow.transport().gpu().last_ticket() {
            for SlotIndex(slot) in self.lately_given.drain(..) {
                self.given_until[slot as usize] = Some(last);
            }
        }
        let wave = self.pool.plan_wave(layer, experts);
        self.lately_given.extend(wave.experts.iter().map(|&(_, slot)| slot));
        wave
    }

    fn note_use(&mut self, key: ExpertKey) {
        let uses = &mut self.uses[self.space.index(key) as usize];
        *uses = uses.saturating_add(1);
    }

    /// How often each expert was used since the streamer was made, in a prompt once a chunk.
    pub fn uses_of_experts(&self) -> impl Iterator<Item = (ExpertKey, u64)> {
        let ExpertSpace { layer_first, expert_count, .. } = self.space;
        (0..).zip(&self.uses).map(move |(index, &uses)| {
            let layer = LayerIndex(layer_first + index / expert_count);
            (ExpertKey { layer, expert: ExpertIndex(index % expert_count) }, u64::from(uses))
        })
    }

    /// Whether the model has such an expert.
    pub fn has_expert(&self, layer: u32, expert: u32) -> bool {
        let layer = layer.checked_sub(self.space.layer_first);
        layer.is_some_and(|layer| layer < self.space.layer_count) && expert < self.space.expert_count
    }

    /// Where experts are read from.
    pub fn source(&self) -> &Source {
        self.inflow.source()
    }

    fn note_uses(&mut self, layer: LayerIndex, hits: u64, misses: u64) {
        self.stats.hits += hits;
        self.stats.misses += misses;
        let uses = &mut self.layers[(layer.0 - self.space.layer_first) as usize];
        uses.hits += hits;
        uses.misses += misses;
    }

    /// Brings every load's record into its slot: by a copy where host memory has it, else by a read first.
    fn carry_out(&mut self, loads: &[Load]) -> Result<(), ExpertError> {
        self.unlisted.extend(loads.iter().filter_map(|load| load.victim));
        self.stats.evictions += loads.iter().filter(|load| load.victim.is_some()).count() as u64;
        let loaded = self.bring(loads);
        match loaded {
            Ok(()) => {
                self.unlisted.clear();
                loads.iter().for_each(|load| self.pool.loaded(load.slot));
            }
            Err(_) => {
                self.inflow.abandon();
                loads.iter().for_each(|load| self.pool.load_failed(load.slot));
            }
        }
        loaded
    }

    /// Has what leaves its slot copied to host memory, as far as it is kept there. The copies run while the records are read that
    /// take their places, and in front of the copies that bring these.
    fn keep_victims(&mut self, loads: &[Load]) -> Result<(), ExpertError> {
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

    fn submit_keeps(&mut self, copies: &[(HostSlot, SlotIndex)]) -> Result<Ticket, ExpertError> {
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
    fn submit(
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

    /// From now on at most `slots` experts are kept in host memory.
    pub fn allow_kept(&mut self, slots: u32) {
        // Commands hold the memory that they copied from. A device that is lost says so in the next step.
        let _ = self.retired.drop_ended(self.inflow.transport().gpu());
        self.inflow.allow_kept(slots);
    }

    /// Why host memory did not grow as far as it may, if it was refused.
    pub fn memory_refused(&self) -> Option<&ExpertError> {
        self.inflow.refused()
    }

    /// Whether memory was made ahead that nothing is kept in yet.
    pub fn has_memory_ahead(&self) -> bool {
        self.inflow.has_memory_ahead()
    }

    /// Experts that host memory keeps, that it has memory for, and that it may have.
    pub fn kept(&self) -> [u32; 3] {
        [self.inflow.kept_count(), self.inflow.kept_memory(), self.inflow.kept_allowed()]
    }

    /// Copies run as records land, beside their sums; the device's table names the slots only when all sums were right.
    fn bring(&mut self, loads: &[Load]) -> Result<(), ExpertError> {
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
    fn poison_slots(&mut self, loads: &[Load]) -> Result<(), ExpertError> {
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
    fn submit_copies(
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

    fn record_and_submit(
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

    fn entry_offset_bytes(&self, key: ExpertKey) -> u64 {
        u64::from(self.space.index(key)) * 4
    }

    /// Guesses that a step will soon want `experts` of `layer`, likeliest first: those that are nowhere are read when the drive
    /// has nothing else to do. They enter the pool only when they are used.
    pub fn guess(&mut self, layer: LayerIndex, experts: &[u32]) {
        self.guessed.0 = layer;
        self.guessed.1.clear();
        self.guessed.1.extend(experts);
        for &expert in experts {
            let key = ExpertKey { layer, expert: ExpertIndex(expert) };
            if self.pool.lookup(key).is_none() {
                self.inflow.guess(key);
            }
        }
    }

    /// The picks of `layer` are known: guesses at others of it, and at layers before it, are given up.
    pub fn settle_guesses(&mut self, layer: LayerIndex, picks: &[u32]) {
        if self.guessed.0 == layer && !self.guessed.1.is_empty() {
            let right = picks.iter().filter(|pick| self.guessed.1.contains(pick)).count();
            self.stats.picks_guessed_at += picks.len() as u64;
            self.stats.picks_guessed_right += right as u64;
            self.guessed.1.clear();
        }
        self.inflow
            .drop_guesses(|key| key.layer < layer || (key.layer == layer && !picks.contains(&key.expert.0)));
    }

    /// Has the experts of `layer` that are nowhere read in the order of the file, as many as the host tier takes for guesses: a long
    /// chunk is about to use nearly all of them.
    pub fn read_ahead(&mut self, layer: LayerIndex) {
        for expert in (0..self.space.expert_count).map(ExpertIndex) {
            let key = ExpertKey { layer, expert };
            if self.inflow.guess_room() == 0 {
                break;
            }
            if self.pool.lookup(key).is_none() {
                self.inflow.guess(key);
            }
        }
    }

    /// Waits for `ticket`, and meanwhile takes in what is read and begins what waits to be.
    ///
    /// # Errors
    /// When the device or the read queue fails.
    pub fn wait_and_read(&mut self, gpu: &Gpu, ticket: Ticket) -> Result<(), ExpertError> {
        self.inflow.begin_reads();
        while self.inflow.is_reading() && !gpu.is_done(ticket)? {
            self.inflow.collect_quietly()?;
            self.inflow.begin_reads();
        }
        Ok(())
    }

    /// Whether a miss can ever happen, so that guesses are of use.
    pub fn can_guess(&self) -> bool {
        self.pool.slot_count() < self.space.total()
    }

    /// Whether the next step is to guess.
    pub fn wants_guesses(&self) -> bool {
        let is_on = match self.prefetch {
            PrefetchMode::On => true,
            PrefetchMode::Off => false,
            PrefetchMode::Auto => self.judge.is_on(),
        };
        is_on && self.can_guess()
    }

    /// Whether long prompts are to read ahead: wherever guesses are not forbidden, also with a pool that is still filling.
    pub fn wants_guesses_in_prompts(&self) -> bool {
        self.prefetch != PrefetchMode::Off
    }

    /// Says when to guess.
    pub fn set_prefetch(&mut self, mode: PrefetchMode) {
        self.prefetch = mode;
        (self.judge, self.judged) = (PrefetchControl::default(), None);
    }

    /// What was read, and why.
    pub fn inflow_stats(&self) -> InflowStats {
        self.inflow.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_spread_over_buffers_that_kernels_can_bind() {
        assert_eq!(slots_per_buffer(96, 30_720, 128 << 20).unwrap(), 96);
        assert_eq!(slots_per_buffer(100, 1_966_080, 128 << 20).unwrap(), 68);
        assert_eq!(slots_per_buffer(12_032, 1_966_080, (4 << 30) - 1).unwrap(), 2184);
        let error = slots_per_buffer(12_032, 1_966_080, 128 << 20).unwrap_err();
        assert!(error.to_string().contains("at most 1088 slots"), "{error}");
    }
}
