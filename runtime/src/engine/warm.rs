//! Experts that are read before anybody asks for them, as they were used most before.
//!
//! - Owns: nothing. In: experts, the most used first, from an earlier run or from recorded routes. Out: slots, and host memory behind
//!   them, that hold them.
//! - Invariants: what was used more stays where it is nearer to the device. Uses that are not a step's are counted nowhere;
//!   bytes that are read for them are.

use std::ops::ControlFlow;

use crate::base::ids::{ExpertIndex, LayerIndex};
use crate::engine::{Engine, EngineError};
use crate::expert::RouteTrace;

/// An expert by model layer and number.
pub type Expert = (u32, u32);

/// The experts of recorded routes, the most used first; of equal ones the first.
pub fn most_used_of(trace: &RouteTrace) -> Vec<Expert> {
    let mut uses = vec![0_u64; (trace.layer_count * trace.expert_count) as usize];
    for token in 0..trace.token_count() {
        for layer in 0..trace.layer_count {
            for &pick in trace.picks_of(token, layer) {
                uses[(layer * trace.expert_count + u32::from(pick)) as usize] += 1;
            }
        }
    }
    let key =
        |index: u32| (trace.expert_layer_first + index / trace.expert_count, index % trace.expert_count);
    sorted((0..).map(key).zip(uses))
}

/// Those that were used at all, the most used first.
fn sorted(uses: impl Iterator<Item = (Expert, u64)>) -> Vec<Expert> {
    let mut used: Vec<_> = uses.filter(|&(_, uses)| uses > 0).collect();
    used.sort_by_key(|&(_, uses)| std::cmp::Reverse(uses));
    used.into_iter().map(|(expert, _)| expert).collect()
}

/// `experts` by layer, each layer's in order: as they lie in the file.
fn by_layer(experts: &[Expert]) -> Vec<(LayerIndex, Vec<ExpertIndex>)> {
    let mut experts = experts.to_vec();
    experts.sort_unstable();
    experts.dedup();
    let layers = experts.chunk_by(|one, other| one.0 == other.0);
    layers
        .map(|layer| (LayerIndex(layer[0].0), layer.iter().map(|&(_, expert)| ExpertIndex(expert)).collect()))
        .collect()
}

impl Engine {
    /// The experts that were used since the engine was opened, the most used first.
    pub fn most_used(&self) -> Vec<Expert> {
        sorted(self.model.streamer.uses_of_experts().map(|(key, uses)| ((key.layer.0, key.expert.0), uses)))
    }

    /// Reads the first of `experts`, which are the most used: as many as slots and host memory hold. `progress` hears how many of how many
    /// there are, and may end it. Those that the model has not are left out. Gives how many were read or were there.
    ///
    /// # Errors
    /// When a read or the device fails; the engine goes on as if it had not been asked.
    pub fn warm(
        &mut self,
        experts: &[Expert],
        progress: &mut dyn FnMut(u32, u32) -> ControlFlow<()>,
    ) -> Result<u32, EngineError> {
        let streamer = &mut self.model.streamer;
        let known: Vec<Expert> =
            experts.iter().copied().filter(|&(layer, expert)| streamer.has_expert(layer, expert)).collect();
        let slots = (streamer.pool().slot_count() as usize).min(known.len());
        let kept = (streamer.kept()[2] as usize).min(known.len() - slots);
        let total = u32::try_from(slots + kept).expect("invariant: experts are counted in u32");
        let mut done = 0;
        // What host memory is to keep goes through the slots first, and is pushed out of them by what was used more.
        for part in [&known[slots..slots + kept], &known[..slots]] {
            streamer.begin_step();
            for (layer, mut experts) in by_layer(part) {
                while !experts.is_empty() {
                    let behind = experts.split_off(experts.len().min(WAVE_EXPERTS));
                    let count = u32::try_from(experts.len()).expect("invariant: experts are counted in u32");
                    while !experts.is_empty() {
                        streamer.load_unasked(layer, &mut experts)?;
                    }
                    experts = behind;
                    done += count;
                    if progress(done, total).is_break() {
                        return Ok(done);
                    }
                }
            }
        }
        Ok(done)
    }
}

/// Experts that are asked for at once: enough for any drive, and some tenths of a second of a slow one.
const WAVE_EXPERTS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_used_come_first_and_the_unused_not_at_all() {
        let trace = RouteTrace {
            model: "two layers".to_owned(),
            model_sha256: None,
            expert_layer_first: 3,
            layer_count: 2,
            expert_count: 4,
            experts_used: 1,
            guesses: None,
            picks: vec![0, 3, 1, 3, 1, 2, 1, 3],
            context_starts: vec![0],
            source: String::new(),
            expansion: None,
        };
        assert_eq!(most_used_of(&trace), [(3, 1), (4, 3), (3, 0), (4, 2)]);
    }

    #[test]
    fn layers_are_read_as_they_lie_in_the_file() {
        let layers = by_layer(&[(4, 2), (3, 7), (4, 0), (3, 7)]);
        let wanted =
            [(LayerIndex(3), vec![ExpertIndex(7)]), (LayerIndex(4), vec![ExpertIndex(0), ExpertIndex(2)])];
        assert_eq!(layers, wanted);
    }
}
