//! The chat template of a model's file, run by minijinja as Hugging Face's libraries run it.
//!
//! - In: messages as plain values. Out: text. The template is the model maker's, not the caller's, and yet has limits: no
//!   files, no includes, and so many instructions.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::limits::TEMPLATE_FUEL;
use crate::wire::error::{ApiError, Kind};

const NAME: &str = "chat template";

/// A template that compiles.
#[derive(Clone)]
pub(crate) struct Template {
    environment: Arc<Environment<'static>>,
    source: Arc<str>,
    /// Whether it has the tools as a text, by their older name.
    takes_functions: bool,
}

impl Template {
    /// # Errors
    /// What the engine says of a template that does not compile.
    pub(crate) fn new(source: &str) -> Result<Self, String> {
        // A tag of training tools, which marks what a loss is taken of; it does nothing here.
        let plain = source
            .replace("{% generation %}", "{% if true %}")
            .replace("{%- generation %}", "{%- if true %}")
            .replace("{% generation -%}", "{% if true -%}")
            .replace("{%- generation -%}", "{%- if true -%}")
            .replace("endgeneration", "endif");
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| error.to_string())?);
        environment.set_fuel(Some(TEMPLATE_FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
            date(&format).map_err(|error| Error::new(ErrorKind::InvalidOperation, error))
        });
        environment.add_template_owned(NAME, plain).map_err(|error| words(&error))?;
        let names =
            environment.get_template(NAME).map_err(|error| words(&error))?.undeclared_variables(false);
        let takes_functions = names.contains("functions");
        Ok(Self { environment: Arc::new(environment), source: source.into(), takes_functions })
    }

    /// As it was given.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Whether it has a place for tools.
    pub(crate) fn knows_tools(&self) -> bool {
        self.source.contains("tools") || self.takes_functions
    }

    /// Whether it has a place for the calls of a reply.
    pub(crate) fn knows_calls(&self) -> bool {
        self.source.contains("tool_calls")
    }

    /// Whether it knows a switch for thoughts.
    pub(crate) fn has_thinking_switch(&self) -> bool {
        self.source.contains("enable_thinking")
    }

    /// The text for `context`.
    ///
    /// # Errors
    /// When it refuses the conversation or takes too long.
    pub(crate) fn render(&self, context: &serde_json::Value) -> Result<String, ApiError> {
        let template =
            self.environment.get_template(NAME).expect("invariant: it was added when this was made");
        let mut context = context.clone();
        // Templates from before there was `strftime_now` are told the date.
        for (name, format) in [("date_string", "%d %b %Y"), ("datetime", "%b %d %Y")] {
            if self.source.contains(name) && context.get(name).is_none() {
                context[name] = date(format).map_err(|error| ApiError::new(Kind::Server, error))?.into();
            }
        }
        if self.takes_functions && context.get("functions").is_none() {
            let tools = context.get("tools").map(|tools| format!("{tools:#}"));
            context["functions"] = tools.unwrap_or_default().into();
        }
        template.render(Value::from(Serde(&context))).map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => {
                ApiError::new(Kind::Invalid, "the conversation is too long for the model's chat template")
            }
            _ => ApiError::new(
                Kind::Invalid,
                format!("the model's chat template refuses the conversation: {}", words(&error)),
            ),
        })
    }
}

/// Now, in universal time.
fn date(format: &str) -> Result<String, String> {
    let now = jiff::Timestamp::now().to_zoned_datetime(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now).map_err(|error| error.to_string())
}

fn words(error: &Error) -> String {
    let line = error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default();
    format!("{}{line}", error.detail().map_or_else(|| error.kind().to_string(), str::to_owned))
}

/// JSON as Python writes it: a space behind commas and colons, characters as they are.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

/// The filter `tojson`; minijinja's own escapes for HTML.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Nothing is escaped, and keys keep their order, whatever is asked for.
    let _: (Option<bool>, Option<bool>) = (options.get("ensure_ascii")?, options.get("sort_keys")?);
    let mut text = Vec::new();
    let written = match indent {
        None => Serde(value).serialize(&mut Serializer::with_formatter(&mut text, Spaced)),
        Some(indent) => {
            let indent = " ".repeat(indent.min(16));
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            Serde(value).serialize(&mut Serializer::with_formatter(&mut text, formatter))
        }
    };
    let text = written
        .map_err(|error| error.to_string())
        .and_then(|()| String::from_utf8(text).map_err(|error| error.to_string()));
    text.map_err(|error| Error::new(ErrorKind::InvalidOperation, error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, context: &serde_json::Value) -> Result<String, String> {
        Template::new(source)?.render(context).map_err(|error| error.message)
    }

    #[test]
    fn it_is_as_pythons() {
        let context = json!({ "m": [{ "a": "<é>", "b": 1 }], "s": " x " });
        assert_eq!(render("{{ m | tojson }}", &context).unwrap(), r#"[{"a": "<é>", "b": 1}]"#);
        assert_eq!(
            render("{{ m[0] | tojson(indent=2) }}", &context).unwrap(),
            "{\n  \"a\": \"<é>\",\n  \"b\": 1\n}"
        );
        assert_eq!(render("{{ s.strip() }}{{ m[0].get('z', 'd') }}", &context).unwrap(), "xd");
        let blocks = "  {% for x in m %}\n{{ x.b }}\n  {% endfor %}\n";
        assert_eq!(render(blocks, &context).unwrap(), "1\n");
        assert_eq!(render("{% generation %}a{% endgeneration %}", &context).unwrap(), "a");
        assert_eq!(render("{{ strftime_now('%Y') | length }}", &context).unwrap(), "4");
        let dates = "{{ date_string | length }} {{ datetime[-4:] == strftime_now('%Y') }}";
        assert_eq!(render(dates, &context).unwrap(), "11 True");
        assert_eq!(render("{{ date_string }}", &json!({ "date_string": "x" })).unwrap(), "x");
        assert_eq!(
            render("{% for x in [1,2] %}{% break %}{% endfor %}{{ z is defined }}", &context).unwrap(),
            "False"
        );
    }

    #[test]
    fn tools_have_an_older_name_too() {
        let old = "{{ 'Call: ' + functions }}";
        assert_eq!(render(old, &json!({})).unwrap(), "Call: ");
        assert_eq!(render(old, &json!({ "tools": ["f"] })).unwrap(), "Call: [\n  \"f\"\n]");
        assert!(Template::new(old).unwrap().knows_tools());
        assert!(!Template::new("You may call functions. {{ messages }}").unwrap().knows_tools());
    }

    #[test]
    fn a_hostile_or_broken_one_ends() {
        let nested = "{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}";
        let error = render(nested, &json!({})).unwrap_err();
        assert!(error.contains("too long for the model's chat template"), "{error}");
        let error = render("{{ raise_exception('System message must be first') }}", &json!({})).unwrap_err();
        assert!(error.contains("System message must be first"), "{error}");
        assert!(Template::new("{% for %}").is_err());
        assert!(render("{% include '/etc/passwd' %}", &json!({})).is_err());
    }
}
