//! Twins of `attention`, `attention_merge` and `attention_rows`.

use half::f16;

use super::{Control, at, rounded};
use crate::layout::{AttentionMergePush, AttentionPush, AttentionRowsPush};

/// The maximum that an empty split reports: below every score.
pub const EMPTY_SPLIT_MAXIMUM: f32 = -3.4e38;

/// One head's row of a cache.
fn cached(cache: &[u32], row: usize, words: usize) -> Vec<f64> {
    let word_values = |word: &u32| {
        let [a, b, c, d] = word.to_le_bytes();
        [f16::from_le_bytes([a, b]).to_f64(), f16::from_le_bytes([c, d]).to_f64()]
    };
    cache[row * words..][..words].iter().flat_map(word_values).collect()
}

/// For every token, head and split: the sums of `exp(s - m) v` over the split's keys, then `m`, then the sum of
/// `exp(s - m)`.
///
/// q `[token_count, head_count, head_dim]`; caches as `rope` leaves them; partial
/// `[token_count, head_count, splits, head_dim + 2]`. A token at position `p` sees the keys `first..=p`, `first` being
/// `p + 1 - window` or 0; split `i` takes `ceil(visible / splits)` of them from `first + i * ceil(visible / splits)` on.
pub fn attention(
    control: &Control,
    push: &AttentionPush,
    head_dim: u32,
    q: &[f32],
    k_cache: &[u32],
    v_cache: &[u32],
    partial: &mut [f32],
) {
    if control.is_stopped() {
        return;
    }
    let (heads, kv_heads, dim) = (at(push.head_count), at(push.kv_head_count), at(head_dim));
    let splits = at(push.splits);
    for token in 0..at(control.token_count) {
        let end = at(control.position) + token + 1;
        let first = if push.window > 0 { end.saturating_sub(at(push.window)) } else { 0 };
        let per_split = (end - first).div_ceil(splits);
        for head in 0..heads {
            let q = &q[(token * heads + head) * dim..][..dim];
            let kv_head = head / (heads / kv_heads);
            for split in 0..splits {
                let split_first = (first + split * per_split).min(end);
                let keys = split_first..(split_first + per_split).min(end);
                let cache_row = |key: usize| key % at(push.ring_rows) * kv_heads + kv_head;
                let scores: Vec<f64> = keys
                    .clone()
                    .map(|key| {
                        let k = cached(k_cache, cache_row(key), dim / 2);
                        let product: f64 = q.iter().zip(k).map(|(&q, k)| f64::from(q) * k).sum();
                        product * f64::from(push.scale)
                    })
                    .collect();
                let maximum = scores.iter().copied().fold(f64::from(EMPTY_SPLIT_MAXIMUM), f64::max);
                let mut sums = vec![0.0; dim];
                let mut total = 0.0;
                for (key, score) in keys.zip(scores) {
                    let weight = (score - maximum).exp();
                    total += weight;
                    let v = cached(v_cache, cache_row(key), dim / 2);
                    sums.iter_mut().zip(v).for_each(|(sum, v)| *sum += weight * v);
                }
                let target = &mut partial[((token * heads + head) * splits + split) * (dim + 2)..][..dim + 2];
                target.iter_mut().zip(sums).for_each(|(target, sum)| *target = rounded(sum));
                target[dim] = rounded(maximum);
                target[dim + 1] = rounded(total);
            }
        }
    }
}

/// Joins the splits of every head; the head's sink adds `exp(sink - m)` to the denominator and nothing to the sum.
///
/// partial as [`attention`] leaves it; sinks `[head_count]`; target `[token_count, head_count, head_dim]`.
pub fn attention_merge(
    control: &Control,
    push: &AttentionMergePush,
    partial: &[f32],
    sinks: &[f32],
    target: &mut [f32],
) {
    if control.is_stopped() {
        return;
    }
    let (heads, dim, splits) = (at(push.head_count), at(push.head_dim), at(push.splits));
    let stride = dim + 2;
    for row in 0..at(control.token_count) * heads {
        let partial = &partial[row * splits * stride..][..splits * stride];
        let sink = f64::from(sinks[row % heads]);
        let maximum = partial.chunks_exact(stride).map(|split| f64::from(split[dim])).fold(sink, f64::max);
        let factor = |split: &[f32]| (f64::from(split[dim]) - maximum).exp();
        let total =
            partial.chunks_exact(stride).map(|split| f64::from(split[dim + 1]) * factor(split)).sum::<f64>()
                + (sink - maximum).exp();
        for (index, target) in target[row * dim..][..dim].iter_mut().enumerate() {
            let sum: f64 =
                partial.chunks_exact(stride).map(|split| f64::from(split[index]) * factor(split)).sum();
            *target = rounded(sum / total);
        }
    }
}

/// [`attention`] and [`attention_merge`] without splits, of the tokens from `push.token_first` on; the rows before them are left
/// as they are.
///
/// q and target `[token_count, head_count, head_dim]`; caches as `rope` leaves them; sinks `[head_count]`.
pub fn attention_rows(
    control: &Control,
    push: &AttentionRowsPush,
    head_dim: u32,
    q: &[f32],
    [k_cache, v_cache]: [&[u32]; 2],
    sinks: &[f32],
    target: &mut [f32],
) {
    let &AttentionRowsPush { head_count, kv_head_count, window, ring_rows, token_first, scale } = push;
    let attend = AttentionPush { head_count, kv_head_count, window, ring_rows, splits: 1, scale };
    let rows = at(control.token_count) * at(head_count);
    let mut partial = vec![0.0; rows * (at(head_dim) + 2)];
    attention(control, &attend, head_dim, q, k_cache, v_cache, &mut partial);
    let merge = AttentionMergePush { head_count, head_dim, splits: 1 };
    let before = target[..at(token_first * head_count * head_dim)].to_vec();
    attention_merge(control, &merge, &partial, sinks, target);
    target[..before.len()].copy_from_slice(&before);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::rope::pack_half;

    const DIM: u32 = 4;

    /// Keys of zeros (every score is 0) and values that are the key's index.
    fn caches(rows: u32) -> (Vec<u32>, Vec<u32>) {
        let values = (0..rows).flat_map(|row| [pack_half(f64::from(row), f64::from(row)); 2]).collect();
        (vec![0; (rows * 2) as usize], values)
    }

    fn run(position: u32, window: u32, ring_rows: u32, splits: u32, sink: f32) -> f32 {
        let push = AttentionPush { head_count: 1, kv_head_count: 1, window, ring_rows, splits, scale: 1.0 };
        let control = Control { stop: 0, token_count: 1, position };
        let (k_cache, v_cache) = caches(ring_rows);
        let mut partial = vec![0.0; (splits * (DIM + 2)) as usize];
        attention(&control, &push, DIM, &[1.0; 4], &k_cache, &v_cache, &mut partial);
        let push = AttentionMergePush { head_count: 1, head_dim: DIM, splits };
        let mut target = [0.0; 4];
        attention_merge(&control, &push, &partial, &[sink], &mut target);
        target[0]
    }

    #[test]
    fn equal_scores_give_the_mean_whatever_the_splits() {
        for splits in [1, 2, 3, 7, 20] {
            let mean = run(6, 0, 7, splits, -1e30);
            assert!((mean - 3.0).abs() < 1e-6, "{splits} splits: {mean}");
        }
    }

    #[test]
    fn a_window_sees_the_last_keys_and_the_ring_wraps() {
        // Positions 5 and 6 in a ring of 4 rows lie in rows 1 and 2.
        assert!((run(6, 2, 4, 2, -1e30) - 1.5).abs() < 1e-6, "mean of rows 1 and 2");
        assert!((run(6, 1, 4, 2, -1e30) - 2.0).abs() < 1e-6, "only itself");
        assert!((run(1, 8, 8, 2, -1e30) - 0.5).abs() < 1e-6, "fewer keys than the window");
    }

    #[test]
    fn the_sink_takes_its_share() {
        // Two keys with score 0 and a sink of 0: (0 + 1) / 3.
        assert!((run(1, 0, 2, 1, 0.0) - 1.0 / 3.0).abs() < 1e-6, "one third");
    }

    #[test]
    fn an_empty_split_is_marked() {
        let push =
            AttentionPush { head_count: 1, kv_head_count: 1, window: 0, ring_rows: 1, splits: 2, scale: 1.0 };
        let control = Control { token_count: 1, ..Control::default() };
        let (k_cache, v_cache) = caches(1);
        let mut partial = [9.0; 12];
        attention(&control, &push, DIM, &[1.0; 4], &k_cache, &v_cache, &mut partial);
        assert_eq!(partial, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, EMPTY_SPLIT_MAXIMUM, 0.0]);
    }

    #[test]
    fn rows_are_those_of_one_split_from_a_token_on() {
        let push = AttentionRowsPush {
            head_count: 1,
            kv_head_count: 1,
            window: 2,
            ring_rows: 4,
            token_first: 1,
            scale: 1.0,
        };
        // Row 0 would be position 4: positions 5 and 6, in ring rows 1 and 2, are seen by rows 1 and 2 of the step.
        let control = Control { stop: 0, token_count: 3, position: 4 };
        let (k_cache, v_cache) = caches(4);
        let mut target = [9.0; 12];
        attention_rows(&control, &push, DIM, &[1.0; 12], [&k_cache, &v_cache], &[-1e30], &mut target);
        assert_eq!(target, [9.0, 9.0, 9.0, 9.0, 0.5, 0.5, 0.5, 0.5, 1.5, 1.5, 1.5, 1.5]);
    }
}
