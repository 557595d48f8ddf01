//! What Prometheus reads: counters of requests and tokens, times, and what the expert stream did.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::engine::backend::Counters;
use crate::engine::job::{End, Numbers};
use crate::engine::prefix_store::metrics::PrefixMetrics;

/// Seconds to a first token: a short prompt in memory to a long one from a drive.
const PROMPT_SECONDS: [f64; 14] =
    [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0];

/// Seconds between tokens.
const TOKEN_SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

type Labels = Vec<(&'static str, String)>;

/// All metrics.
pub(crate) struct Metrics {
    registry: Registry,
    responses: Family<Labels, Counter>,
    ends: Family<Labels, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    reply_tokens: Counter,
    queue_seconds: Histogram,
    first_token_seconds: Histogram,
    token_seconds: Histogram,
    waiting: Gauge,
    busy_slots: Gauge,
    engine_open: Gauge,
    releases: Counter,
    stream: Stream,
    /// Of kept conversations.
    pub(crate) prefix: PrefixMetrics,
}

/// Counters that the engine keeps itself.
struct Stream {
    hits: Counter,
    misses: Counter,
    evictions: Counter,
    read_bytes: Counter,
    reads: Counter,
    failed_reads: Counter,
    load_seconds: Counter<f64, AtomicU64>,
    drafts: Counter,
    drafts_accepted: Counter,
    pool_slots: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("flint_rt");
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let prompt_tokens = counter("prompt_tokens", "Tokens of prompts, those from a cache included");
        let cached_tokens = counter("prompt_cached_tokens", "Tokens of prompts that a slot held already");
        let reply_tokens = counter("generated_tokens", "Tokens that were generated");
        let releases =
            counter("engine_releases", "Times that the engine was closed because nobody asked for long");
        let stream = Stream {
            hits: counter("expert_hits", "Expert uses that found their record in a slot"),
            misses: counter("expert_misses", "Expert uses that had to read their record"),
            evictions: counter("expert_evictions", "Records that left a slot for another"),
            read_bytes: counter("expert_read_bytes", "Bytes of expert records read"),
            reads: counter("disk_reads", "Reads that ended well"),
            failed_reads: counter("disk_failed_reads", "Reads that ended with an error"),
            load_seconds: Counter::default(),
            drafts: counter("draft_tokens", "Drafts of next tokens that were verified"),
            drafts_accepted: counter("draft_tokens_accepted", "Drafts that were right"),
            pool_slots: Gauge::default(),
        };
        registry.register_with_unit(
            "expert_load",
            "Time spent reading records and submitting their copies",
            Unit::Seconds,
            stream.load_seconds.clone(),
        );
        registry.register("expert_pool_slots", "Expert slots in device memory", stream.pool_slots.clone());
        let responses = Family::default();
        registry.register("http_responses", "Answers by path and status", responses.clone());
        let ends = Family::default();
        registry.register("requests", "Generations by how they ended", ends.clone());
        let mut histogram = |name: &str, help: &str, buckets: &[f64]| {
            let histogram = Histogram::new(buckets.iter().copied());
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
            histogram
        };
        let queue_seconds = histogram("queue", "From a request's arrival to its first step", &PROMPT_SECONDS);
        let first_token_seconds =
            histogram("time_to_first_token", "From a request's arrival to its first token", &PROMPT_SECONDS);
        let token_seconds = histogram("time_a_token", "Mean time between a reply's tokens", &TOKEN_SECONDS);
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let waiting = gauge("requests_waiting", "Generations in the queue");
        let busy_slots = gauge("slots_busy", "Slots that work");
        let engine_open =
            gauge("engine_open", "1 while the engine holds its memory, 0 while it loads or is released");
        stream.pool_slots.set(0);
        let prefix = PrefixMetrics::register(&mut registry);
        Self {
            registry,
            responses,
            ends,
            prompt_tokens,
            cached_tokens,
            reply_tokens,
            queue_seconds,
            first_token_seconds,
            token_seconds,
            waiting,
            busy_slots,
            engine_open,
            releases,
            stream,
            prefix,
        }
    }

    /// An answer went out. `path` is one of ours, so that there are only so many series.
    pub(crate) fn responded(&self, path: &str, status: u16) {
        let labels = vec![("path", path.to_owned()), ("status", status.to_string())];
        self.responses.get_or_create(&labels).inc();
    }

    /// A prompt is fed.
    pub(crate) fn prompt_done(&self, numbers: &Numbers) {
        self.prompt_tokens.inc_by(numbers.prompt_tokens.into());
        self.cached_tokens.inc_by(numbers.cached_tokens.into());
        self.queue_seconds.observe(numbers.queued.as_secs_f64());
        self.first_token_seconds.observe((numbers.queued + numbers.prompt).as_secs_f64());
    }

    /// A reply is complete.
    pub(crate) fn finished(&self, end: &End, numbers: &Numbers) {
        self.ended(match end {
            End::Stop | End::StopString(_) => "stop",
            End::Length => "length",
        });
        self.reply_tokens.inc_by(numbers.reply_tokens.into());
        if let Some(steps) = numbers.reply_tokens.checked_sub(1).filter(|steps| *steps > 0) {
            self.token_seconds.observe(numbers.reply.as_secs_f64() / f64::from(steps));
        }
    }

    /// A client went away.
    pub(crate) fn cancelled(&self) {
        self.ended("cancelled");
    }

    /// A step failed.
    pub(crate) fn failed(&self) {
        self.ended("failed");
    }

    fn ended(&self, end: &str) {
        self.ends.get_or_create(&vec![("end", end.to_owned())]).inc();
    }

    /// The engine was closed for want of requests, or is open.
    pub(crate) fn released(&self, is_released: bool) {
        self.engine_open.set(i64::from(!is_released));
        if is_released {
            self.releases.inc();
        }
    }

    /// What the engine has counted so far.
    pub(crate) fn engine(&self, counters: &Counters) {
        let Counters { stream, reads, speculate, pool_slots } = counters;
        let set = |counter: &Counter, value: u64| counter.inner().store(value, Ordering::Relaxed);
        set(&self.stream.hits, stream.hits);
        set(&self.stream.misses, stream.misses);
        set(&self.stream.evictions, stream.evictions);
        set(&self.stream.read_bytes, stream.read_bytes);
        set(&self.stream.reads, reads.reads);
        set(&self.stream.failed_reads, reads.failed);
        set(&self.stream.drafts, speculate.drafted);
        set(&self.stream.drafts_accepted, speculate.accepted);
        let seconds = Duration::from_nanos(stream.load_ns).as_secs_f64();
        self.stream.load_seconds.inner().store(seconds.to_bits(), Ordering::Relaxed);
        self.stream.pool_slots.set(i64::from(*pool_slots));
    }

    /// All of them as text, with how many wait and work now.
    pub(crate) fn text(&self, waiting: usize, busy_slots: usize) -> String {
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        self.busy_slots.set(i64::try_from(busy_slots).unwrap_or(i64::MAX));
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("invariant: a string takes whatever is written to it");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_told() {
        let metrics = Metrics::new();
        let numbers = Numbers { prompt_tokens: 10, cached_tokens: 4, reply_tokens: 3, ..Numbers::default() };
        metrics.prompt_done(&numbers);
        metrics.finished(&End::Length, &numbers);
        metrics.cancelled();
        metrics.responded("/v1/models", 200);
        let mut counters = Counters::default();
        counters.stream.hits = 7;
        counters.stream.load_ns = 1_500_000_000;
        counters.speculate.drafted = 5;
        metrics.engine(&counters);
        let text = metrics.text(2, 1);
        for line in [
            "flint_rt_prompt_tokens_total 10",
            "flint_rt_prompt_cached_tokens_total 4",
            "flint_rt_generated_tokens_total 3",
            "flint_rt_requests_total{end=\"length\"} 1",
            "flint_rt_requests_total{end=\"cancelled\"} 1",
            "flint_rt_http_responses_total{path=\"/v1/models\",status=\"200\"} 1",
            "flint_rt_expert_hits_total 7",
            "flint_rt_expert_load_seconds_total 1.5",
            "flint_rt_draft_tokens_total 5",
            "flint_rt_requests_waiting 2",
            "flint_rt_time_to_first_token_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.starts_with("flint_rt_"), "{line}");
        }
    }
}
