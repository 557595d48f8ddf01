//! A conversation in a JSON file.
//!
//! In: the file's text. Out: messages, or what is wrong, with the message's index and the field. Pure.

use flint_rt::text::chat::{Message, Role};
use serde_json::{Map, Value};

/// The messages of `{"messages": [...]}` or of a list alone. A list may be empty: the prompt then asks for a reply to
/// nothing. Content that is null or missing is empty, as by the model's template.
pub(super) fn parse(text: &str) -> Result<Vec<Message>, String> {
    const WANTED: &str = "wanted {\"messages\": [...]} or a list of messages";
    let document: Value = serde_json::from_str(text).map_err(|error| format!("{WANTED}: {error}"))?;
    let list = match document {
        Value::Object(mut request) => request.remove("messages"),
        other => Some(other),
    };
    match list {
        Some(Value::Array(messages)) => {
            messages.iter().enumerate().map(|(i, value)| message(i, value)).collect()
        }
        Some(other) => Err(format!("{WANTED}, found {}", kind(&other))),
        None => Err(format!("{WANTED}, found an object without messages")),
    }
}

fn message(index: usize, value: &Value) -> Result<Message, String> {
    let Value::Object(fields) = value else {
        return Err(format!("messages[{index}] is {}, wanted an object", kind(value)));
    };
    let role = match fields.get("role") {
        Some(Value::String(name)) => match Role::from_name(name) {
            Role::Unknown => {
                return Err(format!(
                    "messages[{index}].role is {name:?}, wanted system, developer, user, assistant or tool"
                ));
            }
            role => role,
        },
        Some(other) => return Err(format!("messages[{index}].role is {}, wanted text", kind(other))),
        None => return Err(format!("messages[{index}] has no role")),
    };
    let text = |name| text(fields, index, name);
    Ok(Message { role, content: text("content")?, reasoning_content: text("reasoning_content")? })
}

fn text(fields: &Map<String, Value>, index: usize, name: &str) -> Result<Option<String>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(format!("messages[{index}].{name} is {}, wanted text or null", kind(other))),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_names_message_and_field() {
        for (text, wanted) in [
            ("5", "found a number"),
            ("{}", "without messages"),
            (r#"{"messages": 5}"#, "found a number"),
            (r#"[{"role": "user"}, 7]"#, "messages[1] is a number"),
            (r#"[{"content": "x"}]"#, "messages[0] has no role"),
            (r#"[{"role": 1}]"#, "messages[0].role is a number"),
            (r#"[{"role": "narrator", "content": "x"}]"#, "messages[0].role is \"narrator\""),
            (r#"[{"role": "user", "content": ["x"]}]"#, "messages[0].content is a list"),
            (
                r#"[{"role": "assistant", "reasoning_content": 1}]"#,
                "messages[0].reasoning_content is a number",
            ),
            ("[", "wanted {"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn nothing_said_is_empty() {
        assert_eq!(parse("[]"), Ok(Vec::new()));
        let said = |content: Option<&str>| Message {
            role: Role::User,
            content: content.map(str::to_owned),
            reasoning_content: None,
        };
        assert_eq!(
            parse(
                r#"{"messages": [{"role": "user"}, {"role": "user", "content": null}, {"role": "user", "content": ""}]}"#
            ),
            Ok(vec![said(None), said(None), said(Some(""))])
        );
    }
}
