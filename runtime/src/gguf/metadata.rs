//! The keys of a GGUF, and typed ways to them whose errors name the key, what it holds and what was wanted.

use super::error::GgufError;
use super::source::Source;
use super::value::{Array, StringArray, Value};
use crate::base::limits::GGUF_KEY_BYTES_MAX;

/// Least bytes of a key with its value: length, one byte of name, type, one byte of value.
pub(super) const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;

/// Keys and values, in the order of the file. No key stands twice.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Indexes of `entries`, ordered by key.
    by_key: Vec<u32>,
}

impl Metadata {
    /// Reads `count` keys and values.
    pub(super) fn read(source: &mut Source<'_>, count: u64) -> Result<Self, GgufError> {
        let mut entries: Vec<(String, Value)> = Vec::new();
        for _ in 0..count {
            let key = source.name(GGUF_KEY_BYTES_MAX, "the length of a metadata key")?;
            let value = Value::read(source, &key)?;
            entries.push((key, value));
        }
        let mut by_key: Vec<u32> =
            (0..u32::try_from(entries.len()).expect("invariant: the key count has a limit")).collect();
        by_key.sort_unstable_by(|&a, &b| entries[a as usize].0.cmp(&entries[b as usize].0));
        let twice = by_key.windows(2).find(|pair| entries[pair[0] as usize].0 == entries[pair[1] as usize].0);
        if let Some(pair) = twice {
            return Err(GgufError::DuplicateKey { key: entries[pair[0] as usize].0.clone() });
        }
        Ok(Self { entries, by_key })
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let place =
            self.by_key.binary_search_by(|&index| self.entries[index as usize].0.as_str().cmp(key)).ok()?;
        Some(&self.entries[self.by_key[place] as usize].1)
    }

    /// A number below 2^32, from an integer of any width.
    ///
    /// # Errors
    /// [`GgufError::MissingKey`], [`GgufError::WrongValue`]; so for all accessors here. Those that end in `_opt` give
    /// `None` where the key is missing.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        required(self.u32_opt(key)?, key, WANTED_U32)
    }

    /// [`Self::u32`], or `None`.
    pub fn u32_opt(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.read_opt(key, WANTED_U32, |value| value.as_u64()?.try_into().ok())
    }

    /// A 32-bit float.
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        required(self.f32_opt(key)?, key, WANTED_F32)
    }

    /// [`Self::f32`], or `None`.
    pub fn f32_opt(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.read_opt(key, WANTED_F32, |value| match value {
            Value::F32(number) => Some(*number),
            _ => None,
        })
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        required(self.bool_opt(key)?, key, WANTED_BOOL)
    }

    /// [`Self::bool`], or `None`.
    pub fn bool_opt(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.read_opt(key, WANTED_BOOL, |value| match value {
            Value::Bool(truth) => Some(*truth),
            _ => None,
        })
    }

    /// Text.
    pub fn str(&self, key: &str) -> Result<&str, GgufError> {
        required(self.str_opt(key)?, key, WANTED_STR)
    }

    /// [`Self::str`], or `None`.
    pub fn str_opt(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.read_opt(key, WANTED_STR, |value| match value {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    /// Booleans, from an array of booleans or of integers that are 0 or 1, which some converters write.
    pub fn bool_array(&self, key: &str) -> Result<Vec<bool>, GgufError> {
        let truths = self.read_opt(key, WANTED_BOOLS, |value| match value {
            Value::Array(array) => array.integers()?.into_iter().map(truth).collect(),
            _ => None,
        })?;
        required(truths, key, WANTED_BOOLS)
    }

    /// 32-bit integers, from an array of integers of any width.
    pub fn i32_array(&self, key: &str) -> Result<Vec<i32>, GgufError> {
        required(self.i32_array_opt(key)?, key, WANTED_I32S)
    }

    /// [`Self::i32_array`], or `None`.
    pub fn i32_array_opt(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.read_opt(key, WANTED_I32S, |value| match value {
            Value::Array(array) => {
                array.integers()?.into_iter().map(|number| number.try_into().ok()).collect()
            }
            _ => None,
        })
    }

    /// Strings, verbatim.
    pub fn string_array(&self, key: &str) -> Result<&StringArray, GgufError> {
        required(self.string_array_opt(key)?, key, WANTED_STRINGS)
    }

    /// [`Self::string_array`], or `None`.
    pub fn string_array_opt(&self, key: &str) -> Result<Option<&StringArray>, GgufError> {
        self.read_opt(key, WANTED_STRINGS, |value| match value {
            Value::Array(Array::String(strings)) => Some(strings),
            _ => None,
        })
    }

    /// What `convert` makes of the value of `key`; an error when it makes nothing of it.
    fn read_opt<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(GgufError::WrongValue { key: key.to_owned(), found: value.to_string(), wanted }),
        }
    }
}

const WANTED_U32: &str = "an integer from 0 to 4294967295";
const WANTED_F32: &str = "an f32";
const WANTED_BOOL: &str = "a bool";
const WANTED_STR: &str = "a string in UTF-8";
const WANTED_BOOLS: &str = "an array of bool";
const WANTED_I32S: &str = "an array of i32";
const WANTED_STRINGS: &str = "an array of strings";

fn required<T>(value: Option<T>, key: &str, wanted: &'static str) -> Result<T, GgufError> {
    value.ok_or_else(|| GgufError::MissingKey { key: key.to_owned(), wanted })
}

fn truth(number: i64) -> Option<bool> {
    match number {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}
