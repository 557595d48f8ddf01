//! What every interface's answers have in common. Pure.

use std::time::Duration;

use flint_rt::text::Tokenizer;
use serde_json::{Value, json};

use super::calls::{Calls, Said};
use super::error::ApiError;
use super::messages::ToolCall;
use crate::engine::job::{End, Generation, Numbers, Progress, Summary};
use crate::engine::reply::{Part, Piece, TokenInfo};

/// A request that can be done.
pub(crate) struct Prepared {
    /// One after the other; at least one.
    pub(crate) generations: Vec<Generation>,
    /// How their replies are told.
    pub(crate) answer: Box<dyn Answer>,
    /// Whether they are told while they are made.
    pub(crate) streams: bool,
    /// Looks for calls of tools, where there are some.
    pub(crate) calls: Option<Calls>,
}

/// The answer to one request, in the words of its interface. What is written to `out` is whole events of a stream.
pub(crate) trait Answer: Send {
    /// What is said before anything is computed.
    fn begin(&mut self, out: &mut String);

    /// A prompt goes on.
    fn progress(&mut self, _progress: &Progress, _out: &mut String) {}

    /// A piece of the reply to prompt `index`.
    fn piece(&mut self, index: usize, piece: &Piece, numbers: &Numbers, out: &mut String);

    /// The reply calls a tool; only where tools were given.
    fn call(&mut self, _call: &ToolCall, _out: &mut String) {}

    /// The reply to prompt `index` is complete; whether it was the last.
    fn done(&mut self, index: usize, summary: &Summary, is_last: bool, out: &mut String);

    /// It failed.
    fn failed(&mut self, error: &ApiError, out: &mut String);

    /// Said while there is nothing to say, so that no client gives up.
    fn ping(&self) -> &'static str {
        ": ping\n\n"
    }

    /// All replies at once.
    fn whole(&mut self, replies: &[Whole]) -> Value;
}

/// A reply that was collected.
#[derive(Debug, Clone)]
pub(crate) struct Whole {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<ToolCall>,
    /// Tokens of the content.
    pub(crate) content_tokens: Vec<TokenInfo>,
    /// All generated tokens, in their order.
    pub(crate) ids: Vec<u32>,
    pub(crate) summary: Summary,
}

impl Whole {
    /// The reply of these pieces, in which `calls` looks for calls.
    pub(crate) fn new(pieces: Vec<Piece>, summary: Summary, calls: Option<Calls>) -> Self {
        let (pieces, calls) = match calls {
            None => (pieces, Vec::new()),
            Some(calls) => told_apart(pieces, calls),
        };
        let (mut reasoning, mut content) = (String::new(), String::new());
        let (mut content_tokens, mut ids) = (Vec::new(), Vec::new());
        for piece in pieces {
            ids.extend(piece.tokens.iter().map(|token| token.id));
            match piece.part {
                Part::Reasoning => reasoning.push_str(&piece.text),
                Part::Content => {
                    content.push_str(&piece.text);
                    content_tokens.extend(piece.tokens);
                }
            }
        }
        ids.extend(summary.tail.iter().map(|token| token.id));
        Self { reasoning, content, calls, content_tokens, ids, summary }
    }
}

fn told_apart(pieces: Vec<Piece>, mut parser: Calls) -> (Vec<Piece>, Vec<ToolCall>) {
    let (mut kept, mut calls) = (Vec::new(), Vec::new());
    let mut give = |said| match said {
        Said::Piece(piece) => kept.push(piece),
        Said::Call(call) => calls.push(call),
    };
    pieces.into_iter().for_each(|piece| parser.push(piece, &mut give));
    parser.finish(&mut give);
    (kept, calls)
}

/// One event of a stream.
pub(crate) fn event(out: &mut String, name: Option<&str>, data: &Value) {
    if let Some(name) = name {
        out.push_str("event: ");
        out.push_str(name);
        out.push('\n');
    }
    out.push_str("data: ");
    // JSON without line breaks, so one line is one event.
    out.push_str(&data.to_string());
    out.push_str("\n\n");
}

/// OpenAI's word for the end of a reply.
pub(crate) fn finish_reason(end: &End, has_called: bool) -> &'static str {
    match end {
        End::Stop | End::StopString(_) if has_called => "tool_calls",
        End::Stop | End::StopString(_) => "stop",
        End::Length => "length",
    }
}

/// OpenAI's `usage`.
pub(crate) fn usage(numbers: &Numbers) -> Value {
    json!({
        "prompt_tokens": numbers.prompt_tokens,
        "completion_tokens": numbers.reply_tokens,
        "total_tokens": u64::from(numbers.prompt_tokens) + u64::from(numbers.reply_tokens),
        "prompt_tokens_details": { "cached_tokens": numbers.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": numbers.reasoning_tokens },
    })
}

/// The numbers of several replies together.
pub(crate) fn sum(numbers: impl IntoIterator<Item = Numbers>) -> Numbers {
    numbers.into_iter().fold(Numbers::default(), |a, b| Numbers {
        prompt_tokens: a.prompt_tokens.saturating_add(b.prompt_tokens),
        cached_tokens: a.cached_tokens.saturating_add(b.cached_tokens),
        reply_tokens: a.reply_tokens.saturating_add(b.reply_tokens),
        reasoning_tokens: a.reasoning_tokens.saturating_add(b.reasoning_tokens),
        draft_tokens: a.draft_tokens.saturating_add(b.draft_tokens),
        draft_accepted: a.draft_accepted.saturating_add(b.draft_accepted),
        queued: a.queued + b.queued,
        prompt: a.prompt + b.prompt,
        reply: a.reply + b.reply,
    })
}

/// llama-server's `timings`: milliseconds, and tokens a second; drafts where there were any.
pub(crate) fn timings(numbers: &Numbers) -> Value {
    let prompt_n = numbers.prompt_tokens - numbers.cached_tokens;
    let (prompt_ms, reply_ms) = (millis(numbers.prompt), millis(numbers.reply));
    let each = |ms: f64, count: u32| if count == 0 { 0.0 } else { ms / f64::from(count) };
    let rate = |ms: f64, count: u32| if ms > 0.0 { f64::from(count) * 1e3 / ms } else { 0.0 };
    // The first token belongs to the prompt's time.
    let steps = numbers.reply_tokens.saturating_sub(1);
    let mut timings = json!({
        "cache_n": numbers.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": each(prompt_ms, prompt_n),
        "prompt_per_second": rate(prompt_ms, prompt_n),
        "predicted_n": numbers.reply_tokens,
        "predicted_ms": reply_ms,
        "predicted_per_token_ms": each(reply_ms, steps),
        "predicted_per_second": rate(reply_ms, steps),
        "queued_ms": millis(numbers.queued),
    });
    if numbers.draft_tokens > 0 {
        timings["draft_n"] = numbers.draft_tokens.into();
        timings["draft_n_accepted"] = numbers.draft_accepted.into();
    }
    timings
}

/// llama-server's `timings` while a prompt goes on.
pub(crate) fn progress_timings(progress: &Progress) -> Value {
    let is_begun = progress.done > progress.cached;
    timings(&Numbers {
        prompt_tokens: progress.done,
        cached_tokens: progress.cached,
        prompt: if is_begun { progress.elapsed } else { Duration::ZERO },
        ..Numbers::default()
    })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// llama-server's `prompt_progress`.
pub(crate) fn progress(progress: &Progress) -> Value {
    json!({
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.done,
        "time_ms": u64::try_from(progress.elapsed.as_millis()).unwrap_or(u64::MAX),
    })
}

/// A token with its log-probability, as OpenAI's chat interface tells it.
pub(crate) fn logprobs(tokenizer: &Tokenizer, tokens: &[TokenInfo]) -> Value {
    let one = |id: u32, logprob: f64| {
        json!({
            "id": id,
            "token": tokenizer.decode(&[id]),
            "bytes": tokenizer.token_bytes(id).unwrap_or_default(),
            "logprob": logprob,
        })
    };
    let all = tokens.iter().filter_map(|token| {
        let (logprob, best) = token.logprobs.as_ref()?;
        let mut value = one(token.id, *logprob);
        value["top_logprobs"] = best.iter().map(|(id, logprob)| one(*id, *logprob)).collect();
        Some(value)
    });
    json!({ "content": all.collect::<Value>() })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The objects of a stream's events, without names, comments and the end mark.
    pub(crate) fn objects(stream: &str) -> Vec<Value> {
        let lines = stream.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// A piece of content of one token.
    pub(crate) fn piece(part: Part, text: &str) -> Piece {
        Piece { part, text: text.to_owned(), tokens: vec![TokenInfo { id: 5, logprobs: None }] }
    }

    /// An ordinary end.
    pub(crate) fn summary(end: End) -> Summary {
        let numbers = Numbers {
            prompt_tokens: 10,
            cached_tokens: 4,
            reply_tokens: 3,
            reasoning_tokens: 1,
            queued: Duration::from_millis(5),
            prompt: Duration::from_millis(60),
            reply: Duration::from_millis(20),
            ..Numbers::default()
        };
        Summary { end, numbers, tail: Vec::new() }
    }

    #[test]
    fn numbers_are_told_in_both_ways() {
        let numbers = summary(End::Stop).numbers;
        let usage = usage(&numbers);
        assert_eq!(usage["total_tokens"], 13);
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 4);
        let timings = timings(&numbers);
        assert_eq!((&timings["prompt_n"], &timings["cache_n"]), (&6.into(), &4.into()));
        assert_eq!(
            (&timings["prompt_per_second"], &timings["predicted_per_second"]),
            (&100.0.into(), &100.0.into())
        );
        assert!(timings.get("draft_n").is_none(), "there were no drafts");
        let drafted = super::timings(&Numbers { draft_tokens: 7, draft_accepted: 5, ..numbers });
        assert_eq!((&drafted["draft_n"], &drafted["draft_n_accepted"]), (&7.into(), &5.into()));
        let none = super::timings(&Numbers::default());
        assert_eq!((&none["prompt_per_second"], &none["predicted_per_token_ms"]), (&0.0.into(), &0.0.into()));
    }

    #[test]
    fn a_prompt_that_has_not_begun_has_taken_no_time() {
        let at = |done| Progress { total: 30, cached: 10, done, elapsed: Duration::from_millis(50) };
        let first = progress_timings(&at(10));
        assert_eq!((&first["prompt_n"], &first["prompt_ms"]), (&0.into(), &0.0.into()));
        let later = progress_timings(&at(20));
        assert_eq!((&later["prompt_n"], &later["prompt_per_second"]), (&10.into(), &200.0.into()));
        assert_eq!(later["predicted_n"], 0);
    }

    #[test]
    fn an_event_is_one_line_whatever_it_says() {
        let mut out = String::new();
        event(&mut out, Some("x"), &json!({ "t": "a\n\ndata: b\r" }));
        assert_eq!(out, "event: x\ndata: {\"t\":\"a\\n\\ndata: b\\r\"}\n\n");
    }
}
