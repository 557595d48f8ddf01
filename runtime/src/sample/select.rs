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

/// Puts the `count` best of `row`, which comes in order of id, into `target`, in no order.
///
/// Most of a row is worse than the best so far and costs one comparison: a few times `count` candidates are gathered,
/// cut to the best, and the worst of those is the bar for what follows.
pub(super) fn gather_best(row: impl Iterator<Item = Candidate>, count: usize, target: &mut Vec<Candidate>) {
    target.clear();
    let room = count.saturating_mul(4).max(64);
    let mut bar = None;
    for candidate in row {
        // Of equal logits the earlier id is the better, so what only reaches the bar is left.
        if bar.is_none_or(|bar| candidate.1 > bar) {
            target.push(candidate);
            if target.len() == room {
                keep_best(target, count);
                bar = target.iter().copied().max_by(better_first).map(|worst| worst.1);
            }
        }
    }
    keep_best(target, count);
}

/// Keeps the `count` best, in no order.
fn keep_best(candidates: &mut Vec<Candidate>, count: usize) {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn gathering_equals_a_full_sort(
            row in proptest::collection::vec(prop_oneof![-9i16..9, Just(i16::MIN), Just(i16::MAX)], 0..600),
            count in 0usize..80,
        ) {
            let logit = |value| match value {
                i16::MIN => f32::NEG_INFINITY,
                i16::MAX => f32::NAN,
                value => f32::from(value),
            };
            let row: Vec<Candidate> = (0..).zip(row.into_iter().map(logit)).collect();
            let mut best = Vec::new();
            gather_best(row.iter().copied(), count, &mut best);
            best.sort_by(better_first);
            let mut sorted = row;
            sorted.sort_by(better_first);
            let ids = |candidates: &[Candidate]| candidates.iter().map(|(id, _)| *id).collect::<Vec<_>>();
            prop_assert_eq!(ids(&best), ids(&sorted[..count.min(sorted.len())]));
        }
    }
}
