//! Calls of tools in a reply's content, found while it comes. Pure.
//!
//! The form is that of several model families: `<tool_call>`, a JSON object with `name` and `arguments`, `</tool_call>`. What does
//! not hold to it is content, as it was written: a model that blunders makes an odd reply, not a failed one.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::fields::Fields;
use super::messages::ToolCall;
use super::model::takes_many_calls;
use crate::engine::reply::{Part, Piece, TokenInfo};
use crate::random;
use crate::wire::error::ApiError;

pub(crate) const OPEN: &str = "<tool_call>";
pub(crate) const CLOSE: &str = "</tool_call>";

/// What a reply says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Said {
    Piece(Piece),
    Call(ToolCall),
}

/// Looks for calls.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    /// The tools that there are.
    names: Vec<String>,
    /// What ids begin with.
    prefix: &'static str,
    /// Whether more than one is wanted.
    takes_many: bool,
    found: usize,
    /// Content that is or may become a call, and its tokens.
    held: String,
    tokens: Vec<TokenInfo>,
}

#[derive(Deserialize)]
struct Written<'a> {
    name: String,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

impl Calls {
    /// Of these tools, in the chat interface's form; none where there are none, or none is to be called.
    pub(crate) fn new(
        fields: &Fields<'_>,
        tools: &[Value],
        prefix: &'static str,
    ) -> Result<Option<Self>, ApiError> {
        let names: Vec<String> =
            tools.iter().filter_map(|tool| Some(tool["function"]["name"].as_str()?.to_owned())).collect();
        let takes_many = takes_many_calls(fields)?;
        let calls = Self { names, prefix, takes_many, found: 0, held: String::new(), tokens: Vec::new() };
        Ok((!calls.names.is_empty()).then_some(calls))
    }

    /// Takes a piece; `give` gets what is certain.
    pub(crate) fn push(&mut self, piece: Piece, give: &mut impl FnMut(Said)) {
        if piece.part == Part::Reasoning {
            self.finish(give);
            give(Said::Piece(piece));
            return;
        }
        if self.found > 0 && !self.takes_many {
            return;
        }
        self.held.push_str(&piece.text);
        self.tokens.extend(piece.tokens);
        loop {
            let Some(at) = self.held.find(OPEN) else {
                let kept = beginning(&self.held);
                self.release(self.held.len() - kept, give);
                return;
            };
            let Some(end) = self.held[at..].find(CLOSE).map(|end| at + end) else {
                let text = self.held[..at].trim_end().len();
                self.release(text, give);
                return;
            };
            let inner = &self.held[at + OPEN.len()..end];
            match self.read(inner) {
                Some(call) => {
                    let text = self.held[..at].trim_end().len();
                    let rest = self.held[end + CLOSE.len()..].trim_start().to_owned();
                    self.release(text, give);
                    self.held = rest;
                    self.found += 1;
                    give(Said::Call(call));
                    if !self.takes_many {
                        self.held.clear();
                        return;
                    }
                }
                None => self.release(end + CLOSE.len(), give),
            }
        }
    }

    /// No more comes: what was held back is content.
    pub(crate) fn finish(&mut self, give: &mut impl FnMut(Said)) {
        // White space after a call says nothing.
        if self.found > 0 && self.held.trim().is_empty() {
            self.held.clear();
        }
        self.release(self.held.len(), give);
    }

    fn read(&self, text: &str) -> Option<ToolCall> {
        let written: Written<'_> = serde_json::from_str(text.trim()).ok()?;
        let arguments = written.arguments.map_or("{}", RawValue::get);
        let is_known = self.names.contains(&written.name) && arguments.starts_with('{');
        // The arguments as they were written, so that the next prompt has the same tokens.
        is_known.then(|| ToolCall {
            id: random::id(self.prefix),
            name: written.name,
            arguments: arguments.to_owned(),
        })
    }

    /// Gives the first `len` bytes of what is held.
    fn release(&mut self, len: usize, give: &mut impl FnMut(Said)) {
        if len > 0 {
            let rest = self.held.split_off(len);
            let text = std::mem::replace(&mut self.held, rest);
            let tokens = std::mem::take(&mut self.tokens);
            give(Said::Piece(Piece { part: Part::Content, text, tokens }));
        }
    }
}

/// Bytes at the end of `text` that may be the beginning of a call: part of its tag, and white space before that.
fn beginning(text: &str) -> usize {
    let tag = (1..OPEN.len()).rev().find(|&len| text.ends_with(&OPEN[..len])).unwrap_or(0);
    text.len() - text[..text.len() - tag].trim_end().len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::wire::fields::parse;

    fn run(body: &str, pieces: &[&str]) -> (String, Vec<(String, String)>) {
        let tools = [json!({ "type": "function", "function": { "name": "f" } })];
        let map = parse(body.as_bytes()).unwrap();
        let mut calls = Calls::new(&Fields::new(&map), &tools, "call_").unwrap().unwrap();
        let (mut content, mut found) = (String::new(), Vec::new());
        let mut give = |said| match said {
            Said::Piece(piece) => {
                assert!(!piece.text.is_empty());
                content.push_str(&piece.text);
            }
            Said::Call(call) => {
                assert!(call.id.starts_with("call_") && call.id.len() > 9);
                found.push((call.name, call.arguments));
            }
        };
        for piece in pieces {
            let piece = Piece { part: Part::Content, text: (*piece).to_owned(), tokens: Vec::new() };
            calls.push(piece, &mut give);
        }
        calls.finish(&mut give);
        (content, found)
    }

    fn call(arguments: &str) -> (String, String) {
        ("f".to_owned(), arguments.to_owned())
    }

    #[test]
    fn calls_are_found_across_pieces_with_their_arguments_as_written() {
        let text = "So:\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1,  \"a\": \"</b>\"}}\n</tool_call>\n";
        let wanted = ("So:".to_owned(), vec![call("{\"z\": 1,  \"a\": \"</b>\"}")]);
        assert_eq!(run("{}", &[text]), wanted);
        let single: Vec<String> = text.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(run("{}", &single), wanted);
    }

    #[test]
    fn several_are_taken_if_several_are_wanted() {
        let text = "<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> ";
        assert_eq!(run("{}", &[text]), (String::new(), vec![call("{}"), call("{}")]));
        assert_eq!(run(r#"{"parallel_tool_calls":false}"#, &[text]).1.len(), 1);
    }

    #[test]
    fn what_is_no_call_is_content() {
        for text in [
            "a <tool_call>{\"name\":\"other\"}</tool_call> b",
            "<tool_call>{\"name\":\"f\",\"arguments\":5}</tool_call>",
            "<tool_call>{\"name\":</tool_call>x",
            "<tool_call>{\"name\":\"f\"}",
            "1 < 2 <tool",
            "x <",
            "ends in space \n",
        ] {
            assert_eq!(run("{}", &[text]), (text.to_owned(), vec![]), "{text}");
        }
    }

    #[test]
    fn without_tools_nothing_is_looked_for() {
        let map = parse(b"{}").unwrap();
        assert!(Calls::new(&Fields::new(&map), &[], "call_").unwrap().is_none());
    }
}
