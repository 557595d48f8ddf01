//! Twin of `rope`.

use half::f16;

use super::norm::inverse_rms;
use super::{Control, at, rounded};
use crate::layout::RopePush;

/// Two values as the cache holds them: f16, nearest even, the first in the low half.
pub(super) fn pack_half(low: f64, high: f64) -> u32 {
    // The kernel rounds an f32 to f16; one rounding from f64 could differ from the kernel's two.
    let bits = |value: f64| u32::from(f16::from_f32(rounded(value)).to_bits());
    bits(low) | bits(high) << 16
}

/// A head after its norm and, if `angles` are given (d/2 cosines, then d/2 sines), its rotation.
fn turned(head: &[f32], norm: &[f32], angles: Option<&[f32]>, epsilon: f32) -> Vec<f64> {
    let scale = inverse_rms(head, epsilon);
    let mut values: Vec<f64> =
        head.iter().zip(norm).map(|(&value, &norm)| f64::from(value) * scale * f64::from(norm)).collect();
    if let Some(angles) = angles {
        let half = head.len() / 2;
        for pair in 0..half {
            let (cosine, sine) = (f64::from(angles[pair]), f64::from(angles[half + pair]));
            let (a, b) = (values[pair], values[half + pair]);
            values[pair] = a * cosine - b * sine;
            values[half + pair] = a * sine + b * cosine;
        }
    }
    values
}

/// Norm per head of q and k, rotation of the pairs (i, i + d/2) if `is_rotated`; q back in place, k and v to the cache.
///
/// q `[token_count, head_count, d]`; k, v `[token_count, kv_head_count, d]`; q_norm, k_norm `[d]`; angles
/// `[token_count, d]`; caches `[ring_rows, kv_head_count, d / 2]`, two f16 a word, position `p` in row `p % ring_rows`.
#[expect(clippy::too_many_arguments, reason = "one argument a binding of the kernel")]
pub fn rope(
    control: &Control,
    push: &RopePush,
    q: &mut [f32],
    k: &[f32],
    v: &[f32],
    q_norm: &[f32],
    k_norm: &[f32],
    angles: &[f32],
    k_cache: &mut [u32],
    v_cache: &mut [u32],
) {
    if control.is_stopped() {
        return;
    }
    let (heads, kv_heads, dim) = (at(push.head_count), at(push.kv_head_count), at(push.head_dim));
    for token in 0..at(control.token_count) {
        let angles = (push.is_rotated != 0).then(|| &angles[token * dim..][..dim]);
        for head in 0..heads {
            let head = &mut q[(token * heads + head) * dim..][..dim];
            let values = turned(head, q_norm, angles, push.epsilon);
            head.iter_mut().zip(values).for_each(|(value, turned)| *value = rounded(turned));
        }
        let ring_row = (at(control.position) + token) % at(push.ring_rows);
        for head in 0..kv_heads {
            let from = (token * kv_heads + head) * dim;
            let to = (ring_row * kv_heads + head) * dim / 2;
            let key = turned(&k[from..][..dim], k_norm, angles, push.epsilon);
            let value = &v[from..][..dim];
            for pair in 0..dim / 2 {
                k_cache[to + pair] = pack_half(key[2 * pair], key[2 * pair + 1]);
                v_cache[to + pair] = pack_half(f64::from(value[2 * pair]), f64::from(value[2 * pair + 1]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn_swaps_the_halves_and_the_ring_wraps() {
        let push = RopePush {
            head_count: 1,
            kv_head_count: 1,
            head_dim: 4,
            is_rotated: 1,
            ring_rows: 2,
            epsilon: 0.0,
        };
        let control = Control { stop: 0, token_count: 1, position: 3 };
        // Root mean square of (1, 1, 1, 1) is 1, so the norm alone changes nothing.
        let mut q = [1.0, 1.0, 1.0, 1.0];
        let angles = [0.0, 1.0, 1.0, 0.0]; // pair 0 by 90 degrees, pair 1 by 0
        let (mut k_cache, mut v_cache) = ([0; 4], [0; 4]);
        let ones = [1.0; 4];
        rope(
            &control,
            &push,
            &mut q,
            &[1.0, 1.0, -1.0, 1.0],
            &[0.5, 2.0, 0.0, -1.0],
            &ones,
            &[1.0, 2.0, 1.0, 1.0],
            &angles,
            &mut k_cache,
            &mut v_cache,
        );
        assert_eq!(q, [-1.0, 1.0, 1.0, 1.0]);
        // k after its norm (1, 2, -1, 1), pair (1, -1) turned to (1, 1); position 3 lies in row 1.
        assert_eq!(k_cache, [0, 0, 0x4000_3C00, 0x3C00_3C00]);
        assert_eq!(v_cache, [0, 0, 0x4000_3800, 0xBC00_0000]);
    }

    #[test]
    fn without_rotation_only_the_norm_acts() {
        let push = RopePush {
            head_count: 1,
            kv_head_count: 0,
            head_dim: 4,
            is_rotated: 0,
            ring_rows: 1,
            epsilon: 0.0,
        };
        let control = Control { token_count: 1, ..Control::default() };
        let mut q = [2.0, -2.0, 2.0, 2.0];
        rope(&control, &push, &mut q, &[], &[], &[1.0, 1.0, 3.0, 0.0], &[], &[], &mut [], &mut []);
        assert_eq!(q, [1.0, -1.0, 3.0, 0.0]);
    }

    #[test]
    fn f16_rounds_to_nearest_even() {
        // 2049 lies between 2048 and 2050: the even significand is 2048; 2051 goes up to 2052.
        assert_eq!(pack_half(2049.0, 2051.0), 0x6802_6800);
    }
}
