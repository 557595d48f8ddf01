//! What a token takes of the device at hand, from a shorter model of the same shapes that was run on it. Pure.
//!
//! - Owns: nothing. In: times of tokens of that model ([`Rehearsal`]). Out: the [`StepCost`] of the whole model.
//! - Invariants: no time below zero, whatever noise there was.
//!
//! The shorter model has the whole one's lead layers, head and vocabulary, and fewer expert layers, all of one shape: what a layer
//! takes is the difference between two such models, over the difference of their layers. A token that misses takes
//!
//! `stops * stall + records * record + further * submission + vain * segment`
//!
//! more, without the reads ([`Submissions`]). Kinds of tokens that miss once in every layer, with every pick, in every other layer
//! and in every fourth tell the four numbers: the least squares of which none is below zero (Lawson & Hanson 1974).

use crate::engine::expectation::{StepCost, TokenCost};
use crate::engine::run_ahead::Submissions;

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
    /// How often the device stopped, and what followed from it.
    pub submissions: Submissions,
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
    /// Seconds that an expert layer's guess takes.
    pub guess_seconds: f64,
    /// Of tokens that miss, once a layer first; none where a model has too few experts to miss.
    pub misses: Vec<MissTime>,
    /// Tokens that were behind those that were timed.
    pub position: u32,
    /// Seconds that a record's checksum takes, where records are checked.
    pub check_seconds: f64,
}

/// Seconds of a stop, of a record, of a further submission, of a segment in vain.
const UNKNOWNS: usize = 4;

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

    /// Seconds of a stop, of a record without its checksum, of a further submission and of a segment in vain; nothing where no
    /// token missed.
    fn miss_seconds(&self) -> Option<[f64; UNKNOWNS]> {
        let rows: Vec<([f64; UNKNOWNS], f64)> = self
            .misses
            .iter()
            .filter(|time| time.records > 0.0)
            .map(|time| {
                let Submissions { stops, further, vain } = time.submissions;
                ([stops, time.records, further, vain], time.seconds)
            })
            .collect();
        (!rows.is_empty()).then(|| least_squares(&rows))
    }

    /// The cost of `token`. `rehearsed` is the same model's token with as many others behind it as there were when times were
    /// taken; `estimate` stands for what was not measured.
    pub fn step_cost(&self, token: &TokenCost, rehearsed: &TokenCost, estimate: &StepCost) -> StepCost {
        let kernel_seconds = self.resident_seconds(token.moe_layers);
        let further_bytes = token.cache_bytes.saturating_sub(rehearsed.cache_bytes);
        let estimates = [
            estimate.stall_seconds,
            estimate.record_seconds,
            estimate.submission_seconds,
            estimate.vain_seconds,
        ];
        let [stall_seconds, record_seconds, submission_seconds, vain_seconds] =
            self.miss_seconds().unwrap_or(estimates);
        StepCost {
            kernel_seconds,
            // Keys and values that were not there, at the rate of all other bytes, kernels' latency included.
            memory_seconds: kernel_seconds * further_bytes as f64 / rehearsed.device_bytes.max(1) as f64,
            stall_seconds,
            record_seconds: record_seconds + self.check_seconds,
            submission_seconds,
            vain_seconds,
            guess_seconds: f64::from(token.moe_layers) * self.guess_seconds.max(0.0),
            is_measured: true,
        }
    }
}

/// The unknowns, none below zero, with which the sums of `rows` come nearest to their results. There are so few that every
/// choice of those that are above zero is tried; of equals, the first unknowns.
fn least_squares(rows: &[([f64; UNKNOWNS], f64)]) -> [f64; UNKNOWNS] {
    let error = |found: &[f64; UNKNOWNS]| -> f64 {
        let sum = |row: &[f64; UNKNOWNS]| row.iter().zip(found).map(|(a, x)| a * x).sum::<f64>();
        rows.iter().map(|(row, result)| (sum(row) - result).powi(2)).sum()
    };
    let (mut best, mut least) = ([0.0; UNKNOWNS], error(&[0.0; UNKNOWNS]));
    let scale = least;
    for chosen in 1_u32..1 << UNKNOWNS {
        let columns: Vec<usize> = (0..UNKNOWNS).filter(|column| chosen >> column & 1 == 1).collect();
        let Some(values) = solve(rows, &columns) else { continue };
        if values.iter().any(|value| *value < 0.0) {
            continue;
        }
        let mut found = [0.0; UNKNOWNS];
        columns.iter().zip(values).for_each(|(&column, value)| found[column] = value);
        if error(&found) < least - 1e-12 * scale {
            (best, least) = (found, error(&found));
        }
    }
    best
}

/// The normal equations of some columns, by Gauss and Jordan with pivots; nothing where they have no single solution.
fn solve(rows: &[([f64; UNKNOWNS], f64)], columns: &[usize]) -> Option<Vec<f64>> {
    let count = columns.len();
    let mut matrix: Vec<Vec<f64>> = columns
        .iter()
        .map(|&i| {
            let products = columns.iter().map(|&j| rows.iter().map(|(row, _)| row[i] * row[j]).sum());
            products.chain([rows.iter().map(|(row, result)| row[i] * result).sum()]).collect()
        })
        .collect();
    let scale = matrix.iter().enumerate().map(|(i, row)| row[i]).fold(0.0, f64::max);
    for column in 0..count {
        let pivot =
            (column..count).max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()))?;
        if matrix[pivot][column].abs() <= 1e-9 * scale {
            return None;
        }
        matrix.swap(column, pivot);
        let pivot_row = matrix[column].clone();
        for (_, row) in matrix.iter_mut().enumerate().filter(|(index, _)| *index != column) {
            let factor = row[column] / pivot_row[column];
            row.iter_mut().zip(&pivot_row).for_each(|(value, pivot)| *value -= factor * pivot);
        }
    }
    Some((0..count).map(|index| matrix[index][count] / matrix[index][index]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of a model of 8 layers that miss in every `every`th, `records` records in each.
    fn miss(every: usize, records: f64, seconds: f64) -> MissTime {
        let pattern: Vec<bool> = (0..8).map(|layer| layer % every == 0).collect();
        let submissions = Submissions::of_pattern(&pattern);
        MissTime { submissions, records: records * submissions.stops, seconds }
    }

    fn rehearsal() -> Rehearsal {
        Rehearsal {
            resident: vec![
                ResidentTime { layers: 8, seconds: 10.0 },
                ResidentTime { layers: 4, seconds: 6.0 },
            ],
            guess_seconds: 0.0625,
            // A stall of 0.5, 0.25 a record, 0.125 a submission, 1 a segment in vain.
            misses: vec![miss(1, 1.0, 7.0), miss(1, 4.0, 13.0), miss(2, 1.0, 9.5), miss(4, 1.0, 12.0)],
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
    fn costs_are_told_apart_and_noise_gives_nothing_below_zero() {
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
            submission_seconds: 5.0,
            vain_seconds: 6.0,
            guess_seconds: 9.0,
            is_measured: false,
        };
        let costs = |rehearsal: &Rehearsal| {
            let step = rehearsal.step_cost(&token, &rehearsed, &estimate);
            [step.stall_seconds, step.record_seconds, step.submission_seconds, step.vain_seconds]
        };
        let near = |found: [f64; 4], wanted: [f64; 4]| {
            assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?}, not {wanted:?}");
        };
        near(costs(&rehearsal()), [0.5, 0.375, 0.125, 1.0]);
        let step = rehearsal().step_cost(&token, &rehearsed, &estimate);
        assert_eq!((step.kernel_seconds, step.memory_seconds, step.guess_seconds), (10.0, 1.0, 0.5));

        let mut noisy = rehearsal();
        noisy.misses[1].seconds = 1.0;
        noisy.misses[3].seconds = -3.0;
        noisy.resident[1].seconds = 99.0;
        assert!(costs(&noisy).iter().all(|cost| *cost >= 0.0), "{:?}", costs(&noisy));
        assert_eq!(noisy.resident_seconds(47), 10.0);

        // One kind alone tells what a stop takes with all that goes with it.
        let one = Rehearsal { misses: vec![miss(1, 1.0, 8.0)], ..rehearsal() };
        near(costs(&one), [1.0, 0.125, 0.0, 0.0]);
        let none = Rehearsal { misses: Vec::new(), ..rehearsal() };
        near(costs(&none), [0.25, 3.125, 5.0, 6.0]);
    }
}
