//! Forms that replies can be asked for, as grammars: by llguidance.
//!
//! - In: a JSON schema, or tools. Out: a [`Constraint`], which a reply's tokens pass one by one.
//! - Grammars that were made lately are kept: a conversation brings the same tools with every turn.
//! - Limits: those of `schema` on what is compiled, a stack of its own while that is done, and those of llguidance on a grammar's size
//!   and on the work for a token, so that a hostile schema ends itself alone.

use std::sync::{Arc, Mutex, PoisonError};

use flint_rt::base::ids::TokenId;
use flint_rt::text::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::constraint::Constraint;
use super::schema;
use crate::limits::{GRAMMAR_ITEMS_MAX, GRAMMAR_KEY_BYTES_MAX, GRAMMAR_STACK_BYTES, GRAMMARS_KEPT};
use crate::wire::calls::{CLOSE, OPEN};
use crate::wire::error::{ApiError, Kind};

/// A JSON schema that is to be followed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Form {
    pub(crate) schema: Value,
    /// Whether keywords that cannot be followed are refused; else they are left out.
    pub(crate) is_strict: bool,
}

/// What a reply has to be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wanted {
    /// JSON.
    Json(Form),
    /// Calls of these tools: name and form of the arguments.
    Calls {
        /// At least one.
        tools: Vec<(String, Form)>,
        /// Whether several may come.
        takes_many: bool,
        /// Whether the reply has to be calls; else it is whatever it likes, but what it opens as a call has to be one.
        is_forced: bool,
    },
}

/// The vocabulary as llguidance has it, made once, and grammars made of it.
pub(crate) struct Grammars {
    factory: ParserFactory,
    /// Those made last, by their source, the latest last.
    kept: Mutex<Vec<(String, Matcher)>>,
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
        Ok(Self { factory, kept: Mutex::new(Vec::new()) })
    }

    /// # Errors
    /// When a schema is not one, or too large; of a tool that need not be called only where its form is strict.
    pub(crate) fn constraint(&self, wanted: &Wanted) -> Result<Constraint, ApiError> {
        let Wanted::Calls { tools, takes_many, is_forced: false } = wanted else {
            return Ok(Constraint::whole(self.matcher(wanted)?));
        };
        let start = self.matcher(wanted).or_else(|_| self.matcher(&self.loosened(tools, *takes_many)))?;
        Ok(Constraint::calls(start, *takes_many))
    }

    /// Calls of the same tools, in which any object passes for arguments whose form cannot be followed. What a client lists may be
    /// odd: that is no reason to refuse a request that may never call it.
    fn loosened(&self, tools: &[(String, Form)], takes_many: bool) -> Wanted {
        let loosened = |(name, form): &(String, Form)| {
            let alone = Wanted::Json(form.clone());
            let form = match form.is_strict || self.matcher(&alone).is_ok() {
                true => form.clone(),
                false => Form { schema: json!({ "type": "object" }), is_strict: false },
            };
            (name.clone(), form)
        };
        Wanted::Calls { tools: tools.iter().map(loosened).collect(), takes_many, is_forced: false }
    }

    fn matcher(&self, wanted: &Wanted) -> Result<Matcher, ApiError> {
        schema::check(wanted.schemas())
            .map_err(|why| ApiError::new(Kind::Invalid, format!("the schema cannot be followed: {why}")))?;
        let source = wanted.source();
        if let Some(kept) = self.kept(&source) {
            return Ok(kept);
        }
        let failed = || ApiError::new(Kind::Server, "the schema could not be read; report it");
        // The compiler recurses along a schema's references, as deep as the limits allow.
        let matcher = std::thread::scope(|scope| {
            let compiling = std::thread::Builder::new()
                .name("grammar".to_owned())
                .stack_size(GRAMMAR_STACK_BYTES)
                .spawn_scoped(scope, || {
                    Matcher::new(self.factory.create_parser(TopLevelGrammar::from_lark(source.clone())))
                });
            compiling.map_err(|_| failed())?.join().map_err(|_| failed())
        })?;
        if let Some(error) = matcher.get_error() {
            let line = error.lines().next().unwrap_or_default();
            return Err(ApiError::new(Kind::Invalid, format!("the schema cannot be followed: {line}")));
        }
        self.keep(source, &matcher);
        Ok(matcher)
    }

    /// A grammar that was made lately. A copy shares nothing with it: the work that a reply may cause is limited for each.
    fn kept(&self, source: &str) -> Option<Matcher> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(of, _)| of == source)?;
        let found = kept.remove(at);
        let copy = found.1.deep_clone();
        kept.push(found);
        Some(copy)
    }

    fn keep(&self, source: String, matcher: &Matcher) {
        if source.len() > GRAMMAR_KEY_BYTES_MAX {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push((source, matcher.deep_clone()));
        if kept.len() > GRAMMARS_KEPT {
            kept.remove(0);
        }
    }
}

impl Wanted {
    fn schemas(&self) -> Vec<&Value> {
        match self {
            Self::Json(form) => vec![&form.schema],
            Self::Calls { tools, .. } => tools.iter().map(|(_, form)| &form.schema).collect(),
        }
    }

    /// The grammar, in llguidance's dialect of Lark. Of calls that are not forced it begins behind the opening tag.
    fn source(&self) -> String {
        let (tools, takes_many, is_forced) = match self {
            Self::Json(form) => return format!("start: %json {}\n", form.spaced()),
            Self::Calls { tools, takes_many, is_forced } => (tools, *takes_many, *is_forced),
        };
        let names: Vec<String> = (0..tools.len()).map(|index| format!("call_{index}")).collect();
        let more = if is_forced && takes_many { " (\"\\n\" call)*" } else { "" };
        let mut lark = format!("start: call{more}\ncall: {}\n", names.join(" | "));
        let open = if is_forced { OPEN } else { "" };
        for (rule, (name, form)) in names.iter().zip(tools) {
            let begin = format!("{open}\n{{\"name\": {}, \"arguments\": ", Value::from(name.as_str()));
            let (begin, end) = (Value::from(begin), Value::from(format!("}}\n{CLOSE}")));
            lark.push_str(&format!("{rule}: {begin} %json {} {end}\n", form.spaced()));
        }
        lark
    }
}

impl Form {
    /// The schema with the spaces that calls are written with, and no others: a model that may write any would write nothing else.
    fn spaced(&self) -> Value {
        let mut schema = match &self.schema {
            Value::Object(_) => self.schema.clone(),
            _ => json!({}),
        };
        schema["x-guidance"] = json!({
            "whitespace_flexible": false,
            "item_separator": ", ",
            "key_separator": ": ",
            "coerce_one_of": true,
            "lenient": !self.is_strict,
        });
        schema
    }
}

#[cfg(test)]
mod tests {
    use flint_rt::text::Specials;

    use super::*;
    use crate::stub::nano_tokenizer;

    fn lenient(schema: Value) -> Form {
        Form { schema, is_strict: false }
    }

    fn may(constraint: &mut Constraint, id: TokenId) -> bool {
        constraint.allowed().unwrap().is_none_or(|allowed| allowed(id))
    }

    /// Whether `text` is what was wanted: its tokens pass, and it may end there.
    fn fits(wanted: &Wanted, text: &str) -> bool {
        let tokenizer = nano_tokenizer();
        let end = tokenizer.special_id("<|user|>").unwrap();
        let mut constraint = Grammars::new(&tokenizer, end).unwrap().constraint(wanted).unwrap();
        for id in tokenizer.encode(text, Specials::Plain) {
            if !may(&mut constraint, id) {
                return false;
            }
            if constraint.take(id).unwrap() {
                break;
            }
        }
        may(&mut constraint, end)
    }

    #[test]
    fn json_follows_its_schema() {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" },
            "b": { "enum": ["x", "y"] } }, "required": ["a", "b"], "additionalProperties": false });
        let wanted = Wanted::Json(lenient(schema));
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
        let any = Wanted::Json(lenient(json!({ "type": "object" })));
        assert!(fits(&any, r#"{"k": [1, null, {"z": "é 🦀"}]}"#) && !fits(&any, "[1]"));
    }

    #[test]
    fn calls_are_of_the_tools() {
        let number =
            json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] });
        let tools =
            vec![("f".to_owned(), lenient(number)), ("g".to_owned(), lenient(json!({ "type": "object" })))];
        let call = |name, arguments| {
            format!("{OPEN}\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n{CLOSE}")
        };
        let many = Wanted::Calls { tools: tools.clone(), takes_many: true, is_forced: true };
        assert!(fits(&many, &call("f", r#"{"a": 1}"#)));
        assert!(fits(&many, &[call("f", r#"{"a": 1}"#), call("g", "{}")].join("\n")));
        assert!(!fits(&many, &call("h", "{}")) && !fits(&many, &call("f", "{}")) && !fits(&many, "text"));
        let one = Wanted::Calls { tools, takes_many: false, is_forced: true };
        assert!(fits(&one, &call("g", "{}")));
    }

    fn properties(count: usize) -> Value {
        let properties: serde_json::Map<String, Value> =
            (0..count).map(|index| (format!("field_{index}"), json!({ "type": "integer" }))).collect();
        json!({ "type": "object", "properties": properties })
    }

    #[test]
    fn a_thousand_properties_are_followed_and_more_refused() {
        assert!(fits(&Wanted::Json(lenient(properties(1000))), r#"{"field_1": 5, "field_998": 7}"#));
        assert!(!fits(&Wanted::Json(lenient(properties(1000))), r#"{"field_1": "5"}"#));
        let tokenizer = nano_tokenizer();
        let grammars = Grammars::new(&tokenizer, tokenizer.special_id("<|user|>").unwrap()).unwrap();
        let error = grammars.constraint(&Wanted::Json(lenient(properties(1001)))).unwrap_err();
        assert_eq!(error.kind, Kind::Invalid);
        assert!(error.message.contains("1001 properties"), "{}", error.message);
        // Several tools with such schemas are more than one row holds: refused, whenever that is seen.
        let tools = (0..4).map(|index| (format!("tool_{index}"), lenient(properties(1000)))).collect();
        let many = grammars.constraint(&Wanted::Calls { tools, takes_many: true, is_forced: true });
        assert!(many.map_or_else(|error| error.kind == Kind::Invalid, |_| true));
    }

    #[test]
    fn a_grammar_is_kept_for_the_next_turn_and_few_are() {
        let tokenizer = nano_tokenizer();
        let grammars = Grammars::new(&tokenizer, tokenizer.special_id("<|user|>").unwrap()).unwrap();
        let kept =
            || grammars.kept.lock().unwrap().iter().map(|(source, _)| source.clone()).collect::<Vec<_>>();
        let of = |count: usize| Wanted::Json(lenient(properties(count)));
        for count in [1, 2, 1] {
            grammars.constraint(&of(count)).unwrap();
        }
        assert_eq!(kept(), [of(2).source(), of(1).source()]);
        // What one reply did to its copy is not in the next one's.
        let open = tokenizer.encode("{", Specials::Plain)[0];
        for _ in 0..2 {
            let mut constraint = grammars.constraint(&of(1)).unwrap();
            assert!(may(&mut constraint, open));
            constraint.take(open).unwrap();
            assert!(!may(&mut constraint, open));
        }
        (3..30).for_each(|count| drop(grammars.constraint(&of(count)).unwrap()));
        assert_eq!(kept().len(), GRAMMARS_KEPT);
        assert_eq!(kept().last(), Some(&of(29).source()));
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
            Wanted::Json(lenient(json!({ "$ref": "#/$defs/d0", "$defs": definitions })))
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
            if let Ok(mut constraint) = grammars.constraint(&Wanted::Json(lenient(schema))) {
                let _ = constraint.allowed().map(|allowed| allowed.is_none_or(|allowed| allowed(5)));
            }
            assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{:?}", begin.elapsed());
        }
    }
}
