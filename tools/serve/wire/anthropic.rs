//! Anthropic's messages. Pure.

use flint_rt::text::chat::{Role, Thinking};
use serde_json::{Map, Value, json};

use super::calls::Calls;
use super::error::ApiError;
use super::fields::{Fields, kind};
use super::messages::{self, ChatMessage, ToolCall, check_count, object};
use super::model::{Model, Thought, function, listed_tools, wanted};
use super::params;
use super::render::{Answer, Prepared, Whole, event};
use crate::chat::form::Rendered;
use crate::engine::job::{End, Numbers, Summary};
use crate::engine::reply::{Part, Piece};
use crate::random;

/// What begins a text that some agents put before their instructions, and that changes from conversation to conversation: no cache
/// would ever be used again.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// A request's body to what is to be done.
pub(crate) fn prepare(model: &Model, body: &Map<String, Value>, _created: u64) -> Result<Prepared, ApiError> {
    let fields = Fields::new(body);
    model.check_name(&fields)?;
    let mut params = params::read(&fields, &model.defaults, &model.facts)?;
    if fields.count("max_tokens", 1)?.is_none() {
        return Err(fields.refuse("max_tokens", "is missing"));
    }
    params.stops = params::stops(&fields, "stop_sequences")?;
    let thought = thought(model, &fields)?;
    let tools = tools(&fields)?;
    let wanted = wanted(&fields, &tools)?;
    let calls = Calls::new(&fields, &tools, "toolu_")?;
    let rendered = render(model, &fields, thought.thinking)?;
    let streams = fields.flag("stream")?.unwrap_or(false);
    let shape = model.chat_shape(rendered.is_thinking);
    let answer = MessageAnswer {
        id: random::id("msg_"),
        model: model.name.clone(),
        prompt_tokens: rendered.ids.len(),
        open: None,
        blocks: 0,
        has_called: false,
    };
    let generation = model.generation(rendered.ids, shape, &params, thought.tokens_max)?;
    let generation = model.constrained(generation, wanted.as_ref())?;
    Ok(Prepared { generations: vec![generation], answer: Box::new(answer), streams, calls })
}

/// How many tokens a request's prompt has.
pub(crate) fn count_tokens(model: &Model, body: &Map<String, Value>) -> Result<Value, ApiError> {
    let fields = Fields::new(body);
    model.check_name(&fields)?;
    let thinking = thought(model, &fields)?.thinking;
    let rendered = render(model, &fields, thinking)?;
    Ok(json!({ "input_tokens": rendered.ids.len() }))
}

fn render(model: &Model, fields: &Fields<'_>, thinking: Thinking) -> Result<Rendered, ApiError> {
    let messages = read_messages(fields)?;
    model.render(&messages, &tools(fields)?, thinking, true, None)
}

fn thought(model: &Model, fields: &Fields<'_>) -> Result<Thought, ApiError> {
    let mut thought = Thought { thinking: model.defaults.thinking, tokens_max: None };
    let Some(thinking) = fields.object("thinking")? else { return Ok(thought) };
    let thinking = Fields::within(thinking, "thinking.");
    match thinking.text("type")? {
        Some("enabled") => thought.thinking = Thinking::On,
        Some("disabled") => thought.thinking = Thinking::Off,
        Some("adaptive") | None => {}
        Some(other) => {
            return Err(
                thinking.refuse("type", format_args!("is {other:?}, wanted enabled, disabled or adaptive"))
            );
        }
    }
    thought.tokens_max = thinking.count("budget_tokens", 0)?;
    Ok(thought)
}

/// The tools, as OpenAI's interface has them: templates know that form. The provider's own have no schema.
fn tools(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let own = listed_tools(fields)?.iter().filter(|tool| tool.get("input_schema").is_some());
    Ok(own.map(|tool| function(tool, "input_schema")).collect())
}

fn read_messages(fields: &Fields<'_>) -> Result<Vec<ChatMessage>, ApiError> {
    let mut made = Vec::new();
    let system = texts(fields, "system")?;
    if !system.is_empty() {
        made.push(ChatMessage::new(Role::System, system));
    }
    let list = fields.list("messages")?.ok_or_else(|| fields.refuse("messages", "is missing"))?;
    if list.is_empty() {
        return Err(fields.refuse("messages", "is empty: send at least one message"));
    }
    check_count(fields, "messages", list.len())?;
    for (index, value) in list.iter().enumerate() {
        let place = format!("messages[{index}].");
        let message = Fields::within(object(value, place.trim_end_matches('.'))?, &place);
        let name = message.text("role")?.ok_or_else(|| message.refuse("role", "is missing"))?;
        match messages::role(&message, name)? {
            role @ (Role::User | Role::Assistant) => add(&mut made, role, &message, &place)?,
            // Agents send some of their own in between; a text and a list of one text are the same.
            _ => made.push(ChatMessage::new(Role::System, texts(&message, "content")?)),
        }
    }
    Ok(made)
}

/// A text, or the texts of a list of blocks, without those that change for no reason.
fn texts(fields: &Fields<'_>, name: &str) -> Result<String, ApiError> {
    let kept = |text: &&str| !text.starts_with(BILLING_HEADER);
    match fields.get(name) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(kept).unwrap_or_default().to_owned()),
        Some(Value::Array(blocks)) => {
            let texts = blocks.iter().enumerate().map(|(index, block)| {
                let place = format!("{}[{index}].", fields.name(name));
                let block = Fields::within(object(block, place.trim_end_matches('.'))?, &place);
                messages::part_text(&block)
            });
            let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
            Ok(texts.iter().map(String::as_str).filter(kept).collect::<Vec<_>>().join("\n"))
        }
        Some(value) => {
            Err(fields.refuse(name, format_args!("is {}, wanted text or a list of blocks", kind(value))))
        }
    }
}

/// A user's or an assistant's message, whose blocks may be several of ours.
fn add(made: &mut Vec<ChatMessage>, role: Role, message: &Fields<'_>, place: &str) -> Result<(), ApiError> {
    let blocks = match message.get("content") {
        Some(Value::Array(blocks)) => blocks,
        _ => {
            made.push(ChatMessage::new(role, messages::content(message, "content")?));
            return Ok(());
        }
    };
    let mut own = ChatMessage::new(role, "");
    let mut said = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let place = format!("{place}content[{index}].");
        let block = Fields::within(object(block, place.trim_end_matches('.'))?, &place);
        match block.text("type")? {
            Some("tool_result") => {
                let result = ChatMessage::new(Role::Tool, messages::content(&block, "content")?);
                let call_id = block.text("tool_use_id")?.map(str::to_owned);
                made.push(ChatMessage { call_id, ..result });
            }
            Some("tool_use") => {
                let name = block.text("name")?.ok_or_else(|| block.refuse("name", "is missing"))?;
                own.calls.push(ToolCall {
                    id: block.text("id")?.unwrap_or_default().to_owned(),
                    name: name.to_owned(),
                    arguments: block.get("input").map_or_else(|| "{}".to_owned(), Value::to_string),
                });
            }
            Some("thinking") => {
                let thinking = block.text("thinking")?.unwrap_or_default();
                own.reasoning.get_or_insert_default().push_str(thinking);
            }
            // Nobody but who made it can read it.
            Some("redacted_thinking") => {}
            _ => said.push(messages::part_text(&block)?),
        }
    }
    own.content = said.join("\n");
    own.reasoning = own.reasoning.filter(|text| !text.is_empty());
    if role == Role::Assistant || !said.is_empty() {
        made.push(own);
    }
    Ok(())
}

struct MessageAnswer {
    id: String,
    model: String,
    prompt_tokens: usize,
    /// The block that is being written.
    open: Option<Part>,
    /// Blocks that are complete.
    blocks: u32,
    has_called: bool,
}

impl MessageAnswer {
    fn message(&self, content: Value, stop: (Value, Value), usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop.0,
            "stop_sequence": stop.1,
            "usage": usage,
        })
    }

    fn close(&mut self, out: &mut String) {
        let Some(part) = self.open.take() else { return };
        let index = self.blocks;
        if part == Part::Reasoning {
            let delta = json!({ "type": "signature_delta", "signature": SIGNATURE });
            delta_event(out, index, delta);
        }
        event(out, Some("content_block_stop"), &json!({ "type": "content_block_stop", "index": index }));
        self.blocks += 1;
    }

    fn open(&mut self, part: Part, out: &mut String) {
        if self.open == Some(part) {
            return;
        }
        self.close(out);
        self.open = Some(part);
        let block = match part {
            Part::Reasoning => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            Part::Content => json!({ "type": "text", "text": "" }),
        };
        let start = json!({ "type": "content_block_start", "index": self.blocks, "content_block": block });
        event(out, Some("content_block_start"), &start);
    }
}

/// Clients send it back, and nobody here reads it.
const SIGNATURE: &str = "flint-rt";

fn delta_event(out: &mut String, index: u32, delta: Value) {
    let data = json!({ "type": "content_block_delta", "index": index, "delta": delta });
    event(out, Some("content_block_delta"), &data);
}

fn usage(numbers: &Numbers) -> Value {
    json!({
        "input_tokens": numbers.prompt_tokens - numbers.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": numbers.cached_tokens,
        "output_tokens": numbers.reply_tokens,
    })
}

/// `stop_reason` and `stop_sequence`.
fn stop(end: &End, has_called: bool) -> (Value, Value) {
    match end {
        End::Stop if has_called => ("tool_use".into(), Value::Null),
        End::Stop => ("end_turn".into(), Value::Null),
        End::StopString(stop) => ("stop_sequence".into(), stop.as_str().into()),
        End::Length => ("max_tokens".into(), Value::Null),
    }
}

impl Answer for MessageAnswer {
    fn begin(&mut self, out: &mut String) {
        // How much of it is in a cache shows when a slot is chosen.
        let usage = json!({ "input_tokens": self.prompt_tokens, "output_tokens": 0 });
        let message = self.message(json!([]), (Value::Null, Value::Null), usage);
        event(out, Some("message_start"), &json!({ "type": "message_start", "message": message }));
    }

    fn piece(&mut self, _index: usize, piece: &Piece, _numbers: &Numbers, out: &mut String) {
        self.open(piece.part, out);
        let delta = match piece.part {
            Part::Reasoning => json!({ "type": "thinking_delta", "thinking": piece.text }),
            Part::Content => json!({ "type": "text_delta", "text": piece.text }),
        };
        delta_event(out, self.blocks, delta);
    }

    fn call(&mut self, call: &ToolCall, out: &mut String) {
        self.close(out);
        self.has_called = true;
        let block = json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} });
        let start = json!({ "type": "content_block_start", "index": self.blocks, "content_block": block });
        event(out, Some("content_block_start"), &start);
        delta_event(out, self.blocks, json!({ "type": "input_json_delta", "partial_json": call.arguments }));
        event(
            out,
            Some("content_block_stop"),
            &json!({ "type": "content_block_stop", "index": self.blocks }),
        );
        self.blocks += 1;
    }

    fn done(&mut self, _index: usize, summary: &Summary, _is_last: bool, out: &mut String) {
        self.close(out);
        let (reason, sequence) = stop(&summary.end, self.has_called);
        let data = json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": sequence },
            "usage": usage(&summary.numbers),
        });
        event(out, Some("message_delta"), &data);
        event(out, Some("message_stop"), &json!({ "type": "message_stop" }));
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        event(out, Some("error"), &error.anthropic(&self.id));
    }

    fn ping(&self) -> &'static str {
        "event: ping\ndata: {\"type\":\"ping\"}\n\n"
    }

    fn whole(&mut self, replies: &[Whole]) -> Value {
        let reply = replies.first().expect("invariant: one reply is asked for");
        let mut content = Vec::new();
        if !reply.reasoning.is_empty() {
            let thinking = json!({ "type": "thinking", "thinking": reply.reasoning, "signature": SIGNATURE });
            content.push(thinking);
        }
        if !reply.content.is_empty() || (content.is_empty() && reply.calls.is_empty()) {
            content.push(json!({ "type": "text", "text": reply.content }));
        }
        content.extend(reply.calls.iter().map(|call| {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
            json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input })
        }));
        let numbers = &reply.summary.numbers;
        self.message(content.into(), stop(&reply.summary.end, !reply.calls.is_empty()), usage(numbers))
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

    const ASK: &str = r#""max_tokens":5,"messages":[{"role":"user","content":"hi"}]"#;

    fn prepared(more: &str) -> Result<Prepared, ApiError> {
        prepare(&model(), &parse(format!("{{{ASK}{more}}}").as_bytes()).unwrap(), 0)
    }

    #[test]
    fn blocks_become_messages() {
        let got = read(
            r#"{"system":[{"type":"text","text":"x-anthropic-billing-header: cc=1"},
                {"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}],
              "messages":[
                {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
                {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},
                  {"type":"text","text":"c"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"z":1}}]},
                {"role":"system","content":"left: 5"},
                {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1",
                  "content":[{"type":"text","text":"ok"}]},{"type":"text","text":"go on"}]},
                {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_2"}]}]}"#,
        )
        .unwrap();
        let roles: Vec<Role> = got.iter().map(|message| message.role).collect();
        let wanted =
            [Role::System, Role::User, Role::Assistant, Role::System, Role::Tool, Role::User, Role::Tool];
        assert_eq!(roles, wanted);
        assert_eq!((got[0].content.as_str(), got[1].content.as_str()), ("be brief", "a\nb"));
        assert_eq!((got[2].reasoning.as_deref(), got[2].content.as_str()), (Some("t"), "c"));
        assert_eq!((got[2].calls[0].name.as_str(), got[2].calls[0].arguments.as_str()), ("f", r#"{"z":1}"#));
        assert_eq!((got[4].content.as_str(), got[4].call_id.as_deref()), ("ok", Some("toolu_1")));
        assert_eq!((got[5].content.as_str(), got[6].content.as_str()), ("go on", ""));
    }

    #[test]
    fn a_late_system_message_is_the_same_as_text_and_as_a_block() {
        let one = read(r#"{"messages":[{"role":"system","content":"x"}]}"#);
        assert_eq!(one, read(r#"{"messages":[{"role":"system","content":[{"type":"text","text":"x"}]}]}"#));
    }

    #[test]
    fn a_stream_has_its_blocks_in_order() {
        let mut answer = prepared(r#","stream":true"#).unwrap().answer;
        let mut out = String::new();
        answer.begin(&mut out);
        let numbers = Numbers::default();
        answer.piece(0, &piece(Part::Reasoning, "why"), &numbers, &mut out);
        answer.piece(0, &piece(Part::Content, "th"), &numbers, &mut out);
        answer.piece(0, &piece(Part::Content, "is"), &numbers, &mut out);
        answer.done(0, &summary(End::StopString("X".to_owned())), true, &mut out);
        let names: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        let data = objects(&out);
        assert_eq!(names, data.iter().map(|data| data["type"].as_str().unwrap()).collect::<Vec<_>>());
        assert_eq!(
            names,
            [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop"
            ]
        );
        assert!(data[0]["message"]["usage"]["input_tokens"].as_u64().unwrap() > 0);
        assert_eq!(data[1]["content_block"], json!({ "type": "thinking", "thinking": "", "signature": "" }));
        assert_eq!(data[3]["delta"]["type"], "signature_delta");
        assert_eq!((&data[5]["index"], &data[5]["content_block"]["text"]), (&1.into(), &"".into()));
        assert_eq!(data[9]["delta"], json!({ "stop_reason": "stop_sequence", "stop_sequence": "X" }));
        assert_eq!(data[9]["usage"]["cache_read_input_tokens"], 4);
        assert_eq!(data[9]["usage"]["input_tokens"], 6);
    }

    #[test]
    fn a_whole_message_has_its_blocks() {
        let mut answer = prepared("").unwrap().answer;
        let pieces = vec![piece(Part::Reasoning, "why"), piece(Part::Content, "this")];
        let got = answer.whole(&[Whole::new(pieces, summary(End::Length), None)]);
        assert_eq!((&got["type"], &got["stop_reason"]), (&"message".into(), &"max_tokens".into()));
        assert_eq!(got["content"][1], json!({ "type": "text", "text": "this" }));
        assert!(got["id"].as_str().unwrap().starts_with("msg_"));
        assert_eq!(answer.whole(&[Whole::new(vec![], summary(End::Stop), None)])["content"][0]["text"], "");
    }

    #[test]
    fn calls_are_blocks() {
        let mut prepared =
            prepared(r#","tools":[{"name":"f","input_schema":{}},{"type":"web_search_20250305"}]"#).unwrap();
        let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"b\":1}}</tool_call>";
        let pieces = vec![piece(Part::Content, text)];
        let whole = Whole::new(pieces, summary(End::Stop), prepared.calls.take());
        let got = prepared.answer.whole(std::slice::from_ref(&whole));
        assert_eq!(
            (&got["stop_reason"], &got["content"][0]["input"]),
            (&"tool_use".into(), &json!({ "b": 1 }))
        );
        let mut out = String::new();
        prepared.answer.piece(0, &piece(Part::Content, "so"), &Numbers::default(), &mut out);
        prepared.answer.call(&whole.calls[0], &mut out);
        prepared.answer.done(0, &summary(End::Stop), true, &mut out);
        let data = objects(&out);
        let indices: Vec<_> = data.iter().filter_map(|data| data["index"].as_u64()).collect();
        assert_eq!(indices, [0, 0, 0, 1, 1, 1]);
        assert_eq!(data[4]["delta"]["partial_json"], "{\"b\":1}");
        assert_eq!(data[6]["delta"]["stop_reason"], "tool_use");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |body: &str| prepare(&model(), &parse(body.as_bytes()).unwrap(), 0).err().unwrap();
        assert!(
            error(r#"{"messages":[{"role":"user","content":"x"}]}"#)
                .message
                .contains("max_tokens is missing")
        );
        assert!(error(r#"{"max_tokens":5}"#).message.contains("messages is missing"));
        let thinking = r#"{"max_tokens":5,"messages":[{"role":"user"}],"thinking":{"type":"x"}}"#;
        assert!(error(thinking).message.contains("thinking.type is \"x\""));
        let image = r#"{"max_tokens":5,"messages":[{"role":"user","content":[{"type":"image"}]}]}"#;
        assert!(error(image).message.contains("messages[0].content[0].type is \"image\""));
        let forced = prepared(r#","tool_choice":{"type":"any"}"#).err().unwrap();
        assert!(forced.message.contains("there are no tools"), "{}", forced.message);
    }

    #[test]
    fn tokens_are_counted_as_they_would_be_used() {
        let map = parse(format!("{{{ASK}}}").as_bytes()).unwrap();
        let counted = count_tokens(&model(), &map).unwrap();
        assert_eq!(counted["input_tokens"], prepared("").unwrap().generations[0].ids.len());
    }
}
