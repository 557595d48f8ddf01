//! The header as a whole: magic, version, counts, then metadata, tensor table and padding.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::{GgufError, printable};
use super::metadata::{self, Metadata};
use super::source::Source;
use super::tensors::{self, TensorTable};
use super::value::Value;
use crate::base::limits::{GGUF_ALIGNMENT_MAX, GGUF_ENTRIES_MAX};
use crate::base::units::align_up;

const MAGIC: &[u8; 4] = b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_DEFAULT: u32 = 32;

/// The header of a GGUF file, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    /// The format's version: 2 or 3.
    pub version: u32,
    /// Keys and values.
    pub metadata: Metadata,
    /// The tensors, with absolute offsets.
    pub tensors: TensorTable,
    /// Where tensor data begins, from the start of the file.
    pub data_start: u64,
    /// What offsets of tensors are multiples of, counted from `data_start`.
    pub alignment: u32,
    /// Length of the whole file.
    pub file_len_bytes: u64,
    header: Vec<u8>,
}

/// What the beginning of a file gave.
#[derive(Debug)]
pub enum Parsed {
    /// The header, all of it.
    Complete(Box<Gguf>),
    /// Nothing is wrong so far, but the header goes on behind the bytes given.
    Incomplete {
        /// Bytes of the file's beginning that are needed at least; fetching twice what is there saves rounds.
        need_bytes: u64,
    },
}

impl Parsed {
    /// The header.
    ///
    /// # Errors
    /// [`GgufError::Incomplete`] when bytes are missing.
    pub fn complete(self, have_bytes: u64) -> Result<Gguf, GgufError> {
        match self {
            Self::Complete(gguf) => Ok(*gguf),
            Self::Incomplete { need_bytes } => Err(GgufError::Incomplete { have_bytes, need_bytes }),
        }
    }
}

impl Gguf {
    /// Reads the header of the file at `path`, and no more of the file than the header, in pieces as they are needed.
    ///
    /// # Errors
    /// The file cannot be read, or its header is not what it must be: see [`GgufError`]. Errors about the content come
    /// as [`GgufError::InFile`].
    pub fn read(path: &Path) -> Result<Self, GgufError> {
        let opened = |error| GgufError::Open { path: path.to_owned(), error };
        // Asked before opening: to open a pipe would wait for a writer.
        if !std::fs::metadata(path).map_err(opened)?.is_file() {
            return Err(GgufError::NotAFile { path: path.to_owned() });
        }
        let mut file = File::open(path).map_err(opened)?;
        let file_len_bytes = file.metadata().map_err(opened)?.len();
        Self::read_from(&mut file, file_len_bytes)
            .map_err(|error| GgufError::InFile { path: path.to_owned(), cause: Box::new(error) })
    }

    /// Parses the beginning of a file of `file_len_bytes`: `header` may end anywhere, also far behind the header.
    ///
    /// # Errors
    /// The header is not what it must be: see [`GgufError`].
    pub fn parse(header: &[u8], file_len_bytes: u64) -> Result<Parsed, GgufError> {
        let mut input = header;
        match Self::read_from(&mut input, file_len_bytes) {
            Ok(gguf) => Ok(Parsed::Complete(Box::new(gguf))),
            Err(GgufError::Incomplete { need_bytes, .. }) => Ok(Parsed::Incomplete { need_bytes }),
            Err(error) => Err(error),
        }
    }

    /// The files of a split GGUF as one: as if each stood behind the one before it.
    ///
    /// Offsets count through all files, `file_len_bytes` is their sum, and the header holds all headers. Metadata,
    /// `version`, `alignment` and `data_start` are the first file's.
    ///
    /// # Errors
    /// [`GgufError::DuplicateTensor`] when two files have a tensor of the same name, [`GgufError::Read`] when there is no
    /// memory for the headers together.
    ///
    /// # Panics
    /// When `parts` is empty, or the lengths do not fit a `u64` together.
    pub fn join(parts: Vec<Self>) -> Result<Self, GgufError> {
        let mut parts = parts.into_iter();
        let mut joined = parts.next().expect("invariant: a model has at least one file");
        let mut tables = vec![(0, std::mem::take(&mut joined.tensors))];
        for part in parts {
            tables.push((joined.file_len_bytes, part.tensors));
            let offset_bytes = joined.header.len() as u64;
            joined
                .header
                .try_reserve_exact(part.header.len())
                .map_err(|error| GgufError::Read { offset_bytes, error: error.into() })?;
            joined.header.extend(part.header);
            let sum = joined.file_len_bytes.checked_add(part.file_len_bytes);
            joined.file_len_bytes = sum.expect("invariant: files on a drive are below 8 EiB together");
        }
        joined.tensors = TensorTable::join(tables)?;
        Ok(joined)
    }

    /// The header verbatim: bytes 0 to `data_start` of the file.
    pub fn header_bytes(&self) -> &[u8] {
        &self.header
    }

    fn read_from(input: &mut dyn Read, file_len_bytes: u64) -> Result<Self, GgufError> {
        let mut source = Source::new(input, file_len_bytes);
        check_magic(&mut source)?;
        let version = read_version(&mut source)?;
        let tensor_count = source.count(GGUF_ENTRIES_MAX, tensors::ENTRY_BYTES_MIN, "the tensor count")?;
        let key_count =
            source.count(GGUF_ENTRIES_MAX, metadata::ENTRY_BYTES_MIN, "the metadata key count")?;
        let metadata = Metadata::read(&mut source, key_count)?;
        let alignment = read_alignment(&metadata)?;
        let mut tensors = TensorTable::read(&mut source, tensor_count)?;
        let padding = align_up(source.offset_bytes(), alignment.into()) - source.offset_bytes();
        // Nothing follows the padding of a file without tensors, and not every writer then pads.
        let padding = if tensors.is_empty() { padding.min(source.left_bytes()) } else { padding };
        source.take(padding, "the padding before the tensor data")?;
        let data_start = source.offset_bytes();
        tensors.place(data_start, alignment, file_len_bytes)?;
        let header = source.into_header();
        Ok(Self { version, metadata, tensors, data_start, alignment, file_len_bytes, header })
    }
}

fn check_magic(source: &mut Source<'_>) -> Result<(), GgufError> {
    let shown = source.left_bytes().min(8);
    // Looked at before the length is: a short file of another kind is better named than called truncated.
    if shown < 4 {
        let found = source.take(shown, "the magic")?;
        if MAGIC.starts_with(found) {
            return source.take(4, "the magic").map(|_| ());
        }
        return Err(GgufError::Magic { found: printable(found), hint: "" });
    }
    let found = source.take(4, "the magic")?;
    let hint = match found {
        magic if magic == MAGIC => return Ok(()),
        b"vers" => "; a Git LFS pointer, it seems: fetch the file itself with `git lfs pull`",
        b"lmgg" | b"fmgg" | b"tjgg" | b"algg" => "; a ggml file older than GGUF: convert the model again",
        b"PK\x03\x04" => "; a PyTorch or zip archive: convert the model to GGUF",
        b"<!DO" | b"<htm" => "; a web page: the download went wrong",
        _ => "",
    };
    Err(GgufError::Magic { found: printable(found), hint })
}

fn read_version(source: &mut Source<'_>) -> Result<u32, GgufError> {
    let found = source.u32("the version")?;
    match found {
        2 | 3 => Ok(found),
        _ if (1..=0xFFFF).contains(&found.swap_bytes()) => {
            Err(GgufError::BigEndian { version: found.swap_bytes() })
        }
        _ => Err(GgufError::Version { found }),
    }
}

fn read_alignment(metadata: &Metadata) -> Result<u32, GgufError> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(&Value::U32(alignment)) if alignment.is_power_of_two() && alignment <= GGUF_ALIGNMENT_MAX => {
            Ok(alignment)
        }
        Some(other) => Err(GgufError::WrongValue {
            key: ALIGNMENT_KEY.to_owned(),
            found: other.to_string(),
            wanted: "a u32, a power of two from 1 to 1048576",
        }),
    }
}
