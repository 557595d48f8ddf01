//! What a reply took: speed, hit rate, bytes read.

use std::fmt;

use flint_rt::base::units::{display_bytes, display_rate};
use flint_rt::engine::{Engine, Finish, Generated, SpeculateStats, Telemetry, TimeSplit};

/// Numbers of one reply, or of several.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stats {
    prompt_tokens: u64,
    prompt_reused: u64,
    prompt_seconds: f64,
    reply_tokens: u64,
    /// Steps behind the first token, which belongs to the prompt's time.
    reply_steps: u64,
    reply_seconds: f64,
    hits: u64,
    misses: u64,
    read_bytes: u64,
    load_seconds: f64,
    speculate: SpeculateStats,
    split: TimeSplit,
}

impl Stats {
    /// Of one reply; `before` are the stream's counters before it.
    pub(crate) fn new(engine: &Engine, before: &Telemetry, reply: &Generated) -> Self {
        let work = engine.telemetry().since(before);
        let tokens = reply.ids.len() as u64;
        let steps = if matches!(reply.finish, Finish::Stop(_)) { tokens } else { tokens.saturating_sub(1) };
        Self {
            prompt_tokens: reply.prompt_fed.into(),
            prompt_reused: reply.prompt_reused.into(),
            prompt_seconds: reply.times.prompt.as_secs_f64(),
            reply_tokens: tokens,
            reply_steps: steps,
            reply_seconds: reply.times.reply.as_secs_f64(),
            hits: work.stream.hits,
            misses: work.stream.misses,
            read_bytes: work.stream.read_bytes,
            load_seconds: work.stream.load_ns as f64 / 1e9,
            speculate: work.speculate,
            split: work.split,
        }
    }

    /// Adds another reply's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.prompt_tokens += other.prompt_tokens;
        self.prompt_reused += other.prompt_reused;
        self.prompt_seconds += other.prompt_seconds;
        self.reply_tokens += other.reply_tokens;
        self.reply_steps += other.reply_steps;
        self.reply_seconds += other.reply_seconds;
        self.hits += other.hits;
        self.misses += other.misses;
        self.read_bytes += other.read_bytes;
        self.load_seconds += other.load_seconds;
        self.speculate = self.speculate.plus(other.speculate);
        self.split = self.split.plus(other.split);
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |tokens: u64, seconds: f64| {
            if tokens == 0 || seconds <= 0.0 {
                "-".to_owned()
            } else {
                format!("{:.1}", tokens as f64 / seconds)
            }
        };
        writeln!(
            f,
            "prompt   {} tokens in {:.2} s, {} tokens/s; {} more were in the cache",
            self.prompt_tokens,
            self.prompt_seconds,
            rate(self.prompt_tokens, self.prompt_seconds),
            self.prompt_reused
        )?;
        writeln!(
            f,
            "reply    {} tokens in {:.2} s, {} tokens/s",
            self.reply_tokens,
            self.reply_seconds,
            rate(self.reply_steps, self.reply_seconds)
        )?;
        if self.speculate.drafted > 0 {
            let SpeculateStats { steps, drafted, accepted } = self.speculate;
            writeln!(
                f,
                "drafts   {accepted} of {drafted} were right, in {steps} steps; {:.2} tokens a step",
                self.speculate.tokens_a_step(self.reply_steps)
            )?;
        }
        let uses = self.hits + self.misses;
        let share = if uses == 0 {
            "-".to_owned()
        } else {
            format!("{:.1} %", 100.0 * self.hits as f64 / uses as f64)
        };
        let a_token = self.read_bytes / (self.prompt_tokens + self.reply_steps).max(1);
        writeln!(
            f,
            "experts  {share} of {uses} uses were in memory; {} read a token, {} in all, at {} from disk",
            display_bytes(a_token),
            display_bytes(self.read_bytes),
            display_rate(self.read_bytes, self.load_seconds)
        )?;
        let seconds = |ns: u64| ns as f64 / 1e9;
        let TimeSplit { disk_ns, copy_ns, gpu_ns, host_ns } = self.split;
        write!(
            f,
            "time     {:.2} s for the drive, {:.2} s for copies, {:.2} s for the device, {:.2} s of the host",
            seconds(disk_ns),
            seconds(copy_ns),
            seconds(gpu_ns),
            seconds(host_ns)
        )
    }
}
