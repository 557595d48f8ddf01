//! OpenAI's chat completions. Pure.

use flint_rt::text::Tokenizer;
use serde_json::{Map, Value, json};

use super::calls::Calls;
use super::error::ApiError;
use super::fields::Fields;
use super::messages::{self, ToolCall};
use super::model::{Model, tools, wanted};
use super::params;
use super::render::{
    Answer, Prepared, Whole, event, finish_reason, logprobs, progress, progress_timings, timings, usage,
};
use crate::engine::job::{Numbers, Progress, Summary};
use crate::engine::reply::{Part, Piece};
use crate::random;

/// A request's body to what is to be done.
pub(crate) fn prepare(model: &Model, body: &Map<String, Value>, created: u64) -> Result<Prepared, ApiError> {
    let fields = Fields::new(body);
    model.check_name(&fields)?;
    let messages = messages::openai(&fields)?;
    let mut params = params::read(&fields, &model.defaults, &model.facts)?;
    let top = params::top_logprobs(&fields, "top_logprobs")?;
    params.top_logprobs = match (fields.flag("logprobs")?.unwrap_or(false), top) {
        (true, top) => Some(top.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(_)) => return Err(fields.refuse("top_logprobs", "needs logprobs to be true")),
    };
    let opens_reply = fields.flag("add_generation_prompt")?.unwrap_or(true);
    if opens_reply
        && fields.flag("continue_final_message")? == Some(true)
        && fields.flag("add_generation_prompt")? == Some(true)
    {
        return Err(fields.refuse("continue_final_message", "and add_generation_prompt exclude each other"));
    }
    let thought = model.thought(&fields)?;
    let extra = fields.object("chat_template_kwargs")?;
    let tools = tools(&fields)?;
    let wanted = wanted(&fields, &tools)?;
    let calls = Calls::new(&fields, &tools, "call_")?;
    let rendered = model.render(&messages, &tools, thought.thinking, opens_reply, extra)?;
    let shape = model.chat_shape(rendered.is_thinking);
    let streams = fields.flag("stream")?.unwrap_or(false);
    let (mut includes_usage, mut repeats_usage) = (false, false);
    if let Some(options) = fields.object("stream_options")? {
        let options = Fields::within(options, "stream_options.");
        includes_usage = options.flag("include_usage")?.unwrap_or(false);
        repeats_usage = options.flag("continuous_usage_stats")?.unwrap_or(false);
    }
    let answer = ChatAnswer {
        id: random::id("chatcmpl-"),
        created,
        model: model.name.clone(),
        tokenizer: model.facts.tokenizer.clone(),
        reasoning_field: model.reasoning_field(),
        includes_usage,
        repeats_usage,
        tells_progress: params.wants_progress,
        tells_ids: params.wants_ids,
        tells_timings: params.wants_timings,
        tells_logprobs: params.top_logprobs.is_some(),
        call_count: 0,
    };
    let generation = model.generation(rendered.ids, shape, &params, thought.tokens_max)?;
    let generation = model.constrained(generation, wanted.as_ref())?;
    Ok(Prepared { generations: vec![generation], answer: Box::new(answer), streams, calls })
}

fn tool_call(call: &ToolCall) -> Value {
    json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

/// What every answer of this server names as its make.
pub(crate) fn fingerprint() -> String {
    format!("b-flint-rt-{}", env!("CARGO_PKG_VERSION"))
}

struct ChatAnswer {
    id: String,
    created: u64,
    model: String,
    tokenizer: Tokenizer,
    reasoning_field: &'static str,
    includes_usage: bool,
    repeats_usage: bool,
    tells_progress: bool,
    tells_ids: bool,
    tells_timings: bool,
    tells_logprobs: bool,
    /// Calls told so far.
    call_count: u32,
}

impl ChatAnswer {
    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": fingerprint(),
            "choices": choices,
        })
    }

    fn chunk(&self, delta: Value, finish: Option<&str>) -> Value {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        self.object("chat.completion.chunk", json!([choice]))
    }
}

impl Answer for ChatAnswer {
    fn begin(&mut self, out: &mut String) {
        event(out, None, &self.chunk(json!({ "role": "assistant", "content": null }), None));
    }

    fn progress(&mut self, now: &Progress, out: &mut String) {
        if self.tells_progress {
            let mut chunk = self.object("chat.completion.chunk", json!([]));
            chunk["prompt_progress"] = progress(now);
            if self.tells_timings {
                chunk["timings"] = progress_timings(now);
            }
            event(out, None, &chunk);
        }
    }

    fn piece(&mut self, _index: usize, piece: &Piece, numbers: &Numbers, out: &mut String) {
        let field = match piece.part {
            Part::Reasoning => self.reasoning_field,
            Part::Content => "content",
        };
        let mut chunk = self.chunk(json!({ field: piece.text }), None);
        if self.tells_logprobs && piece.part == Part::Content {
            chunk["choices"][0]["logprobs"] = logprobs(&self.tokenizer, &piece.tokens);
        }
        if self.tells_ids {
            chunk["choices"][0]["token_ids"] = piece.tokens.iter().map(|token| token.id).collect();
        }
        if self.repeats_usage {
            chunk["usage"] = usage(numbers);
        }
        if self.tells_timings {
            chunk["timings"] = timings(numbers);
        }
        event(out, None, &chunk);
    }

    fn call(&mut self, call: &ToolCall, out: &mut String) {
        let mut told = tool_call(call);
        told["index"] = self.call_count.into();
        self.call_count += 1;
        event(out, None, &self.chunk(json!({ "tool_calls": [told] }), None));
    }

    fn done(&mut self, _index: usize, summary: &Summary, _is_last: bool, out: &mut String) {
        let mut chunk = self.chunk(json!({}), Some(finish_reason(&summary.end, self.call_count > 0)));
        if self.tells_ids {
            chunk["choices"][0]["token_ids"] = summary.tail.iter().map(|token| token.id).collect();
        }
        if !self.includes_usage {
            chunk["timings"] = timings(&summary.numbers);
        }
        event(out, None, &chunk);
        if self.includes_usage {
            let mut chunk = self.object("chat.completion.chunk", json!([]));
            chunk["usage"] = usage(&summary.numbers);
            chunk["timings"] = timings(&summary.numbers);
            event(out, None, &chunk);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        event(out, None, &error.openai());
    }

    fn whole(&mut self, replies: &[Whole]) -> Value {
        let choices = replies.iter().enumerate().map(|(index, reply)| {
            let mut message = json!({ "role": "assistant", "content": reply.content });
            if !reply.reasoning.is_empty() {
                message[self.reasoning_field] = reply.reasoning.as_str().into();
            }
            if !reply.calls.is_empty() {
                message["tool_calls"] = reply.calls.iter().map(tool_call).collect();
                if reply.content.is_empty() {
                    message["content"] = Value::Null;
                }
            }
            let mut choice = json!({
                "index": index,
                "message": message,
                "logprobs": null,
                "finish_reason": finish_reason(&reply.summary.end, !reply.calls.is_empty()),
            });
            if self.tells_logprobs {
                choice["logprobs"] = logprobs(&self.tokenizer, &reply.content_tokens);
            }
            if self.tells_ids {
                choice["token_ids"] = reply.ids.as_slice().into();
            }
            choice
        });
        let mut answer = self.object("chat.completion", choices.collect());
        let numbers = super::render::sum(replies.iter().map(|reply| reply.summary.numbers));
        answer["usage"] = usage(&numbers);
        answer["timings"] = timings(&numbers);
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::job::End;
    use crate::engine::reply::Shape;
    use crate::wire::error::Kind;
    use crate::wire::fields::parse;
    use crate::wire::model::tests::model;
    use crate::wire::render::tests::{objects, piece, summary};

    const ASK: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

    fn prepared(more: &str) -> Result<Prepared, ApiError> {
        prepare(&model(), &parse(format!("{{{ASK}{more}}}").as_bytes()).unwrap(), 77)
    }

    fn stream(more: &str) -> String {
        let mut answer = prepared(more).unwrap().answer;
        let mut out = String::new();
        answer.begin(&mut out);
        let numbers = summary(End::Stop).numbers;
        answer.piece(0, &piece(Part::Reasoning, "why"), &numbers, &mut out);
        answer.piece(0, &piece(Part::Content, "this"), &numbers, &mut out);
        answer.done(0, &summary(End::Stop), true, &mut out);
        out
    }

    #[test]
    fn a_stream_is_as_clients_want_it() {
        let out = stream(r#","stream":true"#);
        let chunks = objects(&out);
        assert_eq!(chunks.len(), 4);
        assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": null }));
        assert_eq!(chunks[1]["choices"][0]["delta"], json!({ "reasoning_content": "why" }));
        assert_eq!(chunks[2]["choices"][0]["delta"], json!({ "content": "this" }));
        assert_eq!(chunks[3]["choices"][0]["delta"], json!({}));
        assert_eq!(chunks[3]["choices"][0]["finish_reason"], "stop");
        for chunk in &chunks {
            for key in ["id", "created", "model", "system_fingerprint", "object"] {
                assert_eq!(chunk[key], chunks[0][key]);
            }
            assert!(chunk.get("usage").is_none());
        }
        assert!(chunks[0]["id"].as_str().unwrap().starts_with("chatcmpl-"));
        assert!(out.ends_with("data: [DONE]\n\n"));
    }

    #[test]
    fn usage_is_a_chunk_of_its_own_when_asked_for() {
        let chunks = objects(&stream(r#","stream":true,"stream_options":{"include_usage":true}"#));
        let last = chunks.last().unwrap();
        assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &3.into()));
        assert!(chunks[3].get("usage").is_none());
        let chunks = objects(&stream(
            r#","stream_options":{"continuous_usage_stats":true},"return_token_ids":true,"timings_per_token":true"#,
        ));
        assert_eq!(chunks[1]["usage"]["prompt_tokens"], 10);
        assert_eq!(chunks[2]["choices"][0]["token_ids"], json!([5]));
        assert_eq!(chunks[2]["timings"]["predicted_n"], 3);
    }

    #[test]
    fn a_whole_answer_has_everything() {
        let mut prepared = prepared("").unwrap();
        assert!(!prepared.streams);
        assert_eq!(prepared.generations[0].shape, Shape::Chat { is_thinking: false });
        let pieces = vec![piece(Part::Reasoning, "why"), piece(Part::Content, "this")];
        let got = prepared.answer.whole(&[Whole::new(pieces, summary(End::Length), None)]);
        let choice = &got["choices"][0];
        assert_eq!(
            choice["message"],
            json!({ "role": "assistant", "content": "this", "reasoning_content": "why" })
        );
        assert_eq!((&choice["finish_reason"], &got["object"]), (&"length".into(), &"chat.completion".into()));
        assert_eq!(got["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
        assert_eq!((&got["created"], &got["model"]), (&77.into(), &"nano".into()));
    }

    #[test]
    fn calls_are_told_in_both_ways() {
        let tools =
            r#","tools":[{"type":"function","function":{"name":"f","parameters":{}}},{"type":"web_search"}]"#;
        let mut prepared = prepared(tools).unwrap();
        let calls = prepared.calls.take().unwrap();
        let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"b\":1}}</tool_call>";
        let whole = Whole::new(vec![piece(Part::Content, text)], summary(End::Stop), Some(calls));
        let got = prepared.answer.whole(std::slice::from_ref(&whole));
        let choice = &got["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&"tool_calls".into(), &Value::Null)
        );
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!(call["function"], json!({ "name": "f", "arguments": "{\"b\":1}" }));
        let mut out = String::new();
        prepared.answer.call(&whole.calls[0], &mut out);
        prepared.answer.done(0, &summary(End::Stop), true, &mut out);
        let chunks = objects(&out);
        let delta = &chunks[0]["choices"][0]["delta"]["tool_calls"][0];
        assert_eq!((&delta["index"], &delta["id"]), (&0.into(), &call["id"]));
        assert_eq!(chunks[1]["choices"][0]["finish_reason"], "tool_calls");
        let none = prepare(
            &model(),
            &parse(format!("{{{ASK}{tools},\"tool_choice\":\"none\"}}").as_bytes()).unwrap(),
            0,
        );
        assert!(none.unwrap().calls.is_none());
    }

    #[test]
    fn log_probabilities_are_asked_for_in_two_steps() {
        let top = |more: &str| prepared(more).map(|prepared| prepared.generations[0].top_logprobs);
        assert_eq!(top("").unwrap(), None);
        assert_eq!(top(r#","logprobs":true"#).unwrap(), Some(0));
        assert_eq!(top(r#","logprobs":true,"top_logprobs":3"#).unwrap(), Some(3));
        assert_eq!(top(r#","top_logprobs":3"#).unwrap_err().param.as_deref(), Some("top_logprobs"));
        assert_eq!(top(r#","logprobs":true,"top_logprobs":21"#).unwrap_err().kind, Kind::Invalid);
    }

    #[test]
    fn what_is_too_long_is_refused_with_numbers() {
        let long = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "word and ".repeat(999));
        let error = prepare(&model(), &parse(long.as_bytes()).unwrap(), 0).err().unwrap();
        assert_eq!((error.kind, error.tokens.unwrap().1), (Kind::ContextExceeded, 256));
    }
}
