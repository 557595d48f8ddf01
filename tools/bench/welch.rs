//! Welch's t-test: whether two means differ by more than their samples' spread explains. Pure.
//!
//! Source: Welch 1947, "The generalization of Student's problem when several different population variances are involved";
//! degrees of freedom by Satterthwaite 1946. The t distribution's tail is the regularised incomplete beta function, by its
//! continued fraction (DLMF 8.17.22), evaluated with Lentz's method (1976).

use super::result::mean_and_spread;

/// The two-sided p-value: how often two samples of one population would differ as much. Nothing where a sample has fewer than
/// two values. Samples without any spread differ surely, or not at all.
pub(super) fn p_value(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() < 2 || b.len() < 2 {
        return None;
    }
    let ((mean_a, spread_a), (mean_b, spread_b)) = (mean_and_spread(a), mean_and_spread(b));
    let (count_a, count_b) = (a.len() as f64, b.len() as f64);
    let (error_a, error_b) = (spread_a * spread_a / count_a, spread_b * spread_b / count_b);
    let error = error_a + error_b;
    if error == 0.0 {
        return Some(if mean_a == mean_b { 1.0 } else { 0.0 });
    }
    let t = (mean_a - mean_b) / error.sqrt();
    let freedom = error * error / (error_a * error_a / (count_a - 1.0) + error_b * error_b / (count_b - 1.0));
    Some(incomplete_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5).clamp(0.0, 1.0))
}

/// The regularised incomplete beta function `I_x(a, b)`, for `x` from 0 to 1 and `a`, `b` above 0.
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast below the mean, and I_x(a, b) = 1 - I_(1 - x)(b, a).
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let front = (a * x.ln() + b * (1.0 - x).ln() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)).exp() / a;
    let nonzero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut fraction, mut c, mut d) = (1.0_f64, 1.0_f64, 0.0_f64);
    for step in 0..500 {
        let m = f64::from(step / 2);
        let term = if step == 0 {
            1.0
        } else if step % 2 == 0 {
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        } else {
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        };
        d = 1.0 / nonzero(1.0 + term * d);
        c = nonzero(1.0 + term / c);
        fraction *= c * d;
        if (c * d - 1.0).abs() < 1e-14 {
            break;
        }
    }
    front * (fraction - 1.0)
}

/// The logarithm of the gamma function above 0: Stirling's series (DLMF 5.11.1) from 10 on, the recurrence below.
fn ln_gamma(x: f64) -> f64 {
    if x < 10.0 {
        return ln_gamma(x + 1.0) - x.ln();
    }
    let squared = x * x;
    let series =
        (1.0 / 12.0 - (1.0 / 360.0 - (1.0 / 1260.0 - 1.0 / (1680.0 * squared)) / squared) / squared) / x;
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against p-values from integrating the density of Student's t by Simpson's rule.
    #[test]
    fn p_values_are_those_of_the_integral() {
        let a1 = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4];
        let b1 = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 20.5, 24.4];
        let near = |found: Option<f64>, wanted: f64| {
            let found = found.unwrap();
            assert!((found - wanted).abs() < 1e-8, "{found}, wanted {wanted}");
        };
        near(p_value(&a1, &b1), 0.021_378_001_463);
        let a2 = [17.2, 20.9, 22.6, 18.1, 21.7, 21.4, 23.5, 24.2, 14.7, 21.8];
        let b2 = [
            21.5, 22.8, 21.0, 23.0, 21.6, 23.6, 22.5, 20.7, 23.4, 21.8, 20.7, 21.7, 21.5, 22.5, 23.6, 21.5,
            22.5, 23.5, 21.5, 21.8,
        ];
        near(p_value(&a2, &b2), 0.148_841_696_605);
    }

    #[test]
    fn known_values_of_the_functions() {
        assert!((ln_gamma(0.5) - std::f64::consts::PI.sqrt().ln()).abs() < 1e-12);
        assert!((ln_gamma(11.0) - 3_628_800.0_f64.ln()).abs() < 1e-12);
        // I_x(1, 1) = x; I_x(2, 1) = x^2; I_x(1, 3) = 1 - (1 - x)^3.
        for x in [0.01, 0.3, 0.5, 0.9] {
            assert!((incomplete_beta(x, 1.0, 1.0) - x).abs() < 1e-12, "{x}");
            assert!((incomplete_beta(x, 2.0, 1.0) - x * x).abs() < 1e-12, "{x}");
            assert!((incomplete_beta(x, 1.0, 3.0) - (1.0 - (1.0 - x).powi(3))).abs() < 1e-12, "{x}");
        }
        // Student's t of one degree of freedom is Cauchy's: two-sided 1/2 at t = 1; of two, 1 - t / sqrt(2 + t^2).
        assert!((incomplete_beta(0.5, 0.5, 0.5) - 0.5).abs() < 1e-12);
        assert!((incomplete_beta(2.0 / 11.0, 1.0, 0.5) - (1.0 - 3.0 / 11.0_f64.sqrt())).abs() < 1e-12);
    }

    #[test]
    fn equal_samples_do_not_differ() {
        assert_eq!(p_value(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]), Some(1.0));
        assert_eq!(p_value(&[2.0, 2.0], &[2.0, 2.0]), Some(1.0));
        assert_eq!(p_value(&[2.0, 2.0], &[3.0, 3.0]), Some(0.0));
        assert_eq!(p_value(&[2.0], &[3.0, 3.0]), None);
    }
}
