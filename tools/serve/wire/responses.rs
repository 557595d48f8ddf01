//! OpenAI's responses, without a memory of earlier ones. Pure.

use flint_rt::text::chat::Role;
use serde_json::{Map, Value, json};

use super::calls::Calls;
use super::error::ApiError;
use super::fields::{Fields, kind};
use super::messages::{self, ChatMessage, ToolCall, check_count, object};
use super::model::{Model, either, format_wanted, function, wanted};
use super::params;
use super::render::{Answer, Prepared, Whole, event, progress, progress_timings, timings};
use crate::engine::job::{End, Numbers, Progress, Summary};
use crate::engine::reply::{Part, Piece};
use crate::random;

/// A request's body to what is to be done.
pub(crate) fn prepare(model: &Model, body: &Map<String, Value>, created: u64) -> Result<Prepared, ApiError> {
    let fields = Fields::new(body);
    model.check_name(&fields)?;
    for name in ["previous_response_id", "conversation"] {
        if fields.get(name).is_some() {
            return Err(
                fields.refuse(name, "is not supported: this server remembers nothing, send the whole input")
            );
        }
    }
    if fields.flag("background")? == Some(true) {
        return Err(fields.refuse("background", "is not supported: send false"));
    }
    let mut params = params::read(&fields, &model.defaults, &model.facts)?;
    params.tokens_max = fields.count("max_output_tokens", 1)?.or(params.tokens_max);
    let mut thought = model.thought(&fields)?;
    if let Some(reasoning) = fields.object("reasoning")?
        && Fields::within(reasoning, "reasoning.").text("effort")? == Some("none")
    {
        thought.thinking = flint_rt::text::chat::Thinking::Off;
    }
    let messages = read_messages(&fields)?;
    let tools = tools(&fields)?;
    let format = match fields.object("text")? {
        Some(text) => Fields::within(text, "text.").object("format")?,
        None => None,
    };
    let format = format.map(|format| format_wanted(&Fields::within(format, "text.format."))).transpose()?;
    let wanted = either(wanted(&fields, &tools)?, format.flatten());
    let calls = Calls::new(&fields, &tools, "call_")?;
    let rendered = model.render(&messages, &tools, thought.thinking, true, None)?;
    let shape = model.chat_shape(rendered.is_thinking);
    let streams = fields.flag("stream")?.unwrap_or(false);
    let generation = model.generation(rendered.ids, shape, &params, thought.tokens_max)?;
    let generation = model.constrained(generation, wanted.as_ref())?;
    let answer = ResponseAnswer {
        id: random::id("resp_"),
        created,
        model: model.name.clone(),
        instructions: fields.text("instructions")?.map(str::to_owned),
        tokens_max: fields.count("max_output_tokens", 1)?,
        tells_progress: params.wants_progress,
        tells_timings: params.wants_timings,
        sequence: 0,
        items: Vec::new(),
        open: None,
    };
    Ok(Prepared { generations: vec![generation], answer: Box::new(answer), streams, calls })
}

/// Tools as the chat interface has them; those of other kinds are the provider's own.
fn tools(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let tools = super::model::tools(fields)?;
    let nested = |tool: Value| match tool.get("function") {
        Some(_) => tool,
        None => function(&tool, "parameters"),
    };
    Ok(tools.into_iter().map(nested).collect())
}

fn read_messages(fields: &Fields<'_>) -> Result<Vec<ChatMessage>, ApiError> {
    let mut made = Vec::new();
    if let Some(text) = fields.text("instructions")? {
        made.push(ChatMessage::new(Role::System, text));
    }
    match fields.get("input") {
        Some(Value::String(text)) => made.push(ChatMessage::new(Role::User, text.as_str())),
        Some(Value::Array(items)) => {
            check_count(fields, "input", items.len())?;
            // A thought comes as an item before the reply that it belongs to.
            let mut thought: Option<String> = None;
            for (index, item) in items.iter().enumerate() {
                let place = format!("input[{index}].");
                let item = Fields::within(object(item, place.trim_end_matches('.'))?, &place);
                add(&mut made, &mut thought, &item, &place)?;
            }
        }
        Some(other) => {
            return Err(
                fields.refuse("input", format_args!("is {}, wanted text or a list of items", kind(other)))
            );
        }
        None => return Err(fields.refuse("input", "is missing")),
    }
    match made.is_empty() {
        true => Err(fields.refuse("input", "is empty: send at least one item")),
        false => Ok(made),
    }
}

fn add(
    made: &mut Vec<ChatMessage>,
    thought: &mut Option<String>,
    item: &Fields<'_>,
    place: &str,
) -> Result<(), ApiError> {
    match item.text("type")? {
        Some("message") | None => {
            let name = item.text("role")?.ok_or_else(|| item.refuse("role", "is missing"))?;
            let role = messages::role(item, name)?;
            let mut message = ChatMessage::new(role, messages::content(item, "content")?);
            if role == Role::Assistant {
                message.reasoning = thought.take();
            }
            made.push(message);
        }
        Some("reasoning") => {
            let parts = item.list("content")?.unwrap_or_default();
            let text: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            *thought = Some(text).filter(|text| !text.is_empty());
        }
        Some("function_call") => {
            let name = item.text("name")?.ok_or_else(|| item.refuse("name", "is missing"))?;
            let call = ToolCall {
                id: item.text("call_id")?.unwrap_or_default().to_owned(),
                name: name.to_owned(),
                arguments: item.text("arguments")?.unwrap_or_default().to_owned(),
            };
            match made.last_mut() {
                // Calls belong to the reply before them, or to each other.
                Some(last) if last.role == Role::Assistant && thought.is_none() => last.calls.push(call),
                _ => {
                    let mut message = ChatMessage::new(Role::Assistant, "");
                    message.reasoning = thought.take();
                    message.calls.push(call);
                    made.push(message);
                }
            }
        }
        Some("function_call_output") => {
            let result = ChatMessage::new(Role::Tool, messages::content(item, "output")?);
            let call_id = item.text("call_id")?.map(str::to_owned);
            made.push(ChatMessage { call_id, ..result });
        }
        Some(other) => {
            let place = place.trim_end_matches('.');
            return Err(ApiError::field(
                format!("{place}.type"),
                format_args!(
                    "is {other:?}, wanted message, reasoning, function_call or function_call_output"
                ),
            ));
        }
    }
    Ok(())
}

struct ResponseAnswer {
    id: String,
    created: u64,
    model: String,
    instructions: Option<String>,
    tokens_max: Option<u32>,
    tells_progress: bool,
    tells_timings: bool,
    sequence: u64,
    /// Items that are complete.
    items: Vec<Value>,
    /// The item that is being written: its part, id and text.
    open: Option<(Part, String, String)>,
}

impl ResponseAnswer {
    fn response(&self, status: &str, usage: Value, details: Value) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": details,
            "instructions": self.instructions,
            "max_output_tokens": self.tokens_max,
            "model": self.model,
            "output": self.items,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "store": false,
            "tool_choice": "auto",
            "tools": [],
            "text": { "format": { "type": "text" } },
            "usage": usage,
        })
    }

    fn send(&mut self, out: &mut String, name: &str, mut data: Value) {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        event(out, Some(name), &data);
    }

    fn close(&mut self, out: &mut String) {
        let Some((part, id, text)) = self.open.take() else { return };
        let (index, names) = (self.items.len(), names(part));
        let place = json!({ "item_id": id, "output_index": index, "content_index": 0 });
        let with = |more: Value| merged(&place, more);
        self.send(out, names.done, with(json!({ "text": text })));
        if part == Part::Content {
            self.send(out, "response.content_part.done", with(json!({ "part": content_part(&text) })));
        }
        let item = item(part, &id, &text, "completed");
        self.send(out, "response.output_item.done", json!({ "output_index": index, "item": item }));
        self.items.push(item);
    }

    fn open(&mut self, part: Part, out: &mut String) {
        if self.open.as_ref().is_some_and(|(open, ..)| *open == part) {
            return;
        }
        self.close(out);
        let id = random::id(names(part).prefix);
        let index = self.items.len();
        let item = match part {
            Part::Reasoning => json!({ "type": "reasoning", "id": id, "summary": [], "content": [] }),
            Part::Content => {
                json!({ "type": "message", "id": id, "role": "assistant", "status": "in_progress", "content": [] })
            }
        };
        self.send(out, "response.output_item.added", json!({ "output_index": index, "item": item }));
        if part == Part::Content {
            let data =
                json!({ "item_id": id, "output_index": index, "content_index": 0, "part": content_part("") });
            self.send(out, "response.content_part.added", data);
        }
        self.open = Some((part, id, String::new()));
    }

    /// The status, and what is missing.
    fn ending(end: &End) -> (&'static str, Value) {
        match end {
            End::Stop | End::StopString(_) => ("completed", Value::Null),
            End::Length => ("incomplete", json!({ "reason": "max_output_tokens" })),
        }
    }
}

/// What the events and ids of a part are called.
struct Names {
    prefix: &'static str,
    delta: &'static str,
    done: &'static str,
}

fn names(part: Part) -> Names {
    match part {
        Part::Reasoning => Names {
            prefix: "rs_",
            delta: "response.reasoning_text.delta",
            done: "response.reasoning_text.done",
        },
        Part::Content => {
            Names { prefix: "msg_", delta: "response.output_text.delta", done: "response.output_text.done" }
        }
    }
}

fn merged(base: &Value, more: Value) -> Value {
    let mut value = base.clone();
    if let (Value::Object(target), Value::Object(more)) = (&mut value, more) {
        target.extend(more);
    }
    value
}

fn content_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn item(part: Part, id: &str, text: &str, status: &str) -> Value {
    match part {
        Part::Reasoning => json!({
            "type": "reasoning",
            "id": id,
            "summary": [],
            "content": [{ "type": "reasoning_text", "text": text }],
        }),
        Part::Content => json!({
            "type": "message",
            "id": id,
            "role": "assistant",
            "status": status,
            "content": [content_part(text)],
        }),
    }
}

fn call_item(id: &str, call: &ToolCall, arguments: &str, status: &str) -> Value {
    json!({
        "type": "function_call",
        "id": id,
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments,
        "status": status,
    })
}

fn usage(numbers: &Numbers) -> Value {
    json!({
        "input_tokens": numbers.prompt_tokens,
        "input_tokens_details": { "cached_tokens": numbers.cached_tokens },
        "output_tokens": numbers.reply_tokens,
        "output_tokens_details": { "reasoning_tokens": numbers.reasoning_tokens },
        "total_tokens": u64::from(numbers.prompt_tokens) + u64::from(numbers.reply_tokens),
    })
}

impl Answer for ResponseAnswer {
    fn begin(&mut self, out: &mut String) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress", Value::Null, Value::Null);
            self.send(out, name, json!({ "response": response }));
        }
    }

    fn progress(&mut self, now: &Progress, out: &mut String) {
        if self.tells_progress {
            let response = self.response("in_progress", Value::Null, Value::Null);
            let mut data = json!({ "response": response, "prompt_progress": progress(now) });
            if self.tells_timings {
                data["timings"] = progress_timings(now);
            }
            self.send(out, "response.in_progress", data);
        }
    }

    fn piece(&mut self, _index: usize, piece: &Piece, numbers: &Numbers, out: &mut String) {
        self.open(piece.part, out);
        let index = self.items.len();
        let Some((_, id, text)) = &mut self.open else { return };
        text.push_str(&piece.text);
        let mut data =
            json!({ "item_id": id, "output_index": index, "content_index": 0, "delta": piece.text });
        if piece.part == Part::Content {
            data["logprobs"] = json!([]);
        }
        if self.tells_timings {
            data["timings"] = timings(numbers);
        }
        self.send(out, names(piece.part).delta, data);
    }

    fn call(&mut self, call: &ToolCall, out: &mut String) {
        self.close(out);
        let (id, index) = (random::id("fc_"), self.items.len());
        let begun = call_item(&id, call, "", "in_progress");
        self.send(out, "response.output_item.added", json!({ "output_index": index, "item": begun }));
        let place = json!({ "item_id": id, "output_index": index });
        let delta = merged(&place, json!({ "delta": call.arguments }));
        self.send(out, "response.function_call_arguments.delta", delta);
        let done = merged(&place, json!({ "name": call.name, "arguments": call.arguments }));
        self.send(out, "response.function_call_arguments.done", done);
        let item = call_item(&id, call, &call.arguments, "completed");
        self.send(out, "response.output_item.done", json!({ "output_index": index, "item": item }));
        self.items.push(item);
    }

    fn done(&mut self, _index: usize, summary: &Summary, _is_last: bool, out: &mut String) {
        self.close(out);
        let (status, details) = Self::ending(&summary.end);
        let response = self.response(status, usage(&summary.numbers), details);
        let mut data = json!({ "response": response });
        if self.tells_timings {
            data["timings"] = timings(&summary.numbers);
        }
        self.send(out, &format!("response.{status}"), data);
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        let mut response = self.response("failed", Value::Null, Value::Null);
        response["error"] = json!({ "code": error.openai()["error"]["type"], "message": error.message });
        self.send(out, "response.failed", json!({ "response": response }));
    }

    fn whole(&mut self, replies: &[Whole]) -> Value {
        let reply = replies.first().expect("invariant: one reply is asked for");
        for (part, text) in [(Part::Reasoning, &reply.reasoning), (Part::Content, &reply.content)] {
            if !text.is_empty() {
                self.items.push(item(part, &random::id(names(part).prefix), text, "completed"));
            }
        }
        for call in &reply.calls {
            self.items.push(call_item(&random::id("fc_"), call, &call.arguments, "completed"));
        }
        let (status, details) = Self::ending(&reply.summary.end);
        self.response(status, usage(&reply.summary.numbers), details)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fields::parse;
    use crate::wire::model::tests::model;
    use crate::wire::render::tests::{objects, piece, summary};

    fn read(body: &str) -> Result<Vec<ChatMessage>, ApiError> {
        read_messages(&Fields::new(&parse(body.as_bytes()).unwrap()))
    }

    fn prepared(body: &str) -> Result<Prepared, ApiError> {
        prepare(&model(), &parse(body.as_bytes()).unwrap(), 77)
    }

    #[test]
    fn items_become_messages() {
        let got = read(
            r#"{"instructions":"be brief","input":[
                {"type":"message","role":"developer","content":[{"type":"input_text","text":"d"}]},
                {"role":"user","content":"u"},
                {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]},
                {"type":"message","role":"assistant","content":[{"type":"output_text","text":"a"}]},
                {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
                {"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},
                {"type":"function_call_output","call_id":"c1","output":"one"},
                {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"}]}]}"#,
        )
        .unwrap();
        let roles: Vec<Role> = got.iter().map(|message| message.role).collect();
        assert_eq!(
            roles,
            [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool, Role::Tool]
        );
        assert_eq!((got[3].reasoning.as_deref(), got[3].calls.len()), (Some("t"), 2));
        assert_eq!((got[5].content.as_str(), got[5].call_id.as_deref()), ("two", Some("c2")));
        assert_eq!(read(r#"{"input":"hi"}"#).unwrap(), [ChatMessage::new(Role::User, "hi")]);
    }

    #[test]
    fn a_stream_numbers_its_events() {
        let mut answer = prepared(r#"{"input":"hi","stream":true}"#).unwrap().answer;
        let mut out = String::new();
        answer.begin(&mut out);
        let numbers = Numbers::default();
        answer.piece(0, &piece(Part::Reasoning, "why"), &numbers, &mut out);
        answer.piece(0, &piece(Part::Content, "th"), &numbers, &mut out);
        answer.piece(0, &piece(Part::Content, "is"), &numbers, &mut out);
        answer.done(0, &summary(End::Stop), true, &mut out);
        let data = objects(&out);
        for (index, data) in data.iter().enumerate() {
            assert_eq!(data["sequence_number"], index);
        }
        let names: Vec<&str> = data.iter().map(|data| data["type"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.reasoning_text.delta",
                "response.reasoning_text.done",
                "response.output_item.done",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.completed"
            ]
        );
        assert_eq!((&data[10]["text"], &data[10]["output_index"]), (&"this".into(), &1.into()));
        let response = &data[13]["response"];
        assert_eq!(response["output"][1]["content"][0]["text"], "this");
        assert_eq!(response["usage"]["input_tokens_details"]["cached_tokens"], 4);
    }

    #[test]
    fn a_whole_response_says_when_it_is_incomplete() {
        let mut answer = prepared(r#"{"input":"hi","max_output_tokens":3}"#).unwrap().answer;
        let got = answer.whole(&[Whole::new(vec![piece(Part::Content, "this")], summary(End::Length), None)]);
        assert_eq!((&got["status"], &got["max_output_tokens"]), (&"incomplete".into(), &3.into()));
        assert_eq!(got["incomplete_details"]["reason"], "max_output_tokens");
        let mut out = String::new();
        answer.failed(&ApiError::new(crate::wire::error::Kind::Server, "x"), &mut out);
        assert_eq!(objects(&out)[0]["response"]["error"], json!({ "code": "server_error", "message": "x" }));
    }

    #[test]
    fn calls_are_items() {
        let mut prepared = prepared(
            r#"{"input":"hi","tools":[{"type":"function","name":"f","parameters":{}},{"type":"namespace"}]}"#,
        )
        .unwrap();
        let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"b\":1}}</tool_call>";
        let whole = Whole::new(vec![piece(Part::Content, text)], summary(End::Stop), prepared.calls.take());
        let mut out = String::new();
        prepared.answer.call(&whole.calls[0], &mut out);
        prepared.answer.done(0, &summary(End::Stop), true, &mut out);
        let data = objects(&out);
        assert_eq!(data[1]["delta"], "{\"b\":1}");
        let item = &data[4]["response"]["output"][0];
        assert_eq!((&item["type"], &item["name"]), (&"function_call".into(), &"f".into()));
        assert_eq!(item["call_id"], data[0]["item"]["call_id"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, wanted) in [
            ("{}", "input is missing"),
            (r#"{"input":[]}"#, "input is empty"),
            (r#"{"input":5}"#, "input is a number"),
            (r#"{"input":[{"type":"computer_call"}]}"#, "input[0].type is \"computer_call\""),
            (r#"{"input":[{"content":"x"}]}"#, "input[0].role is missing"),
            (r#"{"input":"x","previous_response_id":"r"}"#, "previous_response_id is not supported"),
            (r#"{"input":"x","conversation":{}}"#, "conversation is not supported"),
            (r#"{"input":"x","text":{"format":{"type":"xml"}}}"#, "text.format.type is \"xml\""),
        ] {
            let error = prepared(body).err().unwrap();
            assert!(error.message.contains(wanted), "{body}: {}", error.message);
        }
    }
}
