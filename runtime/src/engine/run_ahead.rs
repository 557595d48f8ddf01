//! How a token's segments come to be submitted, as `model::decode` does it: how often, and how many kernels run in vain. Pure.
//!
//! - Owns: nothing. In: which layers miss, or how likely one does. Out: [`Submissions`] of a token among many.
//! - Invariants: the rule is that of `model::decode`: segments go to the device together, twice as many after a clean run, as many
//!   as were useful after a stop; those behind a stop are gone through for nothing.

/// Chances below this are left out.
const CHANCE_MIN: f64 = 1e-9;

/// Tokens after which how a token begins no longer depends on the first.
const SETTLED_TOKENS: usize = 8;

/// Of one token, on average.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Submissions {
    /// Layers at which the device stopped.
    pub stops: f64,
    /// Submissions that ended without a stop, beyond the one that every token has.
    pub further: f64,
    /// Segments that were submitted behind a stop.
    pub vain: f64,
}

impl Submissions {
    /// Of tokens that each miss in those of their expert layers for which `is_missed` holds.
    pub fn of_pattern(is_missed: &[bool]) -> Self {
        Self::settled(is_missed.len(), |layer| if is_missed[layer] { 1.0 } else { 0.0 })
    }

    /// Of tokens that miss in each of `layers` expert layers with the same chance.
    pub fn of_chance(layers: u32, chance: f64) -> Self {
        Self::settled(layers as usize, |_| chance)
    }

    fn settled(layers: usize, chance: impl Fn(usize) -> f64) -> Self {
        let segments = layers + 1;
        // By how many segments the next submission takes.
        let mut begin = vec![0.0; segments + 1];
        begin[segments] = 1.0;
        let mut found = Self::default();
        for _ in 0..SETTLED_TOKENS {
            (found, begin) = Self::token(&begin, &chance);
        }
        found
    }

    fn token(begin: &[f64], chance: &impl Fn(usize) -> f64) -> (Self, Vec<f64>) {
        let segments = begin.len() - 1;
        let mut found = Self { further: -1.0, ..Self::default() };
        let mut end = vec![0.0; segments + 1];
        // By the first segment that is not done, and how many the next submission takes.
        let mut states = vec![vec![0.0; segments + 1]; segments];
        states[0].copy_from_slice(begin);
        for from in 0..segments {
            for ahead in 1..=segments {
                let mut left = states[from][ahead];
                if left < CHANCE_MIN {
                    continue;
                }
                let to = segments.min(from + ahead);
                // The last segment has no router, so nothing is missed behind it.
                for stop in from..to.min(segments - 1) {
                    let here = left * chance(stop);
                    left -= here;
                    found.stops += here;
                    found.vain += here * (to - stop - 1) as f64;
                    states[stop + 1][stop + 1 - from] += here;
                }
                found.further += left;
                let next = segments.min(2 * ahead);
                if to == segments { end[next] += left } else { states[to][next] += left }
            }
        }
        (found, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: Submissions, stops: f64, further: f64, vain: f64) {
        let all = [(found.stops, stops), (found.further, further), (found.vain, vain)];
        assert!(all.iter().all(|(found, wanted)| (found - wanted).abs() < 1e-6), "{found:?}");
    }

    #[test]
    fn a_token_that_finds_all_is_one_submission() {
        near(Submissions::of_chance(47, 0.0), 0.0, 0.0, 0.0);
        near(Submissions::of_pattern(&[false; 8]), 0.0, 0.0, 0.0);
    }

    #[test]
    fn where_every_layer_stops_next_to_nothing_runs_in_vain() {
        // But for the first submission of a token, which is two segments long as the last one of the token before was clean.
        near(Submissions::of_chance(8, 1.0), 8.0, 0.0, 1.0);
    }

    #[test]
    fn every_other_layer_costs_a_submission_and_a_segment_in_vain() {
        // Stop; one segment, clean; two, of which the first stops; and so on. At the end two are clean, so a token begins with
        // four of which the first stops.
        let pattern = |every| (0..8).map(|layer| layer % every == 0).collect::<Vec<_>>();
        near(Submissions::of_pattern(&pattern(2)), 4.0, 4.0, 6.0);
        near(Submissions::of_pattern(&pattern(4)), 2.0, 4.0, 10.0);
    }

    #[test]
    fn a_chance_lies_between_its_patterns() {
        let half = Submissions::of_chance(47, 0.5);
        assert!((half.stops - 23.5).abs() < 0.01, "{half:?}");
        assert!(half.further > 10.0 && half.further < 24.0, "{half:?}");
        assert!(half.vain > 10.0 && half.vain < 30.0, "{half:?}");
        let rare = Submissions::of_chance(47, 0.01);
        assert!(rare.further < 3.0 && rare.vain > rare.stops, "{rare:?}");
    }
}
