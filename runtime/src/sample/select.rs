//! The best of a row of logits, without sorting the row. Pure.

use std::cmp::Ordering;

use crate::base::ids::TokenId;

/// A token with its logit.
pub(super) type Candidate = (TokenId, f32);

/// Better first: the higher logit, and of equal ones the lower id.
pub(super) fn better_first(a: &Candidate, b: &Candidate) -> Ordering {
    // Minus zero and zero are equal here; a NaN is worse than everything.
    let order = match (a.1.is_nan(), b.1.is_nan()) {
        (false, false) => b.1.partial_cmp(&a.1).expect("invariant: neither is NaN"),
        (left, right) => left.cmp(&right),
    };
    order.then(a.0.cmp(&b.0))
}

/// Keeps the `count` best, in no order.
pub(super) fn keep_best(candidates: &mut Vec<Candidate>, count: usize) {
    if count < candidates.len() {
        if count > 0 {
            candidates.select_nth_unstable_by(count - 1, better_first);
        }
        candidates.truncate(count);
    }
}

/// Sorts the best to the front until `is_enough(sorted)` says how many of them to keep, and keeps those.
///
/// The front grows by a factor of four from 256, so that a peaked distribution, as nearly all are, never sorts the row.
pub(super) fn keep_sorted_front(
    candidates: &mut Vec<Candidate>,
    mut is_enough: impl FnMut(&[Candidate]) -> Option<usize>,
) {
    let mut front = 256;
    loop {
        front = candidates.len().min(front);
        if front < candidates.len() {
            candidates.select_nth_unstable_by(front, better_first);
        }
        candidates[..front].sort_unstable_by(better_first);
        if let Some(count) = is_enough(&candidates[..front]) {
            candidates.truncate(count);
            return;
        }
        if front == candidates.len() {
            return;
        }
        front *= 4;
    }
}
