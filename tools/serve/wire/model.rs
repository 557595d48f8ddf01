//! The model as the interfaces see it: its facts, names, form and defaults. Pure.

use flint_rt::base::ids::TokenId;
use flint_rt::text::chat::Thinking;
use serde_json::Value;

use super::error::{ApiError, Kind};
use super::fields::Fields;
use super::messages::ChatMessage;
use super::params::{Defaults, Params};
use crate::chat::form::{Asked, ChatForm, Rendered};
use crate::engine::backend::Facts;
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
        })
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
    if calls_none(fields) {
        return Ok(Vec::new());
    }
    let list = fields.list("tools")?.unwrap_or_default();
    if list.len() > TOOLS_MAX {
        let count = list.len();
        return Err(
            fields.refuse("tools", format_args!("has {count} entries, at most {TOOLS_MAX} are taken"))
        );
    }
    // Web searches and the like are the provider's own; agents send them to everybody.
    Ok(list.iter().filter(|tool| tool["type"] == "function").cloned().collect())
}

/// Whether no tool is to be called.
pub(crate) fn calls_none(fields: &Fields<'_>) -> bool {
    fields.get("tool_choice").is_some_and(|choice| choice == "none" || choice["type"] == "none")
}

/// Refuses what would have to be forced on the model and cannot be yet.
pub(crate) fn check_unforced(fields: &Fields<'_>) -> Result<(), ApiError> {
    let unsupported = |name: &str, what: &str| {
        Err(ApiError {
            param: Some(name.to_owned()),
            ..ApiError::new(Kind::NotSupported, format!("{name}: {what} is not supported by this server"))
        })
    };
    match fields.get("tool_choice") {
        None => {}
        Some(Value::String(choice)) if choice == "auto" || choice == "none" => {}
        Some(Value::Object(choice))
            if choice.get("type").is_some_and(|kind| kind == "auto" || kind == "none") => {}
        Some(_) => return unsupported("tool_choice", "a call that is forced"),
    }
    match fields.get("response_format") {
        None => {}
        Some(format) if format["type"] == "text" => {}
        Some(_) => return unsupported("response_format", "a reply in a given format"),
    }
    for name in ["grammar", "json_schema"] {
        if fields.get(name).is_some() {
            return unsupported(name, "a reply in a given format");
        }
    }
    Ok(())
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
            facts,
            name: "nano".to_owned(),
            is_strict: false,
            defaults: params::tests::defaults(),
            reasoning: Reasoning::Content,
        }
    }

    #[test]
    fn a_reply_ends_where_the_context_does() {
        let model = model();
        let map = parse(b"{}").unwrap();
        let params = params::read(&Fields::new(&map), &model.defaults, model.facts.vocabulary).unwrap();
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
    fn what_cannot_be_forced_is_refused() {
        let check = |body: &str| check_unforced(&Fields::new(&parse(body.as_bytes()).unwrap()));
        for body in [
            r#"{"tool_choice":"auto"}"#,
            r#"{"tool_choice":{"type":"auto"}}"#,
            r#"{"response_format":{"type":"text"}}"#,
        ] {
            assert_eq!(check(body), Ok(()));
        }
        for body in [
            r#"{"tool_choice":"required"}"#,
            r#"{"response_format":{"type":"json_object"}}"#,
            r#"{"grammar":"x"}"#,
        ] {
            assert_eq!(check(body).unwrap_err().kind, Kind::NotSupported);
        }
    }
}
