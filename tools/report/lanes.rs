//! Spans of time: which of them may lie in one track, how long they last together, how long two kinds of them overlap. Pure.
//!
//! - In: spans `(begin, end)` in nanoseconds, begin at most end, in any order. Out: lanes, merged spans, lengths.
//! - Invariants: two spans of one lane touch at most; no fewer lanes would do.

/// From when until when, in nanoseconds.
pub(super) type Span = (u64, u64);

/// The lane of each span: the lowest one that is free when it begins.
pub(super) fn assign(spans: &[Span]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|&index| spans[index]);
    let mut lanes = vec![0; spans.len()];
    let mut free_from: Vec<u64> = Vec::new();
    for index in order {
        let (begin, end) = spans[index];
        let lane = free_from.iter().position(|&free| free <= begin).unwrap_or(free_from.len());
        if lane == free_from.len() {
            free_from.push(end);
        } else {
            free_from[lane] = end;
        }
        lanes[index] = lane;
    }
    lanes
}

/// The spans with overlapping and touching ones joined, in order.
pub(super) fn merge(spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut spans: Vec<Span> = spans.into_iter().collect();
    spans.sort_unstable();
    let mut merged: Vec<Span> = Vec::new();
    for (begin, end) in spans {
        match merged.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((begin, end)),
        }
    }
    merged
}

/// How long merged spans last, in nanoseconds.
pub(super) fn length_ns(merged: &[Span]) -> u64 {
    merged.iter().map(|(begin, end)| end - begin).sum()
}

/// What lies in both of two lists of merged spans, in nanoseconds.
pub(super) fn overlap_ns(one: &[Span], other: &[Span]) -> u64 {
    let (mut i, mut j, mut sum) = (0, 0, 0);
    while let (Some(a), Some(b)) = (one.get(i), other.get(j)) {
        sum += a.1.min(b.1).saturating_sub(a.0.max(b.0));
        if a.1 <= b.1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_touches_shares_a_lane_and_what_overlaps_does_not() {
        assert_eq!(assign(&[]), Vec::<usize>::new());
        assert_eq!(assign(&[(0, 5), (5, 9), (9, 9)]), [0, 0, 0]);
        assert_eq!(assign(&[(0, 10), (1, 3), (2, 4), (3, 5), (10, 11)]), [0, 1, 2, 1, 0]);
        assert_eq!(assign(&[(7, 9), (0, 8)]), [1, 0], "in order of their beginnings, whatever the list's");
    }

    #[test]
    fn time_is_counted_once() {
        let merged = merge([(5, 9), (0, 2), (1, 3), (9, 10)]);
        assert_eq!(merged, [(0, 3), (5, 10)]);
        assert_eq!(length_ns(&merged), 8);
        assert_eq!(overlap_ns(&merged, &[(2, 6), (8, 20)]), 1 + 1 + 2);
        assert_eq!(overlap_ns(&merged, &[(3, 5)]), 0);
    }

    proptest! {
        #[test]
        fn lanes_never_overlap_and_are_as_few_as_the_deepest_moment_needs(
            spans in proptest::collection::vec((0_u64..200, 0_u64..40), 0..60)
        ) {
            let spans: Vec<Span> = spans.into_iter().map(|(begin, long)| (begin, begin + long)).collect();
            let lanes = assign(&spans);
            for (i, a) in spans.iter().enumerate() {
                for (j, b) in spans.iter().enumerate().skip(i + 1) {
                    prop_assert!(lanes[i] != lanes[j] || a.1 <= b.0 || b.1 <= a.0, "{a:?} {b:?}");
                }
            }
            let deepest = (0..240).map(|at| spans.iter().filter(|span| span.0 <= at && at < span.1).count());
            // A span of no length needs a lane, too.
            let used = lanes.iter().max().map_or(0, |lane| lane + 1);
            let instants = spans.iter().filter(|span| span.0 == span.1).count().min(1);
            prop_assert!(used <= deepest.max().unwrap_or(0) + instants, "{used} lanes");
        }

        #[test]
        fn overlap_is_what_counting_gives(
            one in proptest::collection::vec((0_u64..60, 0_u64..9), 0..12),
            other in proptest::collection::vec((0_u64..60, 0_u64..9), 0..12)
        ) {
            let of = |list: Vec<(u64, u64)>| merge(list.into_iter().map(|(begin, long)| (begin, begin + long)));
            let (one, other) = (of(one), of(other));
            let is_in = |list: &[Span], at| list.iter().any(|span| span.0 <= at && at < span.1);
            let wanted = (0..80).filter(|&at| is_in(&one, at) && is_in(&other, at)).count() as u64;
            prop_assert_eq!(overlap_ns(&one, &other), wanted);
        }
    }
}
