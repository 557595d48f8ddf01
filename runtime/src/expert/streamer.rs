//! Keeps the experts that a layer needs in device slots: carries out the pool's plans.
//!
//! - Owns: the transport, the pool's table, the slots' memory and the device's copy of the table.
//! - In: a layer and the experts that it picked.
//! - Out: the same experts with their slots, all loaded or being loaded by work that is already submitted: what is submitted
//!   after it finds them there.
//! - Invariants: between two calls the device's table lists what the [`Pool`] has, and after a failed load perhaps some of its
//!   victims, whose slots are whole as long as they are listed. A slot is overwritten only by copies submitted after everything
//!   that reads it and after its old entry is gone, on one queue, behind a barrier.

use std::sync::Arc;

use flint_shaders::layout::NO_SLOT;

use crate::base::ids::{ExpertIndex, ExpertKey, LayerIndex, SlotIndex};
use crate::base::limits::POOL_BUFFERS_MAX;
use crate::expert::plan::{Load, Wave};
use crate::expert::policy::Policy;
use crate::expert::pool::{ExpertSpace, Pool};
use crate::expert::{Check, ExpertError, Move, Transport};
use crate::gpu::{Buffer, Gpu, Placement, Ticket};
use crate::store::Source;

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
    source: Arc<Source>,
    transport: Transport,
    pool: Pool,
    memory: SlotMemory,
    table: Buffer,
    space: ExpertSpace,
    /// Experts that left their slot in a load that failed: whether the device's table still lists them is not known. They
    /// are taken from it in front of the next copies; until then a slot that it lists still holds what it says.
    unlisted: Vec<ExpertKey>,
    /// The last load's copies, until somebody waits for them.
    copies: Option<Ticket>,
    stats: StreamStats,
    /// By expert layer, from the first.
    layers: Vec<LayerUses>,
}

impl Streamer {
    /// A pool of `slots` empty slots for the experts of `source`, which are those of `space`.
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
            source,
            transport,
            pool: Pool::new(slots, policy, space),
            memory,
            table,
            space,
            unlisted: Vec::new(),
            copies: None,
            stats: StreamStats::default(),
            layers: vec![LayerUses::default(); space.layer_count as usize],
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
        &self.transport
    }

    /// Counters since the streamer was made.
    pub fn stats(&self) -> StreamStats {
        self.stats
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
        self.unlisted.clear();
        self.copies = None;
        Ok(())
    }

    /// What the last load's copies end with, once: to be waited for apart from what comes behind them.
    pub fn take_copies(&mut self) -> Option<Ticket> {
        self.copies.take()
    }

    /// The transport, to be watched.
    pub fn transport_mut(&mut self) -> &mut Transport {
        &mut self.transport
    }

    /// A step begins: one pass through all layers.
    pub fn begin_step(&mut self) {
        self.pool.begin_step();
    }

    /// Whether every one of `experts` is in a slot.
    pub fn are_resident(&self, layer: LayerIndex, experts: &[u32]) -> bool {
        experts.iter().all(|&expert| {
            let key = ExpertKey { layer, expert: ExpertIndex(expert) };
            self.pool.lookup(key).is_some()
        })
    }

    /// Notes that a step used `experts`, all of which are in slots.
    pub fn touch(&mut self, layer: LayerIndex, experts: &[u32]) {
        for &expert in experts {
            self.pool.touch(ExpertKey { layer, expert: ExpertIndex(expert) });
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
        let started = std::time::Instant::now();
        let wave = self.pool.plan_wave(layer, experts);
        self.note_uses(layer, wave.hit_count() as u64, wave.loads.len() as u64);
        if !wave.loads.is_empty() {
            self.carry_out(&wave.loads)?;
        }
        self.stats.load_ns += u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(wave)
    }

    fn note_uses(&mut self, layer: LayerIndex, hits: u64, misses: u64) {
        self.stats.hits += hits;
        self.stats.misses += misses;
        let uses = &mut self.layers[(layer.0 - self.space.layer_first) as usize];
        uses.hits += hits;
        uses.misses += misses;
    }

    fn carry_out(&mut self, loads: &[Load]) -> Result<(), ExpertError> {
        let (memory, source) = (&self.memory, &self.source);
        let mut moves = loads.iter().flat_map(|load| {
            let (buffer, slot_offset_bytes) = memory.place(load.slot);
            let pieces = source.expert_pieces(load.key);
            (0..pieces.len()).map(move |i| Move {
                span: pieces[i].span,
                target: buffer.clone(),
                target_offset_bytes: slot_offset_bytes + pieces[i].record_offset_bytes,
                // A checksum is of a whole record; a GGUF, where records lie in pieces, has none anyway.
                check: (pieces.len() == 1).then_some(Check::Record(load.key)),
            })
        });
        let entry_offset_bytes = |key: ExpertKey| u64::from(self.space.index(key)) * 4;
        let table = &self.table;
        self.unlisted.extend(loads.iter().filter_map(|load| load.victim));
        let unlisted = &self.unlisted;
        let loaded = self.transport.run(
            &mut moves,
            &mut |recorder| {
                for &victim in unlisted {
                    recorder.update(table, entry_offset_bytes(victim), &NO_SLOT.to_le_bytes());
                }
            },
            &mut |recorder| {
                for load in loads {
                    recorder.update(table, entry_offset_bytes(load.key), &load.slot.0.to_le_bytes());
                }
            },
        );
        self.stats.evictions += loads.iter().filter(|load| load.victim.is_some()).count() as u64;
        match loaded {
            Ok(ticket) => {
                self.copies = Some(ticket);
                self.unlisted.clear();
                loads.iter().for_each(|load| self.pool.loaded(load.slot));
                self.stats.read_bytes += loads.len() as u64 * self.memory.record_bytes;
                Ok(())
            }
            Err(error) => {
                loads.iter().for_each(|load| self.pool.load_failed(load.slot));
                Err(error)
            }
        }
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
