//! What can be wrong with a GGUF header.

use std::io;
use std::path::PathBuf;

/// Why a GGUF was refused. Offsets are bytes from the start of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file could not be opened or examined.
    #[error("{path}: cannot be opened: {error}", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A folder, a pipe or a device was named.
    #[error("{path}: not a regular file; name the GGUF itself", path = path.display())]
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
    /// One of the other errors, met in the file `path`.
    #[error("{path}: {cause}", path = path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error itself.
        cause: Box<GgufError>,
    },
    /// The system failed a read.
    #[error("read at byte {offset_bytes} failed: {error}")]
    Read {
        /// Where the read began.
        offset_bytes: u64,
        /// What the system said.
        error: io::Error,
    },
    /// The file does not begin as a GGUF does.
    #[error("not a GGUF: begins with {found}, wanted \"GGUF\"{hint}")]
    Magic {
        /// The first bytes, printable.
        found: String,
        /// What the file seems to be, and what to do; may be empty.
        hint: &'static str,
    },
    /// A version that this reader does not read.
    #[error("GGUF version {found}, wanted 2 or 3; convert the model again with a current converter")]
    Version {
        /// The version found.
        found: u32,
    },
    /// Numbers in big-endian order.
    #[error(
        "big-endian GGUF (version {version}), wanted little-endian; convert the model for little-endian machines"
    )]
    BigEndian {
        /// The version, read as big-endian.
        version: u32,
    },
    /// The file ends inside the header.
    #[error(
        "truncated: {what} at byte {offset_bytes} needs {want_bytes} B, the file has {left_bytes} B left; \
         copy or download the file again"
    )]
    Truncated {
        /// The field.
        what: &'static str,
        /// Where it begins.
        offset_bytes: u64,
        /// How many bytes it needs, at least.
        want_bytes: u64,
        /// How many there are to the end of the file.
        left_bytes: u64,
    },
    /// The bytes given are a beginning of the file only, and the header goes on; or the file shrank while it was read.
    #[error("header not complete: {have_bytes} B are there, at least {need_bytes} B are needed")]
    Incomplete {
        /// Bytes that were there.
        have_bytes: u64,
        /// Bytes of the file's beginning that are needed to go on.
        need_bytes: u64,
    },
    /// A count or a length beyond what is believed.
    #[error("{what} at byte {offset_bytes} is {found}, more than the {limit} that are read")]
    Limit {
        /// The count or length.
        what: &'static str,
        /// Where it stands.
        offset_bytes: u64,
        /// The limit.
        limit: u64,
        /// What the file says.
        found: u64,
    },
    /// A key or a tensor name that is not UTF-8, or is empty.
    #[error("{what} at byte {offset_bytes} is {found}, wanted a name in UTF-8")]
    Name {
        /// Which name.
        what: &'static str,
        /// Where it begins.
        offset_bytes: u64,
        /// The bytes, printable, shortened.
        found: String,
    },
    /// A metadata value of an unknown type.
    #[error("key {key}: value type {found} at byte {offset_bytes}, wanted 0 to 12")]
    ValueType {
        /// The key.
        key: String,
        /// Where the type stands.
        offset_bytes: u64,
        /// The type.
        found: u32,
    },
    /// An array whose elements are arrays.
    #[error(
        "key {key}: array of arrays at byte {offset_bytes}, wanted an array of numbers, booleans or strings"
    )]
    NestedArray {
        /// The key.
        key: String,
        /// Where the element type stands.
        offset_bytes: u64,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("key {key}: boolean {found} at byte {offset_bytes}, wanted 0 or 1")]
    Boolean {
        /// The key.
        key: String,
        /// Where it stands.
        offset_bytes: u64,
        /// The byte.
        found: u8,
    },
    /// The same key twice.
    #[error("key {key} stands twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A key that is needed is not there.
    #[error("key {key} is missing, wanted {wanted}")]
    MissingKey {
        /// The key.
        key: String,
        /// What it should hold.
        wanted: &'static str,
    },
    /// A key holds a value that does not fit.
    #[error("key {key} is {found}, wanted {wanted}")]
    WrongValue {
        /// The key.
        key: String,
        /// What it holds, shortened.
        found: String,
        /// What it should hold.
        wanted: &'static str,
    },
    /// The same tensor name twice.
    #[error("tensor {tensor} stands twice")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor with no dimension, or with too many.
    #[error("tensor {tensor}: {found} dimensions at byte {offset_bytes}, wanted 1 to {limit}")]
    DimensionCount {
        /// The tensor.
        tensor: String,
        /// Where the count stands.
        offset_bytes: u64,
        /// The count.
        found: u32,
        /// The most that are read.
        limit: u32,
    },
    /// A tensor of a type that this reader does not know, so that its size is unknown.
    #[error("tensor {tensor}: type {found} is unknown or was withdrawn; convert the model again, to q4_1")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The type's number.
        found: u32,
    },
    /// A dimension of zero.
    #[error("tensor {tensor}: dimension {dimension} of {dims:?} is 0, wanted 1 or more")]
    ZeroDimension {
        /// The tensor.
        tensor: String,
        /// Which dimension, from 0.
        dimension: usize,
        /// All of them, columns first.
        dims: Vec<u64>,
    },
    /// A row that is not a whole number of blocks.
    #[error(
        "tensor {tensor}: dimension 0 of {dims:?} is no multiple of {block}, the block of its type {kind}"
    )]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// The dimensions, columns first.
        dims: Vec<u64>,
        /// Its type.
        kind: &'static str,
        /// Values of a block.
        block: u64,
    },
    /// A tensor larger than the whole file, or than 64 bits can say.
    #[error(
        "tensor {tensor}: dimension {dimension} of {dims:?} makes it larger than the file of {file_len_bytes} B"
    )]
    TensorTooLarge {
        /// The tensor.
        tensor: String,
        /// The first dimension with which it is too large, from 0.
        dimension: usize,
        /// All dimensions, columns first.
        dims: Vec<u64>,
        /// The file's length.
        file_len_bytes: u64,
    },
    /// A tensor that does not begin at a multiple of the alignment.
    #[error(
        "tensor {tensor}: offset {offset_bytes} in the data is no multiple of general.alignment, {alignment}"
    )]
    Unaligned {
        /// The tensor.
        tensor: String,
        /// Its offset from the start of the data.
        offset_bytes: u64,
        /// The file's alignment.
        alignment: u32,
    },
    /// A tensor that goes on beyond the end of the file.
    #[error(
        "tensor {tensor}: {len_bytes} B at offset {offset_bytes} of the data, which begins at byte {data_start}, \
         end beyond the file of {file_len_bytes} B; copy or download the file again"
    )]
    BeyondFile {
        /// The tensor.
        tensor: String,
        /// Its offset from the start of the data.
        offset_bytes: u64,
        /// Its length.
        len_bytes: u64,
        /// Where the data begins.
        data_start: u64,
        /// The file's length.
        file_len_bytes: u64,
    },
    /// Two tensors that share bytes.
    #[error(
        "tensors {first} and {second} overlap: the first ends at byte {end_bytes}, the second begins at {offset_bytes}"
    )]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The other.
        second: String,
        /// Where the first ends.
        end_bytes: u64,
        /// Where the second begins.
        offset_bytes: u64,
    },
}

impl GgufError {
    /// The error without the file's name around it.
    pub fn cause(&self) -> &GgufError {
        match self {
            Self::InFile { cause, .. } => cause.cause(),
            other => other,
        }
    }
}

/// `bytes` for an error message: quoted, escaped, at most 48 of them.
pub(super) fn printable(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 48;
    let shown = &bytes[..bytes.len().min(SHOWN_MAX)];
    let more = if bytes.len() > SHOWN_MAX { "..." } else { "" };
    match std::str::from_utf8(shown) {
        Ok(text) => format!("{text:?}{more}"),
        Err(_) => format!("\"{}\"{more}", shown.escape_ascii()),
    }
}
