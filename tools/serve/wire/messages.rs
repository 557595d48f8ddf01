//! The messages of a conversation, whichever interface they came by. Pure.

use flint_rt::text::chat::Role;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::{Fields, kind};
use crate::limits::MESSAGES_MAX;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChatMessage {
    pub(crate) role: Role,
    pub(crate) content: String,
    /// The thought before a reply.
    pub(crate) reasoning: Option<String>,
    /// What a reply called.
    pub(crate) calls: Vec<ToolCall>,
    /// Which call a tool's message answers.
    pub(crate) call_id: Option<String>,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON, as the model wrote it.
    pub(crate) arguments: String,
}

impl ChatMessage {
    /// A message that only says something.
    pub(crate) fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), reasoning: None, calls: Vec::new(), call_id: None }
    }
}

/// OpenAI's `messages`.
pub(crate) fn openai(fields: &Fields<'_>) -> Result<Vec<ChatMessage>, ApiError> {
    let list = fields.list("messages")?.ok_or_else(|| fields.refuse("messages", "is missing"))?;
    if list.is_empty() {
        return Err(fields.refuse("messages", "is empty: send at least one message"));
    }
    check_count(fields, "messages", list.len())?;
    list.iter().enumerate().map(|(index, value)| message(index, value)).collect()
}

/// Refuses more messages than are taken.
pub(crate) fn check_count(fields: &Fields<'_>, name: &str, count: usize) -> Result<(), ApiError> {
    match count > MESSAGES_MAX {
        true => {
            Err(fields.refuse(name, format_args!("has {count} entries, at most {MESSAGES_MAX} are taken")))
        }
        false => Ok(()),
    }
}

/// An element of a list as an object.
pub(crate) fn object<'v>(value: &'v Value, place: &str) -> Result<&'v Map<String, Value>, ApiError> {
    value
        .as_object()
        .ok_or_else(|| ApiError::field(place, format_args!("is {}, wanted an object", kind(value))))
}

fn message(index: usize, value: &Value) -> Result<ChatMessage, ApiError> {
    let place = format!("messages[{index}].");
    let map = object(value, place.trim_end_matches('.'))?;
    let fields = Fields::within(map, &place);
    let name = fields.text("role")?.ok_or_else(|| fields.refuse("role", "is missing"))?;
    let role = role(&fields, name)?;
    let reasoning = match fields.text("reasoning_content")? {
        Some(text) => Some(text),
        None => fields.text("reasoning")?,
    };
    Ok(ChatMessage {
        role,
        content: content(&fields, "content")?,
        reasoning: reasoning.filter(|text| !text.is_empty()).map(str::to_owned),
        calls: calls(&fields, &place)?,
        call_id: fields.text("tool_call_id")?.map(str::to_owned),
    })
}

/// A role by its name.
pub(crate) fn role(fields: &Fields<'_>, name: &str) -> Result<Role, ApiError> {
    match Role::from_name(if name == "function" { "tool" } else { name }) {
        Role::Unknown => Err(fields
            .refuse("role", format_args!("is {name:?}, wanted system, developer, user, assistant or tool"))),
        role => Ok(role),
    }
}

/// A text, or a list of parts of which each is text. Parts are joined by newlines; one part is the same as a text.
pub(crate) fn content(fields: &Fields<'_>, name: &str) -> Result<String, ApiError> {
    match fields.get(name) {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().enumerate().map(|(index, part)| {
                let place = format!("{}[{index}].", fields.name(name));
                let part = Fields::within(object(part, place.trim_end_matches('.'))?, &place);
                part_text(&part)
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Some(value) => {
            Err(fields.refuse(name, format_args!("is {}, wanted text or a list of parts", kind(value))))
        }
    }
}

/// The text of one part.
pub(crate) fn part_text(part: &Fields<'_>) -> Result<String, ApiError> {
    let name = match part.text("type")? {
        Some("text" | "input_text" | "output_text") | None => "text",
        Some("refusal") => "refusal",
        Some(other) => {
            return Err(part.refuse("type", format_args!("is {other:?}, but this model takes text alone")));
        }
    };
    part.text(name)?.map(str::to_owned).ok_or_else(|| part.refuse(name, "is missing"))
}

fn calls(fields: &Fields<'_>, place: &str) -> Result<Vec<ToolCall>, ApiError> {
    let list = fields.list("tool_calls")?.unwrap_or_default();
    let call = |(index, value)| {
        let place = format!("{place}tool_calls[{index}].");
        let call = Fields::within(object(value, place.trim_end_matches('.'))?, &place);
        let function = call.object("function")?.ok_or_else(|| call.refuse("function", "is missing"))?;
        let inner = format!("{place}function.");
        let function = Fields::within(function, &inner);
        let name = function.text("name")?.ok_or_else(|| function.refuse("name", "is missing"))?;
        let arguments = match function.get("arguments") {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            // Ollama's clients send the object itself.
            Some(other) => other.to_string(),
        };
        let id = call.text("id")?.unwrap_or_default().to_owned();
        Ok(ToolCall { id, name: name.to_owned(), arguments })
    };
    list.iter().enumerate().map(call).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fields::parse;

    fn read(body: &str) -> Result<Vec<ChatMessage>, ApiError> {
        openai(&Fields::new(&parse(body.as_bytes()).unwrap()))
    }

    #[test]
    fn text_and_parts_are_the_same() {
        let text = read(r#"{"messages":[{"role":"user","content":"a\nb"}]}"#);
        let parts = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}"#;
        assert_eq!(read(parts), text);
        assert_eq!(text.unwrap(), [ChatMessage::new(Role::User, "a\nb")]);
    }

    #[test]
    fn replies_bring_thoughts_and_calls() {
        let got = read(
            r#"{"messages":[{"role":"assistant","content":null,"reasoning":"t","tool_calls":[
                {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}]},
                {"role":"tool","tool_call_id":"c1","content":"ok"}]}"#,
        )
        .unwrap();
        assert_eq!((got[0].content.as_str(), got[0].reasoning.as_deref()), ("", Some("t")));
        let call = ToolCall { id: "c1".into(), name: "f".into(), arguments: r#"{"b":1,"a":2}"#.into() };
        assert_eq!(got[0].calls, [call]);
        assert_eq!((got[1].role, got[1].call_id.as_deref()), (Role::Tool, Some("c1")));
    }

    #[test]
    fn what_is_wrong_names_its_place() {
        for (body, wanted) in [
            ("{}", "messages is missing"),
            (r#"{"messages":[]}"#, "messages is empty"),
            (r#"{"messages":5}"#, "messages is 5, wanted a list"),
            (r#"{"messages":[5]}"#, "messages[0] is a number, wanted an object"),
            (r#"{"messages":[{"content":"x"}]}"#, "messages[0].role is missing"),
            (r#"{"messages":[{"role":"narrator"}]}"#, "messages[0].role is \"narrator\""),
            (r#"{"messages":[{"role":"user","content":5}]}"#, "messages[0].content is a number"),
            (r#"{"messages":[{"role":"user","content":[5]}]}"#, "messages[0].content[0] is a number"),
            (
                r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}"#,
                "messages[0].content[0].type is \"image_url\", but this model takes text alone",
            ),
            (
                r#"{"messages":[{"role":"assistant","tool_calls":[{"id":"x"}]}]}"#,
                "messages[0].tool_calls[0].function is missing",
            ),
        ] {
            let error = read(body).unwrap_err();
            assert!(error.message.contains(wanted), "{body}: {}", error.message);
        }
        let many = format!(r#"{{"messages":[{}{{}}]}}"#, "{},".repeat(MESSAGES_MAX));
        assert!(read(&many).unwrap_err().message.contains("at most 4096"));
    }
}
