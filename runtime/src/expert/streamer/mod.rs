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

mod bring;
mod guesses;

use std::sync::Arc;
use std::time::Instant;

use flint_shaders::layout::NO_SLOT;

use crate::base::ids::{ExpertIndex, ExpertKey, LayerIndex, SlotIndex};
use crate::expert::inflow::{Inflow, InflowStats};
use crate::expert::pace::Pace;
use crate::expert::plan::{Load, Wave};
use crate::expert::policy::Policy;
use crate::expert::pool::{ExpertSpace, Pool};
use crate::expert::prefetch::{PrefetchControl, PrefetchMode};
use crate::expert::retired::Retired;
use crate::expert::slot::SlotState;
use crate::expert::slot_memory::SlotMemory;
use crate::expert::{ExpertError, Transport};
use crate::gpu::{Buffer, Gpu, Placement, Ticket};
use crate::store::Source;

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

    /// What was read, and why.
    pub fn inflow_stats(&self) -> InflowStats {
        self.inflow.stats()
    }
}
