//! What a token takes of the device at hand, from a shorter model of the same shapes that was run on it. Pure.
//!
//! - Owns: nothing. In: times of tokens of that model ([`Rehearsal`]). Out: the [`StepCost`] of the whole model.
//! - Invariants: no time below zero, whatever noise there was.
//!
//! The shorter model has the whole one's lead layers, head and vocabulary, and fewer expert layers, all of one shape: what a layer
//! takes is the difference between two such models, over the difference of their layers. A layer with a miss takes `stall +
//! misses * record` more, without the reads: two kinds of tokens, of which one misses once a layer and one with every pick, tell
//! both numbers.

use crate::engine::expectation::{StepCost, TokenCost};

/// Tokens with everything resident, in a model of so many expert layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResidentTime {
    /// Expert layers.
    pub layers: u32,
    /// Seconds a token.
    pub seconds: f64,
}

/// Tokens that miss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MissTime {
    /// Layers of a token in which picks missed.
    pub layers: f64,
    /// Records of a token that missed.
    pub records: f64,
    /// Seconds a token, beyond those of one that misses nothing and without waits for reads.
    pub seconds: f64,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Rehearsal {
    /// Of the longest model, and of a shorter one where that has not all layers of the whole one.
    pub resident: Vec<ResidentTime>,
    /// Of tokens that miss, few records a layer first; none where a model has too few experts to miss.
    pub misses: Vec<MissTime>,
    /// Tokens that were behind those that were timed.
    pub position: u32,
    /// Seconds that a record's checksum takes, where records are checked.
    pub check_seconds: f64,
}

impl Rehearsal {
    /// Seconds of a token with everything resident, in a model of `layers` expert layers.
    ///
    /// # Panics
    /// When nothing was measured.
    pub fn resident_seconds(&self, layers: u32) -> f64 {
        let longest = self.resident.iter().max_by_key(|time| time.layers);
        let longest = longest.expect("a rehearsal has run a token");
        let slope = self.resident.iter().find(|time| time.layers < longest.layers).map_or_else(
            // Nothing tells the rest from the layers: all of it grows.
            || longest.seconds / f64::from(longest.layers),
            |short| (longest.seconds - short.seconds) / f64::from(longest.layers - short.layers),
        );
        longest.seconds + (f64::from(layers) - f64::from(longest.layers)) * slope.max(0.0)
    }

    /// Seconds of a layer that stops, and of each record that it misses, without its checksum.
    fn miss_seconds(&self) -> Option<(f64, f64)> {
        let per_layer = |time: &MissTime| (time.records / time.layers, time.seconds / time.layers);
        let mut times = self.misses.iter().filter(|time| time.layers > 0.0).map(per_layer);
        let (few, few_seconds) = times.next()?;
        let (stall, record) = match times.next_back() {
            Some((many, many_seconds)) if many > few => {
                let record = ((many_seconds - few_seconds) / (many - few)).max(0.0);
                // Below zero the stall is lost in the noise: then all of it is the records'.
                match few_seconds - few * record {
                    stall if stall > 0.0 => (stall, record),
                    _ => (0.0, (many_seconds / many).max(0.0)),
                }
            }
            _ => (few_seconds, 0.0),
        };
        Some((stall.max(0.0), record))
    }

    /// The cost of `token`. `rehearsed` is the same model's token with as many others behind it as there were when times were
    /// taken; `estimate` stands for what was not measured.
    pub fn step_cost(&self, token: &TokenCost, rehearsed: &TokenCost, estimate: &StepCost) -> StepCost {
        let kernel_seconds = self.resident_seconds(token.moe_layers);
        let further_bytes = token.cache_bytes.saturating_sub(rehearsed.cache_bytes);
        let (stall_seconds, record_seconds) =
            self.miss_seconds().unwrap_or((estimate.stall_seconds, estimate.record_seconds));
        StepCost {
            kernel_seconds,
            // Keys and values that were not there, at the rate of all other bytes, kernels' latency included.
            memory_seconds: kernel_seconds * further_bytes as f64 / rehearsed.device_bytes.max(1) as f64,
            // Here reads come out of memory; who waits for a drive wakes up later, which no rehearsal shows.
            stall_seconds: stall_seconds.max(estimate.stall_seconds),
            record_seconds: record_seconds + self.check_seconds,
            is_measured: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rehearsal() -> Rehearsal {
        let of = |layers, records, seconds| MissTime { layers, records, seconds };
        Rehearsal {
            resident: vec![
                ResidentTime { layers: 8, seconds: 10.0 },
                ResidentTime { layers: 4, seconds: 6.0 },
            ],
            // A stall of 0.5, and 0.25 a record.
            misses: vec![of(8.0, 8.0, 6.0), of(8.0, 32.0, 12.0)],
            position: 100,
            check_seconds: 0.125,
        }
    }

    #[test]
    fn a_longer_model_takes_its_layers_more() {
        assert_eq!(rehearsal().resident_seconds(47), 10.0 + 39.0);
        assert_eq!(rehearsal().resident_seconds(8), 10.0);
        let one = Rehearsal { resident: rehearsal().resident[..1].to_vec(), ..rehearsal() };
        assert_eq!(one.resident_seconds(8), 10.0);
        assert_eq!(one.resident_seconds(16), 20.0);
    }

    #[test]
    fn stall_and_record_are_told_apart_and_noise_gives_nothing_below_zero() {
        let token = TokenCost {
            moe_layers: 8,
            experts_used: 4,
            record_bytes: 1,
            stages: 1,
            device_bytes: 120,
            cache_bytes: 20,
        };
        let rehearsed = TokenCost { device_bytes: 110, cache_bytes: 9, ..token };
        let estimate = StepCost {
            kernel_seconds: 9.0,
            memory_seconds: 9.0,
            stall_seconds: 0.25,
            record_seconds: 3.0,
            is_measured: false,
        };
        let step = rehearsal().step_cost(&token, &rehearsed, &estimate);
        let found = (step.kernel_seconds, step.memory_seconds, step.stall_seconds, step.record_seconds);
        assert_eq!(found, (10.0, 1.0, 0.5, 0.375));

        let mut noisy = rehearsal();
        noisy.misses[1].seconds = 1.0;
        noisy.resident[1].seconds = 99.0;
        let step = noisy.step_cost(&token, &rehearsed, &estimate);
        assert_eq!((step.stall_seconds, step.record_seconds), (0.75, 0.125));
        assert_eq!(noisy.resident_seconds(47), 10.0);

        noisy.misses[1].seconds = 64.0;
        let step = noisy.step_cost(&token, &rehearsed, &estimate);
        assert_eq!(
            (step.stall_seconds, step.record_seconds),
            (0.25, 2.125),
            "a stall is never less than is usual"
        );

        let none = Rehearsal { misses: Vec::new(), ..rehearsal() };
        let step = none.step_cost(&token, &rehearsed, &estimate);
        assert_eq!((step.stall_seconds, step.record_seconds), (0.25, 3.125));
    }
}
