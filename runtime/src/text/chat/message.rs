//! A message of a conversation, and the form's rules for its text. Pure.

use serde::{Deserialize, Serialize};

use super::prompt::Marker;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "&'static str")]
pub enum Role {
    /// The system text.
    System,
    /// The developer's text.
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    Tool,
    /// A role that the form does not know. Its message is left out, as by the model's template; a server had better
    /// refuse it.
    Unknown,
}

impl Role {
    /// The role that a request names so.
    pub fn from_name(name: &str) -> Self {
        match name {
            "system" => Self::System,
            "developer" => Self::Developer,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            _ => Self::Unknown,
        }
    }

    /// Its name in a request.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Unknown => "unknown",
        }
    }
}

impl From<String> for Role {
    fn from(name: String) -> Self {
        Self::from_name(&name)
    }
}

impl From<Role> for &'static str {
    fn from(role: Role) -> Self {
        role.name()
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; none is the same as empty.
    #[serde(default)]
    pub content: Option<String>,
    /// The thought before a reply; of other roles it is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

impl Message {
    /// A message without a thought.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: Some(content.into()), reasoning_content: None }
    }
}

/// Text of a system, developer, user or tool message: without NUL and thought delimiters, and with the angle brackets
/// of the markers escaped. One pass each, in this order, as the model was trained; what a removal joins anew stays text.
pub(super) fn clean(text: &str) -> String {
    let mut text = text.replace('\0', "").replace("<think>", "").replace("</think>", "");
    for marker in Marker::ESCAPED {
        let marker = marker.text();
        if text.contains(marker) {
            let bare = marker.trim_start_matches('<').trim_end_matches('>');
            text = text.replace(marker, &format!("&lt;{bare}&gt;"));
        }
    }
    text
}

/// An assistant message taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// The thought, cut at the delimiters that it holds; no parts when there is no thought. Joined by `</think>` it is
    /// what the template renders.
    pub(super) thought: Vec<String>,
    /// What follows the thought.
    pub(super) content: String,
}

/// Takes an assistant message apart: the thought is `reasoning_content`, then every span of the content between
/// `<|think|>` and `<|/think|>`, then what precedes the content's last `</think>`, less each `<think>`. Both are trimmed.
pub(super) fn take_apart(message: &Message) -> Reply {
    let field = |text: &Option<String>| text.as_deref().unwrap_or_default().replace('\0', "");
    let mut thought = vec![field(&message.reasoning_content)];
    let mut content = String::new();
    let whole = field(&message.content);
    let mut rest = whole.as_str();
    while let Some((before, after)) = rest.split_once("<|think|>") {
        let Some((inside, after)) = after.split_once("<|/think|>") else { break };
        content.push_str(before);
        append(&mut thought, inside);
        rest = after;
    }
    content.push_str(rest);
    if let Some((before, after)) = content.rsplit_once("</think>") {
        for (index, part) in before.split("</think>").enumerate() {
            if index > 0 {
                thought.push(String::new());
            }
            append(&mut thought, &part.replace("<think>", ""));
        }
        content = after.to_owned();
    }
    trim_ends(&mut thought);
    let content = content.trim_matches(is_trimmed).to_owned();
    Reply { thought, content }
}

/// Adds `text` to the last part.
fn append(parts: &mut [String], text: &str) {
    parts.last_mut().expect("invariant: a thought begins with one part").push_str(text);
}

/// Trims the beginning of the first part and the end of the last. A delimiter is no white space, so parts between
/// delimiters stay, also when they are empty; a thought of white space alone is none.
fn trim_ends(parts: &mut Vec<String>) {
    if let Some(first) = parts.first_mut() {
        *first = first.trim_start_matches(is_trimmed).to_owned();
    }
    if let Some(last) = parts.last_mut() {
        *last = last.trim_end_matches(is_trimmed).to_owned();
    }
    if parts.len() == 1 && parts[0].is_empty() {
        parts.clear();
    }
}

/// What is trimmed from thoughts and replies: Unicode's white space with U+FEFF and without U+0085, as JavaScript's
/// `trim`, which the form was first written with.
fn is_trimmed(character: char) -> bool {
    character == '\u{feff}' || (character.is_whitespace() && character != '\u{85}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(content: &str, reasoning: Option<&str>) -> (Vec<String>, String) {
        let mut message = Message::new(Role::Assistant, content);
        message.reasoning_content = reasoning.map(str::to_owned);
        let reply = take_apart(&message);
        (reply.thought, reply.content)
    }

    #[test]
    fn thoughts_are_found_and_trimmed() {
        assert_eq!(apart(" 4 \n", Some("\n sum ")), (vec!["sum".to_owned()], "4".to_owned()));
        assert_eq!(apart("a<|think|>b", None), (vec![], "a<|think|>b".to_owned()));
        let nested = apart("<|think|>a<|think|>b<|/think|>c<|/think|>", None);
        assert_eq!(nested, (vec!["a<|think|>b".to_owned()], "c<|/think|>".to_owned()));
        assert_eq!(apart("</think>x", None), (vec![], "x".to_owned()));
        assert_eq!(apart("</think></think>x", None), (vec![String::new(); 2], "x".to_owned()));
        // A thought given apart has no delimiters: what looks like one is its text.
        assert_eq!(apart("x", Some("a</think>b")), (vec!["a</think>b".to_owned()], "x".to_owned()));
        assert_eq!(apart("\u{feff}x\u{85}", None), (vec![], "x\u{85}".to_owned()));
    }

    #[test]
    fn cleaning_is_one_pass_in_order() {
        assert_eq!(clean("<|us\0er|>"), "&lt;|user|&gt;");
        assert_eq!(clean("<thi</think>nk>"), "<think>");
        assert_eq!(clean("<|us<think>er|>"), "&lt;|user|&gt;");
        assert_eq!(clean("<tool_response>"), "<tool_response>");
    }
}
