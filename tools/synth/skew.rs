//! How often each expert is to be used, as an addition to its routing logit.
//!
//! In: experts, how many of them a token uses, and the exponent of Zipf's law. Out: for each rank a number in deviations of
//! the logit without it. Pure.
//!
//! A router's logits over random tokens are normal with deviation 1, and an expert is picked when its logit is among the
//! highest `used`: with many experts, when it is above a threshold that hardly moves. So an expert whose logit is raised by
//! `b` is picked with the probability that a normal number is above `threshold - b`, and the probability wanted gives `b`. No
//! expert can be picked twice for a token, so the law is cut at a probability just below 1, and the rest shared out to the
//! others: with 6 of 256 and an exponent of 1 that changes nothing but the first, with 2 the first six.

/// The grid on which the normal distribution is summed up, and its ends. It rounds the result to thousandths, far above what
/// mathematical libraries differ in, so that they do not make files differ.
const STEPS_PER_UNIT: i32 = 1024;
const GRID_END: i32 = 8 * STEPS_PER_UNIT;

/// For each rank, from the most used expert on, what is to be added to its logit.
pub(super) fn biases(experts: u32, used: u32, exponent: f64) -> Vec<f32> {
    if exponent == 0.0 || used >= experts {
        return vec![0.0; experts as usize];
    }
    let even = f64::from(used) / f64::from(experts);
    let shares = shares(experts, f64::from(used), exponent, 1.0 - 0.02 * (1.0 - even));
    let normal = NormalQuantiles::new();
    let threshold = normal.below(even);
    shares.into_iter().map(|share| normal.below(share) - threshold).collect()
}

/// Probabilities in proportion to `rank^-exponent`, none above `most`, with the sum `used`.
fn shares(experts: u32, used: f64, exponent: f64, most: f64) -> Vec<f64> {
    let law: Vec<f64> = (1..=experts).map(|rank| f64::from(rank).powf(-exponent)).collect();
    let share = |factor: f64| law.iter().map(move |weight| (factor * weight).min(most));
    let (mut low, mut high) = (0.0, used);
    while share(high).sum::<f64>() < used {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if share(middle).sum::<f64>() < used { low = middle } else { high = middle }
    }
    share(high).collect()
}

/// The inverse of the normal distribution.
struct NormalQuantiles {
    /// The share of the distribution below each point of the grid.
    below: Vec<f64>,
}

impl NormalQuantiles {
    fn new() -> Self {
        let density = |step: i32| (-0.5 * (f64::from(step) / f64::from(STEPS_PER_UNIT)).powi(2)).exp();
        let mut below: Vec<f64> = (-GRID_END..=GRID_END)
            .scan(0.0, |sum, step| {
                *sum += density(step);
                Some(*sum)
            })
            .collect();
        let all = *below.last().expect("invariant: the grid has points");
        below.iter_mut().for_each(|share| *share /= all);
        Self { below }
    }

    /// The point below which `share` of the distribution lies.
    fn below(&self, share: f64) -> f32 {
        let index = self.below.partition_point(|below| *below < share);
        let step = i32::try_from(index).expect("invariant: the grid is small") - GRID_END;
        step as f32 / STEPS_PER_UNIT as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_law_and_sum_up() {
        let shares = shares(256, 6.0, 1.0, 0.98);
        assert!((shares.iter().sum::<f64>() - 6.0).abs() < 1e-9, "sum");
        assert!(
            (shares[9] / shares[99] - 10.0).abs() < 1e-6,
            "the 10th is used ten times as often as the 100th"
        );
        assert!(shares[0] <= 0.98, "no more than once a token");
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        let normal = NormalQuantiles::new();
        for (share, wanted) in [(0.5, 0.0), (0.975, 1.960), (0.0228, -1.999), (0.001, -3.090)] {
            assert!((normal.below(share) - wanted).abs() < 3e-3, "{share}: {}", normal.below(share));
        }
    }

    #[test]
    fn no_skew_adds_nothing_and_any_skew_descends() {
        assert_eq!(biases(8, 3, 0.0), [0.0; 8]);
        assert_eq!(biases(4, 4, 1.0), [0.0; 4]);
        for exponent in [0.1, 0.5, 1.0, 2.0, 4.0] {
            let biases = biases(256, 6, exponent);
            assert!(biases.is_sorted_by(|a, b| a >= b), "{exponent}: {biases:?}");
            assert!(biases.iter().all(|bias| bias.abs() < 12.0), "{exponent}: {biases:?}");
        }
    }
}
