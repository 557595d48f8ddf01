//! Metadata values: every type of the format, arrays of arrays excepted.
//!
//! Strings stay as the file has them. Vocabularies hold tokens that differ in a byte order mark alone, so nothing is
//! trimmed, normalised or even asked to be UTF-8 before somebody wants text.

use std::fmt;

use super::error::{GgufError, printable};
use super::source::Source;
use crate::base::limits::{GGUF_ARRAY_LEN_MAX, GGUF_STRING_BYTES_MAX};

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is named after its type")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Bytes as in the file; UTF-8 is usual but not checked.
    String(Vec<u8>),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// The elements of an array value.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is named after the type of its elements")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(StringArray),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Strings one behind the other in one piece of memory, so that a vocabulary costs two allocations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StringArray {
    bytes: Vec<u8>,
    /// Where each string ends; a header is below 1 GiB, so 32 bits hold it.
    ends: Vec<u32>,
}

impl StringArray {
    /// How many strings there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`, verbatim.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Some(&self.bytes[start..end])
    }

    /// All strings in order, verbatim.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index).expect("invariant: index is below len"))
    }
}

impl Value {
    /// The number of an integer of any width, when it is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(number) => Some(number.into()),
            Self::U16(number) => Some(number.into()),
            Self::U32(number) => Some(number.into()),
            Self::U64(number) => Some(number),
            Self::I8(number) => number.try_into().ok(),
            Self::I16(number) => number.try_into().ok(),
            Self::I32(number) => number.try_into().ok(),
            Self::I64(number) => number.try_into().ok(),
            _ => None,
        }
    }

    /// The number of any numeric type, as near as 64-bit floats come.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::U8(number) => Some(number.into()),
            Self::U16(number) => Some(number.into()),
            Self::U32(number) => Some(number.into()),
            Self::I8(number) => Some(number.into()),
            Self::I16(number) => Some(number.into()),
            Self::I32(number) => Some(number.into()),
            Self::U64(number) => Some(number as f64),
            Self::I64(number) => Some(number as f64),
            Self::F32(number) => Some(number.into()),
            Self::F64(number) => Some(number),
            _ => None,
        }
    }

    /// Reads the type and the value of `key`.
    pub(super) fn read(source: &mut Source<'_>, key: &str) -> Result<Self, GgufError> {
        let offset_bytes = source.offset_bytes();
        let what = "a metadata value";
        Ok(match source.u32("the type of a metadata value")? {
            0 => Self::U8(source.u8(what)?),
            1 => Self::I8(source.u8(what)?.cast_signed()),
            2 => Self::U16(source.u16(what)?),
            3 => Self::I16(source.u16(what)?.cast_signed()),
            4 => Self::U32(source.u32(what)?),
            5 => Self::I32(source.u32(what)?.cast_signed()),
            6 => Self::F32(f32::from_bits(source.u32(what)?)),
            7 => {
                let offset_bytes = source.offset_bytes();
                Self::Bool(boolean(source.u8(what)?, key, offset_bytes)?)
            }
            8 => Self::String(source.string(GGUF_STRING_BYTES_MAX, "the length of a string value")?.to_vec()),
            9 => Self::Array(Array::read(source, key)?),
            10 => Self::U64(source.u64(what)?),
            11 => Self::I64(source.u64(what)?.cast_signed()),
            12 => Self::F64(f64::from_bits(source.u64(what)?)),
            found => return Err(GgufError::ValueType { key: key.to_owned(), offset_bytes, found }),
        })
    }
}

fn boolean(byte: u8, key: &str, offset_bytes: u64) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(GgufError::Boolean { key: key.to_owned(), offset_bytes, found }),
    }
}

impl Array {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(elements) => elements.len(),
            Self::I8(elements) => elements.len(),
            Self::U16(elements) => elements.len(),
            Self::I16(elements) => elements.len(),
            Self::U32(elements) => elements.len(),
            Self::I32(elements) => elements.len(),
            Self::F32(elements) => elements.len(),
            Self::Bool(elements) => elements.len(),
            Self::String(elements) => elements.len(),
            Self::U64(elements) => elements.len(),
            Self::I64(elements) => elements.len(),
            Self::F64(elements) => elements.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as 64-bit integers, when they are integers or booleans that fit.
    pub fn integers(&self) -> Option<Vec<i64>> {
        fn widen<T: Copy + TryInto<i64>>(elements: &[T]) -> Option<Vec<i64>> {
            elements.iter().map(|&element| element.try_into().ok()).collect()
        }
        match self {
            Self::U8(elements) => widen(elements),
            Self::I8(elements) => widen(elements),
            Self::U16(elements) => widen(elements),
            Self::I16(elements) => widen(elements),
            Self::U32(elements) => widen(elements),
            Self::I32(elements) => widen(elements),
            Self::U64(elements) => widen(elements),
            Self::I64(elements) => widen(elements),
            Self::Bool(elements) => widen(elements),
            Self::F32(_) | Self::F64(_) | Self::String(_) => None,
        }
    }

    /// The name of the elements' type.
    fn element_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::String(_) => "string",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    fn read(source: &mut Source<'_>, key: &str) -> Result<Self, GgufError> {
        let offset_bytes = source.offset_bytes();
        Ok(match source.u32("the element type of an array")? {
            0 => Self::U8(elements(source, u8::from_le_bytes)?),
            1 => Self::I8(elements(source, i8::from_le_bytes)?),
            2 => Self::U16(elements(source, u16::from_le_bytes)?),
            3 => Self::I16(elements(source, i16::from_le_bytes)?),
            4 => Self::U32(elements(source, u32::from_le_bytes)?),
            5 => Self::I32(elements(source, i32::from_le_bytes)?),
            6 => Self::F32(elements(source, f32::from_le_bytes)?),
            7 => Self::Bool(booleans(source, key)?),
            8 => Self::String(strings(source)?),
            9 => return Err(GgufError::NestedArray { key: key.to_owned(), offset_bytes }),
            10 => Self::U64(elements(source, u64::from_le_bytes)?),
            11 => Self::I64(elements(source, i64::from_le_bytes)?),
            12 => Self::F64(elements(source, f64::from_le_bytes)?),
            found => return Err(GgufError::ValueType { key: key.to_owned(), offset_bytes, found }),
        })
    }
}

const ARRAY_LEN: &str = "the length of an array";

/// A count and as many scalars of `N` bytes.
fn elements<T, const N: usize>(
    source: &mut Source<'_>,
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>, GgufError> {
    let count = source.count(GGUF_ARRAY_LEN_MAX, N as u64, ARRAY_LEN)?;
    let bytes = source.take(count * N as u64, "the elements of an array")?;
    let (scalars, rest) = bytes.as_chunks::<N>();
    assert!(rest.is_empty(), "as many bytes were taken as the elements have");
    Ok(scalars.iter().map(|&scalar| decode(scalar)).collect())
}

fn booleans(source: &mut Source<'_>, key: &str) -> Result<Vec<bool>, GgufError> {
    let count = source.count(GGUF_ARRAY_LEN_MAX, 1, ARRAY_LEN)?;
    let offset_bytes = source.offset_bytes();
    let bytes = source.take(count, "the elements of an array")?;
    bytes.iter().zip(offset_bytes..).map(|(&byte, offset_bytes)| boolean(byte, key, offset_bytes)).collect()
}

fn strings(source: &mut Source<'_>) -> Result<StringArray, GgufError> {
    let count = source.count(GGUF_ARRAY_LEN_MAX, 8, ARRAY_LEN)?;
    // Memory grows with what was read, not with the count: the rest of a large file may be something else.
    let mut strings = StringArray::default();
    for _ in 0..count {
        let string = source.string(GGUF_STRING_BYTES_MAX, "the length of a string in an array")?;
        strings.bytes.extend_from_slice(string);
        strings.ends.push(u32::try_from(strings.bytes.len()).expect("invariant: a header is below 1 GiB"));
    }
    strings.bytes.shrink_to_fit();
    strings.ends.shrink_to_fit();
    Ok(strings)
}

/// Type and value, short, for messages: `u32 5`, `string "flint"`, `array of 8 bool`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(number) => write!(f, "u8 {number}"),
            Self::I8(number) => write!(f, "i8 {number}"),
            Self::U16(number) => write!(f, "u16 {number}"),
            Self::I16(number) => write!(f, "i16 {number}"),
            Self::U32(number) => write!(f, "u32 {number}"),
            Self::I32(number) => write!(f, "i32 {number}"),
            Self::F32(number) => write!(f, "f32 {number}"),
            Self::Bool(truth) => write!(f, "bool {truth}"),
            Self::String(bytes) => write!(f, "string {}", printable(bytes)),
            Self::Array(array) => write!(f, "array of {} {}", array.len(), array.element_name()),
            Self::U64(number) => write!(f, "u64 {number}"),
            Self::I64(number) => write!(f, "i64 {number}"),
            Self::F64(number) => write!(f, "f64 {number}"),
        }
    }
}
