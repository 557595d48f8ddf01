//! A number and the limit that it is measured against, in pairs: each sample of Criterion's is taken twice, once of ours and
//! once of the limit, in an order that turns from sample to sample, so that what else the machine does falls on both alike.
//!
//! - Owns: the settings of the harness. In: two loops that take a count of iterations and return their time. Out: what
//!   Criterion prints of ours, and below it both rates and the median of their ratios with an interval of at least 95 %.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput};

/// What one iteration does.
#[derive(Clone, Copy)]
#[allow(dead_code, reason = "no bench needs all")]
pub(crate) enum Work {
    /// So many bytes: a rate in GB/s.
    Bytes(u64),
    /// So many things of this name: nanoseconds each.
    Things(u64, &'static str),
    /// So many floating-point operations: a rate in GFLOP/s, of which bytes are no limit.
    Flops(u64),
}

impl Work {
    fn count(self) -> f64 {
        let (Self::Bytes(count) | Self::Things(count, _) | Self::Flops(count)) = self;
        count as f64
    }

    /// The same, `times` times.
    #[allow(dead_code, reason = "few benches repeat")]
    pub(crate) fn times(self, times: u64) -> Self {
        match self {
            Self::Bytes(count) => Self::Bytes(count * times),
            Self::Things(count, name) => Self::Things(count * times, name),
            Self::Flops(count) => Self::Flops(count * times),
        }
    }

    /// So much in a second, in words.
    fn words(self, a_second: f64) -> String {
        match self {
            Self::Bytes(_) if a_second < 1e8 => format!("{:.1} MB/s", a_second / 1e6),
            Self::Bytes(_) => format!("{:.3} GB/s", a_second / 1e9),
            Self::Things(_, name) => format!("{:.1} ns a {name}", 1e9 / a_second),
            Self::Flops(_) => format!("{:.1} GFLOP/s", a_second / 1e9),
        }
    }
}

/// What a case is measured against.
pub(crate) struct Limit<F> {
    /// In words, as "memory copy".
    pub(crate) name: &'static str,
    /// What one iteration of `run` does.
    pub(crate) work: Work,
    /// Runs so many iterations.
    pub(crate) run: F,
}

/// The harness.
pub(crate) struct Bench {
    criterion: Criterion,
}

impl Bench {
    /// Measuring each case for about twice `milliseconds`, half of it the limit; the options of the command line come last.
    pub(crate) fn new(milliseconds: u64) -> Self {
        let criterion = Criterion::default()
            .sample_size(16)
            .warm_up_time(Duration::from_millis(milliseconds / 8))
            .measurement_time(Duration::from_millis(milliseconds))
            .nresamples(5000)
            .configure_from_args();
        Self { criterion }
    }

    /// Measures `ours`, which does `work` an iteration, in turns with `limit`.
    pub(crate) fn case<F: FnMut(u64) -> Duration>(
        &mut self,
        group: &str,
        name: &str,
        work: Work,
        mut limit: Limit<F>,
        mut ours: impl FnMut(u64) -> Duration,
    ) {
        // Of each sample the iterations, and both rates.
        let mut pairs: Vec<(u64, f64, f64)> = Vec::new();
        let mut criterion_group = self.criterion.benchmark_group(group);
        criterion_group.sampling_mode(SamplingMode::Flat).throughput(match work {
            Work::Bytes(bytes) => Throughput::BytesDecimal(bytes),
            Work::Things(count, _) | Work::Flops(count) => Throughput::Elements(count),
        });
        criterion_group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter_custom(|iterations| {
                let (our_time, limit_time) = if pairs.len().is_multiple_of(2) {
                    let limit_time = (limit.run)(iterations);
                    (ours(iterations), limit_time)
                } else {
                    let our_time = ours(iterations);
                    (our_time, (limit.run)(iterations))
                };
                let rate = |work: Work, time: Duration| {
                    work.count() * iterations as f64 / time.as_secs_f64().max(1e-12)
                };
                pairs.push((iterations, rate(work, our_time), rate(limit.work, limit_time)));
                our_time
            });
        });
        criterion_group.finish();
        // Nothing where a filter left the case out. Warming up takes other counts of iterations, or is first.
        let Some(&(iterations, ..)) = pairs.last() else { return };
        pairs.remove(0);
        pairs.retain(|pair| pair.0 == iterations);
        if pairs.is_empty() {
            return;
        }
        let of = |pick: fn(&(u64, f64, f64)) -> f64| Spread::of(pairs.iter().map(pick).collect());
        let (rate, bound, share) = (of(|pair| pair.1), of(|pair| pair.2), of(|pair| pair.1 / pair.2));
        if let Work::Flops(_) = work {
            println!("{:24}{}\n", "", work.words(rate.median));
            return;
        }
        println!(
            "{:24}{}; limit {}: {}; share {} ({} to {})\n",
            "",
            work.words(rate.median),
            limit.name,
            limit.work.words(bound.median),
            percent(share.median),
            percent(share.low),
            percent(share.high)
        );
    }

    /// What Criterion says at the end.
    pub(crate) fn finish(self) {
        self.criterion.final_summary();
    }
}

/// A share in percent, with three digits that count.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0..1.0 => format!("{percent:.3} %"),
        1.0..10.0 => format!("{percent:.2} %"),
        _ => format!("{percent:.1} %"),
    }
}

/// A median, and order statistics that cover the true one with at least 95 %, whatever the noise looks like; of fewer than six
/// values, all of them.
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        // How many may be left out at each end: the binomial tail of a fair coin stays within 2.5 %.
        let (mut tail, mut ways, mut cut) = (0.0, 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX)), 0);
        while cut < count / 2 {
            tail += ways;
            if tail > 0.025 {
                break;
            }
            ways *= (count - cut) as f64 / (cut + 1) as f64;
            cut += 1;
        }
        let cut = cut.saturating_sub(1);
        let median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
        Self { low: values[cut], median, high: values[count - 1 - cut] }
    }
}

/// The time of `iterations` calls.
#[allow(dead_code, reason = "some benches have loops of their own")]
pub(crate) fn repeat(iterations: u64, mut work: impl FnMut()) -> Duration {
    let begin = Instant::now();
    (0..iterations).for_each(|_| work());
    begin.elapsed()
}
