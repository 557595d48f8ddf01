//! The fields of a request's JSON object, read one by one. Pure.
//!
//! A field that is `null` counts as one that is not there, because several clients send it so; a field of the wrong kind is
//! refused by its name; one that nobody asks for is left alone.

use serde_json::{Map, Value};

use super::error::{ApiError, Kind};
use crate::limits::JSON_DEPTH_MAX;

/// An object, and where it stands in the request.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Such as `messages[3].`; empty for the request itself.
    place: &'a str,
}

/// What a request's body says.
///
/// # Errors
/// When it is no JSON, no object, or nested too deeply.
pub(crate) fn parse(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let invalid = |message: String| Err(ApiError::new(Kind::Invalid, message));
    if depth(body) > JSON_DEPTH_MAX {
        return invalid(format!("the body has more than {JSON_DEPTH_MAX} levels of lists and objects"));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => invalid(format!("the body is {}, wanted a JSON object", kind(&other))),
        Err(error) => invalid(format!("the body is no JSON: {error}")),
    }
}

/// How deeply lists and objects are nested, found before anything is built of them.
fn depth(body: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = body.iter();
    let mut is_in_text = false;
    while let Some(byte) = bytes.next() {
        match (is_in_text, byte) {
            (true, b'\\') => {
                bytes.next();
            }
            (_, b'"') => is_in_text = !is_in_text,
            (false, b'[' | b'{') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// What a value is, in words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl<'a> Fields<'a> {
    /// Those of the request itself.
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, place: "" }
    }

    /// Those of an object within it.
    pub(crate) fn within(map: &'a Map<String, Value>, place: &'a str) -> Self {
        Self { map, place }
    }

    /// A field's name with where it stands.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// A field, if it is there and not null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The refusal of a field.
    pub(crate) fn refuse(&self, name: &str, message: impl std::fmt::Display) -> ApiError {
        ApiError::field(self.name(name), message)
    }

    fn other(&self, name: &str, value: &Value, wanted: &str) -> ApiError {
        match value {
            Value::Number(number) => self.refuse(name, format_args!("is {number}, wanted {wanted}")),
            other => self.refuse(name, format_args!("is {}, wanted {wanted}", kind(other))),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(self.other(name, value, "text")),
        }
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(value) => Err(self.other(name, value, "true or false")),
        }
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(value) => Err(self.other(name, value, "a list")),
        }
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(value) => Err(self.other(name, value, "an object")),
        }
    }

    /// A number that a float holds; its range is the sampler's to check.
    pub(crate) fn float(&self, name: &str) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            #[expect(clippy::cast_possible_truncation, reason = "a sampling option needs no more digits")]
            Some(number) if (number as f32).is_finite() => Ok(Some(number as f32)),
            _ => Err(self.other(name, value, "a number")),
        }
    }

    pub(crate) fn whole(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_i64() {
            Some(number) => Ok(Some(number)),
            // Some clients write whole numbers as 64.0.
            #[expect(clippy::cast_possible_truncation, reason = "whole, and within 2^53")]
            None => match value.as_f64() {
                Some(number) if number.fract() == 0.0 && number.abs() < 9e15 => Ok(Some(number as i64)),
                _ => Err(self.other(name, value, "a whole number")),
            },
        }
    }

    /// A count from `least` on; what is beyond a u32 is as much as there can be.
    pub(crate) fn count(&self, name: &str, least: u32) -> Result<Option<u32>, ApiError> {
        match self.whole(name)? {
            None => Ok(None),
            Some(number) if number >= i64::from(least) => Ok(Some(u32::try_from(number).unwrap_or(u32::MAX))),
            Some(number) => {
                Err(self.refuse(name, format_args!("is {number}, wanted a whole number from {least} on")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_found_without_a_stack() {
        assert_eq!(depth(br#"{"a":[1,{"b":"[[[{{{\"["}]}"#), 3);
        let deep = |levels: usize| [vec![b'['; levels], vec![b']'; levels]].concat();
        for levels in [JSON_DEPTH_MAX, 3_000, 100_000] {
            let body = [br#"{"unknown":"#, deep(levels).as_slice(), b"}"].concat();
            let error = parse(&body).unwrap_err();
            assert!(error.message.contains("64 levels"), "{}", error.message);
        }
        parse(&[br#"{"unknown":"#, deep(JSON_DEPTH_MAX - 1).as_slice(), b"}"].concat()).unwrap();
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for (body, wanted) in [
            (&b""[..], "no JSON"),
            (b"{\"a\":", "no JSON"),
            (b"[1]", "a list"),
            (b"{\"a\":\"\xff\"}", "no JSON"),
            (b"{\"temperature\":1e999}", "no JSON"),
        ] {
            let error = parse(body).unwrap_err();
            assert!(error.message.contains(wanted), "{}", error.message);
            assert_eq!(error.kind, Kind::Invalid);
        }
    }

    #[test]
    fn a_field_of_the_wrong_kind_is_named() {
        let map = parse(br#"{"n":null,"f":"x","i":1.5,"w":64.0,"neg":-2,"big":1e12,"huge":1e39}"#).unwrap();
        let fields = Fields::within(&map, "messages[2].");
        assert_eq!(fields.text("n"), Ok(None));
        assert_eq!(fields.float("f").unwrap_err().message, "messages[2].f is text, wanted a number");
        assert_eq!(fields.whole("i").unwrap_err().message, "messages[2].i is 1.5, wanted a whole number");
        assert_eq!(fields.count("w", 0), Ok(Some(64)));
        assert_eq!(fields.count("big", 0), Ok(Some(u32::MAX)));
        assert!(fields.float("huge").unwrap_err().message.contains("messages[2].huge is 1e"));
        assert!(fields.count("neg", 0).unwrap_err().message.contains("is -2, wanted a whole number from 0"));
    }
}
