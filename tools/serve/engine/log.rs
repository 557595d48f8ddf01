//! The one line that a request leaves in the log: numbers, and never what was said.

use std::time::Duration;

use super::backend::Counters;
use super::job::Numbers;

/// A request has ended; `before` and `now` are the engine's counters at its first step and at its end. What they counted between is
/// also of those beside it.
pub(crate) fn ended(job: u64, numbers: &Numbers, before: &Counters, now: &Counters, end: &'static str) {
    let (hit_rate, read_bytes) = share(before, now);
    tracing::info!(
        job,
        prompt_tokens = numbers.prompt_tokens,
        cached_tokens = numbers.cached_tokens,
        reply_tokens = numbers.reply_tokens,
        queued_ms = millis(numbers.queued),
        first_token_ms = millis(numbers.queued + numbers.prompt),
        reply_ms = millis(numbers.reply),
        tokens_a_second = rounded(tokens_a_second(numbers)),
        hit_rate = rounded(hit_rate),
        read_bytes,
        end,
        "request"
    );
}

/// The share of expert uses that found their record on the device, 1 where there were none; and the bytes that were read.
fn share(before: &Counters, now: &Counters) -> (f64, u64) {
    let grown = |field: fn(&Counters) -> u64| field(now).saturating_sub(field(before));
    let (hits, misses) = (grown(|counters| counters.stream.hits), grown(|counters| counters.stream.misses));
    let rate = match hits + misses {
        0 => 1.0,
        uses => hits as f64 / uses as f64,
    };
    (rate, grown(|counters| counters.stream.read_bytes))
}

/// Of those after the first token, which the prompt's time is counted to; 0 where there were none.
fn tokens_a_second(numbers: &Numbers) -> f64 {
    match (numbers.reply_tokens.saturating_sub(1), numbers.reply.as_secs_f64()) {
        (0, _) | (_, 0.0) => 0.0,
        (tokens, seconds) => f64::from(tokens) / seconds,
    }
}

/// To three digits behind the point: nobody reads more in a log.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_cost_is_what_was_counted_since_it_began() {
        let mut before = Counters::default();
        (before.stream.hits, before.stream.misses, before.stream.read_bytes) = (10, 10, 1000);
        let mut now = before;
        assert_eq!(share(&before, &now), (1.0, 0));
        (now.stream.hits, now.stream.misses, now.stream.read_bytes) = (13, 11, 1500);
        assert_eq!(share(&before, &now), (0.75, 500));
        let numbers = Numbers { reply_tokens: 11, reply: Duration::from_secs(4), ..Numbers::default() };
        assert_eq!(tokens_a_second(&numbers), 2.5);
        assert_eq!(tokens_a_second(&Numbers { reply_tokens: 1, ..numbers }), 0.0);
        assert_eq!(rounded(0.123_456), 0.123);
    }
}
