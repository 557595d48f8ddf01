//! Shortcuts of the tests beside this file.

use flint_rt::gguf::{Array, Gguf, GgufError, Parsed, Value};

use crate::tiny_gguf::{GgufWriter, Item};

/// Parses `bytes` as a whole file.
pub(crate) fn parse(bytes: &[u8]) -> Result<Gguf, GgufError> {
    let len = bytes.len() as u64;
    Gguf::parse(bytes, len).and_then(|parsed| parsed.complete(len))
}

/// Parses what `writer` writes.
pub(crate) fn parse_written(writer: &GgufWriter) -> Result<Gguf, GgufError> {
    parse(&writer.bytes())
}

/// The message with which `bytes` are refused, which must hold all of `parts`.
#[track_caller]
pub(crate) fn assert_refused(bytes: &[u8], parts: &[&str]) -> GgufError {
    let error = parse(bytes).expect_err("a file that must be refused was read");
    assert_mentions(&error.to_string(), parts);
    error
}

/// Asserts that `message` holds all of `parts`.
#[track_caller]
pub(crate) fn assert_mentions(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not mention {part:?}");
    }
}

/// Whether the beginning of a file was right so far, only too short.
pub(crate) fn is_incomplete(parsed: &Result<Parsed, GgufError>) -> bool {
    matches!(parsed, Ok(Parsed::Incomplete { .. }))
}

/// A writer of the same header. Its tensors have no data, so only the header of what it writes is of use.
pub(crate) fn writer_of(gguf: &Gguf) -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.version = gguf.version;
    writer.alignment = gguf.alignment.into();
    for (key, value) in gguf.metadata.iter() {
        writer.add(key, item_of(value));
    }
    for tensor in gguf.tensors.iter() {
        writer.add_tensor(&tensor.name, tensor.kind.code(), &tensor.dims, Vec::new());
        let last = writer.tensors.last_mut().expect("one was added");
        last.offset = Some(tensor.offset_bytes - gguf.data_start);
    }
    writer
}

fn item_of(value: &Value) -> Item {
    fn array<T: Copy + Into<Item>>(kind: u32, elements: &[T]) -> Item {
        Item::Array(kind, elements.iter().map(|&element| element.into()).collect())
    }
    match value {
        Value::U8(value) => Item::U8(*value),
        Value::I8(value) => Item::I8(*value),
        Value::U16(value) => Item::U16(*value),
        Value::I16(value) => Item::I16(*value),
        Value::U32(value) => Item::U32(*value),
        Value::I32(value) => Item::I32(*value),
        Value::F32(value) => Item::F32(*value),
        Value::Bool(value) => Item::Bool(*value),
        Value::String(bytes) => Item::Str(bytes.clone()),
        Value::U64(value) => Item::U64(*value),
        Value::I64(value) => Item::I64(*value),
        Value::F64(value) => Item::F64(*value),
        Value::Array(elements) => match elements {
            Array::U8(elements) => array(0, elements),
            Array::I8(elements) => array(1, elements),
            Array::U16(elements) => array(2, elements),
            Array::I16(elements) => array(3, elements),
            Array::U32(elements) => array(4, elements),
            Array::I32(elements) => array(5, elements),
            Array::F32(elements) => array(6, elements),
            Array::Bool(elements) => array(7, elements),
            Array::String(strings) => {
                Item::Array(8, strings.iter().map(|bytes| Item::Str(bytes.to_vec())).collect())
            }
            Array::U64(elements) => array(10, elements),
            Array::I64(elements) => array(11, elements),
            Array::F64(elements) => array(12, elements),
        },
    }
}
