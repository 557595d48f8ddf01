//! How many uses find their expert, by the share of all experts that there is room for: a curve of recorded routes. Pure.

/// Which recorded text a hit rate is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routes {
    /// The text whose picks are spread widest: source code.
    Widest,
    /// Three texts in turn.
    Mixed,
    /// The text whose picks repeat most: prose.
    Narrowest,
}

/// Hit rates of a pool of the default policy, by simulation of recorded routes of a small model of this architecture (12 layers
/// of 56 experts, 6 a token, cold start, three texts of 2,000 tokens): share of all experts in the pool, then code, all three
/// texts in turn, prose. That model's training made its picks nearly uniform; larger models are usually more skewed, so the
/// curve is rather low than high. `cargo bench --bench simulate -- --hit-rates` prints it anew, `tests/simulate.rs` holds it.
pub const HIT_RATES: [(f64, [f64; 3]); 10] = [
    (0.025, [0.043, 0.064, 0.097]),
    (0.05, [0.093, 0.130, 0.189]),
    (0.1, [0.173, 0.223, 0.309]),
    (0.2, [0.313, 0.372, 0.482]),
    (0.3, [0.438, 0.499, 0.615]),
    (0.4, [0.549, 0.606, 0.718]),
    (0.5, [0.650, 0.700, 0.803]),
    (0.6, [0.742, 0.784, 0.872]),
    (0.7, [0.827, 0.857, 0.923]),
    (0.8, [0.900, 0.920, 0.962]),
];

/// The share of uses that would find their expert in a pool of `slots` of `expert_total` experts, by the recorded curve.
///
/// The default policy keeps the experts that are used often also in a pool smaller than what one token uses, so the share of
/// all experts is all that counts.
pub fn hit_rate(slots: u32, expert_total: u32, routes: Routes) -> f64 {
    if slots >= expert_total {
        return 1.0;
    }
    let x = f64::from(slots) / f64::from(expert_total);
    let column = match routes {
        Routes::Widest => 0,
        Routes::Mixed => 1,
        Routes::Narrowest => 2,
    };
    let (mut low, mut low_hits) = (0.0, 0.0);
    let points = HIT_RATES.iter().map(|(share, hits)| (*share, hits[column]));
    for (high, high_hits) in points.chain([(1.0, 1.0)]) {
        if x <= high {
            return low_hits + (high_hits - low_hits) * (x - low) / (high - low);
        }
        (low, low_hits) = (high, high_hits);
    }
    1.0
}

/// Shares of uses by where they find their expert; the rest is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hits {
    /// In a slot of the device.
    pub device: f64,
    /// In host memory, which has none that the device has.
    pub host: f64,
}

impl Hits {
    /// Of a pool of `slots` and `host_slots` in host memory, by the recorded curve: both together hold what a pool of their sum
    /// would.
    pub fn of(slots: u32, host_slots: u32, expert_total: u32, routes: Routes) -> Self {
        let device = hit_rate(slots, expert_total, routes);
        let both = hit_rate(slots.saturating_add(host_slots), expert_total, routes);
        Self { device, host: both - device }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_and_host_memory_together_hit_as_a_pool_of_both() {
        let hits = Hits::of(1200, 2400, 12_032, Routes::Mixed);
        assert_eq!(hits.device, hit_rate(1200, 12_032, Routes::Mixed));
        assert!((hits.device + hits.host - hit_rate(3600, 12_032, Routes::Mixed)).abs() < 1e-12, "{hits:?}");
        assert_eq!(
            Hits::of(282, 12_032 - 282, 12_032, Routes::Widest).host,
            1.0 - hit_rate(282, 12_032, Routes::Widest)
        );
        assert_eq!(Hits::of(282, 0, 12_032, Routes::Widest).host, 0.0);
    }

    #[test]
    fn the_curve_gives_back_what_was_recorded() {
        for (share, hits) in HIT_RATES {
            let slots = (share * 672.0_f64).round();
            for (routes, wanted) in [Routes::Widest, Routes::Mixed, Routes::Narrowest].into_iter().zip(hits) {
                #[allow(clippy::cast_possible_truncation, reason = "a share of 672")]
                let found = hit_rate(slots as u32, 672, routes);
                assert!((found - wanted).abs() < 0.005, "{share} {routes:?}: {found}, wanted {wanted}");
            }
        }
    }

    #[test]
    fn the_curve_rises_from_nothing_to_all() {
        assert_eq!(hit_rate(0, 12_032, Routes::Mixed), 0.0);
        assert!(
            hit_rate(282, 12_032, Routes::Mixed) < 0.07,
            "a token's picks of Flint are 2.3 % of all experts"
        );
        assert_eq!(hit_rate(12_032, 12_032, Routes::Widest), 1.0);
        let mut last = 0.0;
        for slots in 0..=12_032 {
            let now = hit_rate(slots, 12_032, Routes::Mixed);
            assert!((last..=1.0).contains(&now), "{slots}: {now} after {last}");
            last = now;
        }
    }
}
