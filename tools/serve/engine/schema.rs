//! What a schema may ask for, checked before a grammar is made of it. Pure.
//!
//! A compiler's time grows faster than the schema with some of its parts, and its stack with others; a request's body may have 64 MiB
//! of them.

use serde_json::Value;

use crate::limits::{SCHEMA_PATTERNS_MAX, SCHEMA_PROPERTIES_MAX, SCHEMA_REFERENCES_MAX, SCHEMA_VALUES_MAX};

#[derive(Default)]
struct Counts {
    values: usize,
    references: usize,
    patterns: usize,
}

/// Checks the schemas of one request, together.
///
/// # Errors
/// What there is too much of.
pub(crate) fn check<'v>(schemas: impl IntoIterator<Item = &'v Value>) -> Result<(), String> {
    let mut counts = Counts::default();
    schemas.into_iter().try_for_each(|schema| counts.add(schema))
}

fn within(count: usize, limit: usize, what: &str) -> Result<(), String> {
    match count > limit {
        true => Err(format!("it has {count} {what}, at most {limit} are taken")),
        false => Ok(()),
    }
}

impl Counts {
    /// Recurses as deep as a request's JSON may be nested.
    fn add(&mut self, value: &Value) -> Result<(), String> {
        self.values += 1;
        within(self.values, SCHEMA_VALUES_MAX, "values")?;
        match value {
            Value::Object(map) => {
                for (name, inner) in map {
                    match (name.as_str(), inner) {
                        ("properties" | "dependentSchemas", Value::Object(properties)) => {
                            within(properties.len(), SCHEMA_PROPERTIES_MAX, "properties in one object")?;
                        }
                        ("required", Value::Array(names)) => {
                            within(names.len(), SCHEMA_PROPERTIES_MAX, "required properties in one object")?;
                        }
                        ("patternProperties", Value::Object(patterns)) => {
                            self.patterns += patterns.len();
                            within(self.patterns, SCHEMA_PATTERNS_MAX, "patternProperties")?;
                        }
                        ("$ref" | "$dynamicRef", Value::String(_)) => {
                            self.references += 1;
                            within(self.references, SCHEMA_REFERENCES_MAX, "$ref")?;
                        }
                        _ => {}
                    }
                    self.add(inner)?;
                }
                Ok(())
            }
            Value::Array(list) => list.iter().try_for_each(|inner| self.add(inner)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(count: usize) -> Value {
        (0..count).map(|index| (format!("p{index}"), json!({}))).collect::<serde_json::Map<_, _>>().into()
    }

    #[test]
    fn each_limit_is_named() {
        let names = |count| (0..count).map(|index| json!(format!("p{index}"))).collect::<Value>();
        let references = |count| (0..count).map(|_| json!({ "$ref": "#" })).collect::<Value>();
        type Made<'m> = (usize, &'m dyn Fn(usize) -> Value, &'m str);
        let cases: [Made<'_>; 5] = [
            (
                SCHEMA_PROPERTIES_MAX,
                &|count| json!({ "items": { "properties": named(count) } }),
                "properties",
            ),
            (SCHEMA_PROPERTIES_MAX, &|count| json!({ "required": names(count) }), "required"),
            (SCHEMA_PATTERNS_MAX, &|count| json!({ "patternProperties": named(count) }), "patternProperties"),
            (SCHEMA_REFERENCES_MAX, &|count| json!({ "anyOf": references(count) }), "$ref"),
            (SCHEMA_VALUES_MAX - 2, &|count| json!({ "enum": vec![1; count] }), "values"),
        ];
        for (limit, made, word) in cases {
            assert_eq!(check([&made(limit)]), Ok(()), "{word}");
            let error = check([&made(limit + 1)]).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        // Several schemas share what is limited for the request.
        let half = json!({ "anyOf": references(SCHEMA_REFERENCES_MAX / 2 + 1) });
        assert!(check([&half, &half]).is_err());
    }
}
