//! Decides, for one layer of one step, which routed experts must be read and into which slots.
//!
//! - Owns: nothing; it plans on the [`Pool`]'s table.
//! - In: the experts that the layer needs, each once, in the caller's order.
//! - Out: a [`Wave`]: a slot for every expert that fits, and the loads that fill the missing ones.
//! - Invariants: pure, so equal pools and equal input give equal waves, and a schedule can be replayed from its seed.
//!   An expert of a wave is in it once, has a slot of its own, and is never the victim of a load of the same wave.
//!
//! A layer may need more experts than there are slots. It is then cut into waves that are loaded, run and released in
//! turn:
//!
//! ```text
//! while !experts.is_empty() {
//!     pool.plan_wave(layer, &mut experts)   load it, run it; its slots may be claimed by the next wave
//! }
//! ```

use crate::base::ids::{ExpertIndex, ExpertKey, LayerIndex, SlotIndex};
use crate::expert::pool::Pool;

/// One expert's record to be read into one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// The expert to read.
    pub key: ExpertKey,
    /// Where it goes.
    pub slot: SlotIndex,
    /// Who was in the slot before, and now is in none.
    pub victim: Option<ExpertKey>,
}

/// Experts of one layer that are in slots at the same time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wave {
    /// The experts with their slots: first those that were there already, then those that must be loaded, each part
    /// in the caller's order.
    pub experts: Vec<(ExpertIndex, SlotIndex)>,
    /// What must be read, in the order of the last part of `experts`.
    pub loads: Vec<Load>,
}

impl Wave {
    /// An empty wave with room for `expert_count` experts, so that [`Pool::plan_wave_into`] need not allocate.
    pub fn with_capacity(expert_count: usize) -> Self {
        Self { experts: Vec::with_capacity(expert_count), loads: Vec::with_capacity(expert_count) }
    }

    /// How many of its experts were in slots already, or on their way into one.
    pub fn hit_count(&self) -> usize {
        self.experts.len() - self.loads.len()
    }
}

impl Pool {
    /// Plans the next wave for `experts` of `layer`; what it takes leaves `experts`, whose rest keeps its order.
    ///
    /// All that are in slots come first, then as many of the missing as find a slot. Each counts as a use. A hit may
    /// still be loading from an earlier plan: [`Pool::state`] tells. The slots of the loads are `Loading` until
    /// [`Pool::loaded`] or [`Pool::load_failed`].
    ///
    /// With no slot pinned or loading, a wave holds at least one expert. Otherwise it can be empty: then a pin must go
    /// or a load must end before anything fits.
    ///
    /// # Panics
    /// When an expert is named twice.
    pub fn plan_wave(&mut self, layer: LayerIndex, experts: &mut Vec<ExpertIndex>) -> Wave {
        let mut wave = Wave::default();
        self.plan_wave_into(layer, experts, &mut wave);
        wave
    }

    /// [`Pool::plan_wave`] into a wave whose memory is used again; its old content is dropped.
    ///
    /// # Panics
    /// When an expert is named twice.
    pub fn plan_wave_into(&mut self, layer: LayerIndex, experts: &mut Vec<ExpertIndex>, wave: &mut Wave) {
        wave.experts.clear();
        wave.loads.clear();

        self.begin_wave();

        experts.retain(|&expert| {
            let key = ExpertKey { layer, expert };
            let Some(slot) = self.lookup(key) else { return true };
            assert!(self.join_wave(slot, key), "{key} was named twice");
            wave.experts.push((expert, slot));
            false
        });

        let mut is_full = false;
        experts.retain(|&expert| {
            let key = ExpertKey { layer, expert };
            assert_eq!(self.lookup(key), None, "{key} was named twice");
            if is_full {
                return true;
            }
            let Some((slot, victim)) = self.claim(key) else {
                is_full = true;
                return true;
            };
            wave.experts.push((expert, slot));
            wave.loads.push(Load { key, slot, victim });
            false
        });
    }
}
