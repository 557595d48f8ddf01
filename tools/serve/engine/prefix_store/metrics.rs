//! What Prometheus reads of kept conversations.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

type Labels = Vec<(&'static str, &'static str)>;

/// Where a prompt's beginning was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// In the slot's own cache.
    Slot,
    /// There, with what its rings had lost from host memory.
    Cut,
    /// In host memory.
    Memory,
    /// On disk.
    Disk,
}

impl Origin {
    fn name(self) -> &'static str {
        match self {
            Self::Slot => "slot",
            Self::Cut => "cut",
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

/// The metrics.
pub(crate) struct PrefixMetrics {
    hits: Family<Labels, Counter>,
    hit_tokens: Family<Labels, Counter>,
    misses: Counter,
    kept: Counter,
    dropped: Counter,
    evicted: Counter,
    restored_bytes: Counter,
    written_bytes: Counter,
    memory_bytes: Gauge,
    disk_bytes: Gauge,
}

impl PrefixMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let misses = counter("prompt_cache_misses", "Prompts of which nothing was found");
        let kept =
            counter("prompt_cache_kept", "Conversations kept in host memory when another took their slot");
        let dropped =
            counter("prompt_cache_dropped", "Conversations for which there was no room, or a failed write");
        let evicted = counter("prompt_cache_evicted", "Conversations that left host memory for others");
        let restored_bytes = counter("prompt_cache_restored_bytes", "Bytes copied back to the device");
        let written_bytes = counter("prompt_cache_written_bytes", "Bytes written to disk");
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let memory_bytes = gauge("prompt_cache_memory_bytes", "Bytes of kept conversations in host memory");
        let disk_bytes = gauge("prompt_cache_disk_bytes", "Bytes of kept conversations on disk");
        let mut family = |name: &str, help: &str| {
            let family = Family::<Labels, Counter>::default();
            registry.register(name, help, family.clone());
            family
        };
        let hits = family("prompt_cache_hits", "Prompts of which a beginning was found, by where");
        let hit_tokens = family("prompt_cache_hit_tokens", "Tokens of these beginnings, by where");
        Self {
            hits,
            hit_tokens,
            misses,
            kept,
            dropped,
            evicted,
            restored_bytes,
            written_bytes,
            memory_bytes,
            disk_bytes,
        }
    }

    /// Of a prompt so many tokens were found.
    pub(super) fn found(&self, origin: Origin, tokens: u32) {
        if tokens == 0 {
            self.misses.inc();
            return;
        }
        let labels = vec![("from", origin.name())];
        self.hits.get_or_create(&labels).inc();
        self.hit_tokens.get_or_create(&labels).inc_by(tokens.into());
    }

    pub(super) fn kept(&self) {
        self.kept.inc();
    }

    pub(super) fn dropped(&self) {
        self.dropped.inc();
    }

    pub(super) fn evicted(&self, count: usize) {
        self.evicted.inc_by(count as u64);
    }

    pub(super) fn restored(&self, bytes: u64) {
        self.restored_bytes.inc_by(bytes);
    }

    /// What is kept now, and what was written so far.
    pub(super) fn holds(&self, memory_bytes: u64, disk_bytes: u64, written_bytes: u64) {
        self.memory_bytes.set(i64::try_from(memory_bytes).unwrap_or(i64::MAX));
        self.disk_bytes.set(i64::try_from(disk_bytes).unwrap_or(i64::MAX));
        self.written_bytes.inner().store(written_bytes, std::sync::atomic::Ordering::Relaxed);
    }
}
