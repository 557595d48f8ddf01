//! Replies in a given form: which tokens may come next, by llguidance.
//!
//! - In: a JSON schema, or tools of which one has to be called. Out: a [`Constraint`], which a reply's tokens pass one by one.
//! - Limits: those of `schema` on what is compiled, a stack of its own while that is done, and those of llguidance on a grammar's size
//!   and on the work for a token, so that a hostile schema ends itself alone.

use std::sync::Arc;

use flint_rt::base::ids::TokenId;
use flint_rt::text::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::schema;
use crate::limits::{GRAMMAR_ITEMS_MAX, GRAMMAR_STACK_BYTES};
use crate::wire::calls::{CLOSE, OPEN};
use crate::wire::error::{ApiError, Kind};

/// What a reply has to be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wanted {
    /// JSON of this schema.
    Json(Value),
    /// A call, or several, of these tools: name and schema of the arguments.
    Calls {
        /// At least one.
        tools: Vec<(String, Value)>,
        /// Whether several may come.
        takes_many: bool,
    },
}

/// The vocabulary as llguidance has it, made once.
pub(crate) struct Grammars {
    factory: ParserFactory,
}

/// The form of one reply, and how far it is.
#[derive(Clone)]
pub(crate) struct Constraint(Box<Matcher>);

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Constraint")
    }
}

impl Grammars {
    /// Of a vocabulary in which `end` ends a reply.
    ///
    /// # Errors
    /// What llguidance says of it.
    pub(crate) fn new(tokenizer: &Tokenizer, end: TokenId) -> Result<Self, String> {
        let vocabulary = tokenizer.vocabulary();
        let words: Vec<Vec<u8>> = (0..vocabulary.token_count())
            .map(|id| {
                let bytes = vocabulary.token_bytes(id).unwrap_or_default();
                match vocabulary.kind(id).is_some_and(|kind| kind.is_special()) {
                    // No text of a grammar is a marker.
                    true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
                    false => bytes.to_vec(),
                }
            })
            .collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary.token_count(), end), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().max_items_in_row = GRAMMAR_ITEMS_MAX;
        Ok(Self { factory })
    }

    /// # Errors
    /// When a schema is not one, or too large.
    pub(crate) fn constraint(&self, wanted: &Wanted) -> Result<Constraint, ApiError> {
        schema::check(wanted.schemas())
            .map_err(|why| ApiError::new(Kind::Invalid, format!("the schema cannot be followed: {why}")))?;
        let failed = || ApiError::new(Kind::Server, "the schema could not be read; report it");
        // The compiler recurses along a schema's references, as deep as the limits allow.
        let matcher = std::thread::scope(|scope| {
            let compiling = std::thread::Builder::new()
                .name("grammar".to_owned())
                .stack_size(GRAMMAR_STACK_BYTES)
                .spawn_scoped(scope, || Matcher::new(self.factory.create_parser(grammar(wanted))));
            compiling.map_err(|_| failed())?.join().map_err(|_| failed())
        })?;
        match matcher.get_error() {
            None => Ok(Constraint(Box::new(matcher))),
            Some(error) => {
                let line = error.lines().next().unwrap_or_default();
                Err(ApiError::new(Kind::Invalid, format!("the schema cannot be followed: {line}")))
            }
        }
    }
}

impl Wanted {
    fn schemas(&self) -> Vec<&Value> {
        match self {
            Self::Json(schema) => vec![schema],
            Self::Calls { tools, .. } => tools.iter().map(|(_, schema)| schema).collect(),
        }
    }
}

fn grammar(wanted: &Wanted) -> TopLevelGrammar {
    match wanted {
        Wanted::Json(schema) => TopLevelGrammar::from_json_schema(spaced(schema)),
        Wanted::Calls { tools, takes_many } => {
            let names: Vec<String> = (0..tools.len()).map(|index| format!("call_{index}")).collect();
            let more = if *takes_many { " (\"\\n\" call)*" } else { "" };
            let mut lark = format!("start: call{more}\ncall: {}\n", names.join(" | "));
            for (rule, (name, schema)) in names.iter().zip(tools) {
                let begin = format!("{OPEN}\n{{\"name\": {}, \"arguments\": ", Value::from(name.as_str()));
                let (begin, end) = (Value::from(begin), Value::from(format!("}}\n{CLOSE}")));
                lark.push_str(&format!("{rule}: {begin} %json {} {end}\n", spaced(schema)));
            }
            TopLevelGrammar::from_lark(lark)
        }
    }
}

/// The schema with the spaces that calls are written with, and no others: a model that may write any would write nothing else.
fn spaced(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        _ => json!({}),
    };
    schema["x-guidance"] = json!({
        "whitespace_flexible": false,
        "item_separator": ", ",
        "key_separator": ": ",
        "coerce_one_of": true,
        "lenient": true,
    });
    schema
}

impl Constraint {
    /// Which tokens may come now.
    ///
    /// # Errors
    /// When that takes too much work.
    pub(crate) fn allowed(&mut self) -> Result<impl Fn(TokenId) -> bool + use<>, ApiError> {
        let mask = self.0.compute_mask_or_eos().map_err(|_| too_much_work())?;
        Ok(move |id| mask.is_allowed(id))
    }

    /// A token has come; whether that completes the reply.
    ///
    /// # Errors
    /// When it was none that might, or what follows it takes too much work.
    pub(crate) fn take(&mut self, id: TokenId) -> Result<bool, ApiError> {
        self.0.consume_token(id).map_err(|_| too_much_work())?;
        Ok(self.0.is_stopped())
    }
}

fn too_much_work() -> ApiError {
    ApiError::new(Kind::Invalid, "the schema takes too much work to follow: send a simpler one")
}

#[cfg(test)]
mod tests {
    use flint_rt::text::Specials;

    use super::*;
    use crate::stub::nano_tokenizer;

    /// Whether `text` is what was wanted: its tokens pass, and it may end there.
    fn fits(wanted: &Wanted, text: &str) -> bool {
        let tokenizer = nano_tokenizer();
        let end = tokenizer.special_id("<|user|>").unwrap();
        let mut constraint = Grammars::new(&tokenizer, end).unwrap().constraint(wanted).unwrap();
        for id in tokenizer.encode(text, Specials::Plain) {
            if !constraint.allowed().unwrap()(id) {
                return false;
            }
            if constraint.take(id).unwrap() {
                break;
            }
        }
        constraint.allowed().unwrap()(end)
    }

    #[test]
    fn json_follows_its_schema() {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" },
            "b": { "enum": ["x", "y"] } }, "required": ["a", "b"], "additionalProperties": false });
        let wanted = Wanted::Json(schema);
        assert!(fits(&wanted, r#"{"a": 12, "b": "x"}"#));
        for text in [
            r#"{"a": "12", "b": "x"}"#,
            r#"{"a": 1, "b": "z"}"#,
            r#"{"a": 1}"#,
            "hello",
            r#"{"a": 1, "b": "x""#,
        ] {
            assert!(!fits(&wanted, text), "{text}");
        }
        let any = Wanted::Json(json!({ "type": "object" }));
        assert!(fits(&any, r#"{"k": [1, null, {"z": "é 🦀"}]}"#) && !fits(&any, "[1]"));
    }

    #[test]
    fn calls_are_of_the_tools() {
        let number =
            json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] });
        let tools = vec![("f".to_owned(), number), ("g".to_owned(), json!({ "type": "object" }))];
        let call = |name, arguments| {
            format!("{OPEN}\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n{CLOSE}")
        };
        let many = Wanted::Calls { tools: tools.clone(), takes_many: true };
        assert!(fits(&many, &call("f", r#"{"a": 1}"#)));
        assert!(fits(&many, &[call("f", r#"{"a": 1}"#), call("g", "{}")].join("\n")));
        assert!(!fits(&many, &call("h", "{}")) && !fits(&many, &call("f", "{}")) && !fits(&many, "text"));
        let one = Wanted::Calls { tools, takes_many: false };
        assert!(fits(&one, &call("g", "{}")));
    }

    fn properties(count: usize) -> Value {
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|index| (format!("field_{index}"), json!({ "type": "integer" }))).collect();
        json!({ "type": "object", "properties": properties })
    }

    #[test]
    fn a_thousand_properties_are_followed_and_more_refused() {
        assert!(fits(&Wanted::Json(properties(1000)), r#"{"field_1": 5, "field_998": 7}"#));
        assert!(!fits(&Wanted::Json(properties(1000)), r#"{"field_1": "5"}"#));
        let tokenizer = nano_tokenizer();
        let grammars = Grammars::new(&tokenizer, tokenizer.special_id("<|user|>").unwrap()).unwrap();
        let error = grammars.constraint(&Wanted::Json(properties(1001))).unwrap_err();
        assert_eq!(error.kind, Kind::Invalid);
        assert!(error.message.contains("1001 properties"), "{}", error.message);
        // Several tools with such schemas are more than one row holds: refused, whenever that is seen.
        let tools = (0..4).map(|index| (format!("tool_{index}"), properties(1000))).collect();
        let many = grammars.constraint(&Wanted::Calls { tools, takes_many: true });
        assert!(many.map_or_else(|error| error.kind == Kind::Invalid, |_| true));
    }

    #[test]
    fn a_chain_of_references_does_not_overflow_the_stack() {
        let tokenizer = nano_tokenizer();
        let grammars = Grammars::new(&tokenizer, tokenizer.special_id("<|user|>").unwrap()).unwrap();
        let chain = |count: usize| {
            let definitions: serde_json::Map<String, Value> = (0..count)
                .map(|index| {
                    let next = json!({ "$ref": format!("#/$defs/d{}", index + 1) });
                    (format!("d{index}"), json!({ "type": "object", "properties": { "x": next } }))
                })
                .chain([(format!("d{count}"), json!({ "type": "integer" }))])
                .collect();
            Wanted::Json(json!({ "$ref": "#/$defs/d0", "$defs": definitions }))
        };
        grammars.constraint(&chain(500)).unwrap();
        let error = grammars.constraint(&chain(5000)).unwrap_err();
        assert!(error.message.contains("$ref"), "{}", error.message);
    }

    #[test]
    fn hostile_schemas_end_themselves() {
        let tokenizer = nano_tokenizer();
        let end = tokenizer.special_id("<|user|>").unwrap();
        let grammars = Grammars::new(&tokenizer, end).unwrap();
        let long = json!({ "type": "string", "pattern": "(a{1,5000}){1,5000}" });
        let loops = json!({ "$ref": "#" });
        let bad = json!({ "type": "nonsense" });
        for schema in [long, loops, bad] {
            let begin = std::time::Instant::now();
            if let Ok(mut constraint) = grammars.constraint(&Wanted::Json(schema)) {
                let _ = constraint.allowed().map(|allowed| allowed(5));
            }
            assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{:?}", begin.elapsed());
        }
    }
}
