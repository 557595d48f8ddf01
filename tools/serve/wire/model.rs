//! The model as the interfaces see it: its facts, names, form and defaults. Pure.

use flint_rt::base::ids::TokenId;
use flint_rt::text::chat::Thinking;
use serde_json::{Value, json};

use super::error::{ApiError, Kind};
use super::fields::Fields;
use super::messages::{ChatMessage, object};
use super::params::{Defaults, Params};
use crate::chat::form::{Asked, ChatForm, Rendered};
use crate::engine::backend::Facts;
use crate::engine::grammar::{Form, Grammars, Wanted};
use crate::engine::job::Generation;
use crate::engine::reply::Shape;
use crate::limits::TOOLS_MAX;

/// What becomes of a reply's thought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reasoning {
    /// It has a field of its own, `reasoning_content`.
    #[default]
    Content,
    /// The same, called `reasoning`.
    Short,
    /// It stays in the content, between its tags.
    Inline,
}

/// A loaded model.
pub(crate) struct Model {
    pub(crate) facts: Facts,
    /// What it is called in answers.
    pub(crate) name: String,
    /// Whether requests must call it so.
    pub(crate) is_strict: bool,
    pub(crate) form: ChatForm,
    pub(crate) defaults: Defaults,
    pub(crate) reasoning: Reasoning,
    pub(crate) grammars: Grammars,
}

/// How a thought is to be handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thought {
    pub(crate) thinking: Thinking,
    /// Tokens after which it is closed.
    pub(crate) tokens_max: Option<u32>,
}

impl Model {
    /// Refuses a name that is not the model's, where that is asked for.
    pub(crate) fn check_name(&self, fields: &Fields<'_>) -> Result<(), ApiError> {
        match fields.text("model")? {
            Some(name) if self.is_strict && name != self.name => Err(ApiError {
                param: Some("model".to_owned()),
                ..ApiError::new(
                    Kind::NotFound,
                    format!("there is no model {name:?}, this server has {:?}", self.name),
                )
            }),
            _ => Ok(()),
        }
    }

    /// What OpenAI's and llama-server's fields say of thoughts.
    pub(crate) fn thought(&self, fields: &Fields<'_>) -> Result<Thought, ApiError> {
        let mut thought = Thought { thinking: self.defaults.thinking, tokens_max: None };
        // Others name an effort that this model knows nothing of.
        if fields.text("reasoning_effort")? == Some("none") {
            thought.thinking = Thinking::Off;
        }
        if let Some(extra) = fields.object("chat_template_kwargs")? {
            let extra = Fields::within(extra, "chat_template_kwargs.");
            match extra.flag("enable_thinking")? {
                Some(true) => thought.thinking = Thinking::On,
                Some(false) => thought.thinking = Thinking::Off,
                None => {}
            }
        }
        for name in ["thinking_budget_tokens", "thinking_token_budget"] {
            match fields.whole(name)? {
                None => {}
                Some(0) => thought.thinking = Thinking::Off,
                Some(-1) => thought.tokens_max = None,
                Some(_) => thought.tokens_max = fields.count(name, 0)?,
            }
        }
        Ok(thought)
    }

    /// The prompt of a conversation.
    pub(crate) fn render(
        &self,
        messages: &[ChatMessage],
        tools: &[Value],
        thinking: Thinking,
        opens_reply: bool,
        extra: Option<&serde_json::Map<String, Value>>,
    ) -> Result<Rendered, ApiError> {
        self.form.render(&Asked { messages, tools, thinking, opens_reply, extra })
    }

    /// A reply to `ids`, if they fit.
    pub(crate) fn generation(
        &self,
        ids: Vec<TokenId>,
        shape: Shape,
        params: &Params,
        thought_max: Option<u32>,
    ) -> Result<Generation, ApiError> {
        let (count, context_len) = (ids.len() as u64, self.facts.context_len);
        if ids.is_empty() {
            return Err(ApiError::new(Kind::Invalid, "the prompt has no token: send some text"));
        }
        if count > u64::from(context_len) {
            return Err(ApiError::context_exceeded(count, context_len, self.facts.context_max));
        }
        let fits = context_len - u32::try_from(count).expect("invariant: checked against a u32") + 1;
        Ok(Generation {
            ids,
            shape,
            sampling: params.sampling.clone(),
            tokens_max: params.tokens_max.unwrap_or(fits).min(fits),
            tokens_min: params.tokens_min,
            ignores_stops: params.ignores_stops,
            stops: params.stops.clone(),
            top_logprobs: params.top_logprobs,
            thought_max,
            reuses_prefix: params.reuses_prefix,
            constraint: None,
        })
    }

    /// The same, in the form that it has to take.
    pub(crate) fn constrained(
        &self,
        generation: Generation,
        wanted: Option<&Wanted>,
    ) -> Result<Generation, ApiError> {
        let constraint = wanted.map(|wanted| self.grammars.constraint(wanted)).transpose()?;
        Ok(Generation { constraint, ..generation })
    }

    /// The shape of a chat reply whose prompt may have opened a thought.
    pub(crate) fn chat_shape(&self, is_thinking: bool) -> Shape {
        match self.reasoning {
            Reasoning::Inline => Shape::Text,
            Reasoning::Content | Reasoning::Short => Shape::Chat { is_thinking },
        }
    }

    /// The name of the field for thoughts.
    pub(crate) fn reasoning_field(&self) -> &'static str {
        match self.reasoning {
            Reasoning::Short => "reasoning",
            Reasoning::Content | Reasoning::Inline => "reasoning_content",
        }
    }
}

/// The tools of a request, as far as this server knows their kind.
pub(crate) fn tools(fields: &Fields<'_>) -> Result<Vec<Value>, ApiError> {
    // Web searches and the like are the provider's own; agents send them to everybody.
    Ok(listed_tools(fields)?.iter().filter(|tool| tool["type"] == "function").cloned().collect())
}

/// The tools of a request as they were sent, of any kind; none where none may be called.
pub(crate) fn listed_tools<'f>(fields: &Fields<'f>) -> Result<&'f [Value], ApiError> {
    if calls_none(fields) {
        return Ok(&[]);
    }
    let list = fields.list("tools")?.unwrap_or_default();
    if list.len() > TOOLS_MAX {
        let count = list.len();
        return Err(
            fields.refuse("tools", format_args!("has {count} entries, at most {TOOLS_MAX} are taken"))
        );
    }
    list.iter().enumerate().try_for_each(|(index, tool)| check_tool(index, tool))?;
    Ok(list)
}

/// Refuses a tool whose known fields are of the wrong kind, in any interface's form.
fn check_tool(index: usize, tool: &Value) -> Result<(), ApiError> {
    let place = format!("tools[{index}].");
    let fields = Fields::within(object(tool, place.trim_end_matches('.'))?, &place);
    let kind = fields.text("type")?;
    let check = |fields: &Fields<'_>, schema: &str| -> Result<(), ApiError> {
        match fields.text("name")? {
            None | Some("") => return Err(fields.refuse("name", "is missing")),
            Some(_) => {}
        }
        fields.text("description")?;
        fields.flag("strict")?;
        fields.object(schema).map(|_| ())
    };
    if fields.get("input_schema").is_some() {
        return check(&fields, "input_schema");
    }
    match (kind, fields.object("function")?) {
        (Some("function"), Some(function)) => {
            let place = format!("{place}function.");
            check(&Fields::within(function, &place), "parameters")
        }
        (Some("function"), None) => check(&fields, "parameters"),
        // The provider's own, whose fields are none of ours.
        (Some(_), _) => Ok(()),
        (None, _) => Err(fields.refuse("type", "is missing")),
    }
}

/// A tool of another interface, which has its form at `schema`, as OpenAI's chat interface has it: templates know that.
pub(crate) fn function(tool: &Value, schema: &str) -> Value {
    let mut function = json!({
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool[schema],
    });
    if tool["strict"] == true {
        function["strict"] = true.into();
    }
    json!({ "type": "function", "function": function })
}

/// Whether a reply may call more than once, by OpenAI's and Anthropic's fields.
pub(crate) fn takes_many_calls(fields: &Fields<'_>) -> Result<bool, ApiError> {
    let is_one = match fields.get("tool_choice") {
        Some(Value::Object(choice)) => {
            Fields::within(choice, "tool_choice.").flag("disable_parallel_tool_use")?.unwrap_or(false)
        }
        _ => false,
    };
    Ok(!is_one && fields.flag("parallel_tool_calls")?.unwrap_or(true))
}

/// Whether no tool is to be called.
pub(crate) fn calls_none(fields: &Fields<'_>) -> bool {
    fields.get("tool_choice").is_some_and(|choice| choice == "none" || choice["type"] == "none")
}

/// The form that a reply has to take, by OpenAI's and llama-server's fields; `tools` as [`tools`] gives them.
pub(crate) fn wanted(fields: &Fields<'_>, tools: &[Value]) -> Result<Option<Wanted>, ApiError> {
    if fields.get("grammar").is_some() {
        let message = "grammar is not supported by this server: send a json_schema";
        return Err(ApiError {
            param: Some("grammar".to_owned()),
            ..ApiError::new(Kind::NotSupported, message)
        });
    }
    let calls = calls_wanted(fields, tools)?;
    let format = match (fields.object("json_schema")?, fields.object("response_format")?) {
        (Some(schema), _) => Some(Wanted::Json(Form { schema: schema.clone().into(), is_strict: false })),
        (None, Some(format)) => format_wanted(&Fields::within(format, "response_format."))?,
        (None, None) => None,
    };
    Ok(either(calls, format))
}

/// Of calls and a format the one that counts: calls that are forced, else the format.
pub(crate) fn either(calls: Option<Wanted>, format: Option<Wanted>) -> Option<Wanted> {
    match &calls {
        Some(Wanted::Calls { is_forced: true, .. }) => calls,
        _ => format.or(calls),
    }
}

/// The form that a `response_format`, or a text's `format`, asks for.
pub(crate) fn format_wanted(format: &Fields<'_>) -> Result<Option<Wanted>, ApiError> {
    match format.text("type")? {
        Some("text") | None => Ok(None),
        Some("json_object") => {
            let schema = format
                .object("schema")?
                .map_or_else(|| json!({ "type": "object" }), |schema| schema.clone().into());
            Ok(Some(Wanted::Json(Form { schema, is_strict: false })))
        }
        Some("json_schema") => {
            // Chat nests it once more than responses do.
            let inner = format.object("json_schema")?;
            let inner = inner.map(|inner| Fields::within(inner, "response_format.json_schema."));
            let inner = inner.as_ref().unwrap_or(format);
            let is_strict = inner.flag("strict")?.unwrap_or(false);
            match inner.get("schema") {
                Some(schema @ Value::Object(_)) => {
                    Ok(Some(Wanted::Json(Form { schema: schema.clone(), is_strict })))
                }
                _ => Err(format.refuse("json_schema", "has no schema that is an object")),
            }
        }
        Some(other) => {
            Err(format.refuse("type", format_args!("is {other:?}, wanted text, json_object or json_schema")))
        }
    }
}

/// The calls that `tools` and a `tool_choice` allow or force, in any interface's words.
fn calls_wanted(fields: &Fields<'_>, tools: &[Value]) -> Result<Option<Wanted>, ApiError> {
    let name = "tool_choice";
    let (only, takes_many, is_forced) = match fields.get(name) {
        None => (None, true, false),
        Some(Value::String(choice)) => match choice.as_str() {
            "none" => return Ok(None),
            "auto" => (None, true, false),
            "required" | "any" => (None, true, true),
            other => {
                return Err(
                    fields.refuse(name, format_args!("is {other:?}, wanted none, auto, required or a tool"))
                );
            }
        },
        Some(Value::Object(choice)) => match choice.get("type").and_then(Value::as_str) {
            Some("none") => return Ok(None),
            Some("auto") => (None, true, false),
            Some("any" | "required") => (None, true, true),
            _ => {
                let tool =
                    choice.get("function").and_then(|function| function.get("name")).or(choice.get("name"));
                (
                    Some(tool.and_then(Value::as_str).ok_or_else(|| fields.refuse(name, "names no tool"))?),
                    false,
                    true,
                )
            }
        },
        Some(_) => return Err(fields.refuse(name, "wanted none, auto, required or a tool")),
    };
    let takes_many = takes_many && takes_many_calls(fields)?;
    let pick = |tool: &Value| {
        let function = &tool["function"];
        let found = function["name"].as_str().filter(|found| only.is_none_or(|only| only == *found))?;
        let is_strict = function["strict"] == true;
        Some((found.to_owned(), Form { schema: function["parameters"].clone(), is_strict }))
    };
    let tools: Vec<(String, Form)> = tools.iter().filter_map(pick).collect();
    match (tools.is_empty(), only) {
        (false, _) => Ok(Some(Wanted::Calls { tools, takes_many, is_forced })),
        (true, None) if !is_forced => Ok(None),
        (true, Some(only)) => {
            Err(fields.refuse(name, format_args!("names {only:?}, which is none of the tools")))
        }
        (true, None) => Err(fields.refuse(name, "asks for a call, but there are no tools")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::chat::form::FormChoice;
    use crate::engine::backend::Backend;
    use crate::stub::{Script, Stub};
    use crate::wire::fields::parse;
    use crate::wire::params;

    /// The stand-in's.
    pub(crate) fn model() -> Model {
        let facts = Stub::new(Script { context_len: 256, ..Script::default() }).facts();
        Model {
            form: ChatForm::new(&facts.tokenizer, None, &FormChoice::File).unwrap(),
            name: "nano".to_owned(),
            is_strict: false,
            defaults: params::tests::defaults(),
            grammars: Grammars::new(&facts.tokenizer, facts.stops.entries()[0].0).unwrap(),
            reasoning: Reasoning::Content,
            facts,
        }
    }

    #[test]
    fn a_reply_ends_where_the_context_does() {
        let model = model();
        let map = parse(b"{}").unwrap();
        let params = params::read(&Fields::new(&map), &model.defaults, &model.facts).unwrap();
        let made = |count, max| {
            let params = Params { tokens_max: max, ..params.clone() };
            model.generation(vec![7; count], Shape::Text, &params, None)
        };
        assert_eq!(made(252, None).unwrap().tokens_max, 5);
        assert_eq!(made(252, Some(3)).unwrap().tokens_max, 3);
        assert_eq!(made(252, Some(u32::MAX)).unwrap().tokens_max, 5);
        // The last token's successor needs no room.
        assert_eq!(made(256, None).unwrap().tokens_max, 1);
        assert_eq!(made(257, None).unwrap_err().tokens, Some((257, 256)));
        assert!(made(0, None).unwrap_err().message.contains("no token"));
    }

    #[test]
    fn thoughts_are_switched_in_every_spelling() {
        let model = model();
        let thought = |body: &str| model.thought(&Fields::new(&parse(body.as_bytes()).unwrap())).unwrap();
        assert_eq!(thought("{}"), Thought { thinking: Thinking::Auto, tokens_max: None });
        assert_eq!(thought(r#"{"reasoning_effort":"none"}"#).thinking, Thinking::Off);
        assert_eq!(thought(r#"{"reasoning_effort":"high"}"#).thinking, Thinking::Auto);
        assert_eq!(thought(r#"{"chat_template_kwargs":{"enable_thinking":true}}"#).thinking, Thinking::On);
        assert_eq!(thought(r#"{"thinking_budget_tokens":0}"#).thinking, Thinking::Off);
        assert_eq!(thought(r#"{"thinking_token_budget":9}"#).tokens_max, Some(9));
        assert_eq!(thought(r#"{"thinking_budget_tokens":-1}"#).tokens_max, None);
    }

    #[test]
    fn tools_of_the_wrong_kind_are_named() {
        let listed = |tools: Value| {
            let map = json!({ "tools": tools });
            listed_tools(&Fields::new(map.as_object().unwrap())).map(<[Value]>::len)
        };
        for (tools, param) in [
            (json!([null]), "tools[0]"),
            (json!([{ "type": "web_search" }, 5]), "tools[1]"),
            (json!([{}]), "tools[0].type"),
            (json!([{ "type": 5 }]), "tools[0].type"),
            (json!([{ "type": "function" }]), "tools[0].name"),
            (json!([{ "type": "function", "name": "" }]), "tools[0].name"),
            (json!([{ "type": "function", "function": "f" }]), "tools[0].function"),
            (json!([{ "type": "function", "function": {} }]), "tools[0].function.name"),
            (json!([{ "type": "function", "function": { "name": 5 } }]), "tools[0].function.name"),
            (
                json!([{ "type": "function", "function": { "name": "f", "description": 5 } }]),
                "tools[0].function.description",
            ),
            (
                json!([{ "type": "function", "function": { "name": "f", "parameters": "x" } }]),
                "tools[0].function.parameters",
            ),
            (
                json!([{ "type": "function", "function": { "name": "f", "strict": 1 } }]),
                "tools[0].function.strict",
            ),
            (json!([{ "name": 5, "input_schema": {} }]), "tools[0].name"),
            (json!([{ "name": "f", "input_schema": [] }]), "tools[0].input_schema"),
        ] {
            let error = listed(tools.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{tools}: {}", error.message);
        }
        let good = json!([{ "type": "function", "function": { "name": "f", "parameters": null } },
            { "type": "namespace", "name": 5 }, { "name": "f", "input_schema": {} }, { "type": "function", "name": "f" }]);
        assert_eq!(listed(good), Ok(4));
    }

    #[test]
    fn forms_are_wanted_in_every_spelling() {
        let tools = [json!({ "function": { "name": "f", "parameters": { "type": "object" } } })];
        let wanted = |body: &str| wanted(&Fields::new(&parse(body.as_bytes()).unwrap()), &tools);
        assert_eq!(wanted(r#"{"tool_choice":{"type":"none"}}"#), Ok(None));
        assert_eq!(super::wanted(&Fields::new(&parse(b"{}").unwrap()), &[]), Ok(None));
        let schema = json!({ "type": "object" });
        let json = |is_strict| Form { schema: schema.clone(), is_strict };
        let strict = r#"{"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object"},"strict":true}}}"#;
        assert_eq!(wanted(strict), Ok(Some(Wanted::Json(json(true)))));
        for body in [
            r#"{"response_format":{"type":"json_object"}}"#,
            r#"{"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object"}}}}"#,
            r#"{"response_format":{"type":"json_schema","schema":{"type":"object"}}}"#,
            r#"{"json_schema":{"type":"object"}}"#,
        ] {
            assert_eq!(wanted(body), Ok(Some(Wanted::Json(json(false)))), "{body}");
        }
        let calls = |takes_many, is_forced| {
            let form = Form { schema: schema.clone(), is_strict: false };
            Wanted::Calls { tools: vec![("f".to_owned(), form)], takes_many, is_forced }
        };
        for (body, takes_many, is_forced) in [
            ("{}", true, false),
            (r#"{"tool_choice":"auto"}"#, true, false),
            (r#"{"tool_choice":{"type":"auto"},"parallel_tool_calls":false}"#, false, false),
            (r#"{"tool_choice":{"type":"auto","disable_parallel_tool_use":true}}"#, false, false),
            (r#"{"response_format":{"type":"text"}}"#, true, false),
            (r#"{"tool_choice":"required"}"#, true, true),
            (r#"{"tool_choice":"required","parallel_tool_calls":false}"#, false, true),
            (r#"{"tool_choice":{"type":"any"}}"#, true, true),
            (r#"{"tool_choice":{"type":"any","disable_parallel_tool_use":true}}"#, false, true),
            (r#"{"tool_choice":{"type":"function","function":{"name":"f"}}}"#, false, true),
            (r#"{"tool_choice":{"type":"function","name":"f"}}"#, false, true),
            (r#"{"tool_choice":{"type":"tool","name":"f"}}"#, false, true),
        ] {
            assert_eq!(wanted(body), Ok(Some(calls(takes_many, is_forced))), "{body}");
        }
        for (body, words) in [
            (r#"{"tool_choice":"maybe"}"#, "tool_choice is \"maybe\""),
            (r#"{"tool_choice":{"type":"tool","name":"g"}}"#, "tool_choice names \"g\""),
            (r#"{"response_format":{"type":"xml"}}"#, "response_format.type is \"xml\""),
            (r#"{"response_format":{"type":"json_schema"}}"#, "no schema"),
            (r#"{"grammar":"x"}"#, "grammar is not supported"),
        ] {
            let error = wanted(body).unwrap_err();
            assert!(error.message.contains(words), "{}", error.message);
        }
    }
}
