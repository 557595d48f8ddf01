//! The form of one reply, and how far it is: which tokens may come next.
//!
//! In: a grammar's matcher, and a reply's tokens one by one. Out: which may come, where not all may; and whether the form is complete.

use flint_rt::base::ids::TokenId;
use llguidance::Matcher;
use llguidance::toktrie::TokTrie;

use crate::wire::calls::OPEN;
use crate::wire::error::{ApiError, Kind};

/// The form of one reply.
#[derive(Clone)]
pub(crate) struct Constraint(Held);

#[derive(Clone)]
enum Held {
    /// From the first token to the last.
    Whole(Box<Matcher>),
    /// Free, but for what is opened as a call.
    Calls(Box<Calls>),
}

#[derive(Clone)]
struct Calls {
    /// What a call has to be behind its opening tag.
    start: Matcher,
    /// The call that is open.
    call: Option<Matcher>,
    opening: Opening,
    takes_many: bool,
}

/// Looks for the tag that opens a call, whatever tokens it comes in.
#[derive(Debug, Clone, Default)]
struct Opening {
    /// The end of what came, shorter than the tag.
    tail: Vec<u8>,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Constraint")
    }
}

impl Constraint {
    /// A reply that is nothing but what `matcher` takes.
    pub(super) fn whole(matcher: Matcher) -> Self {
        Self(Held::Whole(Box::new(matcher)))
    }

    /// Any reply, in which `start` takes what follows each opening tag; only the first, after which it ends, if not `takes_many`.
    pub(super) fn calls(start: Matcher, takes_many: bool) -> Self {
        Self(Held::Calls(Box::new(Calls { start, call: None, opening: Opening::default(), takes_many })))
    }

    /// Whether not every token may come now.
    pub(crate) fn is_active(&self) -> bool {
        match &self.0 {
            Held::Whole(_) => true,
            Held::Calls(calls) => calls.call.is_some(),
        }
    }

    /// Which tokens may come now; none where all may.
    ///
    /// # Errors
    /// When that takes too much work.
    pub(crate) fn allowed(&mut self) -> Result<Option<impl Fn(TokenId) -> bool + use<>>, ApiError> {
        let mask = match &mut self.0 {
            Held::Whole(matcher) => Some(matcher.compute_mask_or_eos().map_err(|_| too_much_work())?),
            Held::Calls(calls) => calls.call.as_mut().and_then(|call| call.compute_mask_or_eos().ok()),
        };
        if let (Held::Calls(calls), None) = (&mut self.0, &mask) {
            // Nobody asked for a call: one that cannot be followed is text.
            calls.call = None;
        }
        Ok(mask.map(|mask| move |id| mask.is_allowed(id)))
    }

    /// A token has come; whether that completes the reply.
    ///
    /// # Errors
    /// When it was none that might, or what follows it takes too much work.
    pub(crate) fn take(&mut self, id: TokenId) -> Result<bool, ApiError> {
        match &mut self.0 {
            Held::Whole(matcher) => {
                matcher.consume_token(id).map_err(|_| too_much_work())?;
                Ok(matcher.is_stopped())
            }
            Held::Calls(calls) => Ok(calls.take(id)),
        }
    }
}

impl Calls {
    /// Whether the only call that is wanted is complete.
    fn take(&mut self, id: TokenId) -> bool {
        let Some(call) = &mut self.call else {
            self.look(id);
            return false;
        };
        let is_followed = call.consume_token(id).is_ok();
        if !is_followed || call.is_stopped() {
            self.call = None;
        }
        is_followed && self.call.is_none() && !self.takes_many
    }

    fn look(&mut self, id: TokenId) {
        let Ok(environment) = self.start.tok_env() else { return };
        let trie = environment.tok_trie();
        let bytes = trie.token(id);
        let text = bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes);
        let Some(rest) = self.opening.push(text) else { return };
        self.call = self.opened(&rest, trie);
    }

    /// The call behind a tag whose last token has `rest` besides; none where that is not how a call of any tool begins.
    fn opened(&self, rest: &[u8], trie: &TokTrie) -> Option<Matcher> {
        let mut call = self.start.deep_clone();
        if rest.is_empty() {
            return Some(call);
        }
        // White space in it stands for the line break.
        let ids = trie.greedy_tokenize(&[b"\n", rest.trim_ascii_start()].concat());
        let is_taken = call.try_consume_tokens(&ids).is_ok_and(|count| count == ids.len());
        is_taken.then_some(call)
    }
}

impl Opening {
    /// What follows the tag, once that is complete.
    fn push(&mut self, text: &[u8]) -> Option<Vec<u8>> {
        self.tail.extend_from_slice(text);
        let found = self.tail.windows(OPEN.len()).position(|window| window == OPEN.as_bytes());
        match found {
            Some(at) => {
                let rest = self.tail.split_off(at + OPEN.len());
                self.tail.clear();
                Some(rest)
            }
            None => {
                let kept = self.tail.len().min(OPEN.len() - 1);
                self.tail.drain(..self.tail.len() - kept);
                None
            }
        }
    }
}

fn too_much_work() -> ApiError {
    ApiError::new(Kind::Invalid, "the schema takes too much work to follow: send a simpler one")
}

#[cfg(test)]
mod tests {
    use flint_rt::text::Specials;
    use serde_json::{Value, json};

    use super::*;
    use crate::engine::grammar::{Form, Grammars, Wanted};
    use crate::stub::nano_tokenizer;
    use crate::wire::calls::CLOSE;

    fn tools(schema: Value, is_strict: bool) -> Vec<(String, Form)> {
        vec![("f".to_owned(), Form { schema, is_strict })]
    }

    fn number() -> Value {
        json!({ "type": "object", "properties": { "a": { "type": "integer", "minimum": 0, "maximum": 99 } },
            "required": ["a"], "additionalProperties": false })
    }

    fn grammars() -> Grammars {
        let tokenizer = nano_tokenizer();
        Grammars::new(&tokenizer, tokenizer.special_id("<|user|>").unwrap()).unwrap()
    }

    fn constraint(takes_many: bool) -> Constraint {
        let wanted = Wanted::Calls { tools: tools(number(), false), takes_many, is_forced: false };
        grammars().constraint(&wanted).unwrap()
    }

    /// What becomes of a model that wants to say `text` and then the same again: each token that may not come gives way to the first
    /// that may.
    fn written(constraint: &mut Constraint, text: &str, count: usize) -> String {
        let tokenizer = nano_tokenizer();
        let ids = tokenizer.encode(text, Specials::Plain);
        let mut said = Vec::new();
        for wish in ids.iter().cycle().take(count) {
            let allowed = constraint.allowed().unwrap();
            let id = match &allowed {
                Some(allowed) if !allowed(*wish) => {
                    (0..tokenizer.vocabulary().token_count()).find(|id| allowed(*id)).unwrap()
                }
                _ => *wish,
            };
            said.push(id);
            if constraint.take(id).unwrap() {
                break;
            }
        }
        tokenizer.decode(&said)
    }

    #[test]
    fn what_is_opened_as_a_call_becomes_one_and_the_rest_is_free() {
        let text = "It is {so}: <tool_call>nonsense, nonsense and more ";
        let mut one = constraint(false);
        assert!(!one.is_active());
        let said = written(&mut one, text, 500);
        let (before, call) = said.split_once(OPEN).unwrap();
        assert_eq!(before, "It is {so}: ");
        let call = call.strip_suffix(CLOSE).unwrap();
        let call: Value = serde_json::from_str(call).unwrap();
        assert_eq!(call["name"], "f");
        assert!(call["arguments"]["a"].as_u64().unwrap() <= 99);
        // Where several may come, each is one, and what lies between them is as it was.
        let said = written(&mut constraint(true), text, 400);
        let blocks: Vec<&str> = said.split(OPEN).skip(1).collect();
        assert!(blocks.len() > 2, "{said}");
        for block in &blocks[..blocks.len() - 1] {
            let (call, after) = block.split_once(CLOSE).unwrap();
            assert_eq!(serde_json::from_str::<Value>(call).unwrap()["name"], "f");
            assert!(text.contains(after.trim_end_matches("It is {so}: ")), "{after}");
        }
    }

    #[test]
    fn a_call_that_is_well_written_passes_as_it_is() {
        let call = "{\"name\": \"f\", \"arguments\": {\"a\": 7}}";
        let text = format!("So <b> <tool_cal> {OPEN}\n{call}\n{CLOSE} {{ and so on");
        let count = nano_tokenizer().encode(&text, Specials::Plain).len();
        assert_eq!(written(&mut constraint(true), &text, count), text);
    }

    #[test]
    fn a_tag_is_found_whatever_tokens_it_comes_in() {
        let found = |parts: &[&str]| {
            let mut opening = Opening::default();
            parts.iter().find_map(|part| opening.push(part.as_bytes()))
        };
        assert_eq!(found(&["<tool_call>"]), Some(Vec::new()));
        assert_eq!(found(&["a <", "tool", "_call", ">\n{"]), Some(b"\n{".to_vec()));
        assert_eq!(found(&["<<tool_call", ">"]), Some(Vec::new()));
        assert_eq!(found(&["<tool_", "<tool_call", " >"]), None);
        assert_eq!(found(&["x".repeat(100).as_str(), "<tool_call"]), None);
        let single: Vec<String> = "see <tool_call>".chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(found(&single), Some(Vec::new()));
    }

    #[test]
    fn what_a_token_has_behind_the_tag_belongs_to_the_call() {
        // As of a vocabulary whose tokens go across it.
        for (rest, is_call) in
            [("\n", true), (" {\"na", true), ("{\"name\": \"f\"", true), ("{\"x", false), ("\nx", false)]
        {
            let Held::Calls(calls) = constraint(true).0 else { unreachable!("it was made of calls") };
            let environment = calls.start.tok_env().unwrap();
            assert_eq!(calls.opened(rest.as_bytes(), environment.tok_trie()).is_some(), is_call, "{rest:?}");
        }
    }

    #[test]
    fn a_form_that_cannot_be_followed_is_refused_only_where_it_is_strict() {
        let odd = json!({ "type": "object", "properties": { "a": { "type": "string", "contentEncoding": "base64" } },
            "unevaluatedProperties": false });
        let broken = json!({ "type": "nonsense" });
        let calls = |schema: &Value, is_strict, is_forced| {
            let tools = tools(schema.clone(), is_strict);
            grammars().constraint(&Wanted::Calls { tools, takes_many: true, is_forced })
        };
        for schema in [&odd, &broken] {
            assert!(calls(schema, false, false).is_ok(), "{schema}");
            let error = calls(schema, true, false).unwrap_err();
            assert!(error.message.contains("cannot be followed"), "{}", error.message);
        }
        assert!(calls(&odd, false, true).is_ok());
        assert_eq!(calls(&broken, false, true).unwrap_err().kind, Kind::Invalid);
        // Any object passes in its place.
        let said = written(&mut calls(&broken, false, false).unwrap(), "<tool_call>x", 200);
        assert!(said.starts_with("<tool_call>\n{\"name\": \"f\", \"arguments\": {"), "{said}");
    }
}
