//! Log-probabilities, and the best of a row, for those who look. Pure.

use super::error::SampleError;
use super::select::{better_first, gather_best};
use crate::base::ids::TokenId;

/// The natural logarithm of the probability of each of `ids`, in their order, under the softmax of `logits`.
///
/// The sum is f64 in order of id, so it is the same whatever `ids` asks for.
///
/// # Errors
/// A logit that is not finite, or an id outside the row.
pub fn log_probabilities(logits: &[f32], ids: &[TokenId]) -> Result<Vec<f64>, SampleError> {
    let max = check_finite(logits)?;
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - max).exp()).sum();
    let log_sum = max + sum.ln();
    ids.iter()
        .map(|id| match logits.get(*id as usize) {
            Some(logit) => Ok(f64::from(*logit) - log_sum),
            None => Err(SampleError::UnknownId { id: *id, vocabulary: logits.len() }),
        })
        .collect()
}

/// The `n` best tokens with their logits, best first, of equal ones the lower id first. A NaN comes after everything.
pub fn top_n(logits: &[f32], n: usize) -> Vec<(TokenId, f32)> {
    let mut candidates = Vec::new();
    gather_best((0..).zip(logits.iter().copied()), n, &mut candidates);
    candidates.sort_unstable_by(better_first);
    candidates
}

/// The largest logit; minus infinity for an empty row.
pub(super) fn check_finite(logits: &[f32]) -> Result<f64, SampleError> {
    let mut max = f32::NEG_INFINITY;
    for (id, logit) in (0..).zip(logits) {
        if !logit.is_finite() {
            return Err(SampleError::NotFinite { id, found: *logit });
        }
        max = max.max(*logit);
    }
    Ok(f64::from(max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_are_a_softmax() {
        let logits = [1000.0, 1001.0, 999.0];
        let got = log_probabilities(&logits, &[0, 1, 2, 1]).unwrap();
        let total: f64 = got[..3].iter().map(|p| p.exp()).sum();
        assert!((total - 1.0).abs() < 1e-12, "{total}");
        assert!((got[1] - got[0] - 1.0).abs() < 1e-12, "{got:?}");
        assert_eq!(got[1], got[3]);
        let error = log_probabilities(&[0.0, f32::NAN], &[0]).unwrap_err();
        assert!(matches!(error, SampleError::NotFinite { id: 1, .. }), "{error}");
        assert_eq!(log_probabilities(&logits, &[3]), Err(SampleError::UnknownId { id: 3, vocabulary: 3 }));
    }

    #[test]
    fn the_best_come_first_and_ties_by_id() {
        let logits = [1.0, 3.0, -0.0, 3.0, 0.0, f32::NAN];
        assert_eq!(top_n(&logits, 3), [(1, 3.0), (3, 3.0), (0, 1.0)]);
        assert_eq!(top_n(&logits, 5)[3..], [(2, -0.0), (4, 0.0)]);
        assert_eq!(top_n(&logits, 9).len(), 6);
        assert_eq!(top_n(&logits, 0), []);
    }
}
